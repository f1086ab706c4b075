"""Transfer: images attacked on another encoder, the surrogate, and given to this one.

Papernot et al. 2016, https://arxiv.org/abs/1605.07277: attacks often transfer between networks, so an attacker without
access to a service attacks another network instead. Every encoder of a run is a surrogate for every other one. The
transfer matrix has a row per surrogate and a column per encoder.

Departure: the effect on embeddings replaces that on labels, relative to an attack on the encoder itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional

from holdfast.attacks.adaptive import AdaptiveAttack
from holdfast.attacks.attacked_codes import ATTACKS, BALLS, SIZES, attacked_pixels, differentiable
from holdfast.attacks.base import Attack, NoGradientError
from holdfast.attacks.evaluations.harm_kept import Further, OwnAttacks
from holdfast.attacks.objectives.simple import Away
from holdfast.attacks.presets import label
from holdfast.core.balls import Ball
from holdfast.core.divergences import Divergence, L2Distance
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import UnknownName
from holdfast.core.objective import AttackContext
from holdfast.core.records import Findings
from holdfast.core.run_settings import Observed
from holdfast.measure.evaluation import Evaluation, Sizes
from holdfast.measure.observation import Joint, Observation, findings_of, population_warnings
from holdfast.measure.population import Population


@final
@dataclass(frozen=True)
class Transferred(Observation):
    """Embeddings of random images, attacked on another encoder, the ``surrogate``.

    It is named by its fingerprint. Where it takes images of another size, the attack goes through a bilinear resizing, so
    that the ball is one of the pixels that the measured encoder gets. Where it takes other inputs, or passes no gradient to
    an attack that needs one, all codes are nan.
    """

    ball: Ball
    """Perturbation set."""
    attack: Attack
    """Attack on the surrogate."""
    divergence: Divergence
    """Distance between embeddings."""
    surrogate: str
    """Fingerprint of the encoder that the images are attacked on."""
    samples: int
    """Images to attack, chosen at random; 1 or more."""
    name = "transferred"
    version = 1

    def forward_passes(self, population: Population) -> int:
        return self.attack.forward_passes + 1

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        context = population.context(rows)
        unknown = {"codes": torch.full_like(population.codes[list(rows)], torch.nan)}
        surrogate = resized(population.encoder_of(self.surrogate), population.encoder.domain)
        if surrogate is None:
            return unknown
        # What a divergence learned from the codes of one encoder means nothing for those of another.
        climbed = L2Distance() if self.divergence.learns else differentiable(self.divergence)
        attacked_context = AttackContext(surrogate, context.pixels, context.noise)
        try:
            moved = attacked_pixels(attacked_context, Away(climbed.of_tokens(surrogate.tokens)), self.attack, self.ball)
        except NoGradientError:
            return unknown
        return {"codes": population.encode(moved)}


@final
@dataclass(frozen=True)
class Transfer(Evaluation):
    """Effect on this encoder of images that were attacked on another encoder.

    Paper: Papernot et al. 2016, https://arxiv.org/abs/1605.07277. Departure: the effect on embeddings instead of
    labels, relative to an attack on the encoder itself.
    """

    balls: tuple[Ball, ...] = BALLS
    """Perturbation sets."""
    attack: Attack = AdaptiveAttack(restarts=1)
    """Attack on surrogates."""
    attacks: tuple[Attack, ...] = ATTACKS
    """White-box attacks on the encoder itself; the strongest is the reference."""
    divergences: tuple[Divergence, ...] = (L2Distance(),)
    """Distances between embeddings; a fitted one is replaced by `l2` on surrogates."""
    samples: int = 1000
    """Number of attacked images."""
    surrogates: tuple[str, ...] = ()
    """Names of encoders of the run to attack (default: all)."""
    sizes = Sizes(
        quick={**SIZES.quick, "attack": "adaptive:restarts=1,steps=10"},
        full={**SIZES.full, "attack": "adaptive"},
        large=SIZES.large,
        small_only=True,
    )
    name = "transfer"
    version = 2
    partial = True
    uses_bank = True
    needs_others = True
    robustness = False  # each encoder is its own worst surrogate
    title = "Transfer"
    meaning = (
        "Images attacked on one encoder, the surrogate, are shown to another, as by someone who cannot attack that one. "
        "Harm kept says how far they carry its embeddings, as a fraction of how far an attack on itself does: near 1 "
        "the surrogate "
        "serves as well. Random noise of the same size stands beside it; attacks made to carry over may do more."
    )
    headline = ("harm_kept", "nearest_neighbour_accuracy")

    def among(self, encoders: Sequence[Encoder]) -> Transfer:
        known = {encoder.name: f"{encoder.name}@{encoder.fingerprint}" for encoder in encoders}
        for name in self.surrogates:
            if name not in (*known, *known.values()):
                raise UnknownName("transfer.surrogates (encoders of the run)", name, known)
        chosen = [known.get(name, name) for name in self.surrogates] or known.values()
        return replace(self, surrogates=tuple(sorted(chosen)))

    def observation(self) -> Joint:
        def transferred(ball: Ball, divergence: Divergence) -> list[Observation]:
            return [self._transferred(ball, divergence, surrogate) for surrogate in self.surrogates]

        return Joint(self._own_attacks.parts(transferred))

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        joint, unfit = self.observation(), dict[str, None]()

        def transferred(ball: Ball, divergence: Divergence) -> dict[Further, Tensor]:
            parts = {name: self._transferred(ball, divergence, name) for name in self.surrogates}
            codes = {name.rpartition("@")[0]: joint.of(part, observed)["codes"] for name, part in parts.items()}
            unfit.update({name: None for name, moved in codes.items() if moved.isnan().all()})
            return {(("attack", label(self.attack)), ("surrogate", name)): moved for name, moved in codes.items()}

        series, estimates = self._own_attacks.beside(population, rows, joint, observed, transferred)
        warnings = (*population_warnings(population, self.divergences), *map(_unfit, unfit))
        return findings_of(population, rows, series, estimates, warnings)

    @property
    def _own_attacks(self) -> OwnAttacks:
        return OwnAttacks(self.balls, self.attacks, self.divergences, self.samples)

    def _transferred(self, ball: Ball, divergence: Divergence, surrogate: str) -> Transferred:
        return Transferred(ball, self.attack, divergence, surrogate.rpartition("@")[2], self.samples)


def _unfit(surrogate: str) -> str:
    """Return a sentence on a surrogate of which nothing is known."""
    return f"no images could be attacked on {surrogate}: it passes no gradient to its input, or takes other inputs"


class Resize(nn.Module):
    """Resize images as a surrogate needs them, bilinearly."""

    def __init__(self, size: tuple[int, ...]) -> None:
        super().__init__()
        self.size = size

    def forward(self, pixels: Tensor) -> Tensor:
        return functional.interpolate(pixels, self.size, mode="bilinear", antialias=True)


def resized(encoder: Encoder, domain: Domain) -> Encoder | None:
    """Adapt ``encoder`` to inputs of another size.

    Returns:
        The adapted encoder; None if ``domain`` has other channels or another range.

    Example:
        >>> small = Encoder(nn.Flatten(), "small", Domain((1, 4, 4)))
        >>> resized(small, Domain((1, 8, 8)))(torch.rand(2, 1, 8, 8)).shape
        torch.Size([2, 16])
        >>> resized(small, Domain((3, 8, 8)))
    """
    theirs = encoder.domain
    if theirs == domain:
        return encoder
    images = len(theirs.shape) == len(domain.shape) == 3
    if not images or theirs != Domain((domain.shape[0], *theirs.shape[1:]), domain.low, domain.high):
        return None
    fitted = copy(encoder)
    fitted.module, fitted.domain = nn.Sequential(Resize(theirs.shape[1:]), encoder.module), domain
    return fitted
