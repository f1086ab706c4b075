"""The class-conditional Gaussian mixture, its robust Bayes rules, and moments gathered in batches.

The robust Bayes rule of a symmetric Gaussian pair ``N(+-m, Lam)`` under an l_inf budget: a lasso.

    w = argmin 1/2 w' Lam w - m'w + eps ||w||_1,      z = m - Lam w,      ||z||_inf <= eps

is dual to the quadratic program that defines ``z`` (see ``mixture``). Its solutions are piecewise linear in ``eps``, so one
homotopy (Efron et al. 2004, least angle regression, https://doi.org/10.1214/009053604000000067) gives all budgets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import log, pi

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from holdfast.core.errors import OutOfRange, UnknownName
from holdfast.core.noise import Noise


def homotopy(
    m: Float[Tensor, "d"], covariance: Float[Tensor, "d d"], budgets: Sequence[float]
) -> tuple[Float[Tensor, "e d"], Float[Tensor, "e d"]]:
    """Return ``z`` and ``w`` for each of the ``e`` budgets, which are absolute: no larger than ``max |m|``.

    Example:
        >>> z, w = homotopy(torch.tensor([3.0, 1.0]).double(), torch.eye(2).double(), [2.0])
        >>> w.tolist()  # of an isotropic pair it is the mean, drawn towards zero
        [[1.0, 0.0]]
    """
    from sklearn.linear_model import lars_path_gram

    mean, gram = m.double().cpu().numpy(), covariance.double().cpu().numpy()
    radii, _, path = lars_path_gram(Xy=mean, Gram=gram, n_samples=1, method="lasso")
    solved = np.stack([_polished(_between(radii, path, budget), mean, gram, budget) for budget in budgets])
    w = torch.from_numpy(solved).to(m)
    return m - w @ covariance.T, w


def _between(radii: Float[np.ndarray, "k"], path: Float[np.ndarray, "d k"], budget: float) -> Float[np.ndarray, "d"]:
    """Return the point of the piecewise linear ``path`` at ``budget``; its ``radii`` descend."""
    return np.array([np.interp(budget, radii[::-1], row[::-1]) for row in path])


def _polished(
    w: Float[np.ndarray, "d"], m: Float[np.ndarray, "d"], gram: Float[np.ndarray, "d d"], budget: float
) -> Float[np.ndarray, "d"]:
    """Solve again, from scratch, for the weights that are not zero, because rounding accumulates along the path."""
    signs = np.sign(np.where(np.abs(w) > 1e-9 * np.abs(w).max(initial=0), w, 0))
    own = np.flatnonzero(signs)
    exact = np.zeros_like(w)
    try:
        exact[own] = np.linalg.solve(gram[np.ix_(own, own)], m[own] - budget * signs[own])
    except np.linalg.LinAlgError:  # codes that repeat each other; the path has chosen among them
        return w
    return exact if (exact * signs >= 0).all() else w


# The class-conditional Gaussian: ``y = +1`` with probability ``prior``, else -1, and ``x | y ~ N(y mu, Sigma)``.
#
# As published the prior is 1/2 and Sigma the identity. A ``spectrum`` above 0 colours the noise: Sigma is diagonal in the
# basis of cosines, and its eigenvalues fall with the frequency f as ``(1 + f) ** -spectrum``; photographs have about 2.
# A sample needs no more memory than itself, at any image size. Ko et al. 2022 (SynBench),
# https://arxiv.org/abs/2210.02989, section 3.1.

DIRECTIONS = ("ones", "smooth", "signs")
NORMS = ("l2", "linf")


def direction(kind: str, shape: tuple[int, ...], seed: int = 0) -> Float[Tensor, "*pixels"]:
    """Return the unit vector along which the class means lie, of the inputs' ``shape``.

    ``ones`` brightens every input value alike (published); ``smooth`` is one half cosine across each of the last two
    axes, which averages to zero; ``signs`` is an equal number in every place with a sign drawn by ``seed``.

    Example:
        >>> direction("ones", (1, 2, 2))
        tensor([[[0.5000, 0.5000],
                 [0.5000, 0.5000]]], dtype=torch.float64)
    """
    if kind not in DIRECTIONS:
        raise UnknownName("direction", kind, DIRECTIONS)
    if kind == "signs":
        vector = Noise.of(seed, ["direction"]).signs(shape, torch.float64)[0]
    else:
        vector = torch.ones(shape, dtype=torch.float64)
    for axis in _axes(len(shape)) if kind == "smooth" else ():
        size = shape[axis]
        wave = torch.cos(pi * (torch.arange(size, dtype=torch.float64) + 0.5) / size)
        if size > 1:  # along a single place there is nothing to vary
            vector = vector * wave.reshape(-1, *[1] * (len(shape) - axis - 1))
    return vector / vector.norm()


@dataclass(frozen=True)
class Mixture:
    """Two Gaussians around ``mean`` and ``-mean``.

    White noise varies by 1 in every input value. Coloured noise is scaled so that the best rule is right as often.
    """

    mean: Float[Tensor, "*pixels"]
    prior: float = 0.5
    spectrum: float = 0.0

    def sample(self, noise: Noise, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Float[Tensor, "b"]]:
        """Return one input per stream of ``noise``, shape (b, *pixels), and the classes, +1 or -1."""
        shape = tuple(self.mean.shape)
        if self.prior == 0.5:
            labels = noise.fork("class").signs((), dtype)
        else:
            drawn = torch.special.ndtr(noise.fork("class").normal((), torch.float64))
            labels = torch.where(drawn < self.prior, 1, -1).to(dtype)
        spread = noise.fork("spread").normal(shape, dtype)
        if self.spectrum:
            spread = _cosines(spread * self.variances.sqrt().to(spread), back=True)
        return labels.reshape(-1, *[1] * len(shape)) * self.mean.to(spread) + spread, labels

    @cached_property
    def variances(self) -> Float[Tensor, "*pixels"]:
        """The eigenvalues of the noise's covariance, of the inputs' shape: one for each cosine."""
        shape = self.mean.shape
        square = torch.zeros(shape, dtype=torch.float64)
        for axis in _axes(len(shape)):
            square = square + torch.arange(shape[axis]).reshape(-1, *[1] * (len(shape) - axis - 1)).double() ** 2
        power = (1 + square.sqrt()) ** -self.spectrum
        mean = _cosines(self.mean.double()) if self.spectrum else self.mean.double()
        return power * (mean.square() / power).sum() / mean.square().sum()

    def rules(self, budgets: Sequence[float], norm: str) -> tuple[Float[Tensor, "e"], Float[Tensor, "e"]]:
        """Return ``mu'w / sd`` and ``sd = sqrt(w' Sigma w)`` of the robust Bayes rules of the inputs themselves.

        Args:
            budgets: fractions of the largest budget that leaves something of the mean.
            norm: in which they are measured; ``linf`` is known for white noise alone.

        Example:
            >>> Mixture(direction("ones", (2, 2))).rules([0.0, 0.5], "l2")
            (tensor([1., 1.], dtype=torch.float64), tensor([1.0000, 0.5000], dtype=torch.float64))
        """
        mean, lam = self.mean.double(), self.variances.flatten()
        if norm == "linf":
            assert not self.spectrum, "known for white noise alone"
            shares = mean.new_tensor(budgets)[:, None]
            flat = mean.flatten()
            w = flat.sign() * (flat.abs() - shares * flat.abs().max()).clamp_min(0)
        else:
            flat = (_cosines(mean) if self.spectrum else mean).flatten()
            w = secular(flat, lam, budgets)[1]
        spread = (w.square() @ lam).sqrt()
        return w @ flat / spread, spread


def _axes(count: int) -> range:
    """Return the axes along which neighbours lie: the last two."""
    return range(max(0, count - 2), count)


def _cosines(values: Float[Tensor, "*n"], back: bool = False) -> Float[Tensor, "*n"]:
    """Return ``values`` in the orthonormal basis of cosines (DCT-II) of their last two axes, or from it ``back``."""
    for axis in (-1, -2)[: values.ndim]:
        size = values.shape[axis]
        place = torch.arange(size, dtype=torch.float64, device=values.device)
        basis = torch.cos(pi / size * place[:, None] * (place + 0.5)) * (2 / size) ** 0.5
        basis[0] /= 2**0.5
        matrix = (basis if back else basis.T).to(values)
        values = (values.movedim(axis, -1) @ matrix).movedim(-1, axis)
    return values


# The robust Bayes rule of a symmetric Gaussian pair ``N(+-m, Lam)`` under an l2 budget, exactly.
#
#     z = argmin over ||z||_2 <= eps ||m||_2 of (m - z)' Lam^-1 (m - z),      w = Lam^-1 (m - z)
#
# (Bhagoji et al. 2019, https://arxiv.org/abs/1909.12272; Dan et al. 2020, https://arxiv.org/abs/2006.16384.) In the
# eigenbasis of ``Lam`` the solution is ``z_i = m_i / (1 + t lam_i)``, where ``t > 0`` solves the secular equation
# ``||z|| = eps ||m||``. So one eigendecomposition serves every budget, and each costs a few steps of Newton's method
# over d numbers (More and Sorensen 1983, https://doi.org/10.1137/0904038). As ``w_i = m_i / (lam_i + 1/t)``, the
# robust rule is ridge discriminant analysis: budget 0 is the plain Bayes rule, budget 1 the direction of ``m``.

STEPS = 100
"""More steps of Newton's method than any spectrum needs: 5 to 7 are usual."""


