"""AutoAttack and its members: closed forms on linear classifiers, hand-computed losses, and what they refuse."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn

import holdfast as hf
from holdfast.attacks.autoattack import (
    APGD,
    FAB,
    AutoAttack,
    ClassAttack,
    in_turn,
    logit_ratio,
    nearest_boundary,
    nearest_errors,
    other_classes,
)
from holdfast.attacks.base import GRADIENT, Attack
from holdfast.attacks.evaluations.displacement import Displacement
from holdfast.attacks.objectives.simple import Away, ClassMargin
from holdfast.attacks.presets import read_attack
from holdfast.core.balls import L1, L2, Ball, Linf
from holdfast.core.encoder import Encoder, Pixels
from holdfast.core.errors import Conflict, OutOfRange, UnknownName
from holdfast.core.noise import Noise
from holdfast.core.objective import AttackContext
from holdfast.core.run_settings import RunSettings
from holdfast.measure.population import Population
from holdfast.probes.evaluations.probe_radius import ProbeRadius
from holdfast.probes.evaluations.robust_accuracy import RobustAccuracy
from holdfast.probes.linear import Linear
from tests import tiny
from tests.probes.known import clouds
from tests.samples import builtin, classes, digits

SHORT = AutoAttack(steps=10, queries=50)
MEMBERS: list[ClassAttack] = [APGD(), APGD(loss="dlr"), APGD(loss="dlr", targets=4), FAB(), FAB(targets=4)]
BALLS: list[Ball] = [Linf(0.1), L2(0.5), L1(3.0)]
everywhere = pytest.mark.parametrize("ball", BALLS, ids=str)


def flat(classes: int = 5, count: int = 12) -> tuple[Encoder, Pixels, ClassMargin, Tensor, Noise]:
    """A random linear classifier of 4 x 4 pixels, images that it gets right, and the slopes of its classes."""
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(classes, 16, generator=generator)
    pixels = 0.3 + 0.4 * torch.rand(count, 1, 4, 4, generator=generator)
    encoder = Encoder(nn.Flatten(), "flat", hf.Domain((1, 4, 4)))

    def logits(codes: Tensor) -> Tensor:
        return (codes - 0.5) @ weight.to(codes).T

    margin = ClassMargin(logits, logits(pixels.flatten(1)).argmax(1))
    return encoder, pixels, margin, weight, Noise.of(0, [str(k) for k in range(count)])


def exact_norms(pixels: Pixels, margin: ClassMargin, weight: Tensor, ball: Ball) -> Tensor:
    """Return the distance to the nearest boundary: ``min over k of (z_y - z_k) / dual norm of (w_y - w_k)``."""
    logits = margin.logits(pixels.flatten(1))
    norms = torch.full((len(pixels),), torch.inf)
    for row, place in enumerate(margin.places.tolist()):
        for other in set(range(len(weight))) - {place}:
            slope = (weight[place] - weight[other]).reshape(1, 1, 4, 4)
            distance = (logits[row, place] - logits[row, other]) / ball.dual_norm(slope)[0]
            norms[row] = min(norms[row], distance)
    return norms


@everywhere
def test_fab_finds_the_closed_form_of_a_linear_classifier(ball: Ball) -> None:
    encoder, pixels, margin, weight, _ = flat()
    exact = exact_norms(pixels, margin, weight, ball)
    points, sizes = nearest_errors(encoder, pixels, margin, ball, 100, pixels)
    assert (margin(points.flatten(1)) > 0).all()
    assert torch.allclose(ball.norm(points - pixels), sizes)
    ratio = sizes / exact
    assert ratio.min() >= 1 - 1e-4
    assert ratio.max() <= 1.01


@pytest.mark.parametrize("attack", MEMBERS, ids=str)
@pytest.mark.parametrize("kind", [Linf, L2], ids=["linf", "l2"])
def test_a_member_errs_one_per_cent_beyond_the_closed_form_and_never_before(attack: Attack, kind: type[Ball]) -> None:
    # Of several classes the cross-entropy climbs towards all at once, and need not reach the nearest boundary first.
    encoder, pixels, margin, weight, noise = flat(2 if attack == APGD() else 5)
    exact = exact_norms(pixels, margin, weight, kind(1.0))
    for row in range(2):
        one, place, stream = pixels[[row]], margin.of(torch.tensor([row])), Noise(noise.keys[[row]])
        for share, possible in ((0.99, False), (1.01, True)):
            moved = attack(encoder, one, place, kind(share * float(exact[row])), stream)
            assert bool(place(moved.flatten(1))[0] > 0) == possible


def test_the_ratio_of_logits_by_hand_changes_neither_with_shift_nor_scale() -> None:
    scores = torch.tensor([[5.0, 2.0, 1.0, -1.0], [0.0, 4.0, 3.0, 2.0]])
    places, targets = torch.tensor([0, 2]), torch.tensor([3, 0])
    untargeted = logit_ratio(ClassMargin(lambda codes: codes, places))
    targeted = logit_ratio(ClassMargin(lambda codes: codes, places, targets))
    assert untargeted(scores).tolist() == pytest.approx([-(5 - 2) / (5 - 1), -(3 - 4) / (4 - 2)])
    assert targeted(scores).tolist() == pytest.approx([-(5 + 1) / (5 - 0), -(3 - 0) / (4 - 1)])
    for loss in (untargeted, targeted):
        assert torch.allclose(loss(7 * scores + 3), loss(scores))


def test_targets_are_the_most_likely_other_classes() -> None:
    scores = torch.tensor([[0.0, 3.0, 2.0, 1.0], [4.0, 3.0, 2.0, 5.0]])
    assert other_classes(scores, torch.tensor([2, 3])).tolist() == [[1, 3, 0], [0, 1, 2]]


@everywhere
def test_the_nearest_boundary_is_that_of_the_smallest_quotient(ball: Ball) -> None:
    encoder, pixels, margin, weight, _ = flat()
    height, slope = nearest_boundary(encoder, pixels, margin, ball)
    assert torch.allclose(-height / ball.dual_norm(slope), exact_norms(pixels, margin, weight, ball), rtol=1e-4)
    aimed = replace(margin, targets=other_classes(margin.logits(pixels.flatten(1)), margin.places)[:, 2])
    height, slope = nearest_boundary(encoder, pixels, aimed, ball)
    assert aimed.targets is not None
    assert torch.allclose(slope.flatten(1), weight[aimed.targets] - weight[aimed.places], atol=1e-5)


def asked(count: int = 12) -> tuple[AttackContext, ClassMargin]:
    """Digits with a linear head that knows their classes."""
    encoder = builtin()
    bank = digits(300, 0)
    bank = hf.Images(bank.pixels(range(300)), bank.ids, classes(300, 0))
    images = hf.Images(digits(count).pixels(range(count)), digits(count).ids, classes(count))
    population = Population(encoder, images, RunSettings(), bank=Population(encoder, bank, RunSettings()))
    probe = population.learned(Linear())
    return population.context(range(count)), ClassMargin(probe.logits, probe.places(population.labels))


@everywhere
@pytest.mark.parametrize("attack", [*(replace(each, steps=10) for each in MEMBERS), SHORT], ids=str)
def test_it_stays_inside_errs_more_and_depends_on_no_companion(attack: Attack, ball: Ball) -> None:
    context, margin = asked()
    encoder = context.encoder
    moved = attack(encoder, context.pixels, margin, ball, context.noise)  # which asserts that it stays inside
    before, after = margin(encoder.forward(context.pixels)) > 0, margin(encoder.forward(moved)) > 0
    assert bool(after[before].all())
    assert after.sum() > before.sum()
    row = torch.tensor([7])
    single = attack(encoder, context.pixels[row], margin.of(row), ball, Noise(context.noise.keys[row]))
    assert (moved[row] - single).abs().max() < 1e-3


def test_each_member_takes_only_what_those_before_it_left_right() -> None:
    encoder, pixels, margin, _, _ = flat(count=6)
    margin.places[5] = -1  # no class that the classifier knows
    seen: list[list[int]] = []

    def moves(row: int, left: Tensor) -> Pixels:
        """Move one image of those left onto an image of another class."""
        seen.append(left.tolist())
        moved, others = pixels[left].clone(), margin.places != margin.places[row]
        moved[left.tolist().index(row)] = pixels[others][0]
        return moved

    found = in_turn((partial(moves, row) for row in (2, 0)), encoder, pixels, margin)
    assert seen == [[0, 1, 2, 3, 4], [0, 1, 3, 4]]
    assert [row for row in range(6) if not torch.equal(found[row], pixels[row])] == [0, 2]


@pytest.mark.parametrize("attack", [*(replace(each, steps=7, restarts=2) for each in MEMBERS), SHORT], ids=str)
def test_it_costs_no_more_than_it_says(attack: Attack) -> None:
    context, margin = asked(3)
    spent = 0

    def counted(codes: Tensor) -> Tensor:
        nonlocal spent
        spent += GRADIENT if codes.requires_grad else 1
        return margin.logits(codes)

    attack(context.encoder, context.pixels, replace(margin, logits=counted), Linf(0.002), context.noise)
    # The margin of what a search passes is read from the same embeddings, so each gradient reads the logits twice.
    assert 0 < spent <= 1.5 * attack.forward_passes


def test_it_refuses_what_it_cannot_attack() -> None:
    context, _ = asked(3)
    for attack in (SHORT, APGD(), FAB()):
        with pytest.raises(OutOfRange) as refused:
            attack(context.encoder, context.pixels, Away()(context), Linf(0.1), context.noise)
        assert refused.value.argument == f"{attack.name}: target"
    for setting in ("displacement.attacks", "probe-radius.attack"):
        with pytest.raises(OutOfRange) as refused:
            Displacement(attacks=(SHORT,)) if setting.startswith("d") else ProbeRadius(attack=SHORT)
        assert refused.value.argument == setting
    assert ProbeRadius(fixed=(SHORT,)).fixed == (SHORT,)


@pytest.mark.parametrize(
    ("text", "classes", "fewest"),
    [
        ("autoattack", 3, 4),
        ("autoattack", 2, 4),
        ("autoattack:ensemble=untargeted", 2, 3),
        ("apgd:loss=dlr", 2, 3),
        ("apgd:loss=dlr,targets=2", 3, 4),
    ],
)
def test_too_few_classes_are_refused_not_left_out(text: str, classes: int, fewest: int) -> None:
    encoder, pixels, margin, _, noise = flat(classes)
    with pytest.raises(OutOfRange, match=f"at least {fewest}") as refused:
        read_attack(text)(encoder, pixels, margin, Linf(0.01), noise)
    assert refused.value.got == classes


@pytest.mark.parametrize(
    ("text", "classes"), [("apgd", 2), ("fab", 2), ("autoattack:ensemble=untargeted,steps=20,queries=20", 3)]
)
def test_enough_classes_are_attacked(text: str, classes: int) -> None:
    encoder, pixels, margin, _, noise = flat(classes)
    moved = read_attack(text)(encoder, pixels, margin, Linf(0.3), noise)
    assert (margin(moved.flatten(1)) > 0).all()


def test_settings_that_exclude_each_other_are_refused() -> None:
    with pytest.raises(Conflict):
        APGD(targets=3)
    for text in ("apgd:loss=hinge", "autoattack:ensemble=rand"):
        with pytest.raises(UnknownName):
            read_attack(text)
    for negative in ({"targets": -1}, {"steps": 0}, {"restarts": 0}):
        with pytest.raises(OutOfRange):
            FAB(**negative)
    with pytest.raises(OutOfRange):
        AutoAttack(queries=1)


def test_the_ensembles_are_the_published_ones() -> None:
    standard = [str(member) for member in AutoAttack().members]
    assert standard == ["apgd", "apgd:targets=9,loss=dlr", "fab:targets=9", "square:queries=5000,area=0.8"]
    paper = [str(member) for member in AutoAttack(ensemble="untargeted", restarts=5).members]
    assert paper == ["apgd:restarts=5", "apgd:restarts=5,loss=dlr", "fab:restarts=5", "square:queries=5000,area=0.8"]


def test_robust_accuracy_aims_it_at_the_probe_alone() -> None:
    short = AutoAttack(ensemble="untargeted", steps=10, queries=20)
    adaptive = hf.AdaptiveAttack(restarts=1, steps=10)
    images, bank = clouds(40, 2), clouds(60, 1)
    evaluation = RobustAccuracy(balls=(Linf(0.2),), probes=(Linear(),), attacks=(short, adaptive))
    found = {e.conditions["attack"]: e.value for e in evaluation(tiny.encoder(), images, RunSettings(), bank).estimates
             if e.quantity == "robust_accuracy"}  # fmt: skip
    assert sorted(found) == sorted([f"{short} at the probe", f"{adaptive} at the probe", f"{adaptive} at the code"])
    assert found[f"{adaptive} at the probe"] <= found[f"{short} at the probe"], "adaptive goes on where it ended"
    alone = replace(evaluation, attacks=(short,))(tiny.encoder(), images, RunSettings(), bank)
    (value,) = [e.value for e in alone.estimates if e.quantity == "robust_accuracy"]
    assert value == found[f"{short} at the probe"]
    (clean,) = [e.value for e in alone.estimates if e.quantity == "clean_accuracy"]
    assert 0 < value < clean
