"""Spectral norms of affine operations: the Lipschitz constants of layers in l2.

``|L|_2^2`` is the largest eigenvalue of ``L' L`` or ``L L'``, whichever is smaller; where both are large, it is at most the
largest row sum times the largest column sum of absolute entries (Golub and Van Loan 2013, section 2.3.3). Rounding moves
eigenvalues of an ``n x n`` matrix by some ``n^2`` roundings of the largest at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.bounds.network.affine import Affine, Diagonal
from holdfast.bounds.network.forms import Shape

LARGEST = 2048
"""The largest matrix whose eigenvalues are computed."""
ENTRIES = 2**26
"""The most numbers of an operation's matrix that are in memory at once."""
_NORMS: WeakKeyDictionary[Affine, tuple[float, ...]] = WeakKeyDictionary()


def spectral_norms(
    operation: Affine, shapes: Sequence[Shape], dtype: torch.dtype, device: torch.device
) -> tuple[float, ...]:
    """Return for each input of an operation an upper bound of the spectral norm of its matrix, kept with the operation.

    Args:
        operation: whose matrices are meant; its offset plays no part.
        shapes: of its inputs.
        dtype, device: of its coefficients.
    """
    if operation not in _NORMS:
        zeros = [torch.zeros(1, *shape, dtype=dtype, device=device) for shape in shapes]
        _NORMS[operation] = tuple(_norm(operation, zeros, position) for position in range(len(shapes)))
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
    if min(n, m) > LARGEST or n * m > ENTRIES or bool((rows == 1).all() & (columns == 1).all()):
        return bound
    entries = matrix(operation, zeros, position).double()
    gram = entries @ entries.T if len(entries) <= entries.shape[1] else entries.T @ entries
    share = 32 * len(gram) ** 2 * torch.finfo(torch.float64).eps
    return min(bound, sqrt(float(torch.linalg.eigvalsh(gram)[-1].clamp_min(0)) * (1 + share)))


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
