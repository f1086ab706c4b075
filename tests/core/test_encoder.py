"""The one form in which the library meets a model: what it refuses, what it freezes, what it hashes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from math import inf, nan
from threading import Lock
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from holdfast.core.encoder import Domain, Encoder, Normalised
from holdfast.core.errors import HoldfastError, HoldfastWarning
from holdfast.core.geometry import Geometry
from tests.facts import refused, warned

DOMAIN = Domain((3, 4, 4))


def network(seed: int = 0, stride: int = 2, features: int = 5) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 4, 2, stride=stride), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(4, features),
    ).eval()  # fmt: skip


def padded(mode: Literal["zeros", "circular"]) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, padding_mode=mode), nn.Flatten()).eval()


def encoder(module: nn.Module | None = None, **changes) -> Encoder:
    return Encoder(module or network(), "net", changes.pop("domain", DOMAIN), **changes)


def pixels(count: int = 6, seed: int = 0) -> Tensor:
    return torch.rand(count, 3, 4, 4, generator=torch.Generator().manual_seed(seed))


class Plain(nn.Module):
    """A hand-written module: a number and no ``extra_repr``."""

    def __init__(self, factor: float = 1.0, sizes: tuple[int, ...] = (1, 2)) -> None:
        super().__init__()
        self.factor, self.sizes = factor, sizes

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x.flatten(1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (torch.zeros(2, 3, 4, 5), r"pixels must be of shape \(batch, 3, 4, 4\), got \(2, 3, 4, 5\)\. Resize"),
        (torch.zeros(3, 4, 4), r"got \(3, 4, 4\)\. Make a batch .* unsqueeze\(0\)"),
        (torch.zeros(2, 4, 4, 3), r"permute\(0, 3, 1, 2\)\.$"),
        (torch.zeros(2, 9, 9, 3), r"permute\(0, 3, 1, 2\) and resize"),
        (torch.zeros(2, 3, 4, 3), r"got \(2, 3, 4, 3\)\. Resize"),
        (
            torch.zeros(2, 3, 4, 4, dtype=torch.uint8),
            r"floating point in \[0.0, 1.0\], got torch.uint8\. Divide by 255",
        ),
        (
            torch.full((2, 3, 4, 4), 255.0),
            r"lie in \[0, 1\], got values from 255 to 255\. Pass raw pixels .* normalise",
        ),
        (torch.full((2, 3, 4, 4), -0.01), r"lie in \[0, 1\], got values from -0.01 to -0.01"),
    ],
)
def test_wrong_inputs_are_refused(given: Tensor, message: str):
    with pytest.raises(HoldfastError, match=message):
        DOMAIN.check(given)


@pytest.mark.parametrize("value", [nan, inf, -inf])
@pytest.mark.parametrize("domain", [DOMAIN, Domain((3, 4, 4), -inf, inf)])
def test_one_bad_pixel_is_refused(value: float, domain: Domain):
    bad = pixels()
    bad[4, 1, 2, 3] = value
    with pytest.raises(HoldfastError, match="must be finite"):
        domain.check(bad)


def test_good_inputs_pass_an_empty_batch_too():
    ends = pixels()
    ends[0, 0, 0, :2] = torch.tensor([0.0, 1.0])
    assert encoder()(ends).shape == (6, 5)
    DOMAIN.check(pixels(0))


def test_any_range_can_be_stated():
    wide = Domain((3,), -2.0, 5.0)
    wide.check(torch.tensor([[-2.0, 0.0, 5.0]]))
    assert wide.clip(torch.tensor([[-3.0, 1.0, 6.0]])).tolist() == [[-2, 1, 5]]
    with refused(HoldfastError, "[-2, 5]", "0 to 5.5", "features"):
        wide.check(torch.tensor([[0.0, 1.0, 5.5]]), of="features")


@pytest.mark.parametrize(
    ("shape", "low", "high"), [((), 0.0, 1.0), ((0, 3), 0.0, 1.0), ((3,), 1.0, 1.0), ((3,), 2.0, 1.0), ((3,), 0.0, nan)]
)
def test_domains_that_hold_nothing_are_refused(shape: tuple[int, ...], low: float, high: float):
    with pytest.raises(HoldfastError, match="domain"):
        Domain(shape, low, high)


@pytest.mark.parametrize(
    ("module", "got"),
    [
        (nn.Identity(), r"\(6, 3, 4, 4\)"),
        (nn.Flatten(0), r"\(288,\)"),
        (nn.Flatten(0, 1), r"\(18, 4, 4\)"),
        (nn.Unflatten(1, (1, 3)), r"\(6, 1, 3, 4, 4\)"),
        (nn.Sequential(nn.Flatten(), nn.Unflatten(0, (3, 2)), nn.Flatten(1)), r"\(3, 96\)"),
    ],
)
def test_outputs_that_are_not_one_vector_per_image_are_refused(module: nn.Module, got: str):
    with pytest.raises(HoldfastError, match=rf"one vector per image, shape \(6, d\), got {got}\. .*flatten"):
        encoder(module)(pixels())


class Function(nn.Module):
    """Whatever ``function`` makes of the images and of a layer."""

    def __init__(self, function: Callable[[Tensor, nn.Module], Any], layer: nn.Module) -> None:
        super().__init__()
        self.function, self.layer = function, layer

    def forward(self, x: Tensor) -> Any:
        return self.function(x, self.layer)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x, _: {"a": x, "b": x.flatten(1)}, "got dict with keys 'a', 'b'. Return one"),
        (lambda x, _: (x, x.flatten(1)), r"got tuple of 2: \(6, 3, 4, 4\), \(6, 48\)\. Return one"),
        (lambda x, _: [x.flatten(1), None], r"got list of 2: \(6, 48\), NoneType\. Return one"),
        (lambda x, _: [x] * 9, r"got list of 9: (\(6, 3, 4, 4\), ){2}.*\.\.\.\. Return one"),
        (lambda x, _: "codes", r"got str\. Pool or flatten"),
    ],
)
def test_outputs_that_are_no_tensor_are_described(function: Callable[..., Any], said: str):
    with pytest.raises(HoldfastError, match=said):
        encoder(Function(function, nn.Identity()))(pixels())


@pytest.mark.parametrize("cast", [torch.Tensor.half, torch.Tensor.bfloat16, torch.Tensor.double])
@pytest.mark.parametrize("layer", [nn.Conv2d(3, 3, 3), nn.Linear(4, 2)], ids=str)
def test_casts_in_the_module_are_named(cast: Callable[[Tensor], Tensor], layer: nn.Module):
    made = encoder(Function(lambda x, inner: inner(cast(x)).flatten(1), layer))
    with refused(HoldfastError, "32 here", "computes", "numbers"):
        made(pixels())


def test_other_errors_of_the_module_are_its_own():
    with refused(RuntimeError, "shapes", "multiplied"):
        encoder(nn.Linear(5, 2))(pixels())


def test_modules_that_want_more_than_images_are_refused():
    class Two(nn.Module):
        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return (x * mask).flatten(1)

    class Named(nn.Module):
        def forward(self, *, x: Tensor) -> Tensor:
            return x.flatten(1)

    for module in (Two(), Named()):
        with refused(HoldfastError, "net", "one tensor"):
            encoder(module)


def test_lazy_layers_are_run_once_before():
    module = nn.Sequential(nn.Flatten(), nn.LazyLinear(3)).eval()
    with refused(HoldfastError, "torch.zeros(1, 3, 4, 4)"):
        encoder(module)
    module(torch.zeros(1, 3, 4, 4))
    assert encoder(module)(pixels()).shape == (6, 3)


def test_codes_that_are_not_finite_are_refused():
    broken = network()
    with torch.no_grad():
        next(broken.parameters())[0, 0, 0, 0] = nan
    with pytest.raises(HoldfastError, match="net returned NaN or infinite embeddings; check its weights"):
        encoder(broken)(pixels())


def test_an_encoder_is_a_snapshot():
    module = network()
    made = encoder(module)
    codes, before = made(pixels()), made.fingerprint
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(1)
    module.train()(pixels())
    assert torch.equal(made(pixels()), codes)
    assert made.fingerprint == before
    assert encoder(module.eval()).fingerprint != before, "vacuous fixture"


def test_the_module_is_left_as_it_was():
    module = network().train()
    with pytest.warns(HoldfastWarning):
        encoder(module)
    assert module.training
    assert all(weight.requires_grad for weight in module.parameters())


def test_weights_are_frozen_and_inputs_are_not():
    made = encoder()
    given = pixels().requires_grad_()
    made(given).sum().backward()
    assert not any(weight.requires_grad for weight in made.module.parameters())
    assert given.grad is not None
    assert given.grad.any()


def test_training_mode_is_warned_of_where_it_matters():
    with warned(HoldfastWarning, "net", "training mode", "eval mode"):
        made = encoder(network().train())
    assert torch.equal(made(pixels()), encoder()(pixels()))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "net was in training mode")
        encoder(nn.Flatten().train())
        encoder(network())


def test_a_module_that_cannot_be_copied_is_refused():
    module = nn.Flatten()
    vars(module)["lock"] = Lock()
    with refused(HoldfastError, "net", "copied"):
        encoder(module)


def test_normalisation_happens_once():
    mean, std = (0.5, 0.25, 0.0), (0.5, 2.0, 1.0)
    made = encoder(nn.Flatten(), mean=mean, std=std)
    by_hand = (pixels() - torch.tensor(mean).reshape(3, 1, 1)) / torch.tensor(std).reshape(3, 1, 1)
    torch.testing.assert_close(made(pixels()), by_hand.flatten(1))
    torch.testing.assert_close(made.to("cpu", torch.float64)(pixels().double()).float(), by_hand.flatten(1))
    assert sum(isinstance(part, Normalised) for part in made.to("cpu", torch.float64).module.modules()) == 1


def test_one_number_normalises_all_channels(unchecked: None):
    one, three = encoder(mean=0.5, std=2), encoder(mean=(0.5,) * 3, std=(2.0,) * 3)
    assert one.fingerprint == three.fingerprint
    assert one.normalisation == three.normalisation


def test_normalisation_of_flat_inputs():
    made = Encoder(nn.Flatten(), "table", Domain((2,)), mean=(0.0, 1.0), std=(1.0, 2.0))
    assert made(torch.tensor([[0.5, 0.5]])).tolist() == [[0.5, -0.25]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mean": (0.5, 0.5, 0.5)}, "both mean and std, or neither"),
        ({"std": (0.5, 0.5, 0.5)}, "both mean and std, or neither"),
        ({"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.0, 0.5)}, "standard deviations .* positive"),
        ({"mean": (0.5, 0.5, 0.5), "std": (nan, 1.0, 0.5)}, "standard deviations .* positive"),
        ({"mean": (0.5,), "std": (0.5,)}, r"one mean and one std, or one of each per channel, 3 here, got \(0.5,\)"),
        ({"mean": "a", "std": (1.0,) * 3}, "one mean and one std, or one of each per channel, 3 here, got 'a'"),
    ],
)
def test_wrong_normalisation_is_refused(unchecked: None, settings: dict[str, Any], message: str):
    with pytest.raises(HoldfastError, match=message):
        encoder(**settings)


def test_normalisation_of_other_channels_is_refused_rather_than_broadcast():
    with pytest.raises(HoldfastError, match="per channel, 1 here"):
        Encoder(nn.Flatten(), "grey", Domain((1, 4, 4)), mean=(0.5,) * 3, std=(0.5,) * 3)


SAME = {
    "again": encoder,
    "another name and source": lambda: Encoder(network(), "other", DOMAIN, source="file:x"),
    "default geometry": lambda: encoder(geometry=Geometry(4, (4, 4))),
    "another precision": lambda: encoder().to("cpu", torch.float64),
    "half precision": lambda: encoder().to("cpu", torch.bfloat16),
}
OTHERS = {
    "weights": lambda: encoder(network(seed=1)),
    "stride": lambda: encoder(network(stride=1)),
    "activation": lambda: encoder(
        nn.Sequential(*[nn.GELU() if isinstance(m, nn.ReLU) else m for m in network()]).eval()
    ),
    "mean": lambda: encoder(mean=(0.5,) * 3, std=(1.0,) * 3),
    "std": lambda: encoder(mean=(0.5,) * 3, std=(0.9,) * 3),
    "geometry": lambda: encoder(geometry=Geometry(5, (4, 4))),
    "interpolation": lambda: encoder(geometry=Geometry(4, (4, 4), "bicubic")),
    "range": lambda: encoder(domain=Domain((3, 4, 4), 0.0, 2.0)),
    "shape": lambda: encoder(domain=Domain((3, 6, 6))),
    "double weights": lambda: encoder(network().double()),
    "padding": lambda: encoder(padded("zeros")),
    "padding mode": lambda: encoder(padded("circular")),
    "plain": lambda: encoder(Plain()),
    "plain number": lambda: encoder(Plain(2.0)),
    "plain sizes": lambda: encoder(Plain(sizes=(1, 3))),
}


@pytest.mark.parametrize("make", SAME.values(), ids=SAME)
def test_equal_encoders_have_equal_fingerprints(make):
    assert make().fingerprint == encoder().fingerprint


def test_different_encoders_have_different_fingerprints():
    prints = {name: make().fingerprint for name, make in OTHERS.items()}
    assert len({encoder().fingerprint, *prints.values()}) == 1 + len(OTHERS), prints


def test_a_changed_buffer_changes_the_fingerprint():
    module = network()
    module.get_buffer("1.running_mean")[2] += 1e-3
    assert encoder(module).fingerprint != encoder().fingerprint


def test_moving_changes_the_type_of_codes_and_nothing_else():
    made = encoder()
    moved = made.to("cpu", torch.float64)
    assert moved(pixels().double()).dtype == torch.float64
    torch.testing.assert_close(moved(pixels().double()).float(), made(pixels()))
    assert made(pixels()).dtype == torch.float32, "the original has moved"
    assert (moved.name, moved.domain, moved.source, moved.geometry) == (
        made.name, made.domain, made.source, made.geometry,
    )  # fmt: skip
    assert made.to("cpu", torch.float32) is made
    assert moved.parameters == made.parameters == 4 * 12 + 4 + 8 + 25


def test_an_encoder_says_how_an_image_becomes_a_code():
    geometry = Geometry(256, (224, 224), "bicubic")
    imagenet = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    made = Encoder(nn.Flatten(), "a", Domain((3, 224, 224)), *imagenet, geometry=geometry, pooling="none")
    expected = {
        "input": "3 x 224 x 224 in [0, 1]",
        "normalisation": "mean 0.485 0.456 0.406, std 0.229 0.224 0.225",
        "resizing": "shorter side to 256, centre 224 x 224, bicubic",
        "pooling": "none",
    }
    assert made.inputs == made.to("cpu", torch.bfloat16).inputs == expected
    assert Encoder(nn.Flatten(), "b", Domain((5,))).inputs == {
        "input": "5 in [0, 1]", "normalisation": "none", "resizing": "none", "pooling": "inside the module",
    }  # fmt: skip
    unsure = Encoder(nn.Linear(5, 2), "c", Domain((5,)), caution="Nothing is known.").to("cpu", torch.float64)
    assert (unsure.caution, unsure.inputs["normalisation"]) == ("Nothing is known.", "not stated")


def test_a_device_without_a_number_is_any_of_its_kind(monkeypatch):
    """An encoder of the first GPU is on ``cuda``: it is not copied once more whenever somebody asks for it there."""
    encoder = Encoder(nn.Flatten(), "first GPU", Domain((1, 2, 2)))
    weight = SimpleNamespace(dtype=torch.float32, device=torch.device("cuda", 0), is_floating_point=lambda: True)
    assert encoder.fingerprint
    monkeypatch.setattr(encoder, "module", SimpleNamespace(parameters=lambda: [weight], buffers=list))
    assert encoder.to("cuda", torch.float32) is encoder
    assert encoder.to("cuda:0", torch.float32) is encoder
    monkeypatch.setattr("holdfast.core.encoder.copied", lambda module: pytest.fail("copied", pytrace=False))
    with pytest.raises(pytest.fail.Exception, match="copied"):
        encoder.to("cuda:1", torch.float32)


def test_an_encoder_without_weights_goes_anywhere():
    made = encoder(nn.Flatten())
    assert made.to("cpu", torch.float64) is made
    assert made(pixels().double()).dtype == torch.float64
    assert made.parameters == 0


def test_images_are_brought_to_the_domain_unless_the_source_says_otherwise():
    assert encoder(domain=Domain((3, 4, 6))).geometry == Geometry(4, (4, 6))
    assert Encoder(nn.Flatten(), "table", Domain((7,))).geometry is None
    assert encoder(geometry=Geometry(9, (4, 4), "lanczos")).geometry == Geometry(9, (4, 4), "lanczos")


def test_an_encoder_shows_what_it_is():
    assert repr(encoder()).startswith("Encoder('net', (3, 4, 4), fingerprint='")


def test_normalisation_lies_where_the_module_does() -> None:
    """A model that trains on a GPU is looked at there."""
    encoder = Encoder(nn.Flatten(), "flat", Domain((1, 2, 2)), mean=[0.5], std=[0.5])
    assert {value.device.type for value in encoder.module.buffers()} == {"cpu"}
    elsewhere = nn.Sequential(nn.Flatten(), nn.Linear(4, 2)).to("meta")
    placed = Normalised(elsewhere, [0.5], [0.5], 3)
    assert {value.device.type for value in placed.buffers()} == {"meta"}
    assert placed(torch.rand(3, 1, 2, 2, device="meta")).shape == (3, 2)
