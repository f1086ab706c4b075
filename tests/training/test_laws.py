"""What every training objective keeps: a new file is tried here before it has tests of its own."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import MISSING, fields, replace

import pytest
import torch
from torch import Tensor, nn

from holdfast.core.errors import HoldfastError
from holdfast.training.adversaries.base import OnLoss
from holdfast.training.learner import Learner, TrainingObjective, codes_of_views, training_objectives
from tests.training import tiny

OBJECTIVES = {name: tiny.small(kind()) for name, kind in training_objectives().items()}


def attackable(made: Learner) -> bool:
    return type(made).loss_under_attack is not Learner.loss_under_attack


def copied(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in state.items()}


def equal(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


@pytest.fixture(params=OBJECTIVES)
def objective(request: pytest.FixtureRequest) -> TrainingObjective:
    return OBJECTIVES[request.param]


def test_settings_have_defaults_and_survive_as_text(objective: TrainingObjective) -> None:
    assert all(field.default is not MISSING for field in fields(objective))
    assert TrainingObjective.read(str(objective)) == objective
    assert type(objective)() == TrainingObjective.read(objective.name)


def test_no_number_of_things_is_negative(objective: TrainingObjective) -> None:
    for name in [field.name for field in fields(objective) if type(field.default) is int]:
        with pytest.raises(HoldfastError):
            tiny.learner(replace(objective, **{name: -1}))


@pytest.mark.parametrize("attacked", [False, True])
def test_a_step_follows_a_finite_loss_and_changes_the_encoder(objective: TrainingObjective, attacked: bool) -> None:
    made = tiny.learner(objective)
    if attacked and not attackable(made):
        return
    before = copied(dict(made.encoder.named_parameters()))
    loss = tiny.step(made, tiny.optimiser(made), tiny.batch(objective, attacked=attacked), progress=0.5)
    assert loss.ndim == 0
    assert torch.isfinite(loss)
    for name, weight in made.encoder.named_parameters():
        assert weight.grad is not None, name
        assert torch.isfinite(weight.grad).all(), name
    after = dict(made.encoder.named_parameters())
    assert not any(torch.equal(before[name], after[name]) for name in before if name.endswith("0.weight"))


def test_an_attack_moves_images_and_nothing_else(objective: TrainingObjective) -> None:
    made, data = tiny.learner(objective), tiny.batch(objective)
    tiny.step(made, tiny.optimiser(made), tiny.batch(objective, seed=1), progress=0.5)
    if not attackable(made):
        with pytest.raises(HoldfastError, match="no loss of single samples"):
            OnLoss()(made, data, tiny.DOMAIN, {})
        return
    state, modes = copied(made.state_dict()), [part.training for part in made.modules()]
    trained = [weight.requires_grad for weight in made.parameters()]
    moved = OnLoss()(made, data, tiny.DOMAIN, {})
    assert not torch.equal(moved, data.views[0])
    assert equal(state, dict(made.state_dict()))
    assert modes == [part.training for part in made.modules()]
    assert trained == [weight.requires_grad for weight in made.parameters()]


def test_an_attack_raises_the_loss_that_it_climbs(objective: TrainingObjective) -> None:
    made, data = tiny.learner(objective).eval(), tiny.batch(objective)
    if not attackable(made):
        return
    moved = OnLoss()(made, data, tiny.DOMAIN, {})
    with torch.no_grad():
        network, loss = made.loss_under_attack(data)
        before, after = loss(network(data.views[0])), loss(network(moved))
    assert before.shape == after.shape == (tiny.IMAGES,)
    assert after.mean() > before.mean()


def test_training_goes_on_from_its_state_bit_by_bit(objective: TrainingObjective) -> None:
    first = tiny.learner(objective)
    optimiser = tiny.optimiser(first)
    for number in range(3):
        tiny.step(first, optimiser, tiny.batch(objective, seed=number), number / 6)
    second = tiny.learner(objective, seed=1)
    assert not equal(dict(first.state_dict()), dict(second.state_dict())), "vacuous: seeds draw no weights"
    second.load_state_dict(copied(first.state_dict()))
    resumed = tiny.optimiser(second)
    resumed.load_state_dict(deepcopy(optimiser.state_dict()))
    for number in range(3, 6):
        data = tiny.batch(objective, seed=number)
        losses = [tiny.step(made, opt, data, number / 6) for made, opt in ((first, optimiser), (second, resumed))]
        assert torch.equal(*losses)
        assert equal(dict(first.state_dict()), dict(second.state_dict()))


def test_mixed_precision_changes_the_loss_little(objective: TrainingObjective) -> None:
    made, data = tiny.learner(objective), tiny.batch(objective)
    torch.manual_seed(0)
    exact = deepcopy(made)(data).detach()
    torch.manual_seed(0)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = made(data)
    mixed.backward()
    made.after_step(0.5)
    assert all(bool(weight.grad.isfinite().all()) for weight in made.parameters() if weight.grad is not None)
    torch.testing.assert_close(mixed.detach().float(), exact, rtol=0.1, atol=0.05)


def test_the_order_of_a_batch_changes_no_loss(objective: TrainingObjective) -> None:
    made, data = tiny.learner(objective).double(), tiny.batch(objective, dtype=torch.float64)
    mixed = tiny.chosen(data, torch.randperm(tiny.IMAGES, generator=torch.Generator().manual_seed(3)))
    losses = []
    for one in (data, mixed, tiny.batch(objective, seed=1, dtype=torch.float64)):
        torch.manual_seed(0)
        losses.append(float(deepcopy(made)(one).detach()))
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)
    assert losses[0] != pytest.approx(losses[2], rel=1e-9), "vacuous: the loss ignores its batch"


def test_a_batch_of_one_image_is_refused_or_trains_the_encoder(objective: TrainingObjective) -> None:
    try:
        made = objective.learner(tiny.Convolutions(), tiny.setting(batch=1))
    except HoldfastError:
        return
    if any(isinstance(part, nn.BatchNorm1d) for part in made.modules()):
        return  # the loop refuses batch norm of one image
    made(tiny.chosen(tiny.batch(objective), torch.tensor([0]))).backward()
    assert any(bool((weight.grad != 0).any()) for weight in made.encoder.parameters() if weight.grad is not None)


def test_views_of_one_size_are_encoded_in_one_pass() -> None:
    """Batch norm takes its statistics from all of them, and order is kept whatever the sizes."""
    encoder = tiny.Convolutions().train()
    large, small, other = torch.rand(4, 3, 8, 8), torch.rand(4, 3, 6, 6), torch.rand(4, 3, 8, 8)
    codes = codes_of_views(deepcopy(encoder), (large, small, other))
    together, alone = deepcopy(encoder)(torch.cat([large, other])), deepcopy(encoder)(small)
    assert torch.equal(codes, torch.cat([together[:4], alone, together[4:]]))
