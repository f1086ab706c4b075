"""Attack radii of images: one observation, shared by the attack radius and by the radius proved for the same event."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from jaxtyping import Int

from holdfast.attacks.attacked_codes import UNDEFINED
from holdfast.attacks.base import Attack
from holdfast.attacks.events import EVENTS, Search, Threat
from holdfast.attacks.radius_search import Nearest, fixed_forwards, nearest_found, search_forwards
from holdfast.core.balls import Ball
from holdfast.core.divergences import Divergence
from holdfast.core.points.counting import nearest_rows
from holdfast.core.records import Estimate, Findings
from holdfast.core.run_settings import Observed
from holdfast.core.statistics.groups import linked_quantile_interval
from holdfast.core.statistics.quantiles import QUARTILES
from holdfast.measure.observation import Observation
from holdfast.measure.population import Population

SMALLEST = "smallest radius at which it happens"
LEFT_OUT = f"{UNDEFINED}; or an exact copy, which is counted once; or all other images are copies of it"


Rows = Int[np.ndarray, "n"]


def neighbours(population: Population, rows: Sequence[int], divergence: Divergence) -> tuple[Rows, Rows]:
    """Row of each image, with copies as one, and row of its nearest clean neighbour.

    Args:
        population: Images of the run with their clean embeddings.
        rows: Rows of the population.
        divergence: Distance between embeddings.

    Returns:
        Two arrays of shape (b,); the second is -1 if all images are copies of one.
    """
    originals = population.first_copies.unique()
    places = torch.searchsorted(originals, population.first_copies[list(rows)]).tolist()
    own = originals[places].numpy()
    if len(originals) < 2:
        return own, np.full(len(own), -1)
    codes = population.codes[originals.to(population.codes.device)]
    nearest = nearest_rows(population.fitted(divergence), codes[places], codes, 1, exclude=places)[:, 0]
    return own, originals[nearest.cpu()].numpy()


def of_neighbours(findings: Findings, quantity: str, own: Rows, nearest: Rows) -> Findings:
    """Give a radius intervals that allow for images that are each other's nearest.

    Args:
        findings: Findings with a series of ``quantity``.
        quantity: Radius whose median and quartiles get new intervals.
        own: Row of each image.
        nearest: Row of the nearest other image of each.
    """
    values = np.array(next(each.values for each in findings.series if each.quantity == quantity))
    known = ~np.isnan(values)
    shares = {quantity: 0.5, **{f"{quantity}_{name}": share for name, share in QUARTILES.items()}}
    method = "order statistics; images near each other count for fewer (design effect)"

    def regarded(estimate: Estimate) -> Estimate:
        if estimate.quantity not in shares or not estimate.n:
            return estimate
        share = shares[estimate.quantity]
        low, high = linked_quantile_interval(values[known], own[known], nearest[known], share, estimate.confidence)
        # A few images may say less than any linked ones: what order statistics leave open stays open.
        low, high = min(low, estimate.low), max(high, estimate.high)
        update = {"low": low, "high": high, "method": method, "series": None, "statistic": "whole"}
        return estimate.model_copy(update=update)

    return findings.model_copy(update={"estimates": tuple(map(regarded, findings.estimates))})


@final
@dataclass(frozen=True)
class Radii(Observation):
    """The ``radius`` at which an attack made ``event`` happen to each image.

    It is infinite if the event was never found and nan where it is undefined. Pairs share no image, so it is nan for
    the others.
    """

    event: str
    """Event to search for: ``retrieval``, ``impersonation`` or ``overlap``."""
    widest: Ball
    """Largest ball to search; radii in pixel units."""
    attack: Attack
    """Attack at each radius that is tried."""
    divergence: Divergence
    """Distance between embeddings."""
    rivals: int
    """Nearest other images that a retrieval attack aims at; 1 or more."""
    balls: tuple[Ball, ...]
    """Balls of fixed radius in which ``fixed`` and ``pairwise`` are run as well."""
    fixed: tuple[Attack, ...]
    """Untargeted or targeted attacks at the fixed radii."""
    pairwise: Attack
    """Attack on the event itself at the fixed radii."""
    samples: int
    """Images to attack, chosen at random; 1 or more."""
    name = "radii"
    version = 1
    uses_bank = True
    uses_groups = True

    def forward_passes(self, population: Population) -> int:
        # Half of the images are those of pairs; of these, two collide.
        share = {"retrieval": 1.0, "impersonation": 0.5, "overlap": 1.0}[self.event]
        fixed = (*self.fixed, self.pairwise) if self.event == "retrieval" else self.fixed
        return round(share * (search_forwards(self.attack) + fixed_forwards(self.widest, self.balls, fixed)))

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        radii = torch.full((len(rows),), torch.nan, dtype=torch.float64, device=population.codes.device)
        here = list(range(len(rows)))
        if self.event != "retrieval":
            couples = set(population.disjoint_pairs(self.samples))
            here = [position for position, row in enumerate(rows) if row in couples]
        if here:
            search = self.search(population, [rows[position] for position in here])
            nearest = self.nearest(population, [rows[position] for position in here], search)
            radii[here] = nearest.radii.double().masked_fill(~search.defined, torch.nan)
        return {"radius": radii}

    def search(self, population: Population, rows: Sequence[int]) -> Search:
        """Set up the search around the images at ``rows``.

        Args:
            population: Images of the run with their clean embeddings.
            rows: Rows of the population.
        """
        threat = Threat(self.divergence, self.rivals, self.fixed, self.pairwise, self.samples)
        return EVENTS[self.event](population, rows, threat)

    def nearest(self, population: Population, rows: Sequence[int], search: Search) -> Nearest:
        """Search for the nearest images that show the event.

        Args:
            population: Images of the run with their clean embeddings.
            rows: Rows of the population.
            search: Event to search for.
        """
        noise = population.run.noise([population.images.ids[row] for row in rows]).fork("radius", self.event)
        balls = [search.ball(ball) for ball in self.balls if ball.name == self.widest.name]
        return nearest_found(search.goal, self.attack, search.ball(self.widest), noise, balls, search.fixed)
