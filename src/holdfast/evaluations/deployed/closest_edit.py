"""Which everyday edit, made to the images before, brings their codes closest to those after.

``(E(A', B) - E(t(A'), B)) / E(A, B)`` with energy distances ``E``: 1 where the edit ``t`` turns one distribution into the
other, 0 where it does nothing of the kind, below 0 where it leads away. ``A'`` are the few images of A that are edited: the
same ones in both distances, so that which these are cancels, while what is divided by is the distance of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from math import nan

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.core.records import Claim, Estimate
from holdfast.core.statistics.intervals import jackknife
from holdfast.evaluations.deployed.two_sets import TwoSets
from holdfast.transforms.base import Transform
from holdfast.twosample.energy import distances

NOT_SHOWN = "no difference was shown that an edit could explain"
NO_DISTANCE = (
    "the energy distance of both sets is no larger than chance makes it, so there is no share of it to explain"
)
INAPPLICABLE = "it cannot change inputs of this encoder"
REFERENCE = 4096
"""At most so many images after are compared with edited ones."""


def explained(
    edited: Float[Tensor, "s e d"],
    clean: Float[Tensor, "s d"],
    sets: TwoSets,
    edits: Sequence[Transform],
    shown: bool,
) -> tuple[tuple[Estimate, ...], dict[str, str]]:
    """Return how much of the change each family of edits explains at its best strength, and the closest edit.

    Args:
        edited: points of images before under each edit, in the frame of ``sets.before``.
        clean: points of the same images as they are.
        sets: both sets.
        edits: those of ``edited``.
        shown: whether there is a change to explain.
    """
    spans, start = list[tuple[str, list[int]]](), 0
    for name, members in groupby(edits, key=lambda edit: edit.name):
        count = len(list(members))
        spans.append((name, list(range(start, start + count))))
        start += count
    if not shown or len(clean) < 3:
        return tuple(_estimate(name, None, len(clean), NOT_SHOWN) for name, _ in spans), {}
    reference, before = (points[:: max(1, len(points) // REFERENCE)] for points in (sets.after, sets.before))
    whole = _energy(_parts(before, reference), range(len(before)))
    if whole <= 0:
        return tuple(_estimate(name, None, len(clean), NO_DISTANCE) for name, _ in spans), {}
    as_they_are = _parts(clean, reference)
    estimates = list[Estimate]()
    for name, indices in spans:
        shares = {
            index: _share(_parts(edited[:, index], reference), as_they_are, whole)
            for index in indices
            if edited[:, index].isfinite().all()
        }
        best = max(shares, key=lambda index: shares[index][0], default=None)
        label = name if best is None else str(edits[best])
        estimates.append(_estimate(label, None if best is None else shares[best], len(clean), INAPPLICABLE))
    defined = [estimate for estimate in estimates if estimate.value == estimate.value]
    closest = max(defined, key=lambda estimate: estimate.value, default=None)
    if closest is None or closest.value <= 0:
        return tuple(estimates), {"closest edit": "none of those tried comes closer"}
    return tuple(estimates), {
        "closest edit": closest.conditions["edit"],
        "explains of the change": f"{closest.value:.0%} ({closest.low:.0%} to {closest.high:.0%})",
    }


Parts = tuple[Float[Tensor, "s"], Float[Tensor, "s s"], float]
"""Mean distance of each edited image to the images after, distances among edited ones, mean distance among those after."""


def _parts(points: Float[Tensor, "s d"], reference: Float[Tensor, "m d"]) -> Parts:
    centre = reference.mean(0)
    points, reference = (points - centre).float(), (reference - centre).float()
    among = distances(reference, reference).double()
    count = len(reference)
    inside = float((among.sum() - among.diagonal().sum()) / max(1, count * (count - 1)))
    edited = distances(points, points).double()
    return distances(points, reference).double().mean(1), edited.fill_diagonal_(0), inside


def _energy(parts: Parts, rows: Sequence[int]) -> float:
    """Return the energy distance of the edited images at ``rows`` to those after, no distance to itself counted."""
    across, edited, inside = parts
    count = len(rows)
    chosen = torch.tensor(rows)
    within = float(edited[chosen][:, chosen].sum()) / max(1, count * (count - 1))
    return 2 * float(across[chosen].mean()) - within - inside


def _share(edited: Parts, clean: Parts, whole: float) -> tuple[float, float, float]:
    """Return the share of the ``whole`` distance that an edit takes away, with its interval over the images edited."""

    def share(rows: Sequence[int]) -> float:
        return (_energy(clean, rows) - _energy(edited, rows)) / whole

    value = share(range(len(clean[0])))
    low, high = jackknife(lambda rows: share(rows), len(clean[0]))
    return value, min(low, value), max(high, value)


def _estimate(edit: str, share: tuple[float, float, float] | None, n: int, reason: str) -> Estimate:
    value, low, high = share or (nan, nan, nan)
    return Estimate(
        quantity="change_explained",
        conditions={"edit": edit},
        value=value,
        low=low,
        high=high,
        n=n,
        method="delete-a-group jackknife over edited images, 10 groups; the distance of both sets as it is",
        unit="share of the change",
        claim=Claim.ESTIMATE,
        of="part of the energy distance that this edit of the images before takes away, at its best strength",
        better="neither",
        statistic="whole",
        reason=reason if share is None else None,
    )
