"""Effective dimensions of embeddings: RankMe and LiDAR, the exponentials of two entropies.

RankMe is ``exp(-sum p_k log p_k)`` with ``p`` the singular values of the embeddings over their sum (Garrido et al. 2023,
https://arxiv.org/abs/2210.02885). LiDAR takes the eigenvalues of ``S_w^-1/2 S_b S_w^-1/2`` instead: ``S_w`` is the
scatter of the views of an image, ``S_b`` that of the means of the views; Thilak et al. 2024,
https://arxiv.org/abs/2312.04000. Departures: ``0 log 0 = 0`` instead of adding 1e-7 to each fraction; LiDAR's
regularisation of ``S_w`` is relative to its mean variance, so the scale of the embeddings does not matter.

Singular values come from Gram matrices in float64, summed group by group: leaving one out is a subtraction.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import isnan

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.core.records import Estimate
from holdfast.core.statistics.intervals import jackknife_interval
from holdfast.measure.observation import estimate_of

GROUPS = 10
BLOCK = 4096
RIDGE = 1e-4
"""Share of the mean within-image variance that is added to every direction of it (the paper's delta)."""
SMALLEST = 1e-7
"""Share of the largest singular value below which a direction is one of rounding."""
Matrix = Float[Tensor, "m m"]
Ranked = tuple[float, float, float]
"""A rank and its interval, nan where there are too few samples for one."""


def entropy_rank(values: Float[Tensor, "m"]) -> float:
    """Return the exponential of the entropy of ``values`` over their sum; 0 where all are zero.

    Example:
        >>> round(entropy_rank(torch.tensor([1.0, 1.0, 0.0])), 6)
        2.0
    """
    values = values.clamp(min=0)
    total = float(values.sum())
    return float(torch.special.entr(values / total).sum().exp()) if total > 0 else 0.0


def singular_values(gram: Matrix) -> Float[Tensor, "m"]:
    """Return the singular values, largest first, of what has the Gram matrix ``gram``."""
    return torch.linalg.eigvalsh(gram).clamp(min=0).sqrt().flip(0)


def rankme(codes: Float[Tensor, "n d"]) -> tuple[Ranked, Float[Tensor, "m"]]:
    """Return RankMe of ``codes`` with its interval, and their singular values.

    The rows must be in random order, for consecutive ones make the groups of the jackknife.
    """
    whole, *left_out = _grams(codes)
    values = singular_values(whole)
    return _jackknifed(entropy_rank(values), (entropy_rank(singular_values(gram)) for gram in left_out)), values


def rankme_influence(codes: Float[Tensor, "n d"]) -> Float[Tensor, "n"]:
    """Return how much RankMe moves with each of ``codes``, so that two encoders are compared image by image.

    With ``s`` the singular values, ``v`` their directions, ``T`` the sum of ``s``, ``p = s / T`` and ``H`` the entropy of
    ``p``, the influence of code ``x`` (Hampel 1974, https://doi.org/10.1080/01621459.1974.10482962) is

        -exp(H) n / (2 T)  sum_k (log p_k + H) (v_k . x)^2 / s_k

    and the mean of all is 0.
    """
    wide, gram = codes.double(), gram_of(codes)
    squares, directions = torch.linalg.eigh(gram)
    values = squares.clamp(min=0).sqrt()
    kept = values > SMALLEST * values.max()
    values, directions = values[kept], directions[:, kept]
    if not len(values):
        return torch.zeros_like(wide[:, 0])
    total = values.sum()
    logs = (values / total).log()
    entropy = -(values / total * logs).sum()
    slopes = -entropy.exp() / (2 * total) * len(codes) * (logs + entropy) / values
    return torch.cat([(block @ directions).square() @ slopes for block in wide.split(BLOCK)])


def _grams(codes: Float[Tensor, "n d"]) -> Iterator[Matrix]:
    """Yield the Gram matrix of all codes, of features or of samples as there are fewer, and those without each group."""
    groups = _groups(len(codes))
    if len(codes) >= codes.shape[1]:
        parts = [gram_of(codes[group]) for group in groups]
        whole = torch.stack(parts).sum(0)
        yield whole
        yield from (whole - part for part in parts)
    else:
        wide = codes.double()
        whole = wide @ wide.T
        yield whole
        for group in groups:
            kept = torch.ones(len(codes), dtype=torch.bool, device=codes.device)
            kept[group] = False
            yield whole[kept][:, kept]


def gram_of(codes: Float[Tensor, "n d"]) -> Matrix:
    """Return the sum of outer products of ``codes``, in float64."""
    total = torch.zeros(codes.shape[1], codes.shape[1], dtype=torch.float64, device=codes.device)
    for block in codes.split(BLOCK):
        wide = block.double()
        total.addmm_(wide.T, wide)
    return total


def lidar(views: Float[Tensor, "n q d"]) -> Ranked:
    """Return LiDAR of the codes of ``q`` views of each of ``n`` images, with its interval.

    The images must be in random order, for consecutive ones make the groups of the jackknife.
    """
    features, views = views.shape[2], _in_their_span(views.double())
    means = views.mean(1)
    within, between, sums = [], [], []
    for group in _groups(len(views)):
        spread = (views[group] - means[group][:, None]).flatten(0, 1)
        within.append(spread.T @ spread / views.shape[1])
        between.append(means[group].T @ means[group])
        sums.append(torch.cat([means[group].sum(0), means.new_tensor([float(group.stop - group.start)])]))
    parts = list(zip(within, between, sums, strict=True))
    whole = tuple(torch.stack(list(part)).sum(0) for part in (within, between, sums))
    left_out = (_lidar(features, *(all_ - left for all_, left in zip(whole, part, strict=True))) for part in parts)
    return _jackknifed(_lidar(features, *whole), left_out)


def _in_their_span(views: Float[Tensor, "n q d"]) -> Float[Tensor, "n q r"]:
    """Return codes turned into the space that they span, where there are fewer of them than features.

    Distances and angles stay; outside that space nothing differs, between images or within.
    """
    n, q, d = views.shape
    if d <= n * q:
        return views
    flat = views.flatten(0, 1)
    return torch.linalg.qr((flat - flat.mean(0)).T, mode="r").R.T.unflatten(0, (n, q))


def _lidar(features: int, within: Matrix, between: Matrix, sums: Float[Tensor, "s"]) -> float:
    """Return LiDAR from sums over images: of the scatter of views, of outer products of means, of means and of ones.

    ``features`` counts those of the codes, which may be more than those that they are given in.
    """
    n, mean = float(sums[-1]), sums[:-1] / sums[-1]
    scatter = within / n
    level = float(scatter.trace()) / features
    if not level > 0:  # no view differs: there is nothing to divide by
        return float("nan")
    scatter = scatter + RIDGE * level * torch.eye(len(scatter), dtype=scatter.dtype, device=scatter.device)
    lower = torch.linalg.cholesky(scatter)
    half = torch.linalg.solve_triangular(lower, between / n - mean[:, None] * mean, upper=False)
    ratio = torch.linalg.solve_triangular(lower, half.T, upper=False)
    return entropy_rank(torch.linalg.eigvalsh((ratio + ratio.T) / 2))


def _groups(n: int) -> list[slice]:
    """Return consecutive rows in groups, as equal as can be."""
    edges = np.linspace(0, n, min(GROUPS, n) + 1).round().astype(int).tolist()
    return [slice(start, stop) for start, stop in pairwise(edges)]


def interval_method(rank: Ranked) -> str:
    """Return how the interval of ``rank``, which has one, comes about.

    Example:
        >>> interval_method((90.7, 80.0, 162.0))
        'delete-a-group jackknife, 10 groups'
        >>> interval_method((90.7, 90.7, 162.0)).partition("; ")[2]
        'the interval is corrected for how few images there are, the value is not, so it lies at an end'
    """
    value, low, high = rank
    cut = "; the interval is corrected for how few images there are, the value is not, so it lies at an end"
    return f"delete-a-group jackknife, {GROUPS} groups{cut if value in (low, high) and low < high else ''}"


def rank_estimate(quantity: str, rank: Ranked, n: int, of: str, more: str = "", reason: str | None = None) -> Estimate:
    """Number of dimensions with its interval; ``more`` is appended to the method."""
    method = f"no interval: {n} images" if isnan(rank[1]) else f"{interval_method(rank)}{more}"
    return estimate_of(quantity, rank, n, method, "dimensions", of, "higher", statistic="whole", reason=reason)


def _jackknifed(value: float, left_out: Iterator[float]) -> Ranked:
    values = np.array(list(left_out))
    low, high = jackknife_interval(value, values) if len(values) == GROUPS else (float("nan"), float("nan"))
    # Few samples span too few dimensions: the interval allows for it, the value does not.
    return value, min(low, value), max(high, value)
