"""Canary: a few images with their embeddings in one file, to check an encoder in service at start-up.

An embedding ``f(x)`` is compared with the stored ``r(x)`` by ``|f(x) - r(x)| / m``, where ``m`` is the median distance
between the stored embeddings of different images. The encoder has changed if one distance exceeds the tolerance, which was
measured when the file was made. The file also holds what the encoder gives under each usual mistake, so that the
nearest one can be named without the encoder. Loads no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Float32, UInt8

from holdfast.core.errors import Described, HoldfastError, OutOfRange, UnknownName, Unreadable
from holdfast.service.canary_file import Header, from_bytes, read, to_bytes

if TYPE_CHECKING:
    from PIL import Image
from functools import cached_property

import torch
from PIL import Image

from holdfast.core.encoder import Domain, Encoder, Pixels
from holdfast.core.geometry import Preprocessing
from holdfast.core.images import Images, Subset
from holdfast.core.optimised import codes_of
from holdfast.core.run_settings import RunSettings, without_tf32
from holdfast.data.reading.decode import USUAL, fitted
from holdfast.data.reading.scan import Encoded

MATCHES = 0.25
"""Fraction of the distance that a cause may leave, as in parity."""
SIMILAR = 1e-2
"""Norms this close to 1 count as 1, as half precision rounds them."""
UNIT, NOT_UNIT = "embeddings scaled to norm 1", "embeddings not scaled to norm 1"
ORDER, SCALED = "images in another order", "embeddings multiplied by a constant"
SINGLE, WEIGHTS = "single images", "other weights"
Picture = UInt8[np.ndarray, "h w c"]
Vectors = Float[np.ndarray, "n d"]


@dataclass(frozen=True, eq=False)
class CanaryCheck:
    """Answer of ``Canary.check``."""

    distances: Float[np.ndarray, "n"]
    """Shift of each embedding, as a fraction of the median distance between images."""
    tolerance: float
    """Largest distance that rounding explains, in the same unit."""
    ids: tuple[str, ...]
    """Names of the images."""
    cause: str
    """Nearest cause of the difference; empty if the encoder passed."""
    left: float
    """Median distance that ``cause`` leaves; nan if it was not tried."""
    facts: tuple[str, ...] = ()
    """Differences of the given encoder from the stored one: weights, normalisation, pooling, versions."""

    @property
    def passed(self) -> bool:
        """Whether all embeddings are within the tolerance."""
        return bool((self.distances <= self.tolerance).all())

    @property
    def sentence(self) -> str:
        """The answer in words."""
        n, most = len(self.distances), int(self.distances.argmax())
        moved = f"{self.distances[most]:.2g} of the median distance between images"
        if self.passed:
            return f"Same encoder: {n} embeddings moved by at most {moved} (tolerance {self.tolerance:.2g})."
        beyond = int((self.distances > self.tolerance).sum())
        left = "" if self.left != self.left else f" It leaves {self.left:.2g}."
        facts = "".join(f" {fact}." for fact in self.facts)
        return (
            f"Another encoder: {beyond} of {n} embeddings moved beyond {self.tolerance:.2g}, {self.ids[most]!r} by {moved}. "
            f"Nearest cause: {self.cause}.{left}{facts}"
        )

    def require(self) -> None:
        """Raise unless the encoder passed.

        Raises:
            HoldfastError: the encoder has changed; the sentence names the nearest cause.
        """
        if not self.passed:
            raise HoldfastError(self.sentence)


@dataclass(frozen=True, eq=False)
class Canary:
    """A few images, their embeddings, tolerances, and the embeddings under usual mistakes.

    Example:
        >>> canary = Canary.load("canary.safetensors")  # doctest: +SKIP
        >>> canary.check(embed).require()  # doctest: +SKIP
    """

    header: Header
    """Names, hashes, tolerances and versions."""
    embeddings: Float32[np.ndarray, "n d"] = field(repr=False)
    """Embeddings of the images, one per row."""
    caused: Float32[np.ndarray, "t m d"] = field(repr=False)
    """Embeddings of the first m images under each of ``header.causes``."""
    pictures: tuple[Picture, ...] = field(default=(), repr=False)
    """The images, 8 bits a channel; empty if the file holds hashes alone."""

    @classmethod
    def load(cls, path: str | Path) -> Canary:
        """Read a canary; the file is data and runs no code.

        Raises:
            Unreadable: the file is missing, damaged, too large or no canary.
        """
        return cls.of_bytes(str(path), read(Path(path)))

    @classmethod
    def of_bytes(cls, name: str, content: bytes) -> Canary:
        """Canary from the bytes of a file.

        Args:
            name: Name of the file, for errors.
            content: Bytes of the file.

        Raises:
            Unreadable: The content is damaged or no canary.
        """
        header, arrays = from_bytes(name, content)
        pictures = tuple(arrays[key] for key in sorted(arrays) if key.startswith("image."))
        canary = cls(header, arrays["embeddings"], arrays["caused"], ())
        try:
            return canary.with_pictures(pictures) if pictures else canary
        except HoldfastError as error:
            raise Unreadable(name, str(error), fix="copy the file again") from error

    def to_bytes(self) -> bytes:
        """Return the content of the file."""
        images = {f"image.{row:05}": picture for row, picture in enumerate(self.pictures)}
        return to_bytes(self.header, {"embeddings": self.embeddings, "caused": self.caused, **images})

    def with_pictures(self, pictures: Sequence[Picture]) -> Canary:
        """Return this canary with the images that its hashes are of.

        Args:
            pictures: uint8 arrays (h, w, c), one for each of ``header.ids``.

        Raises:
            HoldfastError: an image is not the one that was hashed.
        """
        if len(pictures) != len(self.header.ids):
            raise OutOfRange("number of images", len(pictures), f"{len(self.header.ids)}, as in the canary")
        for name, picture, known in zip(self.header.ids, pictures, self.header.hashes, strict=True):
            if digest(picture) != known:
                raise HoldfastError(f"image {name!r} differs from the one that was hashed; name the original images")
        return replace(self, pictures=tuple(pictures))

    @property
    def images(self) -> list[Image.Image]:
        """The images as ``check`` passes them: Pillow images, mode RGB (L if grey), 8 bits a channel.

        Raises:
            HoldfastError: the file holds hashes alone.
        """
        from PIL import Image

        if not self.pictures:
            raise HoldfastError("this canary holds hashes, not images; name the original images (--images DIR)")
        return [Image.fromarray(picture[..., 0] if picture.shape[2] == 1 else picture) for picture in self.pictures]

    def check(self, embed: Callable[[list[Image.Image]], Any], precision: str | None = None) -> CanaryCheck:
        """Check a function that maps images to vectors.

        Args:
            embed: Takes a list of n Pillow images (mode RGB, or L if grey) and returns n vectors, (n, d): an array, a
                tensor or a list.
            precision: What ``embed`` computes in, such as float16, which has a wider tolerance; by default the precision of
                the stored embeddings.

        Returns:
            The answer; its ``passed`` is False if one embedding is beyond the tolerance.

        Raises:
            HoldfastError: the vectors have another shape or are not finite, or the file holds no images.
        """
        return self.compare(embed(self.images), precision)

    def compare(self, vectors: Any, precision: str | None = None) -> CanaryCheck:
        """Check embeddings that a function or a service has computed already.

        Args:
            vectors: Embeddings of the images, in the order of ``header.ids``, shape (n, d).
            precision: Precision that they were computed in; by default that of the stored embeddings.

        Raises:
            OutOfRange: The number, width or values of the vectors do not fit.
            UnknownName: The canary has no tolerance for this precision.
        """
        tolerance = self.tolerance(precision)
        codes = finite_vectors(vectors, self.embeddings.shape)
        reference = self.embeddings.astype(np.float64)
        distances = norms(codes - reference) / median_distance(reference)
        answer = CanaryCheck(distances, tolerance, self.header.ids, "", float("nan"))
        if answer.passed:
            return answer
        cause, left = nearest_cause(self, codes, tolerance)
        return replace(answer, cause=cause, left=left)

    def tolerance(self, precision: str | None) -> float:
        """Return the tolerance of embeddings computed in ``precision``."""
        known, chosen = self.header.tolerances, precision or self.header.precision
        if chosen not in known:
            raise UnknownName("precision", chosen, known)
        return max(known[chosen], known[self.header.precision])


def nearest_cause(canary: Canary, codes: Vectors, tolerance: float) -> tuple[str, float]:
    """Return the cause that leaves least of the difference, and the median distance that it leaves (nan: not tried)."""
    reference, caused = canary.embeddings.astype(np.float64), canary.caused.astype(np.float64)
    at_norm_1 = [bool((abs(norms(side) - 1) < SIMILAR).all()) for side in (reference, codes)]
    beside = ""
    if at_norm_1[0] != at_norm_1[1]:  # as indexes store them: compare directions
        beside = UNIT if at_norm_1[1] else NOT_UNIT
        reference, codes, caused = (_unit(side) for side in (reference, codes, caused))
    scale = median_distance(reference)
    moved = norms(codes - reference) / scale
    if beside and moved.max() <= tolerance:
        return beside, float(np.median(moved))
    few = caused.shape[1]
    left = norms(codes[:few] - caused) / scale  # (t, m)
    best = int(np.median(left, axis=1).argmin()) if len(left) else -1
    named = (
        (", and ".join(filter(None, (canary.header.causes[best], beside))), float(np.median(left[best])))
        if len(left)
        else ("", np.inf)
    )
    if len(left) and left[best].max() <= tolerance:
        return named
    if (shuffled := _shuffled(reference, codes, scale)) <= tolerance:
        return ", and ".join(filter(None, (ORDER, beside))), shuffled
    factor = float((codes * reference).sum() / (reference * reference).sum())
    if (kept := norms(codes - factor * reference) / (abs(factor) * scale or np.inf)).max() <= tolerance:
        return f"{SCALED} ({factor:.4g})", float(np.median(kept))
    for precision, widest in sorted(canary.header.tolerances.items(), key=lambda each: each[1]):
        if widest > tolerance and moved.max() <= widest:
            return f"precision: {precision} moves embeddings as far", float("nan")
    if named[1] <= MATCHES * float(np.median(moved[:few])):
        return named
    if np.median(moved) <= tolerance:
        return SINGLE, float("nan")
    return f"{WEIGHTS}, or a step that is none of the {len(left)} usual mistakes", float("nan")


def _shuffled(reference: Vectors, codes: Vectors, scale: float) -> float:
    """Return the largest distance to the nearest stored embeddings, if these are of different images."""
    apart = norms(codes[:, None] - reference)
    nearest = apart.argmin(1)
    return float(apart.min(1).max() / scale) if len({*nearest.tolist()}) == len(codes) else np.inf


def _unit(codes: Any) -> Any:
    return codes / np.maximum(np.linalg.norm(codes, axis=-1, keepdims=True), 1e-300)


def norms(vectors: Any) -> Any:
    """Return the ℓ2 norms along the last axis."""
    return np.linalg.norm(vectors, axis=-1)


def median_distance(codes: Vectors) -> float:
    """Return the median ℓ2 distance between the embeddings of different images.

    Raises:
        HoldfastError: it is zero, because most images share one embedding.

    Example:
        >>> median_distance(np.array([[0.0], [1.0], [3.0]]))
        2.0
    """
    rows, columns = np.triu_indices(len(codes), 1)
    scale = float(np.median(norms(codes[rows] - codes[columns]))) if len(rows) else 0.0
    if not scale > 0:
        raise HoldfastError("most of the images share one embedding, so distances have no scale; name other images")
    return scale


def finite_vectors(vectors: Any, shape: tuple[int, ...]) -> Vectors:
    """Return ``vectors`` as float64 after checking them.

    Raises:
        HoldfastError: they are no numbers, have another shape or are not finite.
    """
    try:
        if isinstance(vectors, (list, tuple)):
            vectors = [_array(vector) for vector in vectors]
        codes = np.asarray(_array(vectors), dtype=np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise OutOfRange(
            "embeddings", Described(f"{type(vectors).__name__} ({error})"), "numbers, one vector per image"
        ) from error
    if codes.ndim != 2 or len(codes) != shape[0]:
        raise OutOfRange("embeddings", codes.shape, f"{shape[0]} vectors, one per image of the canary, shape {shape}")
    if codes.shape[1] != shape[1]:
        raise OutOfRange("embeddings", f"{codes.shape[1]} features", f"of {shape[1]} features, as in the canary")
    if bad := int((~np.isfinite(codes)).any(1).sum()):
        raise OutOfRange("embeddings", f"NaN or infinity in {bad} of {len(codes)}", "finite", fix="check the weights")
    return codes


def _array(value: Any) -> Any:
    """Return a tensor as an array, from any device and in any precision; others as they are."""
    return value.detach().cpu().double().numpy() if hasattr(value, "detach") else value


def digest(picture: Picture) -> str:
    """Return the SHA-256 of shape and pixels."""
    return sha256(f"{picture.shape}".encode() + np.ascontiguousarray(picture, np.uint8).tobytes()).hexdigest()


ROOM = 1.5
"""Shorter side of a stored picture over the longest side of the input, so that there is still something to resize."""


@dataclass(frozen=True)
class Shrunk(Preprocessing):
    """The whole picture; its shorter side is at most ``side`` pixels."""

    side: int
    crop: tuple[int, int] = (0, 0)

    def __call__(self, image: Image.Image) -> UInt8[np.ndarray, "rows columns c"]:
        factor = self.side / min(image.size)
        if factor < 1:
            image = image.resize(
                (max(1, round(image.width * factor)), max(1, round(image.height * factor))), Image.Resampling.LANCZOS
            )
        return np.asarray(image).reshape(image.height, image.width, -1)

    @property
    def words(self) -> str:
        return f"shorter side to at most {self.side}, lanczos"


@dataclass(frozen=True, eq=False)
class Pictures:
    """Pictures as one encoder gets them."""

    encoder: Encoder
    pictures: tuple[Picture, ...]
    side: int
    """Longest shorter side of a picture; 0 if they are inputs of the encoder already."""
    run: RunSettings

    @classmethod
    def of(cls, canary: Canary, encoder: Encoder, run: RunSettings) -> Pictures:
        """Return the images of ``canary`` for ``encoder``.

        Raises:
            HoldfastError: the encoder does not take such images.
        """
        check_pictures(encoder)
        canary.images  # noqa: B018  raises if there are none
        channels = canary.pictures[0].shape[2]
        if channels != encoder.domain.shape[0]:
            raise OutOfRange(f"channels of {encoder.name}", encoder.domain.shape[0], f"{channels}, as in the canary")
        return cls(encoder, canary.pictures, canary.header.side, run)

    def few(self, count: int) -> Pictures:
        """Return the first ``count`` of them."""
        return replace(self, pictures=self.pictures[:count])

    def pixels(self, geometry: Preprocessing | None) -> Pixels:
        """Return the inputs (n, c, h, w) that ``geometry`` makes of the pictures."""
        domain, geometry = self.encoder.domain, geometry if self.side else None
        channels = domain.shape[0]
        rows = [
            fitted(Image.fromarray(picture[..., 0] if channels == 1 else picture), geometry)
            if geometry
            else torch.from_numpy(picture.copy()).permute(2, 0, 1)
            for picture in self.pictures
        ]
        for row in rows:
            if tuple(row.shape) != domain.shape:
                raise OutOfRange(
                    f"inputs of {self.encoder.name}", domain.shape, f"{tuple(row.shape)}, as in the canary"
                )
        pixels = torch.stack(rows)
        unit = pixels.to(self.run.device).to(self.run.dtype)
        return unit / 255 if pixels.dtype == torch.uint8 else unit

    @cached_property
    def usual(self) -> Pixels:
        """The inputs as the encoder wants them."""
        return self.pixels(self.encoder.geometry)

    def codes(self, pixels: Pixels | None = None, batch: int | None = None) -> Vectors:
        """Return the embeddings (n, d) of ``pixels``, by default those of the pictures, as float64.

        Raises:
            HoldfastError: one is not finite.
        """
        encoder = self.encoder.to(self.run.device, self.run.dtype)
        pixels = self.usual if pixels is None else pixels
        with without_tf32(), torch.no_grad():
            parts = pixels.split(batch or self.run.batch_size)
            codes = torch.cat([codes_of(encoder, part).cpu().double() for part in parts])
        if not torch.isfinite(codes).all():
            raise HoldfastError(f"{encoder.name} returned NaN or infinite embeddings; check its weights and precision")
        return codes.numpy()


def check_pictures(encoder: Encoder) -> None:
    """Raise unless ``encoder`` takes pictures in grey or colour, and can be run."""
    shape, domain = encoder.domain.shape, encoder.domain
    if encoder.codes_only or len(shape) != 3 or shape[0] not in (1, 3) or (domain.low, domain.high) != (0, 1):
        raise HoldfastError(
            f"{encoder.name}: a canary holds pictures of 1 or 3 channels in [0, 1], and an encoder that can be run; "
            f"got inputs of shape {shape} in [{domain.low:g}, {domain.high:g}]"
        )


def side_for(domain: Domain) -> int:
    """Return the longest shorter side of a stored picture, in pixels.

    Example:
        >>> side_for(Domain((3, 224, 224)))
        336
    """
    return round(ROOM * max(domain.shape[1:]))


def pictures_of(images: Images, rows: Sequence[int], side: int) -> tuple[Picture, ...]:
    """Return uint8 pictures of ``images``: of files the whole picture, of arrays the pixels, rounded to 8 bits."""
    source, positions = images.source, list(rows)
    while isinstance(source, Subset):
        positions = [source.rows[row] for row in positions]
        source = source.source
    if isinstance(source, Encoded):
        files = source.otherwise(Shrunk(side), USUAL)
        pixels = [files.picture(row) for row in positions]
    else:
        pixels = [(images.pixels([row])[0] * 255).round().to(torch.uint8) for row in rows]
    return tuple(np.ascontiguousarray(each.permute(1, 2, 0).numpy()) for each in pixels)


def from_files(images: Images) -> bool:
    """Return whether ``images`` are picture files, which encoders resize."""
    source = images.source
    while isinstance(source, Subset):
        source = source.source
    return isinstance(source, Encoded)
