"""Spectral norms of affine operations: the Lipschitz constants of layers in l2.

``|L|_2^2`` is the largest eigenvalue of ``L' L`` or ``L L'``, whichever is smaller; where both are large, it is at most the
largest row sum times the largest column sum of absolute entries (Golub and Van Loan 2013, section 2.3.3). Rounding moves
eigenvalues of an ``n x n`` matrix by some ``n^2`` roundings of the largest at most.

A large convolution is a part of one that wraps around, whose singular values are those of its kernel's Fourier transform
(Sedghi et al. 2019, https://arxiv.org/abs/1805.10408). With ``p`` outputs along an axis, stride ``s`` and dilation ``d``,
``y_i = sum_k W_k x_{s i + d k}``: the entries of ``x`` that are ``r`` modulo ``s`` are channels of their own, to which a
kernel of ``m = floor(d (k - 1) / s) + 1`` entries is applied with stride one. On a circle of ``p + m - 1`` nothing wraps
into these outputs, and padding makes some inputs zero: both can only lower the norm.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from holdfast.bounds.network.network_graph import Affine, Convolution, Diagonal, Graph, Node

LARGEST = 2048
"""The largest matrix whose eigenvalues are computed."""
ENTRIES = 2**26
"""The most numbers of an operation's matrix that are in memory at once."""
_NORMS: WeakKeyDictionary[Affine, tuple[float, ...]] = WeakKeyDictionary()


def spectral_norms(graph: Graph, node: Node) -> tuple[float, ...]:
    """Return an upper bound of the spectral norm of each matrix of an affine node, kept with its operation."""
    operation = node.operation
    assert isinstance(operation, Affine)
    if operation not in _NORMS:
        zeros = [torch.zeros(1, *graph.nodes[i].shape, dtype=graph.dtype, device=graph.device) for i in node.inputs]
        _NORMS[operation] = tuple(_norm(operation, zeros, position) for position in range(len(zeros)))
    return _NORMS[operation]


def _norm(operation: Affine, zeros: Sequence[Tensor], position: int) -> float:
    if isinstance(operation, Diagonal):
        factor = operation.factors[position]
        return float(factor.abs().max()) if isinstance(factor, Tensor) else abs(factor)

    def magnitude(radius: Tensor) -> Tensor:
        return operation.magnitude(*zeros[:position], radius, *zeros[position + 1 :])

    with torch.enable_grad():
        ones = torch.ones_like(zeros[position]).requires_grad_()
        rows = magnitude(ones)
        (columns,) = torch.autograd.grad(rows.sum(), ones)
    rows = rows.detach()
    bound = sqrt(float(rows.max()) * float(columns.max())) * (1 + 1e-6)
    n, m = zeros[position].numel(), rows.numel()
    if bool((rows == 1).all() & (columns == 1).all()):
        return bound
    if min(n, m) > LARGEST or n * m > ENTRIES:
        return min(bound, _circular_norm(operation, rows.shape[-2:])) if isinstance(operation, Convolution) else bound
    return min(bound, _largest_singular_value(matrix(operation, zeros, position).double()))


def _largest_singular_value(entries: Shaped[Tensor, "*matrices n m"]) -> float:
    """Return an upper bound of the largest singular value of all matrices."""
    adjoint = entries.mH
    gram = entries @ adjoint if entries.shape[-2] <= entries.shape[-1] else adjoint @ entries
    share = 32 * gram.shape[-1] ** 2 * torch.finfo(torch.float64).eps
    return sqrt(float(torch.linalg.eigvalsh(gram)[..., -1].max().clamp_min(0)) * (1 + share))


def _circular_norm(operation: Convolution, outputs: Sequence[int]) -> float:
    """Return the norm of the convolution that wraps around a circle on which nothing does for these ``outputs``."""
    axes = zip(operation.weight.shape[2:], operation.stride, operation.dilation, strict=True)
    sizes = [dilation * (kernel - 1) // stride + 1 for kernel, stride, dilation in axes]
    weight = operation.weight.double().unflatten(0, (operation.groups, -1))
    by_remainder = weight.new_zeros(*weight.shape[:3], *operation.stride, *sizes)
    for i in range(weight.shape[3]):
        for j in range(weight.shape[4]):
            down, down_remainder = divmod(operation.dilation[0] * i, operation.stride[0])
            across, across_remainder = divmod(operation.dilation[1] * j, operation.stride[1])
            by_remainder[:, :, :, down_remainder, across_remainder, down, across] += weight[..., i, j]
    circle = [count + size - 1 for count, size in zip(outputs, sizes, strict=True)]
    spectrum = torch.fft.rfft2(by_remainder.flatten(2, 4), s=circle).movedim((1, 2), (-2, -1))
    # Transforms round each entry by some logarithm of their length.
    return _largest_singular_value(spectrum) * (1 + 1e-9)


@torch.no_grad()
def matrix(operation: Affine, zeros: Sequence[Tensor], position: int) -> Float[Tensor, "n m"]:
    """Return the matrix of an operation, a line for each entry of the input at ``position``, others being ``zeros``."""
    offset, n = operation.forward(*zeros).flatten(), zeros[position].numel()
    lines = []
    for units in torch.eye(n, dtype=zeros[0].dtype, device=zeros[0].device).split(256):
        inputs = [zero.expand(len(units), *zero.shape[1:]) for zero in zeros]
        inputs[position] = units.reshape(len(units), *zeros[position].shape[1:])
        lines.append(operation.forward(*inputs).flatten(1) - offset)
    return torch.cat(lines)
