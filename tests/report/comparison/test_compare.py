"""Comparisons: who is better on the same images, who is tied, and who may not be compared."""

from __future__ import annotations

from math import inf, nan

import numpy as np
import pytest

from holdfast.core.records import Claim, Estimate, Findings, Result
from holdfast.core.statistics.summaries import summarise
from holdfast.report.comparison.comparable import difference, groups, labels
from holdfast.report.comparison.compare import Comparison, compare
from tests.facts import says
from tests.report.synthetic import breakaway, everything, ids, result, series

CASE = {"ball": "linf:0.05", "attack": "u-pgd", "divergence": "l2"}
NOISE = np.random.default_rng(0).normal(size=200)


def measured(encoder, values, better="lower", statistic="mean", **changes) -> Result:
    own = series("risk", CASE, np.asarray(values, dtype=float), "radius", Claim.LOWER, "worst-case risk")
    findings = Findings(
        ids=changes.pop("ids", ids(len(values))),
        series=(own,),
        estimates=(summarise(own, statistic, better),),
        warnings=changes.pop("warnings", ()),
    )
    return result("made-up", encoder, findings, ("risk",), **changes)


def test_better_tied_and_worse_are_told_apart():
    # The shared noise is ten times the differences: only pairing can see them.
    results = [
        measured("low", NOISE),
        measured("level", NOISE + 0.001 * NOISE[::-1]),
        measured("high", NOISE + 0.1 + 0.01 * NOISE[::-1]),
    ]
    (contest,) = compare(results).contests
    assert contest.ranks == {"low": 1, "level": 1, "high": 3}
    assert contest.best == ("low", "level")
    outcomes = {(pair.a, pair.b): pair.difference.outcome for pair in contest.pairs}
    assert outcomes == {
        ("low", "level"): "tied",
        ("low", "high"): "a is better",
        ("level", "high"): "a is better",
    }
    assert contest.pairs[1].difference.value == pytest.approx(-0.1 - 0.01 * NOISE.mean())


def test_the_better_direction_turns_the_ranks():
    for statistic in ("mean", "median"):
        pair = [measured("low", NOISE, "higher", statistic), measured("high", NOISE + 0.1, "higher", statistic)]
        assert compare(pair).contests[0].ranks == {"low": 2, "high": 1}


def test_ranks_ignore_the_order_of_results():
    results, _ = everything()

    def ranks(comparison):
        return {(c.evaluation, c.quantity, tuple(sorted(c.conditions.items()))): c.ranks for c in comparison.contests}

    forward, backward = ranks(compare(results)), ranks(compare(results[::-1]))
    assert len({tuple(sorted(r.values())) for r in forward.values()}) > 1, "vacuous fixture"
    assert forward == backward


def test_quantities_without_a_better_direction_are_not_ranked():
    (contest,) = compare([measured("a", NOISE, "neither"), measured("b", NOISE + 1, "neither")]).contests
    assert contest.ranks == {}
    assert contest.pairs[0].difference.outcome == "a is lower"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"settings": {"steps": 50, "seed": 0}}, "steps none instead of 50"),
        ({"version": 2}, "evaluation version 1 instead of 2"),
    ],
)
def test_other_protocols_are_refused_by_name(changes, reason):
    comparison = compare([measured("a", NOISE), measured("b", NOISE, **changes)])
    assert comparison.contests == ()
    (refusal,) = comparison.refusals
    assert refusal.encoders == ("a", "b")
    assert reason in refusal.reason


def test_other_images_are_another_protocol():
    first = measured("a", NOISE)
    other = measured("b", NOISE, images=first.images.model_copy(update={"fingerprint": "ffff", "name": "cats"}))
    assert "cats (ffff)" in difference(other, first)
    assert len(groups([first, other])) == 2


def test_encoders_that_met_under_one_protocol_are_not_refused_for_another():
    both = [measured("a", NOISE), measured("b", NOISE), measured("b", NOISE, version=2)]
    assert not compare(both).refusals


def test_other_samples_are_refused():
    comparison = compare([measured("a", NOISE), measured("b", NOISE, ids=tuple(f"x{k}" for k in range(200)))])
    assert not comparison.contests
    assert "samples differ" in comparison.refusals[0].reason


def test_a_partial_result_is_compared_on_the_images_that_both_have():
    """Those are some of all, in the order of the images, and hard ones among them are hard for both."""
    kept = np.random.default_rng(1).permutation(200)[:60]
    kept.sort()
    names, worse = ids(200), NOISE + 0.1 + 0.01 * NOISE[::-1]
    partial = measured("b", worse[kept], ids=tuple(names[k] for k in kept), planned=200)
    (contest,) = compare([measured("a", NOISE), partial]).contests
    (pair,) = contest.pairs
    assert (pair.difference.n, pair.difference.outcome) == (60, "a is better")
    assert pair.difference.value == pytest.approx((NOISE - worse)[kept].mean())
    assert contest.ranks == {"a": 1, "b": 2}
    apart = measured("b", NOISE[:60], ids=tuple(f"x{k}" for k in range(60)), planned=200)
    assert "samples differ" in compare([measured("a", NOISE), apart]).refusals[0].reason


