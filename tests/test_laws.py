"""Laws over the whole catalogue: a new evaluation is tested by these before it has tests of its own."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from math import isnan
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, cast, get_origin

import pytest
import torch
from torch import Tensor, nn

from holdfast.attacks.adaptive import AdaptiveAttack
from holdfast.attacks.black_box import SquareAttack
from holdfast.attacks.gradient import GradientAttack
from holdfast.attacks.presets import attack_fields
from holdfast.core.balls import Linf
from holdfast.core.encoder import Encoder
from holdfast.core.errors import HoldfastError
from holdfast.core.images import Images
from holdfast.core.records import Claim, Estimate, Result, Series
from holdfast.core.run_settings import RunSettings
from holdfast.core.settings import members, types_of
from holdfast.geometry.sphere import Tags
from holdfast.measure.evaluation import Evaluation, components, fits_of, parts, settings, with_bank
from holdfast.measure.observation import Joint, Observation, joined
from holdfast.measure.population import Fit, Population
from holdfast.measure.store import Store, key_of
from holdfast.report import text
from holdfast.report.contents import Contents
from holdfast.report.overview.first_rows import KINDS
from holdfast.run.catalog import evaluations
from holdfast.run.shards import in_random_order
from holdfast.transforms.everyday import Gamma
from holdfast.transforms.shuffles import GlobalShuffle
from tests import pages, samples
from tests.filled import fill_table
from tests.marks import rest_slow
from tests.samples import digits as unlabelled

COUNT = 14
DOUBLE = RunSettings(precision="float64")
MEANINGFUL = [("clever", "guided", 0), ("clever", "least", 0), ("spade", "subsets", 0)]
"""Counts below 1 that ask for none of what is counted."""


def builtin(name: str = "digits-contrastive") -> Encoder:
    """The encoder of all laws, in the precision of their runs."""
    return samples.doubled(samples.builtin(name))


SMALL: dict[str, Any] = {
    "balls": (Linf(0.05), Linf(0.15)),
    "attacks": (GradientAttack(steps=3), AdaptiveAttack(restarts=1, steps=3)),
    "attack": AdaptiveAttack(restarts=1, steps=3),
    "pairwise": AdaptiveAttack(restarts=1, steps=3),
    "fixed": (GradientAttack(steps=3), AdaptiveAttack(restarts=1, steps=3)),
    "published": GradientAttack(steps=3),
    "samples": 5,
    "negatives": 2,
    "tolerance": 0.01,
    "blind": SquareAttack(queries=5),
    "searches": (SquareAttack(queries=50),),
    "decisions": 60,
    "rivals": 3,
    "others": 8,
    "tail": 5,
    "scales": (0.5, 1.5, 2.5, 3.5),
    "encodings": 800,
    "k": 3,
    "clusters": 3,
    "batches": 8,
    "draws": 2,
    "random": 5,
    "guided": 2,
    "subsets": 2,
    "selection": 50,
    "copies": 80,
    "slack": 0.25,
    "radii": (0.05,),
    "edits": ("brightness", "noise"),
    "corruptions": (Gamma(0.2), GlobalShuffle(4)),
    "permutations": 2,
    "rate": 0.3,
    "rates": (0.3, 0.1),
    "kinds": ("gaussian-noise-c", "brightness-c"),
    "severities": (1, 5),
}


def digits(count: int) -> Images:
    """Digits and whether they are odd, for those who need labels."""
    plain = unlabelled(count)
    return Images(plain.pixels(range(count)), plain.ids, samples.classes(count) % 2, plain.name)


def small(kind: type[Evaluation]) -> Evaluation:
    """The evaluation with every expensive setting it has made cheap."""
    given = {name: value for name, value in SMALL.items() if name in kind.__dataclass_fields__}
    if kind.__module__.split(".")[1] not in ("bounds", "smoothing"):
        given.pop("samples", None)  # others are cheap, and say little of so few
    if kind.name == "sites":
        given |= {"tags": two_sites(), "least": 1, "repeats": 1}
    return replace(kind(), **given)


@cache
def two_sites() -> Tags:
    """A file that says of all digits at which of two sites they were seen."""
    path = Path(mkdtemp()) / "sites.csv"
    names = [(f"digit-{row}", row) for row in range(1797)]
    names += [(f"crop {crop} of {row}", row) for crop in range(4) for row in range(20)]
    path.write_text("".join(f"{name},{row // 2 % 2}\n" for name, row in names))
    return Tags.read(str(path))


def measure(evaluation: Evaluation, encoder: Encoder, images: Images, run: RunSettings | None = None) -> Result:
    """Measure with a bank where there is a use for one."""
    return evaluation(encoder, images, run, bank() if with_bank(evaluation) else None)


def bank() -> Images:
    """More digits, those from 1300 on."""
    plain = unlabelled(40, 1300)
    return Images(plain.pixels(range(40)), plain.ids, samples.classes(40, 1300) % 2, "a bank")


def asked(evaluation: Evaluation, images: Images, run: RunSettings) -> Population:
    """The population to measure, with a bank where there is a use for one."""
    held = Population(builtin(), bank(), run) if with_bank(evaluation) else None
    return Population(builtin(), images, run, bank=held)


EVALUATIONS = [small(kind) for kind in evaluations().values()]
every = pytest.mark.parametrize("evaluation", EVALUATIONS, ids=lambda evaluation: evaluation.name)


def values(result: Result) -> dict[tuple[str, str], list[float]]:
    """Every per-sample number, by sample id; where there is none, every estimate."""
    ids = result.findings.ids
    order = sorted(range(len(ids)), key=lambda k: ids[k])
    found = {
        (series.quantity, str(sorted(series.conditions.items()))): [series.values[k] for k in order]
        for series in result.series
    }
    return found or {
        (e.quantity, str(sorted(e.conditions.items()))): [e.low, e.value, e.high] for e in result.estimates
    }


def same(left: Result, right: Result, tolerance: float = 1e-4) -> bool:
    a, b = values(left), values(right)
    return a.keys() == b.keys() and all(
        x == pytest.approx(y, rel=tolerance, abs=tolerance, nan_ok=True) for x, y in ((a[key], b[key]) for key in a)
    )


def ends(result: Result) -> dict[tuple[str, str], tuple[float, float]]:
    """Every interval."""
    return {(e.quantity, str(sorted(e.conditions.items()))): (e.low, e.high) for e in result.estimates}


@every
def test_results_and_intervals_ignore_order_and_batch_size(evaluation: Evaluation) -> None:
    forward = usual(evaluation)  # all at once
    images, run = digits(COUNT)[[(5 * row) % COUNT for row in range(COUNT)]], replace(DOUBLE, batch_size=5)
    shuffled = measure(evaluation, builtin(), images, run)
    assert same(forward, shuffled)
    if forward.findings.ids:  # else it looked at no image
        assert forward.findings.ids != shuffled.findings.ids, "vacuous: nothing was moved"
    found, again = ends(forward), ends(shuffled)
    assert found.keys() == again.keys()
    for where, interval in found.items():
        assert again[where] == pytest.approx(interval, rel=1e-6, abs=1e-9, nan_ok=True), where


@pytest.mark.slow
@every
def test_a_run_keeps_what_a_call_returns(evaluation: Evaluation, tmp_path: Path) -> None:
    """Cut into shards, stored and read again, and computed a second time: but for rounding, which depends on batches."""
    needs = bank() if with_bank(evaluation) else None
    (kept,), failures = fill_table(
        [builtin()], lambda _: digits(COUNT), [evaluation], DOUBLE, Store(tmp_path), bank_for=lambda _: needs
    )
    assert not failures
    called = usual(evaluation)
    assert same(kept, called)
    assert (kept.settings, kept.planned) == (called.settings, None)
    for name in ("ids", "groups", "warnings"):
        assert getattr(kept.findings, name) == getattr(called.findings, name)
    found, expected = ends(kept), ends(called)
    assert found.keys() == expected.keys()
    for where, interval in found.items():
        assert interval == pytest.approx(expected[where], rel=1e-4, abs=1e-6, nan_ok=True), where


@pytest.mark.slow
@every
def test_results_are_those_of_single_images(evaluation: Evaluation) -> None:
    assert same(usual(evaluation), measure(evaluation, builtin(), digits(COUNT), replace(DOUBLE, batch_size=1)))


@pytest.mark.parametrize("evaluation", rest_slow(EVALUATIONS, fast=8), ids=lambda evaluation: evaluation.name)
def test_results_depend_on_the_images_and_the_encoder(evaluation: Evaluation) -> None:
    """The laws of this file are awake: something does change the numbers."""
    here = usual(evaluation)
    elsewhere = measure(evaluation, builtin("digits-random"), digits(COUNT), DOUBLE)
    assert not same(here, elsewhere)


@every
def test_seed_decides(evaluation: Evaluation) -> None:
    first, reseeded = usual(evaluation), measure(evaluation, builtin(), digits(COUNT), replace(DOUBLE, seed=1))
    if same(first, reseeded) and "samples" in settings(evaluation):  # it draws nothing but which images it looks at
        evaluation = replace(cast(Any, evaluation), samples=COUNT - 2)
        first, reseeded = usual(evaluation), measure(evaluation, builtin(), digits(COUNT), replace(DOUBLE, seed=1))
    assert (first.settings["seed"], reseeded.settings["seed"]) == (0, 1)
    assert not same(first, reseeded), "vacuous: the seed changes nothing"


@every
def test_result_survives_storage(evaluation: Evaluation) -> None:
    result = usual(evaluation)
    text = result.model_dump_json()
    assert "NaN" not in text
    back = Result.model_validate_json(text)
    assert back.model_dump_json() == text


@every
def test_numbers_are_dressed(evaluation: Evaluation) -> None:
    """Every estimate has a method, n, a claim; every series an entry per sample.

    Every estimate has an interval that holds it, or its method says that there is none.
    """
    result = usual(evaluation)
    assert result.estimates
    for estimate in result.estimates:
        assert estimate.method
        assert estimate.unit
        assert estimate.of
        assert isinstance(estimate.claim, Claim)
        if isnan(estimate.low) and isnan(estimate.high) and not isnan(estimate.value):
            assert "no interval" in estimate.method, estimate
        else:
            assert isnan(estimate.value) or estimate.low <= estimate.value <= estimate.high, estimate
        if estimate.series is not None:
            matching = [
                s for s in result.series if s.quantity == estimate.series and s.conditions == estimate.conditions
            ]
            assert len(matching) == 1, f"{estimate.quantity} summarises {estimate.series}, which is not there"
    for series in result.series:
        assert len(series.values) == len(result.findings.ids)
        assert {k for k, value in enumerate(series.values) if isnan(value)} == set(series.reasons)
    quantities = {estimate.quantity for estimate in result.estimates}
    assert set(evaluation.headline) <= quantities
    assert evaluation.meaning.endswith("."), "its meaning is made of sentences"
    assert evaluation.title


@every
def test_no_two_numbers_share_a_label(evaluation: Evaluation) -> None:
    """Within an evaluation a name has one meaning, and a name with its conditions is one number, in print too."""
    result = usual(evaluation)
    meanings: dict[str, set[tuple[str, ...]]] = {}
    records: tuple[Estimate | Series, ...] = (*result.estimates, *result.series)
    for record in records:
        # Shares of variance in the words of drift, and units of the divergence, belong to conditions.
        unit = "" if "divergence" in record.conditions else record.unit
        meanings.setdefault(f"{type(record).__name__} {record.quantity}", set()).add(
            (re.sub(r"\d+", "", record.of), unit, text.name_of(record))
        )
    assert {name: found for name, found in meanings.items() if len(found) > 1} == {}
    keys = Counter((type(each), each.quantity, *sorted(each.conditions.items())) for each in records)
    assert max(keys.values()) == 1, keys.most_common(1)
    printed = Counter((text.name_of(each), text.conditions(each.conditions, aim=each.aim)) for each in result.estimates)
    assert max(printed.values()) == 1, printed.most_common(1)


@every
def test_the_first_screen_calls_each_number_what_the_result_calls_it(evaluation: Evaluation) -> None:
    result = usual(evaluation)
    stored = {(e.quantity, *sorted(e.conditions.items())): e.value for e in result.estimates}
    rows = [row for screen in Contents([result], []).first_screens for row in screen.rows]
    asked = [question for question in result.questions if not question.check]
    assert len(rows) == (sum(kind.evaluation == evaluation.name for kind in KINDS) or len(asked))
    for row in rows:
        (cell,) = row.cells
        assert row.kind.evaluation == evaluation.name
        assert tuple(e.quantity for e in cell.estimates) == row.kind.quantities
        for e in cell.estimates:
            assert stored[e.quantity, *sorted(e.conditions.items())] == pytest.approx(e.value, nan_ok=True)


@every
def test_every_number_is_simulated_or_says_why_not(evaluation: Evaluation) -> None:
    """A new number needs its place in the table of docs/coverage.md: the program that simulates it, or a reason."""
    body = pages.section(pages.DOCS / "coverage.md", "Which intervals are simulated")
    assert evaluation.name in pages.rows(body), (
        f"docs/coverage.md, 'Which intervals are simulated', needs a row for {evaluation.name}"
    )
    simulated, program, without = pages.rows(body)[evaluation.name]
    printed = {estimate.quantity for estimate in usual(evaluation).estimates}
    assert printed <= names(simulated) | names(without), "neither simulated nor excused"
    assert not names(simulated) & names(without)
    assert (pages.ROOT / "benchmarks" / "statistics" / f"{program}.py").exists()
    reasons = pages.rows(pages.section(pages.DOCS / "coverage.md", "Metrics without a simulation"))
    assert names(without) <= {name for first in reasons for name in names(first)}, "excused without a reason"


def names(cell: str) -> set[str]:
    return set(cell.replace(",", " ").split())


class Watched(Images):
    """Images that count how often their labels are looked at."""

    looks = 0

    @property
    def labels(self) -> Tensor | None:
        self.looks += 1
        return self._labels

    @labels.setter
    def labels(self, labels: Tensor | None) -> None:
        self._labels = labels


@dataclass(frozen=True)
class Look:
    """What an evaluation observed of the usual images, part by part, and what it looked at and learned meanwhile."""

    population: Population
    observation: Observation
    rows: list[int]
    parts: tuple[dict[str, Tensor], ...]
    labelled: tuple[bool, ...]
    """Whether each part looked at labels."""
    concluded_with_labels: bool
    result: Result
    learned: frozenset[Fit[Any]]

    @property
    def whole(self) -> dict[str, Tensor]:
        """What the evaluation is concluded from."""
        return joined(self.parts) if isinstance(self.observation, Joint) else self.parts[0]


@cache
def look(evaluation: Evaluation) -> Look:
    """What most laws about observations look at."""
    plain, learned = digits(COUNT), set[Fit[Any]]()
    images = Watched(plain.pixels(range(COUNT)), plain.ids, plain.labels, plain.name)
    population, observation, learn = asked(evaluation, images, DOUBLE), evaluation.observation(), Population.learned

    def noted(population: Population, fit: Fit[Any]) -> Any:
        learned.add(fit)
        return learn(population, fit)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Population, "learned", noted)
        rows, seen, labelled = observation.rows(population), [], []
        for part in parts(observation):
            before = images.looks
            seen.append(part.observe(population, rows))
            labelled.append(images.looks > before)
        before = images.looks
        whole = joined(seen) if isinstance(observation, Joint) else seen[0]
        evaluation.illustrate(population, rows, whole, evaluation.conclude(population, rows, whole))
        # What was learned by labels above is not learned again; and a witness would look at them.
        concluded_with_labels = images.looks > before
        result = evaluation.result(population, rows, whole)
    looked = (tuple(seen), tuple(labelled), concluded_with_labels)
    return Look(population, observation, list(rows), *looked, result, frozenset(learned))


def usual(evaluation: Evaluation) -> Result:
    """What most laws compare with."""
    return look(evaluation).result


@every
def test_what_looks_at_labels_says_so(evaluation: Evaluation) -> None:
    """Else stored numbers made without labels, or with others, would be taken for those with them."""
    seen = look(evaluation)
    assert [part.uses_labels for part in parts(seen.observation)] == list(seen.labelled)
    assert evaluation.uses_labels or not seen.concluded_with_labels


@every
def test_observations_ignore_sharding(evaluation: Evaluation) -> None:
    seen = look(evaluation)
    starts = range(0, len(seen.rows), 5)
    shards = [seen.observation.observe(seen.population, seen.rows[start : start + 5]) for start in starts]
    for name, values in seen.whole.items():
        assert len(values) == len(seen.rows)
        assert torch.allclose(values, torch.cat([shard[name] for shard in shards]), atol=1e-9, equal_nan=True)


JOINT = [evaluation for evaluation in EVALUATIONS if isinstance(evaluation.observation(), Joint)]


@pytest.mark.parametrize("evaluation", JOINT, ids=lambda evaluation: evaluation.name)
def test_parts_of_an_observation_are_told_by_what_they_are(
    evaluation: Evaluation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In whatever order they come: else one more setting would give the numbers of one part to another."""
    seen = look(evaluation)
    assert isinstance(seen.observation, Joint)
    plain = evaluation.conclude(seen.population, seen.rows, seen.whole)
    backwards = Joint(seen.observation.parts[::-1])
    assert backwards != seen.observation, "vacuous fixture"
    monkeypatch.setattr(type(evaluation), "observation", lambda _: backwards)
    again = evaluation.conclude(seen.population, seen.rows, joined(seen.parts[::-1]))
    assert again.model_dump_json() == plain.model_dump_json()


