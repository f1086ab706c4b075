"""The index that noisy copies are matched with, and the mathematics of center smoothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, inf, log, sqrt
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from holdfast.core.divergences import Divergence
from holdfast.core.encoder import Codes
from holdfast.core.errors import HoldfastError
from holdfast.core.run_settings import Observed
from holdfast.measure.observation import SharedSettings
from holdfast.measure.population import Fit, Population

COPIES = 16
"""Number of noisy copies behind an image's index entry, their mean embedding."""


@final
@dataclass(frozen=True)
class Smoothing(SharedSettings):
    """Settings that all smoothing certificates share: noise, copies and images."""

    sigma: float
    """Standard deviation of the noise in pixel units, above 0."""
    selection: int
    """Noisy copies per image that choose the answer, 1 or more."""
    copies: int
    """Largest number of noisy copies per image that certify."""
    samples: int
    """Images to certify, chosen at random."""
    others: int
    """Other images that each image is compared with, 1 or more."""

    @property
    def index(self) -> NoisyIndex:
        """What noisy copies are looked up in."""
        return NoisyIndex(self.sigma, self.samples, self.others)

    @property
    def forward_passes(self) -> int:
        """Forward passes per image: its noisy copies."""
        return 2 * self.selection + self.copies


@final
@dataclass(frozen=True)
class NoisyIndex(Fit[Observed]):
    """Index that noisy copies are looked up in: mean noisy embedding of each image.

    ``codes`` of the ``samples`` images that are looked at and of those that they are compared with, by their places in
    ``shuffled``, and ``bank`` of the images of the bank that they are compared with instead, if there is one.

    Certificates hold for any index, also for one of clean embeddings. But if noise moves all embeddings in one direction (as
    in encoders trained without noise), noisy copies are nearer to each other than to any clean embedding.
    """

    sigma: float
    """Standard deviation of the noise in pixel units, above 0."""
    samples: int
    """Images to certify, chosen at random."""
    others: int
    """Other images that each image is compared with, 1 or more."""
    name = "noisy-index"
    version = 1
    uses_bank = True
    uses_groups = True

    def _rows(self, population: Population) -> list[int]:
        """Return the images that get an entry, as they come in ``shuffled``: those looked at, and the others of each."""
        others = 0 if population.bank_images else self.others
        if others and population.groups is not None:  # those of the own group are passed over
            others += len(population.images) - 1 - population.fewest_others
        return population.random_order[: self.samples + others].tolist()

    def forward_passes(self, population: Population) -> int:
        bank = min(self.others, len(population.bank_images)) if population.bank_images else 0
        return COPIES * (len(self._rows(population)) + bank)

    def learn(self, population: Population) -> Observed:
        learned = {"codes": self._entries(population, self._rows(population), "index")}
        if population.bank_images:
            learned["bank"] = self._entries(population.bank, population.bank.choose(self.others), "bank")
        return learned

    def restore(self, population: Population, learned: Observed) -> Observed:
        return {name: codes.to(population.run.device) for name, codes in learned.items()}

    def _entries(self, population: Population, rows: Sequence[int], purpose: str) -> Codes:
        """Return the mean embeddings of noisy copies of the images at ``rows``."""
        ids, run = population.images.ids, population.run

        def work(some: Sequence[int]) -> Observed:
            pixels, noise = population.pixels(some), run.noise([ids[row] for row in some]).fork(purpose)
            codes = torch.stack(
                [
                    population.encode(pixels + self.sigma * noise.fork(copy).gaussian(pixels.shape[1:], pixels.dtype))
                    for copy in range(COPIES)
                ]
            )
            return {"codes": codes.mean(0)}

        return run.batches(rows, work)["codes"]


