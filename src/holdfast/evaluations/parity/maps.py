"""What relates two spaces: a shift and a scale, an orthogonal map, or neither; and how alike they are whatever the axes.

Orthogonal Procrustes (Schönemann 1966, https://doi.org/10.1007/BF02289451): of all orthogonal ``R`` the one that minimises
``|A - s B R|`` for centred codes ``A`` (reference) and ``B`` (candidate) is ``U W^T`` from ``B^T A = U S W^T``, with the
scale ``s = tr S / |B|^2``.

**Held out.** With at least as many features as images some ``R`` takes any codes to any others, so nothing is judged on the
images that it was fitted to: it is fitted to either half of the images and judged on the other. Fitted to ``m`` images,
``R`` is determined on the span of their codes alone. So a held-out code is judged within that span (``P_A`` and ``P_B``
project to it), where a rotated copy is predicted exactly however few images there are:

    unexplained(x) = |P_A a - s (P_B b) R|^2 / mean |P_A a|^2

Linear CKA (Kornblith et al. 2019, https://arxiv.org/abs/1905.00414) without the bias by which it approaches 1 for any two
codes of many features: with the unbiased HSIC of Song et al. (2012, https://jmlr.org/papers/v13/song12a.html), as Nguyen et
al. (2021, https://arxiv.org/abs/2010.15327) take it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import nan, sqrt

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

NOISE = 1e-10
"""Share of the largest variance below which a direction of the training codes is rounding."""
GROUPS = 20
"""Of the jackknife of the CKA."""
ROUNDING = 1e-12
"""Share of a row's sum of squares below which the self-similarity of a kernel is rounding."""

Codes64 = Float[Tensor, "n d"]


@dataclass(frozen=True)
class Unexplained:
    """For each image the squared distance that a map leaves, as a share of the mean squared length of centred codes."""

    as_it_is: Float[Tensor, "n"] | None
    """Without any map; None for codes of different widths."""
    scaled: Float[Tensor, "n"] | None
    """After the best shift and scale."""
    rotated: Float[Tensor, "n"]
    """After the best shift, scale and rotation, within what the training images determine."""
    determined: Float[Tensor, "n"]
    """The share of each code's squared length, around the mean, that lies within what they determine."""


def unexplained(reference: Codes64, candidate: Float[Tensor, "n e"], order: Int[Tensor, "n"]) -> Unexplained:
    """Return what maps leave of the difference of two codes of each image, fitted to the other half of the images.

    Args:
        reference, candidate: codes of the same images; widths may differ.
        order: all rows in random order; halves are taken in turn from it.

    Example:
        >>> a = torch.randn(40, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        >>> turn = torch.linalg.qr(torch.randn(64, 64, generator=torch.Generator().manual_seed(1)).double()).Q
        >>> float(unexplained(a, 3 * a @ turn + 1, torch.arange(40)).rotated.max()) < 1e-12
        True
    """
    a, b = reference.double(), candidate.double()
    same_width = a.shape[1] == b.shape[1]
    shares = {name: torch.full((len(a),), torch.nan, dtype=torch.float64) for name in ("is", "scale", "turn", "in")}
    for train, test in ((order[::2], order[1::2]), (order[1::2], order[::2])):
        near, far = a[train] - a[train].mean(0), b[train] - b[train].mean(0)
        ours, theirs = a[test] - a[train].mean(0), b[test] - b[train].mean(0)
        span, other = _span(near), _span(far)
        left, singular, right = torch.linalg.svd((far @ other).T @ (near @ span), full_matrices=False)
        length = far.square().sum().clamp_min(torch.finfo(torch.float64).tiny)
        inside = ours @ span
        turned = (singular.sum() / length) * (theirs @ other) @ (left @ right)
        shares["turn"][test] = (inside - turned).square().sum(1) / inside.square().sum(1).mean()
        shares["in"][test] = inside.square().sum(1) / ours.square().sum(1)
        if same_width:
            mean_square = ours.square().sum(1).mean()
            scaled = ((near * far).sum() / length) * theirs
            shares["is"][test] = (a[test] - b[test]).square().sum(1) / mean_square
            shares["scale"][test] = (ours - scaled).square().sum(1) / mean_square
    return Unexplained(
        shares["is"] if same_width else None, shares["scale"] if same_width else None, shares["turn"], shares["in"]
    )


