from __future__ import annotations

import multiprocessing
import pickle
import random
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import fields
from math import isnan
from pathlib import Path
from time import monotonic, sleep

import pytest
import torch
from torch import Tensor, nn

from holdfast import data
from holdfast.core.encoder import Encoder
from holdfast.core.errors import HoldfastError
from holdfast.core.images import Images
from holdfast.core.records import Failure, Result
from holdfast.core.run_settings import RunSettings
from holdfast.encoders import load
from holdfast.measure.evaluation import Evaluation
from holdfast.measure.population import represent
from holdfast.measure.store import Store, StoreError, key_of
from holdfast.run import catalog, shards
from holdfast.run.engines.base import Context, Engine, Local, Output, Unit
from holdfast.run.request import build
from tests import tiny
from tests.facts import refused, says
from tests.filled import fill_table
from tests.marks import rest_slow


def images_for(encoder: Encoder) -> Images:
    return tiny.images()


def fill(
    folder: Path,
    evaluations: Sequence[Evaluation],
    run: RunSettings | None = None,
    engine: Engine | None = None,
    encoders: Sequence[Encoder] | None = None,
    budget: float | None = None,
) -> tuple[list[Result], list[Failure]]:
    run = run or RunSettings(batch_size=4)
    return fill_table(encoders or [tiny.encoder()], images_for, evaluations, run, Store(folder), engine, budget=budget)


def findings(results: Sequence[Result]) -> list[object]:
    return [(result.encoder, result.settings, result.findings) for result in results]


def looked_at(log: Path) -> list[str]:
    return log.read_text().splitlines() if log.exists() else []


def test_a_run_gives_what_the_evaluation_gives(tmp_path):
    (result,), failures = fill(tmp_path, [tiny.Mean()])
    direct = tiny.Mean()(tiny.encoder(), tiny.images(), RunSettings(seed=0))
    assert failures == []
    assert findings([result]) == findings([direct])
    assert result.provenance["torch"]
    assert float(result.provenance["seconds"]) >= 0
    assert findings([direct]) != findings([tiny.Mean()(tiny.encoder(), tiny.images(), RunSettings(seed=1))]), "vacuous"


def test_evaluations_share_an_equal_observation(tmp_path):
    log = tmp_path / "log"
    results, _ = fill(tmp_path / "run", [tiny.Mean(log=str(log)), tiny.Mean(factor=3, log=str(log))])
    assert len(results) == 2
    assert len(looked_at(log)) == len(set(looked_at(log))) == 16


def test_running_again_computes_nothing(tmp_path):
    log = tmp_path / "log"
    first, _ = fill(tmp_path / "run", [tiny.Mean(log=str(log))])
    again, _ = fill(tmp_path / "run", [tiny.Mean(log=str(log))], RunSettings(batch_size=7))
    assert len(looked_at(log)) == 16
    assert again == first


def test_a_lost_result_needs_no_new_look(tmp_path):
    log = tmp_path / "log"
    first, _ = fill(tmp_path / "run", [tiny.Mean(log=str(log))])
    for path in (tmp_path / "run" / "results").iterdir():
        path.unlink()
    again, _ = fill(tmp_path / "run", [tiny.Mean(log=str(log))], RunSettings(batch_size=7))
    assert len(looked_at(log)) == 16
    assert findings(again) == findings(first)


class Backwards:
    """Delivers the last shard first, as a cluster may."""

    def map(
        self, task: Callable[[Context, Unit], Output], context: Context, shards: Iterable[Unit]
    ) -> Generator[tuple[Unit, Output], None, None]:
        return ((shard, task(context, shard)) for shard in reversed(list(shards)))


@pytest.mark.parametrize("batch_size", [1, 3, 100])
@pytest.mark.parametrize("engine", [Local(), Backwards()])
def test_results_ignore_sharding_and_order(tmp_path, engine, batch_size):
    results, _ = fill(tmp_path / "a", [tiny.Mean()], RunSettings(batch_size=batch_size), engine)
    expected, _ = fill(tmp_path / "b", [tiny.Mean()], RunSettings(batch_size=16))
    assert findings(results) == findings(expected)


