"""What a table learns before it looks: once, kept, resumed, within the budget, and failing no more than it must."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import pytest
import torch

from holdfast.attacks.adaptive import AdaptiveAttack
from holdfast.bounds.evaluations.linear_radius import LinearHead, LinearRadius
from holdfast.bounds.evaluations.margin_distribution import MarginDistribution
from holdfast.core.encoder import Encoder
from holdfast.core.errors import HoldfastError
from holdfast.core.images import Images
from holdfast.core.records import Claim, Failure, Findings, Result, Series
from holdfast.core.run_settings import Observed, RunSettings
from holdfast.core.statistics.summaries import summarise
from holdfast.encoders import load
from holdfast.measure.evaluation import Evaluation, fits_of
from holdfast.measure.observation import Observation
from holdfast.measure.population import Fit, Population
from holdfast.measure.store import Store, key_of
from holdfast.run.engines.base import Context, Engine, Output, Unit
from tests import tiny
from tests.filled import fill_table
from tests.samples import digits


@final
@dataclass(frozen=True)
class Centre(Fit[torch.Tensor]):
    """The mean code; writes to ``log`` whose it learned."""

    log: str
    broken: bool = False
    name = "mean-code"
    version = 1

    def learn(self, population: Population) -> Observed:
        if self.broken:
            raise HoldfastError("these codes have no mean")
        with Path(self.log).open("a") as file:
            file.write(f"{population.encoder.name}\n")
        return {"centre": population.codes.mean(0)}

    def restore(self, population: Population, learned: Observed) -> torch.Tensor:
        return learned["centre"]


@final
@dataclass(frozen=True)
class Distances(Observation):
    log: str
    broken: bool = False
    name = "distances"
    version = 1

    def fits(self) -> tuple[Centre]:
        return (Centre(self.log, self.broken),)

    def rows(self, population: Population) -> list[int]:
        return population.choose(16)

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        return {"distance": (population.codes[list(rows)] - population.learned(*self.fits())).norm(dim=1)}


@final
@dataclass(frozen=True)
class Spread(Evaluation):
    log: str
    factor: float = 1.0
    broken: bool = False
    name = "spread"
    version = 1
    title = "Spread"
    meaning = "A number. Nothing more."
    headline = ("spread",)

    def observation(self) -> Distances:
        return Distances(self.log, self.broken)

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        values = tuple((observed["distance"] * self.factor).tolist())
        series = Series(quantity="spread", values=values, unit="1", claim=Claim.ESTIMATE, of="spread")
        ids = tuple(population.images.ids[row] for row in rows)
        return Findings(ids=ids, series=(series,), estimates=(summarise(series, "mean", "neither"),))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def fill(
    folder: Path,
    evaluations: Sequence[Evaluation],
    engine: Engine | None = None,
    budget: float | None = None,
    told: Callable[[str, float, float], None] | None = None,
    encoders: Sequence[Encoder] | None = None,
) -> tuple[list[Result], list[Failure]]:
    own = encoders or [tiny.encoder()]
    store = Store(folder)
    run = RunSettings(batch_size=1)
    return fill_table(own, lambda encoder: tiny.images(), evaluations, run, store, engine, progress=told, budget=budget)


def learned(log: Path) -> list[str]:
    return log.read_text().split() if log.exists() else []


def test_what_is_learned_is_learned_once_per_encoder(tmp_path: Path, log: Path) -> None:
    encoders = [tiny.encoder("a"), tiny.encoder("b", 3.0)]
    results, failures = fill(tmp_path / "run", [Spread(str(log)), Spread(str(log), 2.0)], encoders=encoders)
    assert (len(results), failures) == (4, [])
    assert learned(log) == ["a", "b"]
    direct = Spread(str(log))(encoders[0], tiny.images(), RunSettings(batch_size=1))
    assert direct.findings.model_dump_json() == results[0].findings.model_dump_json()
    assert learned(log) == ["a", "b", "a"], "once for all batches"


class Killed:
    """Dies before it has looked at anything but the clean codes."""

    def map(
        self, task: Callable[[Context, Unit], Output], context: Context, shards: Iterable[Unit]
    ) -> Generator[tuple[Unit, Output], None, None]:
        for shard in shards:
            if isinstance(shard, tuple) and isinstance(shard[0], Distances):
                raise KeyboardInterrupt
            yield shard, task(context, shard)


def test_a_killed_run_goes_on_without_learning_again(tmp_path: Path, log: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        fill(tmp_path / "run", [Spread(str(log))], Killed())
    assert learned(log) == ["tiny"]
    results, _ = fill(tmp_path / "run", [Spread(str(log))])
    assert (len(results), learned(log)) == (1, ["tiny"])


def test_a_damaged_file_is_learned_anew(tmp_path: Path, log: Path) -> None:
    first, _ = fill(tmp_path / "run", [Spread(str(log))])
    (kept,) = (tmp_path / "run" / "fits").rglob("*.safetensors")
    kept.write_bytes(kept.read_bytes()[:-1])
    again, _ = fill(tmp_path / "run", [Spread(str(log), 2.0)])
    assert len(learned(log)) == 2
    assert again[0].series[0].values == tuple(2 * value for value in first[0].series[0].values)


def test_what_cannot_be_learned_fails_only_those_who_ask(tmp_path: Path, log: Path) -> None:
    results, (failure,) = fill(tmp_path / "run", [Spread(str(log), broken=True), Spread(str(log)), tiny.Mean()])
    assert [result.evaluation for result in results] == ["spread", "mean"]
    assert (failure.error, failure.reason) == ("HoldfastError", "these codes have no mean")


def test_learning_is_told_and_stops_for_the_budget(tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / "run", [tiny.Mean()])  # the clean codes are there, so that learning comes first
    told: list[str] = []
    with monkeypatch.context() as patch:
        clock = iter([0.0])
        patch.setattr("tests.filled.monotonic", lambda: next(clock, 100.0))
        results, (failure,) = fill(tmp_path / "run", [Spread(str(log))], budget=50.0)
    assert (results, failure.error, learned(log)) == ([], "BudgetSpentError", [])
    results, failures = fill(tmp_path / "run", [Spread(str(log))], told=lambda doing, share, left: told.append(doing))
    assert told[0] == "tiny: learning mean code"
    assert (len(results), failures, learned(log)) == (1, [], ["tiny"])


def test_the_linear_head_is_trained_once_however_many_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sklearn.linear_model import LogisticRegression

    trained, fit = list[int](), LogisticRegression.fit

    def counted(model: Any, x: Any, y: Any) -> Any:
        trained.append(len(x))
        return fit(model, x, y)

    monkeypatch.setattr(LogisticRegression, "fit", counted)
    plain = tiny.images()
    images = Images(plain.pixels(range(20)), plain.ids, torch.arange(20) % 2)
    attack = AdaptiveAttack(restarts=1, steps=2)
    evaluation = LinearRadius(samples=3, rivals=1, tolerance=0.2, attack=attack)
    results, failures = fill_table(
        [tiny.encoder()], lambda _: images, [evaluation], RunSettings(batch_size=1), Store(tmp_path)
    )
    assert (len(results), failures) == (1, [])
    assert trained == [17]
    assert len(list(tmp_path.rglob("shards/linear-*/*"))) == 3
    assert fits_of(evaluation) == fits_of(MarginDistribution(samples=3)), "one head serves both"


def test_labels_are_in_the_key_of_what_is_learned_from_them(log: Path) -> None:
    plain, encoder, run = digits(30), load("builtin:digits-random"), RunSettings()
    given = [
        Images(plain.pixels(range(30)), plain.ids, labels)
        for labels in (None, torch.arange(30) % 2, torch.arange(30) % 3)
    ]
    for fit, count in ((LinearHead(6), 3), (Centre(str(log)), 1)):
        assert len({key_of(fit, encoder, images, run).digest for images in given}) == count
    keys = {key_of(fit, encoder, given[1], run).digest for fit in (LinearHead(6), LinearHead(7), Centre(str(log)))}
    keys |= {
        key_of(LinearHead(6), encoder, given[1], other).digest
        for other in (replace(run, seed=1), RunSettings(precision="float64"))
    }
    assert len(keys) == 5
