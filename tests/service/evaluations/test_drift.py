"""What drift says of sets whose difference is known."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.statistics.explained import EDITS, counted
from benchmarks.statistics.false_alarms import UNCHANGED, Changed, alarms, alike, chance_of_recurring, two_sets
from torch import nn

import holdfast as hf
from holdfast.cli.terminal import show_result
from holdfast.commands.drift import Drifted
from holdfast.core.errors import HoldfastError
from holdfast.core.noise import Noise
from holdfast.core.records import Estimate
from holdfast.measure.population import Population
from holdfast.report.gate import check, parse
from holdfast.service.drift_findings import beyond_support, compare, decided, moved, sequential
from holdfast.service.edited_codes import explained
from tests import facts
from tests.facts import says
from tests.samples import builtin, digits, efficientnet

IMAGES = digits(160)
ORDER = Noise.of(0, IMAGES.ids).uniform(()).argsort().tolist()
BEFORE, AFTER = IMAGES[ORDER[:80]], IMAGES[ORDER[80:]]
"""At random: other writers wrote the digits that come later, every second digit is even, and the test sees both."""
PIXELS = hf.Encoder(nn.Flatten(), "pixels", hf.Domain((1, 8, 8)))


def found(after: hf.Images, encoder: hf.Encoder | None = None, edits: str = "contrast,noise", **how: object) -> Drifted:
    chosen: dict[str, object] = {"permutations": 199, "workers": None, "progress": False, **how}
    return hf.drift(BEFORE, after, encoder or builtin(), edits=edits, **chosen)  # type: ignore[arg-type]


def test_other_digits_have_not_moved_and_dimmed_ones_have() -> None:
    same, dimmed = found(AFTER), found(hf.transformed(AFTER, hf.Transform.read("contrast:0.25")))
    assert not same.moved
    assert dimmed.moved
    assert same.result.estimate("drift_p_value").value > 0.05 > dimmed.result.estimate("drift_p_value").value
    assert dimmed.result.findings.verdicts[0].witness["closest edit"].startswith("contrast")
    best = dimmed.result.estimate("change_explained", edit="contrast:0.25")
    assert best.value > 0.8
    assert best.low < best.value < best.high
    assert np.isnan([e.value for e in same.result.estimates if e.quantity == "change_explained"]).all()


def test_a_change_that_is_hardly_there_has_no_share() -> None:
    """An edit takes away what it likes of a distance near zero: of nearly equal sets every number is a share."""
    changed = Changed.of("builtin:digits-contrastive", "builtin:digits", ["contrast:0.4", "contrast:0.6"])
    before, after, edited = (changed.codes[name].double()[:60] for name in (UNCHANGED, "contrast:0.6", "contrast:0.4"))
    edits, rows = [hf.Transform.read("contrast:0.4")], list(range(16))

    def share(codes: torch.Tensor, closer: torch.Tensor) -> tuple[Estimate, dict[str, str]]:
        comparison = compare(two_sets(before, codes, 0), 39, 0)
        (estimate,), closest = explained(closer[:16, None], rows, comparison, edits, shown=True)
        return estimate, closest

    estimate, closest = share(before + 0.05 * (after - before), edited)
    assert np.isnan(estimate.value)
    assert says(estimate.reason or "", "chance")
    assert set(closest) == {"closest edit"}, "the edit goes too far"
    estimate, closest = share(edited, edited)  # among those after are the very images edited
    assert 0.5 < estimate.low < estimate.value == estimate.high == 1
    assert "above 100% by chance" in estimate.method
    assert closest == {"closest edit": "contrast:0.4", "explains of the change": f"100% ({estimate.low:.0%} to 100%)"}
    estimate, closest = share(edited, before + 0.5 * (edited - before))
    assert 0 < estimate.low < estimate.value < 1
    assert "chance" not in estimate.method
    (estimate,), _ = explained(edited[:2, None], [0, 1], compare(two_sets(before, after, 0), 39, 0), edits, shown=True)
    assert "fewer than 3 images" in (estimate.reason or "")


def test_the_closest_edit_is_named_without_a_share() -> None:
    """The order of edits needs no share: here both sets are so small that there is none."""
    change, tried = (
        "contrast:0.6",
        ["contrast:0.6", "contrast:0.4", "blur:0.5", "blur:1.0", "rotation:5.0", "rotation:10.0"],
    )
    changed = Changed.of("builtin:digits-contrastive", "builtin:digits", tried)
    clean, after = (changed.codes[name].double() for name in (UNCHANGED, change))
    named, without = Counter[str](), 0
    for trial in range(8):
        order = Noise.of(trial, changed.ids).uniform(()).argsort()[:40]
        comparison = compare(two_sets(clean[order[:20]], after[order[20:]], trial), 39, 0)
        edited = torch.stack([changed.codes[edit][order[:16]].double() for edit in tried], dim=1)
        shares, closest = explained(edited, range(16), comparison, [hf.Transform.read(edit) for edit in tried], True)
        named[closest["closest edit"].partition(":")[0]] += 1
        without += bool(np.isnan([share.value for share in shares]).all())
    assert without > 0, "vacuous: there always is a share"
    assert named[change.partition(":")[0]] >= 6


def test_images_that_are_in_both_sets_stay_in_both() -> None:
    """If one set alone lost them, sets of one law would differ by them."""
    shared = [*range(5), *range(80, 155)]
    result = found(IMAGES[ORDER][shared]).result
    assert result.bank is not None
    assert (result.images.count, result.bank.count) == (80, 80)
    assert result.estimate("energy_distance").n == 160
    assert sorted(chance_of_recurring(60, 0.3, trial, 99) for trial in range(3))[1] > 0.05


@pytest.mark.slow
def test_images_that_recur_raise_no_alarms() -> None:
    chances = [chance_of_recurring(100, 0.2, trial, 99) for trial in range(60)]
    assert sum(chance <= 0.05 for chance in chances) <= 9, "the chance of more in 60 at 5% is 1 in 1,000"
    assert sum(chance <= 0.5 for chance in chances) > 15, "vacuous: p-values are always large"


def test_an_evaluation_that_searches_the_bank_cannot_share_it_with_drift() -> None:
    asked = {"only": ["drift", "breakaway"], "progress": False, "settings": {"drift": {"edits": ["noise"]}}}
    with facts.refused(HoldfastError, "its own"):
        hf.evaluate(PIXELS, IMAGES[ORDER][range(40)], bank=IMAGES[ORDER][range(30, 70)], **asked)  # type: ignore[arg-type]


def test_new_kinds_of_images_are_found_and_shown() -> None:
    pixels = AFTER.pixels(range(80))
    pixels[:30] = 1 - pixels[:30]
    drifted = found(hf.Images(pixels, AFTER.ids), PIXELS)
    new = next(series for series in drifted.result.series if series.quantity == "new_image")
    assert sum(new.values[:30]) == 30
    assert sum(new.values[30:]) <= 10
    assert drifted.result.estimate("outside_share").value == pytest.approx(30 / 80, abs=0.1)
    pictures = drifted.result.findings.pictures
    assert {picture.caption.split(",")[0] for picture in pictures} <= set(AFTER.ids[:30])
    assert {picture.labels for picture in pictures} == {("after", "nearest before")}
    assert found(hf.Images(pixels, AFTER.ids), PIXELS, sequential=True).moved


def test_a_folder_that_grows_is_read_in_the_order_of_its_names() -> None:
    codes = Noise.of(0, [str(k) for k in range(120)]).normal((3,), torch.float64)
    codes[90:] += 5
    sets = two_sets(codes[:60], codes[60:], 0)
    names = tuple(f"{k:02}" for k in range(60))
    whole = sequential(replace(sets, after_ids=names), 0.05, 0)
    turned = replace(sets, after=sets.after.flip(0), after_ids=names[::-1])
    assert sequential(turned, 0.05, 0).curve == whole.curve
    assert sequential(replace(sets, after_ids=names[::-1]), 0.05, 0).curve != whole.curve, (
        "vacuous: the order changes nothing"
    )
    earlier = replace(
        sets, after=sets.after[:40], after_ids=names[:40], after_groups=names[:40], after_half=sets.after_half[:40]
    )
    assert sequential(earlier, 0.05, 0).curve.y == pytest.approx(whole.curve.y[:40])
    assert whole.verdict.status == "refuted"


def test_a_limit_holds_for_both_sets() -> None:
    result = found(AFTER, limit=20).result
    assert result.images.count == 20
    assert result.bank is not None
    assert result.bank.count == 20


def test_edits_are_made_only_where_there_is_a_change_to_explain(monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[int]()
    encode = Population.encode

    def counted(self: Population, pixels: torch.Tensor) -> torch.Tensor:
        made.append(len(pixels))
        return encode(self, pixels)

    monkeypatch.setattr(Population, "encode", counted)
    assert not found(AFTER).moved
    assert not made
    assert found(hf.transformed(AFTER, hf.Transform.read("contrast:0.25"))).moved
    assert made


def test_a_gate_reads_what_drift_leaves(tmp_path: Path) -> None:
    drifted = found(hf.transformed(AFTER, hf.Transform.read("contrast:0.25")), out=tmp_path)
    (answer,) = hf.check(tmp_path, "drift_p_value>=0.05")
    assert not answer.passed
    assert drifted.run.report() == tmp_path / "report.html"
    heading = f"<h1>Drift from {BEFORE.name} to {drifted.result.images.name}, as digits-contrastive sees them</h1>"
    assert heading in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("gate", "needed"),
    [
        # 2 / (r + 1) must lie below the bound where equality keeps it.
        ("drift_p_value>=0.0005", "4000"),
        ("drift_p_value>0.0005", "3999"),
        ("drift_p_value<=0.0005", "3999"),
        ("energy_p_value>=0.001", "1000"),
        ("direction_p_value>=0.001", "8000"),
    ],
)
def test_a_gate_that_no_p_value_breaks_is_refused(dimmed: Path, gate: str, needed: str) -> None:
    with pytest.raises(HoldfastError, match=rf"\b{needed}\b") as refused:
        hf.check(dimmed, gate)
    assert "199" in str(refused.value)


def test_a_gate_that_enough_divisions_can_break_is_answered(dimmed: Path) -> None:
    for gate in ("drift_p_value>=0.02", "drift_p_value>0.01"):
        (answer,) = hf.check(dimmed, gate)
        assert not answer.passed
    with pytest.raises(HoldfastError, match="200"):
        hf.check(dimmed, "drift_p_value>=0.01")
    # The interval of the p-value reaches 0, so that a strict check can fail.
    (answer,) = hf.check(dimmed, "drift_p_value>=0.0005", strict=True)
    assert not answer.passed


def test_so_few_images_need_more_of_them() -> None:
    """Of 5 and 5, all divisions allow 2 / 252 by the energy distance, twice that with the other test."""
    sets = two_sets(torch.randn(5, 3), torch.randn(5, 3) + 1e3, 0)
    comparison = compare(sets, 9999, 0)
    resolution = comparison.chance.resolution
    assert resolution is not None
    assert (resolution.tests, resolution.draws) == (2, 9999)
    assert resolution.least == pytest.approx(4 / 252)
    like = found(AFTER, permutations=19, edits="noise")
    findings = like.result.findings.model_copy(update={"estimates": (comparison.chance,)})
    few = like.result.model_copy(update={"findings": findings})
    with pytest.raises(HoldfastError, match=r"two sets of 6\b"):  # 4 / 924
        check(parse("drift_p_value>=0.01"), [few])


def test_a_gate_that_no_evidence_breaks_is_refused() -> None:
    codes = Noise.of(0, [str(k) for k in range(70)]).normal((3,), torch.float64)
    bets = [sequential(two_sets(codes[:60], codes[60 : 60 + count] + 1e3, 0), 0.1, 0) for count in (5, 10)]
    like = found(AFTER, permutations=19, edits="noise").result
    results = [
        like.model_copy(update={"findings": like.findings.model_copy(update={"estimates": (bet.evidence,)})})
        for bet in bets
    ]
    assert all(bet.evidence.value <= (bet.evidence.most or 0) * (1 + 1e-9) for bet in bets)
    with pytest.raises(HoldfastError, match="sequential_evidence"):
        check(parse("sequential_evidence<=10"), results[:1])
    (answer,) = check(parse("sequential_evidence<=10"), results[1:])
    assert not answer.passed


@pytest.fixture(scope="module")
def dimmed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A change that both tests find, by 199 random divisions."""
    folder = tmp_path_factory.mktemp("drift") / "out"
    found(hf.transformed(AFTER, hf.Transform.read("contrast:0.25")), out=folder, edits="noise")
    return folder