@dataclass(frozen=True)
class Index:
    """Entries that noisy copies of an image are compared with: its own first, then others."""

    entries: Float[Tensor, "m1 d"]
    """Relative to its own."""
    origin: Float[Tensor, "d"]
    half: Float[Tensor, "m1"]
    """Half the squared length of each entry; infinite for copies of the image itself, which are no one's neighbour."""

    @classmethod
    def of(cls, population: Population, row: int, embed: Callable[[Codes], Codes], smoothing: Smoothing) -> Index:
        """Index of the image at ``row``.

        Args:
            embed: Function from embeddings to points.
            smoothing: Settings of the noise and of the copies.
        """
        learned = population.learned(smoothing.index)
        codes, places = learned["codes"], population.order_of
        entry = codes[places[[row]]]
        others = learned["bank"] if "bank" in learned else codes[places[others_of(population, row, smoothing.others)]]
        entries = embed(torch.cat([entry, others]).to(population.codes.dtype))
        origin, entries = entries[0], entries - entries[0]
        half = (entries.square().sum(1) / 2).nan_to_num(nan=torch.inf)
        half[1:].masked_fill_(~told_apart(population, row, smoothing.others), torch.inf)
        return cls(torch.nan_to_num(entries), origin, half)

    def levels(self, points: Float[Tensor, "b d"]) -> Float[Tensor, "b m1"]:
        """Values that order the entries by distance from each point, nan if it is not finite.

        The value is half the squared distance, minus the same number for all entries.
        """
        return torch.addmm(self.half, points - self.origin, self.entries.T, alpha=-1)

    def nearer(self, points: Float[Tensor, "b d"]) -> Bool[Tensor, "b m"]:
        """Return whether each point is nearer to the image's own entry than to each other entry."""
        levels = self.levels(points)
        return levels[:, 1:] > levels[:, :1]

    def neighbours(self, points: Float[Tensor, "b d"]) -> Int[Tensor, "b"]:
        """Nearest other entry of each point; 0 if there is none or a tie."""
        levels = self.levels(points)
        levels[:, 0] = torch.inf
        least, entry = levels.min(1)
        alone = (levels == least[:, None]).sum(1, dtype=torch.int32) == 1
        return entry.where(alone & least.isfinite(), 0)


def embedding(population: Population, divergence: Divergence) -> Callable[[Codes], Codes]:
    """Function from embeddings to points whose Euclidean distance grows with a divergence.

    Raises:
        HoldfastError: The divergence has no such points.
    """
    fitted = population.fitted(divergence)

    def embed(codes: Codes) -> Codes:
        points = fitted.embed(codes)
        if points is None:
            raise HoldfastError(
                f"smoothing certifies distances that obey the triangle inequality, got the divergence {divergence}; "
                "use l2, cosine, unit_l2, whitened or rank"
            )
        return points

    return embed


def others_of(population: Population, row: int, count: int) -> list[int]:
    """Other images to compare an image with; none if there is only one image.

    Args:
        count: Largest number of other images.
    """
    return population.random_others([row], count)[0].tolist() if len(population.images) > 1 else []


def told_apart(population: Population, row: int, count: int) -> Bool[Tensor, "m"]:
    """Mask of the other images that are no copies of an image and not of its group.

    Args:
        count: Largest number of other images.
    """
    device = population.run.device
    if population.bank_images:
        kin = population.kin([row])
        if kin is not None:
            return (kin.theirs[population.bank.choose(count)] != kin.mine).to(device)
        return torch.ones(min(count, len(population.bank_images)), dtype=torch.bool, device=device)
    originals = population.first_copies
    return (originals[others_of(population, row, count)] != originals[row]).to(device)


# The mathematics of center smoothing (Kumar and Goldstein 2021, https://arxiv.org/abs/2102.09701).
#
# The smoothed encoder ``F(x)`` is the centre of a small ball that holds half the mass of ``f(x + noise)``, noise
# being normal with deviation ``sigma`` in every pixel. Let ``p = Phi(Phi^-1(1/2 + slack) + eps / sigma)``. If the
# ball of radius ``R`` around ``F(x)`` holds a mass of at least ``p``, then for every ``x'`` within ``eps`` of ``x``
# in l2 it holds at least ``1/2 + slack`` of the codes of ``x' + noise`` (Neyman and Pearson). So it meets the ball
# around ``F(x')``, which holds ``1/2 - slack`` of them; and that ball is at most ``beta R`` wide, being at most
# ``beta`` times as wide as the smallest one. Hence ``d(F(x), F(x')) <= (1 + beta) R``, for any metric ``d``. Here
# ``beta = 2``, since the centre is one of the samples.

BETA = 2.0
CANDIDATES = 64
"""Number of samples near the mean that are tried first; their small medians exclude most others."""
TILE = 2**21
"""Entries of one tile of products: 8 MB in float32, which stays near the processor."""


@dataclass(frozen=True)
class Centre:
    """The sample whose median distance to all samples is least, and that distance."""

    index: int
    radius: float
    """Infinite where half of the samples are not finite."""


