"""WebDataset shards: tar files of images with their labels, read in any order and never unpacked.

Members of a tar that share a name up to its first dot are one sample (https://github.com/webdataset/webdataset), such as
``0001.jpg`` and ``0001.cls``. With ``?dot=last``, the key is the name up to its last dot; tars of plain files such as
``photo.v1.jpg`` then keep every image. Each tar is scanned once, and the positions of its images are cached.
"""

from __future__ import annotations

import json
import tarfile
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int
from torch import Tensor

from holdfast.core.errors import HoldfastError, explained
from holdfast.core.images import Images
from holdfast.data.by_name import Selection, as_labels, check_settings
from holdfast.data.reading.decode import Stored, side_by_side
from holdfast.data.reading.label_files import numbered
from holdfast.data.reading.scan import load_encoded
from holdfast.data.reading.stores import SUFFIXES, FileStore, StoredFile, report
from holdfast.data.reading.stores import ending as last_ending

SOURCE = "wds"
MISSING = -1
"""The position of an image that is not there, though other members of its sample are."""


class Samples(NamedTuple):
    """Index of a tar: keys, places and labels of its images.

    ``others`` counts, by their endings, members that belong to no sample.
    """

    keys: list[str]
    starts: list[int]
    sizes: list[int]
    labels: list[Any]
    others: dict[str, int]


def is_tar(path: str) -> bool:
    """Return whether ``path`` looks like that of tars."""
    return path.endswith(".tar")


def load(name: str, settings: dict[str, str], selection: Selection) -> Images:
    """Images of tars: one tar, a folder of tars, or a pattern such as {000..099}.tar.

    Settings: ``image``, the ending of the images where samples have several (``left.png``); ``label``, a field of the
    samples' ``.json`` (by default their ``.cls``, or else the field ``label``); ``dot``, the dot of a name that ends its key
    (``first``, as in WebDataset, or ``last``); ``max_pixels``. Ids are shard/key.
    """
    check_settings(settings, ["image", "label", "dot", "max_pixels"], SOURCE)
    dot = settings.get("dot", "first")
    if dot not in ("first", "last"):
        raise HoldfastError(f"dot is first or last, got {dot!r}")
    shards = find(name)
    chosen = settings.get("image", ""), settings.get("label", ""), dot
    tars, versions = list(shards.values()), [tar.version for tar in shards.values()]

    def indexed(position: int) -> Samples:
        stamp = selection.scan_cache.key(versions[position], "samples, others and dots", *chosen)
        content = selection.scan_cache.recall(stamp, lambda: json.dumps(index(tars[position], *chosen)).encode())
        return Samples(*json.loads(content))

    try:
        samples = list(side_by_side(indexed, range(len(tars))))
    finally:
        selection.scan_cache.save()
    ids = [f"{shard}/{key}" for shard, members in zip(shards, samples, strict=True) for key in members.keys]
    others = sum((Counter(sample.others) for sample in samples), Counter[str]())
    report(name, others, len(ids), "members")
    labels, classes = _labels(name, [label for sample in samples for label in sample.labels], "label" in settings)
    members = Members(tars, versions, samples)
    return load_encoded(name, members, ids, labels, selection, settings, classes, distant=True)


def find(name: str) -> dict[str, StoredFile]:
    """Return the tars that ``name`` stands for, by their names without the ending."""
    store, path = FileStore.at(name)
    if is_tar(name):
        files = store.expand(path)
    else:
        files = {tar: file for tar, file in store.find(path).items() if is_tar(tar)}
        if not files:
            raise HoldfastError(
                f"{name} holds no shards; expected files ending in .tar (compressed ones, .tar.gz, cannot "
                "be read in any order: unpack them)"
            )
    return {tar.removesuffix(".tar"): file for tar, file in files.items()}


class Members:
    """Source of encoded images inside tars."""

    def __init__(self, tars: Sequence[StoredFile], versions: Sequence[str | None], samples: Sequence[Samples]) -> None:
        self.tars, self.versions = tars, versions
        self.tar_of = np.repeat(np.arange(len(tars)), [len(sample.keys) for sample in samples])
        self.starts = np.concatenate([np.array(sample.starts, np.int64) for sample in samples])
        self.sizes = np.concatenate([np.array(sample.sizes, np.int64) for sample in samples])

    def __call__(self, row: int) -> Stored:
        tar, start, size = int(self.tar_of[row]), int(self.starts[row]), int(self.sizes[row])
        if start == MISSING:
            raise ValueError("no image among the members of this name")
        version = self.versions[tar]
        return Stored(partial(self.tars[tar].read, start, start + size), version and f"{version}\0{start} {size}")


