"""The ledger of claims: verdicts follow from stored numbers by frozen rules, and cheap claims are measured again."""

from __future__ import annotations

import doctest
import json
from collections.abc import Iterator
from dataclasses import replace
from math import isnan, nan
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import norm
from studies.claims import CLAIMS, claim, contrastive, ledger, measured, measures, rvcl, spade, unsupervised
from studies.claims.claim import ABOVE, Basis, Claim, Range, decided
from studies.claims.material import ARMS, LackingError, Material
from studies.claims.measured import Measured, exact, share
from studies.claims.measured import measured as number

from tests.facts import says

RECORDS = ledger.stored()
BY_NAME = {one.name: one for one in CLAIMS}


@pytest.mark.parametrize("module", [claim, contrastive, measured, ledger], ids=lambda m: m.__name__)
def test_examples_are_right(module) -> None:
    found = doctest.testmod(module)
    assert found.attempted
    assert not found.failed


def test_there_are_42_claims_each_with_a_rule_and_a_source() -> None:
    counts = {"RVCL": 10, "SYN": 5, "UNSUP": 10, "CLSL": 9, "SPADE": 8}
    assert [one.name for one in CLAIMS] == [f"{paper}-{k + 1}" for paper, n in counts.items() for k in range(n)]
    for one in CLAIMS:
        assert one.claimed
        assert one.sentence.endswith(".")
        assert one.source
        assert one.data
        assert one.measure or one.lacks, f"{one.name} has no function and does not say what lacks"


@pytest.mark.parametrize("name", RECORDS)
def test_the_verdict_follows_from_the_stored_numbers(name: str) -> None:
    record, asked = RECORDS[name], BY_NAME[name]
    found = [Measured.read(one) for one in record["measured"]]
    ranges = {quantity: str(wanted) for quantity, wanted in asked.claimed.items()}
    assert record["claimed"] == ranges, "the rule has changed since the claim was measured"
    assert (record["sentence"], record["data"]) == (asked.sentence, asked.data)
    assert record["on"] == {quantity: asked.basis(quantity) for quantity in asked.claimed}
    assert record["verdict"] == asked.verdict(found)
    assert {*ledger.published(found)} <= {*record["encoders"]}, "a record names every encoder that it is about"
    assert record["key"] == ledger.key(asked, record["encoders"])


@pytest.mark.slow
@pytest.mark.parametrize("name", RECORDS)
def test_stored_numbers_follow_from_the_stored_values(name: str) -> None:
    for one in RECORDS[name]["measured"]:
        again = Measured.read(one).again()
        for value, stored in ((again.value, one["value"]), (again.low, one["low"]), (again.high, one["high"])):
            assert isnan(value) if stored is None else value == pytest.approx(stored, rel=1e-6, abs=1e-9)


def test_stored_records_are_small() -> None:
    assert sum(path.stat().st_size for path in ledger.STORED.glob("*.json")) < 4_000_000


@pytest.mark.parametrize(
    ("low", "high", "said"), [(0.1, 0.2, "holds"), (-0.2, -0.1, "fails"), (-0.1, 0.2, "open"), (nan, nan, "open")]
)
def test_intervals_decide(low: float, high: float, said: str) -> None:
    one = Measured("gain", "here", "mean", [[[0.0]]], "images", 1, 1, True, (low + high) / 2, low, high)
    beside = Measured("other", "here", "mean", [[[0.0]]], "images", 1, 1, True, -9.0, -9.0, -9.0)
    assert decided({"gain": ABOVE}, [one, beside]) == said
    assert decided({"gain": ABOVE, "missing": ABOVE}, [one]) in ("open", "fails")
    assert decided({"gain": ABOVE}, []) == "open"


def asked_on(basis: Basis | dict[str, Basis], **claimed: Range) -> Claim:
    return Claim("ONE-1", "A sentence.", "a table", "data", claimed, on=basis)