def test_of_a_cell_that_occurs_twice_the_fuller_counts():
    partial = measured("a", NOISE[:60], planned=200)
    (group,) = groups([partial, measured("a", NOISE), partial])
    assert [result.planned for result in group.results] == [None]


def test_undefined_values_take_no_part():
    results = [measured("a", NOISE), measured("b", NOISE + 1), measured("c", np.full(200, nan))]
    comparison = compare(results)
    (contest,) = comparison.contests
    assert [(pair.a, pair.b, pair.difference.outcome) for pair in contest.pairs] == [("a", "b", "a is better")]
    assert contest.ranks == {}, "c might be the best"
    (refusal,) = comparison.refusals
    assert refusal.encoders == ("c",)
    assert says(refusal.reason, "images are equal")


def whole(encoder: str, value: float, low: float, high: float, better="higher") -> Result:
    """A result whose one number has an interval but nothing per sample."""
    number = Estimate(
        quantity="area",
        value=value,
        low=low,
        high=high,
        n=100,
        method="made up",
        unit="share",
        claim=Claim.ESTIMATE,
        of="made up",
        better=better,
        statistic="whole",
    )
    return result("made-up", encoder, Findings(ids=ids(3), estimates=(number,)), ("area",))


def test_numbers_of_all_inputs_are_compared_by_their_intervals():
    three = [whole("a", 0.5, 0.45, 0.55), whole("b", 0.65, 0.6, 0.72), whole("c", 0.7, 0.65, 0.75)]
    (contest,) = compare(three).contests
    assert contest.ranks == {"a": 3, "b": 1, "c": 1}
    ab, ac, bc = (pair.difference for pair in contest.pairs)
    assert not any(apart.paired for apart in (ab, ac, bc))
    assert (ab.outcome, ac.outcome, bc.outcome) == ("b is better", "b is better", "tied")
    # Independent normal numbers: the ends add up in squares.
    assert (ac.low, ac.high) == pytest.approx((-0.2 - 0.05 * 2**0.5, -0.2 + 0.05 * 2**0.5))


def test_an_interval_without_an_end_is_not_compared():
    comparison = compare([whole("a", 0.5, 0.45, inf), whole("b", 0.6, 0.55, 0.65)])
    assert not comparison.contests
    assert "no interval" in comparison.refusals[0].reason


def test_infinite_values_have_no_mean_difference():
    values = NOISE.copy()
    values[0] = inf
    comparison = compare([measured("a", values), measured("b", values)])
    assert comparison.contests[0].pairs == ()
    assert comparison.contests[0].ranks == {}
    assert "infinite" in comparison.refusals[0].reason


def test_a_collapsed_encoder_wins_nothing():
    constant = measured("constant", np.zeros(200), warnings=("COLLAPSED: all images have the same code.",))
    honest = [measured("a", abs(NOISE) + 1), measured("b", abs(NOISE) + 2)]
    assert compare([*honest, constant]).contests[0].ranks == {"a": 1, "b": 2}
    blameless = constant.model_copy(update={"findings": constant.findings.model_copy(update={"warnings": ()})})
    assert compare([*honest, blameless]).contests[0].ranks["constant"] == 1, "vacuous fixture"


def based(result: Result) -> Result:
    encoder = result.encoder.model_copy(update={"source": "baseline:pixels?shape=1x8x8"})
    return result.model_copy(update={"encoder": encoder})


def test_a_baseline_is_compared_but_neither_holds_a_rank_nor_takes_one():
    pixels = based(measured("pixels", NOISE))
    others = [measured("a", NOISE + 1), measured("b", NOISE + 2)]
    comparison = compare([*others, pixels])
    (contest,) = comparison.contests
    assert comparison.baselines == ("pixels",)
    assert contest.ranks == {"a": 1, "b": 2}
    assert len(contest.pairs) == 3
    assert contest.beats_all("pixels")
    assert not contest.beats_all("a")
    middle = compare([*others, based(measured("pixels", NOISE + 1.5))]).contests[0]
    assert not middle.beats_all("pixels")


def test_baselines_alone_are_ranked_like_encoders():
    comparison = compare([based(measured("pixels", NOISE)), based(measured("other", NOISE + 1))])
    assert comparison.baselines == ()
    assert comparison.contests[0].ranks == {"pixels": 1, "other": 2}


def test_numbers_without_a_series_are_refused_by_name():
    comparison = compare([breakaway("digits-random"), breakaway("digits-robust")])
    assert not [contest for contest in comparison.contests if contest.quantity == "effective_rank"]
    assert {refusal.quantity for refusal in comparison.refusals} == {"effective_rank"}


def test_equal_names_are_told_apart_by_fingerprint():
    first, second = measured("net", NOISE), measured("net", NOISE + 1)
    second = second.model_copy(update={"encoder": second.encoder.model_copy(update={"fingerprint": "abcdef012345"})})
    assert list(labels([first, second]).values()) == ["net (000000)", "net (abcdef)"]
    assert set(compare([first, second]).contests[0].ranks) == {"net (000000)", "net (abcdef)"}


