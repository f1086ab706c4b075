"""A canary in one file: made once with an encoder, checked wherever the encoder is in service.

Making one measures, with the given encoder, tolerances and the embeddings under usual mistakes.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Unpack

import numpy as np
import torch
from jaxtyping import Float

from holdfast.commands.parity_trials import of_pixels, usual_resizings
from holdfast.core.encoder import Domain, Encoder, Normalised
from holdfast.core.errors import Conflict, HoldfastError, OutOfRange, UnknownName, warn
from holdfast.core.files import EMBEDDING_FILES, write_whole
from holdfast.core.geometry import Geometry
from holdfast.core.images import Images
from holdfast.core.options import CanaryOptions, takes
from holdfast.core.run_settings import PRECISIONS, RunSettings
from holdfast.data.codes.files import read_table
from holdfast.encoders import by_name as encoders
from holdfast.encoders.by_name import Options
from holdfast.encoders.stored import without_store
from holdfast.measure.store import versions
from holdfast.run import inputs as loading
from holdfast.run.engines.processes import torch_threads
from holdfast.run.inputs import NamedEncoder, NamedImages, checked, loading_of, reference_or_images
from holdfast.service.canary import (
    WEIGHTS,
    Canary,
    CanaryCheck,
    Pictures,
    Vectors,
    check_pictures,
    digest,
    from_files,
    median_distance,
    norms,
    pictures_of,
    side_for,
)
from holdfast.service.canary_file import MOST_IMAGES, Header, embed_by
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

    def moved(other: Vectors) -> float:
        return float(norms(other - codes[: len(other)]).max() / scale)

    few, own = pictures.few(PROBED), pictures.run.precision
    rounding = [moved((few if batch == 1 else pictures).codes(batch=batch)) for batch in BATCHES]
    for threads in (1, 2):
        with torch_threads(threads):
            rounding.append(moved(few.codes()))
    others = {}
    for name in PRECISIONS:
        if name != own and (found := _in_precision(pictures, name)) is not None:
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
        warn(
            f"{pictures.encoder.name}: rounding moves embeddings by {largest:.2g} of the distance between images, so the "
            f"tolerance is {tolerance:.2g} and smaller changes go unnoticed. Use float32, or static quantisation.",
            2,
        )
    return {own: tolerance} | {name: max(tolerance, MARGIN_OF_OTHERS * value) for name, value in others.items()}


def _in_precision(pictures: Pictures, name: str) -> Vectors | None:
    """Return the embeddings in another precision; None if the encoder cannot compute in it."""
    try:
        return replace(pictures, run=replace(pictures.run, precision=name)).codes()
    except (RuntimeError, HoldfastError):  # exported programs and some devices know one precision
        return None


def _causes(pictures: Pictures, codes: Vectors, scale: float, options: Options) -> Iterator[tuple[str, Vectors]]:
    """Yield the embeddings of a few images under each usual mistake that changes them."""
    encoder = pictures.encoder  # which refuses its inputs, or overflows, under some mistakes
    for attempt in of_pixels(encoder, encoder):
        with suppress(HoldfastError):
            yield from _changed(attempt.name, pictures.codes(attempt(pictures.usual)), codes, scale)
    for attempt in usual_resizings(encoder.geometry) if pictures.side and encoder.geometry else ():
        with suppress(HoldfastError):
            yield from _changed(attempt.name, pictures.codes(pictures.pixels(attempt.geometry)), codes, scale)
    for how, other in _pooled(encoder, options):
        with suppress(HoldfastError):
            yield from _changed(f"pooling: {how}", replace(pictures, encoder=other).codes(), codes, scale)
    for name in PRECISIONS:
        if name != pictures.run.precision and (found := _in_precision(pictures, name)) is not None:
            yield from _changed(f"precision: {name}", found, codes, scale)


def _changed(name: str, other: Float[np.ndarray, "m e"], codes: Vectors, scale: float) -> Iterator[tuple[str, Vectors]]:
    if other.shape[1] == codes.shape[1] and norms(other - codes[: len(other)]).max() > FLOOR * scale:
        yield name, other


def _pooled(encoder: Encoder, options: Options) -> Iterator[tuple[str, Encoder]]:
    reference, _, query = encoder.source.partition("?")
    if reference.partition(":")[0] not in ("timm", "hf"):
        return
    kept = [part for part in query.split("&") if part and not part.startswith(("pool=", "tokens="))]
    for how in POOLINGS:
        with suppress(HoldfastError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            other = encoders.load(f"{reference}?{'&'.join([*kept, f'pool={how}'])}", options)
            # Random weights differ each time they are loaded.
            if weights_hash(other) == weights_hash(encoder):
                yield how, other


def weights_hash(encoder: Encoder) -> str:
    """Return the SHA-256 of names, types, shapes and bytes of the weights, without normalisation and store."""
    module = without_store(encoder).module
    module = module.module if isinstance(module, Normalised) else module
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
    if (
        isinstance(candidate, (str, Path))
        and str(candidate).lower().endswith(EMBEDDING_FILES)
        and ":" not in str(candidate)
    ):
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
        cause = stated[0] if stated else "pooling, code or arithmetic, because the weights are the same"
    return replace(answer, cause=cause, facts=facts)


def _moved(then: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    return [f"{name}: {then[name]} then, {now[name]} now" for name in then if now.get(name, then[name]) != then[name]]