@every
def test_counts_below_one_are_refused(evaluation: Evaluation) -> None:
    """By the name of the setting or, of samples, by what it counts; 0 where that means something."""
    counts = {name: kind for name, kind in types_of(type(evaluation)).items() if int in members(kind)}
    assert counts, "vacuous fixture"
    for name, count in product(counts, (0, -1)):
        value = (count,) if get_origin(counts[name]) is tuple else count
        if (evaluation.name, name, count) not in MEANINGFUL:
            with pytest.raises(HoldfastError, match=rf"(?<![\w.-]){count}(?!\w|\.\d)"):
                measure(replace(evaluation, **{name: value}), builtin(), digits(COUNT), DOUBLE)


@every
def test_what_is_learned_is_named(evaluation: Evaluation) -> None:
    """Else a run would learn it in every worker, and keep it nowhere."""
    seen = look(evaluation)
    assert seen.learned == set(fits_of(evaluation))
    asking: tuple[Evaluation | Observation, ...] = (evaluation, *parts(evaluation.observation()))
    for what in asking:
        assert what.uses_labels or not any(fit.uses_labels for fit in what.fits())


@every
def test_whatever_decides_a_number_is_in_its_key(evaluation: Evaluation) -> None:
    encoder, images, run = builtin(), digits(COUNT), RunSettings()
    unlabelled = Images(images.pixels(range(COUNT)), images.ids)
    key = key_of(evaluation, encoder, images, run)
    made: tuple[Observation | Fit[Any], ...] = (*parts(evaluation.observation()), *fits_of(evaluation))
    labelled = any(what.uses_labels for what in components(evaluation))
    assert (key_of(evaluation, encoder, unlabelled, run) != key) == labelled
    assert key_of(evaluation, encoder, images[list(range(COUNT))[::-1]], run) != key
    for other in (RunSettings(seed=1), RunSettings(attack_seed=1), RunSettings(precision="float64")):
        assert key_of(evaluation, encoder, images, other) != key
    for same in (RunSettings(batch_size=3), RunSettings(attack_seed=0)):
        assert key_of(evaluation, encoder, images, same) == key
    for part in made:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(part), "version", part.version + 1)
            assert key_of(evaluation, encoder, images, run) != key, part


