"""Queries for other verifiers: what is written is what was asked, answers hold, and reading them back agrees."""

from __future__ import annotations

import csv
import gzip
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import holdfast as hf
from holdfast.bounds.certificates import UNCERTAIN
from holdfast.bounds.certified_pairs import Pairs, image_pairs
from holdfast.bounds.queries import Disjunct, _answers, decimal, onnx_network, read, write
from holdfast.bounds.relaxations import Box
from holdfast.bounds.verify import Answer, _Folder
from holdfast.cli.app import run as command
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.noise import Noise
from holdfast.core.run_settings import RunSettings
from holdfast.measure.population import Population
from holdfast.measure.store import Store
from tests.facts import refused, says
from tests.hidden import BALL, Hidden, hidden

EPS = 0.1
QUICK: dict[str, Any] = {"attack": "adaptive:steps=10,restarts=1", "negatives": 3, "limit": 3, "eps": EPS}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A run of which some pairs are proved, some refuted and some neither."""
    pytest.importorskip("onnxscript")
    folder = tmp_path_factory.mktemp("certify") / "out"
    hf.certify("builtin:digits-contrastive", "builtin:digits", **QUICK, export="vnnlib", out=folder)
    return folder / "vnnlib"


def expected(folder: Path) -> list[dict[str, str]]:
    with (folder / "expected.csv").open() as file:
        return list(csv.DictReader(file))


def executed(network: Path, inputs: torch.Tensor) -> np.ndarray:
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(network)
    return np.concatenate([session.run(None, {"X": image[None].float().numpy()})[0] for image in inputs]).astype(float)


def query(folder: Path, line: dict[str, str]) -> Disjunct:
    (disjunct,) = read((folder / line["query"]).read_text(), line["query"])
    return disjunct


def number(line: dict[str, str]) -> int:
    return int(line["query"].removesuffix(".vnnlib").rpartition("-")[2])


@pytest.mark.slow
def test_every_pair_has_a_query_and_every_answer_occurs(folder):
    lines = expected(folder)
    assert len(lines) == 3 * 3
    assert {line["answer"] for line in lines} == {"unsat", "sat", "unknown"}, "vacuous fixture"
    with (folder / "instances.csv").open() as file:
        assert [line[:2] for line in csv.reader(file)] == [[line["network"], line["query"]] for line in lines]
    assert all(f"; expected: {line['answer']}\n" in (folder / line["query"]).read_text() for line in lines)


@pytest.mark.slow
def test_boxes_are_the_balls_exactly(folder):
    encoder = hf.load_encoder("builtin:digits-contrastive")
    images = hf.load_images("builtin:digits", encoder)
    pixels = dict(zip(images.ids, images.pixels(range(len(images))), strict=True))
    for line in expected(folder):
        disjunct = query(folder, line)
        text = (folder / line["query"]).read_text()
        anchor = next(name for name in pixels if f": '{name}' is more similar" in text)
        clean = pixels[anchor].double().flatten()
        assert (disjunct.low == (clean - EPS).clamp(0, 1).numpy()).all()
        assert (disjunct.high == (clean + EPS).clamp(0, 1).numpy()).all()
        assert disjunct.specifications.tolist() == [[float(k == number(line)) for k in range(3)]]


@pytest.mark.slow
def test_networks_compute_what_is_certified(folder):
    encoder = hf.load_encoder("builtin:digits-contrastive")
    images = hf.load_images("builtin:digits", encoder)
    codes = torch.nn.functional.normalize(encoder(images.pixels(range(len(images)))).double())
    points = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    for line in expected(folder):
        text = (folder / line["query"]).read_text()
        anchor, negative = (images.ids.index(name) for name in text.split("'")[1:4:2])
        wanted = encoder(points).double() @ (codes[anchor] - codes[negative])
        assert executed(folder / line["network"], points)[:, number(line)] == pytest.approx(wanted.numpy(), abs=1e-5)


@pytest.mark.slow
def test_counterexamples_violate_and_what_is_proved_is_violated_by_no_point(folder):
    for line in expected(folder):
        disjunct, shape = query(folder, line), (-1, 1, 8, 8)
        low, high = (torch.from_numpy(end).reshape(1, *shape[1:]) for end in (disjunct.low, disjunct.high))
        if line["answer"] == "sat":
            words = (folder / line["counterexample"]).read_text().replace("(", " ").replace(")", " ").split()
            values = dict(zip(words[1::2], map(float, words[2::2]), strict=True))
            point = torch.tensor([values[f"X_{k}"] for k in range(64)]).double().reshape(shape)
            assert ((point >= low) & (point <= high)).all()
            assert executed(folder / line["network"], point)[0, number(line)] < 0
            continue
        share = Noise.of(0, [str(k) for k in range(60)]).uniform((1, 8, 8), torch.float64)
        share[::2] = share[::2].round()
        outputs = executed(folder / line["network"], low + (high - low) * share)
        assert line["answer"] == "unknown" or not any(disjunct.holds(output) for output in outputs)


class Cancelling(nn.Module):
    """Codes that are small differences of large numbers, so that float32 gets them wrong by a thousandth and more."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 4)
        with torch.no_grad():
            self.first.bias.add_(1000)
            self.second.bias.sub_(1000 * self.second.weight.sum(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x.flatten(1)).relu())


