"""Laws of every attack in every ball, closed forms on linear encoders, and what a bad encoder gets told."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import final

import pytest
import torch
from torch import Tensor, nn

import holdfast as hf
from holdfast.attacks.adaptive import AdaptiveAttack, inward_start
from holdfast.attacks.adaptive import ascend as adaptive_ascend
from holdfast.attacks.base import Attack, assert_inside, better, gain_and_gradient, gains_and_gradients
from holdfast.attacks.black_box import SquareAttack, stripes, windows
from holdfast.attacks.gradient import GradientAttack, ascend, bim, fgsm
from holdfast.attacks.objectives.simple import Away
from holdfast.attacks.objectives.simple import margin_of_logits as margin
from holdfast.attacks.presets import PRESETS, U_PGD, kinds, read_attack
from holdfast.core.balls import L1, L2, Ball, Linf
from holdfast.core.divergences import L2Distance
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import HoldfastError
from holdfast.core.noise import Noise
from holdfast.core.objective import AttackContext, ObjectiveFunction
from holdfast.core.run_settings import RunSettings
from holdfast.core.settings import fields_of
from holdfast.measure.population import Population
from tests.samples import builtin, digits, linear, published

SHORT: dict[str, int] = {"restarts": 1, "steps": 6, "queries": 40}
KINDS: list[Attack] = [
    kind(**{name: value for name, value in SHORT.items() if name in fields_of(kind)})
    for kind in kinds().values()
    if not kind.needs_classes
]
"""Every attack on embeddings there is, made quick."""
ATTACKS: list[Attack] = [*KINDS, fgsm(), replace(bim(), steps=5), U_PGD, AdaptiveAttack(steps=8, restarts=3)]
BALLS: list[Ball] = [Linf(0.1), L2(0.5), L1(3.0)]
everywhere = pytest.mark.parametrize("ball", BALLS, ids=str)
all_attacks = pytest.mark.parametrize("attack", ATTACKS, ids=str)


def context_of(encoder: Encoder, count: int = 12, seed: int = 0) -> AttackContext:
    population = Population(encoder, digits(count), RunSettings(seed=seed))
    return population.context(range(count))


def run(attack: Attack, context: AttackContext, objective: ObjectiveFunction, ball: Ball) -> Tensor:
    return attack(context.encoder, context.pixels, objective, ball, context.noise)


@everywhere
@all_attacks
def test_attack_stays_in_ball_and_range_and_gains(attack: Attack, ball: Ball) -> None:
    context = context_of(builtin())
    objective = Away()(context)
    found = run(attack, context, objective, ball)
    assert found.min() >= 0
    assert found.max() <= 1
    assert (ball.norm(found - context.pixels) <= ball.radius * (1 + 1e-5)).all()
    gain = objective(context.encoder.forward(found))
    assert (gain > 0).all(), "some image did not move at all"


@everywhere
def test_the_inside_check_is_awake(ball: Ball) -> None:
    context = context_of(builtin(), 2)
    step = torch.zeros_like(context.pixels)
    step[:, 0, 4, 4] = ball.radius * 1.01 * torch.where(context.pixels[:, 0, 4, 4] > 0.5, -1.0, 1.0)
    with pytest.raises(AssertionError):
        assert_inside(context.encoder, context.pixels, context.pixels + step, ball)
    with pytest.raises(AssertionError):
        assert_inside(context.encoder, context.pixels, context.pixels - 2, ball)


@everywhere
@all_attacks
def test_result_does_not_depend_on_companions(attack: Attack, ball: Ball) -> None:
    encoder = builtin()
    together, reseeded = context_of(encoder), context_of(encoder, seed=1)
    found = run(attack, together, Away()(together), ball)
    population = Population(encoder, digits(12), RunSettings())
    alone = population.context([7])
    single = run(attack, alone, Away()(alone), ball)
    assert (found[7:8] - single).abs().max() < 1e-4
    if not (isinstance(attack, GradientAttack) and attack.steps == 1 and isinstance(ball, Linf)):
        assert not torch.equal(found, run(attack, reseeded, Away()(reseeded), ball)), (
            "vacuous: the seed changes nothing"
        )


@everywhere
@pytest.mark.parametrize("attack", KINDS, ids=str)
def test_restarts_never_lose(attack: Attack, ball: Ball) -> None:
    context = context_of(builtin())
    objective = Away()(context)
    once = objective(context.encoder.forward(run(attack, context, objective, ball)))
    often = objective(context.encoder.forward(run(replace(attack, restarts=4), context, objective, ball)))
    if isinstance(attack, AdaptiveAttack):  # whose starts are shorter, and the best of them goes on
        assert often.mean() >= once.mean()
    else:
        assert (often >= once - 1e-6).all()
    assert (often > once + 1e-6).any(), "vacuous: restarts change nothing"


def test_several_adaptive_starts_take_as_many_steps_as_they_say() -> None:
    context, taken = context_of(builtin(), 2), 0

    def counted(codes: Tensor) -> Tensor:
        nonlocal taken
        taken += 1
        return Away()(context)(codes)

    attack = AdaptiveAttack(restarts=3, steps=10)
    attack(context.encoder, context.pixels, counted, Linf(0.1), context.noise)
    assert taken == 3 * 10 + 4, "each of three starts, and the best of them again, is looked at before the first step"


@pytest.mark.parametrize("ball", [Linf(0.05), L2(0.3), L1(0.4)], ids=str)
@pytest.mark.parametrize(
    "attack",
    [
        GradientAttack(steps=60, stride=0.1),
        AdaptiveAttack(steps=60),
        pytest.param(SquareAttack(queries=4000), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_linear_objective_reaches_the_dual_norm(attack: Attack, ball: Ball) -> None:
    """Climbing ``w.x`` from the middle of the range gains exactly ``radius * dual_norm(w)``: the box is out of reach."""
    # Piecewise constant in 4 x 4 blocks, so that square windows can build the optimum too.
    blocks = torch.tensor([[3.0, -1.0], [0.5, -2.0]]).repeat_interleave(4, 0).repeat_interleave(4, 1)
    bumps = torch.zeros(8, 8)
    bumps[1, 2] = 0.5  # one largest entry, for l1
    weight = (blocks + bumps).reshape(1, 64)
    encoder = linear(weight, (1, 8, 8))
    pixels = torch.full((3, 1, 8, 8), 0.5)
    clean = encoder.forward(pixels)[:, 0]
    found = attack(encoder, pixels, lambda codes: codes[:, 0], ball, Noise.of(0, ["a", "b", "c"]))
    gained = encoder.forward(found)[:, 0] - clean
    best = ball.radius * ball.dual_norm(weight.reshape(1, 1, 8, 8))[0]
    assert (gained <= best + 1e-4).all()
    floor = {"pgd": 0.99, "adaptive": 0.97, "square": 0.5}[attack.name]
    assert (gained >= floor * best).all(), f"{gained / best}"


@pytest.mark.parametrize("side", [1, 2, 3, 4])
def test_windows_of_the_square_attack_are_as_likely_everywhere(side: int) -> None:
    """By hand: a window of this side has ``(5 - side)`` squared places in an image of 4 x 4 pixels."""
    pixels, count = torch.zeros(3200, 2, 4, 4), (5 - side) ** 2
    mask, signs = windows(pixels, side**2 / 16, Noise.of(0, [str(k) for k in range(3200)]))
    assert (mask.flatten(1).sum(1) == 2 * side**2).all()
    places, drawn = mask.flatten(1).unique(dim=0, return_counts=True)
    assert len(places) == count
    assert drawn.tolist() == pytest.approx([3200 / count] * count, rel=0.3)
    assert set(signs.flatten().tolist()) == {-1.0, 1.0}


def test_windows_shrink_along_the_published_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand, of 100 queries: the area halves after 0.1, 0.5, 2, 5, 10, 20, 40, 60 and 80% of them."""
    shares = list[float]()

    def seen(pixels: Tensor, share: float, noise: Noise) -> tuple[Tensor, Tensor]:
        shares.append(share)
        return windows(pixels, share, noise)

    monkeypatch.setattr("holdfast.attacks.black_box.windows", seen)
    encoder, pixels = linear(torch.eye(4), (1, 2, 2)), torch.full((1, 1, 2, 2), 0.5)
    SquareAttack(queries=100, area=0.8)(encoder, pixels, lambda codes: codes.sum(1), Linf(0.1), NOISE)
    halvings = [sum(query > mark for mark in (0.1, 0.5, 2, 5, 10, 20, 40, 60, 80)) for query in range(1, 100)]
    assert shares == pytest.approx([0.8 / 2**count for count in halvings])


