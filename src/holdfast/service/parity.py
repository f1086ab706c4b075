"""Findings about two embeddings of each image, and one of five verdicts on the two spaces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import fsum, inf, isnan
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from holdfast.core.divergences import Cosine, Divergence, L2Distance
from holdfast.core.errors import HoldfastError, OutOfRange
from holdfast.core.records import Claim, Conditions, Estimate, Findings, Question, Series, Verdict
from holdfast.core.statistics.groups import with_groups
from holdfast.core.statistics.summaries import Scale, chained_median, over_scale, series_of, summarise
from holdfast.measure.observation import estimate_of
from holdfast.service.parity_maps import (
    GROUPS,
    UNSEEN,
    Answers,
    Gallery,
    Kept,
    answers,
    linear_cka,
    low_end,
    unexplained,
)

# One of five verdicts on two spaces, each with what to do about it, from the numbers and their intervals.
#
# same to rounding    every image's code moved by at most ``ROUNDING`` of the median distance between images: use either
# same directions     every direction did, and norms differ: the index can stay for search by cosine
# same neighbours     ``NEIGHBOURS`` of the nearest images stay, in an index encoded again and in the old one: keep it
# a rotated copy      ``NEIGHBOURS`` stay in an index encoded again, and a shift, a scale and a rotation leave at most
#                     ``ROTATED`` of the held-out variance: encode the index again
# another space       none of these: encode the index again, and expect other answers
#
# By cosine *same to rounding* asks for directions, too: a code near zero may turn round within the distance of
# rounding.
#
# The numbers decide. Where numbers inside the intervals would give another verdict, the status is ``unknown``: more
# images might say otherwise.

ROUNDING = 0.02
NEIGHBOURS = 0.95
ROTATED = 0.02
LEAST_SHOWN = 1e-6
"""A smaller fraction of the variance is reported as less than this, because it is rounding."""
QUESTION = "Is it still the same space?"
SAME, DIRECTIONS, ALIKE = "same to rounding", "same directions", "same neighbours"
TURNED, OTHER = "a rotated copy", "another space"
ADVICE = {
    SAME: "either may stand for the other",
    DIRECTIONS: "search by cosine, or scale both sides to norm 1: the index can stay, its answers are the same",
    ALIKE: "the index can stay, its answers are nearly the same",
    TURNED: "encode the index again, its answers stay the same",
    OTHER: "encode the index again, and expect other answers",
}


@dataclass(frozen=True)
class Numbers:
    """Numbers of the verdict; None if widths differ."""

    within_rounding: Estimate | None
    same_direction: Estimate | None
    """None also where most images share one direction."""
    neighbours: Estimate
    mixed: Estimate | None
    rotated: Estimate
    norm_ratio: Estimate | None


def verdict(numbers: Numbers, divergence: str) -> Verdict:
    """Return the verdict as a record: ``witness`` holds it in words, and the thresholds.

    Args:
        numbers: what it rests on.
        divergence: what neighbours and distances go by, ``cosine`` or ``l2``.
    """
    word, reason = _decided(numbers, divergence)
    unsure = _unsure(numbers, word, divergence)
    return Verdict(
        question=QUESTION,
        status="unknown" if unsure else "refuted" if word == OTHER else "no violation found",
        reason=f"{word}: {reason}; {ADVICE[word]}{unsure}",
        witness={
            "verdict": word,
            "same to rounding": f"every embedding within {ROUNDING:g} of the median distance between images",
            "same directions": f"every embedding at norm 1 within {ROUNDING:g} of the median distance between images",
            "same neighbours": f"at least {NEIGHBOURS:g} of the nearest images kept, in the old index, too",
            "a rotated copy": f"at least {NEIGHBOURS:g} of the nearest images kept in an index encoded again, and at most "
            f"{ROTATED:g} of the held-out variance left by a rotation",
        },
    )


def _decided(numbers: Numbers, divergence: str) -> tuple[str, str]:
    rounding, directions, norms = numbers.within_rounding, numbers.same_direction, numbers.norm_ratio
    kept, mixed, left = numbers.neighbours, numbers.mixed, numbers.rotated
    alike = directions is not None and directions.value == 1
    if rounding is not None and rounding.value == 1 and (alike or divergence != "cosine"):
        return (
            SAME,
            f"all {rounding.n} embeddings are within {ROUNDING:.0%} of the distance between images{_of_all(rounding)}",
        )
    if directions is not None and norms is not None and alike:
        return DIRECTIONS, (
            f"all {directions.n} embeddings at norm 1 are within {ROUNDING:.0%} of the distance between images"
            f"{_of_all(directions)}, and norms are {shown(norms)} times those of the reference"
        )
    if mixed is not None and min(kept.value, mixed.value) >= NEIGHBOURS:
        return ALIKE, f"{shown(kept)} of the nearest images are kept, {shown(mixed)} in the old index"
    if kept.value >= NEIGHBOURS and left.value <= ROTATED:
        rest = f"less than {LEAST_SHOWN:g}" if left.value < LEAST_SHOWN else shown(left)
        return TURNED, f"a shift, a scale and a rotation explain all but {rest} of the held-out variance"
    return OTHER, f"{shown(kept)} of the nearest images are kept, and a rotation leaves {shown(left)} unexplained"


def _unsure(numbers: Numbers, word: str, divergence: str) -> str:
    """Return that more images would decide, where numbers inside the intervals give another verdict."""
    mixed = (None,) if numbers.mixed is None else _ends(numbers.mixed)
    possible = product(_ends(numbers.neighbours), mixed, _ends(numbers.rotated))
    others = (
        _decided(replace(numbers, neighbours=kept, mixed=old, rotated=left), divergence)[0]
        for kept, old, left in possible
    )
    if all(other == word for other in others):
        return ""
    if isnan(numbers.neighbours.low):
        return f"; there is {numbers.neighbours.method}, so that more images would decide"
    return "; the intervals allow another verdict, so that more images would decide"


def _ends(estimate: Estimate) -> tuple[Estimate, ...]:
    """Return the estimate at both ends of its interval; without an interval these are infinite."""
    low, high = (-inf, inf) if isnan(estimate.low) else (estimate.low, estimate.high)
    return tuple(estimate.model_copy(update={"value": value}) for value in (low, high))


def _of_all(estimate: Estimate) -> str:
    """Return the clause on all images, unseen ones included."""
    return "" if isnan(estimate.low) else f" (of all images at least {estimate.low:.1%} are)"


def shown(estimate: Estimate) -> str:
    """Return a value with its interval, if it has one."""
    ends = "" if isnan(estimate.low) else f" [{estimate.low:.3g}, {estimate.high:.3g}]"
    return f"{estimate.value:.3g}{ends}"


NAME, VERSION = "parity", 5
TITLE = "Parity"
MEANING = (
    "Whether the candidate still has the space of the reference: how far each embedding moved, beside the distance between "
    "images; which nearest images stay, in an index encoded again and in the old one (mixed); and what a rotation leaves of "
    "the difference on images that it was not fitted to. Numbers describe these images, not any attack on them."
)
HEADLINE = ("neighbours_kept", "neighbours_kept_at_80", "neighbours_kept_worst_10", "distance")
QUESTIONS = (Question(text=QUESTION, quantities=("neighbours_kept",), meaning="nearest images that stay the nearest"),)
MAPPED = 2000
"""Largest number of images, chosen at random, for maps and the CKA."""
DIVERGENCES: dict[str, Divergence] = {"cosine": Cosine(), "l2": L2Distance()}
"""Divergences of neighbours and distances; the default is cosine, as in most indexes and ``threshold``."""
ANSWERS = "answers of a search that stay"
INFLUENCE = "_influence"
"""End of the name of a series whose mean, and interval, are those of the series called so without it."""
MAPS = {"as it is": "as_it_is", "shift and scale": "scaled", "rotation": "rotated"}


@dataclass(frozen=True, eq=False)
class Pair:
    """Two embeddings of each image, by the reference and by the candidate, and the gallery that is searched."""

    ids: tuple[str, ...]
    reference: Float[Tensor, "n d"]
    candidate: Float[Tensor, "n e"]
    gallery: Gallery
    order: Int[Tensor, "n"]
    """All rows in random order."""
    among: str
    """Name of the gallery."""
    groups: tuple[str, ...] = ()
    divergence: Divergence = DIVERGENCES["cosine"]

    def embedded(self, divergence: Divergence) -> Pair:
        """Return the pair as ``divergence`` sees it: its l2 distances order images as the divergence does.

        Raises:
            HoldfastError: an embedding is zero and has no direction, by which ``divergence`` compares.
        """

        def seen(codes: Float[Tensor, "m f"], of: str) -> Float[Tensor, "m f"]:
            points = divergence.embed(codes)
            assert points is not None
            if zero := int(points.isnan().any(1).sum()):
                raise HoldfastError(
                    f"{zero} of {len(codes)} embeddings of the {of} are zero, so they have no cosine; compare by l2 "
                    "(--divergence l2)"
                )
            return points

        gallery = self.gallery
        return replace(
            self,
            reference=seen(self.reference, "reference"),
            candidate=seen(self.candidate, "candidate"),
            gallery=replace(
                gallery, reference=seen(gallery.reference, "reference"), candidate=seen(gallery.candidate, "candidate")
            ),
        )

    @property
    def same_width(self) -> bool:
        return self.reference.shape[1] == self.candidate.shape[1]

    def one_side_at_norm_1(self) -> bool:
        """Return whether all embeddings of one side alone have norm 1, up to rounding in half precision."""
        norms = (torch.linalg.vector_norm(codes.double(), dim=1) for codes in (self.reference, self.candidate))
        mine, theirs = (bool(((norm - 1).abs() < 1e-2).all()) for norm in norms)
        return mine != theirs

    def scale(self) -> Scale:
        """Return the median distance between the reference's embeddings of different images."""
        ring = self.reference[self.order].double()
        scale = chained_median(L2Distance()(ring, ring.roll(-1, 0)).numpy())
        if not scale.value > 0:
            raise HoldfastError(
                "the reference gives one embedding to most of these images, so nothing can be compared with the distance "
                "between images; name other images or another reference"
            )
        return scale


