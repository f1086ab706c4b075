"""What two sets of codes say of each other once all assignments were tried, and whether that shows a change."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.core.divergences import Divergence
from holdfast.core.errors import HoldfastError
from holdfast.core.records import Estimate, Verdict
from holdfast.core.run_settings import Observed
from holdfast.evaluations.deployed.moved import by_classifier, by_energy, decided, moved
from holdfast.evaluations.deployed.new_images import Bet, sequential
from holdfast.evaluations.deployed.two_sets import TwoSets, two_sets
from holdfast.protocol.fits import Fit, LooksAt
from holdfast.protocol.population import Population
from holdfast.twosample import classifier
from holdfast.twosample.energy import Energies, distance, energies
from holdfast.twosample.linearised import Linearised
from holdfast.twosample.permutations import Weights


@dataclass(frozen=True)
class Comparison:
    """Both sets, and the statistics of the tests that decide."""

    sets: TwoSets
    energies: Energies
    scores: Float[np.ndarray, "q"]
    """What the classifier says of each point that it did not learn from."""
    rank_statistics: Float[Tensor, "r"]
    """Its statistic under each assignment of these."""
    permutations: int
    seed: int

    @cached_property
    def weights(self) -> Weights:
        """The random assignments of all points."""
        return self.sets.assignments(self.permutations, self.seed)

    @cached_property
    def distance(self) -> Linearised:
        """The energy distance, 0 on average if nothing has changed."""
        sets = self.sets
        before, after = sets.points.split([len(sets.before), len(sets.after)])
        between = (before[sets.copies[:, 0]] - after[sets.copies[:, 1]]).norm(dim=1)
        return distance(self.energies, sets.first, between)

    @property
    def distance_shown(self) -> bool:
        """Whether the interval of the energy distance leaves 0 out."""
        return self.tests[0].low > 0

    @cached_property
    def tests(self) -> tuple[Estimate, Estimate, Estimate, Estimate]:
        """Energy distance and its p-value, area under the classifier's curve and its p-value."""
        energy = by_energy(self.energies, self.distance, self.sets)
        return *energy, *by_classifier(self.sets, self.scores, self.rank_statistics)

    @cached_property
    def chance(self) -> Estimate:
        """The p-value of both tests together."""
        _, energy, _, area = self.tests
        return decided((energy, area))

    def bet(self, alpha: float) -> Bet:
        """Return what the test finds that may be looked at after every image."""
        return sequential(self.sets, alpha, self.seed)

    def verdict(self, alpha: float, after_every_image: bool) -> Verdict:
        """Return whether a change is shown: *refuted* if it is.

        Raises:
            HoldfastError: the sets are so small that no change could ever be shown.
        """
        if after_every_image:
            return self.bet(alpha).verdict
        if (least := self.sets.smallest_p_value) > alpha:
            sizes = " and ".join(str(len(set(part))) for part in (self.sets.before_groups, self.sets.after_groups))
            raise HoldfastError(
                f"drift: {sizes} images or groups of them allow no p-value below {least:.2g}, so alpha {alpha:g} can "
                "never be reached. Add images, or use a larger alpha"
            )
        return moved(self.chance, alpha)


def compare(sets: TwoSets, permutations: int, seed: int) -> Comparison:
    """Return the statistics of both tests, in one pass over all pairs of points for all assignments."""
    scores = classifier.scores(sets.points, sets.first, sets.learning)
    ranks = classifier.rank_statistics(scores, sets.assignments(permutations, seed, ~sets.learning))
    distances = energies(sets.points, sets.assignments(permutations, seed))
    return Comparison(sets, distances, scores, ranks, permutations, seed)


@final
@dataclass(frozen=True)
class Compared(Fit[Comparison]):
    """The statistics of both tests under every assignment: the expensive part of drift once codes are known."""

    divergence: Divergence
    permutations: int
    name = "two-samples"
    version = 1
    uses_groups = True
    uses_bank = True

    def looks_at(self) -> LooksAt:
        return "codes"

    def learn(self, population: Population) -> Observed:
        comparison = compare(two_sets(population, self.divergence), self.permutations, population.run.seed)
        return {
            "statistics": comparison.energies.statistics,
            "influence": comparison.energies.influence,
            "spread": torch.tensor(comparison.energies.spread, dtype=torch.float64),
            "scores": torch.as_tensor(comparison.scores),
            "rank_statistics": comparison.rank_statistics,
        }

    def restore(self, population: Population, learned: Observed) -> Comparison:
        return Comparison(
            two_sets(population, self.divergence),
            Energies(learned["statistics"].cpu(), learned["influence"].cpu(), float(learned["spread"])),
            learned["scores"].cpu().numpy(),
            learned["rank_statistics"].cpu(),
            self.permutations,
            population.run.seed,
        )