def index(tar: StoredFile, image: str, label: str, dot: str) -> Samples:
    """Index of the samples in a tar.

    Raises:
        HoldfastError: The tar is damaged, or the image of a sample is ambiguous.
    """
    fix = "fetch or write it again, and unpack a compressed one"
    with (
        explained(f"{tar.address} is truncated or no tar file", fix, tarfile.TarError, EOFError),
        tar.open() as file,
        tarfile.open(fileobj=file, mode="r:") as opened,
    ):
        members = _members(tar.address, opened, dot)
        # tarfile takes damage and the end of the file for the end, too, so this looks for its mark.
        file.seek(opened.offset)
        if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise tarfile.ReadError(f"neither a member nor the end at byte {opened.offset}")
        return _samples(tar.address, members, opened, image, label)


def _members(name: str, opened: tarfile.TarFile, dot: str) -> dict[str, dict[str, tarfile.TarInfo]]:
    """Return the members of each sample by their endings."""
    samples: dict[str, dict[str, tarfile.TarInfo]] = {}
    for member in opened:
        path = PurePosixPath(member.name)
        stem, _, ending = path.name.partition(".")
        if dot == "last" and stem:
            stem, ending = path.stem, path.suffix[1:]
        if not member.isreg() or member.issparse() or not stem:
            continue
        sample = samples.setdefault(str(path.with_name(stem)), {})
        if sample.setdefault(ending.lower(), member) is not member:
            raise HoldfastError(
                f"{name} holds {member.name!r} twice (as {sample[ending.lower()].name!r}); write it again with a key of its "
                "own for each sample"
            )
    return samples


def _samples(
    name: str, members: Mapping[str, Mapping[str, tarfile.TarInfo]], opened: tarfile.TarFile, image: str, label: str
) -> Samples:
    samples = Samples([], [], [], [], {})
    for key, sample in members.items():
        pictures = [ending for ending in sample if f".{ending}".endswith(SUFFIXES)]
        images = [ending for ending in sample if ending == image] if image else pictures
        if len(images) > 1:
            shown = ", ".join(sample[ending].name for ending in images[:8])
            raise HoldfastError(
                f"sample {key!r} of {name} has {len(images)} images ({shown}). If each is a sample of its own, add "
                f"?dot=last. If one image of each sample counts, say which, as in ?image={images[0]}"
            )
        if not (images or pictures) and not {"cls", "json"} & set(sample):
            for other in (last_ending(f"{key}.{ending}") for ending in sample):
                samples.others[other] = samples.others.get(other, 0) + 1
            continue  # a note beside the samples, or an image of a format that is not read
        at = sample[images[0]] if images else None
        samples.keys.append(key)
        samples.starts.append(at.offset_data if at else MISSING)
        samples.sizes.append(at.size if at else 0)
        samples.labels.append(_label(sample, opened, label))
    return samples


def _label(sample: Mapping[str, tarfile.TarInfo], opened: tarfile.TarFile, field: str) -> Any:
    """Return a sample's label, or None."""
    try:
        if not field and "cls" in sample:
            text = _content(opened, sample["cls"]).strip()
            return int(text) if text.isdecimal() else text
        if "json" in sample:
            return json.loads(_content(opened, sample["json"])).get(field or "label")
    except (ValueError, AttributeError, RecursionError):  # no JSON, or no object, or brackets without end
        pass
    return None


def _content(opened: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    file = opened.extractfile(member)
    return file.read().decode("utf-8", "replace") if file else ""


def _labels(name: str, labels: list[Any], named: bool) -> tuple[Int[Tensor, "n"] | None, tuple[str, ...]]:
    """Return a number for each sample, and the classes' names if the labels are such."""
    labels = [None if isinstance(label, str) and not label.strip() else label for label in labels]  # an empty .cls
    if not named and all(label is None for label in labels):
        return None, ()
    if all(isinstance(label, str) for label in labels):
        return numbered(labels)
    return as_labels(labels, len(labels), named, f"labels of {name}"), ()
