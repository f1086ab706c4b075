"""Several attacks on the same images: the adaptive ones begin where the others ended, and so are never weaker.

Published attacks run as published, each for itself. Then come the adaptive ones by growing number of steps: the points that
all before them reached are among their starts, so that for each image none of them gained more. Where each ends depends on
the set of attacks alone, not on the order in which they are listed.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.attacks.adaptive import AdaptiveAttack
from holdfast.attacks.base import GRADIENT, Attack, best_of
from holdfast.core.balls import Ball
from holdfast.core.encoder import Encoder, Pixels
from holdfast.core.noise import Noise
from holdfast.objectives.base import ObjectiveFunction


def attack_together(
    attacks: Sequence[Attack],
    encoder: Encoder,
    pixels: Pixels,
    objective: ObjectiveFunction,
    ball: Ball,
    noise: Noise,
    judge: ObjectiveFunction | None = None,
) -> list[Pixels]:
    """Return what each of ``attacks`` makes of the images, in their order, each of shape (b, *pixels).

    Args:
        attacks: different ones.
        encoder, pixels, objective, ball, noise: as an ``Attack`` takes them.
        judge: the gain that counts in the end, where the attacks climb another because it has no gradient.
    """
    ends: dict[int, Pixels] = {}
    for index in sorted(range(len(attacks)), key=lambda place: _steps(attacks[place])):
        attack, starts = attacks[index], tuple(ends.values())
        if not isinstance(attack, AdaptiveAttack) or not starts:
            ends[index] = attack(encoder, pixels, objective, ball, noise)
            continue
        moved = attack.beside(starts, encoder, pixels, objective, ball, noise)
        ends[index] = best_of([moved, *starts], encoder, judge) if judge else moved
    return [ends[place] for place in range(len(attacks))]


def forwards_together(attacks: Sequence[Attack]) -> int:
    """Return how many forwards of the encoder an image takes at most under all of ``attacks``, a gradient counted as three.

    Example:
        >>> from holdfast.attacks.presets import read_attack
        >>> forwards_together([read_attack("pgd:steps=10"), read_attack("adaptive:restarts=1,steps=10")])
        69
    """
    # Where others ended is looked at once more, and going on from there takes a gradient of its own.
    beside = sum(len(attacks) + GRADIENT for attack in attacks if isinstance(attack, AdaptiveAttack))
    return sum(attack.forwards for attack in attacks) + beside


def _steps(attack: Attack) -> int:
    """Return how many steps an adaptive attack takes, 0 for others: they come first."""
    return attack.restarts * attack.steps if isinstance(attack, AdaptiveAttack) else 0