@pytest.mark.parametrize(
    ("basis", "low", "said"),
    [
        ("its encoders", 0.1, "holds"),
        ("its tables", -0.3, "fails"),
        ("its definition", 0.1, "follows from the definition"),
        ("its definition", -0.3, "fails"),
        ("other encoders", 0.1, "seen at small scale"),
        ("other encoders", -0.3, "not seen at small scale"),
        ("other encoders", -0.1, "open"),
    ],
)
def test_the_words_say_what_was_tested(basis: Basis, low: float, said: str) -> None:
    one = Measured("gain", "here", "mean", [[[0.0]]], "images", 100, 1, False, low + 0.1, low, low + 0.2)
    assert asked_on(basis, gain=ABOVE).verdict([one]) == said


def test_a_papers_own_objects_come_before_those_in_their_place() -> None:
    own = Measured("table", "a table", "mean", [[[0.0]]], "images", 100, 1, False, 0.0, -0.1, 0.1)
    other = replace(own, quantity="here", value=-0.2, low=-0.3, high=-0.1)
    both = asked_on({"table": "its tables", "here": "other encoders"}, table=ABOVE, here=ABOVE)
    assert both.verdict([own, other]) == "open"
    assert both.parts([own, other]) == {"table": "open", "here": "not seen at small scale"}
    assert both.verdict([replace(own, value=-0.2, low=-0.3, high=-0.1), other]) == "fails"


def test_several_intervals_that_decide_together_are_corrected() -> None:
    """Five means of noise: any one of them alone would lie elsewhere in 1 - .975^5 of cases."""
    random = np.random.default_rng(0)
    alone = together = 0
    for _ in range(300):
        found = [number("gain", str(k), "mean", random.normal(size=(5, 1)), trainings=True) for k in range(5)]
        alone += any(one.high < 0 for one in found)
        together += decided({"gain": ABOVE}, found) == "fails"
    assert alone > 22
    assert together <= 15
    share_of = share("exceptions", "here", 1, 1000)
    assert share_of.at(0.99).low < share_of.low
    assert share_of.at(0.95).low == pytest.approx(share_of.low)
    ranks = number("tau", "here", "Kendall", [1.0, 2.0, 3.0, 4.0, 5.0], [1.0, 2.0, 3.0, 5.0, 4.0])
    assert -1 <= ranks.at(0.999).low < ranks.low
    assert ranks.at(0.999).high <= 1


def test_looks_at_a_claim_together_are_wrong_as_rarely_as_one() -> None:
    """A gain that is 0 is looked at on more and more until something is said: each time at a smaller level."""
    random, looks = np.random.default_rng(1), (20, 60, 200)
    wrong = careless = 0
    for _ in range(300):
        values = random.normal(size=looks[-1])
        found = [number("gain", "here", "mean", values[:count]) for count in looks]
        said = [decided({"gain": ABOVE}, [one], claim.LEVEL / (k + 1)) for k, one in enumerate(found)]
        wrong += next((one for one in said if one != "open"), "open") == "holds"
        careless += any(one.low > 0 for one in found)
    assert wrong <= 15
    assert careless > wrong
    asked = replace(asked_on("its encoders", gain=ABOVE), looks=3)
    near = Measured("gain", "here", "mean", [[[0.0, 0.2]]], "images", 100, 1, False, 0.105, 0.005, 0.205)
    assert replace(asked, looks=1).verdict([near]) == "holds"
    assert asked.verdict([near]) == "open"
    assert "98.3% interval (look 3)" in asked.rule


