"""The plain questions of the scorecard, and the numbers that answer them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Question:
    """A plain question, and the numbers that answer it."""

    asked: str
    quantities: tuple[str, ...]
    """The first of them that was measured; for checks all of them."""
    meaning: str
    """What the number is."""
    evaluation: str = ""
    """Whose number it is; empty: that of all evaluations with such a quantity, together."""
    select: Literal["worst", "first"] = "worst"
    """Which of the conditions is shown: the one in which the encoders fare worst, or the first one recorded."""
    passed: Literal["held", "no violation found", ""] = ""
    """For checks, which an encoder passes or fails by itself: what is said of one that passed."""


QUESTIONS = (
    Question(
        "Can an attacker make it mistake images?",
        ("nearest_neighbour_accuracy",),
        "attacked images still closest to their original",
        "breakaway",
    ),
    Question(
        "Can one image be passed off as another?",
        ("impersonation_rate",),
        "images made the nearest of a chosen other one",
        "impersonation",
    ),
    Question(
        "Can two images be made to collide?",
        ("overlap_risk",),
        "pairs that no classifier on top can tell apart",
        "overlap",
    ),
    Question(
        "How far can an attacker move it?",
        ("universal_quantile",),
        "pairs of other images that lie no farther apart",
        "displacement",
    ),
    Question(
        "Does it survive everyday edits?",
        ("edits_survived",),
        "edited images still closest to their original",
        "common-perturbations",
        "first",
    ),
    Question(
        "Does it survive noise, blur, weather and compression?",
        ("corruptions_survived",),
        "corrupted images still closest to their original",
        "common-corruptions",
        "first",
    ),
    Question(
        "What is proved?",
        ("average_certified_radius",),
        "change up to which no image is mistaken for another",
        "certified-radius",
        "first",
    ),
    Question(
        "Do the proofs withstand attack?",
        ("contradictions",),
        "certificates that an attack entered",
        passed="held",
    ),
    Question(
        "Is its space healthy?",
        ("rankme",),
        "dimensions that its codes fill",
        "geometry",
    ),
    Question(
        "What do probes keep?",
        ("robust_accuracy",),
        "images that a simple classifier on it gets right under attack",
        "robust-accuracy",
    ),
    Question(
        "How badly does it stretch neighbourhoods?",
        ("spade_score",),
        "largest stretch between neighbours in pixels",
        "spade",
        "first",
    ),
    Question(
        "What does synthetic data say?",
        ("mean_synbench_score_extrapolated", "mean_synbench_score"),  # the former is compared where there are both
        "share kept of what two classes of noise allow",
        "synbench",
        "first",
    ),
    Question(
        "Can the gradients be trusted?",
        ("zero_gradient_share", "score_only_wins", "noise_beats_gradient", "wider_ball_moves_less"),
        "images that fail the worst check",
        "masking",
        passed="no violation found",
    ),
)
"""In the order of the scorecard where the study says nothing; a new evaluation adds a line."""