def test_last_point_is_the_published_option() -> None:
    """With a step that overshoots, the last point may be worse than the best; ``keep`` decides which comes back."""
    context = context_of(builtin())
    objective = Away()(context)
    best = run(GradientAttack(steps=9, stride=2.0), context, objective, Linf(0.3))
    last = run(GradientAttack(steps=9, stride=2.0, keep="last"), context, objective, Linf(0.3))
    gains = [objective(context.encoder.forward(found)) for found in (best, last)]
    assert (gains[0] >= gains[1] - 1e-6).all()
    assert (gains[0] > gains[1] + 1e-6).any(), "vacuous: the last point was always the best"


@pytest.mark.parametrize(("attack", "looks"), [("", 5), (",keep=last", 4), (",keep=last,restarts=2", 10)])
def test_the_last_point_of_one_restart_is_not_looked_at(attack: str, looks: int) -> None:
    """Nobody compares its gain with another, and adversarial training pays for each forward."""
    context, seen = context_of(builtin(), 3), []

    def objective(codes: Tensor) -> Tensor:
        seen.append(len(codes))
        return Away()(context)(codes)

    found = run(Attack.read(f"pgd:steps=4{attack}"), context, objective, Linf(0.1))
    assert len(seen) == looks
    assert (Away()(context)(context.encoder.forward(found)) > 0).all()


