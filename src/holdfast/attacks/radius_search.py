"""The smallest perturbation that makes an event happen, image by image.

A minimum-norm attack (FMN) searches directly; attacks in balls of growing and shrinking radius then improve its result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import cos, pi

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from holdfast.attacks.adaptive import AdaptiveAttack, forwards_together
from holdfast.attacks.base import GRADIENT, Attack, gain_and_gradient
from holdfast.attacks.gradient import passable, random_start
from holdfast.attacks.pair_attacks import on_unit_ball
from holdfast.core.balls import Ball, column
from holdfast.core.encoder import Codes, Encoder, Pixels
from holdfast.core.noise import Noise
from holdfast.core.objective import ObjectiveFunction

# The fast minimum-norm attack (FMN): make the change small while the objective stays positive.
#
# Pintor et al. 2021, https://arxiv.org/abs/2102.12827, algorithm 1. Beside the change it adapts a radius. While
# nothing was found, that is where the objective would be zero if it were linear,
#
#     radius = norm(delta) - gain / dual_norm(gradient)
#
# and from the first find on a little larger after each failure, a little smaller after each success, never above the
# smallest change found. Steps go uphill and back into the ball of that radius.
#
# Departures. The length of a step is a share of the radius, so that one setting serves encoders that give way at a
# thousandth and at a tenth of the range of pixels, and it is whole until something is found. Steps are the steepest
# of the norm. While nothing is found the radius grows by a fifth at least: clipped at the edge of the range, or where
# the gradient turns, the linear estimate alone stays where it is (of 60 digits a third were then never lost in l2).
# And it starts a little off the clean image, where a distance from the clean code has no gradient.

STRIDE = (1.0, 0.05)
"""The first and the last step after a find, as shares of the radius."""
GROWTH = (0.1, 0.001)
"""The first and the last share by which the radius changes after a find ..."""
LEAST_GROWTH = 0.2
"""... and the least share by which it grows before."""
START = 1e-4
"""How far from the clean image it starts, as a share of the widest radius."""


def minimum_norm(
    encoder: Encoder, pixels: Pixels, objective: ObjectiveFunction, widest: Ball, steps: int, noise: Noise
) -> tuple[Pixels, Pixels]:
    """Search for the nearest images with a positive gain.

    Images for which none was found come back clean.

    Args:
        encoder, pixels, objective: As an ``Attack`` takes them.
        widest: Ball whose norm is minimised; its radius is the largest perturbation to search.

    Returns:
        The nearest images and where the search ended, each of shape (b, *pixels) and within ``widest``.
    """
    unit, domain = replace(widest, radius=1.0), encoder.domain
    moved, nearest = random_start(pixels, widest, noise, START, domain), pixels
    smallest = torch.full_like(pixels.flatten(1)[:, 0], torch.inf)
    radius, tiny = torch.zeros_like(smallest), torch.finfo(pixels.dtype).tiny
    for step in range(steps):
        gain, gradient = gain_and_gradient(encoder, moved, objective)
        gain, gradient = gain.to(pixels.dtype), passable(moved, gradient, domain)
        size, positive = unit.norm(moved - pixels), gain > 0
        nearer = positive & (size < smallest)
        nearest, smallest = torch.where(column(nearer, moved), moved, nearest), torch.where(nearer, size, smallest)
        growth, known = annealed(GROWTH, step, steps), smallest.isfinite()
        linear = (size - gain / unit.dual_norm(gradient).clamp_min(tiny)).nan_to_num(nan=0.0)
        wider = torch.where(known, radius * (1 + growth), torch.maximum(linear, radius * (1 + LEAST_GROWTH)))
        narrower = torch.minimum(radius, smallest) * (1 - growth)
        radius = torch.where(positive, narrower, wider).clamp(tiny, widest.radius)
        length = torch.where(known, annealed(STRIDE, step, steps), 1.0) * radius
        ahead, scale = moved - pixels + column(length, moved) * unit.steepest(gradient), column(radius, moved)
        moved = domain.clip(pixels + scale * unit.project(ahead / scale))
    return nearest, moved


def annealed(ends: tuple[float, float], step: int, steps: int) -> float:
    """Value on a cosine schedule between two ends.

    Example:
        >>> [round(annealed((1.0, 0.0), step, 5), 3) for step in range(5)]
        [1.0, 0.854, 0.5, 0.146, 0.0]
    """
    first, last = ends
    return last + (first - last) * (1 + cos(pi * step / max(1, steps - 1))) / 2


# The smallest change that makes something happen, image by image.
#
# An attack in a ball says whether; here the radius itself is searched for. First the minimum-norm attack
# (``minimum_norm``) looks for it directly. Then the attack itself is made at radii below what was found: at ``BELOW``
# of it, and between the largest radius at which it failed and the smallest find, with what was found before, brought
# inside, among its starts. Every find moves along the segment to the clean image for as long as the event lasts.
#
# A radius counts only with an image: one that was encoded and showed the event. So it bounds the true one from above.
# That the attack failed at some radius proves nothing; it says where to search next.
#
# On three built-in encoders, 60 digits each, in linf and l2, radii were on average .98 to 1.01 times the smallest of
# three searches of ten times the work with the attack ``adaptive``, 1.01 to 1.05 times with ``adaptive:restarts=1``,
# and by the minimum-norm attack alone 1.03 to 1.08 times, however long it ran: it stays with the first other image
# that it nears.

Event = Callable[[Codes], Bool[Tensor, "b"]]
"""Whether what is searched for happened to each image, from its moved code."""
COST = 4
"""Largest cost of a search, in attacks in one ball ..."""
RADII = 3
"""... and largest number of radii at which it attacks."""
BELOW = 0.95
"""The first of these radii, as a share of the smallest found so far."""
NARROW = 0.97
"""Where the attack failed so near to the smallest find, it begins again here, with other random starts."""
DIRECT = 20
"""Gradients of the minimum-norm attack; 150 found no more."""
HALVINGS = 5
"""Of the segment from the clean image to a find."""


@dataclass(frozen=True)
class Goal:
    """Event to search for around some images."""

    encoder: Encoder
    """Encoder under attack."""
    pixels: Pixels
    """Clean images, shape (b, *pixels)."""
    objective: ObjectiveFunction
    """Function to maximise: positive where the event happens, or nearly so."""
    event: Event
    """Test of embeddings for the event, one answer per image."""

    @torch.no_grad()
    def happens(self, points: Pixels) -> Bool[Tensor, "b"]:
        """Return whether the event happens at ``points``, by a forward of them."""
        return self.event(self.encoder.forward(points))

    def between(self, points: Pixels, shares: Float[Tensor, "b"]) -> Pixels:
        """Interpolate between the clean images and ``points``.

        Args:
            shares: Fraction of the way from the clean image, 0 to 1, shape (b,).
        """
        moved = self.encoder.domain.clip(self.pixels + column(shares, points) * (points - self.pixels))
        return torch.where(column(shares == 1, points), points, moved)


@dataclass(frozen=True)
class Nearest:
    """Nearest images found that show the event; clean images with infinite radius if none."""

    points: Pixels
    """Images, shape (b, *pixels)."""
    radii: Float[Tensor, "b"]
    """Norm of each perturbation in pixel units, shape (b,)."""

    @classmethod
    def clean(cls, goal: Goal) -> Nearest:
        """Starting state of a search: radius 0 where the event happens to the clean image."""
        radii = torch.full_like(goal.pixels.flatten(1)[:, 0], torch.inf)
        return cls(goal.pixels, radii.masked_fill(goal.happens(goal.pixels), 0.0))

    def or_nearer(self, goal: Goal, points: Pixels, widest: Ball) -> Nearest:
        """Keep, for each image, the nearer of this result and ``points``.

        First, ``points`` move as close to the clean image as the event lasts.

        Args:
            widest: Ball that names the norm.
        """
        happens = goal.happens(points)
        near, far = torch.zeros_like(self.radii), torch.ones_like(self.radii)
        for _ in range(HALVINGS):
            middle = (near + far) / 2
            lasts = goal.happens(goal.between(points, middle)) & happens
            near, far = torch.where(lasts, near, middle), torch.where(lasts, middle, far)
        moved = goal.between(points, far)
        radii = widest.norm(moved - goal.pixels).masked_fill(~happens, torch.inf)
        nearer = radii < self.radii
        return Nearest(torch.where(column(nearer, moved), moved, self.points), torch.where(nearer, radii, self.radii))


def nearest_found(
    goal: Goal,
    attack: Attack,
    widest: Ball,
    noise: Noise,
    balls: Sequence[Ball],
    attacked: Callable[[Ball, Sequence[int]], list[Pixels]],
) -> Nearest:
    """Search for the nearest images that show an event: by radius, then with fixed attacks.

    Only images that were not yet lost within a ball are attacked in it.

    Args:
        attack: Attack at each radius that is tried.
        widest: Largest ball to search.
        balls: Balls of fixed radius; only those of the norm of ``widest`` are used.
        attacked: Takes a ball and positions, returns one tensor of attacked images per attack.
    """
    nearest = nearest_events(goal, attack, widest, noise)
    for ball in _within(widest, balls):
        if positions := (nearest.radii > ball.radius).nonzero()[:, 0].tolist():
            for moved in attacked(ball, positions):
                points = goal.pixels.clone()
                points[positions] = moved
                nearest = nearest.or_nearer(goal, points, widest)
    return nearest


def nearest_events(goal: Goal, attack: Attack, widest: Ball, noise: Noise) -> Nearest:
    """Return the nearest images found within ``widest`` that show the event of ``goal``.

    Args:
        goal: the images and the event.
        attack: made at several radii; the minimum-norm attack beside it only where it looks at gradients itself.
        widest: the norm of the change, and the largest one searched for.
    """
    nearest, ends = Nearest.clean(goal), goal.pixels
    if not attack.black_box:
        points, ends = minimum_norm(
            goal.encoder, goal.pixels, goal.objective, widest, _direct(attack), noise.fork("minimum-norm")
        )
        nearest = nearest.or_nearer(goal, points, widest)
    failed = torch.zeros_like(nearest.radii)
    for trial in range(_trials(attack)):
        radii = _next_radii(nearest.radii, failed, widest)
        points = _attacked(goal, attack, widest, radii, (nearest.points, ends), noise.fork("radius", trial))
        nearer = nearest.or_nearer(goal, points, widest)
        failed = torch.where(nearer.radii < nearest.radii, failed, torch.maximum(failed, radii))
        nearest, failed = nearer, torch.minimum(failed, NARROW * nearer.radii)
    return nearest


def search_forwards(attack: Attack) -> int:
    """Forward passes per image, at most, of a radius search; a gradient counts as 3.

    Example:
        >>> [round(search_forwards(a) / a.forward_passes, 1) for a in (AdaptiveAttack(), AdaptiveAttack(restarts=1))]
        [3.4, 3.5]
    """
    direct = 0 if attack.black_box else GRADIENT * _direct(attack) + 1 + HALVINGS
    return 1 + direct + _trials(attack) * _trial(attack)


def fixed_forwards(widest: Ball, balls: Sequence[Ball], attacks: Sequence[Attack]) -> int:
    """Forward passes per image, at most, of the fixed attacks of ``nearest_found``.

    Example:
        >>> from holdfast.core.balls import Linf
        >>> from holdfast.attacks.black_box import SquareAttack
        >>> fixed_forwards(Linf(0.5), [Linf(0.1), Linf(0.2), Linf(0.6)], [SquareAttack(queries=100)])
        212
    """
    return len(_within(widest, balls)) * (forwards_together(attacks) + len(attacks) * (1 + HALVINGS))


def _within(widest: Ball, balls: Sequence[Ball]) -> list[Ball]:
    """Return those of ``balls`` that lie in the ``widest`` and have its norm."""
    return [ball for ball in balls if ball.name == widest.name and ball.radius <= widest.radius]


def _direct(attack: Attack) -> int:
    """Return how many gradients the minimum-norm attack takes: no more than the attack itself."""
    return max(1, min(DIRECT, attack.forward_passes // GRADIENT))


def _trial(attack: Attack) -> int:
    """Return the forwards of the attack at one radius: itself, its starts, the event at its end and along the segment."""
    beside = 2 + attack.restarts + 2 * GRADIENT if isinstance(attack, AdaptiveAttack) else 0
    return attack.forward_passes + beside + 1 + HALVINGS


def _trials(attack: Attack) -> int:
    """Return at how many radii the attack is made: as many as the cost of a search allows, and one at least."""
    direct = 0 if attack.black_box else GRADIENT * _direct(attack) + 1 + HALVINGS
    return max(1, min(RADII, (COST * attack.forward_passes - 1 - direct) // _trial(attack)))


def _next_radii(nearest: Float[Tensor, "b"], failed: Float[Tensor, "b"], widest: Ball) -> Float[Tensor, "b"]:
    """Return the radii to try: a little below what was found, and between both once the attack has failed somewhere."""
    high = nearest.clamp_max(widest.radius)
    first = torch.where(nearest.isfinite(), BELOW * high, high)
    return torch.where(failed > 0, (failed * high).sqrt(), first)


def _attacked(
    goal: Goal, attack: Attack, widest: Ball, radii: Float[Tensor, "b"], starts: Sequence[Pixels], noise: Noise
) -> Pixels:
    """Return where ``attack`` leads within ``radii``; ``starts``, brought inside, are among those of an adaptive one."""
    encoder, module = on_unit_ball(goal.encoder, goal.pixels, radii.clamp_min(torch.finfo(radii.dtype).tiny))
    unit, centre = replace(widest, radius=1.0), torch.zeros_like(goal.pixels)
    if not isinstance(attack, AdaptiveAttack):
        return module.pixels(attack(encoder, centre, goal.objective, unit, noise))
    deltas = [unit.project((start - goal.pixels) / module.radii) for start in starts]
    return module.pixels(attack.beside(deltas, encoder, centre, goal.objective, unit, noise))
