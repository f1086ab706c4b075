"""Image loaders: each file turns one kind of reference (a folder, an array file, `builtin:`) into Images.

A module of this package with ``SOURCE`` (the word before the colon) and ``load(name, settings, selection)`` is a loader.
So is a module that another package names in the entry-point group ``holdfast.data``. Adding a loader takes no other
change.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qsl

from holdfast.core.discovery import sources
from holdfast.core.encoder import Domain
from holdfast.core.errors import Conflict, HoldfastError, check_given_once, did_you_mean
from holdfast.core.geometry import Preprocessing
from holdfast.core.images import Images
from holdfast.core.settings import convert
from holdfast.data.base import Selection, evenly, groups_of
from holdfast.data.reading.scan_cache import ScanCache

Loader = Callable[[str, dict[str, str], Selection], Images]


def loaders() -> dict[str, Loader]:
    """Image loaders by source: arrays, builtin, folder, fsspec, hf, parquet and others."""
    import holdfast.data as home

    return {source: module.load for source, module in sources(home).items()}


def load(
    reference: str,
    domain: Domain,
    geometry: Preprocessing | None = None,
    *,
    limit: int | None = None,
    seed: int = 0,
    max_unreadable: float = 0.05,
    scan_cache: ScanCache | None = None,
) -> Images:
    """Load images by reference as inputs of an encoder.

    Args:
        reference: Path (folder of image files, saved Hugging Face dataset, .npy, .npz, .safetensors or .parquet file,
            tar shards), address such as ``s3://bucket/folder``, or ``source:name``. Settings follow a question mark:
            ``folder:photos?labels=folders``, ``data.npz?images=x_test``, ``hf:user/name@revision?split=test``,
            ``shards/{000..099}.tar``, ``builtin:digits``. ``?groups=`` names groups of images: ``prefix``, ``folders``
            or a file of ``id,group``. ``?balanced=10`` keeps ten random images of each class.
        domain: Shape and range of the encoder's inputs.
        geometry: How the encoder's source resizes and crops; by default images are fitted to the domain.
        limit: Largest number of images, chosen at random by ``seed`` and the ids.
        seed: Seed of the choice.
        max_unreadable: Fraction of damaged files among all files to tolerate, 0 to 1; ``images.skipped`` lists them. Up
            to 20,000 files are decoded once to find them; of more, only headers are read, and a file that fails later
            is named then.
        scan_cache: Files found sound before, with their digests; they are not read again for that.

    Example:
        >>> images = load("builtin:digits", Domain((1, 8, 8)), limit=3)
        >>> len(images), images.pixels([0]).shape
        (3, torch.Size([1, 1, 8, 8]))
        >>> load("bultin:digits", Domain((1, 8, 8)))
        Traceback (most recent call last):
        holdfast.core.errors.HoldfastError: no file or folder 'bultin:digits', and no image source 'bultin'. Did you mean ...
    """
    body, _, query = reference.partition("?")
    settings = _settings(query, reference)
    source, colon, name = body.partition(":")
    if name.startswith("//") or (source not in loaders() and "://" in body):
        source, name = "fsspec", body
    elif not colon or source not in loaders():
        source, name = kind(body), body
    grouping, balanced = settings.pop("groups", None), settings.pop("balanced", None)
    if balanced is not None and limit is not None:
        raise Conflict("images", f"balanced={balanced} and limit={limit}", "one of the two")
    images = loaders()[source](
        name, settings, Selection(domain, geometry, limit, seed, max_unreadable, scan_cache or ScanCache())
    )
    if balanced is not None:
        images = images[evenly(images, convert(balanced, int, "balanced"), seed)]
    if grouping is not None:
        images.groups = groups_of(images.ids, grouping)
    return images


def _settings(query: str, reference: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True) if query else []
    except ValueError as error:
        raise HoldfastError(f"{reference!r}: settings take the form ?key=value&key=value, got {query!r}") from error
    check_given_once(f"the reference {reference!r}", [key for key, _ in pairs])
    return dict(pairs)


def kind(body: str) -> str:
    """Return which loader reads the path ``body``."""
    from holdfast.data import arrays, downloads, huggingface, parquet, tars

    path = Path(body).expanduser()
    if downloads.form(path):
        return downloads.SOURCE
    if path.is_dir():
        return huggingface.SOURCE if huggingface.saved(path) else "folder"
    if path.suffix.lower() in arrays.SUFFIXES and path.is_file():
        return arrays.SOURCE
    if path.suffix.lower() == parquet.SUFFIX and path.is_file():
        return parquet.SOURCE
    if tars.is_tar(body):
        return tars.SOURCE
    if path.is_file():
        expected = f"a folder of images or a file ending in {', '.join(arrays.SUFFIXES)}, {parquet.SUFFIX}, .tar"
        raise HoldfastError(f"{body!r} is neither {expected}; pass the folder that holds it")
    source, colon, _ = body.partition(":")
    other = (
        f", and no image source {source!r}. {did_you_mean(source, list(loaders()))}" if colon else "; check the path"
    )
    raise HoldfastError(f"no file or folder {body!r}{other}")
