"""What plans are made with: the pace of an encoder, the forwards of a piece of work, and forecasts made of both."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path
from typing import Any, final

import pytest
import torch
from torch import Tensor, nn

from holdfast.attacks.adaptive import AdaptiveAttack
from holdfast.attacks.base import Attack
from holdfast.attacks.black_box import SquareAttack
from holdfast.attacks.gradient import GradientAttack
from holdfast.core.balls import Linf
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.images import Images
from holdfast.core.noise import Noise
from holdfast.core.optimised import operations
from holdfast.core.run_settings import Observed, RunSettings
from holdfast.encoders.baseline import raw_pixels
from holdfast.geometry.evaluations.geometry import SpaceGeometry
from holdfast.measure.population import Fit, Population
from holdfast.measure.store import Store
from holdfast.run import computing, table
from holdfast.run.engines.base import Local
from holdfast.run.forecast import CONCLUSION, SET_UP, Deadline, Forecast, seconds_per_forward
from holdfast.run.plan import fastest, gradient_seconds
from holdfast.smoothing.index import NoisyIndex
from tests import tiny
from tests.filled import Told, fill_table
from tests.run.test_budget import Clock, cells, clock, fill, mean

__all__ = ["clock"]


class Slow(nn.Module):
    """Forwards and backwards that take as long as they are told, by a clock of their own."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        super().__init__()
        self.clock, self.seconds = [clock], seconds
        self.weight = nn.Parameter(torch.ones(()))

    def __deepcopy__(self, memo: Any) -> Slow:
        return Slow(self.clock[0], self.seconds)

    def forward(self, x: Tensor) -> Tensor:
        self.clock[0].sleep(len(x) * self.seconds)
        return x.flatten(1) * self.weight


