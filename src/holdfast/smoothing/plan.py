"""Plan of smoothing: what a number of noisy copies can certify, and its cost, before a run.

Also here: settings, sizes, findings and warnings that all evaluations of smoothed encoders share.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from itertools import product
from math import ceil, isfinite, log
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from holdfast.attacks.adaptive import AdaptiveAttack
from holdfast.attacks.base import Attack
from holdfast.core.balls import L2
from holdfast.core.divergences import Cosine, Divergence, L2Distance, Rank, UnitL2
from holdfast.core.errors import HoldfastError, OutOfRange
from holdfast.core.records import Conditions, Curve, Estimate, Question, Series
from holdfast.core.run_settings import Observed
from holdfast.core.settings import check_positive
from holdfast.core.statistics.summaries import Better, summarise
from holdfast.measure.evaluation import Evaluation, Sizes
from holdfast.measure.observation import Joint, line_of
from holdfast.probes.base import Probe
from holdfast.probes.linear import NoiseProbe
from holdfast.probes.neighbours import Knn
from holdfast.smoothing.copies import Stopping, farthest, kept_ranks, needed_draws
from holdfast.smoothing.index import BETA, Smoothing, abstains, deviation, mass, quantile
from holdfast.smoothing.noisy_codes import AttackedCentres, NoisyCodes

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


GRID = 41
"""Radii of a curve."""
Statistic = Literal["mean", "median", "share"]
MULTIPLES = (1, 2, 3)
"""Radii that are decided whether or not they are asked for, in deviations of the noise: those of mean radii and curves."""
CERTAINTY = 0.001
"""The chance of error with which copies decide at most, so that evaluations of different alpha share them."""
LEAST = 6000
"""Copies that are drawn before anything is looked at: center smoothing is tighter the more there are."""


@dataclass(frozen=True)
class SmoothedEvaluation(Evaluation):
    """Evaluation of the smoothed encoder; equal settings share one pass of noisy copies."""

    sigma: float = 0.25
    """Standard deviation of the noise, in pixel units; noisy pixels are not clipped."""
    selection: int = 10_000
    """Noisy copies that choose the centre, the neighbour or the class; fresh copies test the centre."""
    copies: int = 100_000
    """Largest number of noisy copies that certify one image."""
    samples: int = 50
    """Number of certified images."""
    others: int = 1000
    """Number of other images in the index, of the reference set if there is one."""
    divergences: tuple[Divergence, ...] = (L2Distance(), Cosine())
    """Distances between embeddings; each must be a distance of points (`l2`, `unit_l2`, `cosine`, `whitened`,
    `rank`)."""
    probes: tuple[Probe, ...] = (NoiseProbe(), Knn())
    """Probes to certify, if there are labels and a reference set; `noise` is trained on noisy copies."""
    radii: tuple[float, ...] = (0.25,)
    """ε in ℓ2 at which certificates are reported; each costs an attack, but no copies."""
    alpha: float = 0.001
    """Probability that one certificate is wrong."""
    partial = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "others")
        check_noise(self.name, self.smoothing)
        check_alpha(self.name, self.alpha)
        check_radii(self.name, self.radii)

    @property
    def smoothing(self) -> Smoothing:
        """The settings that decide what the noisy copies are and what is seen of them."""
        return Smoothing(self.sigma, self.selection, self.copies, self.samples, self.others)

    @property
    def noisy_codes(self) -> NoisyCodes:
        """The one pass that every evaluation with these settings is concluded from."""
        return NoisyCodes(self.smoothing, self.divergences, self.probes, self.stopping)

    @property
    @abstractmethod
    def least_copies(self) -> int:
        """The fewest copies that certify, before anything is looked at."""

    @property
    def stopping(self) -> Stopping:
        """When enough copies are drawn: as soon as ``radii`` and one, two and three ``sigma`` are decided."""
        radii = {*self.radii, *(multiple * self.sigma for multiple in MULTIPLES)}
        return Stopping(tuple(sorted(radii)), min(self.alpha, CERTAINTY), self.least_copies)

    @property
    def looks(self) -> int:
        """At how many numbers of copies one may stop."""
        return len(self.stopping.looks(self.copies))

    @property
    def alpha_of_look(self) -> float:
        """The chance of error of a certificate at one number of copies; those of all looks add up to ``alpha``."""
        return self.alpha / self.looks

    @property
    def farthest(self) -> float:
        """The largest radius that votes can certify."""
        return farthest(self.copies, self.sigma, self.alpha_of_look)

    def certified_number(
        self, series: Series, statistic: Statistic, better: Better = "higher", quantity: str | None = None
    ) -> Estimate:
        """Return the summary of certificates with the confidence in them."""
        return sure(summarise(series, statistic, better, quantity), self.alpha, len(series.values))

    def survival_curve(self, quantity: str, y_label: str, radii: Float[Tensor, "b"], **conditions: str) -> Curve:
        """Return the fraction of certified ``radii`` beyond each radius."""
        grid = torch.linspace(0, self.farthest, GRID, dtype=torch.float64)
        shares, case = (radii.cpu()[:, None] > grid).double().mean(0), {"noise": f"{self.sigma:g}", **conditions}
        return line_of(quantity, case, "l2 radius", y_label, grid, shares)

    def conditions(self, radius: float, divergence: Divergence, **more: str) -> Conditions:
        """Return the conditions of a case in series and estimates."""
        return {"ball": str(L2(radius)), "noise": f"{self.sigma:g}", "divergence": str(divergence), **more}


@dataclass(frozen=True)
class CentredEvaluation(SmoothedEvaluation):
    """Certificates of noisy copies by their centres too, and attacks on these centres."""

    slack: float = 0.05
    """Largest distance of the ball's mass from one half."""
    attack: Attack = AdaptiveAttack(restarts=1)
    """Attack on the smoothed embedding."""

    @property
    def least_copies(self) -> int:
        return max(LEAST, *(copies_for_centres(radius, self.sigma, self.slack, self.alpha) for radius in self.radii))

    def observation(self) -> Joint:
        return Joint((self.noisy_codes, *(self._attacked(radius, divergence) for radius, divergence in self._cases())))

    def _certified_distance(self, radius: float, seen: Observed) -> Float[Tensor, "b"]:
        kept, held, draws = seen["distances"], seen["held"], seen["copies"]
        return certified_distance(kept, held, radius, self.smoothing, self.slack, self.alpha, draws, self.looks)

    def _attacked(self, radius: float, divergence: Divergence) -> AttackedCentres:
        return AttackedCentres(self.smoothing, radius, divergence, self.attack)

    def _cases(self) -> list[tuple[float, Divergence]]:
        return list(product(self.radii, self.divergences))


