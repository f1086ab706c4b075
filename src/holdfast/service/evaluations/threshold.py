"""Threshold: the cosine similarity at which copies of an image match and other images do not.

For verification and deduplication two images match if ``s = cos(f(x), f(x')) >= t``. For each stated rate of false matches:

    threshold             the smallest t at which no more than that fraction of pairs of different images match
    false_match_rate      the fraction of pairs of *other* different images that match at it
    missed_copies         1[s(t(x), x) < t], a mean over edits and images: everyday copies that no longer match
    missed_under_attack   1[s(x^, x) < t], x^ attacked away from its own embedding
    matched_under_attack  1[s(x^, x') >= t], x^ attacked towards another image

One half of the images chooses thresholds and the other half tests them. Judged by the pairs that chose it, a threshold would
look better than it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

from jaxtyping import Float
from torch import Tensor

from holdfast.attacks.adaptive import AdaptiveAttack
from holdfast.attacks.base import Attack
from holdfast.core.balls import Ball, Linf
from holdfast.core.divergences import Cosine
from holdfast.core.encoder import Encoder
from holdfast.core.errors import HoldfastError
from holdfast.core.pictures import row
from holdfast.core.points.counting import nearest_rows
from holdfast.core.records import Claim, Conditions, Findings, Picture, Question, Series
from holdfast.core.run_settings import Observed
from holdfast.core.statistics.summaries import series_of, summarise
from holdfast.measure.evaluation import Evaluation, Sizes, of_embeddings_alone, without
from holdfast.measure.observation import Joint, findings_of, population_warnings
from holdfast.measure.population import Population
from holdfast.service.edited_codes import AttackedMatches, EditedImages, rivals
from holdfast.service.false_matches import (
    Cut,
    chosen_cuts,
    curves,
    false_match_rate,
    groups_of,
    pairs_of_halves,
    supported,
)
from holdfast.transforms.severity import EDITS, edits_named, families

UNDEFINED = "too few pairs of images for so small a rate of false matches, or no edit can change inputs of this encoder"
SHOWN = 3
Statistic = Literal["mean", "share"]


@final
@dataclass(frozen=True)
class Threshold(Evaluation):
    """Similarity threshold at which copies of an image match and other images do not.

    The evaluation also measures copies missed and images matched under attack at this threshold.
    """

    rate: float = 0.001
    """Rate of false matches for which a threshold is recommended."""
    rates: tuple[float, ...] = (0.01, 0.001, 0.0001)
    """Further rates, for the table."""
    edits: tuple[str, ...] = EDITS
    """Edits that make everyday copies, in all severities; corruptions in severities 1, 3 and 5."""
    balls: tuple[Ball, ...] = (Linf(8 / 255),)
    """Perturbation sets of the attacker."""
    attack: Attack = AdaptiveAttack()
    """Attack on the match."""
    samples: int = 200
    """Number of edited and attacked images."""
    sizes = Sizes()
    name = "threshold"
    version = 3
    changes = "edits"
    needs_changes = False
    pictured = 0
    partial = True
    fewest = 0
    by_name = True
    title = "Threshold"
    heading = "Threshold of {encoders} on {images}"
    meaning = (
        "At the threshold of a stated rate of false matches, the fraction of everyday copies that are missed, and what an "
        "attacker makes of it: copies made to be missed, and images made to match another. Stronger attacks may do more."
    )
    headline = (
        "recommended_threshold",
        "missed_copies",
        "false_match_rate",
        "missed_under_attack",
        "matched_under_attack",
    )
    questions = (
        Question(
            place=149,
            text="From which similarity on do two images match?",
            quantities=("recommended_threshold",),
            meaning="cosine similarity that a stated rate of pairs of different images exceed",
        ),
        Question(
            place=150,
            text="Do copies match where other images do not?",
            quantities=("missed_copies",),
            meaning="everyday copies missed at the threshold of a stated rate of false matches",
        ),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if wrong := [rate for rate in (self.rate, *self.rates) if not 0 < rate < 1]:
            raise HoldfastError(f"{self.name}: a rate of false matches lies between 0 and 1, got {wrong[0]}")
        edits_named(self.name, self.edits)

    def among(self, encoders: Sequence[Encoder]) -> Threshold:
        return of_embeddings_alone(self, encoders, "edits", "balls")

    def observation(self) -> Joint:
        attacks = (AttackedMatches(ball, self.attack, self.samples) for ball in self.balls)
        copies = (self._copies(),) if self.edits or not self.balls else ()  # without edits it looks at no image
        return Joint((*copies, *attacks))

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        observed = {name: values.cpu() for name, values in observed.items()}  # as all that is concluded here
        measuring, choosing = pairs_of_halves(population)
        cuts = chosen_cuts(choosing, sorted({self.rate, *self.rates}, reverse=True))
        copies = self._distances_of_copies(population, rows, observed)
        recommended = next(cut for cut in cuts if cut.rate == self.rate)
        series = list[Series]()
        estimates = [recommended.estimate.model_copy(update={"quantity": "recommended_threshold"})]
        for cut in cuts:
            estimates += [cut.estimate, false_match_rate(cut, measuring)]
            for part, statistic, quantity in self._missed(population, rows, observed, copies, cut):
                series.append(part)
                estimates.append(summarise(part, statistic, "lower", quantity))
        rate = next(e for e in estimates if e.quantity == "false_match_rate" and e.conditions == recommended.conditions)
        for name, span in families(self._copies().edits):
            values, conditions = recommended.beyond(copies[:, span]).mean(1), {**recommended.conditions, "edit": name}
            series.append(self._share("missed_by_edit", conditions, values))
            estimates.append(summarise(series[-1], "mean", "lower"))
        warnings, answer = population_warnings(population, (Cosine(),)), supported(recommended, rate)
        return findings_of(population, rows, series, estimates, warnings, curves(copies, measuring), [answer])

    def illustrate(
        self, population: Population, rows: Sequence[int], observed: Observed, findings: Findings
    ) -> tuple[Picture, ...]:
        """Show the different images that are most alike to the encoder; copies spoil the rates."""
        if population.encoder.codes_only:
            return ()
        originals, groups = sorted(set(population.first_copies.tolist())), groups_of(population)
        codes = population.codes[originals]
        # Enough images that one of another group is among them.
        largest = max(Counter(groups[image] for image in originals).values())
        nearest = nearest_rows(Cosine(), codes, codes, largest, exclude=range(len(codes))).cpu().tolist()
        pairs = dict[frozenset[int], float]()
        for place, near in enumerate(nearest):
            image = originals[place]
            other = next((each for each in near if groups[originals[each]] != groups[image]), None)
            if other is not None:
                apart = float(Cosine()(codes[[place]].double(), codes[[other]].double()))
                pairs[frozenset((image, originals[other]))] = apart
        pictures = []
        for pair, distance in sorted(pairs.items(), key=lambda item: item[1])[:SHOWN]:
            names = sorted(pair, key=lambda image: population.images.ids[image])
            parts = {population.images.ids[image]: population.pixels([image])[0] for image in names}
            caption = f"different images of similarity {1 - distance:.3f}"
            pictures.append(row(caption, parts, population.encoder.domain))
        return tuple(picture for picture in pictures if picture is not None)

    def _copies(self) -> EditedImages:
        return EditedImages(edits_named(self.name, self.edits) if self.edits else (), self.samples)

    def _distances_of_copies(
        self, population: Population, rows: Sequence[int], observed: Observed
    ) -> Float[Tensor, "n edits"]:
        """Return cosine divergences of edited images from their originals; nan for edits that cannot be made."""
        if not rows or not self.edits:
            return population.codes.cpu().double().new_zeros(len(rows), len(self._copies().edits))
        codes = self.observation().of(self._copies(), observed)["codes"].double()
        clean = population.codes[list(rows)].cpu().double()
        repeated = clean[:, None].expand_as(codes).flatten(0, 1)
        return Cosine()(codes.flatten(0, 1), repeated).unflatten(0, codes.shape[:2])

    def _missed(
        self,
        population: Population,
        rows: Sequence[int],
        observed: Observed,
        copies: Float[Tensor, "n edits"],
        cut: Cut,
    ) -> list[tuple[Series, Statistic, str]]:
        """Return the missed and matched pairs at a threshold: series, statistic and metric."""
        if population.encoder.codes_only:
            return []
        mask = ~copies.isnan().all(0)
        over = {**cut.conditions, **without(self, population.encoder)}
        missed = self._share("missed_copies", over, cut.beyond(copies[:, mask]).mean(1))
        parts: list[tuple[Series, Statistic, str]] = [(missed, "mean", "missed_copies")]
        if not rows:
            return parts
        clean, other = population.codes.cpu().double(), rivals(population, self.samples)
        partners = [other[row] for row in rows]
        for ball in self.balls:
            attacked = self.observation().of(AttackedMatches(ball, self.attack, self.samples), observed)
            conditions = {**cut.conditions, "ball": str(ball), "attack": str(self.attack)}
            away = cut.beyond(Cosine()(attacked["away"].double(), clean[list(rows)]))
            toward = 1 - cut.beyond(Cosine()(attacked["toward"].double(), clean[partners]))
            parts += [
                (self._attacked("missed_under_attack", conditions, away), "share", "missed_under_attack"),
                (self._attacked("matched_under_attack", conditions, toward), "share", "matched_under_attack"),
            ]
        return parts

    def _share(self, quantity: str, conditions: Conditions, values: Float[Tensor, "n"]) -> Series:
        of = "edited copies below the threshold"
        return series_of(quantity, conditions, values, "fraction of edits", Claim.ESTIMATE, of, UNDEFINED)

    def _attacked(self, quantity: str, conditions: Conditions, values: Float[Tensor, "n"]) -> Series:
        of = "rate under the best attack"
        return series_of(quantity, conditions, values, "yes or no", Claim.LOWER, of, UNDEFINED)
