"""Gradient masking: checks that gradient attacks can be trusted. An encoder that hides its gradients only looks robust.

Athalye et al. 2018 (https://arxiv.org/abs/1802.00420) and Carlini et al. 2019 (https://arxiv.org/abs/1902.06705). Gradients
must not vanish. A search without gradients must not beat one with them. A larger ball must not move embeddings less. Random
noise must not move them much farther than the gradient predicts to first order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.attacks.attacked_codes import (
    ATTACKS,
    BALLS,
    SIZES,
    UNDEFINED,
    Case,
    NoiseDisplacements,
    Untargeted,
    displacement_series,
    strongest,
)
from holdfast.attacks.base import Attack
from holdfast.attacks.black_box import SquareAttack
from holdfast.core.balls import Ball
from holdfast.core.divergences import Divergence, L2Distance
from holdfast.core.records import Claim, Estimate, Findings, Question, Series, Verdict
from holdfast.core.run_settings import Observed
from holdfast.core.statistics.summaries import series_of, summarise
from holdfast.measure.evaluation import Evaluation, Sizes
from holdfast.measure.observation import Joint, findings_of, population_warnings
from holdfast.measure.population import Population

TOLERANCE = 0.05
"""Share by which one search must beat another before it counts: less is the luck of the random start."""


@final
@dataclass(frozen=True)
class Masking(Evaluation):
    """Checks for gradient masking: an encoder that hides its gradients only looks robust.

    Papers: Athalye et al. 2018, https://arxiv.org/abs/1802.00420; Carlini et al. 2019,
    https://arxiv.org/abs/1902.06705.
    """

    balls: tuple[Ball, ...] = BALLS
    """Perturbation sets; `wider_ball_moves_less` needs two radii of one norm."""
    attacks: tuple[Attack, ...] = ATTACKS
    """White-box attacks; the strongest is the reference."""
    blind: Attack = SquareAttack(queries=500)
    """Black-box attack."""
    divergence: Divergence = L2Distance()
    """Distance between embeddings."""
    samples: int = 100
    """Number of attacked images."""
    # In quick, images and attacks are those of displacement and query-only, so that they are attacked once.
    sizes = Sizes(
        quick={"samples": SIZES.quick["samples"], "blind": "square:queries=200"},
        full={"samples": 1000},
        large={"attacks": SIZES.large["attacks"], "blind": "square:queries=100"},
        heavy={**SIZES.heavy, "balls": SIZES.large["balls"], "blind": "square:queries=30"},
    )
    name = "masking"
    version = 6
    partial = True
    needs_gradients = True
    robustness = False  # it is about the attacks
    title = "Gradient masking"
    meaning = (
        "Gradient attacks only mean something where gradients lead somewhere. Where one of these checks fails, read the "
        "attack numbers of this encoder as too kind, and trust score-only attacks and certificates instead."
    )
    headline = ("zero_gradient_share", "score_only_wins")
    words = (("score_only_wins", "wins of the score-only attack"),)
    questions = (
        Question(
            place=130,
            text="Can the gradients be trusted?",
            quantities=("zero_gradient_share", "score_only_wins", "noise_beats_gradient", "wider_ball_moves_less"),
            meaning="images that fail the worst check",
            check=True,
        ),
    )

    def observation(self) -> Joint:
        return Joint(tuple(part(ball) for part in (self._sighted, self._blind, self._noise) for ball in self.balls))

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        flags, moves = list[Series](), list[Series]()
        joint, divergence, clean = self.observation(), population.fitted(self.divergence), population.codes[list(rows)]

        def moved_by(part: Untargeted, attack: Attack) -> Float[Tensor, "n"]:
            return divergence(part.of_attack(attack, joint.of(part, observed))["codes"].to(clean), clean)

        by_ball = {ball: moved_by(self._sighted(ball), strongest(self.attacks)) for ball in self.balls}
        for ball, sighted in by_ball.items():
            values, blind = joint.of(self._noise(ball), observed), moved_by(self._blind(ball), self.blind)
            noise, slope = values["noise"], values["slope"]
            case = Case(ball, strongest(self.attacks), self.divergence)
            for search, moved in (("sighted", sighted), ("blind", blind), ("noise", noise)):
                moves.append(displacement_series(case, moved, quantity=f"{search}_displacement"))
            # A gradient that is not finite where the displacement is leads nowhere either.
            vanished = (slope == 0) | ~slope.isfinite()
            flags += [
                self._flag("zero_gradient_share", case, vanished, noise),
                self._flag("score_only_wins", case, blind > sighted * (1 + TOLERANCE), blind + sighted),
                # For a linear encoder the slope is at least the noise's displacement, whatever the direction.
                self._flag("noise_beats_gradient", case, noise > 2 * slope, noise),
            ]
            narrower = [other for other in self.balls if other.name == ball.name and other.radius < ball.radius]
            if narrower:  # one number for each ball, however many lie inside it
                before = torch.stack([by_ball[other] for other in narrower]).amax(0)
                fell = sighted < before * (1 - TOLERANCE)
                flags.append(self._flag("wider_ball_moves_less", case, fell, sighted + before))
        estimates = [summarise(series, "share", "lower") for series in flags]
        warnings = (*population_warnings(population, [self.divergence]), *masking_warnings(estimates))
        verdicts = [verdict(quantity, estimates) for quantity in QUESTIONS]
        return findings_of(population, rows, (*flags, *moves), estimates, warnings, verdicts=verdicts)

    def _sighted(self, ball: Ball) -> Untargeted:
        return Untargeted(ball, self.attacks, self.divergence, self.samples)

    def _blind(self, ball: Ball) -> Untargeted:
        return Untargeted(ball, (self.blind,), self.divergence, self.samples)

    def _noise(self, ball: Ball) -> NoiseDisplacements:
        return NoiseDisplacements(ball, self.divergence, self.samples)

    def _flag(self, quantity: str, case: Case, values: Tensor, of: Tensor) -> Series:
        """Return a yes or no per image, undefined where the displacements ``of`` which it speaks are."""
        defined, of_all = values.double().masked_fill(~of.isfinite(), torch.nan), "fraction of images"
        return series_of(quantity, case.conditions, defined, "yes or no", Claim.ESTIMATE, of_all, UNDEFINED)


QUESTIONS = {
    "zero_gradient_share": "Do gradients reach the images?",
    "score_only_wins": "Do attacks with gradients find at least what attacks without them find?",
    "noise_beats_gradient": "Does the gradient promise at least half the movement that random noise achieves?",
    "wider_ball_moves_less": "Do wider balls allow larger displacements?",
}
ALARMING = 0.05
"""Share of images above which a failed check becomes a warning beside every number, if the whole interval is above it."""


def verdict(quantity: str, estimates: Sequence[Estimate]) -> Verdict:
    """Verdict on one check of the gradients, over all balls.

    A violation falsifies. No violation on the attacked images is no proof.

    Args:
        quantity: Check whose violations are counted.
    """
    matching = [estimate for estimate in estimates if estimate.quantity == quantity and estimate.n]
    if not matching:
        reason = "not measured: it takes two radii of one norm"
        return Verdict(question=QUESTIONS[quantity], status="unknown", reason=reason)
    worst = max(matching, key=lambda estimate: (estimate.low, estimate.value))
    violation = f"violated by {worst.value:.1%} of {worst.n} images in the {worst.conditions['ball']} ball"
    if worst.value == 0:
        reason = f"0 of {worst.n:,} images in each ball"
        return Verdict(question=QUESTIONS[quantity], status="no violation found", reason=reason)
    if worst.low <= ALARMING:
        violation = f"{violation}: few enough for chance"
    status: Literal["refuted", "unknown"] = "refuted" if worst.low > ALARMING else "unknown"
    return Verdict(question=QUESTIONS[quantity], status=status, reason=violation)


def masking_warnings(estimates: Sequence[Estimate]) -> list[str]:
    """Return the warnings that failed checks deserve."""
    return [
        f"GRADIENT MASKING SUSPECTED: {QUESTIONS[estimate.quantity]} Not for {estimate.value:.1%} of {estimate.n} images "
        f"in the {estimate.conditions['ball']} ball; attack numbers of this encoder may be too kind."
        for estimate in estimates
        if estimate.low > ALARMING
    ]
