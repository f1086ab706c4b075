"""What the mean of neighbours kept hides, against slow loops, and through gates, reports and the terminal."""

from __future__ import annotations

from math import isnan
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import holdfast as hf
from holdfast.cli import run
from holdfast.core.statistics.tails import tails_of
from holdfast.service.parity import Pair, findings
from holdfast.service.parity_maps import Gallery, Kept, answers, exchanged, influences, tail_influences

K = 5
NAMES = ("at_50", "at_80", "at_100", "worst_1", "worst_10")


def codes(n: int, seed: int) -> Tensor:
    return torch.randn(n, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def pair(n: int, groups: tuple[str, ...] = ()) -> Pair:
    a = codes(n, 0)
    b = a + 0.2 * codes(n, 1)
    b[:3] = codes(3, 2)
    return Pair(tuple(map(str, range(n))), a, b, Gallery(a, b, False), torch.arange(n), "the other images", groups)


def slow_kept(a: np.ndarray, b: np.ndarray) -> list[float]:
    """The fraction of its neighbours by cosine that each query keeps, by sorting all distances."""
    lists: list[list[list[int]]] = []
    for points in (a, b):
        unit = points / np.linalg.norm(points, axis=1, keepdims=True)
        near = []
        for query in range(len(unit)):
            others = [place for place in range(len(unit)) if place != query]
            near.append(sorted(others, key=lambda place: 1 - float(unit[query] @ unit[place]))[:K])
        lists.append(near)
    return [len({*before} & {*after}) / K for before, after in zip(*lists, strict=True)]


def test_numbers_are_those_of_a_slow_loop() -> None:
    given = pair(60)
    conclusion, _ = findings(given, K)
    kept = slow_kept(given.reference.numpy(), given.candidate.numpy())
    found = {each.quantity: each for each in conclusion.estimates}
    for fraction, name in ((0.5, "at_50"), (0.8, "at_80"), (1.0, "at_100")):
        expected = sum(1 for value in kept if round(value * K) >= fraction * K) / 60
        estimate = found[f"neighbours_kept_{name}"]
        assert estimate.value == pytest.approx(expected)
        assert 0 <= estimate.low <= estimate.value <= estimate.high <= 1
    assert found["neighbours_kept_worst_10"].value == pytest.approx(np.mean(sorted(kept)[:6]))
    assert found["neighbours_kept_worst_1"].value == pytest.approx(min(kept))
    assert {f"neighbours_kept_mixed_{name}" for name in NAMES} <= found.keys()
    values = [found[f"neighbours_kept_{name}"].value for name in NAMES]
    assert len({*values}) > 3, "vacuous"


@pytest.mark.parametrize("place", range(5), ids=NAMES)
def test_influences_on_scores_are_those_of_leaving_out_each_image(place: int) -> None:
    given = pair(30)
    a, b = given.reference, given.candidate
    kept = answers(a, b, given.gallery, K).neighbours
    assert kept.lists is not None
    tail = tails_of(kept.values.numpy())[place]

    def mean(rest: list[int]) -> float:
        less = answers(a[rest], b[rest], Gallery(a[rest], b[rest], False), K).neighbours
        return float(tail.score(less.values.numpy()).mean())

    whole = mean(list(range(30)))
    pseudo = np.array([30 * whole - 29 * mean([row for row in range(30) if row != x]) for x in range(30)])
    found = influences(*kept.lists, K, tail.score).numpy()
    assert found == pytest.approx(pseudo - pseudo.mean() + whole, abs=1e-9)
    assert found.std() > 0


def test_an_unseen_image_may_push_as_many_as_stand_at_the_threshold() -> None:
    values = torch.tensor([1.0, 0.8, 0.8, 0.6], dtype=torch.float64)
    lists = torch.zeros(4, 6, dtype=torch.int64)
    moves = tail_influences(Kept(values, values.clone(), (lists, lists)), K)
    assert moves is not None
    reach = {tail.name: moves(tail) for tail in tails_of(values.numpy(), lowest=())}
    assert (reach["at_80"].below, reach["at_80"].above) == (K * 2 / 4, K * 1 / 4)
    assert (reach["at_100"].below, reach["at_100"].above) == (K * 1 / 4, K * 2 / 4)


def test_a_bank_gives_the_lowest_an_interval_and_a_search_among_themselves_does_not() -> None:
    given = pair(60)
    bank = Gallery(codes(80, 3), codes(80, 3) + 0.2 * codes(80, 4), True)
    alone, _ = findings(given, K)
    banked, _ = findings(Pair(given.ids, given.reference, given.candidate, bank, given.order, "the bank"), K)
    for name in ("neighbours_kept_worst_10", "neighbours_kept_mixed_worst_10"):
        first, second = (next(e for e in each.estimates if e.quantity == name) for each in (alone, banked))
        assert isnan(first.low)
        assert "no interval" in first.method
        assert second.low < second.value < second.high
    counted = next(e for e in banked.estimates if e.quantity == "neighbours_kept_at_80")
    assert counted.method == "mid-P"


def test_the_worst_group_is_named() -> None:
    groups = ("broken",) * 6 + tuple(f"group {k % 5}" for k in range(54))
    conclusion, _ = findings(pair(60, groups), K)
    worst = next(e for e in conclusion.estimates if e.quantity == "neighbours_kept_worst_group")
    kept = next(s for s in conclusion.series if s.quantity == "neighbours_kept").values
    assert worst.value == pytest.approx(np.mean(kept[:6]))
    assert "'broken'" in str(worst.reason)
    assert worst.low < worst.value
    grouped = next(e for e in conclusion.estimates if e.quantity == "neighbours_kept_at_80")
    assert grouped.method.endswith("over groups of images")


def test_exchanged_neighbours_are_those_of_the_lists() -> None:
    kept = Kept(torch.zeros(1), torch.zeros(1), (torch.tensor([[4, 2, 7, 1]]), torch.tensor([[7, 9, 4, 2]])))
    assert exchanged(kept, 0, 3) == ([2], [9])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("low") / "run"
    candidates = ["float16", "builtin:digits-robust"]
    answer = hf.parity("builtin:digits-contrastive", candidates, "builtin:digits", limit=80, k=K, out=out)
    (robust,) = (result for result in answer.results if result.encoder.name == "digits-robust")
    lost = [picture for picture in robust.findings.pictures if "lost 1" in picture.labels]
    assert len(lost) == 3
    assert all(picture.labels[0] == "image" and "new 1" in picture.labels for picture in lost)
    return out


def test_gates_hold_the_low_end(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    passed = {each.encoder: each.passed for each in hf.check(str(folder), "parity.neighbours_kept_at_80>=0.95")}
    assert passed == {"digits-contrastive in float16": True, "digits-robust": False}
    assert run(["check", str(folder), "--require", "parity.neighbours_kept_at_80>=0.95"]) == 1
    gate = "parity.neighbours_kept_worst_10>=0.1"
    assert run(["check", str(folder), "--require", gate]) == 0
    assert run(["check", str(folder), "--require", gate, "--strict"]) == 1, "it has no interval"
    assert "interval" in capsys.readouterr().out


def test_the_terminal_tells_the_low_end(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["builtin:digits-contrastive", "builtin:digits-robust", "--images", "builtin:digits"]
    assert run(["parity", *names, "--limit", "80", "--k", str(K), "--out", str(folder)]) == 0
    shown = next(line for line in capsys.readouterr().out.splitlines() if "at least 80%" in line)
    assert "lowest 10%" in shown
    page = (folder / "report.html").read_text()
    assert "neighbours kept at 80" in page