def test_a_cell_given_twice_counts_once():
    once, again = measured("a", NOISE), measured("a", NOISE)
    assert len(compare([once, again, measured("b", NOISE)]).contests[0].pairs) == 1


def test_comparisons_survive_their_json():
    comparison = compare(everything()[0])
    assert Comparison.model_validate_json(comparison.model_dump_json()) == comparison


def test_the_score_without_bias_is_compared_where_there_is_one():
    def scores(encoder, plain: float, extrapolated: float) -> Result:
        made = tuple(
            Estimate(
                quantity=quantity,
                value=value,
                low=value - 0.01,
                high=value + 0.01,
                n=9,
                method="",
                unit="",
                claim=Claim.ESTIMATE,
                of="",
                better="higher",
                statistic="whole",
            )
            for quantity, value in (("score", plain), ("score_extrapolated", extrapolated))
        )
        return result("made-up", encoder, Findings(ids=(), estimates=made), ("score_extrapolated",))

    (contest,) = compare([scores("many features", 0.8, 0.95), scores("few", 0.9, 0.9)]).contests
    assert contest.quantity == "score_extrapolated"
    assert contest.ranks == {"many features": 1, "few": 2}


def test_each_number_is_compared_by_its_own_statistic_confidence_and_series():
    """A few large values turn the mean, the rest the median; and one confidence sees what another does not."""
    few = np.where(np.arange(200) < 30, 50.0, 0.0)
    mean, median = (
        compare([measured("a", few, statistic=kind), measured("b", np.ones(200), statistic=kind)]).contests[0]
        for kind in ("mean", "median")
    )
    assert mean.best == ("b",)
    assert median.best == ("a",)
    # Differences of mean 0.02 and deviation 0.2: Student's interval is 0.02 +- 0.028 at 95%, and 0.02 +- 0.01 at 50%.
    apart = np.random.default_rng(3).normal(size=200)
    close = NOISE + 0.02 + 0.2 * (apart - apart.mean()) / apart.std()
    for confidence, count in ((0.95, 2), (0.5, 1)):
        pair = [measured("a", NOISE), measured("b", close)]
        told = [
            one.model_copy(
                update={
                    "findings": one.findings.model_copy(
                        update={
                            "estimates": tuple(
                                e.model_copy(update={"confidence": confidence}) for e in one.findings.estimates
                            )
                        }
                    )
                }
            )
            for one in pair
        ]
        assert len(compare(told).contests[0].best) == count


def test_a_number_is_compared_by_the_values_of_its_own_condition():
    """Encoder a is better in one ball and worse in the other, where both have values under the same name."""
    balls = ({**CASE, "ball": "linf:0.05"}, {**CASE, "ball": "linf:0.1"})

    def both(encoder: str, shifts: tuple[float, float]) -> Result:
        made = [
            series("risk", case, NOISE + shift, "radius", Claim.LOWER, "worst-case risk")
            for case, shift in zip(balls, shifts, strict=True)
        ]
        found = Findings(ids=ids(200), series=tuple(made), estimates=tuple(summarise(s, "mean", "lower") for s in made))
        return result("made-up", encoder, found, ("risk",))

    contests = compare([both("a", (0, 1)), both("b", (0.5, 0.5))]).contests
    assert {contest.conditions["ball"]: contest.best for contest in contests} == {
        "linf:0.05": ("a",),
        "linf:0.1": ("b",),
    }


def test_a_rank_counts_those_that_are_better_whatever_the_order():
    """Four in a row, of which two neighbours are level: 1, 2, 2 and 4."""
    level = NOISE + 1
    shown = {"first": NOISE, "second": level, "level": level + 1e-3 * NOISE[::-1], "last": NOISE + 2}
    for names in (list(shown), list(shown)[::-1]):
        (contest,) = compare([measured(name, shown[name]) for name in names]).contests
        assert contest.ranks == {"first": 1, "second": 2, "level": 2, "last": 4}


def test_nobody_has_a_rank_where_one_encoder_has_no_such_number_at_all():
    """Not an undefined number, but none: measured in another ball alone."""
    elsewhere = series("risk", {**CASE, "ball": "linf:0.3"}, NOISE, "radius", Claim.LOWER, "worst-case risk")
    other = result(
        "made-up",
        "c",
        Findings(ids=ids(200), series=(elsewhere,), estimates=(summarise(elsewhere, "mean", "lower"),)),
        ("risk",),
    )
    (contest,) = compare([measured("a", NOISE), measured("b", NOISE + 1), other]).contests
    assert (contest.pairs[0].difference.outcome, contest.ranks) == ("a is better", {})


def test_other_samples_are_refused_unless_a_budget_ended():
    """Half of the images in common: without a word of a budget, these are other samples."""
    moved = tuple(ids(300)[100:])
    assert not compare([measured("a", NOISE), measured("b", NOISE + 1, ids=moved)]).contests
    partial = compare([measured("a", NOISE), measured("b", NOISE + 1, ids=moved, planned=300)])
    assert partial.contests[0].pairs[0].difference.n == 100
