"""Benchmarks of verifiers, answered by our bounds and attacks: an ONNX network and a VNN-LIB query for each instance.

A query is ``unsat`` once each of its disjuncts is: one of its inequalities, or their sum, is proved to be violated by all
inputs of its box. It is ``sat`` once an attack reaches an input in the box whose outputs satisfy all inequalities of a
disjunct: in real numbers, and in float32 for any order of summation. Otherwise it is ``unknown``.
"""

from __future__ import annotations

import copy
import csv
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from holdfast.attacks.base import Attack
from holdfast.attacks.presets import read_attack
from holdfast.bounds import Method, read_method
from holdfast.bounds.methods.base import vacuous_unless_finite
from holdfast.bounds.regions import Region
from holdfast.bounds.relaxations.rules import Box
from holdfast.commands.certify.counterexamples import UNCERTAIN, codes_in_float32, highest
from holdfast.commands.certify.queries import counterexample_text, inside
from holdfast.commands.certify.vnnlib import Disjunct, read
from holdfast.core.arguments import check_whole
from holdfast.core.balls import Linf
from holdfast.core.encoder import Codes, Domain, Encoder
from holdfast.core.errors import HoldfastError, refuse_blanks
from holdfast.core.run_settings import RunSettings
from holdfast.encoders import Options, onnx
from holdfast.encoders.loading.reference import existing, first_line
from holdfast.evaluations.certified.pairwise.pairs import traced
from holdfast.store.store import Store

SECONDS = 60.0
"""For a query in whose line no time stands."""


@dataclass(frozen=True)
class Answer:
    """What is known of one query: ``unsat`` is proved, ``sat`` has a counterexample, ``unknown`` has a reason."""

    network: str
    query: str
    answer: Literal["unsat", "sat", "unknown"]
    seconds: float
    """By the clock, with what was loaded for it."""
    reason: str = ""
    counterexample: Tensor | None = None
    """An input (*shape) of the box in float32."""
    outputs: tuple[float, ...] = ()
    """What the network computes of it in float32."""


def verify(
    instances: str | Path,
    *,
    method: str | Method = "crown",
    attack: str | Attack = "adaptive",
    neurons: int = 50_000,
    seed: int = 0,
    out: str | Path | None = None,
) -> tuple[Answer, ...]:
    """Return whether each query of a benchmark is proved or refuted, as ``holdfast certify --vnnlib`` does.

    Args:
        instances: a list of instances as competitions of verifiers have them (network, query, seconds), or its folder.
        method: interval, crown, lipschitz, alpha, sdp-crown, branch, semidefinite or exact; a query's seconds are the most
            that it takes.
        attack: what looks for counterexamples.
        neurons: networks with more nonlinear entries are not bounded.
        seed: of what is random in attacks.
        out: folder for ``results.csv`` and counterexamples; by default none are written.

    Raises:
        HoldfastError: there is no such list.
    """
    refuse_blanks(locals())
    return tuple(answers(instances, method=method, attack=attack, neurons=neurons, seed=seed, out=out))


def answers(
    instances: str | Path,
    method: str | Method,
    attack: str | Attack,
    neurons: int,
    seed: int,
    out: str | Path | None,
) -> Iterator[Answer]:
    """Yield the answers of ``verify`` one by one."""
    check_whole(neurons, "neurons")
    method = read_method(method) if isinstance(method, str) else method
    attack = read_attack(attack) if isinstance(attack, str) else attack
    path = Path(instances)
    path = path / "instances.csv" if path.is_dir() else path
    lines = [line for line in csv.reader(_text(existing(str(path))).splitlines()) if line]
    if not lines or any(len(line) not in (2, 3) for line in lines):
        raise HoldfastError(f"{path} is no list of instances; each line names a network, a query and seconds")
    loaded = cache(lambda network: _network(path.parent / network))
    results = list[Answer]()
    for network, query, *seconds in lines:
        began = time.monotonic()
        try:
            problem = _Problem(loaded(network), method, attack, neurons, seed, _seconds(seconds, path))
            answer = problem.answer(network, query, _text(path.parent / query))
        except (HoldfastError, OSError) as error:  # one that cannot be read or bounded leaves the others
            answer = Answer(network, query, "unknown", 0.0, first_line(error))
        results.append(replace(answer, seconds=time.monotonic() - began))
        if out is not None:
            _write(results, Store(Path(out)))
        yield results[-1]


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise HoldfastError(f"{path} is no text in UTF-8; unpack it if it is compressed") from error