def test_untargeted_attack_from_the_clean_image_cannot_move() -> None:
    """At the image itself the gradient of a distance is zero: the reason why U-BIM starts beside it."""
    context = context_of(builtin(), 3)
    gain, gradient = gain_and_gradient(context.encoder, context.pixels, Away()(context))
    assert (gain == 0).all()
    assert (gradient == 0).all()
    stuck, _ = ascend(
        context.encoder, context.pixels, context.pixels, Away()(context), Linf(0.1), GradientAttack(steps=3)
    )
    assert torch.equal(stuck, context.pixels)


def test_several_objectives_share_a_forward_and_no_number_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, pixels = builtin(), digits(5).pixels(range(5))
    weights = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))[:, : encoder(pixels).shape[1]]
    objectives = [partial(torch.mv, vec=weight) for weight in weights]
    alone = [gain_and_gradient(encoder, pixels, objective) for objective in objectives]
    seen, forward = list[int](), encoder.forward

    def counted(points: Tensor) -> Tensor:
        seen.append(len(points))
        return forward(points)

    monkeypatch.setattr(encoder, "forward", counted)
    together = gains_and_gradients(encoder, pixels, objectives)
    assert seen == [5]
    for one, other in zip(alone, together, strict=True):
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[1], other[1])


def test_sparse_steps_pass_over_pixels_at_the_edge() -> None:
    """In l1 the top coordinate may be stuck at the range's end; the radius must then go to the next ones."""
    weight = torch.arange(1.0, 65.0).reshape(1, 64)
    encoder, pixels = linear(weight, (1, 8, 8)), torch.full((1, 1, 8, 8), 0.9)
    found = GradientAttack(steps=60, stride=0.05, start=0.0)(
        encoder, pixels, lambda codes: codes[:, 0], L1(0.3), Noise.of(0, ["a"])
    )
    gained = float((encoder.forward(found) - encoder.forward(pixels))[0, 0])
    assert gained == pytest.approx(0.1 * (64 + 63 + 62), rel=0.02), gained


def test_encoder_without_gradient_is_refused_with_the_alternative() -> None:
    class Stepwise(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x.detach().flatten(1) > 0.5).float()

    context = context_of(Encoder(Stepwise().eval(), "stepwise", Domain((1, 8, 8))), 3)
    with pytest.raises(HoldfastError, match="square"):
        run(GradientAttack(steps=2), context, Away()(context), Linf(0.1))
    moved = run(SquareAttack(queries=60), context, Away()(context), Linf(0.4))
    assert (L2Distance()(context.encoder.forward(moved), context.codes) > 0).all()


