"""Thresholds of encoders whose similarities are known."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from math import isnan, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.statistics import coverage_pairs
from scipy import stats
from torch import nn

import holdfast as hf
from holdfast.attacks.presets import NAMED
from holdfast.cli.terminal import show_result
from holdfast.core.divergences import Cosine
from holdfast.core.errors import HoldfastError
from holdfast.core.noise import Noise
from holdfast.core.run_settings import RunSettings
from holdfast.core.statistics.intervals import share_interval
from holdfast.measure.population import Population
from holdfast.report.contents import Contents
from holdfast.report.page.page import render
from holdfast.service.edited_codes import rivals
from holdfast.service.evaluations.threshold import Threshold
from holdfast.service.false_matches import Pairs, chosen_cuts, false_match_rate, halves, pairs_of_halves, supported
from tests.facts import says
from tests.samples import builtin, digits, efficientnet

IMAGES = digits(80)


def pairs_of(codes: torch.Tensor) -> torch.Tensor:
    """Similarities of all pairs, one at a time."""
    return torch.stack(
        [torch.cosine_similarity(codes[i], codes[j], dim=0) for i in range(len(codes)) for j in range(i)]
    )


def test_rates_are_those_of_all_pairs() -> None:
    population = Population(builtin(), IMAGES, RunSettings())
    measuring, choosing = (population.codes[half].double() for half in halves(population))
    assert (len(measuring), len(choosing)) == (40, 40)
    others, pairs = pairs_of_halves(population)
    (cut,) = chosen_cuts(pairs, [0.05])
    chosen = pairs_of(choosing)
    matching = chosen >= 1 - cut.distance - 1e-12
    assert int(matching.sum()) == int(0.05 * len(chosen))
    rate = false_match_rate(cut, others)
    assert rate.value == pytest.approx(float((pairs_of(measuring) >= 1 - cut.distance).double().mean()))
    assert rate.low < rate.value < rate.high
    assert cut.estimate.low <= cut.estimate.value <= cut.estimate.high


def test_copies_are_missed_as_one_counts_them() -> None:
    thresholds = hf.threshold(
        builtin(),
        IMAGES,
        rate=0.05,
        rates=[0.2],
        edits="brightness",
        attack="pgd:steps=2",
        samples=12,
        progress=False,
        workers=None,
    )
    result, cut = thresholds.result, thresholds.recommended
    rows = [IMAGES.ids.index(name) for name in result.findings.ids]
    encoder, missed = builtin(), []
    for row in rows:
        alone = IMAGES[[row]]
        clean = encoder(alone.pixels([0]))
        rungs = hf.Transform.read("brightness:0.1").family()[1:]
        codes = torch.cat([encoder(hf.transformed(alone, rung).pixels([0])) for rung in rungs])
        missed.append(float((1 - Cosine()(codes, clean.expand_as(codes)) < cut).double().mean()))
    series = next(s for s in result.series if s.quantity == "missed_copies" and s.conditions["rate"] == "0.05")
    assert list(series.values) == pytest.approx(missed)
    assert 0 < sum(missed) < len(missed), "vacuous"
    recommended, chosen = result.estimate("recommended_threshold"), result.estimate("threshold", rate="0.05")
    assert result.estimates[0] == recommended
    assert (recommended.value, recommended.low, recommended.high) == (chosen.value, chosen.low, chosen.high)
    assert recommended.high <= 1
    (screen,) = Contents([result], []).first_screens
    assert [row.kind.quantities for row in screen.rows] == [("recommended_threshold",), ("missed_copies",)]
    assert screen.rows[0].cells[0].values == (cut,)
    assert "<h1>Threshold of digits-contrastive on" in render(Contents([result], []))
    strict, loose = (result.estimate("missed_copies", rate=rate).value for rate in ("0.05", "0.2"))
    assert strict >= loose


def test_a_wider_ball_gives_an_attacker_no_less() -> None:
    evaluation = Threshold(
        rate=0.05,
        rates=(0.05,),
        edits=("noise",),
        balls=(hf.Linf(0.02), hf.Linf(0.4)),
        attack=hf.AdaptiveAttack(restarts=1, steps=10),
        samples=20,
    )
    result = evaluation(builtin(), IMAGES)
    for quantity in ("missed_under_attack", "matched_under_attack"):
        narrow, wide = (result.estimate(quantity, ball=ball).value for ball in ("linf:0.02", "linf:0.4"))
        assert narrow < wide, quantity


def test_too_few_pairs_are_told_apart_from_none() -> None:
    thresholds = hf.threshold(
        builtin(),
        IMAGES[range(20)],
        rate=0.001,
        edits="noise",
        attack="pgd:steps=1",
        samples=4,
        progress=False,
        workers=None,
    )
    assert isnan(thresholds.recommended)
    assert "at least 1000 pairs" in thresholds.result.findings.verdicts[0].reason
    assert thresholds.result.findings.verdicts[0].status == "unknown"


@pytest.mark.parametrize(
    ("low", "value", "high", "status"),
    [
        (0.0, 0.004, 0.01, "no violation found"),
        (0.0, 0.004, 0.02, "unknown"),
        (0.009, 0.02, 0.04, "unknown"),
        (0.011, 0.02, 0.04, "refuted"),
        (nan, nan, nan, "unknown"),
    ],
)
def test_a_rate_inside_its_interval_is_not_decided(low: float, value: float, high: float, status: str) -> None:
    pairs = Pairs.of(torch.randn(20, 3, generator=torch.Generator().manual_seed(0)), [str(k) for k in range(20)])
    (cut,) = chosen_cuts(pairs, [0.05])
    measured = false_match_rate(cut, pairs).model_copy(update={"low": low, "value": value, "high": high})
    assert supported(replace(cut, rate=0.01), measured).status == status


def test_pairs_count_by_the_stronger_dependence_at_the_rate_and_at_twice_it() -> None:
    """By hand: the six nearest pairs of twelve images are disjoint, the next six share one image."""
    ends = [(2 * k, 2 * k + 1) for k in range(6)] + [(0, k) for k in range(2, 8)]
    ends += [pair for pair in combinations(range(12), 2) if pair not in ends]
    first, second = np.array(ends).T
    pairs = Pairs(np.linspace(0, 1, 66), first, second, np.ones(12, dtype=np.int64))
    assert pairs.effect(12) > 1.5 * pairs.effect(6), "vacuous"
    effective = 66 / pairs.effect(12) / (stats.t.ppf(0.975, 11) / stats.norm.ppf(0.975)) ** 2
    assert pairs.interval(6, 6 / 66) == pytest.approx(share_interval(6 / 66 * effective, effective), rel=1e-5)


def test_copies_are_no_other_images() -> None:
    """Else a folder with duplicates would have false matches at every threshold."""
    twice = hf.Images(IMAGES.pixels(range(40)).repeat(2, 1, 1, 1))
    measuring, choosing = pairs_of_halves(Population(builtin(), twice, RunSettings()))
    assert measuring.sizes.sum() + choosing.sizes.sum() == 40


def grouped(images: int, members: int) -> hf.Images:
    """Digits, each in some members that differ by little."""
    pixels = IMAGES.pixels(range(images)).repeat_interleave(members, 0)
    noise = Noise.of(0, list(map(str, range(len(pixels))))).normal((1, 8, 8))
    names = [f"{k // members}_{k % members}" for k in range(len(pixels))]
    return hf.Images((pixels + 0.02 * noise).clamp(0, 1), names, groups=[name.partition("_")[0] for name in names])


def test_pairs_within_a_group_are_no_false_matches() -> None:
    images = grouped(24, 4)
    population = Population(builtin(), images, RunSettings())
    assert images.groups is not None
    rows = halves(population)
    sides = [{images.groups[row] for row in half} for half in rows]
    assert not sides[0] & sides[1], "groups that chose a threshold do not judge it"
    for half, pairs in zip(rows, pairs_of_halves(population), strict=True):
        expected = [
            1 - float(torch.cosine_similarity(population.codes[i], population.codes[j], dim=0))
            for i in half for j in half if i < j and images.groups[i] != images.groups[j]
        ]  # fmt: skip
        assert pairs.distances.tolist() == pytest.approx(sorted(expected), abs=1e-5)
    chosen = rivals(population, 10)
    assert len(chosen) == 10
    assert all(images.groups[own] != images.groups[other] for own, other in chosen.items())
    how: dict[str, Any] = {"rate": 0.01, "edits": "noise", "attack": "pgd:steps=1", "samples": 10, "progress": False}
    together = hf.threshold(builtin(), images, workers=None, **how)
    alone = hf.threshold(builtin(), hf.Images(images.pixels(range(96)), images.ids), workers=None, **how)
    assert together.recommended < alone.recommended - 0.01, "near copies would raise it"
    methods = {estimate.method for estimate in together.result.estimates if estimate.quantity == "false_match_rate"}
    assert not any(says(method, "independent") for method in methods)
    assert {picture.labels[0].partition("_")[0] == picture.labels[1].partition("_")[0]
            for picture in together.result.findings.pictures} == {False}  # fmt: skip


def test_the_variance_is_that_of_pairs_that_share_groups() -> None:
    """The definition, one pair of pairs at a time."""
    groups = ["a", "a", "b", "c", "c", "c", "d", "e", "f", "f"]
    codes = Noise.of(0, list(map(str, range(10)))).normal((3,), torch.float64)
    pairs = Pairs.of(codes, groups)
    assert len(pairs) == 45 - 1 - 3 - 1
    count = 12
    share, total = count / len(pairs), 0.0
    ends = [{a, b} for a, b in zip(pairs.first.tolist(), pairs.second.tolist(), strict=True)]
    left = [(place < count) - share for place in range(len(pairs))]
    for one, mine in zip(ends, left, strict=True):
        total += sum(mine * other for two, other in zip(ends, left, strict=True) if one & two)
    expected = total * 6 / 5 / (share * (1 - share) * len(pairs))
    assert pairs.effect(count) == pytest.approx(max(1, expected))


def test_false_matches_are_known_within_a_few_times_their_rate() -> None:
    """Bounds that allow for any image not seen are 15 times as wide as this rate or more, and never say that it is kept."""
    rng = np.random.default_rng(0)
    pairs = coverage_pairs.drawn("even", 150, rng)
    low, high = pairs.interval(round(0.001 * len(pairs)), 0.001)
    assert 0 < low < 0.001 < high < 0.003
    assert pairs.interval(0, 0.001)[1] < 0.001


@pytest.mark.slow
@pytest.mark.parametrize(("images", "rate"), [(100, 0.01), (300, 0.001)])
@pytest.mark.parametrize("law", ["even", "clusters", "hubs", "heavy"])
def test_intervals_of_thresholds_and_false_matches_cover(law: str, images: int, rate: float) -> None:
    draws = 80
    found = coverage_pairs.row(law, images, rate, draws)
    least = 0.92 - 3 * (0.92 * 0.08 / draws) ** 0.5
    assert found.threshold >= least, found
    assert found.matches >= least, found
    assert found.wrong <= 0.05
    assert found.ratio < 6


@pytest.mark.slow
def test_crops_of_one_photograph_do_not_decide(reference: Path) -> None:
    encoder = efficientnet(reference)
    how: dict[str, Any] = {"rate": 0.01, "edits": "jpeg,brightness", "attack": "pgd:steps=1", "samples": 8}
    alone, together = (
        hf.threshold(encoder, f"{reference / 'real' / 'photos'}{groups}", progress=False, **how).recommended
        for groups in ("", "?groups=prefix")
    )
    assert together < alone - 0.1


def test_what_has_no_threshold_is_refused_in_a_sentence() -> None:
    with pytest.raises(HoldfastError, match="at least 8 different images"):
        hf.threshold(builtin(), IMAGES[range(5)], attack="pgd:steps=1", edits="noise", progress=False, workers=None)
    with pytest.raises(HoldfastError, match="between 0 and 1"):
        hf.threshold(builtin(), IMAGES, rates=[2.0], progress=False, workers=None)
    with pytest.raises(HoldfastError, match="between 0 and 1, got 0"):
        hf.threshold(builtin(), IMAGES, rate=0.0, progress=False, workers=None)


def test_zero_codes_match_nothing() -> None:
    layer = nn.Linear(64, 3, bias=False)
    nn.init.zeros_(layer.weight)
    encoder = hf.Encoder(nn.Sequential(nn.Flatten(), layer), "zero", hf.Domain((1, 8, 8)))
    result = Threshold(rate=0.1, rates=(0.1,), edits=("noise",), attack=hf.GradientAttack(steps=1), samples=4)(
        encoder, IMAGES
    )
    assert isnan(result.estimate("false_match_rate", rate="0.1").value)


def test_a_reason_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    evaluation = Threshold(rate=0.1, rates=(0.1, 0.0001), edits=("noise",), attack=NAMED["u-fgsm"], samples=8)
    result = evaluation(builtin(), IMAGES)
    show_result(result)
    printed = " ".join(capsys.readouterr().out.split())
    reason = "a rate of 0.0001 needs at least 10000 pairs of images"
    assert printed.count(reason) == 1
    assert f"threshold and false match rate undefined: {reason}" in printed
    assert sum(estimate.reason == reason for estimate in result.estimates) == 2, "vacuous: it is a reason once"
    (notes,) = (table.notes for table in Contents([result], []).tables)
    assert len({note.partition(": ")[2] for note in notes}) == len(notes)