def test_no_suite_asks_for_it() -> None:
    run = hf.evaluate(
        PIXELS, AFTER, bank=BEFORE, only="drift", progress=False, settings={"drift": {"edits": ["noise"]}}
    )
    assert [result.evaluation for result in run] == ["drift"]
    from holdfast.run.request import Request, planned

    assert not {"drift", "threshold"} & {each.name for each in planned(Request(bank="builtin:digits"))}


@pytest.mark.parametrize(
    ("after", "how", "said"),
    [
        (AFTER[range(3)], {}, "at least 4 images each"),
        (BEFORE, {}, "the same 80 images"),
        (AFTER, {"divergence": "l1"}, "use one of l2, cosine, unit_l2, rank, wasserstein"),
        (AFTER, {"divergence": "whitened"}, "use one of l2, cosine, unit_l2, rank, wasserstein"),
        (AFTER, {"divergence": "tokens:divergence=l2"}, "use one of l2, cosine, unit_l2, rank, wasserstein"),
        (
            AFTER,
            {"divergence": "nope"},
            "'nope'. Known: cosine, l2, rank, tokens, unit_l2, wasserstein.$",
        ),
        (AFTER, {"edits": "fogg"}, "'fogg'"),
        (AFTER, {"alpha": 5.0}, "alpha must"),
        (AFTER, {"permutations": 0}, "permutations must"),
        (AFTER, {"alpha": 1e-9}, "random divisions"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_a_sentence(
    after: hf.Images, how: dict[str, object], said: str, recwarn: pytest.WarningsRecorder
) -> None:
    with pytest.raises(HoldfastError, match=said):
        found(after, **how)  # type: ignore[arg-type]


@pytest.mark.parametrize("alpha", [0.05, 0.01])
@pytest.mark.parametrize("sizes", [(4, 4), (5, 5), (5, 6), (8, 8)])
def test_a_test_that_can_never_alarm_is_refused(sizes: tuple[int, int], alpha: float) -> None:
    """The farthest change there is: either it is shown, or no change could be and that is said."""
    before, after = (Noise.of(k, list(map(str, range(size)))).normal((3,)) for k, size in enumerate(sizes))
    sets = two_sets(before, after + 1e3, 0)
    comparison = compare(sets, 999, 0)
    never = sets.smallest_p_value > alpha
    assert never == ((sizes, alpha) in {((4, 4), 0.05), ((4, 4), 0.01), ((5, 5), 0.01)})
    if never:
        with pytest.raises(HoldfastError, match="never be reached"):
            comparison.verdict(alpha, after_every_image=False)
        assert comparison.chance.value > alpha
    else:
        assert comparison.verdict(alpha, after_every_image=False).status == "refuted"


def test_the_smaller_of_two_p_values_counts_twice() -> None:
    """Two tests look: by hand 2 * 0.03, with the ends of its interval; a probability is no more than 1."""
    sets = two_sets(torch.ones(20, 3), torch.ones(20, 3), 0)
    _, energy, _, area = compare(sets, 99, 0).tests
    small, large = ({"value": p, "low": p - 0.01, "high": p + 0.01} for p in (0.03, 0.6))
    for one, other in ((small, large), (large, small)):
        both = decided((energy.model_copy(update=one), area.model_copy(update=other)))
        assert (both.value, both.low, both.high) == pytest.approx((0.06, 0.04, 0.08))
        assert moved(both, 0.05).status == "no violation found"
        assert moved(both, 0.07).status == "refuted"
    neither = decided((energy.model_copy(update=large), area.model_copy(update=large)))
    assert (neither.value, neither.low, neither.high) == (1, 1, 1)


def test_a_small_level_draws_enough_divisions_to_be_reached() -> None:
    dimmed = hf.transformed(AFTER, hf.Transform.read("contrast:0.25"))
    assert found(dimmed, alpha=0.001, permutations=1000).moved
    assert not found(AFTER, alpha=0.001).moved


def test_a_bet_on_few_images_has_not_decided() -> None:
    codes = Noise.of(0, [str(k) for k in range(70)]).normal((3,), torch.float64)
    sets = [two_sets(codes[:60], codes[60 : 60 + count] + 1e3, 0) for count in (5, 10)]
    assert [sequential(each, 0.1, 0).verdict.status for each in sets] == ["unknown", "refuted"]


def test_no_image_is_declared_new_by_too_few_before() -> None:
    codes = Noise.of(0, [str(k) for k in range(40)]).normal((3,), torch.float64)
    few, enough = (two_sets(codes[:count], codes[20:] + 1e3, 0) for count in (16, 20))
    (_, share), _ = beyond_support(few, 0.05, 0.1)
    assert np.isnan([share.value, share.low, share.high]).all()
    assert share.reason
    (_, share), _ = beyond_support(enough, 0.05, 0.1)
    assert share.value == 1


def test_what_a_spent_budget_left_out_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    result = found(AFTER, PIXELS, limit=8, permutations=19).result
    show_result(result)
    assert "PARTIAL" not in capsys.readouterr().out, "vacuous: it is always said"
    show_result(result.model_copy(update={"planned": 16, "seen": 0}))
    assert says(" ".join(capsys.readouterr().out.split()), "0 of 16", "ended", "samples")


def test_equal_codes_have_not_moved() -> None:
    sets = two_sets(torch.ones(20, 3), torch.ones(20, 3), 0)
    distance, chance, *_ = compare(sets, 99, 0).tests
    assert chance.value == 1
    assert np.isnan(distance.value)
    assert beyond_support(sets, 0.05, 0.1)[0][1].value == 0
    assert sequential(sets, 0.05, 0).verdict.status == "no violation found"


@pytest.mark.slow
def test_alarms_are_as_rare_as_stated() -> None:
    chances = [compare(sets, 39, 0).tests[1].value for sets in alike(60)]
    assert sum(chance <= 0.05 for chance in chances) <= 9, "the chance of more in 60 at 5% is 1 in 1,000"
    assert sum(chance <= 0.5 for chance in chances) > 15, "vacuous: p-values are always large"


@pytest.mark.slow
def test_alarms_are_as_rare_as_stated_over_many_trials() -> None:
    found_by = [alarms(sets, 199) for sets in alike(300)]
    for name in ("drift", "energy", "classifier", "directions", "sequential", "new images"):
        assert sum(name in each for each in found_by) <= 29, f"{name}: the chance of that at 5% is 1 in 1,000"
    assert sum("energy" in each for each in found_by) >= 6, "vacuous: the test never says anything"


@pytest.mark.slow
def test_intervals_of_the_distance_and_of_shares_cover() -> None:
    changed = Changed.of("builtin:digits-contrastive", "builtin:digits", EDITS)
    rows = counted(changed, "contrast:0.4", 100, 100, 16)
    assert set(rows) == {"energy_distance", "contrast", "rotation", "blur"}
    for name, (held, _, count) in rows.items():
        assert count == 100, f"{name}: the change is large"
        assert held >= 0.88, f"{name}: the chance of fewer in 100 at 95% is 1 in 100"
    assert any(held < 1 for held, _, _ in rows.values()), "vacuous: nothing ever misses"


@pytest.mark.slow
def test_a_real_network_sees_photographs_change(reference: Path) -> None:
    encoder = efficientnet(reference)
    photos = hf.load_images(reference / "real" / "photos", encoder)
    order = Noise.of(0, photos.ids).uniform(()).argsort().tolist()
    clean, others = photos[order[:72]], photos[order[72:]]
    how: dict[str, object] = {"permutations": 199, "progress": False, "edits": "jpeg"}
    changed = hf.transformed(others, hf.Transform.read("jpeg:30"))
    assert hf.drift(clean, changed, encoder, **how).moved  # type: ignore[arg-type]
    assert not hf.drift(clean, others, encoder, **how).moved  # type: ignore[arg-type]