@pytest.mark.slow
@every
def test_partial_results_are_those_of_fewer_samples(evaluation: Evaluation) -> None:
    """What a spent budget leaves of an evaluation is what it says if asked for so few from the beginning."""
    if not evaluation.partial:
        pytest.skip("it has no partial results")
    images, population = digits(COUNT), asked(evaluation, digits(COUNT), DOUBLE)
    observation, count = evaluation.observation(), 3
    so_few: dict[str, Any] = {"samples": count}
    order = in_random_order(observation.rows(population), observation, population)
    rows = sorted(order[:count])
    assert len(order) > count, "vacuous: it looks at no more"
    partial = evaluation.result(population, rows, observation.observe(population, rows))
    fewer = measure(replace(evaluation, **so_few), builtin(), images, DOUBLE)
    assert same(fewer, partial)
    assert ends(partial).keys() == ends(fewer).keys()
    for where, interval in ends(fewer).items():
        assert ends(partial)[where] == pytest.approx(interval, rel=1e-6, abs=1e-9, nan_ok=True), where


@every
def test_equal_settings_share_an_observation(evaluation: Evaluation) -> None:
    assert evaluation.observation() == evaluation.observation()
    assert hash(evaluation.observation()) == hash(evaluation.observation())
    assert isinstance(evaluation.observation(), Observation)


class Sealed(nn.Module):
    """An encoder that passes no gradient and cannot be traced, as one behind ONNX Runtime."""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, x: Tensor) -> Tensor:
        return torch.from_numpy(self.inside(x.detach()).numpy())


@every
def test_a_black_box_is_measured_by_all_that_need_no_gradients(evaluation: Evaluation) -> None:
    within = builtin()
    encoder = Encoder(Sealed(within.module), "sealed", within.domain)
    blind: dict[str, Any] = {name: SquareAttack(queries=3) for name in ("attack", "pairwise", "published")}
    blind["attacks"] = blind["fixed"] = (SquareAttack(queries=3),)
    chosen = replace(evaluation, **{name: blind[name] for name in attack_fields(type(evaluation)) if name in blind})
    if evaluation.needs_gradients:
        with pytest.raises(HoldfastError, match=r"gradient|traced"):
            measure(chosen, encoder, digits(COUNT))
    else:
        assert measure(chosen, encoder, digits(COUNT)).estimates
