"""Plan of smoothing: what a number of noisy copies can certify, and its cost, before a run."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, isfinite, log

from holdfast.core.errors import HoldfastError, OutOfRange
from holdfast.smoothing.copies import Stopping, farthest, needed_draws
from holdfast.smoothing.index import Smoothing, deviation, mass, quantile

MOST_LOOKS = 16
"""More are never taken: each doubles the copies."""
SMALLEST = 1e-6


@dataclass(frozen=True)
class Plan:
    """Expected results and cost of ``Smoothing`` with these settings."""

    smoothing: Smoothing
    slack: float
    alpha: float
    stopping: Stopping = Stopping()

    @property
    def abstaining(self) -> float:
        """Approximate probability that center smoothing abstains at an image.

        The ball reaches from the centre to half of the samples that chose it. Its mass is that below a sample median, which
        follows a beta law, so the count of fresh samples in it follows a beta-binomial law. In one or two dimensions many
        samples compete for the centre, the smallest radius holds less, and the probability is larger.
        """
        from scipy.stats import betabinom

        draws = self.smoothing.selection
        least, middle = 0.5 + deviation(self.alpha / 4, draws) - self.slack, ceil(draws / 2)
        return float(betabinom.cdf(ceil(least * draws) - 1, draws, middle, draws + 1 - middle))

    @property
    def widest(self) -> float:
        """The largest radius that center smoothing can certify; 0 if none."""
        from scipy.special import ndtri

        left = 1 - deviation(self.alpha / 2 / self.looks, self.smoothing.copies)
        return max(0.0, self.smoothing.sigma * float(ndtri(left) - ndtri(0.5 + self.slack))) if left > 0.5 else 0.0

    @property
    def farthest(self) -> float:
        """The largest radius that a vote can certify: when all copies agree."""
        return farthest(self.smoothing.copies, self.smoothing.sigma, self.alpha / self.looks)

    @property
    def looks(self) -> int:
        """At how many numbers of copies one may stop."""
        return len(self.stopping.looks(self.smoothing.copies))

    @property
    def fewest(self) -> int:
        """Number of copies of an image to certify it, if they agree."""
        return self.stopping.fewest(self.smoothing.copies, self.smoothing.sigma)

    @property
    def ends_early(self) -> bool:
        """Whether fewer copies than all may be enough."""
        return self.fewest < self.smoothing.copies

    @property
    def drawn(self) -> str:
        """Number of noisy copies per image."""
        early = 2 * self.smoothing.selection + self.fewest
        most = f"{self.smoothing.forward_passes:,} noisy copies of each image"
        return f"up to {most}, {early:,} where they agree" if self.ends_early else most

    def __str__(self) -> str:
        return (
            f"{self.drawn}, {self.smoothing.forward_passes * self.smoothing.samples:,} in all at most; center smoothing "
            f"can certify l2 radii up to {self.widest:.3g} and will abstain on about {self.abstaining:.1%} of the images; "
            f"votes can certify radii up to {self.farthest:.3g}"
        )


def check_noise(evaluation: str, smoothing: Smoothing) -> None:
    """Raise unless there is noise to smooth with.

    Raises:
        HoldfastError: ``sigma`` is not a positive number.
    """
    if not (isfinite(smoothing.sigma) and smoothing.sigma > 0):
        raise OutOfRange(f"{evaluation}.sigma", smoothing.sigma, "positive", fix="use 0.25, as the papers do")
    for name in ("selection", "copies"):
        if vars(smoothing)[name] < 1:
            raise OutOfRange(f"{evaluation}.{name}", vars(smoothing)[name], "at least 1")


def check_alpha(evaluation: str, alpha: float) -> None:
    """Raise unless ``alpha`` is a chance of error.

    Raises:
        HoldfastError: it is not.
    """
    if not 0 < alpha < 0.5:
        raise OutOfRange(f"{evaluation}.alpha", alpha, "a probability in (0, 0.5)")


def check_radii(evaluation: str, radii: tuple[float, ...]) -> None:
    """Raise unless all ``radii`` are positive.

    Raises:
        HoldfastError: one is not.
    """
    for radius in radii:
        if not (isfinite(radius) and radius > 0):
            raise OutOfRange(f"{evaluation}.radii", radius, "positive l2 radii in pixel units")


def check_slack(evaluation: str, slack: float) -> None:
    """Raise unless ``slack`` can be added to a half.

    Raises:
        HoldfastError: it cannot.
    """
    if not 0 < slack < 0.5:
        raise OutOfRange(f"{evaluation}.slack", slack, "in (0, 0.5)", fix="use 0.05, as the paper does")


def check_centres(
    evaluation: str, smoothing: Smoothing, radii: tuple[float, ...], slack: float, alpha: float, looks: int = 1
) -> None:
    """Raise if center smoothing would abstain on every image or could certify none at some of the ``radii``.

    Raises:
        HoldfastError: there are too few copies; the message has the needed number.
    """
    check_slack(evaluation, slack)
    needed = ceil(log(4 / alpha) / (2 * slack**2))
    if smoothing.selection < needed:
        raise HoldfastError(
            f"with {evaluation}.selection={smoothing.selection} center smoothing abstains on every image: slack={slack} "
            f"at alpha={alpha} needs at least {needed}; set {evaluation}.selection={3 * needed} or a larger slack"
        )
    for radius in radii:
        if quantile(radius, smoothing.sigma, slack, smoothing.copies, alpha / 2 / looks) > 1:
            left = 1 - mass(radius, smoothing.sigma, slack)
            needed = ceil(log(2 * looks / alpha) / (2 * left**2)) if left > 1e-9 else 0
            advice = f"at least {needed}" if needed else f"a larger {evaluation}.sigma"
            raise HoldfastError(
                f"{evaluation}.copies={smoothing.copies} can certify no image at radius {radius} with sigma="
                f"{smoothing.sigma}: it takes {advice}; or ask for radii up to "
                f"{Plan(smoothing, slack, alpha).widest:.3g}"
            )


def copies_for_centres(radius: float, sigma: float, slack: float, alpha: float) -> int:
    """Return the number of copies for which the standard deviation is half of the room above the mass at ``radius``.

    Example:
        >>> copies_for_centres(0.25, 0.25, 0.05, 0.01)
        953
    """
    left = max(1 - mass(radius, sigma, slack), SMALLEST)
    return ceil(log(2 * MOST_LOOKS / alpha) / (2 * (left / 2) ** 2))


def check_votes(evaluation: str, smoothing: Smoothing, radii: tuple[float, ...], alpha: float) -> None:
    """Raise if no vote could certify an image at some of the ``radii``, even if all copies agreed.

    Raises:
        HoldfastError: there are too few copies; the message has the needed number.
    """
    for radius in radii:
        if smoothing.copies < (needed := needed_draws(radius, smoothing.sigma, alpha)):
            raise HoldfastError(
                f"{evaluation}.copies={smoothing.copies} can certify no image at radius {radius} with sigma="
                f"{smoothing.sigma}, even if all copies agree: it takes at least {needed}; or ask for radii up to "
                f"{farthest(smoothing.copies, smoothing.sigma, alpha):.3g}"
            )