def _span(centred: Float[Tensor, "m d"]) -> Float[Tensor, "d r"]:
    """Return orthonormal directions that span the rows of ``centred``, without those that are rounding."""
    if len(centred) <= centred.shape[1]:  # the Gram matrix is the smaller one
        values, vectors = torch.linalg.eigh(centred @ centred.T)
        kept = values > NOISE * values[-1].clamp_min(torch.finfo(values.dtype).tiny)
        # Orthonormal again: the square roots of small eigenvalues are less exact than those of large ones.
        return torch.linalg.qr(centred.T @ vectors[:, kept] / values[kept].sqrt()).Q
    values, vectors = torch.linalg.eigh(centred.T @ centred)
    return vectors[:, values > NOISE * values[-1].clamp_min(torch.finfo(values.dtype).tiny)]


def linear_cka(
    reference: Codes64, candidate: Float[Tensor, "n e"], order: Int[Tensor, "m"], confidence: float = 0.95
) -> tuple[float, float, float]:
    """Return the debiased linear CKA of two codes of the same images, and its interval by a delete-a-group jackknife.

    1 for rotated, shifted and scaled copies; 0 on average for unrelated codes, whatever their width. It is of the rows in
    ``order``, from which groups are taken in turn; fewer than 2 images for each of them leave it without an interval. It
    is nan where all images but one have the same code, up to rounding.

    Example:
        >>> a = torch.randn(50, 500, generator=torch.Generator().manual_seed(0))
        >>> b = torch.randn(50, 500, generator=torch.Generator().manual_seed(1))
        >>> round(linear_cka(a, 2 * a, torch.arange(50))[0], 6), abs(linear_cka(a, b, torch.arange(50))[0]) < 0.1
        (1.0, True)
    """
    from scipy.stats import t

    n = len(order)
    if n < 4:
        return nan, nan, nan
    kernels = [_kernel(codes[order].double()) for codes in (reference, candidate)]
    group = torch.nn.functional.one_hot(torch.arange(n) % GROUPS, GROUPS).double()
    none = torch.zeros(n, 1, dtype=torch.float64)
    value = float(_cka(kernels[0], kernels[1], none)[0])
    if n < 2 * GROUPS:
        return value, nan, nan
    without = _cka(kernels[0], kernels[1], group).numpy()
    if np.isnan(without).any():
        return value, nan, nan
    error = sqrt((GROUPS - 1) / GROUPS * float(np.square(without - without.mean()).sum()))
    reach = float(t.ppf((1 + confidence) / 2, GROUPS - 1)) * error
    return value, max(-1.0, value - reach), max(value, min(1.0, value + reach))


def _kernel(codes: Codes64) -> Float[Tensor, "n n"]:
    """Return the products of centred codes, without the diagonal, in units that neither overflow nor vanish."""
    centred = codes - codes.mean(0)
    kernel = centred @ centred.T
    return (kernel / kernel.abs().max().clamp_min(torch.finfo(torch.float64).tiny)).fill_diagonal_(0)


def _cka(k: Float[Tensor, "n n"], l: Float[Tensor, "n n"], left_out: Float[Tensor, "n g"]) -> Float[Tensor, "g"]:  # noqa: E741
    """Return the CKA without each of the groups in ``left_out``; nan where a code resembles itself by rounding alone."""
    across, first, second = (_hsic(a, b, left_out) for a, b in ((k, l), (k, k), (l, l)))
    # All images alike but one: the unbiased self-similarity is 0, and what rounding leaves of it would be divided by.
    undefined = torch.zeros_like(across, dtype=torch.bool)
    for kernel, itself in ((k, first), (l, second)):
        undefined |= itself <= ROUNDING * (kernel.square() @ (1 - left_out) * (1 - left_out)).mean(0)
    return (across / (first * second).sqrt()).masked_fill(undefined, nan)


def _hsic(k: Float[Tensor, "n n"], l: Float[Tensor, "n n"], left_out: Float[Tensor, "n g"]) -> Float[Tensor, "g"]:  # noqa: E741
    """Return the unbiased HSIC of two kernels without a diagonal (Song et al. 2012, equation 5), without each group."""
    kept = 1 - left_out
    n = kept.sum(0)
    rows_k, rows_l = k @ kept, l @ kept
    together = ((k * l) @ kept * kept).sum(0)
    alone = (rows_k * kept).sum(0) * (rows_l * kept).sum(0) / ((n - 1) * (n - 2))
    across = 2 / (n - 2) * (rows_k * rows_l * kept).sum(0)
    return (together + alone - across) / (n * (n - 3))