def central_sample(samples: Float[Tensor, "n d"]) -> Centre:
    """Sample with the smallest median distance to all samples.

    One blocked matrix product in float32 counts how many others lie within the least distance known, up to rounding; only
    samples with enough of them are looked at in float64. Samples that are not finite are infinitely far from all others.

    The ball around it holds half of all samples, and is at most twice the smallest such ball.

    Example:
        >>> central_sample(torch.tensor([[0.0], [1.0], [1.5], [9.0]]))
        Centre(index=1, radius=0.5)
    """
    majority = ceil(len(samples) / 2)
    rows = samples.isfinite().all(1).nonzero()[:, 0]
    if len(rows) < majority:
        return Centre(0, inf)
    points = samples[rows].double()
    points = points - points.mean(0)
    order = torch.linalg.vector_norm(points, dim=1).argsort()[:CANDIDATES]
    best = _least(points, order, majority)
    if best[0] > 0:
        best = min(best, _least(points, _not_ruled_out(points, best[0], majority), majority))
    return Centre(int(rows[best[1]]), best[0])


def _least(points: Float[Tensor, "n d"], candidates: Tensor, majority: int) -> tuple[float, int]:
    """Return the least of the candidates' distances to their ``majority``-th nearest point, and whose it is."""
    best = (inf, 0)
    for some in candidates.split(CANDIDATES):
        # Differences before squares: products would lose digits, and near ties the centre would depend on them.
        distances = torch.cdist(points[some], points, compute_mode="donot_use_mm_for_euclid_dist")
        medians = distances.kthvalue(majority, dim=1).values.tolist()
        best = min(best, *zip(medians, some.tolist(), strict=True))
    return best


def _not_ruled_out(points: Float[Tensor, "n d"], within: float, majority: int) -> Tensor:
    """Return the points that may have ``majority`` points at a distance of at most ``within``, as float32 can tell."""
    unit = float(points.abs().max())
    small = (points / unit).float()
    half = small.square().sum(1) / 2
    reach = 8 * (points.shape[1] + 8) * torch.finfo(torch.float32).eps * float(half.max())
    level = (within / unit) ** 2 / 2 + reach
    counts = torch.zeros(len(points), dtype=torch.int32, device=points.device)
    height = max(1, TILE // len(points))
    for top in range(0, len(points), height):
        # A pair of points is looked at once: it counts for both. The block meets itself and all that follow.
        block, rest = small[top : top + height], small[top:]
        near = torch.addmm(half[top:] - level, block, rest.T, alpha=-1) <= -half[top : top + height, None]
        counts[top : top + height] += near.sum(1, dtype=torch.int32)
        counts[top + height :] += near[:, height:].sum(0, dtype=torch.int32)
    return (counts >= majority).nonzero()[:, 0]


def deviation(alpha: float, draws: int) -> float:
    """Excess of a fraction over its mean, except with probability ``alpha`` (Hoeffding 1963).

    Args:
        alpha: Probability that the certificate fails, in (0, 0.5).
    """
    return sqrt(log(1 / alpha) / (2 * draws))


def mass(eps: float, sigma: float, slack: float) -> float:
    """Probability that a ball must hold at ``x`` to hold ``1/2 + slack`` within ``eps``.

    Args:
        eps: ε in ℓ2, in pixel units.
        sigma: Standard deviation of the noise in pixel units, above 0.
        slack: Distance from one half, in (0, 0.5).

    Example:
        >>> round(mass(0.25, 0.25, 0.05), 4)
        0.8698
    """
    from scipy.special import ndtr, ndtri

    return float(ndtr(ndtri(0.5 + slack) + eps / sigma))


def quantile(eps: float, sigma: float, slack: float, draws: int, alpha: float) -> float:
    """Fraction of draws in a ball that proves the probability ``mass`` with confidence.

    Above 1 there is no such ball, and more draws are needed.

    Args:
        eps: ε in ℓ2, in pixel units.
        sigma: Standard deviation of the noise in pixel units, above 0.
        slack: Distance from one half, in (0, 0.5).
        alpha: Probability that the certificate fails, in (0, 0.5).

    Example:
        >>> round(quantile(0.25, 0.25, 0.05, 100_000, 0.005), 4)
        0.875
    """
    return mass(eps, sigma, slack) + deviation(alpha, draws)


def abstains(share: Float[Tensor, "b"], selection: int, slack: float, alpha: float) -> Tensor:
    """Mask of images at which center smoothing abstains.

    The ball around the centre may hold less than ``1/2 - slack``. ``alpha`` is divided by two, for the ball and for the
    smallest one.

    Args:
        share: Fraction of fresh draws in the ball, shape (b,).
        selection: Number of fresh draws.
        slack: Distance from one half, in (0, 0.5).
        alpha: Probability that the certificate fails, in (0, 0.5).
    """
    off = deviation(alpha / 2, selection)
    return (0.5 - (share - off) > slack) | (off > slack)
