"""Universal perturbations: one perturbation for all images, learned from some of them.

The evaluation reports how much of the attack's effect such a perturbation keeps on images it was not learned from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import final

import torch
from jaxtyping import Bool
from torch import Tensor

from holdfast.attacks.attacked_codes import ATTACKS, BALLS, SIZES, SPREAD, change, differentiable
from holdfast.attacks.base import GRADIENT, Attack, assert_inside, gain_and_gradient
from holdfast.attacks.evaluations.harm_kept import Further, OwnAttacks
from holdfast.core.balls import Ball
from holdfast.core.divergences import Divergence, L2Distance
from holdfast.core.encoder import Pixels
from holdfast.core.noise import Noise
from holdfast.core.objective import ObjectiveFunction
from holdfast.core.pictures import SHOWN, row
from holdfast.core.records import Findings, Picture
from holdfast.core.run_settings import Observed
from holdfast.core.settings import check_positive
from holdfast.measure.evaluation import Evaluation, Sizes
from holdfast.measure.observation import Joint, Observation, findings_of, population_warnings
from holdfast.measure.population import Fit, Population, whitenings

# One perturbation for all images: learned from some of them, shown to all.
#
# ``v = argmax over |v| <= eps of mean over seen x of d(f(clip(x + v)), f(x))``, by projected stochastic gradient
# ascent with momentum and a step that shrinks to nothing (Shafahi et al. 2018, https://arxiv.org/abs/1811.11304; the
# question is that of Moosavi-Dezfooli et al. 2017, https://arxiv.org/abs/1610.08401, with codes in place of labels).
# The perturbation lies in the ball; clipping to the range, image by image, only makes it smaller.

MOMENTUM = 0.9
FIRST = 0.25
"""The first step as a share of the radius; later ones fall to nothing in equal steps."""
TINY = torch.finfo(torch.float64).tiny


@final
@dataclass(frozen=True)
class UniversalPerturbation(Fit[Pixels]):
    """One perturbation for all images, learned from every second image in random order.

    Groups are kept together. Of ``restarts`` searches from random starts, the one with the largest mean displacement
    counts. Its shape is (1, *pixels).
    """

    ball: Ball
    """Perturbation set."""
    divergence: Divergence
    """Distance between embeddings."""
    seen: int
    """Largest number of images to learn from."""
    restarts: int
    """Random starts, 1 or more."""
    steps: int
    """Gradient steps per restart."""
    batch: int
    """Images per step."""
    name = "universal-perturbation"
    version = 1
    uses_groups = True

    def __post_init__(self) -> None:
        check_positive(self, "seen", "restarts", "steps", "batch")

    def forward_passes(self, population: Population) -> int:
        most = min(self.seen, len(population.images))
        return self.restarts * (GRADIENT * self.steps * min(self.batch, most) + (most if self.restarts > 1 else 0))

    def learn(self, population: Population) -> Observed:
        rows, run = seen_rows(population, self.seen), population.run
        self.ball.check(population.encoder.domain)
        noise = run.noise([self.name])
        ends = [self._search(population, rows, noise.fork(restart)) for restart in range(self.restarts)]
        if len(ends) == 1:
            return {"perturbation": ends[0]}
        gains = run.batches(rows, partial(self._gains, population, ends))["gains"]
        return {"perturbation": ends[int(gains.double().mean(0).nan_to_num(-torch.inf).argmax())]}

    def _search(self, population: Population, rows: Sequence[int], noise: Noise) -> Pixels:
        """Return where the search from one random start ends."""
        run, count = population.run, min(self.batch, len(rows))
        delta = self.ball.sample(noise, population.encoder.domain.shape, run.dtype)
        velocity = torch.zeros_like(delta, dtype=torch.float64)
        for step in range(self.steps):
            batch, left = [rows[(step * count + k) % len(rows)] for k in range(count)], 1 - step / self.steps
            gradients = run.batches(batch, partial(self._gradients, population, delta))
            # Summed in double precision, so that batches of any size lead the same way.
            gradient = gradients["gradients"].double().sum(0, keepdim=True)
            velocity = MOMENTUM * velocity + gradient / gradient.abs().mean().clamp_min(TINY)
            ahead = self.ball.steepest(velocity, SPREAD * left).to(run.dtype)
            delta = self.ball.project(delta + FIRST * left * self.ball.radius * ahead)
        return delta

    def restore(self, population: Population, learned: Observed) -> Pixels:
        return learned["perturbation"].to(population.run.device, population.run.dtype)

    def _gradients(self, population: Population, delta: Pixels, rows: Sequence[int]) -> Observed:
        """Return the ``gradients`` of each image's displacement by the perturbation: zero where clipping holds a pixel."""
        pixels = population.pixels(rows)
        moved = population.encoder.domain.clip(pixels + delta)
        gradient = gain_and_gradient(population.encoder, moved, self._displacement(population, rows))[1]
        return {"gradients": gradient.where(moved == pixels + delta, 0)}

    def _gains(self, population: Population, deltas: Sequence[Tensor], rows: Sequence[int]) -> Observed:
        """Return the ``gains``, shape (b, k): the displacement of each image by each perturbation."""
        pixels, displacement = population.pixels(rows), self._displacement(population, rows)
        clip = population.encoder.domain.clip
        gains = [displacement(population.encode(clip(pixels + delta))) for delta in deltas]
        return {"gains": torch.stack(gains, 1)}

    def _displacement(self, population: Population, rows: Sequence[int]) -> ObjectiveFunction:
        clean, divergence = population.codes[list(rows)], population.fitted(differentiable(self.divergence))
        return lambda codes: divergence(codes, clean)


