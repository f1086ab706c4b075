"""The doctor finds each illness it knows, and nothing in a healthy encoder."""

from __future__ import annotations

import copy
import os
import warnings
from itertools import count
from math import inf
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from holdfast.core.encoder import Domain, Encoder, Normalised
from holdfast.core.errors import HoldfastError, HoldfastWarning
from holdfast.core.geometry import Geometry
from holdfast.core.run_settings import RunSettings
from holdfast.data import load as load_images
from holdfast.encoders.stored import stored
from holdfast.run import checkup as doctor
from holdfast.run import health_checks as doctor_inputs
from holdfast.run.health_checks import COMPARING, QUESTIONS
from tests.facts import refused, says, warned

SHAPE = (3, 8, 8)


def network() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(144, 6)).eval()


def statuses(module: nn.Module, pixels: Tensor | None = None, shape: tuple[int, ...] = SHAPE) -> dict[str, str]:
    encoder = Encoder(module, "patient", Domain(shape), mean=(0.5,) * shape[0], std=(0.2,) * shape[0])
    return {check.name: check.status for check in doctor.essential_checks(encoder, pixels)}


class Function(nn.Module):
    def __init__(self, function, *parts: nn.Module) -> None:
        super().__init__()
        self.function, self.inner = function, nn.Sequential(*parts)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.inner(x))


def test_healthy_encoder_passes_every_check():
    found = statuses(network(), torch.rand(6, *SHAPE))
    assert set(found.values()) == {"ok"}
    assert set(found) == set(QUESTIONS)


def test_a_step_of_the_store_that_rounding_crosses_is_no_batch_statistic():
    pixels, inner = torch.rand(6, *SHAPE), nn.Sequential(network(), nn.Linear(6, 8)).eval()
    middle = inner(pixels)[0]  # so that rounding decides the signs of the first image
    trembling = Function(lambda codes: codes * (1 + 1e-6 * (len(codes) - 3)) - middle, inner)
    encoder = stored(Encoder(trembling, "patient", Domain(SHAPE)), "binary")
    assert not torch.equal(encoder(pixels)[:1], encoder(pixels[:1])), "vacuous: no step is crossed"
    found = {check.name: check.status for check in doctor.essential_checks(encoder, pixels)}
    assert found["independent of the batch"] == "ok"


@pytest.mark.parametrize(("low", "high"), [(-inf, inf), (2.0, inf), (-inf, -2.0)])
def test_inputs_without_limits_are_examined_on_noise(low: float, high: float):
    """There is no middle of an infinite range, no noise uniform in it and no input at its end."""
    encoder = Encoder(nn.Linear(8, 4), "unlimited", Domain((8,), low, high))
    assert {check.name: check.status for check in doctor.essential_checks(encoder)} == dict.fromkeys(QUESTIONS, "ok")


def always_train(module: nn.Module) -> nn.Module:
    """Batch norm that uses the statistics of the batch in evaluation mode too."""
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean = part.running_var = None
    return module


def wide() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.Flatten(), nn.Linear(1024, 256)
    ).eval()


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_codes_wider_than_the_network_are_not_taken_for_batch_statistics(kind):
    module = Function(lambda codes: codes.to(kind), wide())
    assert statuses(module, torch.rand(4, *SHAPE))["independent of the batch"] == "ok"
    ill = Function(lambda codes: codes.to(kind), always_train(nn.Sequential(nn.BatchNorm2d(3), *wide()).eval()))
    assert statuses(ill, torch.rand(4, *SHAPE))["independent of the batch"] == "failed"


def constant(codes: Tensor) -> Tensor:
    return codes * 0 + 1


def test_an_encoder_that_is_finite_the_first_time_alone_is_not_called_repeatable():
    calls = count()
    fickle = Function(lambda codes: codes * (torch.nan if next(calls) else 1.0), network())
    assert statuses(fickle, torch.rand(4, *SHAPE))["repeatable"] == "failed"


def test_an_encoder_that_is_finite_in_single_precision_alone_is_warned_of():
    single = Function(lambda codes: codes * (torch.nan if codes.dtype == torch.float64 else 1.0), network())
    assert statuses(single, torch.rand(4, *SHAPE))["double precision"] == "warning"


