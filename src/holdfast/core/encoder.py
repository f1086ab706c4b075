"""An encoder maps continuous inputs to vectors. The whole library uses this one class."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from numbers import Real
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from holdfast.core.checks import check_codes, check_dense, check_module, mixes_precisions
from holdfast.core.copies import copied
from holdfast.core.errors import Conflict, Described, HoldfastError, OutOfRange, explained, warn
from holdfast.core.fingerprint import fingerprint
from holdfast.core.geometry import Geometry, Preprocessing, are_sizes, sizes
from holdfast.core.text_tower import TextTower

Pixels = Float[Tensor, "b *pixels"]
Codes = Float[Tensor, "b d"]


@dataclass(frozen=True)
class Domain:
    """Inputs that an encoder accepts: shape without the batch axis, and range."""

    shape: tuple[int, ...]
    """Shape of one input, such as (channels, height, width)."""
    low: float = 0.0
    """Smallest value of an input."""
    high: float = 1.0
    """Largest value of an input."""

    def __post_init__(self) -> None:
        if not (self.shape and are_sizes(self.shape)):
            raise OutOfRange("domain shape", self.shape, "positive sizes such as (3, 224, 224)")
        if not (isinstance(self.low, Real) and isinstance(self.high, Real) and self.low < self.high):
            raise HoldfastError(f"domain needs numbers low < high, got [{self.low!r}, {self.high!r}]")

    def clip(self, pixels: Pixels) -> Pixels:
        """Return ``pixels`` moved to the nearest point of the range."""
        return pixels.clamp(self.low, self.high)

    def check(self, pixels: Tensor, of: str = "pixels") -> None:
        """Check that ``pixels`` is a batch of finite inputs of this shape and range.

        Args:
            pixels: Inputs, shape (b, *shape).
            of: Name of the inputs in errors.

        Raises:
            HoldfastError: Shape, type or range does not fit.
        """
        check_dense(pixels, of)
        shape = tuple(pixels.shape)
        if shape[1:] != self.shape:
            expected = f"of shape (batch, {', '.join(map(str, self.shape))})"
            raise OutOfRange(of, shape, expected, fix=self._advice(shape))
        if not pixels.is_floating_point():
            raise OutOfRange(of, pixels.dtype, f"floating point in [{self.low}, {self.high}]", fix="divide by 255")
        if pixels.numel() == 0:
            return
        low, high = (float(end) for end in torch.aminmax(pixels.detach()))
        # The ends as this precision has them; a NaN fails both comparisons, and aminmax propagates it.
        least, most = torch.tensor([self.low, self.high], dtype=pixels.dtype).tolist()
        if not (least <= low and high <= most and max(-low, high) < inf):
            got, expected = Described(f"values from {low:g} to {high:g}"), f"lie in [{self.low:g}, {self.high:g}]"
            fix = "pass raw pixels (divide by 255, do not normalise: the encoder does that itself)"
            raise OutOfRange(of, got, f"finite and {expected}", fix)

    def _advice(self, shape: tuple[int, ...]) -> str:
        if shape == self.shape:
            return "make a batch of one image with unsqueeze(0)"
        if len(self.shape) == 3 and len(shape) == 4 and shape[3] == self.shape[0] != shape[1]:
            resize = "" if shape[1:3] == self.shape[1:] else " and resize them"
            return f"their channels are last, so put them first with permute(0, 3, 1, 2){resize}"
        return "resize them, or load the encoder for their size"


MADE_IN_PYTHON = "python"
"""The source of encoders that no reference names."""


class Normalised(nn.Module):
    """``module((x - mean) / std)``: normalisation inside the encoder, applied exactly once.

    Args:
        axes: Axes after the channel axis.
    """

    def __init__(self, module: nn.Module, mean: Sequence[float], std: Sequence[float], axes: int) -> None:
        super().__init__()
        if not min(std) > 0:
            raise OutOfRange("standard deviations of normalisation", tuple(std), "positive")
        self.module = module
        shape = (-1,) + (1,) * (axes - 1)
        self.mean: Tensor
        self.std: Tensor
        device = next((value.device for value in (*module.parameters(), *module.buffers())), None)
        self.register_buffer("mean", torch.tensor(mean, device=device).reshape(shape))
        self.register_buffer("std", torch.tensor(std, device=device).reshape(shape))

    def forward(self, x: Tensor) -> Tensor:
        return self.module((x - self.mean) / self.std)


def _of_channels(values: Sequence[float] | float | None, channels: int) -> Sequence[float] | None:
    if values is None:
        return None
    if isinstance(values, (int, float, Real)):
        return [float(values)] * channels
    # Numbers for other channels would broadcast to inputs of a shape that no one asked for.
    if np.shape(values) != (channels,):
        raise HoldfastError(
            f"normalisation needs one mean and one std, or one of each per channel, {channels} here, got {values!r}"
        )
    return values


class Dense(nn.Module):
    """Flatten the token vectors of a network, (b, tokens, d), to (b, tokens * d).

    Dense embeddings are then embeddings like all others. The divergence ``tokens`` and patch retrieval take them apart
    again.

    Args:
        module: Network that returns (b, tokens, d).
        tokens: Vectors per image, 1 or more.

    Example:
        >>> patches = nn.Sequential(nn.Unfold(2, stride=2), nn.Flatten(2))  # (b, d, tokens)
        >>> Dense(patches, 9)(torch.rand(1, 1, 4, 4))
        Traceback (most recent call last):
        holdfast.core.errors.HoldfastError: expected 9 tokens of each image, shape (1, 9, d), got (1, 4, 4); ...
    """

    def __init__(self, module: nn.Module, tokens: int) -> None:
        super().__init__()
        if tokens < 1:
            raise OutOfRange("tokens", tokens, "at least 1", "count those of one image")
        self.module, self.tokens = module, tokens
        self.train(module.training)

    def forward(self, x: Tensor) -> Tensor:
        codes = self.module(x)
        if codes.ndim != 3 or codes.shape[1] != self.tokens:
            raise HoldfastError(
                f"expected {self.tokens} tokens of each image, shape ({len(x)}, {self.tokens}, d), got "
                f"{tuple(codes.shape)}; state as many as the module returns of images of this size"
            )
        return codes.flatten(1)


class Encoder:
    """Frozen snapshot of a network as a function from pixels to embeddings.

    The module is copied, put in eval mode and frozen. Later training changes neither embeddings nor fingerprint, and
    attacks compute gradients of the input alone.

    Args:
        module: Network from (b, *domain.shape) to (b, d), pooling included. ``Dense(module, tokens)`` wraps a network
            that returns (b, tokens, d).
        name: Name in reports.
        domain: Shape and range of the inputs.
        mean, std: Normalisation per channel, or one number for all channels, to apply inside the encoder.
        source: Origin, for the record.
        geometry: How image files become inputs. Default: resize the shorter side, then crop the centre.
        pooling: How ``module`` makes one vector of many, in words for the record.
        caution: One sentence about what is unknown and may spoil all numbers. Default: the normalisation is unknown,
            for a module made in Python with weights and three channels.
        texts: Encoder of texts into the same embedding space, for models of images and text.

    Example:
        >>> encoder = Encoder(nn.Flatten(), "pixels", Domain((1, 2, 2)))
        >>> encoder(torch.full((3, 1, 2, 2), 0.5)).shape
        torch.Size([3, 4])
        >>> encoder(torch.full((3, 1, 2, 2), 2.0))
        Traceback (most recent call last):
        holdfast.core.errors.OutOfRange: pixels must be finite and lie in [0, 1], got values from 2 to 2. ...
    """

    codes_only: ClassVar[bool] = False
    """True if the embeddings were computed elsewhere, so that other images cannot be encoded."""
    stored_from: str | None = None
    """Fingerprint of the encoder whose embeddings these are, read back from a store; None if they are its own."""
    searched: Encoder | None = None
    """Encoder whose gradients attacks follow, if those of this one are zero almost everywhere."""

    def __init__(
        self,
        module: nn.Module,
        name: str,
        domain: Domain,
        mean: Sequence[float] | float | None = None,
        std: Sequence[float] | float | None = None,
        source: str = MADE_IN_PYTHON,
        geometry: Preprocessing | None = None,
        pooling: str = "inside the module",
        caution: str | None = None,
        texts: TextTower | None = None,
    ) -> None:
        if not isinstance(domain, Domain):
            raise HoldfastError(
                f"the inputs of {name} are stated by a Domain, as in Domain((3, 224, 224)), got {domain!r}"
            )
        check_module(module, name, domain.shape)
        if not isinstance(geometry, Preprocessing | None):
            raise OutOfRange(f"geometry of {name}", geometry, "a Geometry or None")
        if (mean is None) != (std is None):
            raise Conflict("normalisation", f"mean={mean} and std={std}", "both mean and std, or neither")
        mean, std = (_of_channels(values, domain.shape[0]) for values in (mean, std))
        if module.training and any(
            "Norm" in type(part).__name__ or "Dropout" in type(part).__name__ for part in module.modules()
        ):
            warn(f"{name} was in training mode; a copy in eval mode is measured")
        with explained(f"{name} cannot be copied", "detach its tensors or rebuild it first"):
            module = copied(module)
        if mean is not None and std is not None:
            module = Normalised(module, mean, std, len(domain.shape))
        self.module = module.eval()
        for weight in module.parameters():  # TorchScript modules have no requires_grad_
            weight.requires_grad_(False)
        self.name, self.domain, self.source = name, domain, source
        if caution is None:
            caution = _unstated(module, name, domain) if source == MADE_IN_PYTHON else ""
            if caution:
                warn(caution)
        self.pooling, self.caution, self.texts = pooling, caution, texts
        # As text, because numbers would change with the precision that the weights are moved to.
        self.normalisation = "not stated" if caution else "none"
        if isinstance(module, Normalised):
            numbers = (" ".join(f"{number:.4g}" for number in each.flatten()) for each in (module.mean, module.std))
            self.normalisation = "mean {}, std {}".format(*numbers)
        if geometry is None and len(domain.shape) == 3:
            height, width = domain.shape[1:]
            geometry = Geometry(min(height, width), (height, width))
        self.geometry = geometry

    def __call__(self, pixels: Pixels) -> Codes:
        """Return codes, shape (b, d), of ``pixels``, shape (b, *domain.shape), after checking both."""
        self.domain.check(pixels)
        codes = self.forward(pixels)
        if not torch.isfinite(codes.detach()).all():
            raise HoldfastError(f"{self.name} returned NaN or infinite embeddings; check its weights and its precision")
        return codes

    def forward(self, pixels: Pixels) -> Codes:
        """Embeddings without a check of the input, for inner loops."""
        try:
            codes = self.module(pixels)
        except RuntimeError as error:
            if not mixes_precisions(error):
                raise
            first = str(error).strip().partition("\n")[0]
            raise HoldfastError(
                f"{self.name} computes with numbers of two types ({first}); its weights and inputs are "
                f"{str(pixels.dtype)[6:]} here, so take casts such as x.half() out of it and register all weights"
            ) from error
        if isinstance(codes, Tensor) and codes.dtype in (torch.float16, torch.bfloat16):
            codes = codes.float()  # squared distances overflow half precision long before its codes do
        check_codes(codes, self.name, len(pixels))
        return codes

    @cached_property
    def fingerprint(self) -> str:
        """Hash of everything that decides the embeddings.

        That is: weights, structure, code, settings, domain and geometry.
        """
        return fingerprint(self.module, self.domain, self.geometry)

    @property
    def inputs(self) -> dict[str, str]:
        """How an image file becomes an embedding, as far as that is known, for the record.

        Example:
            >>> Encoder(nn.Flatten(), "pixels", Domain((1, 8, 8))).inputs["resizing"]
            'shorter side to 8, centre 8 x 8, bilinear'
        """
        known = {
            "input": f"{sizes(self.domain.shape)} in [{self.domain.low:g}, {self.domain.high:g}]",
            "normalisation": self.normalisation,
            "resizing": "none",
            "pooling": self.pooling,
        }
        if self.geometry:
            known["resizing"] = self.geometry.words
        return known

    @cached_property
    def tokens(self) -> int:
        """Number of token vectors per embedding; 1 unless the encoder is dense."""
        return next((part.tokens for part in self.module.modules() if isinstance(part, Dense)), 1)

    @cached_property
    def parameters(self) -> int:
        """Return the number of weights."""
        return sum(weight.numel() for weight in self.module.parameters())

    def to(self, device: str | torch.device, dtype: torch.dtype) -> Encoder:
        """This encoder on another device or in another precision; the fingerprint stays.

        Args:
            device: Device, such as ``cuda``.
            dtype: Floating-point type of weights and inputs.
        """
        anchor = next((t for t in (*self.module.parameters(), *self.module.buffers()) if t.is_floating_point()), None)
        wanted = torch.device(device)
        if wanted.type == "cuda" and wanted.index is None and torch.cuda.is_available():
            wanted = torch.device("cuda", torch.cuda.current_device())
        if anchor is None or (
            anchor.dtype == dtype and anchor.device.type == wanted.type and wanted.index in (None, anchor.device.index)
        ):
            return self
        fingerprint = self.fingerprint
        moved = copy.copy(self)
        moved.module = copied(self.module).to(device, dtype)
        moved.searched = None if self.searched is None else self.searched.to(device, dtype)
        moved.__dict__["fingerprint"] = fingerprint
        return moved

    def __repr__(self) -> str:
        return f"Encoder({self.name!r}, {self.domain.shape}, fingerprint={self.fingerprint!r})"


def _unstated(module: nn.Module, name: str, domain: Domain) -> str:
    """Return the caution about a module made in Python with unknown normalisation; empty if it is known."""
    images = len(domain.shape) == 3 and domain.shape[0] == 3
    if (
        not images
        or next(module.parameters(), None) is None
        or any(isinstance(p, Normalised) for p in module.modules())
    ):
        return ""
    return (
        f"{name!r} says nothing of normalisation, so pixels in [{domain.low:g}, {domain.high:g}] reach it as they are; if "
        "it was trained on normalised images give mean and std (mean=(0, 0, 0), std=(1, 1, 1) says that it was not)"
    )