@final
@dataclass(frozen=True)
class Universal(Observation):
    """Embeddings of random images after one perturbation for all of them."""

    perturbation: UniversalPerturbation
    """The perturbation."""
    samples: int
    """Images to attack, chosen at random; 1 or more."""
    name = "universal"
    version = 1

    def fits(self) -> tuple[Fit[Pixels] | Fit[Divergence], ...]:
        return (*whitenings(self.perturbation), self.perturbation)

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        return {"codes": population.encode(self.pixels(population, rows))}

    def pixels(self, population: Population, rows: Sequence[int]) -> Pixels:
        """Images at ``rows`` with the perturbation, each clipped to the range.

        Returns:
            Perturbed images, shape (b, *pixels).
        """
        pixels = population.pixels(rows)
        moved = population.encoder.domain.clip(pixels + population.learned(self.perturbation))
        assert_inside(population.encoder, pixels, moved, self.perturbation.ball)
        return moved


def seen_rows(population: Population, count: int) -> list[int]:
    """Rows that the perturbation is learned from: every second group or image, shuffled.

    Copies of an image stay together.
    """
    units, order = units_of(population), population.random_order.tolist()
    numbers = {unit: number for number, unit in enumerate(dict.fromkeys(units[row] for row in order))}
    return [row for row in order if numbers[units[row]] % 2 == 0][:count]


def seen_and_unseen(
    population: Population, rows: Sequence[int], count: int
) -> tuple[Bool[Tensor, "n"], Bool[Tensor, "n"]]:
    """Masks of the rows that were learned from, and of the rows that share nothing with these.

    A row that is a copy of a learned image, or of its group, is in neither mask.

    Args:
        count: Largest number of rows learned from.

    Returns:
        Two masks of shape (n,).
    """
    units, learned = units_of(population), set(seen_rows(population, count))
    known = {units[row] for row in learned}
    return (
        torch.tensor([row in learned for row in rows], dtype=torch.bool),
        torch.tensor([units[row] not in known for row in rows], dtype=torch.bool),
    )


def units_of(population: Population) -> list[str | int]:
    """Return what each image belongs to: its group, or else itself with its copies."""
    originals, groups = population.first_copies.tolist(), population.images.groups
    return list(originals) if groups is None else [groups[original] for original in originals]


# Universal perturbations: one change for all images, and how much of the harm it carries to images it never saw.
#
# Moosavi-Dezfooli et al. 2017, https://arxiv.org/abs/1610.08401, found single perturbations that most images of a
# classifier cannot stand. They need neither a gradient nor a look at the image when they are used: an attacker who learned
# one once adds it to everything. Departure: it is learned to move codes, where the paper crosses decision boundaries
# one image after the other.

