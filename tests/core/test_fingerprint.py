"""Encoders that compute different codes have different fingerprints; the same encoder always has the same."""

from __future__ import annotations

import importlib
import logging
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from holdfast.core.fingerprint import fingerprint, without_source

TIMES = 0
LOGGER = logging.getLogger(__name__)


class Keeps(nn.Module):
    """A hand-written module that keeps ``kept`` as a plain attribute."""

    def __init__(self, kept: Any) -> None:
        super().__init__()
        self.kept = kept

    def forward(self, x: Tensor) -> Tensor:
        return x


class Scaler:
    """Multiplies the codes of a module: what a forward hook often is."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def scale(self, module: nn.Module, given: Any, codes: Tensor) -> Tensor:
        return self.factor * codes


class SlottedValue:
    __slots__ = ("value",)
    value: float


def twice(factor: float) -> Any:
    return lambda x: factor * x


PAIRS = [
    (1, 2),
    ("mean", "max"),
    (None, 0),
    (torch.tanh, torch.relu),
    (torch.ones(2), torch.zeros(2)),
    (np.ones(2), np.zeros(2)),
    ({"a": 1}, {"a": 2}),
    ({"a": [1, {"b": (2,)}]}, {"a": [1, {"b": (3,)}]}),
    (torch.float32, torch.float64),
    (twice(2.0), twice(3.0)),
    (lambda x: x + 1, lambda x: x + 2),
    (partial(torch.clamp, min=0), partial(torch.clamp, min=1)),
    ([nn.Linear(2, 2)], [nn.Linear(2, 2)]),
]


@pytest.mark.parametrize(("left", "right"), PAIRS, ids=lambda kept: type(kept).__name__)
def test_what_a_module_keeps_tells_it_apart(left: Any, right: Any) -> None:
    assert fingerprint(Keeps(left)) != fingerprint(Keeps(right))
    assert fingerprint(Keeps(left)) == fingerprint(Keeps(left))


def test_hooks_tell_modules_apart() -> None:
    def hooked(hook: Any) -> nn.Module:
        module = nn.Sequential(nn.Flatten())
        module[0].register_forward_hook(hook)
        return module

    plain, double, triple = nn.Sequential(nn.Flatten()), hooked(Scaler(2.0).scale), hooked(Scaler(3.0).scale)
    assert not torch.equal(double(torch.ones(1, 2)), triple(torch.ones(1, 2))), "vacuous: the hooks do not differ"
    assert len({fingerprint(module) for module in (plain, double, triple)}) == 3
    assert fingerprint(double) == fingerprint(hooked(Scaler(2.0).scale))
    before, after = nn.Flatten(), nn.Flatten()
    before.register_forward_pre_hook(lambda module, given: None)
    after.register_full_backward_hook(lambda module, given, gradient: None)
    assert len({fingerprint(module) for module in (nn.Flatten(), before, after)}) == 3


def test_buffers_that_are_not_saved_count() -> None:
    def buffered(value: float) -> nn.Module:
        module = Keeps(None)
        module.register_buffer("mean", torch.tensor(value), persistent=False)
        return module

    assert not buffered(1.0).state_dict(), "vacuous: the buffer is saved"
    assert fingerprint(buffered(1.0)) != fingerprint(buffered(2.0))
    assert fingerprint(buffered(1.0)) == fingerprint(buffered(1.0))


def test_code_tells_classes_of_one_name_apart() -> None:
    def built(sign: int) -> nn.Module:
        if sign > 0:

            class Same(nn.Module):
                def forward(self, x: Tensor) -> Tensor:
                    return x

        else:

            class Same(nn.Module):  # type: ignore[no-redef]
                def forward(self, x: Tensor) -> Tensor:
                    return -x

        return Same()

    assert fingerprint(built(1)) != fingerprint(built(-1))


def shared(twice_used: bool) -> nn.Module:
    torch.manual_seed(0)
    linear, curve = nn.Linear(2, 2), nn.Tanh()
    return nn.Sequential(curve, linear, curve) if twice_used else nn.Sequential(curve, linear)


def test_parts_that_are_used_twice_count_twice() -> None:
    assert fingerprint(shared(True)) == fingerprint(shared(True)) != fingerprint(shared(False))


FILE = """
from torch import nn
import {helpers}
SCALE = [{scale}, 1.0]

def helper(x, *, power={power}):
    return inner(x) ** power

def inner(x):
    return x {operation} 1

class Base(nn.Module):
    def forward(self, x):
        return {base} * x

class Encoder(Base):
    factor = {factor}

    @property
    def bias(self):
        return {bias}

    def forward(self, x):
        return self.features(super().forward(x)) * SCALE[0] + self.bias

    def features(self, x):
        return helper(x) * self.factor + {helpers}.more(x)
