"""A budget: everybody has a share of it, and what is seen when it ends is a fair sample, said to be partial."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import inf
from pathlib import Path
from time import sleep
from typing import Any, final

import pytest

from holdfast.attacks.gradient import GradientAttack
from holdfast.commands.clean import clean
from holdfast.commands.runs import inventory
from holdfast.core.images import Images
from holdfast.core.records import Failure, Findings, Picture, Question, Result
from holdfast.core.run_settings import Observed, RunSettings
from holdfast.measure.observation import Joint, Observation
from holdfast.measure.population import Population
from holdfast.measure.store import Store, key_of
from holdfast.report.overview import alerts
from holdfast.run import computing, conclusions, shards, table
from holdfast.run import computing as learning
from holdfast.run import forecast as deadline
from holdfast.run import forecast as work
from holdfast.run.engines.base import Context, Engine, Local, Output, Unit
from holdfast.run.engines.processes import Processes
from holdfast.run.forecast import Forecast
from holdfast.run.shards import Turns
from holdfast.service.edited_codes import EditedBank, EditedImages
from holdfast.service.evaluations.drift import Drift
from holdfast.service.evaluations.threshold import Threshold
from tests import filled, tiny
from tests.facts import says
from tests.filled import fill_table

COUNT = 100


@dataclass
class Clock:
    """A clock that only what is observed moves."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in (computing, conclusions, deadline, learning, shards, filled, work):
        monkeypatch.setattr(module, "monotonic", made)
    monkeypatch.setattr(tiny, "sleep", made.sleep)
    return made


def mean(pause: float, log: Path | None = None) -> tiny.Mean:
    return tiny.Mean(pause=pause, log=str(log or ""), samples=80)


def fill(
    folder: Path,
    evaluations: Sequence[tiny.Mean],
    budget: float | None,
    names: str = "ab",
    engine: Engine | None = None,
    batch_size: int = 5,
) -> tuple[list[Result], list[Failure]]:
    encoders = [tiny.encoder(name, 1.0 + place) for place, name in enumerate(names)]
    images = tiny.images(COUNT)
    return fill_table(
        encoders,
        lambda encoder: images,
        evaluations,
        RunSettings(batch_size=batch_size),
        Store(folder),
        engine,
        budget=budget,
    )


def cells(results: Sequence[Result]) -> dict[tuple[str, float], Result]:
    return {(result.encoder.name, result.settings["pause"]): result for result in results}


def test_shards_follow_the_random_order_of_the_images(tmp_path: Path, clock: Clock) -> None:
    """Folders are sorted by class: their first images are no sample of all."""
    fill(tmp_path / "run", [mean(1.0, tmp_path / "log")], budget=4.5, names="a")
    seen = (tmp_path / "log").read_text().splitlines()
    population = Population(tiny.encoder(), tiny.images(COUNT), RunSettings())
    assert seen == [f"image{row}" for row in population.random_order[: len(seen)].tolist()]
    assert 0 < len(seen) < 80


