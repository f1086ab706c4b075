"""Effect of the common corruptions on embeddings and retrieval, without labels: fifteen kinds, in five severities.

The metrics are those of everyday edits (``common_perturbations``), with kinds of corruption (Hendrycks and Dietterich 2019,
https://arxiv.org/abs/1903.12261) as families. Each corruption is applied alone, never on top of another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from holdfast.core.divergences import Cosine, Divergence
from holdfast.core.errors import HoldfastError, OutOfRange
from holdfast.core.records import Findings, Picture, Question
from holdfast.core.run_settings import Observed
from holdfast.corruptions.corrupted_codes import SEVERITIES, check_kinds, in_severities
from holdfast.corruptions.edit_findings import Ladders, Words, concluded, pictures
from holdfast.corruptions.edits import Edited
from holdfast.measure.evaluation import Evaluation, Sizes, without
from holdfast.measure.population import Population
from holdfast.transforms.severity import FIFTEEN


@final
@dataclass(frozen=True)
class CommonCorruptions(Evaluation):
    """Effect of common corruptions on embeddings and retrieval, and the worst of them.

    Paper: Hendrycks and Dietterich 2019, https://arxiv.org/abs/1903.12261.
    """

    kinds: tuple[str, ...] = FIFTEEN
    """Corruptions of ImageNet-C; its four extra ones can be named too."""
    severities: tuple[int, ...] = SEVERITIES
    """Severities, 1 (mild) to 5, ascending."""
    divergences: tuple[Divergence, ...] = (Cosine(),)
    """Distances between embeddings; retrieval uses the first."""
    k: int = 10
    """Neighbours in the overlap of neighbours."""
    samples: int = 1000
    """Number of corrupted images."""
    reference: int = 2000
    """Number of images whose pairs give the scale of quantiles."""
    sizes = Sizes(
        quick={"samples": 60},
        full={"samples": 2000, "reference": 10_000},
        large={"samples": 12, "severities": [1, 3, 5]},
        heavy={"samples": 30, "severities": [2, 4]},
    )
    name = "common-corruptions"
    version = 2
    changes = "kinds"
    partial = True
    pictured = 0
    uses_bank = True
    title = "Common corruptions"
    meaning = (
        "The fraction of corruptions survived is how often a corrupted image is still closer to its own original than "
        "to any other image, over all kinds and severities alike. The worst corruption is the one that carries each "
        "image farthest of those tried: others may be worse."
    )
    headline = ("corruptions_survived", "worst_corruption_accuracy")
    questions = (
        Question(
            place=60,
            text="Does it survive noise, blur, weather and compression?",
            quantities=("corruptions_survived",),
            meaning="corrupted images still closest to their original",
            select="first",
        ),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_kinds(self.name, self.kinds)
        if list(self.severities) != sorted(self.severities):
            raise HoldfastError(f"{self.name}.severities must ascend, got {', '.join(map(str, self.severities))}")
        if self.k < 1:
            raise OutOfRange(f"{self.name}.k", self.k, "at least 1 neighbour")

    def observation(self) -> Edited:
        corrupted = tuple(corruption for name in self.kinds for corruption in in_severities(name, self.severities))
        return Edited(corrupted, 1, self.divergences, self.k, self.samples)

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        over = without(self, population.encoder)
        return concluded(Ladders(self.observation(), population, observed, self.reference, self._words(), over), rows)

    def illustrate(
        self, population: Population, rows: Sequence[int], observed: Observed, findings: Findings
    ) -> tuple[Picture, ...]:
        """Show all severities of the corruption that moves an image farthest, and the worst one."""
        return pictures(self.observation(), population, rows, observed, findings, self._words())

    def _words(self) -> Words:
        levels = tuple(map(str, self.severities))
        return Words("corruption", "corruptions", "corrupted", "severity", "severities", "severity", levels)
