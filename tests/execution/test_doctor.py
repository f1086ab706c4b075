"""The doctor finds each illness it knows, and nothing in a healthy encoder."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import HoldfastError
from holdfast.core.run import Run
from holdfast.execution import doctor

SHAPE = (3, 8, 8)


def network() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(144, 6)).eval()


def statuses(module: nn.Module, pixels: Tensor | None = None, shape: tuple[int, ...] = SHAPE) -> dict[str, str]:
    encoder = Encoder(module, "patient", Domain(shape), mean=(0.5,) * shape[0], std=(0.2,) * shape[0])
    return {check.name: check.status for check in doctor.examine(encoder, pixels)}


class Function(nn.Module):
    def __init__(self, function, *parts: nn.Module) -> None:
        super().__init__()
        self.function, self.inner = function, nn.Sequential(*parts)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.inner(x))


def test_healthy_encoder_passes_every_check():
    found = statuses(network(), torch.rand(6, *SHAPE))
    assert set(found.values()) == {"ok"}
    assert set(found) == set(doctor.QUESTIONS)


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


ILLNESSES = {
    "finite": (Function(torch.log, nn.Flatten(), nn.Linear(192, 2)), "failed"),
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
    checks = doctor.examine(Encoder(Function(function, network()), "patient", Domain(SHAPE)))
    assert [check.status for check in checks] == ["failed"]
    assert said in checks[0].sentence


def test_vanishing_gradient_is_a_warning():
    dead = Function(lambda x: torch.relu(x - 100), network())
    assert statuses(dead, torch.rand(4, *SHAPE))["differentiable"] == "warning"


def test_part_left_in_training_mode_is_found():
    encoder = Encoder(network(), "patient", Domain(SHAPE))
    encoder.module.get_submodule("1").train()
    (check,) = [check for check in doctor.examine(encoder) if check.name == "evaluation mode"]
    assert check.status == "failed"
    assert "1" in check.sentence


def test_missing_normalisation_of_a_colour_encoder_is_a_warning():
    checks = doctor.examine(Encoder(network(), "patient", Domain(SHAPE)))
    assert {check.name: check.status for check in checks}["normalisation"] == "warning"


def test_one_image_cannot_show_a_collapse():
    assert statuses(network(), torch.rand(1, *SHAPE))["tells images apart"] == "warning"


def test_noise_stands_in_for_images_and_follows_the_seed():
    encoder = Encoder(network(), "patient", Domain(SHAPE))
    first, again = doctor.examine(encoder), doctor.examine(encoder)
    assert first == again
    assert first != doctor.examine(encoder, run=Run(seed=1))


def test_other_domains_are_filled_and_stepped_within_their_range():
    encoder = Encoder(nn.Linear(5, 3).eval(), "tabular", Domain((5,), -3.0, 3.0))
    assert {check.status for check in doctor.examine(encoder)} == {"ok"}


def test_pixels_outside_of_the_domain_are_refused():
    with pytest.raises(HoldfastError, match="must be finite and lie in"):
        doctor.examine(Encoder(network(), "patient", Domain(SHAPE)), torch.full((2, *SHAPE), 2.0))


def test_loading_twice_is_compared():
    fixed = network()
    same = doctor.examine_loading(lambda: Encoder(fixed, "same", Domain(SHAPE)))[0]
    other = doctor.examine_loading(lambda: Encoder(network(), "other", Domain(SHAPE)))[0]
    assert (same.status, other.status) == ("ok", "failed")


def test_every_answer_is_a_sentence():
    for check in doctor.examine(Encoder(network(), "patient", Domain(SHAPE))):
        assert check.sentence.endswith(".")
        assert "\n" not in check.sentence


def test_layers_are_listed():
    checks = doctor.examine(Encoder(network(), "patient", Domain(SHAPE)))
    assert checks[-1].sentence == "It is built of 1 Conv2d, 1 Tanh, 1 Flatten, 1 Linear."


def test_who_asks_by_name_learns_whether_proofs_are_possible():
    def answer(module):
        return doctor.examine_loading(lambda: Encoder(module, "patient", Domain(SHAPE)))[-1]

    assert (answer(network()).name, answer(network()).status) == ("can be certified", "ok")
    foreign = answer(Function(torch.sin, network()))
    assert foreign.status == "warning"
    assert "uses the operation 'sin'" in foreign.sentence
    large = answer(nn.Sequential(nn.Flatten(), nn.Linear(192, 60_000), nn.ReLU(), nn.Linear(60_000, 2)).eval())
    assert large.status == "warning"
    assert "60,000 nonlinear entries" in large.sentence
    assert answer(Function(lambda x: x.mean(), network())).name == "one vector per image", "nothing to certify"