def check_budgets(budgets: Sequence[float]) -> None:
    """Raise unless every budget is a fraction of the distance to the mean that leaves something of it."""
    for budget in budgets:
        if not 0 <= budget < 1:
            raise OutOfRange("budget", budget, "a fraction of the distance from the mean to the boundary, in [0, 1)")


def secular(
    m: Float[Tensor, "r"], lam: Float[Tensor, "r"], budgets: Sequence[float]
) -> tuple[Float[Tensor, "e r"], Float[Tensor, "e r"]]:
    """Return ``z`` and ``w`` for each of the ``e`` budgets (fractions of ``||m||``), in the eigenbasis of ``Lam``.

    Args:
        budgets: the radii of the perturbation as fractions of ``||m||``, in [0, 1).

    Example:
        >>> z, w = secular(torch.tensor([3.0, 4.0]).double(), torch.ones(2).double(), [0.0, 0.5])
        >>> z  # of an isotropic pair every rule has the direction of the mean
        tensor([[0.0000, 0.0000],
                [1.5000, 2.0000]], dtype=torch.float64)
    """
    check_budgets(budgets)
    assert bool((lam > 0).all()), "the secular equation needs positive eigenvalues"
    assert bool(m.any()), "the secular equation needs a mean"
    wanted = m.new_tensor([budget for budget in budgets if budget > 0])[:, None]
    top = lam.max()
    share, ratio = m / m.abs().max(), lam / top  # of order 1, so that no square leaves the range of the numbers
    share = share / share.norm()
    t = 1 / wanted - 1  # the lower end of the bracket: from there Newton's method on 1/||z|| climbs without overshoot
    for _ in range(STEPS):
        shrunk = 1 + t * ratio
        square = (share / shrunk).square()
        length = square.sum(1, keepdim=True).sqrt()
        step = length.square() / (square * ratio / shrunk).sum(1, keepdim=True) * (length - wanted) / wanted
        t = t + step
        if not bool((step > 4 * torch.finfo(t.dtype).eps * t).any()):
            break
    t = t / top
    robust = iter(zip(m / (1 + t * lam), m / (lam + 1 / t), strict=True))
    pairs = [next(robust) if budget > 0 else (torch.zeros_like(m), m / lam) for budget in budgets]
    return torch.stack([z for z, _ in pairs]), torch.stack([w for _, w in pairs])