def distances(reference: Float[Tensor, "n d"], candidate: Float[Tensor, "n d"], scale: Scale) -> Float[Tensor, "n"]:
    """Distance that each embedding moved, relative to the median distance between images.

    Args:
        reference: Embeddings by the reference, shape (n, d).
        candidate: Embeddings by the candidate, shape (n, d).
        scale: Median distance between images.
    """
    return L2Distance()(reference.double(), candidate.double()) / scale.value


def findings(pair: Pair, k: int) -> tuple[Findings, Answers]:
    """Findings about a pair of embeddings of each image, and what a search answers.

    Raises:
        HoldfastError: There are too few images for ``k`` neighbours, or the reference is collapsed.
    """
    check_neighbours(k, len(pair.gallery.reference) - (not pair.gallery.is_bank))
    seen = pair.embedded(pair.divergence)
    scale, kept = seen.scale(), answers(seen.reference, seen.candidate, seen.gallery, k)
    series = [*(_moved(pair, seen, scale) if pair.same_width else ()), *_kept(seen, kept, k), *_unexplained(seen)]
    estimates = [*_estimates(series, scale), _cka(seen)]
    whole = Findings(ids=pair.ids, series=tuple(series), estimates=tuple(estimates), groups=pair.groups)
    conclusion = with_groups(whole)
    of = {each.quantity: each for each in conclusion.series}
    low_ends = [
        *low_end(of["neighbours_kept"], kept.neighbours, k, pair.groups),
        *(() if kept.mixed is None else low_end(of["neighbours_kept_mixed"], kept.mixed, k, pair.groups)),
    ]
    conclusion = conclusion.model_copy(update={"estimates": (*conclusion.estimates, *low_ends)})
    return conclusion.model_copy(update={"verdicts": (verdict(_numbers(conclusion), pair.divergence.name),)}), kept