def test_a_cluster_works_on_all_observations_side_by_side(tmp_path):
    mapped: list[int] = []

    class Cluster(Backwards):
        def map(
            self, task: Callable[[Context, Unit], Output], context: Context, shards: Iterable[Unit]
        ) -> Generator[tuple[Unit, Output], None, None]:
            every = list(shards)
            mapped.append(len(every))
            return super().map(task, context, every)

    both = [tiny.Mean(pause=1e-6), tiny.Mean(log=str(tmp_path / "no" / "folder")), tiny.Mean(pause=2e-6)]
    results, (failure,) = fill(tmp_path / "a", both, RunSettings(batch_size=4), Cluster())
    assert findings(results) == findings(fill(tmp_path / "b", both)[0])
    assert failure.error == fill(tmp_path / "c", both)[1][0].error
    _, _, first, side_by_side = filter(None, mapped)
    assert first == 3 * 2, "the shards of each observation that hold four rows, from which the time left is known"
    assert side_by_side == 2 * 3, "the others of two observations of 16 rows, of 4, 4 and 2; one has failed"


class Elsewhere(Backwards):
    """Pickles what it is given, as a cluster does, and notes on which device each task computes."""

    def __init__(self) -> None:
        self.devices: list[str] = []

    def map(
        self, task: Callable[[Context, Unit], Output], context: Context, shards: Iterable[Unit]
    ) -> Generator[tuple[Unit, Output], None, None]:
        sent = pickle.dumps(context)
        for shard in shards:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("holdfast.run.shards.represent", self._noted)
                yield shard, task(pickle.loads(sent), shard)

    def _noted(self, encoder: Encoder, images: Images, rows: Sequence[int], run: RunSettings) -> Tensor:
        self.devices.append(run.device)
        return represent(encoder, images, rows, run)


def test_a_machine_without_the_device_of_its_workers_sends_them_the_work(tmp_path):
    # torch takes cpu:0 for another name of the CPU: a device that workers have, and that this test can tell apart.
    engine, run = Elsewhere(), RunSettings(batch_size=4, workers="cpu:0")
    (result,), failures = fill(tmp_path / "a", [tiny.Mean()], run, engine)
    assert not failures
    assert set(engine.devices) == {"cpu:0"}
    assert run.device == "cpu"
    assert result.provenance["device"] == "cpu:0"
    assert findings([result]) == findings(fill(tmp_path / "b", [tiny.Mean()])[0])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_worker_without_the_device_says_so(tmp_path):
    results, (failure,) = fill(tmp_path, [tiny.Mean()], RunSettings(workers="cuda"), Elsewhere())
    assert not results
    assert says(failure.reason, "'cuda'", "GPU", "--device", "device")


def test_a_failing_cell_is_recorded_and_stops_no_other(tmp_path):
    evaluations = [tiny.Mean(broken=True), tiny.Mean()]
    results, failures = fill(tmp_path, evaluations, encoders=[tiny.encoder("a"), tiny.encoder("b", 3.0)])
    assert [result.encoder.name for result in results] == ["a", "b"]
    assert [(f.encoder, f.evaluation, f.error, f.reason) for f in failures] == [
        (name, "mean", "RuntimeError", "it is broken") for name in "ab"
    ]
    assert Store(tmp_path).failures() == failures
    fill(tmp_path, [tiny.Mean()], encoders=[tiny.encoder("a")])
    assert [failure.encoder for failure in Store(tmp_path).failures()] == ["b"], "tried again, so forgotten"


def test_images_that_do_not_load_are_a_failure_of_their_encoder(tmp_path):
    def none_for_b(encoder: Encoder) -> Images:
        if encoder.name == "b":
            raise HoldfastError("there is no folder 'photos'")
        return tiny.images()

    encoders = [tiny.encoder("b"), tiny.encoder("a")]
    results, (failure,) = fill_table(encoders, none_for_b, [tiny.Mean()], RunSettings(), Store(tmp_path))
    assert [result.encoder.name for result in results] == ["a"]
    assert says(failure.reason, "'photos'", "folder")


def test_an_unfit_encoder_fails_with_the_reason(tmp_path):
    results, (failure,) = fill(tmp_path, [tiny.Mean()], encoders=[tiny.encoder(scale=float("nan"))])
    assert results == []
    assert "NaN" in failure.reason


