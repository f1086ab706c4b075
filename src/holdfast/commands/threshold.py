"""Where to put the threshold of verification or deduplication: a request to the same pipeline as every measure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.attacks.base import Attack
from holdfast.commands.evaluate import evaluate_one
from holdfast.commands.evaluated_run import EvaluatedRun
from holdfast.commands.inputs import NamedEncoder, NamedImages, ball_of
from holdfast.core.balls import Ball
from holdfast.core.errors import refuse_blanks
from holdfast.core.options import Workers
from holdfast.core.records import Result
from holdfast.core.settings import listed, names_of, number
from holdfast.service.evaluations.threshold import Threshold
from holdfast.transforms.severity import EDITS


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
    limit: int | None = None,
    seed: int = 0,
    arch: str | None = None,
    size: int | None = None,
    trust_remote_code: bool = False,
    device: str = "cpu",
    precision: str = "float32",
    batch_size: int = 256,
    budget: float | None = None,
    workers: Workers = "auto",
    out: str | Path | None = None,
    progress: bool | None = None,
) -> Thresholds:
    """Return at which similarity copies still match and other images do not, as ``holdfast threshold`` does.

    Args:
        encoder: at hand or by reference.
        images: a folder, a reference, Images, or a tensor (n, *pixels) in [0, 1]; exact copies count once. None for stored
            embeddings (``embeddings:FILE``), of which no copies are made: the threshold and its false matches alone.
        rate: the share of pairs of different images that may match, for which a threshold is recommended.
        rates: further rates, of a table.
        edits: what makes everyday copies, separated by commas: edits on a ladder and common corruptions.
        eps: radius of the attacker's linf ball; by default one that some images survive, unless a ball is given.
        ball: any ball, as ``Linf(8 / 255)`` or ``"l2:0.5"``.
        attack: how the attacker searches, as in ``"adaptive:steps=100"``.
        samples: how many images are edited and attacked.
        limit: at most so many images, chosen by ``seed``.
        seed: of every random choice.
        arch: ``package.module:factory``, which builds the module of a checkpoint.
        size: height and width of the inputs of an encoder by reference, instead of its own.
        trust_remote_code: whether a model repository may run its own code.
        device: where torch computes.
        precision: float32, float64, bfloat16 or float16.
        batch_size: at most so many images at a time; changes no result.
        budget: seconds after which no new work begins.
        workers: compute in so many processes of this machine.
        out: folder of the run with its report, for ``holdfast check``; with the same folder an interrupted one continues.
            By default nothing is kept.
        progress: show it on stderr; by default in terminals and notebooks.

    Raises:
        HoldfastError: something that was named does not exist or does not fit, or there are fewer than 8 images.
    """
    refuse_blanks(locals())
    chosen = ball_of(eps, ball)
    run = evaluate_one(
        encoder,
        images,
        only=Threshold.name,
        settings={
            Threshold.name: {
                "rate": rate,
                "rates": [float(each) for each in listed(rates)],
                "edits": names_of(edits, "edits"),
                "attack": attack,
                "samples": samples,
            }
        },
        ball=() if chosen is None else chosen,
        limit=limit,
        seed=seed,
        arch=() if arch is None else arch,
        size=size,
        trust_remote_code=trust_remote_code,
        device=device,
        precision=precision,
        batch_size=batch_size,
        budget=budget,
        workers=workers,
        out=out,
        progress=progress,
    )
    return Thresholds(run, run.results[0], rate)