ROUNDING = 10.0
"""Rounding errors of an encoder's embeddings, in units of its precision relative to their size."""


@dataclass(frozen=True)
class Pooled:
    """Counts and means of the classes +1 and -1, and the scatter of the embeddings around their own class mean.

    Merging is exact and stable (Chan, Golub and LeVeque 1983, https://doi.org/10.1080/00031305.1983.10483115).
    """

    count: Float[Tensor, "2"]
    mean: Float[Tensor, "2 d"]
    scatter: Float[Tensor, "d d"]

    @classmethod
    def of(cls, codes: Float[Tensor, "b d"], labels: Float[Tensor, "b"]) -> Pooled:
        """Return the moments of one batch, in double precision; ``labels`` are +1 and -1."""
        codes = codes.double()
        members = torch.stack([labels > 0, labels < 0], 1).to(codes)
        count = members.sum(0)
        mean = members.T @ codes / count.clamp_min(1)[:, None]
        centred = codes - members @ mean
        return cls(count, mean, centred.T @ centred)

    def __add__(self, other: Pooled) -> Pooled:
        """Return the moments of both."""
        count = self.count + other.count
        share = (other.count / count.clamp_min(1))[:, None]
        gap = other.mean - self.mean
        between = (gap * (self.count[:, None] * share)).T @ gap
        return Pooled(count, self.mean + gap * share, self.scatter + other.scatter + between)

    @property
    def middle(self) -> Float[Tensor, "d"]:
        """The point half way between the class means."""
        return self.mean.mean(0)

    @property
    def half_gap(self) -> Float[Tensor, "d"]:
        """Half the difference of the class means."""
        return (self.mean[0] - self.mean[1]) / 2

    @property
    def covariance(self) -> Float[Tensor, "d d"]:
        """The covariance within the classes, without bias."""
        return self.scatter / (self.count.sum() - 2).clamp_min(1)

    def modes(self, precision: torch.dtype) -> tuple[Float[Tensor, "r"], Float[Tensor, "d r"]]:
        """Return the eigenvalues of the covariance that are more than rounding, and their eigenvectors.

        Embeddings of this ``precision`` have rounding errors in proportion to their size. The cutoff is therefore relative,
        and an encoder in other units keeps the same directions.
        """
        covariance = self.covariance
        values, vectors = torch.linalg.eigh(covariance)
        size = self.mean.square().sum(1).mean() + covariance.trace()
        coded = (ROUNDING * torch.finfo(precision).eps) ** 2 * size
        computed = len(values) * torch.finfo(values.dtype).eps * values.max()
        kept = values > torch.maximum(coded, computed)
        return values[kept], vectors[:, kept]