def test_gains_that_are_not_finite_never_win() -> None:
    class Cliff(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            flat = x.flatten(1)
            return torch.where(flat.mean(1, keepdim=True) > 0.52, flat * torch.nan, flat)

    encoder = Encoder(Cliff().eval(), "cliff", Domain((1, 8, 8)))
    pixels = torch.full((4, 1, 8, 8), 0.5)
    noise = Noise.of(0, ["a", "b", "c", "d"])
    for attack in (GradientAttack(steps=10), AdaptiveAttack(steps=10), SquareAttack(queries=30)):
        found = attack(encoder, pixels, lambda codes: codes.sum(1), Linf(0.1), noise)
        assert torch.isfinite(encoder.forward(found)).all(), attack


def test_a_search_whose_first_gain_is_undefined_goes_on() -> None:
    encoder, looks = linear(torch.eye(64), (1, 8, 8)), list[int]()

    def undefined_at_first(codes: Tensor) -> Tensor:
        looks.append(len(codes))
        return codes.sum(1) if len(looks) > 1 else torch.full_like(codes[:, 0], torch.nan)

    found = SquareAttack(queries=60)(encoder, torch.full((1, 1, 8, 8), 0.5), undefined_at_first, Linf(0.1), NOISE)
    start = encoder.domain.clip(0.5 + 0.1 * stripes(torch.full((1, 1, 8, 8), 0.5), NOISE))
    assert found.sum() > start.sum() + 1


def test_any_gain_beats_an_undefined_one_and_an_undefined_one_beats_nothing() -> None:
    """By hand: larger, smaller, equal, undefined, instead of undefined, and both undefined."""
    gain, its_gain = (
        torch.tensor([1.0, 2.0, 3.0, 4.0, torch.nan, torch.nan]),
        torch.tensor([2.0, 1.0, 3.0, torch.nan, -5.0, torch.nan]),
    )
    points, gains = better(torch.zeros(6, 1, 1, 1), gain, torch.ones(6, 1, 1, 1), its_gain)
    assert points.flatten().tolist() == [1, 0, 0, 0, 1, 0]
    assert gains[:5].tolist() == [2, 2, 3, 4, -5]
    assert gains[5].isnan()


@final
@dataclass(frozen=True)
class Scripted(Attack):
    """Restart ``k`` finds pixels that are ``k + 1`` tenths of the radius brighter, with the gain written down for it."""

    gains: tuple[float, ...] = ()
    restarts: int = 4
    name = "scripted"

    def search(
        self, encoder: Encoder, pixels: Tensor, objective: ObjectiveFunction, ball: Ball, noise: Noise
    ) -> tuple[Tensor, Tensor]:
        place = [noise.keys.tolist() == NOISE.fork("scripted", k).keys.tolist() for k in range(4)].index(True)
        return pixels + ball.radius * (place + 1) / 10, torch.full((len(pixels),), float(self.gains[place]))


NOISE = Noise.of(0, ["a"])


@pytest.mark.parametrize(
    ("gains", "best"),
    [((1, 3, 2, 0), 2), ((torch.nan, -7, -9, torch.nan), 2), ((5, torch.nan, 5, 4), 1), ((-4, -3, -2, -1), 4)],
)
def test_of_all_restarts_the_best_counts(gains: tuple[float, ...], best: int) -> None:
    """Each restart has a stream of its own; a gain of nan never wins, and whatever is a number wins against it."""
    pixels = torch.full((1, 1, 8, 8), 0.5)
    attack = Scripted(gains=gains)
    found = attack(linear(torch.eye(64), (1, 8, 8)), pixels, lambda codes: codes.sum(1), Linf(0.1), NOISE)
    assert torch.allclose(found, pixels + 0.01 * best)


def visited(steps: int, first: float, start: float, peak: float, ball: Ball) -> list[float]:
    """Return the points that the adaptive attack looks at on its way up a tent over one pixel."""
    encoder, looks = linear(torch.ones(1, 1, dtype=torch.float64), (1,)), list[float]()
    encoder = encoder.to("cpu", torch.float64)

    def tent(codes: Tensor) -> Tensor:
        looks.append(codes[0, 0].item())
        return -(codes[:, 0] - peak).abs()

    pixels = torch.tensor([[0.5]], dtype=torch.float64)
    begin = torch.tensor([[start]], dtype=torch.float64)
    adaptive_ascend(encoder, pixels, tent, ball, begin, steps, first / ball.radius)
    return looks


def test_the_adaptive_attack_blends_each_step_with_the_one_before() -> None:
    """Croce and Hein 2020, algorithm 1: ``x3 = x2 + 0.75 (z - x2) + 0.25 (x2 - x1)``, ``z`` a plain step; by hand.

    From .40 up to .50 (whole: there is no step before) over the peak at .46, back: .50 - .075 + .025 = .45, and up again:
    .45 + .075 - .0125 = .5125.
    """
    assert visited(steps=10, first=0.1, start=0.4, peak=0.46, ball=Linf(0.4))[:4] == pytest.approx(
        [0.40, 0.50, 0.45, 0.5125]
    )


def test_the_adaptive_attack_goes_on_from_the_best_point_with_half_the_step_where_it_stalls() -> None:
    """By hand: at the checkpoint, the third of ten steps, one of three steps has risen; .45 is the best point there.

    The next step is .05 long: from .45 up, without a step before it to blend with, to .45 + .75 * .05 = .4875.
    """
    looks = visited(steps=10, first=0.1, start=0.4, peak=0.46, ball=Linf(0.4))
    assert looks[4] == pytest.approx(0.4875)


@pytest.mark.parametrize("ball", [Linf(0.1), L2(0.2), L1(0.3)], ids=str)
def test_steps_are_a_share_of_the_radius(ball: Ball) -> None:
    """Two quarter steps up a slope lead half way to the edge of the ball, of whatever size and norm."""
    weight = torch.linspace(1, 2, 64)[None]
    encoder, pixels = linear(weight, (1, 8, 8)), torch.full((1, 1, 8, 8), 0.5)
    for radius in (ball.radius, ball.radius / 8):
        smaller = replace(ball, radius=radius)
        attack = GradientAttack(steps=2, stride=0.25, start=0.0)
        found = attack(encoder, pixels, lambda codes: codes[:, 0], smaller, Noise.of(0, ["a"]))
        assert float(smaller.norm(found - pixels)) == pytest.approx(radius / 2, rel=1e-4)


@everywhere
@pytest.mark.parametrize("attack", [attack for attack in ATTACKS if attack != U_PGD], ids=str)
def test_what_is_found_scales_with_the_ball(attack: Attack, ball: Ball) -> None:
    """Of an objective that scales with it: whatever the attack, no step of it has a length of its own."""
    pixels, encoder = torch.full((2, 1, 8, 8), 0.5), linear(torch.eye(64), (1, 8, 8))
    peak = torch.linspace(-0.7, 0.6, 128).reshape(2, 64)

    def found(radius: float) -> Tensor:
        """Return what is found, in units of the radius."""
        smaller = replace(ball, radius=radius)
        moved = attack(
            encoder,
            pixels,
            lambda codes: -((codes - 0.5) / radius - peak).square().sum(1),
            smaller,
            Noise.of(0, ["a", "b"]),
        )
        return (moved - pixels) / radius

    assert torch.allclose(found(0.25), found(0.0625), atol=1e-3)


@pytest.mark.parametrize("name", PRESETS)
def test_preset_runs_on_its_own_terms(name: str) -> None:
    preset = PRESETS[name]
    population = Population(builtin(), digits(8), RunSettings())
    context = population.context(
        range(8), targets=population.partners.tolist(), rivals=population.codes[None].expand(8, -1, -1)
    )
    if preset.prepare:
        context = preset.prepare(context)
    objective = preset.objective(context)
    found = run(preset.attack, context, objective, preset.ball)
    before, after = objective(context.encoder.forward(context.pixels)), objective(context.encoder.forward(found))
    assert (after - before).mean() > 0, "the attack did not climb its own objective"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("pgdd", "Did you mean 'pgd'"),
        ("u-pgd:steps=3", "has no settings"),
        ("pgd:step=0", "step must be positive"),
        ("pgd:keep=first", "keep.*first"),
        ("pgd:stepz=3", "Did you mean 'step"),
        ("pgd:strid=0.1", "Did you mean 'stride'"),
        ("pgd:steps=three", "expected int"),
        ("square:area=2", "queries and area"),
        ("adaptive:steps=0", "must be positive"),
    ],
)
def test_bad_attack_texts_are_refused(text: str, said: str) -> None:
    with pytest.raises(HoldfastError, match=said):
        read_attack(text)