def check_neighbours(k: int, count: int) -> None:
    """Check that there are enough images for ``k`` neighbours.

    Args:
        count: Images that may be neighbours.

    Raises:
        HoldfastError: There are too few.
    """
    if count < 1:
        raise HoldfastError("parity compares neighbours, and no image has another beside it; add images")
    if not 0 < k <= count:
        raise OutOfRange("k", k, f"in 1..{count}, the number of other images", fix="lower k or add images")


def _moved(pair: Pair, seen: Pair, scale: Scale) -> Iterator[Series]:
    """Yield how far each embedding moved: its direction, its norm, and both, in units of the ``scale`` of ``seen``."""
    a, b = pair.reference.double(), pair.candidate.double()
    before, after = torch.linalg.vector_norm(a, dim=1), torch.linalg.vector_norm(b, dim=1)
    cosine = ((a * b).sum(1) / (before * after)).clamp(-1, 1)
    of, why = "similarity of the two embeddings", "a zero embedding"
    similar = series_of("cosine", {}, cosine, "cosine", Claim.ESTIMATE, of, why)
    yield similar.model_copy(update={"limits": (-1.0, 1.0)})
    ratio, of = torch.where(before > 0, after / before, torch.nan), "norm of the candidate's embedding"
    yield series_of("norm_ratio", {}, ratio, "ratio", Claim.ESTIMATE, of, why)
    moved, unit = distances(seen.reference, seen.candidate, scale), "fraction of the clean distance"
    yield series_of("distance", {}, moved, unit, Claim.ESTIMATE, "how far embeddings moved", "")
    of = "embeddings that moved by rounding alone"
    within = (distances(a, b, pair.scale()) <= ROUNDING).double()
    yield series_of("within_rounding", {}, within, "yes or no", Claim.ESTIMATE, of, "")
    if (alike := _same_direction(a, b, pair.order)) is not None:
        of = "embeddings whose direction moved by rounding alone"
        yield series_of("same_direction", {}, alike, "yes or no", Claim.ESTIMATE, of, "")


