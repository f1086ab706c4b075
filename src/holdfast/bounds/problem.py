"""One query of a benchmark: a search for an input that satisfies it, and bounds that prove that there is none.

A query is ``unsat`` once each of its disjuncts is: one of its inequalities, or their sum, is proved to be violated by all
inputs of its box. It is ``sat`` once a search reaches an input in the box whose outputs satisfy all inequalities of a
disjunct: in real numbers, and in float32 for any order of summation. Otherwise it is ``unknown``.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from holdfast.attacks.adaptive import AdaptiveAttack
from holdfast.attacks.base import Attack
from holdfast.bounds.certificates import UNCERTAIN, codes_in_float32, highest
from holdfast.bounds.certified_pairs import traced
from holdfast.bounds.methods.base import Method, read_method, vacuous_unless_finite
from holdfast.bounds.network.network_graph import Graph
from holdfast.bounds.queries import Disjunct, inside
from holdfast.bounds.regions import Region
from holdfast.bounds.relaxations import Box
from holdfast.core.balls import Linf
from holdfast.core.encoder import Codes, Domain, Encoder
from holdfast.core.errors import HoldfastError, first_line
from holdfast.core.run_settings import RunSettings
from holdfast.encoders.wrappers import PerImage

RANDOM, ALONE = 4096, 256
"""Random inputs that are tried first; fewer where the network takes one input at a time."""
STARTS, CHECKED, ROUNDS = 64, 4, 3
"""The best of them are starts of the attack; the best that it reaches are checked, and start again beside others."""
SEARCHING = 0.5
"""The fraction of a query's time that the search may take."""


@dataclass(frozen=True)
class Answer:
    """Answer to a query: ``unsat`` is proved, ``sat`` has a counterexample, ``unknown`` has a reason."""

    network: str
    query: str
    answer: Literal["unsat", "sat", "unknown"]
    seconds: float
    """By the clock, with what was loaded for it."""
    reason: str = ""
    counterexample: Tensor | None = None
    """An input (*shape) of the box: in float32, or in float64 where the box holds no float32 input."""
    outputs: tuple[float, ...] = ()
    """Output of the network for the counterexample, in float32."""


class Deadline(TorchFunctionMode):
    """Raises TimeoutError at the first operation on tensors that ends after ``end`` (of ``time.monotonic``)."""

    def __init__(self, end: float) -> None:
        super().__init__()
        self.end = end

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        value = func(*args, **(kwargs or {}))
        # Functions without tensors switch gradients or autocast, and must be able to switch them back.
        if time.monotonic() > self.end and isinstance(value, (Tensor, tuple, list)):
            raise TimeoutError
        return value


class WithOne(nn.Module):
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


class _Point(NamedTuple):
    """An input (1, *shape) in float64, and whether each of its entries is a float32 of the box."""

    value: Tensor
    held: Tensor


