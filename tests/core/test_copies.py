"""Snapshots: a copy computes what the original did when it was copied, and nothing of the original reaches it."""

import warnings
from collections.abc import Callable
from functools import partial
from types import MethodType

import pytest
import torch
from torch import Tensor, nn

from holdfast.core.copies import copied
from holdfast.core.encoder import Domain, Encoder

PIXELS = torch.rand(5, 1, 4, 4, generator=torch.Generator().manual_seed(0))


class Scaled(nn.Module):
    """A linear layer times a number that hooks and functions read off the module."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(16, 3), 2.0

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.flatten(1))


def with_hook() -> nn.Module:
    module = Scaled()
    module.layer.register_forward_hook(lambda part, args, out: out * module.scale)
    return module


def with_pre_hook() -> nn.Module:
    module = Scaled()
    module.layer.register_forward_pre_hook(lambda part, args: (args[0] * module.scale,))
    return module


def with_nested_closure() -> nn.Module:
    module = Scaled()

    def scale() -> float:
        return module.scale

    module.layer.register_forward_hook(lambda part, args, out: out * scale())
    return module


def with_function() -> nn.Module:
    module = Scaled()
    original = module.forward
    module.forward = lambda x: original(x) * module.scale  # type: ignore[method-assign]
    return module


def with_method() -> nn.Module:
    module = Scaled()
    module.forward = MethodType(lambda self, x: self.layer(x.flatten(1)) * self.scale, module)  # type: ignore[method-assign]
    return module


def with_partial() -> nn.Module:
    module = Scaled()

    def scaled(of: Scaled, part: nn.Module, args: object, out: Tensor) -> Tensor:
        return out * of.scale

    module.layer.register_forward_hook(partial(scaled, module))
    return module


def changed(module: nn.Module) -> None:
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(1)
    if isinstance(module, Scaled):
        module.scale = 5.0


def parametrised(norm: Callable[[nn.Module], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Flatten(), norm(nn.Linear(16, 3)))


def scripted() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(Scaled())


def traced() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return nn.Sequential(torch.jit.trace(Scaled(), PIXELS), nn.ReLU())


def old_weight_norm(layer: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return torch.nn.utils.weight_norm(layer)


MODULES = [
    with_hook,
    with_pre_hook,
    with_nested_closure,
    with_function,
    with_method,
    with_partial,
    parametrised(old_weight_norm),
    parametrised(torch.nn.utils.spectral_norm),
    parametrised(torch.nn.utils.parametrizations.weight_norm),
    scripted,
    traced,
    lambda: torch.export.export(Scaled().eval(), (PIXELS,)).module(check_guards=False),
]


@pytest.mark.parametrize("build", MODULES)
def test_an_encoder_keeps_computing_what_its_module_did(build: Callable[[], nn.Module]) -> None:
    module = build()
    if not isinstance(module, torch.fx.GraphModule):
        module.eval()
    module(PIXELS)  # with gradients, which old norms keep in their weights
    before = module(PIXELS).detach()
    encoder = Encoder(module, "mine", Domain((1, 4, 4)))
    assert torch.equal(encoder(PIXELS), before)
    again = encoder.to("cpu", torch.float64)
    changed(module)
    assert not torch.equal(module(PIXELS), before), "vacuous change"
    assert torch.equal(encoder(PIXELS), before)
    if not isinstance(module, torch.fx.GraphModule):
        assert torch.allclose(again(PIXELS.double()).float(), before, atol=1e-5)
    pixels = PIXELS.clone().requires_grad_()
    encoder(pixels).sum().backward()
    assert pixels.grad is not None
    assert pixels.grad.ne(0).any()
    assert not any(weight.requires_grad for weight in encoder.module.parameters())


def test_a_copy_leaves_the_original_as_it_is() -> None:
    module = with_hook()
    functions = [*module.get_submodule("layer")._forward_hooks.values()]
    copied(module)
    assert [*module.get_submodule("layer")._forward_hooks.values()] == functions


def test_functions_without_a_share_in_the_module_stay_the_same() -> None:
    other = nn.Linear(1, 1)
    module = nn.Sequential(nn.Flatten())

    def hook(part: nn.Module, args: object, out: Tensor) -> Tensor:
        return out + other.weight.sum()

    module.register_forward_hook(hook)
    assert next(iter(copied(module)._forward_hooks.values())) is hook


@pytest.mark.parametrize("build", [scripted, traced])
def test_scripts_are_told_apart_by_code_and_weights(build: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    module = build().eval()
    first = Encoder(module, "a", Domain((1, 4, 4))).fingerprint
    assert Encoder(module, "b", Domain((1, 4, 4))).fingerprint == first
    with torch.no_grad():
        next(iter(module.parameters())).add_(1)
    assert Encoder(module, "c", Domain((1, 4, 4))).fingerprint != first


class Shifted(Scaled):
    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.flatten(1)) + 1


def test_scripts_of_other_code_have_other_fingerprints() -> None:
    encoders = []
    for kind in (Scaled, Shifted):
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            encoders.append(Encoder(torch.jit.script(kind()).eval(), "a", Domain((1, 4, 4))))
    assert encoders[0].fingerprint != encoders[1].fingerprint
