"""AutoAttack beside an independent program, pyautoattack, on a linear probe of a built-in encoder.

Run this file by hand, with ``python -m tests.probes.test_autoattack_independent 100 linf:0.05``, for one
column of the comparison in docs/attacks.md.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache
from time import process_time
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from holdfast.attacks.autoattack import APGD, FAB, AutoAttack, nearest_errors
from holdfast.attacks.base import Attack
from holdfast.attacks.black_box import SquareAttack
from holdfast.attacks.objectives.simple import ClassMargin
from holdfast.core.balls import L2, Ball, Linf
from holdfast.core.encoder import Encoder, Pixels
from holdfast.core.noise import Noise
from holdfast.core.run_settings import RunSettings
from holdfast.data import load
from holdfast.measure.population import Population
from holdfast.probes.linear import Linear, LinearScores
from tests.samples import DIGITS, builtin

BALLS: tuple[Ball, ...] = (Linf(0.05), Linf(0.1), L2(0.2), L2(0.4))
MEMBERS: dict[str, Attack] = {
    "apgd-ce": APGD(),
    "apgd-t": APGD(loss="dlr", targets=9),
    "fab-t": FAB(targets=9),
    "square": SquareAttack(queries=5000, area=0.8),
    "standard": AutoAttack(),
}
"""The members of the ensemble, by the names of the other program."""


@dataclass(frozen=True)
class Case:
    """Images that a linear probe gets right, with the probe."""

    encoder: Encoder
    pixels: Pixels
    margin: ClassMargin
    noise: Noise
    module: nn.Module
    images: int


@cache
def case(count: int) -> Case:
    """Return the images among the first ``count`` that a linear probe of the built-in encoder gets right."""
    encoder, run = builtin(), RunSettings()
    bank = Population(encoder, load("builtin:digits-train", DIGITS), run)
    asked = Population(encoder, load("builtin:digits", DIGITS, limit=count), run, bank=bank)
    probe = asked.learned(Linear())
    assert isinstance(probe, LinearScores)
    right = [row for row in range(count) if probe.ranks(asked.codes[[row]], asked.labels[[row]])[0] == 0]
    margin = ClassMargin(probe.logits, probe.places(asked.labels[right]))
    head = nn.Linear(probe.weight.shape[1], probe.weight.shape[0])
    head.weight.data, head.bias.data = probe.weight.float(), probe.bias.float()
    module = nn.Sequential(encoder.module, head).eval()
    noise = run.noise([asked.images.ids[row] for row in right])
    return Case(encoder, asked.pixels(right), margin, noise, module, count)


def theirs(case: Case, ball: Ball, name: str) -> Pixels:
    """Return what the other program finds."""
    package = pytest.importorskip("pyautoattack", reason="pyautoattack 0.2.0 is not installed")
    norm = {"linf": "Linf", "l2": "L2"}[ball.name]
    chosen = {} if name == "standard" else {"attacks": [name], "version": "custom"}
    attack: Any = package.AutoAttack(case.module, norm=norm, eps=ball.radius, seed=0, **chosen)
    with redirect_stdout(io.StringIO()):
        moved, _ = attack.run_standard_evaluation(case.pixels, case.margin.places, batch_size=len(case.pixels))
    return moved


def ours(case: Case, ball: Ball, name: str) -> Pixels:
    """Return what Holdfast finds."""
    return MEMBERS[name](case.encoder, case.pixels, case.margin, ball, case.noise)


def wrong(case: Case, moved: Pixels, ball: Ball) -> Tensor:
    """Return the mask of the images in ``ball`` that the probe gets wrong, by the other program's module."""
    with torch.no_grad():
        answers = case.module(moved).argmax(1)
    assert bool((ball.norm(moved - case.pixels) <= ball.radius * (1 + 1e-4)).all())
    return answers != case.margin.places


@cache
def found(count: int, ball: Ball, name: str, finds: Callable[[Case, Ball, str], Pixels]) -> tuple[Tensor, float]:
    """Return which images an attack made wrong, and its seconds of processor time."""
    start = process_time()
    moved = finds(case(count), ball, name)
    return wrong(case(count), moved, ball), process_time() - start


@pytest.mark.slow
@pytest.mark.parametrize("ball", BALLS, ids=str)
def test_both_find_the_same_images(ball: Ball) -> None:
    pytest.importorskip("pyautoattack", reason="pyautoattack 0.2.0 is not installed")
    here, there = (found(40, ball, "standard", finds)[0] for finds in (ours, theirs))
    assert 0 < here.sum() < len(here), "vacuous"
    assert (here & ~there).sum() <= 1
    assert (there & ~here).sum() <= 1
    for name in ("apgd-ce", "apgd-t", "fab-t"):
        both = [int(found(40, ball, name, finds)[0].sum()) for finds in (ours, theirs)]
        assert abs(both[0] - both[1]) <= 2, name


def norms(count: int, ball: Ball, targets: int = 0) -> tuple[Tensor, Tensor]:
    """Return the smallest norms of FAB, ours and theirs, image by image; infinite where none was found."""
    fab: Any = pytest.importorskip("pyautoattack.fab_pt", reason="pyautoattack 0.2.0 is not installed")
    asked = case(count)
    _, here = nearest_errors(asked.encoder, asked.pixels, asked.margin, ball, 100, asked.pixels)
    norm = {"linf": "Linf", "l2": "L2", "l1": "L1"}[ball.name]
    attack = fab.FABAttack_PT(asked.module, norm=norm, eps=1e6, n_restarts=1, n_iter=100, seed=0, device="cpu")
    with redirect_stdout(io.StringIO()):
        moved = attack.perturb(asked.pixels, asked.margin.places)
    with torch.no_grad():
        failed = asked.module(moved).argmax(1) == asked.margin.places
    return here, ball.norm(moved - asked.pixels).masked_fill(failed, torch.inf)


@pytest.mark.slow
@pytest.mark.parametrize("ball", [Linf(1.0), L2(1.0)], ids=["linf", "l2"])
def test_the_smallest_norms_of_fab_agree(ball: Ball) -> None:
    here, there = norms(40, ball)
    assert bool(here.isfinite().all())
    assert float((here / there).median()) == pytest.approx(1, abs=0.02)
    assert float((here / there).quantile(0.9)) <= 1.1


if __name__ == "__main__":
    import sys

    count, *texts = int(sys.argv[1]), *sys.argv[2:]
    print(len(case(count).pixels), "of", count, "right")
    for ball in map(Ball.read, texts or map(str, BALLS)):
        for name in MEMBERS:
            (here, fast), (there, slow) = (found(count, ball, name, finds) for finds in (ours, theirs))
            numbers = int(here.sum()), int(there.sum()), int((here & ~there).sum()), int((there & ~here).sum())
            print(
                ball, name, "ours, theirs, ours only, theirs only:", *numbers, f"{fast:.1f} s {slow:.1f} s", flush=True
            )
        here, there = norms(count, ball)
        ratio = here / there
        ends = ratio[ratio.isfinite()].quantile(torch.tensor([0, 0.1, 0.5, 0.9, 1])).tolist()
        missed = int(here.isinf().sum()), int(there.isinf().sum())
        print("fab", ball.name, "missed", *missed, "median", float(here.median()), "ratio", ends, flush=True)