class _WithOne(nn.Module):
    """A network with one more output, which is 1: an inequality's constant is then a coefficient like any other."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        return functional.pad(self.module(x), (0, 1), value=1.0)


class _Boxed(nn.Module):
    """A network as a function of ``delta`` in [-1, 1], which stands for an input between the ends of a box."""

    def __init__(self, module: nn.Module, box: Box) -> None:
        super().__init__()
        self.module, self.box = module, box

    def inputs(self, delta: Tensor) -> Tensor:
        low, high = self.box
        return torch.minimum(torch.maximum((low + high) / 2 + (high - low) / 2 * delta, low), high)

    def forward(self, delta: Tensor) -> Tensor:
        return self.module(self.inputs(delta))


def _network(path: Path) -> Encoder:
    """Return the network in the file ``path``, of inputs in any range, with one more output."""
    encoder = onnx.load(str(path), Options())
    return Encoder(_WithOne(encoder.module), path.stem, Domain(encoder.domain.shape, -torch.inf, torch.inf))


def _seconds(cells: list[str], path: Path) -> float:
    try:
        return float(cells[0]) if cells else SECONDS
    except ValueError as error:
        raise HoldfastError(f"{path} gives a query {cells[0]!r} seconds; expected a number") from error


@dataclass(frozen=True)
class _Problem:
    """A network and how its queries are answered."""

    encoder: Encoder
    method: Method
    attack: Attack
    neurons: int
    seed: int
    seconds: float

    def answer(self, network: str, query: str, text: str) -> Answer:
        """Return the answer to the query ``text``, in which no time stands yet."""
        disjuncts, shape = read(text, query), self.encoder.domain.shape
        features = self.encoder(torch.zeros(1, *shape)).shape[1] - 1
        for disjunct in disjuncts:
            sizes = len(disjunct.low), disjunct.specifications.shape[1]
            if sizes != (int(np.prod(shape)), features):
                raise HoldfastError(
                    f"{query} has {sizes[0]} inputs and {sizes[1]} outputs, and {network} {np.prod(shape)} and {features}"
                )
        uncertain = ""
        for disjunct in disjuncts:
            if (point := self.counterexample(disjunct)) is None:
                continue
            if not (uncertain := self.doubts(disjunct, point)):
                outputs = tuple(self.encoder(point[None])[0, :-1].tolist())
                return Answer(network, query, "sat", 0.0, counterexample=point, outputs=outputs)
        end = time.monotonic() + self.seconds
        for position, disjunct in enumerate(disjuncts):
            left = (end - time.monotonic()) / (len(disjuncts) - position)
            if not self.refuted(disjunct, left):
                reason = f"no bound by {self.method.name} refutes disjunct {position + 1} of {len(disjuncts)}"
                reached = uncertain or "no attack reaches it"
                return Answer(network, query, "unknown", 0.0, f"{reason}, and {reached}")
        return Answer(network, query, "unsat", 0.0)

    def refuted(self, disjunct: Disjunct, seconds: float) -> bool:
        """Return whether bounds prove, in about so many seconds, that no input of the box satisfies all inequalities."""
        if not len(disjunct.specifications):
            return False
        graph = traced(self.encoder, self.neurons, "cpu")
        low, high = (end.double()[:, None] for end in self._box(disjunct))
        around = Region((low + high) / 2, low, high, (high - low).flatten(1).amax(1) / 2, Linf)
        method: Any = self.method
        if any(field.name == "seconds" for field in fields(method)):
            method = replace(method, seconds=max(0.0, min(method.seconds, seconds)))
        specifications = _homogeneous(disjunct)
        if len(specifications) > 1:
            specifications = torch.cat([specifications, specifications.sum(0, keepdim=True)])
        return bool((vacuous_unless_finite(method(graph, around, specifications[None])) > 0).any())

    def counterexample(self, disjunct: Disjunct) -> Float[Tensor, "*shape"] | None:
        """Return an input of the box whose outputs satisfy all inequalities in float32 and float64, if one is reached."""
        specifications, box = _homogeneous(disjunct), self._box(disjunct)
        double = self.encoder.to("cpu", torch.float64)
        start = torch.zeros_like(box.lower)
        if len(specifications):
            module = _Boxed(double.module, box).eval()
            moved = copy.copy(double)
            moved.module, moved.domain = module, Domain(self.encoder.domain.shape, -1.0, 1.0)
            moved.__dict__.pop("fingerprint", None)

            def objective(codes: Codes) -> Float[Tensor, "b"]:
                return -(codes @ specifications.to(codes).mT).amax(1)

            noise = RunSettings(self.seed).noise(["query"])
            start = self.attack(moved, start, objective, Linf(1.0), noise)
        point = inside(_Boxed(double.module, box).inputs(start), box)
        if bool(((point < box.lower) | (point > box.upper)).any()):  # the box holds no float32
            return None
        reached = all(
            disjunct.holds(encoder(point.to(dtype))[0, :-1].double().numpy())
            for encoder, dtype in ((self.encoder, torch.float32), (double, torch.float64))
        )
        return point[0].float() if reached else None

    def doubts(self, disjunct: Disjunct, point: Float[Tensor, "*shape"]) -> str:
        """Return why ``point``, whose outputs satisfy all inequalities here, may not do so elsewhere; nothing if it must."""
        if not len(disjunct.specifications):
            return ""
        specifications, offsets = torch.from_numpy(disjunct.specifications), torch.from_numpy(disjunct.offsets)
        try:
            lower, upper = codes_in_float32(self.encoder, point[None].double())
        except HoldfastError as error:
            return f"{UNCERTAIN} ({first_line(error)})"
        ends = highest(specifications[None], Box(lower[:, :-1], upper[:, :-1]), torch.float64, -offsets)
        return "" if bool((ends <= 0).all()) else UNCERTAIN

    def _box(self, disjunct: Disjunct) -> Box:
        shape = (1, *self.encoder.domain.shape)
        return Box(*(torch.from_numpy(end).reshape(shape) for end in (disjunct.low, disjunct.high)))


def _homogeneous(disjunct: Disjunct) -> Float[Tensor, "m d1"]:
    """Return the inequalities as functions of the outputs and 1 that are at most zero where they hold."""
    return torch.from_numpy(np.column_stack([disjunct.specifications, -disjunct.offsets]))


def _write(results: list[Answer], store: Store) -> None:
    """Write what is known so far, and the counterexample of the last answer."""
    last = results[-1]
    if last.counterexample is not None:
        outputs = dict(enumerate(last.outputs))
        text = counterexample_text(last.counterexample, outputs)
        name = f"{Path(last.network).stem}-{Path(last.query).stem}"
        store.write_file(f"counterexamples/{name}.txt", text.encode())
    lines = [f"{each.network},{each.query},{each.answer},{each.seconds:.3f}\n" for each in results]
    store.write_file("results.csv", "".join(lines).encode())
