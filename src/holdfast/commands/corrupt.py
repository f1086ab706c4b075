"""Transformed images as files: a folder of 8-bit PNGs per transform, and a record of their origin.

OUT/fog-c_3/cat/1.png   the image cat/1.jpg in fog of severity 3
OUT/fog-c_3.json        transform, version, seed, images, and of each file the id and the checksum

Each PNG contains the key of its content, so an interrupted request continues where it stopped: complete files with the right
key stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Unpack

from holdfast.core.encoder import Domain
from holdfast.core.errors import HoldfastError
from holdfast.core.images import Images
from holdfast.core.options import CorruptOptions, takes
from holdfast.core.settings import listed
from holdfast.corruptions.transformed_files import (
    Batch,
    CorruptedImage,
    Folder,
    Manifest,
    file_names_of,
    made_files,
    plain,
)
from holdfast.data.folder import find
from holdfast.measure.store import Store, provenance
from holdfast.run.engines.ranks import Ranks
from holdfast.run.inputs import NamedImages, reference_or_images, select
from holdfast.run.run import Run
from holdfast.transforms.base import Transform, transform_of, transformed, versions
from holdfast.transforms.subsets import subset_of


@takes(CorruptOptions)
def corrupt(
    images: NamedImages,
    transform: str | Transform | Sequence[str | Transform],
    out: str | Path,
    *,
    size: int = 224,
    channels: int = 3,
    **options: Unpack[CorruptOptions],
) -> tuple[Manifest, ...]:
    """Write ``images`` as each transform changes them below the folder ``out``; what is there already stays.

    Args:
        images: a folder, a reference, Images, or a tensor (n, channels, height, width) in [0, 1].
        transform: one or several, as in ``["fog-c:3", "jpeg:30 + gamma:0.5"]``.
        out: a folder of its own for each transform is made in it.
        size: height and width to which images of a reference are resized and cropped, as an encoder would.
        channels: 3, or 1 for gray ones.
        cluster: compute on a Ray cluster: auto, local or its address; or ``ranks``, of which the first alone writes and
            returns manifests.

    Raises:
        HoldfastError: something that was named does not exist or does not fit, or ``out`` holds something else.
    """
    transforms = [transform_of(each) for each in listed(transform)]
    paths = [plain(str(each)) for each in transforms]
    if not transforms or len(set(paths)) < len(paths):
        names = ", ".join(map(str, transforms)) or "none"
        raise HoldfastError(f"each transform is written once, got {names}; name others")
    with Run.open("corrupt", {**options, "out": out}, mark=None) as run:
        seed, store = run.settings.seed, run.store
        named = reference_or_images(images)
        shape = (channels, size, size) if isinstance(named, str) else tuple(named.pixels([0]).shape[1:])
        if isinstance(named, str) and channels not in (1, 3):
            raise HoldfastError(f"images have 1 or 3 channels, got {channels}")
        if len(shape) != 3 or shape[0] not in (1, 3):
            raise HoldfastError(f"PNG files hold images of shape (1 or 3, height, width), but these have shape {shape}")
        chosen = select(named, Domain(shape), limit=options["limit"], seed=seed)
        loaded = subset_of(chosen, options["subset"], seed, lambda reference: select(reference, Domain(shape)))
        file_names, rows, at_once = file_names_of(loaded), range(len(loaded)), run.settings.batch_size
        batches = [rows[start : start + at_once] for start in rows[::at_once]]
        for path, each in zip(paths, transforms, strict=True):
            _check_same(store.folder / f"{path}.json", _contents(each, seed, loaded))
            there = store.folder / path
            others = set(find(there) if there.is_dir() else ()) - {f"{name}.png" for name in file_names}
            if others:  # they would count as some of its own
                raise HoldfastError(
                    f"{there} holds other images already ({min(others)}, {len(others)} in all); choose another --out, or "
                    "delete them"
                )
        folders = [
            Folder(path, file_names, loaded, each, transformed(loaded, each, seed))
            for path, each in zip(paths, transforms, strict=True)
        ]
        if isinstance(run.engine, Ranks):
            for folder in folders:
                _share(run.engine, store, folder, batches)
            run.engine.end()
        places = range(len(folders)) if run.is_main else ()
        return tuple(_written(folders[place], run, batches, place, len(folders)) for place in places)


def _written(folder: Folder, run: Run, batches: Sequence[Sequence[int]], place: int, count: int) -> Manifest:
    """Write what is missing of one folder, at this ``place`` among ``count`` folders, and its manifest."""
    started, files, loaded, store = datetime.now(UTC), dict[int, CorruptedImage](), folder.images, run.store
    contents = (_file_contents(store, folder, rows) for rows in batches)  # each when there is room for it
    with closing(run.engine.map(made_files, folder, contents)) as finished:
        for batch, of_batch in finished:
            _write(store, of_batch)
            files |= {row: file for (row, _), (file, _) in zip(batch, of_batch, strict=True)}
            done = len(files) / len(loaded)
            if run.show:  # the folders that are left take as long as this one
                left = (datetime.now(UTC) - started).total_seconds() / done * (count - place - done)
                run.show(str(folder.transform), (place + done) / count, left)
    manifest = Manifest(
        transform=str(folder.transform),
        **_contents(folder.transform, run.settings.seed, loaded),
        changed_images=folder.changed.fingerprint,
        name=loaded.name,
        skipped=tuple(f"{name}: {reason}" for name, reason in loaded.skipped.items()),
        change=sum(file.change for _, file in sorted(files.items())) / len(files),
        files=tuple(files[row] for row in range(len(loaded))),
        provenance=provenance(run.settings, started),
    )
    store.write_file(f"{folder.path}.json", manifest.model_dump_json(indent=1).encode())
    return manifest


def _contents(transform: Transform, seed: int, images: Images) -> dict[str, Any]:
    return {
        "versions": versions(transform),
        "seed": seed,
        "shape": tuple(images.pixels([0]).shape[1:]),
        "original_images": images.fingerprint,
    }


def _check_same(path: Path, expected: dict[str, Any]) -> None:
    """Raise if the manifest is that of another request; a folder that has none yet is judged file by file."""
    if not path.exists():
        return
    try:
        manifest = Manifest.model_validate_json(path.read_bytes())
    except ValueError:
        raise HoldfastError(f"{path} is no manifest of changed images; delete it or choose another --out") from None
    if other := [name for name, value in expected.items() if getattr(manifest, name) != value]:
        raise HoldfastError(
            f"{path.with_suffix('')} holds other images already (other {', '.join(other)}); choose another --out, or "
            f"delete it and {path.name}"
        )


def _share(ranks: Ranks, store: Store, folder: Folder, batches: Sequence[Sequence[int]]) -> None:
    """Write what is missing, batch by batch with other processes; who reads the files then sees which are damaged."""

    def written(rows: Sequence[int]) -> bool:
        return all((store.folder / folder.file(row)).exists() for row in rows)

    def write(folder: Folder, rows: Sequence[int]) -> None:
        _write(store, made_files(folder, _file_contents(store, folder, rows)))

    units = {f"{folder.path}-{rows[0]}": rows for rows in batches if not written(rows)}
    for _ in ranks.share(write, folder, units, written):
        pass


def _file_contents(store: Store, folder: Folder, rows: Sequence[int]) -> Batch:
    """Return what the files of ``rows`` hold, read by the process that writes them, because workers may see other drives."""

    def content(row: int) -> bytes | None:
        with suppress(OSError):
            return (store.folder / folder.file(row)).read_bytes()
        return None

    return [(row, content(row)) for row in rows]


def _write(store: Store, images: Sequence[tuple[CorruptedImage, bytes | None]]) -> None:
    for file, content in images:
        if content is not None:
            store.write_file(file.file, content)
