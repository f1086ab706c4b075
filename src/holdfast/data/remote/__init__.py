"""Images behind an address that fsspec opens: `s3://bucket/folder`, `gs://`, `hf://datasets/user/name`, `https://` ..."""

from __future__ import annotations

from collections import Counter

from holdfast.core.images import Images
from holdfast.data import arrays, folder, tars
from holdfast.data.base import Selection, check_settings
from holdfast.data.reading.encoded import load_encoded
from holdfast.data.reading.endings import SUFFIXES, ending, report
from holdfast.data.reading.stores import FileStore, StoredFiles
from holdfast.data.remote import stored_arrays

SOURCE = "fsspec"


def load(name: str, settings: dict[str, str], selection: Selection) -> Images:
    """Return the images of the folder, array file or tars at the address ``name``; nothing is copied to this machine.

    Settings are those of the same thing on this machine: see ``folder``, ``arrays`` and ``wds``.
    """
    store, path = FileStore.at(name)
    if store.local:
        return local(path, settings, selection)
    if path.endswith(".tar"):
        return tars.load(name, settings, selection)
    if path.lower().endswith(tuple(arrays.SUFFIXES)):
        return stored_arrays.load(name, settings, selection)
    check_settings(settings, folder.SETTINGS, SOURCE)
    found = store.find(path)
    images = {name: file for name, file in found.items() if name.lower().endswith(SUFFIXES)}
    report(
        name,
        Counter(map(ending, found)),
        len(images),
        f"an address of a .tar or {', '.join(arrays.SUFFIXES)}, or files",
    )
    labels, names = folder.labelled(list(images), settings)
    files = StoredFiles(list(images.values()))
    return load_encoded(name, files, list(images), labels, selection, settings, names, distant=True)


def local(path: str, settings: dict[str, str], selection: Selection) -> Images:
    """Return the images at a path of this machine, spelled as ``file://``."""
    from holdfast.data import kind, loaders

    return loaders()[kind(path)](path, settings, selection)
