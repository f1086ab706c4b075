"""How much of the energy distance between two sets an edit of a few points of the first one takes away.

``N = E(A', B) - E(t(A'), B)``, in which ``A'`` are the points edited: the same ones in both, so that which these are nearly
cancels. Its share ``N / E(A, B)`` is at most 1, for ``E`` is nowhere below 0: estimates of it above 1 are chance.
"""

from __future__ import annotations

from math import sqrt

import torch
from jaxtyping import Float, Int
from torch import Tensor

from holdfast.twosample.energy import distances
from holdfast.twosample.linearised import Linearised

FEWEST = 3
"""So many edited points at least have an error."""


def taken_away(
    before: Float[Tensor, "n d"],
    edited: Float[Tensor, "k d"],
    rows: Int[Tensor, "k"],
    after: Float[Tensor, "m d"],
    copies: Int[Tensor, "p 2"],
) -> Linearised:
    """Return what the edit takes away, unbiased, and what each point before and after adds to its error (jackknife).

    Args:
        before: the first set.
        edited: its points at ``rows``, edited.
        rows: those; ``FEWEST`` or more.
        after: the second set.
        copies: rows before and after that are no pairs of independent points, and count in no mean.
    """
    clean, count = before[rows].float(), len(rows)
    edited, after = edited.float(), after.float()
    independent = torch.ones(count, len(after), dtype=torch.float64)
    places, copied = (rows[:, None] == copies[:, 0]).nonzero(as_tuple=True)
    independent[places, copies[copied, 1]] = 0
    gains = independent * (distances(clean, after).double() - distances(edited, after).double())
    nearer = gains.sum(1) / independent.sum(1)
    inside = distances(clean, clean).double() - distances(edited, edited).double()
    inside = inside.fill_diagonal_(0).sum(1) / (count - 1)
    errors = torch.zeros(len(before) + len(after), dtype=torch.float64)
    # Without one of k points a mean over pairs moves by 2 / (k - 2) of that point's own mean.
    errors[rows] = _errors(2 * nearer - 2 * (count - 1) / (count - 2) * inside)
    errors[len(before) :] = _errors(2 * gains.sum(0) / independent.sum(0).clamp_min(1))
    return Linearised(2 * float(nearer.mean()) - float(inside.mean()), errors)


def _errors(values: Float[Tensor, "k"]) -> Float[Tensor, "k"]:
    """Return what each of ``values`` adds to the error of their mean."""
    return (values - values.mean()) / sqrt(len(values) * (len(values) - 1))
