"""Smoothed retrieval: the image that most noisy copies match, and the ε up to which this majority stays.

Three events of the embedding of a noisy copy, looked up in an index of mean noisy embeddings:

    kept       its own entry is nearer than all others
    nearer(j)  its own entry is nearer than that of image j
    retrieved  without its own, the nearest entry is that of the image most copies are nearest to

The smoothed system does what more than half of the copies do. If an event has probability ``p > 1/2``, no perturbation of
l2 size below ``sigma Phi^-1(p)`` changes this majority (``smoothing/copies.py``). Center smoothing gives a second
certificate: if the bisector hyperplane of two entries is farther from the centre than ``3 R``, the largest movement of
the centre, the centre stays on its side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from holdfast.attacks.presets import label
from holdfast.core.divergences import Divergence
from holdfast.core.errors import HoldfastError
from holdfast.core.records import Claim, Curve, Estimate, Findings, Series
from holdfast.core.run_settings import Observed
from holdfast.core.statistics.summaries import series_of, summarise
from holdfast.measure.evaluation import Sizes
from holdfast.measure.observation import findings_of, population_warnings, radius_curves
from holdfast.measure.population import Population
from holdfast.smoothing.copies import least_share
from holdfast.smoothing.copies import radius as certified_radius
from holdfast.smoothing.index import Index, embedding, told_apart
from holdfast.smoothing.plan import (
    CENTRES_OF_HEAVY,
    CENTRES_OF_LARGE,
    SIZES,
    CentredEvaluation,
    check_slack,
    check_votes,
)

RETRIEVED = "having the same nearest other image, as the smoothed encoder sees it, after every change of this l2 size"
KEPT = "staying nearest to oneself, as the smoothed encoder sees it, after every change of this l2 size"
RISK = (
    "fraction of other images that some change of this l2 size carries the image past, as the smoothed encoder sees it"
)
RADIUS = "l2 radius within which the smoothed nearest other image stays the same"
OWN_RADIUS = "l2 radius within which the image stays nearest to itself, as the smoothed encoder sees it"
UNDEFINED = "all others are exact copies of the image"
UNCERTAIN = "images of which no majority is certain"
AGREES = "having the same nearest other image with noise and without"


@final
class SmoothedRetrieval(CentredEvaluation):
    """ℓ2 perturbation up to which smoothed retrieval keeps its answer, by votes.

    A second certificate follows from center smoothing.
    """

    sizes = Sizes(SIZES.quick, SIZES.full, CENTRES_OF_LARGE, CENTRES_OF_HEAVY)
    name = "smoothed-retrieval"
    version = 4
    uses_bank = True
    title = "Smoothed retrieval"
    meaning = (
        "A search service that looks up noisy copies of a picture and goes by the majority has certificates, whatever the "
        "encoder: up to the certified radius no change of the picture changes its answer. They hold for that smoothed "
        "service with the stated confidence, not for the encoder without noise."
    )
    headline = ("average_certified_retrieval_radius", "certified_retrieval", "certified_smoothed_breakaway_risk")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_slack(self.name, self.slack)
        check_votes(self.name, self.smoothing, self.radii, self.alpha_of_look / self.others)

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        if len(population.images) < 2 and not population.bank_images:
            raise HoldfastError("retrieval needs other images to tell an image from, but there is only one; add images")
        series, estimates, curves = list[Series](), list[Estimate](), list[Curve]()
        joint = self.observation()
        noisy = joint.of(self.noisy_codes, observed)
        for divergence in self.divergences:
            counts = self.noisy_codes.of_divergence(divergence, noisy)
            attacked = [joint.of(self._attacked(radius, divergence), observed)["kept"] for radius in self.radii]
            for some, numbers in (
                self._votes(population, rows, divergence, counts, attacked),
                self._centres(population, rows, divergence, counts),
            ):
                series += some
                estimates += numbers
            curves += self._curves(population, rows, divergence, counts)
        warnings = population_warnings(population, self.divergences)
        return findings_of(population, rows, series, estimates, warnings, (*radius_curves(estimates), *curves))

    def _votes(
        self,
        population: Population,
        rows: Sequence[int],
        divergence: Divergence,
        counts: Observed,
        attacked: list[Tensor],
    ) -> tuple[list[Series], list[Estimate]]:
        """Return the certificates of votes under one divergence, with the results of attacks."""
        case = {"noise": f"{self.sigma:g}", "divergence": str(divergence), "method": "votes"}
        defined = self._told_apart(population, rows)
        reach, none = self._radii(counts["retrieved"], counts["copies"]), ~defined.any(1)
        flags = (reach == 0).double(), counts["agrees"].double()
        kept_radii = self._radii(counts["kept"], counts["copies"])
        shown, kept, abstained, agrees = (values.masked_fill(none, torch.nan) for values in (reach, kept_radii, *flags))
        limits = {"limits": (0.0, self.farthest)}
        records = [
            *(
                series_of(name, case, radii, "l2 radius", Claim.LOWER, of, UNDEFINED).model_copy(update=limits)
                for name, radii, of in (
                    ("certified_retrieval_radius", shown, RADIUS),
                    ("certified_nearest_neighbour_radius", kept, OWN_RADIUS),
                )
            ),
            series_of("retrieval_abstentions", case, abstained, "yes or no", Claim.ESTIMATE, UNCERTAIN, UNDEFINED),
            series_of("smoothed_retrieval_agrees", case, agrees, "yes or no", Claim.ESTIMATE, AGREES, UNDEFINED),
        ]
        numbers = [
            self.certified_number(records[0], "mean", quantity="average_certified_retrieval_radius"),
            self.certified_number(records[0], "median", quantity="median_certified_retrieval_radius"),
            self.certified_number(records[1], "median", quantity="median_certified_nearest_neighbour_radius"),
            summarise(records[2], "share", "lower"),
            summarise(records[3], "share", "higher"),
        ]
        chance = least_share(
            counts["nearer"], counts["copies"][:, None], self.alpha_of_look / max(1, counts["nearer"].shape[1])
        )
        by_pair = certified_radius(chance, self.sigma).nan_to_num(nan=0.0)
        for k, radius in enumerate(self.radii):
            proved = self.conditions(radius, divergence, method="votes")
            attack_conditions = self.conditions(radius, divergence, attack=label(self.attack))
            some, more = self._certified(proved, reach > radius, kept_radii > radius, by_pair > radius, defined)
            survived = (attacked[k] > 0.5).double().masked_fill(none, torch.nan)
            name, yes_no = "attacked_smoothed_nearest_neighbour", "yes or no"
            survival = series_of(name, attack_conditions, survived, yes_no, Claim.UPPER, KEPT, UNDEFINED)
            records += [*some, survival]
            numbers += [*more, summarise(survival, "share", "higher", f"{name}_accuracy")]
        return records, numbers

    def _centres(
        self, population: Population, rows: Sequence[int], divergence: Divergence, counts: Observed
    ) -> tuple[list[Series], list[Estimate]]:
        """Return the certificates of center smoothing under one divergence."""
        embed, defined = embedding(population, divergence), self._told_apart(population, rows)
        margins = [
            bisector_margins(centre.double(), Index.of(population, row, embed, self.smoothing))
            for row, centre in zip(rows, counts["centre"], strict=True)
        ]
        ahead, other = (torch.stack(some) for some in zip(*margins, strict=True))
        records, numbers = list[Series](), list[Estimate]()
        for radius in self.radii:
            moved = self._certified_distance(radius, counts)
            case = self.conditions(radius, divergence, method="center smoothing")
            passed = ahead > moved[:, None].nan_to_num(nan=torch.inf)
            kept = (passed | ~defined).all(1)
            some, more = self._certified(case, other > moved, kept, passed, defined)
            records += some
            numbers += more
        return records, numbers

    def _certified(
        self, case: dict[str, str], retrieved: Tensor, kept: Tensor, passed: Tensor, defined: Bool[Tensor, "b m"]
    ) -> tuple[list[Series], list[Estimate]]:
        """Return the three certificates of one case, from what each is certified for."""
        none, unit = ~defined.any(1), "fraction of other images"
        risk = (1 - (passed & defined).sum(1) / defined.sum(1)).masked_fill(none, torch.nan)
        flags = {"certified_retrieval": (retrieved, RETRIEVED), "certified_smoothed_nearest_neighbour": (kept, KEPT)}
        records = [
            series_of(name, case, flag.double().masked_fill(none, torch.nan), "yes or no", Claim.LOWER, of, UNDEFINED)
            for name, (flag, of) in flags.items()
        ]
        records.append(series_of("certified_smoothed_breakaway", case, risk, unit, Claim.UPPER, RISK, UNDEFINED))
        return records, [
            self.certified_number(records[0], "share"),
            self.certified_number(records[1], "share", quantity="certified_smoothed_nearest_neighbour_accuracy"),
            self.certified_number(records[2], "mean", "lower", "certified_smoothed_breakaway_risk"),
        ]

    def _told_apart(self, population: Population, rows: Sequence[int]) -> Bool[Tensor, "b m"]:
        return torch.stack([told_apart(population, row, self.others) for row in rows])

    def _radii(self, count: Int[Tensor, "b"], draws: Int[Tensor, "b"]) -> Float[Tensor, "b"]:
        """Return the radii that votes certify; 0 where no majority is certain."""
        return certified_radius(least_share(count, draws, self.alpha_of_look), self.sigma).nan_to_num(nan=0.0)

    def _curves(
        self, population: Population, rows: Sequence[int], divergence: Divergence, counts: Observed
    ) -> list[Curve]:
        """Return the fraction of images certified by votes as a function of the radius."""
        some = [k for k, row in enumerate(rows) if told_apart(population, row, self.others).any()]
        names = {"retrieval_by_radius": "retrieved", "nearest_neighbour_by_radius": "kept"}
        radii = {name: self._radii(counts[event][some], counts["copies"][some]) for name, event in names.items()}
        label, distance = "fraction of images certified", str(divergence)
        return [self.survival_curve(name, label, reach, divergence=distance) for name, reach in radii.items()]


def bisector_margins(centre: Float[Tensor, "d"], index: Index) -> tuple[Float[Tensor, "m"], Float[Tensor, ""]]:
    """Distances of the centre from the bisector hyperplanes it must not cross.

    First those of its own entry and each other one, then the nearest of those of its nearest other entry and the rest.
    The margin of entries ``a`` and ``b`` is ``(|c - b|^2 - |c - a|^2) / (2 |a - b|)``: what is nearer to the centre
    than that is nearer to ``a`` than to ``b``.

    Args:
        centre: Centre of the noisy copies, shape (d,).
    """
    entries = index.entries.double()
    present = index.half.isfinite()
    squares = (centre - index.origin.double() - entries).square().sum(1).masked_fill(~present, torch.inf)
    lengths = torch.linalg.vector_norm(entries[1:], dim=1)
    ahead = ((squares[1:] - squares[0]) / (2 * lengths)).nan_to_num(nan=0.0, posinf=torch.inf)
    neighbour = 1 + int(squares[1:].argmin())
    apart = torch.linalg.vector_norm(entries - entries[neighbour], dim=1)
    rest = (squares - squares[neighbour]) / (2 * apart)
    rest[[0, neighbour]] = torch.inf
    return ahead, rest.nan_to_num(nan=0.0, posinf=torch.inf).min()
