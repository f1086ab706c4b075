"""An arrangement is the same function: values to rounding, discrete conclusions to the letter."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from holdfast.attacks.base import gain_and_gradient
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.images import Images
from holdfast.core.optimised import LARGE, ChannelsLast, fold, operations, optimisation, optimised, watched
from holdfast.core.run_settings import RunSettings
from holdfast.encoders.architectures.resnet import SmallResNet
from holdfast.geometry.views import gradcam
from holdfast.measure.population import Population, represent
from tests.facts import says

WIDE = Domain((3, 32, 32))


def settled(module: nn.Module) -> nn.Module:
    """``module`` in eval mode, with batch norms that are no identities."""
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            for values, low in (
                (part.running_mean, -0.5),
                (part.running_var, 0.5),
                (part.weight, 0.5),
                (part.bias, -0.5),
            ):
                assert values is not None
                values.data.uniform_(low, low + 1)
    return module.eval().requires_grad_(False)


def convolutional() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, 1, 1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 128, 3, 2, 1, bias=False),
        nn.BatchNorm2d(128),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )


def encoder_of(module: nn.Module, domain: Domain = WIDE) -> Encoder:
    return Encoder(settled(module), "network", domain, mean=(0.5,) * 3, std=(0.25,) * 3)


NETWORKS = {"conv": convolutional, "resnet": lambda: SmallResNet(width=16).build(WIDE)}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("batch", [1, 5, 16])
def test_arranged_is_the_same_function(name: str, batch: int) -> None:
    encoder = encoder_of(NETWORKS[name]())
    quick = optimised(encoder)
    assert isinstance(quick.module, ChannelsLast)
    assert not any(isinstance(part, nn.BatchNorm2d) for part in quick.module.modules())
    check_same(encoder, quick, batch)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 4, 8])
def test_arranged_is_the_same_function_of_a_real_network(reference: Path, batch: int) -> None:
    network = pytest.importorskip("efficientnet_lite_pytorch").EfficientNet.from_name("efficientnet-lite0")
    network._fc, network._dropout = nn.Identity(), nn.Identity()
    weights = torch.load(reference / "real" / "efficientnet_lite0.pt", weights_only=True)
    network.load_state_dict({key: value for key, value in weights.items() if not key.startswith("_fc")})
    encoder = Encoder(network.eval(), "lite0", Domain((3, 224, 224)), mean=(0.498,) * 3, std=(0.502,) * 3)
    assert says(optimisation(encoder), "49 batch norms", "channels last")
    check_same(encoder, optimised(encoder), batch)


def check_same(encoder: Encoder, quick: Encoder, batch: int) -> None:
    pixels = torch.rand(16, *encoder.domain.shape)
    plain = encoder(pixels)
    codes = torch.cat([quick(part) for part in pixels.split(batch)])
    assert torch.allclose(codes, plain, rtol=0, atol=1e-4 * float(plain.abs().max()))
    assert torch.equal(nearest(codes), nearest(plain))
    weights = torch.randn(plain.shape[1])
    (_, gradient), (_, its_gradient) = (
        gain_and_gradient(each, pixels, lambda codes: codes @ weights) for each in (encoder, quick)
    )
    # A unit at the kink of its activation may pass its gradient in one arrangement and not in the other.
    assert float((gradient - its_gradient).norm() / gradient.norm()) < 0.01


def nearest(codes: Tensor) -> Tensor:
    return torch.cdist(codes, codes).fill_diagonal_(torch.inf).argmin(1)


def test_what_identifies_an_encoder_and_its_layers_stay() -> None:
    encoder = encoder_of(convolutional())
    fingerprint = encoder.fingerprint
    quick = optimised(encoder)
    assert quick is optimised(encoder), "arranged once"
    assert quick.fingerprint == encoder.fingerprint == fingerprint
    assert any(isinstance(part, nn.BatchNorm2d) for part in encoder.module.modules())
    pixels = torch.rand(4, 3, 32, 32)
    population = Population(encoder, Images(pixels, ["a", "b", "c", "d"]), RunSettings())
    assert population.encoder is encoder
    assert population.context([0]).encoder is quick
    codes = represent(encoder, population.images, [0, 1, 2, 3], population.run)
    assert torch.equal(codes, quick(pixels))
    assert gradcam(population.encoder, pixels[:1], codes[:1]).shape[0] == 1


def test_small_networks_and_other_precisions_are_left_as_they_are() -> None:
    body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten())
    small, double = encoder_of(body, Domain((3, 8, 8))), encoder_of(convolutional()).to("cpu", torch.float64)
    assert operations(small) <= LARGE < operations(double)
    for encoder in (small, double):
        assert optimised(encoder) is encoder
        assert says(optimisation(encoder), "as it was")


class Shared(nn.Module):
    """What a convolution returns is used twice, and only once behind the batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return (self.norm(y) + y).flatten(1)


class Twice(Shared):
    """One convolution is called twice."""

    def forward(self, x: Tensor) -> Tensor:
        return (self.norm(self.conv(x)) + self.conv(x.flip(3))).flatten(1)


class Watched(nn.Module):
    """A batch norm that a hook listens to."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten())
        list(self.body)[1].register_forward_hook(lambda part, inputs, output: output * 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


@pytest.mark.parametrize("kind", [Shared, Twice, Watched])
def test_a_batch_norm_that_cannot_be_folded_stays(kind: type[nn.Module]) -> None:
    module, pixels = settled(kind()), torch.rand(1, 3, 8, 8)
    assert fold(module, watched(module, pixels)) is module


def test_a_network_that_only_takes_the_usual_layout_keeps_it() -> None:
    class Viewing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(*list(convolutional().children())[:6])

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x).view(len(x), -1)

    encoder = encoder_of(Viewing())
    quick = optimised(encoder)
    assert not isinstance(quick.module, ChannelsLast)
    assert says(optimisation(encoder), "2 batch norms")
    check_same(encoder, quick, 4)


def test_activations_inside_batch_norms_stay() -> None:
    """As in timm, whose class is known by its name and parts."""

    class BatchNormAct2d(nn.BatchNorm2d):
        def __init__(self, channels: int) -> None:
            super().__init__(channels)
            self.add_module("drop", nn.Identity())
            self.add_module("act", nn.ReLU())

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(super().forward(x))

    module = convolutional()
    module.add_module("1", BatchNormAct2d(32))
    encoder = encoder_of(module)
    assert optimisation(encoder).startswith("2 batch norms")
    check_same(encoder, optimised(encoder), 4)