class Listed(nn.Module):
    """Layers in a plain list are no parts of a module."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = [network()]

    def forward(self, x: Tensor) -> Tensor:
        return self.layers[0](x)


ILLNESSES = {
    "weights registered": (Listed(), "warning"),
    "finite": (Function(lambda x: torch.log(-x.abs()), nn.Flatten(), nn.Linear(192, 2)), "failed"),
    "repeatable": (Function(lambda x: nn.functional.dropout(x, 0.5, training=True), network()), "failed"),
    "independent of the batch": (always_train(nn.Sequential(nn.BatchNorm2d(3), *network()).eval()), "failed"),
    "differentiable": (Function(torch.Tensor.detach, network()), "warning"),
    "tells images apart": (Function(constant, network()), "failed"),
    "over the whole range": (Function(lambda x: 1 / (x + 2.5).abs(), nn.Flatten()), "failed"),
    "double precision": (Function(torch.Tensor.float, network()), "warning"),
}


@pytest.mark.parametrize("name", ILLNESSES)
def test_each_illness_is_found_under_its_name(name):
    module, status = ILLNESSES[name]
    assert statuses(module, torch.rand(4, *SHAPE))[name] == status


@pytest.mark.parametrize("name", [*ILLNESSES, "none", "training"])
def test_critical_questions_find_every_failure_and_no_warning(name):
    encoder = Encoder(ILLNESSES.get(name, (network(), ""))[0], "patient", Domain(SHAPE), (0.5,) * 3, (0.2,) * 3)
    if name == "training":
        encoder.module.get_submodule("module.1").train()
    pixels = torch.rand(4, *SHAPE)
    wholly, critical = (doctor.essential_checks(encoder, pixels, critical=only) for only in (False, True))
    # What is random differs by another number each time.
    assert [check.name for check in wholly if check.status == "failed"] == [
        check.name for check in critical if check.status != "ok"
    ]
    assert {"normalisation", "double precision"}.isdisjoint(check.name for check in critical)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x: x.mean(), "got ()"),
        (lambda x: x[:1], "got (1, 6)"),
        (lambda x: x[:, :, None], "got (4, 6, 1)"),
        (lambda x: x @ x, "RuntimeError"),
    ],
)
def test_codes_of_another_shape_end_the_examination_with_the_reason(function, said):
    checks = doctor.essential_checks(Encoder(Function(function, network()), "patient", Domain(SHAPE)))
    assert [check.status for check in checks] == ["failed"]
    assert said in checks[0].sentence


def test_weights_outside_of_the_parameters_are_seen_without_gradients_too():
    with torch.no_grad():
        assert statuses(Listed(), torch.rand(4, *SHAPE))["weights registered"] == "warning"


class Counter(nn.Module):
    """Adds how often it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = network(), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.layer(x) + self.calls


@pytest.mark.parametrize(
    "module",
    [
        ILLNESSES["repeatable"][0],
        Function(lambda codes: codes + torch.randn_like(codes), network()),
        Counter(),
    ],
)
def test_an_encoder_whose_codes_change_is_blamed_for_nothing_else(module):
    checks = doctor.essential_checks(
        Encoder(module, "patient", Domain(SHAPE), (0.5,) * 3, (0.2,) * 3), torch.rand(4, *SHAPE)
    )
    (unfit,) = (check for check in checks if check.status != "ok")
    assert unfit.name == "repeatable"
    assert unfit.sentence.startswith("Its codes of the same images differ from call to call")
    assert {check.name for check in checks} == set(QUESTIONS) - {
        name for name, q in QUESTIONS.items() if q in COMPARING
    }


def test_one_code_for_all_noise_fails_and_nearly_one_is_a_warning():
    assert statuses(Function(constant, network()))["tells images apart"] == "failed"
    assert statuses(Function(lambda codes: 1 + 1e-6 * codes, network()))["tells images apart"] == "warning"


def test_vanishing_gradient_is_a_warning():
    dead = Function(lambda x: torch.relu(x - 100), network())
    assert statuses(dead, torch.rand(4, *SHAPE))["differentiable"] == "warning"


def test_part_left_in_training_mode_is_found():
    encoder = Encoder(network(), "patient", Domain(SHAPE))
    encoder.module.get_submodule("1").train()
    (check,) = [check for check in doctor.essential_checks(encoder) if check.name == "evaluation mode"]
    assert check.status == "failed"
    assert "1" in check.sentence


def test_missing_normalisation_of_a_colour_encoder_is_a_warning():
    checks = doctor.essential_checks(Encoder(network(), "patient", Domain(SHAPE)))
    assert {check.name: check.status for check in checks}["normalisation"] == "warning"


def test_one_image_cannot_show_a_collapse():
    assert statuses(network(), torch.rand(1, *SHAPE))["tells images apart"] == "warning"


def test_noise_stands_in_for_images_and_follows_the_seed():
    encoder = Encoder(network(), "patient", Domain(SHAPE))
    first, again = doctor.essential_checks(encoder), doctor.essential_checks(encoder)
    assert first == again
    assert first != doctor.essential_checks(encoder, run=RunSettings(seed=1))


def test_other_domains_are_filled_and_stepped_within_their_range():
    encoder = Encoder(nn.Linear(5, 3).eval(), "tabular", Domain((5,), -3.0, 3.0))
    assert {check.status for check in doctor.essential_checks(encoder)} == {"ok"}