def test_the_time_left_counts_work(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """One evaluation takes twenty times as long as the other; after the first shards that is known."""
    monkeypatch.setattr(work, "CONCLUSION", 0.0)
    monkeypatch.setattr(work, "SET_UP", 0.0)
    told: list[tuple[float, float]] = []
    images = tiny.images(COUNT)
    fill_table(
        [tiny.encoder("a"), tiny.encoder("b", 3.0)],
        lambda encoder: images,
        [mean(0.1), mean(2.0)],
        RunSettings(batch_size=5),
        Store(tmp_path),
        progress=lambda doing, share, left: told.append((clock.now, left)),
    )
    known = [(clock.now - now, left) for now, left in told if left < inf]
    assert known[0][0] > 0.9 * clock.now, "known before a tenth of the time has passed"
    assert all(left == pytest.approx(truth, rel=0.01, abs=0.01) for truth, left in known)


def test_first_rows_are_dear_and_foretell_less() -> None:
    """What is set up once weighs on the first rows; how much, another encoder tells that went on."""
    forecast, what = Forecast({"a": 1.0, "b": 1.0}), tiny.Seen()
    forecast.tell(("a", what), 10, 30.0, 10, 100)
    assert forecast.seconds(("a", what), 10) == 30.0
    forecast.tell(("a", what), 10, 10.0, 20, 100)
    assert forecast.seconds(("a", what), 10) == 10.0
    forecast.tell(("b", what), 10, 60.0, 10, 100)
    assert forecast.seconds(("b", what), 10) == pytest.approx(20.0)


def test_a_budget_is_kept_within_a_tenth(tmp_path: Path, clock: Clock) -> None:
    """Nothing begins that would end much later, as the shards before it tell."""
    fill(tmp_path, [mean(4.0)], budget=15.0, names="a")
    assert clock.now + 4.0 > 0.9 * 15.0
    assert clock.now <= 15.0 * 1.1


def test_every_encoder_and_evaluation_has_its_share(tmp_path: Path, clock: Clock) -> None:
    """A shard of one evaluation takes twenty times as long as one of the other, and the budget is for half of all."""
    results, failures = fill(tmp_path, [mean(2.0), mean(0.1)], budget=34.0)
    found = {cell: len(result.findings.ids) for cell, result in cells(results).items()}
    assert failures == []
    assert found["a", 0.1] == found["b", 0.1] == 80, "what is cheap is done"
    assert abs(found["a", 2.0] - found["b", 2.0]) <= 5
    assert 30 <= found["a", 2.0] < 80
    assert {cell: result.planned for cell, result in cells(results).items()} == {
        ("a", 2.0): 80, ("b", 2.0): 80, ("a", 0.1): None, ("b", 0.1): None,
    }  # fmt: skip
    assert clock.now <= 34.0 * 1.1


def test_rows_under_attack_have_the_first_answers(tmp_path: Path, clock: Clock) -> None:
    """There is time for these, or for what is cheap."""
    question = Question(text="?", quantities=("mean",), meaning="mean", place=10)
    attacked: Any = dataclass(frozen=True)(
        type("Attacked", (tiny.Mean,), {"name": "attacked", "questions": (question,)})
    )
    cheap = [mean(pause) for pause in (1.0, 1.1, 1.2, 1.3, 1.4)]
    results, _ = fill(tmp_path, [*cheap, attacked(pause=4.0, samples=80)], budget=11.0)
    assert {"a", "b"} == {result.encoder.name for result in results if result.evaluation == "attacked"}


@pytest.mark.parametrize(("budget", "everyone"), [(7.0, False), (60.0, True)])
def test_baselines_wait_until_the_others_have_their_first_answers(
    tmp_path: Path, clock: Clock, budget: float, everyone: bool
) -> None:
    pixels, images = tiny.encoder("pixels", 3.0), tiny.images(COUNT)
    pixels.source = "baseline:pixels?shape=1x2x2"
    results, _ = fill_table(
        [pixels, tiny.encoder("a")],
        lambda encoder: images,
        [mean(2.0), mean(2.1)],
        RunSettings(batch_size=5),
        Store(tmp_path),
        budget=budget,
    )
    seen = {name: sum(result.encoder.name == name for result in results) for name in ("a", "pixels")}
    assert seen["a"] == 2
    assert (seen["pixels"] == 2) is everyone


def test_conclusions_are_within_the_budget(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    conclude = tiny.Mean.conclude

    def slowly(self: tiny.Mean, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        clock.sleep(2.0)
        return conclude(self, population, rows, observed)

    monkeypatch.setattr(tiny.Mean, "conclude", slowly)
    results, failures = fill(tmp_path, [mean(1.0), mean(0.5)], budget=30.0)
    assert (len(results), failures) == (4, [])
    assert any(result.planned for result in results), "vacuous: there was time for all"
    assert 27.0 < clock.now <= 33.0


@pytest.mark.parametrize("budget", [40.0, 60.0, 100.0])
def test_pictures_are_within_the_budget(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, budget: float
) -> None:
    """Those of attacks attack the images that they show once more."""

    def slowly(
        self: tiny.Mean, population: Population, rows: Sequence[int], observed: Observed, findings: Findings
    ) -> tuple[Picture, ...]:
        clock.sleep(6 * self.pause)
        return ()

    monkeypatch.setattr(tiny.Mean, "illustrate", slowly)
    evaluations = [replace(mean(pause), samples=8) for pause in (1.0, 2.0, 3.0)]
    results, failures = fill(tmp_path, evaluations, budget, names="a", batch_size=1)
    assert (len(results), failures) == (3, [])
    assert clock.now <= 1.1 * budget
    partial = [result for result in results if result.planned]
    assert bool(partial) == (budget < 100.0), "what there is time for is whole"


def test_a_partial_result_is_that_of_fewer_samples(tmp_path: Path, clock: Clock) -> None:
    (result,), _ = fill(tmp_path, [mean(1.0)], budget=8.0, names="a")
    count = len(result.findings.ids)
    fewer = tiny.Mean(samples=count)(tiny.encoder("a", 1.0), tiny.images(COUNT), RunSettings())
    assert 4 <= count < 80
    assert result.findings == fewer.findings


def test_a_later_run_goes_on_and_replaces_it(tmp_path: Path, clock: Clock) -> None:
    first, _ = fill(tmp_path / "run", [mean(1.0, tmp_path / "log")], budget=16.0)
    assert all(result.planned == 80 for result in Store(tmp_path / "run").results())
    second, _ = fill(tmp_path / "run", [mean(1.0, tmp_path / "log")], budget=8.0)
    assert [len(result.findings.ids) for result in second] > [len(result.findings.ids) for result in first]
    last, failures = fill(tmp_path / "run", [mean(1.0, tmp_path / "log")], budget=None)
    assert failures == []
    assert last == Store(tmp_path / "run").results()
    assert [(result.planned, len(result.findings.ids)) for result in last] == [(None, 80), (None, 80)]
    whole, _ = fill(tmp_path / "whole", [mean(1.0)], budget=None)
    assert [result.findings for result in last] == [result.findings for result in whole]
    assert len((tmp_path / "log").read_text().splitlines()) == 160, "nothing was computed twice"


def test_what_a_partial_result_is_made_from_is_still_needed(tmp_path: Path, clock: Clock) -> None:
    Store(tmp_path).request("{}")
    fill(tmp_path, [mean(1.0)], budget=8.0, names="a")
    assert [cell.encoder for cell in inventory(tmp_path).partial] == ["a"]
    assert clean(tmp_path) == ()
    fill(tmp_path, [mean(1.0)], budget=None, names="a")
    assert {one.kind for one in clean(tmp_path)} >= {"shards"}


def test_what_needs_no_samples_is_concluded_without_them(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether images have moved is known from their codes; which edit comes closest takes long."""
    images, seen = tiny.images(40), list[int]()
    bank = Images(images.pixels(range(40)) / 4, [f"before{k}" for k in range(40)])
    observe = EditedBank.observe

    def slowly(self: EditedBank, population: Population, rows: Sequence[int]) -> Observed:
        clock.sleep(10.0 * len(rows))
        seen.extend(rows)
        return observe(self, population, rows)

    def drifted(budget: float | None) -> Result:
        evaluation = Drift(permutations=39, edits=("brightness", "contrast"), samples=8)
        ((result,), failures) = fill_table(
            [tiny.encoder()],
            lambda encoder: images,
            [evaluation],
            RunSettings(batch_size=1),
            Store(tmp_path),
            budget=budget,
            bank_for=lambda encoder: bank,
        )
        assert failures == []
        return result

    monkeypatch.setattr(EditedBank, "observe", slowly)
    monkeypatch.setattr(table, "seconds_per_forward", lambda encoder: 1.0)  # of a forward, of which a row takes ten
    first = drifted(5.0)
    assert (first.planned, first.seen, seen) == (8, 0, [])
    assert first.estimate("drift_p_value").value <= 0.05
    reasons = {estimate.reason for estimate in first.estimates if estimate.quantity == "change_explained"}
    assert reasons == {"fewer than 3 images before, or groups of them, were edited"}
    assert says(alerts.partial(first), "0 of 8", "40 images", "samples")
    some = drifted(55.0)
    assert (some.planned, some.seen) == (8, 4), "a partial result gives way to one of more samples"
    last = drifted(None)
    assert (last.planned, last.seen) == (None, None)
    assert last.estimate("drift_p_value") == first.estimate("drift_p_value")
    assert any(e.value == e.value for e in last.estimates if e.quantity == "change_explained")


def test_a_threshold_needs_no_attack(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    observe = EditedImages.observe

    def slowly(self: EditedImages, population: Population, rows: Sequence[int]) -> Observed:
        clock.sleep(10.0 * len(rows))
        return observe(self, population, rows)

    def measured(budget: float | None) -> Result:
        attack = GradientAttack(steps=1)
        evaluation = Threshold(rate=0.1, rates=(0.1,), edits=("brightness",), attack=attack, samples=8)
        ((result,), failures) = fill_table(
            [tiny.encoder()],
            lambda encoder: tiny.images(40),
            [evaluation],
            RunSettings(batch_size=1),
            Store(tmp_path),
            budget=budget,
        )
        assert failures == []
        return result

    monkeypatch.setattr(EditedImages, "observe", slowly)
    monkeypatch.setattr(table, "seconds_per_forward", lambda encoder: 1.0)
    spent, whole = measured(5.0), measured(None)
    assert (spent.planned, spent.seen) == (8, 0)
    threshold = spent.estimate("recommended_threshold")
    assert -1 <= threshold.low <= threshold.value <= threshold.high <= 1
    assert spent.estimate("false_match_rate") == whole.estimate("false_match_rate")
    missed = [each.estimate("missed_copies").value for each in (spent, whole)]
    assert [value == value for value in missed] == [False, True]


def test_too_small_a_budget_leaves_what_was_known(tmp_path: Path, clock: Clock) -> None:
    first, _ = fill(tmp_path, [mean(1.0)], budget=16.0)
    again, failures = fill(tmp_path, [mean(1.0)], budget=0.0)
    assert (again, failures) == (first, [])


def test_too_few_rows_make_no_result(tmp_path: Path, clock: Clock) -> None:
    results, (failure,) = fill(tmp_path, [mean(1.0)], budget=2.5, names="a", batch_size=1)
    assert (results, failure.error) == ([], "BudgetSpentError")


def test_what_says_nothing_of_fewer_stays_missing(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiny.Mean, "partial", False)
    results, (failure,) = fill(tmp_path, [mean(1.0)], budget=10.0, names="a")
    assert (results, failure.error) == ([], "BudgetSpentError")


def test_a_gap_ends_the_sample(tmp_path: Path) -> None:
    """What workers finish early may be what is quick: rows after the first that is missing do not count."""
    encoder, images, store, run = tiny.encoder(), tiny.images(COUNT), Store(tmp_path), RunSettings()
    population, observation = Population(encoder, images, run), tiny.Seen(samples=80)
    order = population.random_order[:80].tolist()
    rows = [*order[:20], *order[30:]]
    key = key_of(observation, encoder, images, run)
    store.keep(key, [images.ids[row] for row in rows], observation.observe(population, rows))
    assert shards.stored_prefix(observation, population, store) == sorted(order[:20])


def marked(given: Path, shard: int) -> int:
    (given / f"{shard} has begun").touch()
    sleep(5.0 if shard else 0.1)
    (given / f"{shard} is done").touch()
    return shard


@pytest.mark.slow
def test_workers_take_shards_when_there_is_room_and_stop_when_nobody_wants_them(tmp_path: Path) -> None:
    """So a spent budget and Ctrl-C, which both close the generator, leave nobody at work."""
    taken: list[int] = []

    def shards_of_work() -> Iterator[int]:
        for shard in range(50):
            taken.append(shard)
            yield shard

    work = Processes(2).map(marked, tmp_path, shards_of_work())
    assert next(work) == (0, 0)
    assert len(taken) <= 4, "two at work, and one more for who is ready first"
    while not (tmp_path / "1 has begun").exists():
        sleep(0.05)
    work.close()
    sleep(6.0)
    assert not (tmp_path / "1 is done").exists()


@dataclass
class Ahead:
    """A cluster that takes so many shards before it delivers the first."""

    room: int
    abandoned: int = 0

    def map(
        self, task: Callable[[Context, Unit], Output], context: Context, shards: Iterable[Unit]
    ) -> Generator[tuple[Unit, Output], None, None]:
        coming, begun = iter(shards), list[Unit]()
        try:
            while begun := [*begun, *islice(coming, self.room - len(begun))]:
                shard = begun.pop(0)
                begun += islice(coming, 1)
                yield shard, task(context, shard)
        finally:
            self.abandoned += len(begun)


@pytest.mark.parametrize("room", [3, 1000])
def test_a_budget_holds_on_a_cluster(tmp_path: Path, clock: Clock, room: int) -> None:
    """Also on one that takes everything at once."""
    engine, log = Ahead(room), tmp_path / "log"
    results, failures = fill(tmp_path / "run", [mean(1.0, log)], 20.0, engine=engine)
    counts = [len(result.findings.ids) for result in results]
    assert failures == []
    assert clock.now <= 20.0 * 1.1 + 1.0
    assert min(counts) >= 25, "both have their share"
    again, _ = fill(tmp_path / "run", [mean(1.0, log)], None, engine=engine)
    assert [(result.planned, len(result.findings.ids)) for result in again] == [(None, 80), (None, 80)]
    assert len(log.read_text().splitlines()) == 160, "nothing was lost or computed twice"


@final
@dataclass(frozen=True)
class Failing(Observation):
    """What fails at once."""

    name = "failing"
    version = 1

    def rows(self, population: Population) -> list[int]:
        return [0]

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        raise ValueError("the real reason")


def test_why_something_failed_is_known_though_the_budget_ended_after_it(tmp_path: Path, clock: Clock) -> None:
    """The second shard ends far too late, and what was handed out is abandoned."""
    population = Population(tiny.encoder(), tiny.images(), RunSettings(batch_size=5))
    forecast = Forecast({"tiny": 1e-9})
    work = computing.Computing(Store(tmp_path), Local(), None, deadline.Deadline(forecast, 10.0, 0.0))
    done = work.shards(population, {Failing(): "what fails", tiny.Seen(pause=30.0): "what is late"})
    assert done.missing_rows > 0, "vacuous: there was time for all"
    assert {observation.name: str(error) for observation, error in done.failed.items()} == {
        "failing": "the real reason"
    }


def test_parts_of_a_joint_observation_go_on_side_by_side() -> None:
    cheap, dear, alone = (tiny.Seen(pause=pause) for pause in (1.0, 5.0, 3.0))
    pace: dict[Observation, float] = {part: part.pause for part in (cheap, dear, alone)}
    waiting: dict[Observation, list[list[int]]] = {part: [[0]] * 20 for part in pace}
    turns = Turns([Joint((cheap, dear)), alone], lambda part, rows: rows * pace[part], lambda seconds: True)
    for _ in range(32):
        chosen = turns.choose({part: shards for part, shards in waiting.items() if shards})
        assert chosen is not None
        waiting[chosen].pop()
    left = {part: len(own) for part, own in waiting.items()}
    assert left[alone] == 0, "what soonest has an answer comes first"
    assert left[cheap] == left[dear] == 14


def test_where_all_is_computed_the_longest_shard_comes_first() -> None:
    """So that no process waits in the end for another's long one."""
    pauses = (1.0, 5.0, 3.0)
    pace: dict[Observation, float] = {tiny.Seen(pause=pause): pause for pause in pauses}
    waiting: dict[Observation, list[list[int]]] = {part: [[0]] * 2 for part in pace}
    turns = Turns(list(pace), lambda part, rows: rows * pace[part], lambda seconds: True, longest_first=True)
    order = []
    while left := {part: shards for part, shards in waiting.items() if shards}:
        chosen = turns.choose(left)
        assert chosen is not None
        waiting[chosen].pop()
        order.append(pace[chosen])
    assert order == [5.0, 5.0, 3.0, 3.0, 1.0, 1.0]


def test_what_is_nothing_before_all_is_seen_is_begun_by_the_time_that_passes() -> None:
    """Two workers take half of the time of one."""
    part = tiny.Seen(pause=1.0)
    waiting: dict[Observation, list[list[int]]] = {part: [[row] for row in range(12)]}
    alone, both = (
        Turns([part], lambda _, rows: 1.0 * rows, lambda seconds: seconds <= 8, [part], side_by_side)
        for side_by_side in (lambda: 1.0, lambda: 0.5)
    )
    assert alone.choose(waiting) is None
    assert both.choose(waiting) == part
