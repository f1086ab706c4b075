"""Lists of queries: one that fails leaves the others, finished answers are kept, each query keeps its time."""

from __future__ import annotations

import csv
import gzip
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import holdfast as hf
from holdfast.attacks.base import Attack
from holdfast.attacks.presets import read_attack
from holdfast.bounds import read_method
from holdfast.bounds.methods.base import Method
from holdfast.bounds.problem import Deadline, Problem, WithOne
from holdfast.bounds.queries import Disjunct, read, write
from holdfast.bounds.verify import answers
from holdfast.encoders import load

onnx = pytest.importorskip("onnx")
helper, numpy_helper, FLOAT = onnx.helper, onnx.numpy_helper, onnx.TensorProto.FLOAT

REFERENCE = Path(os.environ.get("HOLDFAST_REFERENCE", "none")) / "vnncomp"
SETTINGS: dict[str, Any] = {"method": "crown", "attack": "pgd:steps=5", "neurons": 1000, "seed": 0}


def network(path: Path, nodes: list[Any], inputs: int = 2, **constants: Any) -> None:
    """Write a graph from ``x`` (1, inputs) to ``y`` (1, 1)."""
    ends = [helper.make_tensor_value_info(n, FLOAT, shape) for n, shape in (("x", [1, inputs]), ("y", [1, 1]))]
    held = [numpy_helper.from_array(np.array(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], held)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def total(path: Path) -> None:
    """Write the network ``relu(x_0 + x_1)``."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["s"]), helper.make_node("Relu", ["s"], ["y"])]
    network(path, nodes, w=np.ones((2, 1), np.float32))


def query(low: Any, high: Any, offset: float) -> str:
    """Return the query whether the output can be at most ``offset`` in a box."""
    return write(Disjunct(np.array(low), np.array(high), np.ones((1, 1)), np.array([offset])))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A list of three queries: one unsat, one on which torch raises, one sat."""
    total(tmp_path / "good.onnx")
    reshape = [helper.make_node("Reshape", ["x", "size"], ["r"]), helper.make_node("MatMul", ["r", "w"], ["y"])]
    network(tmp_path / "bad.onnx", reshape, size=np.array([1, 7]), w=np.ones((7, 1), np.float32))
    (tmp_path / "unsat.vnnlib").write_text(query([1.0, 1.0], [2.0, 2.0], 1.5))
    (tmp_path / "sat.vnnlib").write_text(query([1.0, 1.0], [2.0, 2.0], 2.5))
    lines = ["good.onnx,unsat.vnnlib,60", "bad.onnx,unsat.vnnlib,60", "good.onnx,sat.vnnlib,60"]
    (tmp_path / "instances.csv").write_text("\n".join(lines))
    return tmp_path


def test_a_network_on_which_torch_raises_leaves_the_others(folder):
    found = hf.verify(folder, attack="pgd:steps=5")
    assert [answer.answer for answer in found] == ["unsat", "unknown", "sat"]
    assert "RuntimeError" in found[1].reason


def test_a_stopped_run_goes_on_and_keeps_its_answers(folder, tmp_path, monkeypatch):
    running: Any = answers(folder, out=tmp_path / "out", **SETTINGS)
    first = next(running)
    running.close()
    asked = list[str]()
    answer = Problem.answer

    def counted(problem: Problem, network: str, query: str) -> Any:
        asked.append(f"{network} {query}")
        return answer(problem, network, query)

    monkeypatch.setattr(Problem, "answer", counted)
    found = list(answers(folder, out=tmp_path / "out", **SETTINGS))
    assert asked == ["bad.onnx unsat.vnnlib", "good.onnx sat.vnnlib"]
    assert found[0] == first
    again = list(answers(folder, out=tmp_path / "out", **SETTINGS))
    assert len(asked) == 3, "what torch raised on is tried again, and nothing else"
    assert again[2].counterexample is not None
    assert found[2].counterexample is not None
    assert torch.equal(again[2].counterexample, found[2].counterexample)
    with (tmp_path / "out" / "results.csv").open() as file:
        assert sorted(line[2] for line in csv.reader(file)) == ["sat", "unknown", "unsat"]


@pytest.mark.slow
def test_answers_are_computed_again_once_a_file_has_changed(folder, tmp_path):
    list(answers(folder, out=tmp_path / "out", **SETTINGS))
    (folder / "unsat.vnnlib").write_text(query([1.0, 1.0], [2.0, 2.0], 3.0))
    assert next(answers(folder, out=tmp_path / "out", **SETTINGS)).answer == "sat"


@pytest.mark.parametrize("change", [{"seed": 1}, {"attack": "pgd:steps=6"}, {"list": "good.onnx,sat.vnnlib,60"}])
def test_answers_to_another_list_or_settings_are_not_overwritten(folder, tmp_path, change):
    (folder / "instances.csv").write_text("bad.onnx,sat.vnnlib,60")  # which is answered without bounds
    list(answers(folder, out=tmp_path / "out", **SETTINGS))
    before = (tmp_path / "out" / "results.csv").read_bytes()
    if "list" in change:
        (folder / "instances.csv").write_text(change.pop("list"))
    with pytest.raises(hf.HoldfastError):
        list(answers(folder, out=tmp_path / "out", **SETTINGS | change))
    assert (tmp_path / "out" / "results.csv").read_bytes() == before


def alone(folder: Path, text: str, **said: Any) -> Any:
    (folder / "q.vnnlib").write_text(text)
    (folder / "one.csv").write_text(f"net.onnx,q.vnnlib,{said.pop('seconds', 60)}\n")
    (found,) = answers(folder / "one.csv", out=None, **SETTINGS | said)
    return found


@pytest.mark.slow
def test_an_input_that_no_float32_holds_is_found(tmp_path):
    total(tmp_path / "net.onnx")
    lines = ["(declare-const X_0 Real)", "(declare-const X_1 Real)", "(declare-const Y_0 Real)"]
    lines += ["(assert (>= X_0 0.1))", "(assert (<= X_0 0.1))", "(assert (>= X_1 0.3))", "(assert (<= X_1 0.7))"]
    text = "\n".join([*lines, "(assert (<= Y_0 0.5))"])
    found, (disjunct,) = alone(tmp_path, text), read(text, "q")
    assert found.answer == "sat"
    assert found.counterexample is not None
    point = found.counterexample.double().numpy()
    assert ((disjunct.low <= point) & (point <= disjunct.high)).all()
    # As near to the boundary as one rounding of float32, nothing is claimed.
    edge = "\n".join([*lines[:-2], "(assert (>= X_1 0.2))", "(assert (<= X_1 0.2))", "(assert (<= Y_0 0.3))"])
    assert alone(tmp_path, edge).answer == "unknown"


def test_a_network_is_not_probed_outside_the_box(tmp_path):
    nodes = [helper.make_node("Log", ["x"], ["l"]), helper.make_node("MatMul", ["l", "w"], ["y"])]
    network(tmp_path / "net.onnx", nodes, w=np.ones((2, 1), np.float32))
    module, asked = load(f"onnx:{tmp_path / 'net.onnx'}").module, read(query([1.0, 1.0], [2.0, 2.0], 0.5), "q")
    ways = read_method("crown"), read_attack("pgd:steps=1")
    problem = Problem(WithOne(module).eval(), "net", (2,), asked, *ways, 1000, 0, time.monotonic(), 60.0)
    problem._check_sizes("net", "q")
    assert next(problem.candidates(asked[0], time.monotonic() + 60)).held.all()


@pytest.mark.slow
def test_random_inputs_reach_what_has_no_slope_elsewhere(tmp_path):
    """The output is 1 but in 2% of the box, so that an attack has no direction."""
    nodes = [helper.make_node("Gemm", ["x", "w", "b"], ["s"]), helper.make_node("Relu", ["s"], ["r"])]
    nodes += [helper.make_node("Gemm", ["r", "v", "one"], ["y"])]
    weights: dict[str, Any] = {"w": [[1.0], [0.0]], "b": [-0.98], "v": [[-200.0]], "one": [1.0]}
    network(tmp_path / "net.onnx", nodes, 2, **{name: np.array(each, np.float32) for name, each in weights.items()})
    found = [
        alone(tmp_path, query([0.0, 0.0], [1.0, 1.0], 0.0), attack="pgd:steps=1", seed=seed).answer for seed in range(3)
    ]
    assert found == ["sat"] * 3


@dataclass(frozen=True)
class Endless(Method):
    """A bound that never ends."""

    name = "endless"

    def __call__(self, graph: Any, region: Any, specifications: Any) -> Any:
        while True:
            torch.ones(1).sum()


@dataclass(frozen=True)
class Wandering(Attack):
    """An attack that never ends."""

    name = "wandering"

    @property
    def forward_passes(self) -> int:
        return 1

    def search(self, *args: Any) -> Any:
        while True:
            torch.ones(1).sum()


@pytest.mark.slow
@pytest.mark.parametrize("endless", [{"method": Endless()}, {"attack": Wandering()}])
def test_neither_bounds_nor_attacks_pass_the_time_of_a_query(endless, tmp_path):
    total(tmp_path / "net.onnx")
    began = time.monotonic()
    found = alone(tmp_path, query([1.0, 1.0], [2.0, 2.0], 1.9999999), seconds=4, **endless)
    assert time.monotonic() - began < 30, "a machine under load traces slowly"
    assert found.answer in ("unknown", "unsat" if "attack" in endless else "unknown")


def switching() -> None:
    while True:
        with torch.no_grad(), torch.autocast("cpu"):
            torch.ones(1).sum()


@pytest.mark.parametrize("spent", range(0, 1000, 50))
def test_a_deadline_leaves_gradients_as_they_were(spent):
    with pytest.raises(TimeoutError), Deadline(time.monotonic() + spent / 1e6):
        switching()
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.slow
def test_compressed_files_are_read_under_their_own_names(tmp_path):
    total(tmp_path / "net.onnx")
    for name, content in (
        ("net.onnx", (tmp_path / "net.onnx").read_bytes()),
        ("q.vnnlib", query([1.0, 1.0], [2.0, 2.0], 3.0).encode()),
    ):
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content))
    (tmp_path / "net.onnx").unlink()
    (tmp_path / "instances.csv").write_text("net.onnx,q.vnnlib,60\n")
    assert hf.verify(tmp_path, attack="pgd:steps=5")[0].answer == "sat"


@pytest.mark.slow
@pytest.mark.skipif(not REFERENCE.is_dir(), reason="HOLDFAST_REFERENCE names no folder with vnncomp")
def test_published_queries_are_answered_right_or_unknown_within_their_time(tmp_path):
    """With 8 of their 30 seconds, so that the test takes two minutes."""
    for folder in REFERENCE.iterdir():
        if folder.is_dir():
            (tmp_path / folder.name).symlink_to(folder)
    with (REFERENCE / "instances.csv").open() as file, (tmp_path / "instances.csv").open("w") as short:
        csv.writer(short).writerows((network, query, 8) for network, query, _ in csv.reader(file))
    with (REFERENCE / "expected.csv").open() as file:
        known = {(network, query): answer for network, query, answer in csv.reader(file)}
    found = hf.verify(tmp_path)
    assert {(answer.network, answer.query) for answer in found} == known.keys()
    wrong = [a for a in found if a.answer not in ("unknown", known[a.network, a.query])]
    assert not wrong
    assert max(answer.seconds for answer in found) < 8 + 10, "the first one imports what tracing needs"
    assert sum(answer.answer != "unknown" for answer in found) >= 2, "vacuous"