def test_pixels_outside_of_the_domain_are_refused():
    with refused(HoldfastError, "finite"):
        doctor.essential_checks(Encoder(network(), "patient", Domain(SHAPE)), torch.full((2, *SHAPE), 2.0))


def test_loading_twice_is_compared():
    fixed = network()
    same = doctor.loading_checks(lambda: Encoder(fixed, "same", Domain(SHAPE)))[0]
    other = doctor.loading_checks(lambda: Encoder(network(), "other", Domain(SHAPE)))[0]
    assert (same.status, other.status) == ("ok", "failed")


def test_every_answer_is_a_sentence():
    for check in doctor.essential_checks(Encoder(network(), "patient", Domain(SHAPE))):
        assert check.sentence.endswith(".")
        assert "\n" not in check.sentence


def test_layers_are_listed():
    checks = doctor.essential_checks(Encoder(network(), "patient", Domain(SHAPE)))
    assert says(checks[-1].sentence, "1 Conv2d", "1 Tanh", "1 Flatten", "1 Linear")


def test_who_asks_by_name_learns_whether_proofs_are_possible():
    def answer(module):
        return doctor.loading_checks(lambda: Encoder(module, "patient", Domain(SHAPE)))[-1]

    assert (answer(network()).name, answer(network()).status) == ("can be certified", "ok")
    foreign = answer(Function(torch.sin, network()))
    assert foreign.status == "warning"
    assert "uses the operation 'sin'" in foreign.sentence
    large = answer(nn.Sequential(nn.Flatten(), nn.Linear(192, 60_000), nn.ReLU(), nn.Linear(60_000, 2)).eval())
    assert large.status == "warning"
    assert "60,000 nonlinear entries" in large.sentence
    assert says(answer(Function(lambda x: x.mean(), network())).name, "one vector"), "nothing to certify"


def test_who_asks_by_name_learns_how_it_is_computed() -> None:
    large = nn.Sequential(
        nn.Conv2d(3, 64, 3, stride=2), nn.BatchNorm2d(64), nn.ReLU(), nn.Flatten(), nn.LazyLinear(4)
    ).eval()
    large(torch.zeros(1, 3, 224, 224))  # its last layer learns its width
    arranged = {}
    for module, shape in ((network(), SHAPE), (large, (3, 224, 224))):
        checks = doctor.all_health_checks(Encoder(module, "patient", Domain(shape), mean=(0.5,) * 3, std=(0.2,) * 3))
        arranged[shape] = next(check.sentence for check in checks if check.name == "arranged for speed")
    assert says(arranged[SHAPE], "as it was")
    assert arranged[3, 224, 224].startswith("It is computed with 1 batch norm"), arranged


def normalisation(pixels: Tensor | None = None, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), module=None):
    encoder = Encoder(network() if module is None else module, "patient", Domain(SHAPE), mean=mean, std=std)
    (check,) = (check for check in doctor.essential_checks(encoder, pixels) if check.name == "normalisation")
    return check.status, check.sentence


@pytest.mark.parametrize(
    ("mean", "std", "said"),
    [
        ((127.0,) * 3, (128.0,) * 3, "may be mean 0.498, std 0.502"),
        ((-0.5,) * 3, (1.0,) * 3, "outside the input range [0, 1]"),
        ((0.5,) * 3, (0.005,) * 3, "std 0.005 is not plausible"),
        ((0.5,) * 3, (30.0,) * 3, "std 30 is not plausible"),
        ((0.485, 0.456, 0.406), (0.229, 0.224, 0.0), "standard deviations .* positive"),
    ],
)
def test_a_normalisation_that_cannot_be_right_is_said(mean, std, said):
    if not min(std):
        with pytest.raises(HoldfastError, match=said):
            normalisation(None, mean, std)
        return
    status, sentence = normalisation(None, mean, std)
    assert status == "warning"
    assert said in sentence


@pytest.mark.parametrize("name", doctor_inputs.USUAL)
def test_usual_normalisations_are_not_suspected(name):
    encoder = known(name)
    assert isinstance(encoder.module, Normalised)
    assert doctor_inputs.problems(encoder, encoder.module) == []


def known(name: str) -> Encoder:
    mean, std = doctor_inputs.USUAL[name]
    return Encoder(network(), "patient", Domain(SHAPE), mean=mean, std=std)