def in_another_order(encoder: Encoder, rows: torch.Tensor, point: torch.Tensor, seed: int) -> float:
    """What float32 makes of ``rows @ f(point)`` where pixels and hidden neurons are summed in another order."""
    assert isinstance(encoder.module, Cancelling)
    first, second = encoder.module.first, encoder.module.second
    generator = torch.Generator().manual_seed(seed)
    pixels, neurons, codes = (torch.randperm(n, generator=generator) for n in (16, 16, 4))
    hidden = nn.functional.linear(point.flatten()[pixels], first.weight[neurons][:, pixels], first.bias[neurons]).relu()
    code = nn.functional.linear(hidden, second.weight[codes][:, neurons], second.bias[codes])
    return float(rows[codes] @ code)


def test_a_counterexample_is_one_in_any_order_of_summation():
    """Along the way to the other image, which certainly refutes, float32 says one thing and another near the boundary."""
    refuted_here = refuted_nowhere = 0
    for seed in range(2):
        encoder = Encoder(Cancelling().eval(), "cancelling", Domain((1, 4, 4)))
        pixels = torch.rand(2, 1, 4, 4, generator=torch.Generator().manual_seed(seed))
        pairs = image_pairs(Population(encoder, hf.Images(pixels), RunSettings()), [0], 1, 100)
        rows = pairs.specifications[0, 0].float()
        box = Box(*(torch.full((1, 1, 4, 4), end, dtype=torch.float64) for end in (0.0, 1.0)))

        def at(share: float, pairs: Pairs = pairs) -> torch.Tensor:
            return (pairs.anchors + share * (pairs.negatives[0] - pairs.anchors)).float().double()

        def exact(share: float, pairs: Pairs = pairs, rows: torch.Tensor = rows) -> float:
            return float(pairs.encoder(at(share))[0] @ rows.double())

        low, high = 0.0, 1.0
        assert exact(low) > 0 > exact(high)
        while high - low > 1e-9:
            middle = (low + high) / 2
            low, high = (middle, high) if exact(middle) > 0 else (low, middle)
        for share in [*(high + step * 1e-5 for step in range(-3, 8)), 1.0]:
            answer, note = _answers(pairs, torch.tensor([-1.0]), at(share), box)[0]
            values = [in_another_order(encoder, rows, at(share)[0].float(), order) for order in range(20)]
            assert answer == "unknown" or max(values) < 0
            assert (answer == "sat") == (share == 1.0), "a counterexample far from the boundary is one"
            refuted_here += note == UNCERTAIN
            refuted_nowhere += note == UNCERTAIN and max(values) >= 0
    assert refuted_here, "vacuous: what is below zero here is so everywhere"
    assert refuted_nowhere, "vacuous: no other order of summation says otherwise"


@pytest.mark.slow
def test_our_own_verifier_agrees(folder, tmp_path):
    lines = expected(folder)
    # One query of each answer, and attacks of another seed, so that what is proved is attacked again.
    chosen = [next(line for line in lines if line["answer"] == answer) for answer in ("unsat", "sat", "unknown")]
    few = folder / "few.csv"
    few.write_text("".join(f"{line['network']},{line['query']},30\n" for line in chosen))
    results = hf.verify(few, seed=1, out=tmp_path / "out")
    assert [result.answer for result in results] == ["unsat", "sat", "unknown"]
    assert says(results[2].reason, "1 of 1", "refutes", "disjunct")
    point = results[1].counterexample
    assert point is not None
    assert query(folder, chosen[1]).holds(executed(folder / chosen[1]["network"], point[None])[0])
    assert results[1].outputs == pytest.approx(executed(folder / chosen[1]["network"], point[None])[0], abs=1e-5)
    assert [line.split(",")[2] for line in (tmp_path / "out" / "results.csv").read_text().splitlines()] == [
        "unsat", "sat", "unknown"]  # fmt: skip
    (written,) = (tmp_path / "out" / "counterexamples").iterdir()
    assert written.read_text().startswith("sat\n((X_0 ")


@cache
def spiked() -> Hidden:
    """One network with a hidden counterexample, the same for all tests."""
    return hidden(0)


@cache
def exported(encoder: Encoder) -> bytes:
    """Its ONNX file, which takes a second to write."""
    pytest.importorskip("onnxscript")
    return onnx_network(encoder, torch.ones(1, encoder(torch.zeros(1, *encoder.domain.shape)).shape[1]))