def test_a_full_disk_ends_the_run(tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise StoreError("cannot write")

    monkeypatch.setattr(Store, "keep", full)
    with pytest.raises(StoreError):
        fill(tmp_path, [tiny.Mean()])


def test_progress_rises_to_the_whole(tmp_path):
    told: list[float] = []
    fill_table(
        [tiny.encoder("a"), tiny.encoder("b", 3.0)],
        images_for,
        [tiny.Mean()],
        RunSettings(batch_size=4),
        Store(tmp_path),
        progress=lambda doing, share, left: told.append(share),
    )
    assert told == sorted(told)
    assert told[0] < 0.1
    assert told[-1] == pytest.approx(1)


def test_two_encoders_of_one_name_are_refused(tmp_path):
    with refused(HoldfastError, "'tiny'", "encoders", "called"):
        fill(tmp_path, [tiny.Mean()], encoders=[tiny.encoder(), tiny.encoder(scale=3.0)])


@pytest.mark.slow
def test_a_run_killed_at_any_moment_loses_nothing_finished(tmp_path):
    log, folder = tmp_path / "log", tmp_path / "run"
    slow = tiny.Mean(log=str(log), pause=0.03)
    encoder, images, run = tiny.encoder(), tiny.images(), RunSettings(batch_size=1)
    key = key_of(slow.observation(), encoder, images, run)
    moments, kills = random.Random(0), 0
    for _ in range(100):
        held = set(Store(folder).observed(key, images.ids)[0])
        before = looked_at(log)
        process = multiprocessing.get_context("fork").Process(target=fill, args=(folder, [slow], run))
        process.start()
        limit = monotonic() + moments.uniform(0.05, 0.3)
        while process.is_alive() and monotonic() < limit:
            sleep(0.005)
        finished = not process.is_alive()
        process.kill()
        process.join()
        assert held.isdisjoint(looked_at(log)[len(before) :]), "something finished was computed again"
        if finished:
            break
        kills += 1
    assert finished
    assert kills >= 2, "never killed in the middle"
    results, failures = fill(folder, [slow], run)
    assert failures == []
    assert findings(results) == findings(fill(tmp_path / "unbroken", [slow], run)[0])


class Cramped(tiny.Scaled):
    """Has memory for ``room`` images at a time."""

    def __init__(self, scale: float, room: int) -> None:
        super().__init__(scale)
        self.room, self.sizes = room, list[int]()

    def forward(self, x: Tensor) -> Tensor:
        self.sizes.append(len(x))
        if len(x) > self.room:
            raise MemoryError(f"no room for {len(x)} images")
        return super().forward(x)


@pytest.mark.parametrize("attack", ["pgd:steps=3", "adaptive:restarts=2,steps=3"])
@pytest.mark.filterwarnings("ignore:.*does not fit into memory:holdfast.core.errors.HoldfastWarning")
def test_little_memory_changes_no_result(tmp_path, attack):
    """Attacks draw random starts, restarts and targets, each image its own whatever it shares a batch with."""
    evaluation = build(
        catalog.evaluations()["breakaway"], {"attacks": [attack], "pairwise": attack, "balls": ["linf:0.1"]}
    )
    cramped, roomy = (Encoder(Cramped(2.0, room), "tiny", tiny.DOMAIN) for room in (9, 1000))
    (small,), failures = fill(tmp_path / "a", [evaluation], RunSettings(batch_size=16), encoders=[cramped])
    (large,), _ = fill(tmp_path / "b", [evaluation], RunSettings(batch_size=16), encoders=[roomy])
    assert failures == []
    assert isinstance(cramped.module, Cramped)
    assert max(cramped.module.sizes) > 9, "vacuous fixture"
    assert [series.values for series in small.series] == [
        pytest.approx(series.values, nan_ok=True) for series in large.series
    ]


def test_large_inputs_make_small_shards(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "CPU_VALUES", 8)
    results, _ = fill(tmp_path / "a", [tiny.Mean()], RunSettings(batch_size=16))
    assert len(list((tmp_path / "a").rglob("shards/seen-*/*"))) == 8
    assert findings(results) == findings(fill(tmp_path / "b", [tiny.Mean()], RunSettings(batch_size=2))[0])


def test_large_encoders_make_small_shards(tmp_path, monkeypatch):
    encoder = Encoder(nn.Sequential(nn.Flatten(), nn.Linear(4, 8)), "linear", tiny.DOMAIN)
    monkeypatch.setattr(shards, "CPU_OPERATIONS", 3 * 64)
    fill(tmp_path, [tiny.Mean()], RunSettings(batch_size=16), encoders=[encoder])
    assert len(list(tmp_path.rglob("shards/seen-*/*"))) == 6, "2, 3, 3, 3, 3 and 2 images"
    assert len(list(tmp_path.rglob("shards/codes-*/*"))) == 1, "16 and 4 images: batches of one shard"


def test_a_budget_begins_to_run_before_the_table_does(tmp_path):
    started = monotonic() - 10
    results, failures = fill_table(
        [tiny.encoder()], images_for, [tiny.Mean()], RunSettings(), Store(tmp_path), budget=9.0, began=started
    )
    assert (results, [failure.error for failure in failures]) == ([], ["BudgetSpentError"])


@pytest.mark.slow
def test_labels_given_later_are_used(tmp_path):
    encoder, images = (
        load("builtin:digits-random"),
        data.load("builtin:digits", load("builtin:digits-random").domain, limit=40),
    )
    odd = torch.arange(len(images)) % 2
    evaluation = build(catalog.evaluations()["linear-radius"], {"samples": 4, "attack": "adaptive:restarts=1,steps=3"})

    def cell(labels: Tensor | None) -> Result:
        context = Images(images.source, images.ids, labels, images.name)
        (result,), _ = fill_table([encoder], lambda encoder: context, [evaluation], RunSettings(), Store(tmp_path))
        return result

    without, labelled, otherwise = cell(None), cell(odd), cell(1 - odd.roll(1) * odd)
    assert isnan(without.estimates[0].value)
    assert not isnan(labelled.estimates[0].value)
    assert otherwise.findings != labelled.findings
    assert "labels" not in without.settings
    assert labelled.settings["labels"] != otherwise.settings["labels"]
    assert len(Store(tmp_path).results()) == 3


def test_another_seed_of_attacks_looks_at_the_same_images(tmp_path):
    (first,), _ = fill(tmp_path, [tiny.Mean()], RunSettings(seed=3))
    (other,), _ = fill(tmp_path, [tiny.Mean()], RunSettings(seed=3, attack_seed=4))
    assert other.findings.ids == first.findings.ids
    assert other.findings != first.findings
    assert other.settings["attack_seed"] == 4
    assert fill(tmp_path, [tiny.Mean()], RunSettings(seed=4))[0][0].findings.ids != first.findings.ids, "vacuous"


def numbers(result: Result) -> list[float]:
    return [value for series in result.series for value in series.values] or [e.value for e in result.estimates]


CHEAP = {
    "samples": 6,
    "balls": ["linf:0.1"],
    "negatives": 2,
    "others": 8,
    "tail": 5,
    "rivals": 2,
    "tolerance": 0.01,
    "attack": "adaptive:restarts=1,steps=5",
    "scales": [0.5, 2.0, 4.0],
    "encodings": 600,
    "k": 3,
    "batches": 8,
    "draws": 2,
    "random": 5,
    "guided": 2,
    "selection": 50,
    "copies": 80,
    "slack": 0.25,
    "radii": [0.05],
}


KINDS = ("displacement", "spade", "randomized-smoothing", "certified-displacement")
"""One of each kind of observation; the laws know of all that shards and order
change nothing, and test_engines that they do not in tables."""


@pytest.mark.parametrize("name", rest_slow(KINDS))
def test_every_kind_of_observation_ignores_sharding_and_order_of_a_table(name, tmp_path):
    kind = catalog.evaluations()[name]
    cheap = {field.name: CHEAP[field.name] for field in fields(kind) if field.name in CHEAP}
    if kind.__module__.split(".")[1] in ("spectral", "synthetic"):  # which say nothing of so few
        cheap.pop("samples", None)
    evaluation, encoder = build(kind, cheap), load("builtin:digits-random")
    digits = data.load("builtin:digits", encoder.domain, limit=12)
    bank = data.load("builtin:digits-train", encoder.domain, limit=30) if evaluation.needs_bank else None

    def cells(batch_size: int, seed: int = 0) -> Result:
        run, store = (
            RunSettings(seed=seed, precision="float64", batch_size=batch_size),
            Store(tmp_path / str(batch_size)),
        )
        (result,), failures = fill_table(
            [encoder], lambda encoder: digits, [evaluation], run, store, Backwards(), bank_for=lambda encoder: bank
        )
        assert not failures
        return result

    expected = numbers(evaluation(encoder, digits, RunSettings(precision="float64"), bank))
    assert numbers(cells(5)) == pytest.approx(expected, rel=1e-6, abs=1e-9, nan_ok=True)
    assert cells(5, seed=1).findings != cells(5).findings, "vacuous"
