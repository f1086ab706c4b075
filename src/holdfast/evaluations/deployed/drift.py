"""Drift: whether images come from where those of the bank came from, as far as the encoder can tell, without labels.

Two tests decide together, whose rate of false alarms is as stated at every sample size, both against a thousand random
assignments of the same codes: the energy distance (``twosample/energy``), which sees every difference of distributions and
has no width to choose, and a linear classifier, which finds a small shift among many features. Beside them, to say what has
changed: principal directions, the images outside what the bank covers, and the everyday edit that turns the bank into
something most like the new images. For folders that grow and are looked at every day, a test that may be looked at as often
as one likes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from holdfast.core.divergences import Divergence, L2Distance
from holdfast.core.encoder import Codes
from holdfast.core.errors import HoldfastError
from holdfast.core.noise import hashed_each
from holdfast.core.pictures import row
from holdfast.core.records import Findings, Picture, Question
from holdfast.core.run_settings import Observed
from holdfast.core.settings import require_positive, require_share
from holdfast.evaluations.deployed.closest_edit import explained
from holdfast.evaluations.deployed.moved import TwoSets, by_classifier, by_direction, by_energy, decided, moved
from holdfast.evaluations.deployed.new_images import beyond_support, sequential
from holdfast.evaluations.deployed.observations import EDITS, EditedBank, rungs
from holdfast.protocol.evaluation import Evaluation
from holdfast.protocol.population import Population
from holdfast.protocol.sizes import Sizes
from holdfast.protocol.warnings import population_warnings

CORRUPTIONS = (
    "gaussian-noise-c", "shot-noise-c", "impulse-noise-c", "defocus-blur-c", "glass-blur-c", "motion-blur-c",
    "zoom-blur-c", "snow-c", "frost-c", "fog-c", "brightness-c", "contrast-c", "elastic-transform-c", "pixelate-c",
    "jpeg-compression-c",
)  # fmt: skip
LEAST = 4
"""So many images, or groups of images, each set must have: two to learn from and two to ask about."""
OPERATIONS = 2e10
"""So many multiplications a second are planned with."""
SHOWN = 6


@final
@dataclass(frozen=True)
class Drift(Evaluation):
    """Whether images still come from where those of the bank came from, and what is new about them."""

    divergence: Divergence = L2Distance()
    permutations: int = 1000
    alpha: float = 0.05
    sequential: bool = False
    directions: int = 8
    false_discoveries: float = 0.1
    edits: tuple[str, ...] = EDITS + CORRUPTIONS
    samples: int = 32
    sizes = Sizes(full={"samples": 64})
    name = "drift"
    version = 1
    uses_bank = True
    needs_bank = True
    by_name = True
    robustness = False
    title = "Drift"
    meaning = (
        "The p-value of drift is the chance that images of one kind, divided at random, look as different to the encoder as "
        "these two sets do: up to 0.05, they have moved, and of sets that are alike 5% do so by chance. It does not say "
        "whether the encoder suffers from it."
    )
    headline = ("drift_p_value", "energy_distance")
    questions = (
        Question(
            place=140,
            text="Have the inputs moved?",
            quantities=("drift_p_value",),
            meaning="chance of a difference as large if nothing had changed",
        ),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "permutations", "directions")
        require_share(self, "alpha", "false_discoveries")
        rungs(self.name, self.edits)

    def observation(self) -> EditedBank:
        return EditedBank(rungs(self.name, self.edits), self.samples)

    def concluding(self, population: Population) -> float:
        count = len(population.images) + len(population.bank.images)
        return count**2 * (population.codes.shape[1] + self.permutations) / OPERATIONS

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        sets = self._sets(population)
        seed = population.run.seed
        weights = sets.assignments(self.permutations, seed)
        distance, by_distance = by_energy(sets, weights)
        area, by_area = by_classifier(sets, self.permutations, seed)
        p_value = decided((by_distance, by_area))
        beyond, series = beyond_support(sets, self.alpha, self.false_discoveries)
        capital, curve, at_last = sequential(sets, self.alpha, seed)
        verdict = at_last if self.sequential else moved(p_value, self.alpha)
        edited, closest = explained(
            self._points(observed["codes"].flatten(0, 1)).unflatten(0, (len(rows), -1)),
            sets.before[list(rows)],
            sets,
            self.observation().edits,
            verdict.status == "refuted",
        )
        verdict = verdict.model_copy(update={"witness": closest})
        tests = (distance, by_distance, area, by_area, *by_direction(sets, weights, self.directions))
        return Findings(
            ids=population.images.ids,
            series=series,
            estimates=(p_value, *tests, *beyond, *capital, *edited),
            curves=(curve,),
            verdicts=(verdict,),
            warnings=population_warnings(population, (self.divergence,)),
        )

    def illustrate(self, population: Population, rows: Sequence[int], findings: Findings) -> tuple[Picture, ...]:
        """Return the images farthest from all of the bank, each beside the one of the bank nearest to it."""
        sets = self._sets(population)
        far = np.argsort(-np.array(findings.series[0].values), kind="stable")[:SHOWN].tolist()
        pictures = []
        for image in far:
            nearest = int((sets.before - sets.after[image]).norm(dim=1).argmin())
            caption = (
                f"{population.images.ids[image]}, beside the nearest before: {population.bank.images.ids[nearest]}"
            )
            parts = {"after": population.pixels([image])[0], "nearest before": population.bank.pixels([nearest])[0]}
            pictures.append(row(caption, parts, population.encoder.domain))
        return tuple(picture for picture in pictures if picture is not None)

    def _sets(self, population: Population) -> TwoSets:
        bank = population.bank
        names = [_groups(each) for each in (bank, population)]
        for side, each, groups in zip(("before", "after"), (bank, population), names, strict=True):
            if (count := len(set(groups))) < LEAST:
                kind = "images" if each.images.groups is None else "groups of images"
                raise HoldfastError(
                    f"drift compares two sets of at least {LEAST} {kind} each, and {each.images.name} ({side}) has "
                    f"{count}; add images"
                )
        seed = population.run.seed
        halves = [
            half([f"{side}/{name}" for name in groups], seed)
            for side, groups in zip(("before", "after"), names, strict=True)
        ]
        return TwoSets(
            before=self._points(bank.codes.cpu()),
            after=self._points(population.codes.cpu()),
            before_ids=bank.images.ids,
            after_ids=population.images.ids,
            before_groups=tuple(names[0]),
            after_groups=tuple(names[1]),
            before_half=halves[0],
            after_half=halves[1],
        )

    def _points(self, codes: Codes) -> Codes:
        """Return where codes are compared by Euclidean distance."""
        points = None if self.divergence.learns else self.divergence.embed(codes.double())
        if points is None:
            raise HoldfastError(
                f"drift measures by Euclidean distances that know nothing of either set, which {self.divergence} does not "
                "give; use l2, unit_l2 or cosine"
            )
        if (codes.isfinite().all(1) & ~points.isfinite().all(1)).any():
            raise HoldfastError(f"a code is zero, which {self.divergence} gives no direction; use l2")
        return points


def _groups(population: Population) -> list[str]:
    images = population.images
    return list(images.ids if images.groups is None else map(str, images.groups))


def half(names: Sequence[str], seed: int) -> Bool[Tensor, "n"]:
    """Return which samples are in a random half: all of one name together, the same whatever their order.

    Example:
        >>> int(half(["a", "b", "c", "d"], seed=0).sum())
        2
    """
    distinct = sorted(set(names))
    order = np.argsort(hashed_each((seed, "half"), distinct), kind="stable")
    chosen = {distinct[place] for place in order[: (len(distinct) + 1) // 2].tolist()}
    return torch.tensor([name in chosen for name in names])