def benchmark(folder: Path, encoder: Encoder, text: str, name: str) -> Answer:
    """The answer to a query of a network."""
    (folder / "net.onnx").write_bytes(exported(encoder))
    (folder / "q.vnnlib").write_text(text)
    (folder / "instances.csv").write_text("net.onnx,q.vnnlib,30\n")
    (answer,) = hf.verify(folder, method=name, attack="pgd:steps=20")
    return answer


@pytest.mark.slow
@pytest.mark.parametrize("name", ["crown", "interval", "alpha", "branch", "exact"])
def test_networks_with_hidden_counterexamples_are_never_proved(tmp_path, name):
    case = spiked()
    low, high = ((case.image + side * BALL.radius).double().flatten().numpy() for side in (-1, 1))
    text = write(Disjunct(low, high, np.ones((1, 1)), np.zeros(1)))
    assert benchmark(tmp_path, case.encoder, text, name).answer == "unknown"
    # Told where to look, it is refuted; and without the spike, proved.
    at = case.secret.double().flatten().numpy()
    near = write(Disjunct(at - 1e-6, at + 1e-6, np.ones((1, 1)), np.zeros(1)))
    assert benchmark(tmp_path, case.encoder, near, name).answer == "sat"
    assert benchmark(tmp_path, case.harmless, text, name).answer == "unsat"