@pytest.mark.parametrize(
    "attack", [GradientAttack(steps=7), AdaptiveAttack(restarts=3, steps=10), SquareAttack(queries=20)], ids=str
)
def test_an_attack_takes_about_the_forwards_it_says(attack: Attack) -> None:
    counted = 0

    class Counting(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            nonlocal counted
            counted += 3 if x.requires_grad else 1
            return x.flatten(1) ** 2

    encoder = Encoder(Counting(), "counting", Domain((1, 2, 2)))
    pixels = torch.full((1, 1, 2, 2), 0.5)
    attack(encoder, pixels, lambda codes: codes.sum(1), Linf(0.1), Noise.of(0, ["a"]))
    assert 0.8 * counted <= attack.forward_passes <= 1.25 * counted


def test_an_encoder_without_operations_takes_the_time_it_takes(clock: Clock) -> None:
    """It counts as 0 operations; forecasts in proportion to those were millions of times too long."""
    pixels = raw_pixels(Domain((3, 8, 8)))
    assert operations(pixels) == 0
    slow = Encoder(Slow(clock, 0.5), "slow", Domain((3, 8, 8)))
    assert seconds_per_forward(slow) == pytest.approx(0.5), (
        "a step, counted as five forwards, takes the time of two: a forward is slower"
    )


@pytest.mark.parametrize("domain", [Domain((4,), -inf, inf), Domain((4,), 1.0, inf), Domain((4,), -inf, -1.0)])
def test_inputs_without_limits_have_a_pace_and_are_measured(domain: Domain, tmp_path: Path) -> None:
    """A middle of infinities is not a number, and a hundredth of them no radius."""

    class Within(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            domain.check(x)
            return super().forward(x)

    encoder = Encoder(Within(4, 3), "unlimited", domain)
    assert seconds_per_forward(encoder) > 0
    assert fastest(lambda count: gradient_seconds(encoder, count)) > 0
    images = Images(domain.clip(torch.randn(40, 4)))
    results, failures = fill_table(
        [encoder], lambda _: images, [SpaceGeometry()], RunSettings(), Store(tmp_path), Local()
    )
    assert [result.evaluation for result in results] == ["geometry"], failures


def test_forecasts_with_a_baseline_are_of_the_right_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an encoder's rows take, told from those of the pixels, and the other way round."""
    domain = Domain((3, 32, 32))
    network = Encoder(nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Flatten()), "network", domain)
    paces = {"network": seconds_per_forward(network), "pixels": seconds_per_forward(raw_pixels(domain))}
    assert paces["pixels"] > 0
    assert 1 < paces["network"] / paces["pixels"] < 10_000
    forecast, what = Forecast(paces), tiny.Seen()
    forecast.tell(("pixels", what), 10, 1.0, 10, 100)
    slower = paces["network"] / paces["pixels"]
    assert forecast.seconds(("network", what), 10) == pytest.approx(SET_UP + (1 - SET_UP) * slower), "set up alike"


def test_a_pace_that_becomes_known_changes_what_was_forecast_before() -> None:
    forecast, what = Forecast({"pixels": 1.0}), tiny.Seen()
    forecast.tell(("pixels", what), 10, 1.0, 10, 100)
    before = forecast.expected(("network", what), 10)
    forecast.know_pace("network", 4.0)
    assert forecast.expected(("network", what), 10) > before


def test_what_was_never_measured_is_planned_by_its_forwards() -> None:
    forecast, piece = Forecast({"a": 0.5}), ("a", tiny.Seen())
    forecast.plan(piece, 30)
    assert forecast.seconds(piece, 2) is None
    assert forecast.expected(piece, 2) == 30.0
    forecast.tell(piece, 2, 7.0, 2, 10)
    assert forecast.expected(piece, 2) == 7.0


def test_what_takes_long_beside_few_forwards_tells_nothing_of_others() -> None:
    """Bounds do; all together they were thought five times as slow, and a budget ended with nothing begun."""
    forecast = Forecast({"a": 0.1})
    bounds, attacks, waiting = (("a", tiny.Seen(name)) for name in ("bounds", "attacks", "waiting"))
    for piece, forwards in ((bounds, 9), (attacks, 60), (waiting, 700)):
        forecast.plan(piece, forwards)
    forecast.tell(bounds, 4, 300.0, 4, 30)
    assert forecast.expected(waiting, 4) == pytest.approx(4 * 70.0), "before much is known the plan is believed"
    forecast.tell(attacks, 4, 1.5 * 24.0, 4, 30)
    assert forecast.expected(waiting, 4) == pytest.approx(1.5 * 4 * 70.0, rel=0.02)


FIRST_OF_A_LARGE_NETWORK = [
    ("radii", 152, 30, (5.05, 1.74, 1.89, 4.64)),
    ("unit codes", 160, 4, (5.24, 5.55, 5.36, 4.82)),
    ("attacked unit codes", 128, 4, (4.32, 4.27, 3.50, 3.43)),
]
"""Of EfficientNet-Lite0 at 224 pixels, a row a shard: forwards of a row, rows, seconds of the first shards."""
FIRST_ORDER = (0, 1, 0, 0, 0, 2, 1, 2, 1, 2, 2, 1)


def test_a_long_first_shard_speaks_for_the_others() -> None:
    """What the radii set up was taken from all that was measured once: .6 to .69 of the time left was said for 15 s."""
    forecast, done = Forecast({"lite0": 0.0368}, beside=2), [0, 0, 0]
    pieces = [("lite0", tiny.Seen(name)) for name, *_ in FIRST_OF_A_LARGE_NETWORK]
    for piece, (_, forwards, rows, _) in zip(pieces, FIRST_OF_A_LARGE_NETWORK, strict=True):
        forecast.plan(piece, forwards, rows)
        forecast.expect(piece)
    for k in FIRST_ORDER:
        _, _, rows, shards = FIRST_OF_A_LARGE_NETWORK[k]
        forecast.tell(pieces[k], 1, shards[done[k]], done[k] + 1, rows)
        done[k] += 1
        known = [piece for piece, count in zip(pieces, done, strict=True) if count]
        for piece, count, (_, _, _, recorded) in zip(pieces, done, FIRST_OF_A_LARGE_NETWORK, strict=True):
            if piece in known and piece != pieces[0] and count < 4:
                left = sum(recorded[count:])
                assert forecast.seconds(piece, 4 - count) == pytest.approx(left, rel=0.25), f"{count} shards of {piece}"


TOUR = [
    ("targeted", 952, (12, 88), ((0.52, 0.94), (0.52, 0.84), (0.53, 1.11), (0.54, 1.21))),
    ("told", 954, (6, 44), ((3.10, 0.67), (0.28, 0.37), (0.36, 0.50), (0.23, 0.60))),
    ("bracket", 234, (6, 44), ((0.55, 1.16), (0.49, 1.32), (0.49, 1.27), (0.56, 1.62))),
    ("linear", 78, (6, 44), ((1.09, 2.87), (1.24, 2.95), (1.42, 3.27), (1.53, 4.62))),
    ("edited", 75, (7, 53), ((1.33, 1.52), (0.20, 0.52), (0.19, 0.66), (0.21, 0.78))),
    ("edited gently", 54, (7, 53), ((0.12, 0.33), (0.12, 0.29), (0.14, 0.38), (0.12, 0.36))),
]
"""Of four small encoders: forwards of a row, rows of two shards, and the seconds of both for each encoder, as recorded."""


def test_small_networks_take_as_long_for_few_rows() -> None:
    """First shards of few rows foretold four times as long as the run took, for all of its first half."""
    forecast = Forecast(dict.fromkeys("abcd", 4e-6))
    for name, forwards, rows, _ in TOUR:
        for encoder in "abcd":
            forecast.plan((encoder, tiny.Seen(name)), forwards, sum(rows))
            forecast.expect((encoder, tiny.Seen(name)))
    left = sum(sum(map(sum, recorded)) for *_, recorded in TOUR)
    for shard in (0, 1):
        for place, encoder in enumerate("abcd"):
            for name, _, rows, recorded in TOUR:
                piece, done = (encoder, tiny.Seen(name)), sum(rows[: shard + 1])
                forecast.tell(piece, rows[shard], recorded[place][shard], done, sum(rows))
                forecast.pass_time(recorded[place][shard], recorded[place][shard])
                left -= recorded[place][shard]
            if (shard, place) not in ((0, 0), (1, 3)):  # what the first alone bore nobody can tell yet
                assert forecast.seconds_left == pytest.approx(left, rel=0.35), f"shard {shard} of {encoder}"


def test_conclusions_and_their_pictures_are_counted_from_the_beginning() -> None:
    """They were not, and took a tenth of the time of a large network; workers draw them side by side."""
    forecast = Forecast({"a": 0.5}, beside=2)
    seen, short, illustrated = ("a", tiny.Seen()), ("a", tiny.Mean()), ("a", tiny.Mean(pause=1.0))
    forecast.plan(seen, 30)
    for piece in (short, illustrated):
        forecast.expect(piece)
    forecast.pictures[illustrated] = {seen: 6}
    assert forecast.conclusions == pytest.approx(CONCLUSION + 90.0), "no two workers share one"
    forecast.tell(seen, 10, 20.0, 10, 10)
    assert forecast.seconds_left == forecast.conclusions == pytest.approx(CONCLUSION + 12.0)
    forecast.concluding[short] = 14.0
    assert forecast.conclusions == pytest.approx(14.0)
    forecast.drop(illustrated)
    forecast.tell(short, 1, 3.0, 0, 1)
    assert forecast.conclusions == pytest.approx(3.0)


def test_the_index_of_noisy_copies_is_learned_where_it_is_needed() -> None:
    population = Population(tiny.encoder(), tiny.images(40), RunSettings())
    fit = NoisyIndex(0.1, samples=3, others=5)
    assert fit.forward_passes(population) == 16 * 8
    few, every = fit.learn(population)["codes"], NoisyIndex(0.1, samples=40, others=5).learn(population)["codes"]
    assert len(few) == 8
    torch.testing.assert_close(few, every[:8])


@final
@dataclass(frozen=True)
class Dear(Fit[Tensor]):
    """Takes ten minutes, and says so."""

    name = "dear"
    version = 1

    def forward_passes(self, population: Population) -> int:
        return 600

    def learn(self, population: Population) -> Observed:
        raise AssertionError("there is no time to learn this")

    def restore(self, population: Population, learned: Observed) -> Tensor:
        return learned["zero"]


def test_four_images_give_a_partial_result_with_an_interval(tmp_path: Path, clock: Clock) -> None:
    (result,), failures = fill(tmp_path, [mean(1.0)], budget=1.0, names="a")
    (estimate,) = result.findings.estimates
    assert failures == []
    assert (result.planned, len(result.findings.ids), estimate.n) == (80, 4, 4)
    assert isfinite(estimate.low)
    assert estimate.low < estimate.value < estimate.high < float("inf")


def test_what_costs_too_much_to_learn_is_left_and_the_others_have_answers(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiny.Mean, "fits", lambda self: (Dear(),) if self.factor == 2.0 else ())
    monkeypatch.setattr(table, "seconds_per_forward", lambda encoder: 1.0)
    results, failures = fill(tmp_path, [tiny.Mean(2.0, pause=1.0), tiny.Mean(1.0, pause=1.5)], budget=30.0, names="a")
    assert [result.settings["factor"] for result in results] == [1.0]
    assert [failure.error for failure in failures] == ["BudgetSpentError"]
    assert clock.now <= 33.0


def test_every_question_is_answered_before_any_is_answered_well(tmp_path: Path, clock: Clock) -> None:
    """Ten cells whose shards take from half a second to five, and time for a third of all."""
    pauses = (0.5, 1.0, 2.0, 3.0, 5.0)
    results, failures = fill(tmp_path, [mean(pause) for pause in pauses], budget=60.0)
    counts = {cell: len(result.findings.ids) for cell, result in cells(results).items()}
    assert failures == []
    assert len(counts) == 10
    assert min(counts.values()) >= 4
    assert max(counts.values()) <= 8 * min(counts.values()) or max(counts.values()) == 80
    assert clock.now <= 66.0


def test_a_forecast_is_told_only_so_often_and_the_end_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, told, looked = 100.0, list[float](), list[float]()

    def left(deadline: Deadline) -> float:
        looked.append(now)
        return 7.0 if any(deadline.forecast.waiting.values()) else 0.0

    monkeypatch.setattr(Deadline, "seconds_left", property(left))
    monkeypatch.setattr(computing, "monotonic", lambda: now)
    forecast, piece = Forecast({}, worked=1.0), ("a", tiny.Seen())
    deadline = Deadline(forecast, None, began=90.0)
    store = Store(tmp_path / "run")
    work = computing.Computing(store, Local(), Told(lambda doing, finished, seconds: told.append(seconds)), deadline)
    forecast.expect(piece)
    for _ in range(5):
        work.tell("at once")
    assert (len(looked), told) == (1, [7.0] * 5)
    now += 2 * computing.PAUSE
    work.tell("later")
    assert len(looked) == 2
    forecast.drop(piece)
    work.tell("the end")
    assert told[-1] == 0.0
    assert work.finished == 1.0