def _same_direction(
    a: Float[Tensor, "n d"], b: Float[Tensor, "n d"], order: Int[Tensor, "n"]
) -> Float[Tensor, "n"] | None:
    """Return whether each direction moved by rounding alone; None if most directions of ``a`` are equal."""
    unit, other = (Cosine().embed(codes) for codes in (a, b))
    assert unit is not None
    assert other is not None
    scale = chained_median(L2Distance()(unit[order], unit[order].roll(-1, 0)).numpy())
    # A zero code has no direction: nan compares as false.
    return (distances(unit, other, scale) <= ROUNDING).double() if scale.value > 0 else None


def _kept(pair: Pair, kept: Answers, k: int) -> Iterator[Series]:
    """Yield what is kept of the answers of a search, and the influence of each image on it."""
    among = {"among": pair.among}
    columns: list[tuple[str, Conditions, Kept | None]] = [
        ("neighbours_kept", {"k": str(k), **among}, kept.neighbours),
        ("nearest_kept", among, kept.nearest),
        ("neighbours_kept_mixed", {"k": str(k), **among}, kept.mixed),
    ]
    for quantity, conditions, both in columns:
        if both is not None:
            yield from _with_influences(quantity, conditions, both, pair.gallery.is_bank)
    missing = "fewer than three images to put in order, or all equally far"
    series = series_of("ranks_kept", among, kept.ranks, "correlation", Claim.ESTIMATE, ANSWERS, missing)
    yield series.model_copy(update={"limits": (-1.0, 1.0)})


def _with_influences(quantity: str, conditions: Conditions, kept: Kept, is_bank: bool) -> tuple[Series, Series]:
    """Return what is kept of the answers of a search, and the influence of each image on its mean."""
    influences, limits = kept.influences, (0.0, 1.0)
    if not is_bank:
        limits = min(UNSEEN[0], float(influences.min())), max(UNSEEN[1], float(influences.max()))
    series, influence = (
        series_of(name, conditions, values, "share", Claim.ESTIMATE, ANSWERS, "")
        for name, values in ((quantity, kept.values), (f"{quantity}{INFLUENCE}", influences))
    )
    return series, influence.model_copy(update={"limits": limits})


def kept_estimate(quantity: str, conditions: Conditions, kept: Kept, is_bank: bool) -> Estimate:
    """Mean of what is kept of the answers of a search, with the interval of its influences.

    Args:
        kept: Fraction kept of the answers to each question.
        is_bank: True if another set than the questions is searched.
    """
    series, influence = _with_influences(quantity, conditions, kept, is_bank)
    estimate = _in_range(summarise(influence, "mean", "higher"), series)
    return estimate.model_copy(update={"quantity": quantity, "series": None, "statistic": "other"})