@dataclass(frozen=True)
class Rules:
    """One linear rule per budget. ``weights`` are scaled so that half the gap of the class means has the value 1."""

    middle: Float[Tensor, "d"]
    weights: Float[Tensor, "e d"]
    offsets: Float[Tensor, "e"]
    """Distance of the boundaries from the middle, in the same scale; 0 with equal priors."""
    rank: int
    """Number of directions in which the embeddings vary."""

    @classmethod
    def fit(
        cls, pooled: Pooled, budgets: Sequence[float], precision: torch.dtype, norm: str = "l2", prior: float = 0.5
    ) -> Rules:
        """Return the robust Bayes rules of two classes with these moments.

        Embeddings that do not vary, or classes that do not differ, leave nothing to decide by: all weights are zero.

        Args:
            budgets: radii of the perturbation, in [0, 1): fractions of the largest that leaves something of the mean.
        """
        lam, axes = pooled.modes(precision)
        m = axes.T @ pooled.half_gap
        if not bool(m.any()):
            none = m.new_zeros(len(budgets))
            return cls(pooled.middle, none[:, None] * pooled.middle, none, len(lam))
        if norm == "l2":
            w = secular(m, lam, budgets)[1]
        else:  # a norm of the codes' own coordinates
            m = axes @ m
            w = homotopy(m, axes * lam @ axes.T, [budget * float(m.abs().max()) for budget in budgets])[1]
        size = w @ m
        weights = w / size[:, None]
        offsets = log((1 - prior) / prior) / 2 / size
        return cls(pooled.middle, weights @ axes.T if norm == "l2" else weights, offsets, len(lam))

    def __call__(
        self, codes: Float[Tensor, "b d"], labels: Float[Tensor, "b"]
    ) -> tuple[Bool[Tensor, "b e"], Float[Tensor, "b e"]]:
        """Return which embeddings are classified rightly and their scaled bounds (0 where wrongly).

        A bound is the distance to the boundary in units of the distance from a class mean to the middle.
        """
        values = ((codes.double() - self.middle) @ self.weights.T - self.offsets) * labels.double()[:, None]
        return values > 0, values.clamp_min(0)

    def margins(self, norm: str) -> Float[Tensor, "e"]:
        """Return the distance from a class mean to the middle under each rule, in embedding units; 0 without a rule."""
        dual = self.weights.norm(dim=1) if norm == "l2" else self.weights.abs().sum(1)
        return (1 / dual).where(dual > 0, 0)