ABSTAINED = "center smoothing abstained: the ball may hold less than half of the noisy embeddings"

SIMILAR = "cosine similarity of the smoothed embeddings of an image before and after the worst change of this l2 size"
WITH_NOISE = Question(
    place=85,
    text="What is certified once noise is added?",
    quantities=("certified_cosine_similarity",),
    meaning="cosine similarity that smoothed embeddings keep after any change of this size",
    select="best",
)
"""Center smoothing and feature-space smoothing both answer it; the tighter one leads."""


def certified_distance(
    distances: Float[Tensor, "b g"],
    share: Float[Tensor, "b"],
    radius: float,
    smoothing: Smoothing,
    slack: float,
    alpha: float,
    draws: Int[Tensor, "b"] | None = None,
    looks: int = 1,
) -> Float[Tensor, "b"]:
    """Return ``3 R``: how far a change of l2 size ``radius`` moves the centre at most; nan where center smoothing abstains.

    ``alpha`` is shared out evenly: half for what is found at the changed image, half for ``R``. ``distances`` are the kept
    order statistics of ``draws`` copies, by default all of them, after one of this number of ``looks``.
    """
    draws = torch.full(share.shape, smoothing.copies) if draws is None else draws
    farthest = torch.full_like(share, torch.nan)
    for number in draws.unique().tolist():
        level = quantile(radius, smoothing.sigma, slack, number, alpha / 2 / looks)
        if level <= 1:
            rank = torch.searchsorted(kept_ranks(number, smoothing.copies), ceil(level * number))
            rows = draws == number
            farthest[rows] = (1 + BETA) * distances[rows, int(rank)].double()
    abstained = abstains(share, smoothing.selection, slack, alpha / 2) | ~farthest.isfinite()
    return farthest.masked_fill(abstained, torch.nan)


def of_distance(divergence: Divergence, distance: Float[Tensor, "b"]) -> Float[Tensor, "b"]:
    """Return the divergence that belongs to a distance of embedded vectors; on a sphere none exceeds its diameter."""
    on_sphere = isinstance(divergence, (Cosine, UnitL2, Rank))
    return divergence.of_distance(distance.clamp_max(2.0) if on_sphere else distance)


def sure(estimate: Estimate, alpha: float, images: int) -> Estimate:
    """Return ``estimate`` whose method also says with what confidence the certificates it summarises hold.

    All of them together hold with ``1 - images * alpha`` at least, however they depend on each other (Bonferroni).
    """
    together = max(0.0, 1 - images * alpha)
    confidence = (
        f"each certificate holds with confidence {1 - alpha:.6g}, all {images} together with at least {together:.6g}"
    )
    return estimate.model_copy(update={"method": f"{estimate.method}; {confidence}"})


def contradictions(refuted: int, images: int, alpha: float, what: str, where: str) -> list[str]:
    """Warning of certificates that attacks refuted, where these are more than ``alpha`` allows."""
    from scipy.stats import binom

    if refuted <= int(binom.ppf(0.999, images, alpha)):
        return []
    return [
        f"CONTRADICTION: attacks {what} than certified at {refuted} of {images} images ({where}), more than alpha = "
        f"{alpha:g} allows; report this as a defect."
    ]


SIZES = Sizes(
    quick={"samples": 12, "selection": 3000, "copies": 6000, "others": 300, "divergences": ["l2"]},
    full={"samples": 500},
    large={"samples": 4, "selection": 200, "copies": 1000, "others": 30, "divergences": ["l2"]},
    heavy={"selection": 140, "copies": 400, "others": 12, "alpha": 0.01},
)
CENTRES_OF_LARGE = {**SIZES.large, "slack": 0.2, "attack": "adaptive:restarts=1,steps=5"}
"""Reduced settings of quick for large encoders, where centres are computed and attacked."""
CENTRES_OF_HEAVY = {**SIZES.heavy, "slack": 0.15, "attack": "u-fgsm"}