def _unexplained(pair: Pair) -> Iterator[Series]:
    """Yield what maps leave of the difference, of the images that they were judged on."""
    chosen = pair.order[:MAPPED]
    if len(chosen) < 4:
        raise HoldfastError(f"maps are fitted to half of the images and judged on the other; {len(chosen)} are too few")
    left = unexplained(pair.reference[chosen], pair.candidate[chosen], torch.arange(len(chosen)))

    def whole(values: Tensor) -> Tensor:
        every = torch.full((len(pair.ids),), torch.nan, dtype=torch.float64)
        every[chosen] = values
        return every

    missing = f"not among the {MAPPED} images that maps are fitted to, or no embedding around the mean"
    for name, attribute in MAPS.items():
        values = getattr(left, attribute)
        if values is not None:
            of, unit = "difference that a map leaves, held out", "part of the variance"
            yield series_of("unexplained", {"map": name}, whole(values), unit, Claim.ESTIMATE, of, missing)
    of = "variance in which the rotation is determined"
    yield series_of("determined", {"map": "rotation"}, whole(left.determined), "share", Claim.ESTIMATE, of, missing)


STATISTICS: dict[str, Literal["share", "median"]] = {
    "yes or no": "share",
    "cosine": "median",
    "correlation": "median",
    "ratio": "median",
}
"""Statistic of series by unit; others use the mean."""
BETTER: dict[str, Literal["lower", "neither"]] = {
    "unexplained": "lower",
    "determined": "neither",
    "norm_ratio": "neither",
}
"""Better direction of metrics, if not higher."""


def _estimates(series: Sequence[Series], scale: Scale) -> Iterator[Estimate]:
    """Yield one number for each series; that of what is kept has the interval of its influences."""
    known = {each.quantity: each for each in series}
    for each in series:
        if f"{each.quantity}{INFLUENCE}" in known:
            yield _in_range(summarise(known[f"{each.quantity}{INFLUENCE}"], "mean", "higher", each.quantity), each)
        elif each.quantity == "distance":
            yield over_scale(summarise(each, "median", "lower"), scale)
        elif not each.quantity.endswith(INFLUENCE):
            yield summarise(each, STATISTICS.get(each.unit, "mean"), BETTER.get(each.quantity, "higher"))


def _in_range(estimate: Estimate, kept: Series) -> Estimate:
    """Return ``estimate`` with the mean of ``kept``, free of the rounding of influences, and ends in [0, 1]."""
    value = fsum(kept.values) / len(kept.values)
    low, high = max(0.0, min(estimate.low, value)), min(1.0, max(estimate.high, value))
    return estimate.model_copy(update={"value": value, "low": low, "high": high})


def _cka(pair: Pair) -> Estimate:
    chosen = pair.order[:MAPPED]
    number = linear_cka(pair.reference, pair.candidate, chosen)
    reason = None
    if len(chosen) < 2 * GROUPS:
        reason = f"fewer than {2 * GROUPS} images leave it without an interval"
    elif isnan(number[1]):
        reason = "all images but one, or all outside one group of them, have the same embedding up to rounding"
    method, of = f"delete-a-group jackknife, {GROUPS} groups", "linear CKA without bias"
    return estimate_of("cka", number, len(chosen), method, "similarity", of, "higher", statistic="whole", reason=reason)


def _numbers(conclusion: Findings) -> Numbers:
    def of(quantity: str, name: str | None = None) -> Estimate | None:
        fitting = [
            each
            for each in conclusion.estimates
            if each.quantity == quantity and name in (None, each.conditions.get("map"))
        ]
        return fitting[0] if fitting else None

    neighbours, rotated = of("neighbours_kept"), of("unexplained", "rotation")
    assert neighbours is not None
    assert rotated is not None
    mixed, norms = of("neighbours_kept_mixed"), of("norm_ratio")
    return Numbers(of("within_rounding"), of("same_direction"), neighbours, mixed, rotated, norms)


def worst(conclusion: Findings, count: int) -> Sequence[int]:
    """Positions of the images that moved most or, at different widths, kept fewest neighbours."""
    series = {each.quantity: each.values for each in conclusion.series}
    values = series["distance"] if "distance" in series else tuple(-value for value in series["neighbours_kept"])
    return sorted(range(len(values)), key=lambda position: (-values[position], position))[:count]