@all_attacks
def test_attack_survives_its_text_form(attack: Attack) -> None:
    assert read_attack(str(attack)) == attack


@pytest.mark.parametrize("ball", [Linf(0.05), Linf(0.1), L2(0.5), L2(3.0)], ids=str)
@pytest.mark.parametrize("restarts", [1, 5])
def test_the_adaptive_attack_reaches_the_farthest_point_of_a_clipped_ball(ball: Ball, restarts: int) -> None:
    """Pixels at an edge of the range have room on one side only; a start clipped there has no gradient."""
    context = context_of(linear(torch.eye(64), (1, 8, 8)))
    found = run(AdaptiveAttack(restarts=restarts), context, Away(L2Distance())(context), ball)
    room = torch.maximum(context.pixels, 1 - context.pixels).flatten(1)
    corner = room.clamp_max(ball.radius if isinstance(ball, Linf) else 1).norm(dim=1)
    farthest = corner if isinstance(ball, Linf) else corner.clamp_max(ball.radius)
    assert ((found - context.pixels).flatten(1).norm(dim=1) >= 0.999 * farthest).all()


def test_pixels_without_room_on_one_side_start_on_the_other() -> None:
    context = context_of(builtin())
    start = inward_start(context.pixels, Linf(0.1), context.noise, context.encoder.domain)
    moved = start - context.pixels
    assert (moved[context.pixels == 0] > 0).all()
    assert (moved[context.pixels == 1] < 0).all()
    inner = moved[(context.pixels - 0.5).abs() < 0.4]
    assert 0.4 < (inner > 0).double().mean() < 0.6, "the others are as random as ever"


