"""No method proves a network that has a counterexample, even one that no attack finds."""

from __future__ import annotations

import pytest
import torch

from holdfast.attacks.presets import read_attack
from holdfast.bounds import lower_bound, read_method
from holdfast.bounds.methods.base import methods
from holdfast.core.noise import Noise
from tests.hidden import BALL, hidden
from tests.marks import rest_slow

SPECIFICATION = torch.ones(1, 1, 1, dtype=torch.float64)
SEEDS = range(6)


@pytest.mark.slow
def test_counterexamples_are_there_and_attacks_do_not_find_them():
    for seed in SEEDS:
        case = hidden(seed)
        assert (case.secret - case.image).abs().max() <= BALL.radius
        assert case.encoder(case.secret) < -1
        assert case.encoder(case.image) > 0.5
        for name in ("pgd:steps=40,restarts=5", "adaptive", "square"):
            delta = read_attack(name)(
                case.encoder, case.image, lambda codes: -codes[:, 0], BALL, Noise.of(seed, ["image"])
            )
            assert case.encoder(delta) > 0, f"{name} finds it, so that it is not hidden"


@pytest.mark.parametrize("name", rest_slow(["interval", *(name for name in methods() if name != "interval")]))
def test_no_method_proves_what_is_false(name):
    slow = hasattr(methods()[name], "seconds")
    method = read_method(f"{name}:seconds=1" if slow else name)
    for seed in SEEDS[:2] if slow else SEEDS:
        case = hidden(seed)
        bound = lower_bound(case.encoder, case.image, SPECIFICATION, BALL, method)
        assert bound <= case.encoder(case.secret).double()
        assert lower_bound(case.harmless, case.image, SPECIFICATION, BALL, method) > 0, "proves nothing at all"