def test_a_normalisation_under_which_codes_spread_far_more_is_named():
    torch.manual_seed(0)
    hidden = nn.Linear(192, 50)
    with torch.no_grad():
        hidden.bias.fill_(-0.5)  # a network made for inputs around zero of deviation one
    module = nn.Sequential(nn.Flatten(), hidden, nn.Sigmoid(), nn.Linear(50, 6))
    images = torch.rand(6, *SHAPE)
    assert normalisation(images, (0.5,) * 3, (0.3,) * 3, module)[0] == "ok"
    status, sentence = normalisation(images, (0.5,) * 3, (2.0,) * 3, module)
    assert status == "warning"
    assert says(sentence, "times")
    assert normalisation(None, (0.5,) * 3, (2.0,) * 3, module)[0] == "ok", (
        "noise says nothing about what it was trained on"
    )


def test_a_module_made_in_python_says_that_its_normalisation_is_unknown():
    with warned(HoldfastWarning, "normalisation", "mean=(0, 0, 0)"):
        encoder = Encoder(network(), "patient", Domain(SHAPE))
    assert says(encoder.caution, "nothing", "normalisation")
    assert encoder.inputs["normalisation"] == "not stated"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not Encoder(network(), "patient", Domain(SHAPE), mean=(0,) * 3, std=(1,) * 3).caution
        assert not Encoder(nn.Flatten(), "pixels", Domain(SHAPE)).caution, "pixels have no normalisation to miss"
        assert not Encoder(nn.Sequential(nn.Flatten(), nn.Linear(64, 2)), "gray", Domain((1, 8, 8))).caution


@pytest.mark.parametrize("classes", [10, 100, 1000, 21841])
def test_scores_of_classes_are_told_from_features(classes):
    module = nn.Sequential()
    module.add_module("trunk", nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.Tanh()))
    module.add_module("fc", nn.Linear(16, classes))
    checks = {check.name: check for check in doctor.essential_checks(known_inputs(module))}
    assert checks["features, not classes"].status == "warning"
    assert f"{classes:,} outputs come from a last linear layer (fc)" in checks["features, not classes"].sentence


@pytest.mark.parametrize("classes", [2, 81])
def test_outputs_of_a_softmax_are_told_from_features(classes):
    """Whatever their number; what is not negative alone, or sums to 1 alone, is no probability."""
    linear = nn.Sequential(nn.Flatten(), nn.Linear(192, classes))

    def status(last: nn.Module) -> tuple[str, bool]:
        checks = {check.name: check for check in doctor.essential_checks(known_inputs(nn.Sequential(linear, last)))}
        check = checks["features, not classes"]
        return check.status, "probabilities" in check.sentence

    assert status(nn.Softmax(dim=1)) == ("warning", True)
    assert status(nn.ReLU()) == ("ok", False)
    assert status(Function(lambda x: 100 * (x - x.mean(1, keepdim=True)) + 1 / classes)) == ("ok", False)


@pytest.mark.parametrize(("outputs", "last"), [(12, nn.Identity()), (10, nn.Tanh())])
def test_features_are_not_taken_for_classes(outputs, last):
    checks = doctor.essential_checks(known_inputs(nn.Sequential(nn.Flatten(), nn.Linear(192, outputs), last)))
    assert {check.name: check.status for check in checks}["features, not classes"] == "ok"


def known_inputs(module: nn.Module) -> Encoder:
    return Encoder(module.eval(), "patient", Domain(SHAPE), mean=(0.5,) * 3, std=(0.5,) * 3)


@pytest.mark.slow
@pytest.mark.skipif("HOLDFAST_REFERENCE" not in os.environ, reason="the reference data are not here")
def test_the_normalisation_of_a_real_network_is_judged_right():
    efficientnet = pytest.importorskip("efficientnet_lite_pytorch")
    folder = Path(os.environ["HOLDFAST_REFERENCE"]) / "real"
    module = efficientnet.EfficientNet.from_name("efficientnet-lite0")
    module.load_state_dict(torch.load(folder / "efficientnet_lite0.pt", weights_only=True))
    shape, photos = (3, 224, 224), load_images(str(folder / "photos"), Domain((3, 224, 224)), Geometry(256, (224, 224)))
    pixels = photos.pixels(range(0, 144, 36))

    def answers(mean: float, std: float, whole: bool = False) -> dict[str, doctor.Check]:
        network = copy.deepcopy(module)
        if not whole:
            network._fc = network._dropout = nn.Identity()
        encoder = Encoder(network.eval(), "efficientnet", Domain(shape), mean=(mean,) * 3, std=(std,) * 3)
        return {check.name: check for check in doctor.essential_checks(encoder, pixels)}

    right = answers(127 / 255, 128 / 255)
    assert right["normalisation"].status == right["features, not classes"].status == "ok"
    for mean, std, said in ((127, 128, "times as far with"), (0.5, 0.005, "not plausible")):
        wrong = answers(mean, std)["normalisation"]
        assert wrong.status == "warning"
        assert said in wrong.sentence
    scores = answers(127 / 255, 128 / 255, whole=True)["features, not classes"]
    assert says(scores.sentence, "1,000 outputs", "(_fc)")
