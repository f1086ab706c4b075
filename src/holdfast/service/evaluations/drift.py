"""Drift: whether new images come from the distribution of the reference set, by their embeddings, without labels.

Two tests decide together, against a thousand random assignments of the same embeddings. Their false-alarm rate is as
stated at every sample size. The energy distance (``service/energy``) sees every difference of distributions and has no
width to choose. A linear classifier finds a small shift among many features. Three results describe the change: principal
directions, images outside the reference set, and the edit that brings the reference set closest to the new images. A
sequential test serves folders that grow; it may be read at any time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from holdfast.core.divergences import Divergence, L2Distance
from holdfast.core.encoder import Encoder
from holdfast.core.pictures import row
from holdfast.core.records import Findings, Picture, Question
from holdfast.core.run_settings import Observed
from holdfast.core.settings import check_fraction, check_positive
from holdfast.measure.evaluation import Evaluation, Sizes, of_embeddings_alone
from holdfast.measure.observation import population_warnings
from holdfast.measure.population import Population
from holdfast.service.drift_findings import Compared, beyond_support, by_direction
from holdfast.service.edited_codes import EditedBank, explained
from holdfast.service.energy import enough
from holdfast.service.two_sets import TESTS, check_euclidean, placed
from holdfast.transforms.severity import EDITS, FIFTEEN, edits_named

OPERATIONS = 2e10
"""Multiplications per second that the plan assumes."""
SHOWN = 6


@final
@dataclass(frozen=True)
class Drift(Evaluation):
    """Test whether new images still come from the distribution of the reference set.

    False alarms occur at the rate ``alpha`` at every sample size. Findings also say what is new about the images.
    """

    divergence: Divergence = L2Distance()
    """Distance between embeddings: `l2`, `unit_l2`, `cosine`, `rank`, `wasserstein` or `tokens`."""
    permutations: int = 1000
    """Least number of random divisions; small `alpha` draws up to 10 / `alpha`, at most 100,000."""
    alpha: float = 0.05
    """False-alarm rate."""
    sequential: bool = False
    """Whether the sequential test decides, which may be read after every image."""
    directions: int = 8
    """Number of principal directions tested."""
    false_discoveries: float = 0.1
    """Expected fraction of false ones among images declared new."""
    edits: tuple[str, ...] = EDITS + FIFTEEN
    """Edits and corruptions that may explain the change; corruptions in severities 1, 3 and 5."""
    samples: int = 16
    """Number of earlier images that are edited, 90 times each."""
    sizes = Sizes(full={"samples": 64})
    name = "drift"
    version = 4
    changes = "edits"
    needs_changes = False
    pictured = 0
    uses_bank = True
    compares_bank = True
    needs_bank = True
    partial = True
    fewest = 0
    by_name = True
    robustness = False
    title = "Drift"
    heading = "Drift from {bank} to {images}, as {encoders} sees them"
    bank_title = "Images before"
    meaning = (
        "The p-value of drift is the probability that images of one kind, divided at random, look as different to the "
        "encoder as these two sets do: up to 0.05, they have moved, and of sets that are alike 5% do so by chance. It "
        "does not say whether the encoder suffers from it."
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
        check_positive(self, "permutations", "directions")
        check_fraction(self, "alpha", "false_discoveries")
        edits_named(self.name, self.edits)
        check_euclidean(self.divergence)
        _ = self.drawn  # a level that no number of divisions reaches is refused at once

    @property
    def drawn(self) -> int:
        """Random divisions: ``permutations``, or more where ``alpha`` needs more."""
        return self.permutations if self.sequential else enough(self.permutations, self.alpha, TESTS)

    def among(self, encoders: Sequence[Encoder]) -> Drift:
        return of_embeddings_alone(self, encoders, "edits")

    def fits(self) -> tuple[Compared]:
        return (Compared(self.divergence, self.drawn),)

    def observation(self) -> EditedBank:
        edits = edits_named(self.name, self.edits) if self.edits else ()
        return EditedBank(edits, self.samples, *self.fits(), self.alpha, self.sequential)

    def concluding(self, population: Population) -> float:
        count = len(population.images) + len(population.bank.images)
        return count**2 * (population.codes.shape[1] + self.drawn) / OPERATIONS

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        compared = population.learned(*self.fits())
        sets, bet = compared.sets, compared.bet(self.alpha)
        beyond, series = beyond_support(sets, self.alpha, self.false_discoveries)
        verdict = compared.verdict(self.alpha, self.sequential)
        edits, divergence = self.observation().edits, population.fitted(self.divergence)
        points = sets.before.new_zeros(0, len(edits), sets.before.shape[1])
        if rows:
            points = placed(observed["codes"].cpu().flatten(0, 1), divergence).unflatten(0, (len(rows), len(edits)))
        edited, closest = explained(points, rows, compared, edits, verdict.status == "refuted")
        verdict = verdict.model_copy(update={"witness": {**verdict.witness, **closest}})
        directions = by_direction(sets, compared.weights, self.directions)
        return Findings(
            ids=population.images.ids,
            series=series,
            estimates=(compared.chance, *compared.tests, *directions, *beyond, bet.evidence, *edited),
            curves=(bet.curve,),
            verdicts=(verdict,),
            warnings=population_warnings(population, (self.divergence,)),
        )

    def illustrate(
        self, population: Population, rows: Sequence[int], observed: Observed, findings: Findings
    ) -> tuple[Picture, ...]:
        """Show the images farthest from the reference set, each beside its nearest reference."""
        if population.encoder.codes_only:
            return ()
        sets = population.learned(*self.fits()).sets
        far = np.argsort(-np.array(findings.series[0].values), kind="stable")[:SHOWN].tolist()
        pictures = []
        for image in far:
            near = int((sets.before - sets.after[image]).norm(dim=1).argmin())
            caption = f"{population.images.ids[image]}, beside the nearest before: {population.bank.images.ids[near]}"
            parts = {"after": population.pixels([image])[0], "nearest before": population.bank.pixels([near])[0]}
            pictures.append(row(caption, parts, population.encoder.domain))
        return tuple(picture for picture in pictures if picture is not None)