@pytest.mark.slow
def test_a_counterexample_that_another_order_of_summation_may_not_reach_is_unknown(tmp_path):
    encoder = Encoder(Cancelling().eval(), "cancelling", Domain((1, 4, 4)))
    x = torch.rand(1, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    value, at = float(encoder.to("cpu", torch.float64)(x.double()).sum()), x.double().flatten().numpy()
    answers = {}
    for name, offset in (("near", 1e-6), ("far", 1.0)):
        asked = write(Disjunct(at, at, np.ones((1, 1)), np.array([value + offset])))
        (tmp_path / name).mkdir()
        answers[name] = benchmark(tmp_path / name, encoder, asked, "crown")
    assert answers["far"].answer == "sat"
    assert answers["near"].answer == "unknown"
    # Whether it is below the offset as computed here is the machine's to say.
    assert answers["near"].reason.endswith((UNCERTAIN, "no attack reaches it"))


DECLARED = "(declare-const X_0 Real)\n(declare-const Y_0 Real)\n(declare-const Y_1 Real)\n"
BOX = "(assert (>= X_0 -1)) (assert (<= X_0 1))\n"


def test_each_network_of_a_query_has_its_own_counterexample(tmp_path):
    folder = _Folder(Store(tmp_path), {}, {}, [])
    for network, value in (("onnx/a.onnx", 0.25), ("onnx/b.onnx", 0.75)):
        point = torch.tensor([value])
        folder.add(Answer(network, "vnnlib/prop_1.vnnlib", "sat", 0.0, counterexample=point, outputs=(value,)), network)
    written = {file.name: file.read_text() for file in (tmp_path / "counterexamples").iterdir()}
    assert written.keys() == {"a-prop_1.txt", "b-prop_1.txt"}
    assert "0.25" in written["a-prop_1.txt"]


def test_disjunctions_are_multiplied_out_and_boxes_of_their_own_are_kept():
    text = (
        DECLARED
        + "; (a comment\n"
        + BOX
        + """
    (assert (or (and (<= X_0 0.1) (<= Y_0 Y_1)) (and (>= X_0 0.5) (>= (- Y_0 (* 2 Y_1)) 3e0)) (and (>= X_0 2))))
    (assert (<= (+ Y_0 Y_1 -1.5) 0))"""
    )
    first, second = read(text, "query")
    assert (first.low.tolist(), second.low.tolist(), second.high.tolist()) == ([-1.0], [0.5], [1.0])
    assert first.high[0] == 0.1, "which is a little more than a tenth"
    assert (first.specifications.tolist(), first.offsets.tolist()) == ([[1, -1], [1, 1]], [0, 1.5])
    assert (second.specifications.tolist(), second.offsets.tolist()) == ([[-1, 2], [1, 1]], [-3, 1.5])


def test_what_is_no_text_leaves_the_other_queries(tmp_path):
    (tmp_path / "net.onnx").write_bytes(exported(spiked().encoder))
    (tmp_path / "q.vnnlib.gz").write_bytes(gzip.compress(b"(check-sat)"))
    (tmp_path / "q.vnnlib").write_text("(check-sat)")
    (tmp_path / "instances.csv").write_text("net.onnx,q.vnnlib.gz,30\nnet.onnx,q.vnnlib,30\n")
    (tmp_path / "damaged.vnnlib.gz").write_bytes(b"no archive")
    (tmp_path / "instances.csv").write_text(
        "net.onnx,q.vnnlib.gz,30\nnet.onnx,damaged.vnnlib.gz,30\nnet.onnx,q.vnnlib,30\n"
    )
    packed, damaged, plain = hf.verify(tmp_path)
    assert packed.answer == damaged.answer == plain.answer == "unknown"
    assert packed.reason.removeprefix("q.vnnlib.gz") == plain.reason.removeprefix("q.vnnlib")
    assert "damaged.vnnlib.gz" in damaged.reason
    (tmp_path / "instances.csv").write_bytes(b"\xff")
    with refused(hf.HoldfastError, "UTF-8"):
        hf.verify(tmp_path)


def test_ends_that_float64_does_not_hold_are_rounded_outward():
    from fractions import Fraction

    ends = ["0.1", "-0.1", "0.3", "-0.3", "0.70000000000000000001", "123.4567890123456789"]
    for low, high in zip(ends, reversed(ends), strict=True):
        low, high = sorted((low, high), key=Fraction)
        text = DECLARED + f"(assert (>= X_0 {low})) (assert (<= X_0 {high})) (assert (<= Y_0 0))"
        (disjunct,) = read(text, "query")
        assert Fraction(disjunct.low[0]) <= Fraction(low) <= Fraction(high) <= Fraction(disjunct.high[0])
        assert float(low) in (disjunct.low[0], np.nextafter(disjunct.low[0], np.inf))


def test_what_is_written_reads_back_as_it_was():
    noise = Noise.of(0, ["query"])
    middle, rows = (
        noise.uniform((50,), torch.float64)[0].numpy(),
        noise.fork("rows").uniform((7, 4), torch.float64)[0].numpy(),
    )
    disjunct = Disjunct(middle - 1e-9, middle + 1e-300, rows - 0.5, rows[:, 0])
    (back,) = read(write(disjunct), "query")
    for name in ("low", "high", "specifications", "offsets"):
        assert (getattr(back, name) == getattr(disjunct, name)).all()
    assert float(decimal(5e-324)) == 5e-324


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (DECLARED + BOX + "(assert (<= (* Y_0 Y_1) 0))", "only linear terms"),
        (DECLARED + BOX + "(assert (<= X_0 Y_1))", "an inequality of X_0 and Y_1"),
        (DECLARED + BOX + "(assert (= Y_0 1))", "conditions are made of <=, >=, and, or"),
        (DECLARED + BOX + "(assert (<= Y_7 1))", "uses Y_7, which it does not declare"),
        (DECLARED + BOX + "(assert (<= Y_0 1)", "ends within a parenthesis"),
        (DECLARED + BOX + "(check-sat)", "a query declares X_i and Y_i, and asserts"),
        (DECLARED + "(assert (<= X_0 1)) (assert (<= Y_0 1))", "leaves X_0 without an end"),
        ("(assert (<= Y_0 1))", "declares 0 inputs"),
    ],
)
def test_what_cannot_be_read_is_named(text, expected):
    with pytest.raises(hf.HoldfastError, match=expected):
        read(text, "query")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"ball": "l2:0.5"}, "VNN-LIB has boxes only, so that queries in l2:0.5 cannot be exported"),
        ({"ball": "linf:0.1", "out": None}, "name a folder as out"),
        ({"ball": "linf:0.1", "export": "smt"}, "exported as vnnlib, got 'smt'"),
        ({"ball": "l2:0.1", "method": "smoothing:sigma=0.25"}, "smoothing asks nothing of single inputs"),
    ],
)
def test_what_cannot_be_exported_is_refused_before_anything_is_computed(tmp_path, settings, expected):
    with pytest.raises(hf.HoldfastError, match=expected):
        hf.certify("builtin:digits-robust", "builtin:digits", **{"export": "vnnlib", "out": tmp_path / "o", **settings})
    assert not (tmp_path / "o").exists()


@pytest.mark.slow
def test_the_command_answers_and_says_what_it_cannot_read(folder, tmp_path, capsys):
    line = next(line for line in expected(folder) if line["answer"] == "unsat")
    (folder / "two.csv").write_text(f"{line['network']},{line['query']},30\n{line['network']},missing.vnnlib,30\n")
    assert command(["certify", "--vnnlib", str(folder / "two.csv"), "--attack", "pgd:steps=3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"{line['query']}: unsat in " in lines[0]
    assert "missing.vnnlib: unknown in " in lines[1]
    assert "No such file" in lines[1]
    assert lines[2] == "1 unsat, 0 sat, 1 unknown"
    assert command(["certify", "--vnnlib", str(tmp_path / "none.csv")]) == 2
    assert command(["certify", "builtin:digits-robust"]) == 2
    assert "--images and --out" in capsys.readouterr().err