def test_what_is_open_says_how_much_more_would_decide_it() -> None:
    near = Measured("gain", "here", "mean", [[[0.0, 0.2]]], "images", 100, 1, False, 0.1, -0.1, 0.3)
    far = replace(near, value=-0.1, low=-0.5, high=0.3)
    asked = asked_on("its encoders", gain=ABOVE)
    of_next = (norm.ppf(1 - claim.LEVEL / 4) / norm.ppf(1 - claim.LEVEL / 2)) ** 2
    assert asked.would_take([near]) == pytest.approx(4 * of_next)
    assert asked.would_take([far]) == pytest.approx(16 * of_next)
    together = asked.would_take([near, far])
    assert together > 16 * of_next, "it can only fail, and two intervals decide"
    assert isnan(asked.would_take([replace(near, value=nan, low=nan, high=nan)]))
    both = asked_on({"gain": "its tables", "other": "other encoders"}, gain=ABOVE, other=ABOVE)
    assert both.would_take([near, replace(far, quantity="other")]) == pytest.approx(4 * of_next), (
        "its own objects come first"
    )
    assert asked.would_take([near]) < replace(asked, looks=2).would_take([near]), "the next look is judged at less"
    page = "\n".join(ledger.ledger_section(RECORDS))
    assert page.count("*To decide it*") == sum(record["verdict"] == "open" for record in RECORDS.values())


def test_chance_in_images_and_in_trainings_is_allowed_for() -> None:
    """Of images that differ and trainings that do not, all chance is that of images; and the other way round."""
    random = np.random.default_rng(0)
    images = np.broadcast_to(random.normal(size=400), (5, 400))
    alike = measured.of_images("gain", "here", images)
    assert (alike.n, alike.seeds) == (40, 5)
    assert alike.value == pytest.approx(images[0].mean(), abs=1e-4)
    assert alike.high - alike.low == pytest.approx(3.92 / 20, rel=0.3)
    trainings = measured.of_images("gain", "here", np.broadcast_to(random.normal(size=(5, 1)), (5, 400)))
    half = 2.776 * np.std(trainings.columns[0], axis=0, ddof=1)[0] / 5**0.5
    assert (trainings.high - trainings.low) / 2 == pytest.approx(half, rel=5e-3), (
        "and room for images that were not seen"
    )


def test_images_are_kept_by_groups_of_any_statistic() -> None:
    one, other = np.random.default_rng(0).random((2, 3, 40))
    found = measured.of_images("share", "here", one, other, statistic="ratio of means", group=20)
    assert (found.n, found.seeds, found.units) == (2, 3, "groups of 20 images")
    assert found.value == pytest.approx(np.mean(one.mean(1) / other.mean(1)), rel=1e-3)


def test_differences_at_equal_accuracy_cover() -> None:
    """Fifteen encoders, four of them supervised and four of another architecture, of which all three terms matter."""
    random, covered = np.random.default_rng(0), {0.95: 0, 0.983: 0}
    group, other = np.arange(15) % 4 == 0, np.arange(15) > 10
    for _ in range(1000):
        clean = random.normal(size=15)
        lost = 2 * clean - other + 3 * group + random.normal(size=15)
        found = number("drop", "tables", measured.CONTRAST, group, clean, lost, other, units="encoders")
        for confidence in covered:
            at = found.at(confidence)
            covered[confidence] += at.low < 3 < at.high
    assert 930 < covered[0.95] < 970
    assert 970 < covered[0.983] < 995
    assert isnan(number("drop", "tables", measured.CONTRAST, group[:6], clean[:6], lost[:6]).low), "two say nothing"


@pytest.mark.parametrize(("as_one", "above"), [(True, False), (False, True)])
def test_two_models_of_a_method_counted_as_two_would_decide_clsl_2(as_one: bool, above: bool) -> None:
    """As the claim says of itself."""
    tables = {**contrastive.RESNETS, **contrastive.VITS}
    kinds = contrastive.by_kind(tables if as_one else {f"{name}.": table for name, table in tables.items()})
    clean, lost = zip(*kinds.values(), strict=True)
    supervised = ["Sup" in kind for kind in kinds]
    transformers = [kind.rstrip(".") in contrastive.VITS for kind in kinds]
    found = number("drop", "tables", measured.CONTRAST, supervised, clean, lost, transformers, units="encoders")
    assert found.n == (12 if as_one else 15)
    assert (found.at(1 - BY_NAME["CLSL-2"].level).low > 0) == above


