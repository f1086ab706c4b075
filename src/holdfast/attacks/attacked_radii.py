"""Attack radii of images: what a search looks for, and one observation, shared with the proved radius of the same event."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from holdfast.attacks.attacked_codes import UNDEFINED, differentiable, facing_neighbours
from holdfast.attacks.base import Attack
from holdfast.attacks.objectives.simple import Misretrieval, margin
from holdfast.attacks.pair_attacks import EachOfTwo, codes_of_both, pair_encoder, side_by_side
from holdfast.attacks.radius_search import Goal, Nearest, nearest_events, search_forwards
from holdfast.core.balls import Ball
from holdfast.core.divergences import Divergence
from holdfast.core.encoder import Codes
from holdfast.core.points.counting import closer_counts, crossings, nearest_rows
from holdfast.core.records import Estimate, Findings
from holdfast.core.run_settings import Observed
from holdfast.core.statistics.groups import linked_quantile_interval
from holdfast.core.statistics.quantiles import QUARTILES
from holdfast.measure.observation import Observation
from holdfast.measure.population import Population

# Events that a radius search looks for, such as an image that matches another one.
#
# Each event is decided by the clean embeddings of all images and has an objective to maximise.


class Searched:
    """Images that attacked ones may match: the reference set, else the measured images.

    Copies count once, and images of the same group do not count.
    """

    def __init__(self, population: Population) -> None:
        self.population = population
        self.gallery = population.gallery
        self.first_copies = self.gallery.first_copies.to(population.codes.device)
        copies = self.first_copies != torch.arange(len(self.first_copies), device=self.first_copies.device)
        self.copies, self.distinct = copies if copies.any() else None, int((~copies).sum())

    def others(self, rows: Sequence[int]) -> Int[Tensor, "b"]:
        """Other images that each of ``rows`` can match; 1 where nothing is defined."""
        kin, device = self.population.kin(rows), self.population.codes.device
        own = torch.full((len(rows),), int(self.gallery is self.population), device=device)
        if kin is not None:
            distinct = kin.theirs if self.copies is None else kin.theirs[~self.copies]
            sizes = distinct.bincount(minlength=int(max(kin.mine.max(), kin.theirs.max())) + 1)
            own = sizes[kin.mine]
        return (self.distinct - own).clamp_min(1)

    def counted(self, rows: Sequence[int]) -> Bool[Tensor, "b n"]:
        """Return which images of the gallery are others to each of ``rows``."""
        places = torch.arange(len(self.first_copies), device=self.first_copies.device)
        counted = (self.first_copies == places).expand(len(rows), -1)
        if self.gallery is self.population:
            counted = counted & (self.first_copies[list(rows)][:, None] != places)
        kin = self.population.kin(rows)
        return counted if kin is None else counted & (kin.mine[:, None] != kin.theirs)

    @property
    def alone(self) -> bool:
        """True if all images are copies of one, so that there is no other image to match."""
        return self.gallery is self.population and self.distinct < 2

    def closer(self, rows: Sequence[int], divergence: Divergence, moved: Tensor) -> tuple[Tensor, Tensor | None]:
        """Count images closer to each attacked embedding, and attacked embeddings near each row.

        With groups, the second count is scaled as if all ``rows`` could pass each image.

        Returns:
            Two float tensors of shape (b,); nan where undefined and for copies. The second is None with a reference
            set.
        """
        population, divergence = self.population, self.population.fitted(divergence)
        clean = population.codes[list(rows)]
        moved = moved.to(clean.device)
        copies = (population.first_copies[list(rows)] != torch.as_tensor(rows)).to(clean.device)
        defined = divergence(moved.double(), clean.double()).isfinite() & ~copies & (not self.alone)
        kin = population.kin(rows)
        moved = moved.masked_fill(~defined[:, None], torch.nan)
        within = self.gallery is population
        originals = (
            self.first_copies[list(rows)] if within else torch.full_like(self.first_copies[:1].expand(len(rows)), -1)
        )
        searched = self.gallery.codes.to(moved.dtype)
        counts, passed = crossings(divergence, moved, originals, searched, clean.to(moved), self.copies, kin)
        counts = counts.double().masked_fill(~defined, torch.nan)
        if not within:
            return counts, None
        passed_here = passed[originals].double().masked_fill(~defined, torch.nan)
        if kin is not None:
            sizes = kin.mine[defined].bincount(minlength=len(kin.theirs))
            passed_here *= (int(defined.sum()) - 1) / (int(defined.sum()) - sizes[kin.mine]).clamp_min(1)
        return counts, passed_here


# What is searched for when a radius is: another image is nearer, an image is taken for its partner, two images
# collide.
#
# Each is an event of the moved code, decided by the clean codes of all images, with a function to climb that is
# positive where it happens or nearly so: the few nearest images stand there for all.


@dataclass(frozen=True)
class Search:
    """An event to search for around images, or around pairs of images side by side."""

    goal: Goal
    """Images, objective and event."""
    defined: Bool[Tensor, "b"]
    """Mask of images for which the event is defined, shape (b,)."""
    pairs: bool = False
    """True if each input is a pair of images."""

    def ball(self, ball: Ball) -> Ball:
        """Perturbation set of one input if ``ball`` is the perturbation set of one image."""
        return EachOfTwo(ball.radius, type(ball)) if self.pairs else ball


def retrieval(population: Population, rows: Sequence[int], divergence: Divergence, rivals: int) -> Search:
    """Event: another image is closer to the attacked embedding than its own original.

    Other images are those of the reference set if there is one.

    Args:
        divergence: Distance between embeddings.
        rivals: Nearest other images that the attack aims at; 1 or more.
    """
    if not population.bank_images:
        _ = population.partners  # which says that one image alone has no other
    searched, climbed = Searched(population), population.fitted(differentiable(divergence))
    context = facing_neighbours(population, rows, climbed, rivals)

    def count(codes: Codes) -> Float[Tensor, "b"]:
        return searched.closer(rows, divergence, codes)[0]

    goal = Goal(context.encoder, context.pixels, Misretrieval(climbed)(context), lambda codes: count(codes) > 0)
    return Search(goal, ~count(population.codes[list(rows)]).isnan())


def impersonation(population: Population, rows: Sequence[int], divergence: Divergence, rivals: int) -> Search:
    """Event: the attacked image matches its partner, a random other image.

    No clean image outside the partner's group is closer to the attacked embedding than the partner is.

    Args:
        divergence: Distance between embeddings.
        rivals: Nearest other images that the attack takes into account; 1 or more.
    """
    divergence, climbed = population.fitted(divergence), population.fitted(differentiable(divergence))
    partners, clean = population.partners[list(rows)].tolist(), population.codes
    near = population.nearest(climbed, clean[partners], partners, rivals, population)
    # Those that may stand between: the image itself and the partner's own neighbours.
    between = torch.cat([clean[list(rows)][:, None], clean[near]], 1)
    targets, places = clean[partners][:, None].expand_as(between), torch.as_tensor(partners, device=clean.device)
    context, kin = population.context(rows), population.kin(partners, population)

    def objective(codes: Codes) -> Float[Tensor, "b"]:
        return margin(climbed, codes[:, None], between, targets).amin(1)

    def event(codes: Codes) -> Bool[Tensor, "b"]:
        known = divergence(codes.double(), clean[partners].double()).isfinite()
        return (closer_counts(divergence, codes, places, clean, kin) == 0) & known

    return Search(Goal(context.encoder, context.pixels, objective, event), _apart(population, rows, divergence))


def overlap(population: Population, rows: Sequence[int], divergence: Divergence, rivals: int) -> Search:
    """Event: the partner's attacked embedding is closer to the image than its own.

    Args:
        divergence: Distance between embeddings.
        rivals: Unused: the event is of two images alone.
    """
    divergence, climbed = population.fitted(divergence), population.fitted(differentiable(divergence))
    first, context = population.codes[list(rows)], population.context(rows)
    pixels = side_by_side(context.pixels, population.pixels(population.partners[list(rows)].tolist()))

    def objective(codes: Codes) -> Float[Tensor, "b"]:
        ahead, back = codes_of_both(codes)
        return climbed(ahead, first) - climbed(back, first)

    def event(codes: Codes) -> Bool[Tensor, "b"]:
        ahead, back = (code.double() for code in codes_of_both(codes))
        return divergence(back, first.double()) < divergence(ahead, first.double())

    goal = Goal(pair_encoder(context.encoder), pixels, objective, event)
    return Search(goal, _apart(population, rows, divergence), pairs=True)


EVENTS: Mapping[str, Callable[[Population, Sequence[int], Divergence, int], Search]] = {
    "retrieval": retrieval,
    "impersonation": impersonation,
    "overlap": overlap,
}


def _apart(population: Population, rows: Sequence[int], divergence: Divergence) -> Bool[Tensor, "b"]:
    """Return which images have a clean code apart from their partner's."""
    first, second = population.codes[list(rows)], population.codes[population.partners[list(rows)]]
    distance = divergence(first.double(), second.double())
    return distance.isfinite() & (distance > 0)


SMALLEST = "smallest radius at which it happens"
LEFT_OUT = f"{UNDEFINED}; or an exact copy, which is counted once; or all other images are copies of it"


Rows = Int[np.ndarray, "n"]


def neighbours(population: Population, rows: Sequence[int], divergence: Divergence) -> tuple[Rows, Rows]:
    """Row of each image, with copies as one, and row of its nearest clean neighbour.

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
    samples: int
    """Images to attack, chosen at random; 1 or more."""
    name = "radii"
    version = 2
    uses_bank = True
    uses_groups = True

    def forward_passes(self, population: Population) -> int:
        # Half of the images are those of pairs; of these, two collide.
        share = {"retrieval": 1.0, "impersonation": 0.5, "overlap": 1.0}[self.event]
        return round(share * search_forwards(self.attack))

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
        """Set up the search around the images at ``rows``."""
        return EVENTS[self.event](population, rows, self.divergence, self.rivals)

    def nearest(self, population: Population, rows: Sequence[int], search: Search) -> Nearest:
        """Search for the nearest images that show the event."""
        noise = population.run.noise([population.images.ids[row] for row in rows]).fork("radius", self.event)
        return nearest_events(search.goal, self.attack, search.ball(self.widest), noise)