SEEN, UNSEEN = "seen", "unseen"
ONE_FOR_ALL = "one for all images"


@final
@dataclass(frozen=True)
class UniversalRisk(Evaluation):
    """Effect of one perturbation for all images, on images it was learned from and on others."""

    balls: tuple[Ball, ...] = BALLS
    """Perturbation sets."""
    attacks: tuple[Attack, ...] = ATTACKS
    """White-box attacks on each image; the strongest is the reference."""
    divergences: tuple[Divergence, ...] = (L2Distance(),)
    """Distances between embeddings."""
    samples: int = 1000
    """Number of images that the perturbation is added to."""
    seen: int = 500
    """Largest number of images to learn it from."""
    restarts: int = 3
    """Random starts."""
    steps: int = 100
    """Gradient steps per start."""
    batch: int = 32
    """Images per gradient step."""
    sizes = Sizes(
        quick={**SIZES.quick, "seen": 100, "restarts": 1, "steps": 30},
        full={**SIZES.full, "seen": 5000, "steps": 500},
        large={**SIZES.large, "restarts": 1, "steps": 20, "batch": 8},
        small_only=True,
    )
    name = "universal"
    version = 2
    partial = True
    pictured = 0
    uses_bank = True
    needs_gradients = True
    title = "Universal perturbations"
    meaning = (
        "One perturbation for all images needs no knowledge of the image that it is added to. Harm kept says how far it "
        "carries images, as a fraction of how far an attack on each of them does; on images that it was not learned "
        "from it is "
        "what is left to an attacker who learned it elsewhere. Random noise of the same size stands beside it."
    )
    headline = ("harm_kept", "nearest_neighbour_accuracy")

    def observation(self) -> Joint:
        return Joint(self._own_attacks.parts(lambda *case: [self._universal(*case)], noise_last=True))

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        joint, masks = self.observation(), seen_and_unseen(population, rows, self.seen)

        def universal(ball: Ball, divergence: Divergence) -> dict[Further, Tensor]:
            return {(("attack", ONE_FOR_ALL),): joint.of(self._universal(ball, divergence), observed)["codes"]}

        halves = [((("images", name),), mask) for name, mask in zip((SEEN, UNSEEN), masks, strict=True)]
        series, estimates = self._own_attacks.beside(population, rows, joint, observed, universal, halves)
        return findings_of(population, rows, series, estimates, population_warnings(population, self.divergences))

    def illustrate(
        self, population: Population, rows: Sequence[int], observed: Observed, findings: Findings
    ) -> tuple[Picture, ...]:
        domain, cases = population.encoder.domain, self._own_attacks.cases
        ball, divergence = max(cases, key=lambda case: case[0].radius)
        unseen = seen_and_unseen(population, rows, self.seen)[1].nonzero()[:, 0].tolist()
        shown = [rows[place] for place in unseen[:SHOWN]]
        if not shown or len(domain.shape) != 3:
            return ()
        way, clean = self._universal(ball, divergence), population.pixels(shown)
        moved = way.pixels(population, shown)
        learned = population.learned(way.perturbation)
        parts = {"perturbation": change(torch.zeros_like(clean[:1]), learned, domain, ball.radius)[0]}
        for k, row_shown in enumerate(shown):
            name = population.images.ids[row_shown]
            parts |= {name: clean[k], f"{name}, moved": moved[k]}
        picture = row(f"{ONE_FOR_ALL}, shown to images it was not learned from ({ball}, {divergence})", parts, domain)
        return () if picture is None else (picture,)

    @property
    def _own_attacks(self) -> OwnAttacks:
        return OwnAttacks(self.balls, self.attacks, self.divergences, self.samples)

    def _universal(self, ball: Ball, divergence: Divergence) -> Universal:
        learned = UniversalPerturbation(ball, divergence, self.seen, self.restarts, self.steps, self.batch)
        return Universal(learned, self.samples)
