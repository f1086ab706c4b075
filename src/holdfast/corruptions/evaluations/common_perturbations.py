"""Effect of everyday edits on embeddings and retrieval: nine families of edits, each from mild to severe.

For an edit ``t`` of image ``x``, each per image:

    universal_quantile           P over pairs (x', x'') of D [ d(f(x'), f(x'')) <= d(f(t(x)), f(x)) ]
    nearest_neighbour_accuracy   no other image is closer to f(t(x)) than f(x) is
    neighbour_overlap            |N_k(f(t(x))) & N_k(f(x))| / |N_k(f(t(x))) | N_k(f(x))|, the k nearest others
    divergence_radius            of the smallest ball around the unit embeddings of the whole family

Beside these averages, a greedy search finds the worst single edit and the worst sequence of edits (``edits``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from holdfast.core.divergences import Cosine, Divergence, L2Distance
from holdfast.core.errors import OutOfRange
from holdfast.core.records import Findings, Picture, Question
from holdfast.core.run_settings import Observed
from holdfast.corruptions.edit_findings import Ladders, Words, concluded, pictures
from holdfast.corruptions.edits import Edited
from holdfast.measure.evaluation import Evaluation, Sizes, without
from holdfast.measure.population import Population
from holdfast.transforms.severity import EDITS, edits_named

WORDS = Words("edit", "edits", "edited", "rung", "rungs", "rung of the ladder")


@final
@dataclass(frozen=True)
class CommonPerturbations(Evaluation):
    """Effect of everyday edits on embeddings and retrieval, and the worst of them."""

    edits: tuple[str, ...] = EDITS
    """Families of edits with all their severities, or single transforms as in `gamma:0.5`."""
    divergences: tuple[Divergence, ...] = (Cosine(), L2Distance())
    """Distances between embeddings; retrieval and the search use the first."""
    k: int = 10
    """Neighbours in the overlap of neighbours."""
    chained: int = 2
    """Longest chain of edits that the search for the worst edit tries."""
    samples: int = 1000
    """Number of edited images."""
    reference: int = 2000
    """Number of images whose pairs give the scale of quantiles."""
    sizes = Sizes(
        quick={"samples": 60},
        full={"samples": 2000, "chained": 3, "reference": 10_000},
        large={"samples": 20, "chained": 1},
        heavy={"samples": 30},
    )
    name = "common-perturbations"
    version = 2
    changes = "edits"
    partial = True
    pictured = 0
    uses_bank = True
    title = "Everyday edits"
    meaning = (
        "The fraction of edits survived is how often an edited image is still closer to its own original than to any other "
        "image, over all families and strengths alike. The worst edit is what a search over single edits and edits in a "
        "row found for each image: the true worst is at least as bad."
    )
    headline = ("edits_survived", "worst_edit_accuracy")
    questions = (
        Question(
            place=50,
            text="Does it survive everyday edits?",
            quantities=("edits_survived",),
            meaning="edited images still closest to their original",
            select="first",
        ),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        edits_named(self.name, self.edits)
        if self.k < 1:
            raise OutOfRange(f"{self.name}.k", self.k, "at least 1 neighbour")
        if self.chained < 1:
            raise OutOfRange(f"{self.name}.chained", self.chained, "at least 1 edit")

    def observation(self) -> Edited:
        return Edited(edits_named(self.name, self.edits), self.chained, self.divergences, self.k, self.samples)

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        over = without(self, population.encoder)
        return concluded(Ladders(self.observation(), population, observed, self.reference, WORDS, over), rows)

    def illustrate(
        self, population: Population, rows: Sequence[int], observed: Observed, findings: Findings
    ) -> tuple[Picture, ...]:
        """Show all severities of the family that moves an image farthest, and its worst edits."""
        return pictures(self.observation(), population, rows, observed, findings, WORDS)
