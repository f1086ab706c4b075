"""A canary in one file: made once with an encoder, checked wherever the encoder is in service."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Unpack

import numpy as np

from holdfast.commands.canary_make import library_versions, made, weights_hash
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import Conflict, HoldfastError, UnknownName
from holdfast.core.files import write_whole
from holdfast.core.geometry import Geometry
from holdfast.core.options import CanaryOptions, takes
from holdfast.core.run_settings import RunSettings
from holdfast.data.codes.files import SUFFIXES, read_table
from holdfast.run import inputs as loading
from holdfast.run.inputs import NamedEncoder, NamedImages, checked, loading_of, reference_or_images
from holdfast.service.canary import WEIGHTS, Canary, CanaryCheck
from holdfast.service.canary_images import Pictures, pictures_of
from holdfast.service.canary_url import embed_by

ACTIONS = ("make", "check")


@takes(CanaryOptions)
def canary(
    action: str,
    subject: NamedEncoder | Canary | Path,
    candidate: NamedEncoder | Path | None = None,
    *,
    images: NamedImages | None = None,
    out: str | Path | None = None,
    url: str | None = None,
    hashes: bool = False,
    **options: Unpack[CanaryOptions],
) -> Canary | CanaryCheck:
    """Make a canary of an encoder, or check an encoder, a service or vectors against one.

    Args:
        action: ``make`` or ``check``.
        subject: to make, an encoder or its reference; to check, a ``Canary`` or its file.
        candidate: to check, an encoder, its reference, or a file of embeddings (.npy, .npz, .parquet).
        images: to make, the images to choose from; to check, the original images if the file holds hashes alone.
        out: to make, the file to write, ending in .safetensors; None: return the canary alone.
        url: to check, the http or https address of a service that takes a PNG and returns a vector as JSON.
        hashes: to make, keep hashes instead of the images.
        precision: to make, what the embeddings are computed in (default float32); to check, what the candidate computes in,
            which widens the tolerance (default: that of the canary).
        **options: as other verbs take them.

    Returns:
        A ``Canary``, or a ``CanaryCheck`` whose ``passed`` says whether the encoder is the same.

    Raises:
        HoldfastError: something that was named cannot be read or does not fit.

    Example:
        >>> made = canary("make", "builtin:digits-contrastive", images="builtin:digits")
        >>> canary("check", made, "builtin:digits-contrastive").passed
        True
        >>> canary("check", made, "builtin:digits-random").cause
        'other weights, or a step that is none of the ... usual mistakes'
    """
    if action == "make":
        if candidate is not None or url is not None:
            raise Conflict("canary make", "a candidate or a url", "one encoder")
        return _make(subject, images, out, hashes, options)
    if action != "check":
        raise UnknownName("action", action, ACTIONS)
    if out is not None or hashes:
        raise Conflict("canary check", "out or hashes", "a canary and what is checked, and writes nothing")
    return _check(subject, candidate, images, url, options)


def _make(
    subject: object, images: NamedImages | None, out: str | Path | None, hashes: bool, options: CanaryOptions
) -> Canary:
    if images is None:
        raise HoldfastError("no images for the canary; name a folder of them with --images")
    if out is not None and Path(out).suffix != ".safetensors":
        raise HoldfastError(f"a canary is a file that ends in .safetensors, got {str(out)!r}; name one with --out")
    run = _run(options, options["precision"] or "float32")
    encoder = loading.load_encoder(checked(subject), loading_of(options))
    chosen = loading.select(
        reference_or_images(images), encoder.domain, encoder.geometry, limit=options["limit"], seed=options["seed"]
    )
    canary = made(encoder, chosen, run, loading_of(options), hashes)
    if out is not None:
        write_whole(Path(out), canary.to_bytes())
    return canary


def _check(
    subject: object,
    candidate: NamedEncoder | Path | None,
    images: NamedImages | None,
    url: str | None,
    options: CanaryOptions,
) -> CanaryCheck:
    if (candidate is None) == (url is None):
        raise Conflict("canary check", "both" if url else "neither", "a candidate or a url")
    if isinstance(subject, Encoder):
        raise HoldfastError("canary check takes the file of a canary first, then the encoder")
    canary = subject if isinstance(subject, Canary) else Canary.load(str(subject))
    precision = options["precision"]
    canary.tolerance(precision)  # an unknown one is refused before anything is computed
    if isinstance(candidate, (str, Path)) and Path(candidate).suffix.lower() in SUFFIXES and ":" not in str(candidate):
        return canary.compare(_rows(canary, candidate), precision)
    if images is not None:
        canary = canary.with_pictures(_originals(canary, images))
    if url is not None:
        return canary.check(embed_by(url), precision)
    run = _run(options, precision or canary.header.precision)
    encoder = loading.load_encoder(checked(candidate), loading_of(options))
    answer = canary.compare(Pictures.of(canary, encoder, run).codes(), precision)
    return answer if answer.passed else _with_facts(answer, canary, encoder)


def _run(options: CanaryOptions, precision: str) -> RunSettings:
    return RunSettings(options["seed"], options["device"], precision, options["batch_size"])


def _rows(canary: Canary, file: str | Path) -> np.ndarray:
    """Return the vectors of a file, in the order of the canary if the file names them."""
    table = read_table(str(file))
    codes, ids = np.asarray(table.codes[range(len(table.codes))], np.float64), table.column("ids", default=True)
    if ids is None:
        return codes
    position = {str(name): row for row, name in enumerate(ids)}
    if lacking := [name for name in canary.header.ids if name not in position]:
        raise HoldfastError(
            f"{file} has no embedding of {len(lacking)} of {len(canary.header.ids)} images, {lacking[0]!r} the first; "
            "name rows as the canary names its images"
        )
    return codes[[position[name] for name in canary.header.ids]]


def _originals(canary: Canary, images: NamedImages) -> tuple[np.ndarray, ...]:
    """Return the pictures that the hashes of ``canary`` are of."""
    domain = Domain(canary.header.shape)
    height, width = domain.shape[1:]
    found = loading.select(
        reference_or_images(images), domain, Geometry(min(height, width), (height, width)), limit=None, seed=0
    )
    position = {name: row for row, name in enumerate(found.ids)}
    if lacking := [name for name in canary.header.ids if name not in position]:
        raise HoldfastError(f"the images lack {lacking[0]!r} and {len(lacking) - 1} more; name the original images")
    return pictures_of(found, [position[name] for name in canary.header.ids], canary.header.side)


def _with_facts(answer: CanaryCheck, canary: Canary, encoder: Encoder) -> CanaryCheck:
    """Return ``answer`` with what ``encoder`` and its libraries state otherwise than the canary."""
    known = canary.header
    same = weights_hash(encoder) == known.weights
    stated, libraries = _moved(known.inputs, encoder.inputs), _moved(known.versions, library_versions())
    facts = ("The weights are the same" if same else "The weights differ", *stated, *libraries)
    cause = answer.cause
    if same and cause.startswith(WEIGHTS):
        cause = stated[0] if stated else "pooling, code or arithmetic, for the weights are the same"
    return replace(answer, cause=cause, facts=facts)


def _moved(then: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    return [f"{name}: {then[name]} then, {now[name]} now" for name in then if now.get(name, then[name]) != then[name]]
