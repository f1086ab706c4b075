from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
import torch

from holdfast.attacks.evaluations.displacement import Displacement
from holdfast.attacks.gradient import GradientAttack
from holdfast.bounds.evaluations.linear_radius import LinearHead
from holdfast.core.balls import Linf
from holdfast.core.divergences import L2Distance, Whitened
from holdfast.core.images import Images
from holdfast.core.records import Result
from holdfast.core.run_settings import RunSettings
from holdfast.measure.evaluation import fits_of
from holdfast.measure.population import Population, Whitening
from tests.samples import builtin, digits

WHITE = Displacement(balls=(Linf(0.05),), attacks=(GradientAttack(steps=2),), divergences=(Whitened(),), samples=8)


def labelled() -> Images:
    plain = digits(30)
    return Images(plain.pixels(range(30)), plain.ids, torch.arange(30) % 3)


def test_divergences_that_learn_are_fits_of_those_who_have_them() -> None:
    assert set(fits_of(WHITE)) == {Whitening(Whitened())}
    assert fits_of(replace(WHITE, divergences=(L2Distance(),))) == ()


def test_a_population_takes_what_is_known() -> None:
    fresh = Population(builtin(), digits(20), RunSettings())
    known = Whitening(Whitened()).learn(fresh)
    told = Population(
        builtin(), digits(20), RunSettings(), known={Whitening(Whitened()): {"matrix": 2 * known["matrix"]}}
    )
    a, b = torch.randn(2, 5, 32)
    expected = fresh.fitted(Whitened())(a, b)
    assert torch.equal(fresh.codes, told.codes)
    assert torch.allclose(told.fitted(Whitened())(a, b), 2 * expected)
    assert torch.equal(Whitened().fit(fresh.codes)(a, b), expected)


def test_why_it_is_not_known_is_told_to_all_who_ask() -> None:
    population = Population(builtin(), digits(20), RunSettings(), known={LinearHead(4): RuntimeError("no time left")})
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no time left"):
            population.learned(LinearHead(4))


def test_a_worker_gets_what_was_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    population = Population(builtin(), labelled(), RunSettings())
    head, white = population.learned(LinearHead(6)), population.fitted(Whitened())
    assert head is not None
    sent = pickle.dumps(population)
    for kind in (LinearHead, Whitening):
        monkeypatch.setattr(kind, "learn", lambda *_: pytest.fail("learned again"))
    worker = pickle.loads(sent)
    x, codes = population.pixels(range(30)).double(), population.codes
    there = worker.learned(LinearHead(6))
    assert torch.equal(there.logits(x), head.logits(x))
    assert torch.equal(worker.fitted(Whitened())(codes, codes.roll(1, 0)), white(codes, codes.roll(1, 0)))


def test_heads_need_labels_of_two_classes() -> None:
    assert Population(builtin(), digits(20), RunSettings()).learned(LinearHead(4)) is None
    one = Images(digits(20).pixels(range(20)), labels=torch.zeros(20, dtype=torch.int64))
    assert Population(builtin(), one, RunSettings()).learned(LinearHead(4)) is None


def numbers(result: Result) -> dict[str, list[float]]:
    ids = sorted(range(len(result.findings.ids)), key=lambda k: result.findings.ids[k])
    return {str((s.quantity, s.conditions)): [s.values[k] for k in ids] for s in result.series}


def test_whitened_numbers_ignore_order_and_batch_size() -> None:
    images, run = digits(20), RunSettings(precision="float64")
    whole = numbers(WHITE(builtin(), images, run))
    assert whole
    for other in (
        WHITE(builtin(), images, replace(run, batch_size=3)),
        WHITE(builtin(), images[list(range(20))[::-1]], run),
    ):
        for name, values in numbers(other).items():
            assert values == pytest.approx(whole[name], rel=1e-6, abs=1e-9, nan_ok=True)