"""
USUAL = {"scale": 1, "power": 1, "operation": "+", "base": 1, "factor": 1, "bias": 0}
CHANGED: dict[str, Any] = {"scale": 2, "power": 2, "operation": "-", "base": 2, "factor": 2, "bias": 1}


def written(folder: Path, more: str = "x", **settings: Any) -> str:
    """Return the fingerprint of an encoder whose file, with a file of helpers beside it, was just written."""
    for name in ("fingerprinted", "fingerprinted_helpers"):
        sys.modules.pop(name, None)
    (folder / "fingerprinted.py").write_text(FILE.format(helpers="fingerprinted_helpers", **{**USUAL, **settings}))
    (folder / "fingerprinted_helpers.py").write_text(f"def more(x):\n    return {more}\n")
    importlib.invalidate_caches()
    encoder: nn.Module = importlib.import_module("fingerprinted").Encoder()
    return fingerprint(encoder)


@pytest.mark.parametrize("changed", CHANGED)
def test_what_forward_names_counts(changed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    usual = written(tmp_path)
    assert usual == written(tmp_path)
    assert usual != written(tmp_path, **{changed: CHANGED[changed]})
    assert usual != written(tmp_path, more="-x"), "in another file of its author"


def test_defaults_of_keywords_count() -> None:
    def made(scale: float) -> Any:
        def forward(x: Tensor, *, factor: float = scale) -> Tensor:
            return factor * x

        return forward

    assert fingerprint(Keeps(made(1.0))) != fingerprint(Keeps(made(2.0)))


def test_what_changes_from_process_to_process_does_not_count() -> None:
    class Logged(nn.Module):
        calls = 0
        cache: ClassVar[dict[int, Tensor]] = {}
        lock = threading.Lock()

        def forward(self, x: Tensor) -> Tensor:
            with self.lock:
                LOGGER.debug("asked")
                self.cache[len(self.cache)] = x
                type(self).calls += 1
                global TIMES
                TIMES += 1
                return x

    before = fingerprint(Logged())
    Logged()(torch.ones(2))
    assert before == fingerprint(Logged())


ENCLOSED: dict[str, Any] = {
    "number": (1.0, 2.0),
    "function": (lambda x: x, lambda x: -x),
    "layer": (nn.Tanh(), nn.ReLU()),
}


@pytest.mark.parametrize("kind", ENCLOSED)
def test_what_functions_around_forward_hold_counts(kind: str) -> None:
    def made(held: Any) -> nn.Module:
        class Enclosing(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return held(x) if callable(held) else held * x

        return Enclosing()

    first, second = (fingerprint(made(held)) for held in ENCLOSED[kind])
    assert first == fingerprint(made(ENCLOSED[kind][0])) != second


def test_slots_count() -> None:
    class Slotted(nn.Module):
        __slots__ = ("_Slotted__hidden", "scale")

        def __init__(self, scale: float) -> None:
            super().__init__()
            self.scale = scale

    def kept(value: float) -> nn.Module:
        module = Keeps(slotted := SlottedValue())
        slotted.value = value
        return module

    assert fingerprint(Slotted(1.0)) == fingerprint(Slotted(1.0)) != fingerprint(Slotted(2.0))
    assert fingerprint(kept(1.0)) == fingerprint(kept(1.0)) != fingerprint(kept(2.0))


def test_hooks_of_all_modules_count() -> None:
    before = fingerprint(nn.Flatten())
    for register in (
        nn.modules.module.register_module_forward_hook,
        nn.modules.module.register_module_forward_pre_hook,
    ):
        handle = register(lambda module, given, *codes: None)
        assert fingerprint(nn.Flatten()) != before
        handle.remove()
    assert fingerprint(nn.Flatten()) == before


def test_what_a_subclass_of_a_layer_overrides_counts() -> None:
    def made(sign: int) -> nn.Module:
        class Layer(nn.Conv2d):
            def _conv_forward(self, *given: Any) -> Tensor:
                return sign * super()._conv_forward(*given)

        torch.manual_seed(0)
        return Layer(1, 1, 1)

    assert fingerprint(made(1)) == fingerprint(made(1)) != fingerprint(made(-1))


def test_calls_of_plain_objects_count() -> None:
    class Once:
        def __call__(self, x: Tensor) -> Tensor:
            return x

    class Twice:
        def __call__(self, x: Tensor) -> Tensor:
            return x + x

    Twice.__qualname__ = Once.__qualname__
    assert fingerprint(Keeps(Once())) == fingerprint(Keeps(Once())) != fingerprint(Keeps(Twice()))


def test_what_cannot_be_described_is_never_confused() -> None:
    module = Keeps(object())
    assert fingerprint(module) != fingerprint(module)


def test_modules_may_hold_their_holders() -> None:
    module = Keeps(None)
    module.kept = [module, {"self": module}]
    other = Keeps(None)
    other.kept = [other, {"self": other}]
    assert fingerprint(module) == fingerprint(other)


def test_code_without_source_is_known_by_its_bytecode_and_named() -> None:
    names: dict[str, Any] = {"nn": nn}
    exec("class Typed(nn.Module):\n    def forward(self, x):\n        return x * 2\n", names)
    assert without_source(names["Typed"]()) == ["Typed.forward"]
    assert without_source(nn.Sequential(Keeps(None), nn.Linear(2, 2))) == []
    before = fingerprint(names["Typed"]())
    exec("def forward(self, x):\n    return x * 3\n", names)
    names["Typed"].forward = names["forward"]
    assert fingerprint(names["Typed"]()) != before


def test_a_file_edited_since_its_import_describes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    code = "from torch import nn\nclass Edited(nn.Module):\n    def forward(self, x):\n        return x {} 1\n"
    (tmp_path / "edited.py").write_text(code.format("+"))
    module = importlib.import_module("edited")
    (tmp_path / "edited.py").write_text(code.format("-"))
    old = fingerprint(module.Edited())
    assert without_source(module.Edited()) == ["Edited.forward"]
    new = importlib.reload(module)
    assert without_source(new.Edited()) == []
    assert fingerprint(new.Edited()) != old


def test_context_counts() -> None:
    assert fingerprint(nn.Flatten(), 1) != fingerprint(nn.Flatten(), 2)


def test_quantised_layers_are_known_by_their_packed_weights() -> None:
    from tests.commands.parity_pairs import network, quantised

    first, again, other = (fingerprint(quantised(network(seed))) for seed in (0, 0, 1))
    assert first == again
    assert first != other