def test_the_adaptive_attack_goes_on_from_the_best_point_along_the_gradient_of_that_point() -> None:
    """By hand: from .40 over the peak at .48 to .50, back to .45, and over it again to .5125; .50 was the best.

    There the slope points down, unlike at the start, and so the next step, half as long, is .75 * .05 downward.
    """
    looks = visited(steps=10, first=0.1, start=0.4, peak=0.48, ball=Linf(0.4))
    assert looks[:5] == pytest.approx([0.40, 0.50, 0.45, 0.5125, 0.4625])


def test_the_adaptive_attack_judges_each_stretch_between_checkpoints_by_its_own_steps() -> None:
    """Where every step rises, none is ever shortened: the second checkpoint, two steps on, asks for two rises, not four."""
    looks = visited(steps=10, first=0.01, start=0.4, peak=0.9, ball=Linf(0.4))
    assert looks == pytest.approx([0.4 + 0.01 * step for step in range(11)])


@pytest.mark.slow
def test_the_adaptive_attack_is_no_weaker_than_short_steps_in_half_the_ball_of_training(reference: Path) -> None:
    """Long steps alone end in corners, which this network, trained in a ball twice as large, has made safe."""
    encoder = published(reference, "mnist_cnn_4layer_a_adv3__lineval", torch.float32)
    test = hf.load_images(f"{reference / 'images' / 'mnist_test.npz'}?images=images&labels=labels", encoder)
    population = Population(encoder, test[range(60)], RunSettings())
    context, objective = population.context(range(60)), margin(lambda codes: codes, population.labels)

    def right(attack: str) -> int:
        moved = run(read_attack(attack), context, objective, Linf(0.15))
        return int((objective(population.encode(moved)) < 0).sum())

    assert right("adaptive") <= right("pgd:steps=100,stride=0.02")
    assert right("adaptive") < right("adaptive:restarts=1,steps=100")
