"""What a canary holds, measured with the given encoder: tolerances, and embeddings under usual mistakes."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version

import numpy as np
import torch
from jaxtyping import Float

from holdfast.commands.parity_trials import of_pixels, usual_resizings
from holdfast.core.encoder import Encoder, Normalised
from holdfast.core.errors import HoldfastError, HoldfastWarning, OutOfRange
from holdfast.core.images import Images
from holdfast.core.run_settings import PRECISIONS, RunSettings
from holdfast.encoders import by_name as encoders
from holdfast.encoders.by_name import Options
from holdfast.measure.store import versions
from holdfast.service.canary import Canary, Vectors, digest, median_distance, norms
from holdfast.service.canary_file import MOST_IMAGES, Header
from holdfast.service.canary_images import Pictures, check_pictures, from_files, pictures_of, side_for
from holdfast.service.parity import ROUNDING

PROBED = 8
"""Images of which the embeddings under usual mistakes are kept."""
BATCHES = (1, 3, 7)
"""Batch sizes that are measured beside the whole batch; 1 on the probed images alone."""
MARGIN = 10.0
"""Tolerance over the largest distance measured in one precision: another machine rounds otherwise."""
MARGIN_OF_OTHERS = 2.0
"""The same for other precisions, whose distance is measured whole."""
FLOOR = 2e-4
"""Least tolerance: libraries may change their kernels."""
LOOSEST = 0.25
"""Distance between batch sizes from which no canary is made."""
POOLINGS = ("cls", "mean", "pooler")
LIBRARIES = ("timm", "transformers", "open_clip_torch", "torchvision", "onnxruntime", "pillow", "safetensors")


def made(encoder: Encoder, images: Images, run: RunSettings, options: Options, hashes: bool) -> Canary:
    """Return a canary of ``encoder`` on all of ``images``.

    Args:
        encoder: the encoder as it should stay.
        images: the images to keep.
        run: device, precision and batch size.
        options: how encoders are loaded, to try other poolings.
        hashes: keep hashes instead of the images.

    Raises:
        HoldfastError: the encoder takes no pictures, gives most images one embedding, or its embeddings depend on the batch.
    """
    check_pictures(encoder)
    channels, height, width = encoder.domain.shape
    side = side_for(encoder.domain) if from_files(images) else 0
    # Of exact copies the first stays: they would have no distance.
    distinct = {
        digest(each): row for row, each in reversed([*enumerate(pictures_of(images, range(len(images)), side))])
    }
    rows = sorted(distinct.values())
    if not 2 <= len(rows) <= MOST_IMAGES:
        raise OutOfRange(
            "number of distinct images", len(rows), f"from 2 to {MOST_IMAGES}", fix="change --images or --limit"
        )
    pictures = Pictures(encoder, pictures_of(images, rows, side), side, run)
    codes = pictures.codes()
    scale = median_distance(codes)
    causes = dict(_causes(pictures.few(PROBED), codes, scale, options))
    header = Header(
        encoder=_shown(encoder.name),
        ids=tuple(_shown(images.ids[row]) for row in rows),
        hashes=tuple(map(digest, pictures.pictures)),
        shape=(channels, height, width),
        side=side,
        precision=run.precision,
        tolerances=_tolerances(pictures, codes, scale),
        causes=tuple(map(_shown, causes)),
        weights=weights_hash(encoder),
        inputs={name: _shown(value) for name, value in encoder.inputs.items()},
        versions=library_versions(),
    )
    kept = np.stack(list(causes.values())) if causes else np.empty((0, 0, codes.shape[1]))
    return Canary(header, codes.astype(np.float32), kept.astype(np.float32), () if hashes else pictures.pictures)


def _shown(text: str) -> str:
    """Return ``text`` without control characters, as a header may hold it."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)[:1000]


