"""Divergences between embeddings. ``a`` is the perturbed embedding, ``b`` the reference; each returns one value per row.

A divergence that grows with a Euclidean distance names the map into that space (``embed``). Neighbours and distances of
whole populations are then counted by blocked matrix products.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.core.encoder import Codes
from holdfast.core.errors import HoldfastError, check_known
from holdfast.core.settings import Searching, TextSettings, read


@dataclass(frozen=True)
class Divergence(TextSettings, Searching):
    """Distance between two embeddings, one value per row; nan where it is undefined."""

    name: ClassVar[str]
    version: ClassVar[int] = 1
    """Version of the divergence; it rises when equal settings give other numbers."""
    smooth: ClassVar[bool] = True
    """True if gradients are useful; attacks on a divergence that is not smooth maximise ``l2`` instead."""
    learns: ClassVar[bool] = False
    """True if the divergence must be fitted to clean embeddings; a matrix then replaces it (``Linear``)."""

    @classmethod
    def read(cls, text: str) -> Divergence:
        return read(text, DIVERGENCES, "divergence")

    @abstractmethod
    def __call__(self, a: Codes, b: Codes) -> Float[Tensor, "b"]:
        """Return d(a, b) for each row."""

    def _chord(self, a: Codes, b: Codes) -> Codes:
        moved, reference = self.embed(a), self.embed(b)
        assert moved is not None
        assert reference is not None
        return moved - reference

    def embed(self, codes: Codes) -> Codes | None:
        """Points whose Euclidean distance grows with this divergence; None if there are none."""
        return None

    def of_distance(self, distance: Tensor) -> Tensor:
        """Convert a Euclidean ``distance`` of embedded points into this divergence."""
        return distance

    def fit(self, codes: Float[Tensor, "n d"]) -> Divergence:
        """Return this divergence with whatever it learns from a clean population."""
        return self

    def of_tokens(self, count: int) -> Divergence:
        """This divergence for embeddings of ``count`` tokens, if it takes tokens apart."""
        return self


@final
@dataclass(frozen=True)
class L2Distance(Divergence):
    """``||a - b||_2`` (the divergence of the published measures)."""

    name = "l2"

    def __call__(self, a: Codes, b: Codes) -> Float[Tensor, "b"]:
        return torch.linalg.vector_norm(a - b, dim=-1)

    def embed(self, codes: Codes) -> Codes | None:
        return codes


@final
@dataclass(frozen=True)
class L1Distance(Divergence):
    """``||a - b||_1``."""

    name = "l1"

    def __call__(self, a: Codes, b: Codes) -> Float[Tensor, "b"]:
        return (a - b).abs().sum(-1)


@final
@dataclass(frozen=True)
class LinfDistance(Divergence):
    """``||a - b||_inf``."""

    name = "linf"

    def __call__(self, a: Codes, b: Codes) -> Float[Tensor, "b"]:
        return (a - b).abs().amax(-1)


def _unit(codes: Tensor) -> Tensor:
    """Codes on the unit sphere; a zero code has no direction and becomes nan."""
    # Scaled by their largest entry first, so that squares neither overflow nor vanish.
    scaled = codes / codes.detach().abs().amax(-1, keepdim=True)
    return scaled / torch.linalg.vector_norm(scaled, dim=-1, keepdim=True)


@final
@dataclass(frozen=True)
class Cosine(Divergence):
    """``1 - a.b / (|a| |b|)``.

    It is computed as half the squared chord, which keeps its digits for close embeddings.
    """

    name = "cosine"

    def __call__(self, a: Codes, b: Codes) -> Float[Tensor, "b"]:
        return (_unit(a) - _unit(b)).square().sum(-1) / 2

    def embed(self, codes: Codes) -> Codes | None:
        return _unit(codes)

    def of_distance(self, distance: Tensor) -> Tensor:
        return distance.square() / 2


@final
@dataclass(frozen=True)
class UnitL2(Divergence):
    """``|| a/|a| - b/|b| ||_2``: ℓ2 on the unit sphere, which ignores the norm of embeddings."""

    name = "unit_l2"

    def __call__(self, a: Codes, b: Codes) -> Float[Tensor, "b"]:
        return torch.linalg.vector_norm(_unit(a) - _unit(b), dim=-1)

    def embed(self, codes: Codes) -> Codes | None:
        return _unit(codes)


@final
@dataclass(frozen=True)
class Whitened(Divergence):
    """``||W (a - b)||_2`` with ``W`` the whitening matrix of clean embeddings.

    ``W = (C + floor * mean variance * I)^(-1/2)`` with ``C`` the covariance. It is invariant, up to the floor, under
    invertible linear maps of the embeddings.
    """

    floor: float = 1e-6
    """Variance added to every direction, as a fraction of the mean variance."""
    name = "whitened"
    learns = True
    allowed = ("floor in [0, inf)",)

    def __call__(self, a: Codes, b: Codes) -> Float[Tensor, "b"]:
        raise HoldfastError("the whitened divergence must first be fitted: Whitened().fit(clean embeddings)")

    def fit(self, codes: Float[Tensor, "n d"]) -> Divergence:
        centred = codes.double() - codes.double().mean(0)
        values, vectors = torch.linalg.eigh(centred.T @ centred / max(1, len(codes) - 1))
        # A collapsed population has no covariance to divide by; the codes' smallest normal number keeps the map finite.
        values = values.clamp_min(0) + max(
            self.floor * float(values.clamp_min(0).mean()), torch.finfo(codes.dtype).tiny
        )
        return Linear((vectors * values.rsqrt()) @ vectors.T, self)


@final
@dataclass(frozen=True, eq=False)
class Linear(Divergence):
    """``||W (a - b)||_2`` for a symmetric matrix ``W`` that another divergence has fitted."""

    matrix: Float[Tensor, "d d"]
    """Symmetric matrix ``W``, shape (d, d)."""
    origin: Divergence
    """Divergence that was fitted."""
    name = "linear"

    def __str__(self) -> str:
        return str(self.origin)

    def __call__(self, a: Codes, b: Codes) -> Float[Tensor, "b"]:
        return torch.linalg.vector_norm((a - b) @ self.matrix.to(a), dim=-1)

    def embed(self, codes: Codes) -> Codes | None:
        return codes @ self.matrix.to(codes)


@final
@dataclass(frozen=True)
class Rank(Divergence):
    """``1 - Spearman correlation`` of the features of two embeddings.

    Monotone changes of scale do not change it; it is piecewise constant.
    """

    name = "rank"
    smooth = False

    def __call__(self, a: Codes, b: Codes) -> Float[Tensor, "b"]:
        return self._chord(a, b).square().sum(-1) / 2

    def embed(self, codes: Codes) -> Codes | None:
        ordered = codes.sort(dim=-1).values
        left = torch.searchsorted(ordered, codes.contiguous(), right=False)
        right = torch.searchsorted(ordered, codes.contiguous(), right=True)
        ranks = (left + right).to(codes.dtype)  # twice the mid-rank: ties share it, and units cancel below
        return _unit(ranks - ranks.mean(-1, keepdim=True))

    def of_distance(self, distance: Tensor) -> Tensor:
        return distance.square() / 2


@final
@dataclass(frozen=True)
class SoftmaxKL(Divergence):
    """``KL(softmax(b) || softmax(a))`` (virtual adversarial training, Miyato et al. 2019)."""

    name = "kl"

    def __call__(self, a: Codes, b: Codes) -> Float[Tensor, "b"]:
        reference = b.log_softmax(-1)
        return (reference.exp() * (reference - a.log_softmax(-1))).sum(-1)


def _gaussian(codes: Tensor) -> tuple[Tensor, Tensor]:
    if codes.shape[-1] % 2:
        raise HoldfastError(
            f"Gaussian embeddings are [mean, log variance] and have even length, got {codes.shape[-1]} features"
        )
    mean, log_variance = codes.chunk(2, dim=-1)
    return mean, log_variance


@final
@dataclass(frozen=True)
class GaussianKL(Divergence):
    """``KL(N(b) || N(a))`` of diagonal Gaussian embeddings ``[mean, log variance]``."""

    name = "gaussian_kl"

    def __call__(self, a: Codes, b: Codes) -> Float[Tensor, "b"]:
        (mean_a, log_a), (mean_b, log_b) = _gaussian(a), _gaussian(b)
        return ((log_b - log_a).exp() + (mean_a - mean_b).square() * (-log_a).exp() - 1 + log_a - log_b).sum(-1) / 2


@final
@dataclass(frozen=True)
class Wasserstein(Divergence):
    """2-Wasserstein distance of diagonal Gaussian embeddings ``[mean, log variance]``.

    Paper: Cemgil et al. 2020.
    """

    name = "wasserstein"

    def __call__(self, a: Codes, b: Codes) -> Float[Tensor, "b"]:
        return torch.linalg.vector_norm(self._chord(a, b), dim=-1)

    def embed(self, codes: Codes) -> Codes | None:
        mean, log_variance = _gaussian(codes)
        return torch.cat([mean, (log_variance / 2).exp()], dim=-1)


@final
@dataclass(frozen=True)
class Tokens(Divergence):
    """Mean over tokens of another divergence between the tokens of two embeddings.

    ``d(a, b) = sum over t of divergence(a_t, b_t) / count``. Evaluations use the encoder's own count unless one is set.
    """

    divergence: Divergence = Cosine()
    """Distance between two tokens."""
    count: int = 1
    """Number of tokens, for embeddings whose encoder does not state it."""
    statistic: str = "mean"
    """`mean` over tokens, or the `worst` token."""
    name = "tokens"
    allowed = ("count in [1, inf)",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.divergence.learns or not self.divergence.smooth or isinstance(self.divergence, Tokens):
            raise HoldfastError(
                f"tokens: {self.divergence.name} is not taken token by token; use one that is smooth and learns nothing, "
                "such as cosine or l2"
            )
        check_known("tokens: statistic", self.statistic, ["mean", "worst"])

    def of_tokens(self, count: int) -> Divergence:
        return replace(self, count=count) if self.count == 1 else self

    def __call__(self, a: Codes, b: Codes) -> Float[Tensor, "b"]:
        moved, reference = self._apart(a), self._apart(b)
        apart = self.divergence(moved.flatten(0, 1), reference.flatten(0, 1)).unflatten(0, moved.shape[:2])
        return apart.mean(1) if self.statistic == "mean" else apart.amax(1)

    def embed(self, codes: Codes) -> Codes | None:
        # A mean of squared chords is one of the whole; a mean of lengths is no function of any length.
        chords = isinstance(self.divergence, Cosine) and self.statistic == "mean"
        return _unit(self._apart(codes)).flatten(1) if chords else None

    def of_distance(self, distance: Tensor) -> Tensor:
        return distance.square() / (2 * self.count)

    def _apart(self, codes: Codes) -> Float[Tensor, "b t e"]:
        if codes.shape[-1] % self.count:
            raise HoldfastError(
                f"embeddings of {codes.shape[-1]} features cannot be {self.count} tokens of equal length; leave "
                f"count to the "
                "encoder, or state its own"
            )
        return codes.unflatten(-1, (self.count, -1))


_ALL: tuple[type[Divergence], ...] = (
    *(L2Distance, L1Distance, LinfDistance, Cosine, UnitL2, Whitened, Rank, SoftmaxKL, GaussianKL, Wasserstein, Tokens),
)
DIVERGENCES: dict[str, type[Divergence]] = {kind.name: kind for kind in _ALL}
