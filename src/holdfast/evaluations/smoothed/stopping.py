"""Copies in rounds: when enough of them are drawn, and how sure one may be of what they say then.

    looks at   n_1 < n_2 < ... < n_R = copies,  each about twice the one before;  stop at any of them

A bound that holds with confidence ``1 - a`` at each of ``R`` numbers of draws holds at all of them together with ``1 - R a``
(Bonferroni 1936), so with ``a = alpha / R`` it holds with ``1 - alpha`` wherever one stops, for whatever reason. Looks that
double are few: the exact bounds of Clopper and Pearson pay ``ln R`` for them in ``ln(1 / alpha)``, where a martingale that
holds at every number of draws pays about half of ``ln n``.

One stops as soon as every radius that is wanted is decided: the lower end of the chance of each event exceeds
``Phi(r / sigma)``, or its upper end does not reach it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import final

import torch
from jaxtyping import Int
from torch import Tensor

from holdfast.core.run_settings import Observed
from holdfast.evaluations.smoothed.votes import least_share
from holdfast.protocol.observation import SharedSettings

EVENTS = ("kept", "retrieved")
"""What a copy may do that is voted on, beside what probes say of it."""


@final
@dataclass(frozen=True)
class Stopping(SharedSettings):
    """When enough copies are drawn; by default all of them are, at once."""

    wanted: tuple[float, ...] = ()
    """l2 radii that shall be decided, for each of the ``events`` and the class that each probe says."""
    certainty: float = 0.001
    """The chance of error with which they are decided; certificates have their own."""
    least: int | None = None
    """The fewest copies after which one looks; None: one looks once."""
    events: tuple[str, ...] = EVENTS

    def looks(self, copies: int) -> tuple[int, ...]:
        """Return the numbers of copies at which one may stop.

        Example:
            >>> Stopping(least=6000).looks(100_000), Stopping().looks(1000), Stopping(least=6000).looks(400)
            ((6250, 12500, 25000, 50000, 100000), (1000,), (400,))
        """
        looks = [copies]
        while self.least is not None and ceil(looks[0] / 2) >= self.least:
            looks.insert(0, ceil(looks[0] / 2))
        return tuple(looks)

    def decided(self, counts: Int[Tensor, "e"], draws: int, copies: int, sigma: float) -> bool:
        """Return whether of each event, of which ``draws`` copies showed ``counts``, every wanted radius is decided.

        A radius that not even ``copies`` copies, all for an event, could certify is not waited for.
        """
        alpha = self.certainty / len(self.looks(copies))
        lower, upper = least_share(counts, draws, alpha), 1 - least_share(draws - counts, draws, alpha)
        wanted = torch.tensor(self.wanted, dtype=torch.float64, device=counts.device)
        thresholds = torch.special.ndtr(wanted / sigma)
        thresholds = thresholds[thresholds < alpha ** (1 / copies)]
        return bool(((lower[:, None] > thresholds) | (upper[:, None] < thresholds)).all())

    def fewest(self, copies: int, sigma: float) -> int:
        """Return after how many of ``copies`` one stops at an image whose copies all agree."""
        looks = self.looks(copies)
        return next((n for n in looks[:-1] if self.decided(torch.tensor([n]), n, copies, sigma)), looks[-1])


def counts_of(third: Observed, views: int, stopping: Stopping, chosen: dict[int, int]) -> Int[Tensor, "e"]:
    """Return how often each event was seen: those of each view, and the class ``chosen`` by each probe."""
    events = [third[f"{k}.{event}"].sum() for k in range(views) for event in stopping.events]
    return torch.stack([*events, *(third[f"probe {k}"].sum(0)[place] for k, place in chosen.items())]).long()
