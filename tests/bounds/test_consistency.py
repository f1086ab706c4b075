"""What is random, keeps state or depends on values is refused, whichever way it enters; what only looks so is bounded."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Normal
from torch.nn import functional

from holdfast.bounds import lower_bound
from holdfast.bounds.network.consistency import probes
from holdfast.bounds.network.tracing import trace
from holdfast.core.balls import Linf
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import HoldfastError
from tests.marks import rest_slow

COUNT = [0]
FACTOR = 1.0
LAYER: nn.Module = nn.LeakyReLU(1.0)


def helped(x: Tensor) -> Tensor:
    return x


class Odd(nn.Module):
    """A linear map to three features, and something odd."""

    def __init__(self, odd: Callable[[Odd, Tensor], Tensor]) -> None:
        super().__init__()
        self.linear, self.odd, self.count, self.kept = nn.Linear(8, 3), odd, 0, {"calls": 0}
        self.generator = np.random.default_rng(0)
        self.last: Tensor | None = None
        self.register_buffer("total", torch.zeros(3))
        self.register_buffer("hidden", torch.zeros(3), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.odd(self, x)


def encoder(odd: Callable[[Any, Tensor], Tensor]) -> Encoder:
    torch.manual_seed(0)
    return Encoder(Odd(odd).eval(), "odd", Domain((8,)))


RANDOM: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "randn": lambda m, x: m.linear(x) + torch.randn(3).to(x),
    "rand": lambda m, x: m.linear(x) * torch.rand(1).to(x),
    "randint": lambda m, x: m.linear(x) * torch.randint(-1, 2, (3,)).to(x),
    "randperm": lambda m, x: m.linear(x) * torch.randperm(3).to(x),
    "rand_like": lambda m, x: m.linear(x) + torch.rand_like(x[:, :3]),
    "bernoulli": lambda m, x: m.linear(x) * torch.bernoulli(torch.full((3,), 0.5)).to(x),
    "bernoulli_": lambda m, x: m.linear(x) * torch.full((3,), 0.5).bernoulli_().to(x),
    "normal_": lambda m, x: m.linear(x) + torch.empty(3).normal_().to(x),
    "uniform_": lambda m, x: m.linear(x) + torch.empty(3).uniform_().to(x),
    "exponential_": lambda m, x: m.linear(x) + torch.ones(3).exponential_().to(x),
    "multinomial": lambda m, x: m.linear(x) * torch.multinomial(torch.ones(3), 3).to(x),
    "normal distributed": lambda m, x: m.linear(x) + Normal(0.0, 1.0).sample((3,)).to(x),
    "bernoulli distributed": lambda m, x: m.linear(x) * Bernoulli(0.5, validate_args=False).sample((3,)).to(x),
    "dropout": lambda m, x: functional.dropout(m.linear(x), 0.5, training=True),
    "dropout of weights": lambda m, x: functional.linear(x, functional.dropout(m.linear.weight, training=True)),
    "feature_dropout": lambda m, x: functional.dropout1d(m.linear(x)[..., None], 0.5, training=True)[..., 0],
    "rrelu": lambda m, x: functional.rrelu(m.linear.weight, training=True).sum() + m.linear(x),
}


@pytest.mark.parametrize("kind", rest_slow(RANDOM, fast=5))
def test_random_operations_are_refused_by_name(kind: str) -> None:
    name = kind.partition(" ")[0]
    with pytest.raises(HoldfastError, match=rf"odd .*random operation '{name}'"):
        lower_bound(encoder(RANDOM[kind]), torch.rand(1, 8), torch.ones(1, 1, 3), Linf(0.1))


def test_dropout_and_attention_draw_nothing_in_evaluation_mode() -> None:
    def idle(m: Any, x: Tensor) -> Tensor:
        weight = functional.dropout(m.linear.weight, training=False)
        tokens = weight.reshape(1, 3, 8)
        return functional.linear(x, weight) + functional.scaled_dot_product_attention(tokens, tokens, tokens).sum()

    assert trace(encoder(idle)).nodes[-1].shape == (1, 3)


def counted(m: Any, x: Tensor) -> Tensor:
    m.count += 1
    return m.linear(x) * (1 if m.count < 1000 else -1)


def nested(m: Any, x: Tensor) -> Tensor:
    m.kept["calls"] += 1
    return m.linear(x)


def added(m: Any, x: Tensor) -> Tensor:
    m.total += 1
    return m.linear(x) + m.total


def averaged(m: Any, x: Tensor) -> Tensor:
    m.hidden = 0.9 * m.hidden + 0.1 * m.linear(x).mean(0)
    return m.linear(x) - m.hidden


def around(m: Any, x: Tensor) -> Tensor:
    m.hidden.data.add_(1e-9)
    return m.linear(x)


def global_count(m: Any, x: Tensor) -> Tensor:
    COUNT[0] += 1
    return m.linear(x) * COUNT[0]


def recurrent(m: Any, x: Tensor) -> Tensor:
    m.last = m.linear(x).detach() * (1.0 if m.last is None or len(m.last) != len(x) else 1 - m.last)
    return m.last


def rare(m: Any, x: Tensor) -> Tensor:
    return -m.linear(x) if np.random.rand() < 1e-6 else m.linear(x)


def in_place(m: Any, x: Tensor) -> Tensor:
    x.sub_(0.5)
    return m.linear(x)


def told_by_tracing(m: Any, x: Tensor) -> Tensor:
    return m.linear(x) if torch.compiler.is_exporting() else m.linear(x).relu()


def told_by_values(m: Any, x: Tensor) -> Tensor:
    bright = not torch.compiler.is_exporting() and bool(x.mean() > 0.7)
    return -m.linear(x) if bright else m.linear(x)


def of_its_batch(m: Any, x: Tensor) -> Tensor:
    y = m.linear(x)
    return y - y.mean(0)


STATEFUL: dict[str, tuple[Callable[[Any, Tensor], Any], str]] = {
    "a counter": (counted, "changes its own 'count'"),
    "a counter in a dictionary": (nested, "changes its own 'kept'"),
    "a buffer in place": (added, "changes its own 'total'"),
    "a running mean": (averaged, "changes its own 'hidden'"),
    "a buffer behind autograd": (around, "cannot be traced"),
    "a counter elsewhere": (global_count, "changes its own 'odd'"),
    "what it saw last": (recurrent, "changes its own|different embeddings|cannot be traced"),
    "python's generator": (lambda m, x: m.linear(x) * random.random(), "different embeddings for the same image"),
    "numpy's generator, rarely": (rare, "draws random numbers"),
    "numpy's generator": (lambda m, x: m.linear(x) + torch.from_numpy(np.random.randn(3)).to(x), "draws random"),
    "numpy's generator for a number": (lambda m, x: m.linear(x) * np.random.rand(), "draws random numbers"),
    "a generator of its own": (
        lambda m, x: m.linear(x) * m.generator.random(),
        "different embeddings for the same image",
    ),
    "a new generator": (lambda m, x: m.linear(x) * np.random.default_rng().random(), "different embeddings"),
    "its input in place": (in_place, r"in place.*[Ww]rite x = x - mean"),
    "memory that nothing set": (
        lambda m, x: m.linear(x) + torch.empty(3).to(x),
        "different embeddings|other embeddings",
    ),
    "whether it is traced": (told_by_tracing, r"traced graph .* \d+ of 12"),
    "the brightness": (told_by_values, "different embeddings|other embeddings"),
    "its batch": (of_its_batch, "alone and among others"),
    "two results": (lambda m, x: (m.linear(x), x), "one vector per image"),
    "one image only": (lambda m, x: m.linear(x.reshape(1, 8)), "fails on 12 images of shape .8,. in float64"),
}


@pytest.mark.parametrize("kind", STATEFUL)
def test_what_is_no_function_of_the_image_is_refused_in_one_sentence(kind: str) -> None:
    odd, said = STATEFUL[kind]
    with pytest.raises(HoldfastError, match=f"odd .*({said})") as caught:
        trace(encoder(odd))
    assert "\n" not in str(caught.value)


def test_a_hook_that_counts_is_refused() -> None:
    calls = [0]

    def hook(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        calls[0] += 1
        return output if calls[0] < 1000 else -output

    module = nn.Sequential(nn.Linear(8, 3))
    module[0].register_forward_hook(hook)
    with pytest.raises(HoldfastError, match=r"changes its own '0\._forward_hooks'"):
        trace(Encoder(module.eval(), "hooked", Domain((8,))))


def test_a_function_that_counts_its_tracings_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = [0]

    def odd(m: Any, x: Tensor) -> Tensor:
        traced[0] += torch.compiler.is_exporting()
        return m.linear(x) * (1 + 1e-12 * traced[0])

    with pytest.raises(HoldfastError, match="another function"):
        trace(encoder(odd))


def cached(m: Any, x: Tensor) -> Tensor:
    m.last = torch.ones(3).to(x) if m.last is None else m.last
    return m.linear(x) + m.last


def scan_cache(m: Any, x: Tensor) -> Tensor:
    m.last = m.linear(x)
    return m.last


def autocast(m: Any, x: Tensor, enabled: bool = True) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
        return m.linear(x)


def test_autocast_is_refused_though_float64_is_spared() -> None:
    with pytest.raises(HoldfastError, match=r"computes under autocast in torch\.bfloat16, which rounds"):
        trace(encoder(autocast))


HONEST: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "a cache": cached,
    "what it saw last, unused": scan_cache,
    "memory that is set": lambda m, x: m.linear(x) + torch.empty(3).fill_(2.0).to(x),
    "autocast that is off": lambda m, x: autocast(m, x, enabled=False),
    "a seeded generator": lambda m, x: m.linear(x) * np.random.default_rng(1).random(),
}


@pytest.mark.parametrize("kind", HONEST)
def test_what_only_looks_like_state_is_bounded(kind: str) -> None:
    made = encoder(HONEST[kind])
    graph, x = trace(made), torch.rand(4, 8, dtype=torch.float64)
    double = made.to("cpu", torch.float64)
    assert torch.allclose(graph(x), double.forward(x), rtol=1e-12, atol=1e-12)
    assert type(double.forward(x)) is Tensor, "tracing left its own tensors in the module"


@pytest.mark.parametrize("ends", [(0.0, 1.0), (-3.0, 5.0), (float("-inf"), float("inf")), (20.0, float("inf"))])
def test_probes_are_of_many_kinds_and_inside(ends: tuple[float, float]) -> None:
    domain = Domain((3, 8, 8), *ends)
    found = probes(domain, torch.float64, torch.device("cpu"))
    domain.check(found)
    if ends == (0.0, 1.0):
        means = found.flatten(1).mean(1)
        assert means.min() < 0.25
        assert means.max() > 0.75
        assert (found[0].unique() == torch.tensor([0.0, 1.0])).all()


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value: float) -> None:
        self.value = value


class Factored(nn.Module):
    """A linear map, times factors that are kept in many places."""

    of_class = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.slotted = nn.Linear(8, 3), Slotted(1.0)

    @property
    def in_property(self) -> float:
        return 1.0

    def method(self, x: Tensor) -> Tensor:
        return x

    def forward(self, x: Tensor) -> Tensor:
        factor = self.of_class * self.slotted.value * self.in_property * FACTOR
        return helped(LAYER(self.method(self.linear(x) * factor)))


def enclosing() -> tuple[nn.Module, Callable[[], None]]:
    factor = 1.0

    class Enclosing(Factored):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * factor

    def change() -> None:
        nonlocal factor
        factor = -2.0

    return Enclosing(), change


def shared_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    hooks = {0: lambda module, given, codes: codes - 1.0 if isinstance(module, Factored) else codes}
    monkeypatch.setattr("torch.nn.modules.module._global_forward_hooks", hooks)


HERE = "tests.bounds.test_consistency"
CHANGES: dict[str, Callable[[pytest.MonkeyPatch, Any], Any]] = {
    "attribute of the class": lambda patch, module: patch.setattr(Factored, "of_class", -2.0),
    "global": lambda patch, module: patch.setattr(f"{HERE}.FACTOR", -2.0),
    "global module": lambda patch, module: patch.setattr(f"{HERE}.LAYER", nn.LeakyReLU(-2.0)),
    "global function": lambda patch, module: patch.setattr(f"{HERE}.helped", lambda x: -2 * x),
    "slot": lambda patch, module: setattr(module.slotted, "value", -2.0),
    "hook of all modules": lambda patch, module: shared_hook(patch),
    "property": lambda patch, module: patch.setattr(Factored, "in_property", property(lambda self: -2.0)),
    "method": lambda patch, module: patch.setattr(Factored, "method", lambda self, x: -2 * x),
    "forward": lambda patch, module: patch.setattr(Factored, "forward", lambda self, x: -self.linear(x)),
    "hook of one module": lambda patch, module: module.register_forward_hook(lambda m, given, codes: -codes),
}


@pytest.mark.parametrize("place", [*CHANGES, "closure"])
def test_a_graph_is_traced_anew_when_its_module_computes_something_else(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    module, close = enclosing() if place == "closure" else (Factored(), None)
    made, x = Encoder(module.eval(), "factored", Domain((8,))), torch.rand(4, 8)
    before = trace(made)
    codes = made.forward(x)
    assert trace(made) is before, "vacuous: the graph is not kept"
    if close:
        close()
    else:
        CHANGES[place](monkeypatch, made.module)
    changed = made.forward(x)
    assert not torch.allclose(changed, codes, atol=0.1), "vacuous: nothing changed"
    assert torch.allclose(trace(made)(x.double()), changed.double(), rtol=1e-4, atol=1e-5)
