"""What ``attack`` and ``certify`` share: a ball, images and an encoder that is fit for them, and what a budget leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.core.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.core.balls import Ball
    from holdfast.core.run_settings import RunSettings
    from holdfast.encoders import Options
    from holdfast.execution.engines.base import Engine
    from holdfast.execution.progress import Shown
    from holdfast.protocol.population import Population


def ball_of(eps: str | None, ball: str | None) -> Ball | None:
    """Return the ball that either flag names, if one does."""
    from holdfast.core.balls import BALLS, Linf
    from holdfast.core.settings import convert, read

    if eps and ball:
        raise HoldfastError("eps and ball contradict each other; write --eps 8/255 as --ball linf:8/255")
    if eps:
        return Linf(convert(eps, float, "eps"))
    return read(ball, BALLS, "ball") if ball else None


def population_of(
    encoder: str, options: Options, images: str, run: RunSettings, limit: int | None = None, neurons: int | None = None
) -> Population:
    """Return the images and the encoder that the flags name; ``limit`` leaves so many images, chosen by the seed.

    Raises:
        HoldfastError: something cannot be loaded, or the encoder has more nonlinear entries than ``neurons``.
    """
    from holdfast import data
    from holdfast.encoders import load
    from holdfast.evaluations.certified.pairs import require_few
    from holdfast.protocol.population import Population

    loaded = load(encoder, options)
    if neurons is not None:
        require_few(loaded, neurons)
    return Population(loaded, data.load(images, loaded.domain, loaded.geometry, limit=limit, seed=run.seed), run)


def require_fit(population: Population, purpose: str, engine: Engine) -> None:
    """Raise unless the encoder can be measured where ``engine`` computes; ``purpose`` says what for, as in ``attacked``."""
    from holdfast.execution.table import unfit

    if problem := unfit(population, engine):
        raise HoldfastError(f"{population.encoder.name} is not fit to be {purpose}: {problem}")


def left_over(shown: Shown, missing: int) -> int:
    """Say how many images a spent budget left over, and return the exit status: 1 if it left any."""
    if missing:
        what = "1 image is" if missing == 1 else f"{missing:,} images are"
        shown.say(f"{what} missing: the budget was spent; run the same command again to continue")
    return 1 if missing else 0
