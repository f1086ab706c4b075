"""Recommend a similarity threshold for verification or deduplication."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Unpack

from holdfast.attacks.base import Attack
from holdfast.commands.evaluate import evaluate_one
from holdfast.commands.evaluated_run import EvaluatedRun
from holdfast.commands.inputs import ball_of
from holdfast.core.balls import Ball
from holdfast.core.options import LocalOptions, takes
from holdfast.core.records import Result
from holdfast.core.settings import listed, number
from holdfast.run.inputs import NamedEncoder, NamedImages
from holdfast.service.evaluations.threshold import Threshold
from holdfast.transforms.severity import EDITS, edit_names


@dataclass(frozen=True, eq=False)
class Thresholds:
    """What ``threshold`` returns."""

    run: EvaluatedRun
    result: Result
    rate: float

    @property
    def recommended(self) -> float:
        """Return the cosine similarity from which on two images count as one; nan where there are too few images."""
        return self.result.estimate("threshold", rate=number(self.rate)).value


@takes(LocalOptions)
def threshold(
    encoder: NamedEncoder,
    images: NamedImages | None = None,
    *,
    rate: float = Threshold.rate,
    rates: float | Sequence[float] = Threshold.rates,
    edits: str | Sequence[str] = EDITS,
    eps: str | float | None = None,
    ball: str | Ball | None = None,
    attack: str | Attack = "adaptive",
    samples: int = Threshold.samples,
    **options: Unpack[LocalOptions],
) -> Thresholds:
    """Return at which similarity copies still match and other images do not, as ``holdfast threshold`` does.

    Args:
        encoder: in memory or by name.
        images: a folder, a reference, Images, or a tensor (n, *pixels) in [0, 1]; exact copies count once. None for stored
            embeddings (``embeddings:FILE``), of which no copies are made: the threshold and its false matches alone.
        rate: the share of pairs of different images that may match, for which a threshold is recommended.
        rates: further rates, of a table.
        edits: what makes everyday copies, separated by commas: edits on a ladder and common corruptions.
        eps: radius of the attacker's linf ball; by default one that some images survive, unless a ball is given.
        ball: any ball, as ``Linf(8 / 255)`` or ``"l2:0.5"``.
        attack: how the attacker searches, as in ``"adaptive:steps=100"``.
        samples: how many images are edited and attacked.

    Raises:
        HoldfastError: something that was named does not exist or does not fit, or there are fewer than 8 images.
    """
    chosen = ball_of(eps, ball) or ()
    asked = {"rate": rate, "rates": [float(each) for each in listed(rates)], "attack": attack, "samples": samples}
    settings = {Threshold.name: {**asked, "edits": edit_names(edits)}}
    run = evaluate_one(encoder, images, only=Threshold.name, settings=settings, ball=chosen, **options)
    return Thresholds(run, run.results[0], rate)