@dataclass(frozen=True)
class Problem:
    """A network, a query of it, and how it is answered."""

    module: nn.Module
    """With one more output, which is 1."""
    name: str
    shape: tuple[int, ...]
    disjuncts: tuple[Disjunct, ...]
    method: Method
    attack: Attack
    neurons: int
    seed: int
    began: float
    """When work on the query began, by ``time.monotonic``."""
    seconds: float

    @cached_property
    def encoder(self) -> Encoder:
        """The network on the range of the boxes: it is probed there and nowhere else."""
        low = min(float(disjunct.low.min()) for disjunct in self.disjuncts)
        high = max(float(disjunct.high.max()) for disjunct in self.disjuncts)
        ends = ((low, -np.inf), (high, np.inf))
        down, up = (float(np.nextafter(np.float32(end), np.float32(outward))) for end, outward in ends)
        return Encoder(self.module, self.name, Domain(self.shape, down, up))

    @cached_property
    def graph(self) -> Graph:
        return traced(self.encoder, self.neurons, "cpu")

    @cached_property
    def together(self) -> nn.Module:
        """The network in float64 for many inputs at once, where one exported for a single input computes the same so."""
        module = copy.deepcopy(self.module).double().eval()
        if isinstance(module, WithOne) and isinstance(module.module, PerImage):
            low, high = self._box(self.disjuncts[0])
            few = low + (high - low) * RunSettings(self.seed).noise(["a", "b", "c"]).uniform(self.shape, torch.float64)
            faster = WithOne(module.module.module).eval()
            with suppress(Exception), torch.no_grad():  # whatever a graph for one input raises of three
                if torch.allclose(faster(few), module(few), rtol=1e-9, atol=1e-9):
                    return faster
        return module

    def answer(self, network: str, query: str) -> Answer:
        """Return the answer, in which no time stands yet."""
        if not self.disjuncts:
            return Answer(network, query, "unsat", 0.0)
        self._check_sizes(network, query)
        uncertain = ""
        for position, disjunct in enumerate(self.disjuncts):
            left = self.began + SEARCHING * self.seconds - time.monotonic()
            end = time.monotonic() + left / (len(self.disjuncts) - position)
            for point in self.candidates(disjunct, end):
                try:
                    with Deadline(self.began + self.seconds):
                        doubts = self.doubts(disjunct, point)
                except TimeoutError:
                    doubts = f"{UNCERTAIN} (the time ended)"
                if not doubts:
                    found = point.value[0] if not bool(point.held.all()) else point.value[0].float()
                    outputs = tuple(self.encoder(point.value.float())[0, :-1].tolist())
                    return Answer(network, query, "sat", 0.0, counterexample=found, outputs=outputs)
                uncertain = doubts
        reached = uncertain or "no attack reaches it"
        for position, disjunct in enumerate(self.disjuncts):
            which = f"disjunct {position + 1} of {len(self.disjuncts)}"
            left = (self.began + self.seconds - time.monotonic()) / (len(self.disjuncts) - position)
            try:
                refuted = self.refuted(disjunct, left)
            except (TimeoutError, HoldfastError) as error:
                if isinstance(error, HoldfastError) and not isinstance(error.__cause__, TimeoutError):
                    raise
                reason = f"the time ended before {self.method.name} bounded {which}, and {reached}"
                return Answer(network, query, "unknown", 0.0, reason)
            if not refuted:
                reason = f"no bound by {self.method.name} refutes {which}, and {reached}"
                return Answer(network, query, "unknown", 0.0, reason)
        return Answer(network, query, "unsat", 0.0)

    def _check_sizes(self, network: str, query: str) -> None:
        middle = self._middle(self.disjuncts[0])
        features, inputs = self.encoder(middle.float()).shape[1] - 1, int(np.prod(self.shape))
        for disjunct in self.disjuncts:
            sizes = len(disjunct.low), disjunct.specifications.shape[1]
            if sizes != (inputs, features):
                raise HoldfastError(
                    f"{query} has {sizes[0]} inputs and {sizes[1]} outputs, and {network} {inputs} and {features}"
                )

    def refuted(self, disjunct: Disjunct, seconds: float) -> bool:
        """Return whether bounds prove, in about ``seconds``, that no input of the box satisfies all inequalities.

        Raises:
            TimeoutError: the time ended before.
        """
        if not len(disjunct.specifications):
            return False
        end = time.monotonic() + seconds
        with Deadline(end):
            graph = self.graph
        method: Any = self.method
        if any(field.name == "seconds" for field in fields(method)):
            method = replace(method, seconds=max(0.0, min(method.seconds, end - time.monotonic())))
        specifications = _homogeneous(disjunct)
        if len(specifications) > 1:
            specifications = torch.cat([specifications, specifications.sum(0, keepdim=True)])
        with Deadline(end):
            bounds = method(graph, _around(self._box(disjunct)), specifications[None])
        return bool((vacuous_unless_finite(bounds) > 0).any())

    def candidates(self, disjunct: Disjunct, end: float) -> Iterator[_Point]:
        """Yield inputs of the box, best first, whose outputs satisfy all inequalities in float32 and float64."""
        if not len(disjunct.specifications):
            yield self._representable(disjunct, self._middle(disjunct))
            return
        for found in self._searched(disjunct, end):
            for value in found[:CHECKED]:
                point = self._representable(disjunct, value[None])
                if all(
                    disjunct.holds(encoder(point.value.to(dtype))[0, :-1].double().numpy())
                    for encoder, dtype in ((self.encoder, torch.float32), (self._double, torch.float64))
                ):
                    yield point

    @cached_property
    def _double(self) -> Encoder:
        return self.encoder.to("cpu", torch.float64)

    def _searched(self, disjunct: Disjunct, end: float) -> Iterator[Float[Tensor, "k *shape"]]:
        """Yield the best random inputs, and then the best of those that attacks reach from them, until the time ends."""
        specifications, boxed = _homogeneous(disjunct), _Boxed(self.together, self._box(disjunct)).eval()
        alone = isinstance(self.together, WithOne) and isinstance(self.together.module, PerImage)

        def objective(codes: Codes) -> Float[Tensor, "b"]:
            # The sum of what violates: the largest alone turns at each step between inequalities that oppose each other.
            return -(codes @ specifications.to(codes).mT).clamp_min(0).sum(1)

        def best(deltas: Tensor, count: int) -> Tensor:
            with torch.no_grad():
                return deltas[objective(boxed(deltas)).nan_to_num(-torch.inf).topk(min(count, len(deltas))).indices]

        count, starting = (ALONE, 2) if alone else (RANDOM, STARTS)
        moved = copy.copy(self._double)
        moved.module, moved.domain = boxed, Domain(self.shape, -1.0, 1.0)
        moved.__dict__.pop("fingerprint", None)
        starts = torch.empty(0, *self.shape, dtype=torch.float64)
        with suppress(TimeoutError):
            for turn in range(ROUNDS):
                noise = RunSettings(self.seed).noise([f"query {turn} {k}" for k in range(count)])
                with Deadline(end):
                    deltas = best(2 * noise.uniform(self.shape, torch.float64) - 1, starting)
                yield boxed.inputs(deltas)
                starts = torch.cat([starts, deltas])
                middle = torch.zeros_like(starts)
                noise = RunSettings(self.seed).noise([f"start {turn} {k}" for k in range(len(starts))])
                with Deadline(end):
                    if isinstance(self.attack, AdaptiveAttack):
                        reached = self.attack.beside([starts], moved, middle, objective, Linf(1.0), noise)
                    else:
                        reached = self.attack(moved, middle, objective, Linf(1.0), noise)
                    starts = best(reached, CHECKED)
                yield boxed.inputs(starts)

    def _representable(self, disjunct: Disjunct, point: Tensor) -> _Point:
        """Return the nearest input whose entries are float32 wherever the box holds one, else in the middle of it."""
        low, high = box = self._box(disjunct)
        rounded = inside(point, box)
        held = (rounded >= low) & (rounded <= high)
        return _Point(torch.where(held, rounded, self._middle(disjunct)), held)

    def doubts(self, disjunct: Disjunct, point: _Point) -> str:
        """Return why ``point``, whose outputs satisfy all inequalities here, may not do so elsewhere; nothing if it must."""
        if not len(disjunct.specifications):
            return ""
        specifications, offsets = torch.from_numpy(disjunct.specifications), torch.from_numpy(disjunct.offsets)
        try:
            lower, upper = codes_in_float32(self.encoder, point.value.float().double())
            ends = highest(specifications[None], Box(lower[:, :-1], upper[:, :-1]), torch.float64, -offsets)
            certain = bool((ends <= 0).all()) and (bool(point.held.all()) or self._everywhere(disjunct, point))
        except HoldfastError as error:
            return f"{UNCERTAIN} ({first_line(error)})"
        return "" if certain else UNCERTAIN

    def _everywhere(self, disjunct: Disjunct, point: _Point) -> bool:
        """Return whether all inputs satisfy the inequalities that differ from ``point`` where the box holds no float32.

        An end such as 0.1 is no float64 either, so that the real inputs of the box lie between two of those.
        """
        low, high = self._box(disjunct)
        close = Box(torch.where(point.held, point.value, low), torch.where(point.held, point.value, high))
        bounds = read_method("crown")(self.graph, _around(close), -_homogeneous(disjunct)[None])
        return bool((vacuous_unless_finite(bounds) >= 0).all())

    def _middle(self, disjunct: Disjunct) -> Tensor:
        low, high = self._box(disjunct)
        return torch.minimum(torch.maximum(low + (high - low) / 2, low), high)

    def _box(self, disjunct: Disjunct) -> Box:
        shape = (1, *self.shape)
        if len(disjunct.low) != int(np.prod(shape)):
            raise HoldfastError(f"the query has {len(disjunct.low)} inputs, and {self.name} takes {self.shape}")
        return Box(*(torch.from_numpy(end).reshape(shape) for end in (disjunct.low, disjunct.high)))


def _around(box: Box) -> Region:
    low, high = (end.double()[:, None] for end in box)
    return Region((low + high) / 2, low, high, (high - low).flatten(1).amax(1) / 2, Linf)


def _homogeneous(disjunct: Disjunct) -> Float[Tensor, "m d1"]:
    """Return the inequalities as functions of the outputs and 1 that are at most zero where they hold."""
    return torch.from_numpy(np.column_stack([disjunct.specifications, -disjunct.offsets]))