def test_an_example_that_was_chosen_badly_refutes_nothing() -> None:
    worse = Measured("gain", "here", "mean", [[[0.0]]], "images", 100, 1, False, -0.2, -0.3, -0.1)
    asked = asked_on("other encoders", gain=ABOVE)
    assert says(asked.verdict([worse]), "not seen")
    chosen = replace(asked, refutable=False)
    assert chosen.verdict([worse]) == "open"
    assert isnan(chosen.would_take([worse]))
    assert chosen.verdict([replace(worse, value=0.2, low=0.1, high=0.3)]) == "seen at small scale"


def test_rivals_are_measured_on_other_trainings_and_images_than_they_were_chosen_by(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Methods are apart in one way where rivals are chosen and in another where these are measured."""
    arms, chosen, later = ARMS[:3], (0.0, 0.5, 0.2), (0.1, 0.7, 0.2)
    random = np.random.default_rng(0)

    def of_arms(
        material: Material, arm: str, seeds: range, parts: range = unsupervised.FIRST_PART
    ) -> dict[str, np.ndarray]:
        choosing = seeds == unsupervised.CHOOSING
        assert parts == (unsupervised.FIRST_PART if choosing else unsupervised.NEXT_PART)
        assert choosing or not {*seeds} & {*unsupervised.CHOOSING}
        values = 0.01 * random.normal(size=(len(seeds), 40))
        return dict.fromkeys(measures.NAMES, values + (chosen if choosing else later)[arms.index(arm)])

    monkeypatch.setattr(unsupervised, "ARMS", arms)
    monkeypatch.setattr(unsupervised, "FURTHER", {arms[2]: 12})
    monkeypatch.setattr(unsupervised, "of_arms", of_arms)
    gains = [one for one in unsupervised.dominance(Material()) if one.quantity in BY_NAME["UNSUP-5"].claimed]
    assert [one.where.split(" ")[2].rstrip(",") for one in gains] == [*arms]
    assert all(one.where.startswith(f"{arms[1]} over") for one in (gains[0], gains[2]))
    assert gains[1].where.startswith(f"{arms[0]} over"), "where less is better the order turns round"
    assert [round(abs(one.value), 1) for one in gains] == [0.6, 0.6, 0.5]
    assert [one.seeds for one in gains] == [unsupervised.MANY, unsupervised.MANY, 12]


def test_neighbours_are_found_among_the_first_images_without_oneself(reference: Path) -> None:
    material = Material(reference)
    population = material.population(material.published("mnist_base"), 300)
    rows = [0, 5, 120, 250]
    found = rvcl.neighbours(population, rows, 100, 7)
    codes = torch.nn.functional.normalize(population.codes.double(), dim=1)
    for row, near in zip(rows, found.tolist(), strict=True):
        similar = {other: float(codes[row] @ codes[other]) for other in range(100) if other != row}
        assert sorted(near) == sorted(sorted(similar, key=lambda other: -similar[other])[:7])


def test_samples_of_images_have_none_in_common(reference: Path) -> None:
    material = Material(reference)
    one, other = unsupervised.samples(material, material.published("mnist_base"), range(2))
    assert len(one) == len(other) == unsupervised.IMAGES
    assert not {*one.ids} & {*other.ids}
    [again] = unsupervised.samples(material, material.published("mnist_base"), unsupervised.NEXT_PART)
    assert again.ids == other.ids


def test_one_counterexample_refutes_an_every_and_none_does_not_prove_it() -> None:
    never = {"exceptions": Range(0, 0)}
    assert decided(never, [share("exceptions", "here", 1, 1000)]) == "fails"
    assert decided(never, [share("exceptions", "here", 0, 1000)]) == "open"
    assert decided(never, [exact("exceptions", "a table", 0, 17, "measures")]) == "holds"


def test_one_training_says_nothing_of_a_kind_of_training() -> None:
    values = [[0.1, 0.2, 0.3, 0.2]]
    assert number("gain", "images", "mean", values).low > 0
    assert isnan(number("gain", "trainings", "mean", values, trainings=True).low)
    three = number("gain", "trainings", "mean", [[0.2], [0.21], [0.22]], trainings=True)
    assert three.low == pytest.approx(0.21 - 4.3027 * 0.01 / 3**0.5, abs=1e-4)


def test_equal_values_leave_room_for_what_was_not_seen() -> None:
    none = number("gain", "here", "mean", [0.0] * 200)
    assert (none.low, none.high) == pytest.approx((-0.0185, 0.0185))
    assert decided({"gain": ABOVE}, [none]) == "open"
    assert none.at(0.99).high == pytest.approx(-np.log(0.005) / 200)


def test_claims_are_run_once_and_what_lacks_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran = []

    def measure(material: Material) -> Iterator[Measured]:
        ran.append(1)
        yield exact("count", "here", 3, 8, "models")

    def missing_count(material: Material) -> Iterator[Measured]:
        raise LackingError("no encoders")
        yield

    one = Claim("ONE-1", "A sentence.", "a table", "data", {"count": Range(low=1)}, measure, on="its tables")
    two = Claim("TWO-1", "A sentence.", "a table", "data", {"count": Range(low=1)}, missing_count)
    three = Claim("THREE-1", "A sentence.", "a table", "data", {"count": Range(low=1)}, None, "A GAN.", untestable=True)
    for _ in range(2):
        ledger.run([one, two, three], Material(), tmp_path)
    assert ran == [1]
    assert "TWO-1 is not run: no encoders" in capsys.readouterr().err
    found = ledger.stored(tmp_path)
    assert {name: record["verdict"] for name, record in found.items()} == {
        "ONE-1": "holds",
        "THREE-1": "untestable here",
    }
    assert json.loads((tmp_path / "ONE-1.json").read_text())["measured"][0]["value"] == 3


def test_the_section_names_every_claim_and_says_which_were_not_run() -> None:
    page = "\n".join(ledger.ledger_section({}))
    assert page.count("not run yet") == len(CLAIMS) + 1
    shown = "\n".join(ledger.ledger_section(RECORDS))
    for name, record in RECORDS.items():
        assert f"**{name}: {record['verdict']}.**" in shown


@pytest.mark.slow
def test_a_claim_on_tables_comes_out_again(tmp_path: Path) -> None:
    ledger.main(["--only", "UNSUP-2", "--out", str(tmp_path), "--work", str(tmp_path / "work")])
    again = ledger.stored(tmp_path)["UNSUP-2"]
    unlike = {"seconds": 0, "version": ""}  # how long it took, and which version of the library judged it
    assert {**again, **unlike} == {**RECORDS["UNSUP-2"], **unlike}


@pytest.mark.slow
def test_a_claim_on_published_encoders_comes_out_again(reference: Path, tmp_path: Path) -> None:
    ledger.run([BY_NAME["UNSUP-4"]], Material(reference, None, tmp_path / "work"), tmp_path)
    again, before = ledger.stored(tmp_path)["UNSUP-4"], RECORDS["UNSUP-4"]
    # By name: the fingerprints in the record are of an earlier way to describe code.
    assert (again["verdict"], [*again["encoders"]]) == (before["verdict"], [*before["encoders"]])
    for one, other in zip(again["measured"], before["measured"], strict=True):
        assert one["where"] == other["where"]
        assert one["value"] == pytest.approx(other["value"], rel=0.2), "attacks differ by rounding alone"


def test_node_scores_and_attacked_radii_are_of_the_same_images(reference: Path) -> None:
    images = spade.first(Material(reference), "mnist_base", spade.WEAK)
    with np.load(reference / "images" / "mnist_test.npz") as there:
        pixels = there["images"][: spade.WEAK]
    assert np.array_equal((images.pixels(range(spade.WEAK)) * 255).round().numpy(), pixels)
