"""Adaptive attacks: gradient ascent whose step halves when progress stalls (APGD).

If several attacks run on the same images, adaptive ones also start from the results of the others. They are never weaker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.attacks.base import GRADIENT, Attack, Gain, assert_inside, best_of, better, gain_and_gradient
from holdfast.attacks.gradient import passable, random_start, read_out, same_path
from holdfast.core.balls import Ball, Linf, column
from holdfast.core.encoder import Domain, Encoder, Pixels
from holdfast.core.errors import OutOfRange
from holdfast.core.noise import Noise
from holdfast.core.objective import ObjectiveFunction

# The adaptive attack: ascent with momentum whose step halves whenever progress stalls (APGD).
#
# Croce and Hein 2020, https://arxiv.org/abs/2003.01690, section 3: start with long steps; at checkpoints, halve the
# step and return to the best point if too few steps rose or neither step nor best value changed.
#
# Departures: of several starts, each takes the first 40% of its steps; the best one then takes the steps that all of
# them have left. Compared with one run of as many steps on adversarially trained encoders, whole runs from five
# starts find between 2% less and 10% more; runs divided this way find at least as much everywhere. Where other
# attacks of a run ended are starts, too: if one of them is best, the search goes on from there.
#
# The first step is half the radius, not the width of the ball. The codes of an encoder of many layers change
# direction within less: 50 steps from one start moved those of an ImageNet encoder (EfficientNet-Lite0, 6
# photographs, linf 4/255, l2) 70 far from first steps of twice the radius, 95 from half of it; 20 steps 45 and 58; 50
# fixed steps of 0.001 (U-PGD) 62.
#
# In linf every other of three and more starts takes shorter steps, and the best start goes on with those that found
# it. Long steps alone end in the corners of the ball, which a network trained in a larger one has made safe: half
# that radius (RVCL's CNN-A of MNIST, eps 0.3, ball 0.15, margin of its published head) they left .73 of 100 images
# right, .59 this way, .63 one search of as many fixed steps of 0.02 radii. On ten other encoders, three of them
# EfficientNet-Lite0, all numbers are within 1.1% and all accuracies within .01; in l2 and l1 short steps lose more
# than they find.
#
# Pixels that start near an edge of the domain start inward. An untargeted objective has no gradient along a pixel
# that a random start moved out and clipping brought back, and no step leads from the near edge to the far side of the
# ball.

MOMENTUM = 0.75
RISING = 0.75
"""Share of the steps since the last checkpoint that must have raised the objective."""
FIRST, SHORT, SEVERAL = 0.5, 0.125, 3
"""The first step of a search as a share of the radius; in linf that of every other start, from this number of starts on."""
FROM_OTHERS = 0.125
"""That of the search that goes on beside other attacks: where they ended, longer steps lose more than they find."""
SCOUTING = 0.4
"""Share of its steps that each of several starts takes before the best of them goes on alone."""
SPREAD = 0.05
"""Share of the coordinates that the first step in a sparse ball touches; it falls to the top one alone at the end."""
Look = Callable[[Encoder, Pixels, ObjectiveFunction], tuple[Gain, Pixels]]
"""Gain and gradient at a point, as ``gain_and_gradient`` returns them."""


@final
@dataclass(frozen=True)
class AdaptiveAttack(Attack):
    """Maximise the objective with a step size that adapts to each image (APGD); recommended.

    It takes ``restarts`` times ``steps`` steps in all, more than half of them from the best start.
    """

    restarts: int = 5
    """Random starts per image, 1 or more."""
    steps: int = 20
    """Gradient steps per start; several starts take 40% of all steps, and the best one the rest."""
    name = "adaptive"
    version = 2

    def __post_init__(self) -> None:
        if self.steps < 1 or self.restarts < 1:
            raise OutOfRange("adaptive: steps and restarts", (self.steps, self.restarts), "positive")

    @property
    def scouting(self) -> int:
        """How many steps each start takes if it is not the only one."""
        return max(1, round(SCOUTING * self.steps))

    @property
    def forward_passes(self) -> int:
        if self.restarts == 1:
            return GRADIENT * (self.steps + 1)
        last = self.restarts * (self.steps - self.scouting)
        return GRADIENT * (self.restarts * (self.scouting + 1) + (last + 1 if last else 0))

    def search(
        self, encoder: Encoder, pixels: Pixels, objective: ObjectiveFunction, ball: Ball, noise: Noise
    ) -> tuple[Pixels, Gain]:
        return ascend(encoder, pixels, objective, ball, begin(pixels, ball, noise, encoder.domain), self.steps, FIRST)

    def __call__(
        self, encoder: Encoder, pixels: Pixels, objective: ObjectiveFunction, ball: Ball, noise: Noise
    ) -> Pixels:
        if self.restarts == 1:
            return super().__call__(encoder, pixels, objective, ball, noise)
        ball.check(encoder.domain)
        noises = [noise.fork(self.name, k) for k in range(self.restarts)]
        best, first = self._scouted(encoder, pixels, objective, ball, noises)
        attacked = self._go_on(encoder, pixels, objective, ball, best, first)
        assert_inside(encoder, pixels, attacked, ball)
        return attacked

    def beside(
        self,
        starts: Sequence[Pixels],
        encoder: Encoder,
        pixels: Pixels,
        objective: ObjectiveFunction,
        ball: Ball,
        noise: Noise,
    ) -> Pixels:
        """Continue from where other attacks ended, so that this attack is never weaker.

        The number of steps is that of a call. No image gains less than at any of its ``starts``.

        Args:
            starts: Attacked images where other attacks ended, each of shape (b, *pixels).
            encoder: Encoder under attack.
            pixels: Clean images, shape (b, *domain.shape), within the range of the domain.
            objective: Function of embeddings (b, d) to maximise; it returns one gain per image, shape (b,).
            ball: Perturbation set around each clean image; its radius is in pixel units.
            noise: Random streams, one per image.

        Returns:
            Attacked images, shape (b, *pixels).
        """
        noises = [noise.fork("start", k).fork(self.name, 0) for k in range(self.restarts)]
        scouted, _ = self._scouted(encoder, pixels, objective, ball, noises)
        best = best_of([scouted, *starts], encoder, objective)
        attacked = self._go_on(encoder, pixels, objective, ball, best, FROM_OTHERS)
        assert_inside(encoder, pixels, attacked, ball)
        return attacked

    def _scouted(
        self, encoder: Encoder, pixels: Pixels, objective: ObjectiveFunction, ball: Ball, noises: Sequence[Noise]
    ) -> tuple[Pixels, Float[Tensor, "b"]]:
        """Return the best point that any start finds for each image, and how long the first step of that start was."""
        short = SHORT if isinstance(ball, Linf) and self.restarts >= SEVERAL else FIRST
        starts = [begin(pixels, ball, noise, encoder.domain) for noise in noises]
        best, gain = ascend(encoder, pixels, objective, ball, starts[0], self.scouting, FIRST)
        first = torch.full_like(gain, FIRST)
        for k, start in enumerate(starts[1:], 1):
            length = short if k % 2 else FIRST
            other, its_gain = ascend(encoder, pixels, objective, ball, start, self.scouting, length)
            first = torch.where(its_gain > gain, length, first)
            best, gain = better(best, gain, other, its_gain)
        return best, first

    def _go_on(
        self,
        encoder: Encoder,
        pixels: Pixels,
        objective: ObjectiveFunction,
        ball: Ball,
        best: Pixels,
        first: Float[Tensor, "b"] | float,
    ) -> Pixels:
        """Return where the steps that all starts have left lead from the best of them."""
        left = self.restarts * (self.steps - self.scouting)
        return ascend(encoder, pixels, objective, ball, best, left, first)[0] if left else best


def begin(pixels: Pixels, ball: Ball, noise: Noise, domain: Domain) -> Pixels:
    """Choose the start of a search: ``inward_start``, or a uniform point in sparse balls.

    In a sparse ball, all pixels moved inward at once would share the radius.

    Returns:
        Starting points, shape (b, *pixels).
    """
    return random_start(pixels, ball, noise, 1.0, domain) if ball.sparse else inward_start(pixels, ball, noise, domain)


def inward_start(pixels: Pixels, ball: Ball, noise: Noise, domain: Domain) -> Pixels:
    """Draw a uniform point of the ball; mirror pixels that have too little room on one side.

    Returns:
        Starting points, shape (b, *pixels).
    """
    delta = ball.sample(noise, pixels.shape[1:], pixels.dtype)
    reach = column(delta.flatten(1).abs().amax(1), delta)
    up, down = domain.high - pixels, pixels - domain.low
    inward = torch.where(up > down, delta.abs(), -delta.abs())
    return domain.clip(pixels + torch.where(torch.minimum(up, down) < reach, inward, delta))


def ascend(
    encoder: Encoder,
    pixels: Pixels,
    objective: ObjectiveFunction,
    ball: Ball,
    start: Pixels,
    steps: int,
    first: Float[Tensor, "b"] | float,
    look: Look = gain_and_gradient,
) -> tuple[Pixels, Gain]:
    """Follow the gradient from ``start`` and keep the best point on the way.

    Args:
        first: Length of the first step as a fraction of the radius, for each image or for all.
        look: Returns gain and gradient at a point, and may remember the point.

    Returns:
        The best points, shape (b, *pixels), and their gains, shape (b,).
    """
    before = moved = start
    gain, gradient = look(encoder, moved, objective)
    best, best_gain, best_gradient = moved, gain, gradient
    length = torch.ones_like(gain) * first * ball.radius
    rises, at_checkpoint = torch.zeros_like(gain), (length, best_gain)
    marks, last_mark = checkpoints(steps), 0
    for step in range(1, steps + 1):
        toward = direction(ball, moved, gradient, encoder, SPREAD * (1 - step / steps))
        ahead = inside(pixels, moved + column(length, moved).to(moved.dtype) * toward, ball, encoder)
        inertia = MOMENTUM if step > 1 else 1.0
        blend = moved + inertia * (ahead - moved) + (1 - inertia) * (moved - before)
        before, moved = moved, inside(pixels, blend, ball, encoder)
        now, gradient = look(encoder, moved, objective)
        rises = rises + (now > gain)
        best_gradient = torch.where(column(now > best_gain, moved), gradient, best_gradient)
        best, best_gain = better(best, best_gain, moved, now)
        gain = now
        if step in marks:
            stalled = (rises < RISING * (step - last_mark)) | (
                (at_checkpoint[0] == length) & (at_checkpoint[1] >= best_gain)
            )
            at_checkpoint = (length, best_gain)
            length = torch.where(stalled, length / 2, length)
            back = column(stalled, moved)
            moved, gradient = torch.where(back, best, moved), torch.where(back, best_gradient, gradient)
            before, gain = torch.where(back, best, before), torch.where(stalled, best_gain, gain)
            rises, last_mark = torch.zeros_like(rises), step
    return best, best_gain


def checkpoints(steps: int) -> list[int]:
    """Steps at which progress is judged: after 22% of all, then at shrinking intervals.

    No interval is shorter than 6% of the steps.

    Example:
        >>> checkpoints(100)
        [22, 41, 57, 70, 80, 87, 93, 99]
    """
    marks, last, gap = [0.0, 0.22], 0.22, 0.22
    while last < 1:
        gap = max(gap - 0.03, 0.06)
        last += gap
        marks.append(last)
    return sorted({ceil(round(mark * steps, 6)) for mark in marks[1:] if mark <= 1})


def direction(ball: Ball, moved: Pixels, gradient: Pixels, encoder: Encoder, spread: float) -> Pixels:
    """Steepest unit step at ``moved``.

    Args:
        gradient: Gradient of the objective there, shape (b, *pixels).
        encoder: Encoder whose domain limits the step.
        spread: Fraction of coordinates that a step in a sparse ball may use.
    """
    if ball.sparse:
        gradient = passable(moved, gradient, encoder.domain)
    return ball.steepest(gradient, spread)


def inside(pixels: Pixels, moved: Pixels, ball: Ball, encoder: Encoder) -> Pixels:
    """Project ``moved`` onto the ball around ``pixels``, then clip to the domain.

    Args:
        moved: Points to project, shape (b, *pixels).
        encoder: Encoder whose domain limits the result.
    """
    return encoder.domain.clip(pixels + ball.project(moved - pixels))


# Several attacks on the same images: the adaptive ones begin where the others ended, and so are never weaker.
#
# Published attacks run as published; those that differ in the number of steps alone are points of one path. Then come the
# adaptive ones by growing number of steps: the points that all before them reached are among their starts, so that for each
# image none of them gained more. Where each ends depends on the set of attacks alone, not on the order in which they are
# listed.


def attack_together(
    attacks: Sequence[Attack],
    encoder: Encoder,
    pixels: Pixels,
    objective: ObjectiveFunction,
    ball: Ball,
    noise: Noise,
    judge: ObjectiveFunction | None = None,
) -> list[Pixels]:
    """Run several attacks on the same images; adaptive ones start where others ended.

    Args:
        attacks: Different attacks.
        judge: Gain that decides in the end, where the attacks maximise another because it has no gradient.

    Returns:
        Attacked images of each attack, in order, each of shape (b, *pixels).
    """
    ends: dict[int, Pixels] = {}
    passed: dict[int, Pixels] = {}
    for group in same_path(attacks):
        points = read_out([attacks[place] for place in group], encoder, pixels, objective, ball, noise)
        passed |= dict(zip(group, points, strict=True))
    for index in sorted(range(len(attacks)), key=lambda place: _steps(attacks[place])):
        attack, starts = attacks[index], tuple(ends.values())
        if not isinstance(attack, AdaptiveAttack) or not starts:
            ends[index] = passed[index] if index in passed else attack(encoder, pixels, objective, ball, noise)
            continue
        moved = attack.beside(starts, encoder, pixels, objective, ball, noise)
        ends[index] = best_of([moved, *starts], encoder, judge) if judge else moved
    return [ends[place] for place in range(len(attacks))]


def forwards_together(attacks: Sequence[Attack]) -> int:
    """Forward passes per image, at most, of all attacks together; a gradient counts as 3.

    Example:
        >>> from holdfast.attacks.presets import read_attack
        >>> forwards_together([read_attack("pgd:steps=10"), read_attack("adaptive:restarts=1,steps=10")])
        69
        >>> forwards_together([read_attack(f"pgd:steps={steps},keep=last") for steps in (5, 10)])
        31
    """
    # Where others ended is looked at once more, and going on from there takes a gradient of its own.
    beside = sum(len(attacks) + GRADIENT for attack in attacks if isinstance(attack, AdaptiveAttack))
    shorter = [attacks[place] for group in same_path(attacks) for place in group[:-1]]
    return sum(attack.forward_passes for attack in attacks) - sum(attack.forward_passes for attack in shorter) + beside


def _steps(attack: Attack) -> int:
    """Return how many steps an adaptive attack takes, 0 for others: they come first."""
    return attack.restarts * attack.steps if isinstance(attack, AdaptiveAttack) else 0