def _tolerances(pictures: Pictures, codes: Vectors, scale: float) -> dict[str, float]:
    """Return the largest distance that rounding explains, by precision."""

    def moved(other: Vectors) -> float:
        return float(norms(other - codes[: len(other)]).max() / scale)

    few, own = pictures.few(PROBED), pictures.run.precision
    rounding = [moved((few if batch == 1 else pictures).codes(batch=batch)) for batch in BATCHES]
    for threads in (1, 2):
        with _threads(threads):
            rounding.append(moved(few.codes()))
    others = {}
    for name in PRECISIONS:
        if name != own and (found := _in_precision(few, name)) is not None:
            others[name] = moved(found)
    exact = [others[name] for name in ("float64", "float32") if name in others and own in ("float64", "float32")]
    # The distance to float64 is the whole rounding error, whichever way another machine rounds.
    largest = max(*rounding, *exact)
    if max(rounding) > LOOSEST:
        raise HoldfastError(
            f"embeddings of {pictures.encoder.name} move by {max(rounding):.2g} of the distance between images in other "
            "batches, so no change could be told; make it deterministic (eval mode, no sampling, static quantisation)"
        )
    tolerance = max(FLOOR, MARGIN * largest)
    if tolerance > ROUNDING:
        warnings.warn(
            f"{pictures.encoder.name}: rounding moves embeddings by {largest:.2g} of the distance between images, so the "
            f"tolerance is {tolerance:.2g} and smaller changes go unnoticed. Use float32, or static quantisation.",
            HoldfastWarning,
            stacklevel=3,
        )
    return {own: tolerance} | {name: max(tolerance, MARGIN_OF_OTHERS * value) for name, value in others.items()}


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _in_precision(pictures: Pictures, name: str) -> Vectors | None:
    """Return the embeddings in another precision; None if the encoder cannot compute in it."""
    try:
        return replace(pictures, run=replace(pictures.run, precision=name)).codes()
    except (RuntimeError, HoldfastError):  # exported programs and some devices know one precision
        return None


def _causes(pictures: Pictures, codes: Vectors, scale: float, options: Options) -> Iterator[tuple[str, Vectors]]:
    """Yield the embeddings of a few images under each usual mistake that changes them."""
    encoder = pictures.encoder
    for attempt in of_pixels(encoder, encoder):
        with _skipped():
            yield from _changed(attempt.name, pictures.codes(attempt(pictures.usual)), codes, scale)
    for attempt in usual_resizings(encoder.geometry) if pictures.side and encoder.geometry else ():
        with _skipped():
            yield from _changed(attempt.name, pictures.codes(pictures.pixels(attempt.geometry)), codes, scale)
    for how, other in _pooled(encoder, options):
        with _skipped():
            yield from _changed(f"pooling: {how}", replace(pictures, encoder=other).codes(), codes, scale)
    for name in PRECISIONS:
        if name != pictures.run.precision and (found := _in_precision(pictures, name)) is not None:
            yield from _changed(f"precision: {name}", found, codes, scale)


@contextmanager
def _skipped() -> Iterator[None]:
    """Leave out a mistake under which the encoder overflows or refuses its inputs."""
    try:
        yield
    except HoldfastError:
        return


def _changed(name: str, other: Float[np.ndarray, "m e"], codes: Vectors, scale: float) -> Iterator[tuple[str, Vectors]]:
    if other.shape[1] == codes.shape[1] and norms(other - codes[: len(other)]).max() > FLOOR * scale:
        yield name, other


def _pooled(encoder: Encoder, options: Options) -> Iterator[tuple[str, Encoder]]:
    """Yield the encoder with other poolings, if its source knows some."""
    reference, _, query = encoder.source.partition("?")
    if reference.partition(":")[0] not in ("timm", "hf"):
        return
    kept = [part for part in query.split("&") if part and not part.startswith(("pool=", "tokens="))]
    for how in POOLINGS:
        with _skipped(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            other = encoders.load(f"{reference}?{'&'.join([*kept, f'pool={how}'])}", options)
            # Random weights differ each time they are loaded.
            if weights_hash(other) == weights_hash(encoder):
                yield how, other


def weights_hash(encoder: Encoder) -> str:
    """Return the SHA-256 of names, types, shapes and bytes of the weights, without the normalisation in front."""
    module = encoder.module.module if isinstance(encoder.module, Normalised) else encoder.module
    found = sha256()
    for name, value in sorted(module.state_dict().items()):
        if isinstance(value, torch.Tensor) and not value.is_quantized:
            found.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            found.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        else:
            found.update(f"{name} {value!r}".encode())
    return found.hexdigest()


def library_versions() -> dict[str, str]:
    """Return the versions of everything that computes, and of the libraries that are loaded."""
    found = versions()
    for name in LIBRARIES:
        module = {"open_clip_torch": "open_clip", "pillow": "PIL"}.get(name, name)
        if module in sys.modules:
            try:
                found[name] = version(name)
            except PackageNotFoundError:
                continue
    return found
