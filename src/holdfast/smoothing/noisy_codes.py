"""Noisy copies of each image, clean and attacked, and mean unit embeddings of them.

An attack gives the other end of the bracket of center smoothing. It maximises the displacement of the mean embedding of a
few fixed noisy copies, because the centre has no gradients. The result is the centre at the attacked image, from fresh
copies.

Mean unit embeddings come with confidence sequences, which allow stopping at any time.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import log
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.attacks.base import Attack
from holdfast.attacks.objectives.simple import Away
from holdfast.core.balls import L2, Ball
from holdfast.core.divergences import Cosine, Divergence, L2Distance
from holdfast.core.encoder import Codes, Pixels
from holdfast.core.errors import HoldfastError
from holdfast.core.objective import AttackContext
from holdfast.core.run_settings import Observed
from holdfast.measure.observation import Observation, SharedSettings, entries, joined
from holdfast.measure.population import Fit, Population, whitenings
from holdfast.probes.base import FittedProbe, Probe
from holdfast.smoothing.copies import COPIES, Copies, Stopping, View, counts_of, mean_encoder, voted
from holdfast.smoothing.index import Index, Smoothing, central_sample, embedding


@final
@dataclass(frozen=True)
class NoisyCodes(Observation):
    """Statistics of the embeddings of each image's noisy copies; entry ``name`` under divergence ``k`` is called ``k.name``.

    ``centre`` of the first set, in the divergence's embedding; ``radius`` of the ball around it with half of that set;
    ``held``: fraction of the second set in the ball; ``distances``: order statistics of the third set's distances from the
    centre; ``error``: distance of the centre from the clean embedding. Counts of the third set: ``nearer`` to their own
    index entry than to each other image's; ``kept``: nearest to their own; ``retrieved``: their nearest other image is the
    most frequent one of the first set; ``agrees``: whether it is that of the clean embedding, too.

    ``copies``: how many the third set has, which are drawn until ``stopping`` says that they are enough.

    Where images and bank have labels, also how often each probe says each class: ``probe k.first`` of the first set, and
    ``probe k.votes`` of the third.
    """

    smoothing: Smoothing
    """Settings of the noise and of the copies."""
    divergences: tuple[Divergence, ...]
    """Distances between embeddings."""
    probes: tuple[Probe, ...]
    """Probes to ask about the copies."""
    stopping: Stopping = Stopping()
    """Rule that decides when copies suffice."""
    name = "noisy-codes"
    version = 3
    uses_bank = True
    uses_labels = True

    def fits(self) -> tuple[Fit[Any], ...]:
        return (*whitenings(self), self.smoothing.index, *self.probes)

    def inputs(self, population: Population) -> int:
        return self.smoothing.forward_passes

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        observations = [self._of_image(population, row) for row in rows]
        return {name: torch.stack([values[name] for values in observations]) for name in observations[0]}

    def _of_image(self, population: Population, row: int) -> Observed:
        smoothing = self.smoothing
        copies = Copies.of(population, row, smoothing.sigma)
        first = copies.reduced("centre", smoothing.selection, lambda codes: {"codes": codes})["codes"]
        views = [View.of(population, row, smoothing, divergence, first) for divergence in self.divergences]
        probes = self._answering(population)
        second = copies.reduced("held", smoothing.selection, lambda z: joined([view.in_ball(z) for view in views]))
        early = {k: voted(probe, first) for k, probe in probes.items()}
        drawn, third = self._in_rounds(copies, views, probes, {k: int(votes.argmax()) for k, votes in early.items()})
        found = [view.summary(entries(second, k), entries(third, k), smoothing.copies) for k, view in enumerate(views)]
        return {
            **joined(found),
            **{f"probe {k}.votes": third[f"probe {k}"].sum(0) for k in probes},
            **{f"probe {k}.first": votes for k, votes in early.items()},
            "copies": torch.tensor(drawn),
        }

    def _in_rounds(
        self, copies: Copies, views: Sequence[View], probes: dict[int, FittedProbe], chosen: dict[int, int]
    ) -> tuple[int, Observed]:
        """Return the number of copies drawn of the third set, and their statistics."""

        def work(codes: Codes) -> Observed:
            return {
                **joined([view.counted(codes) for view in views]),
                **{f"probe {k}": voted(probe, codes)[None] for k, probe in probes.items()},
            }

        most, drawn, third = self.smoothing.copies, 0, dict[str, Tensor]()
        for look in self.stopping.looks(most):
            fresh = copies.reduced("certify", look, work, drawn=drawn)
            third = {name: torch.cat([third[name], fresh[name]]) for name in fresh} if drawn else fresh
            drawn = look
            counts = counts_of(third, len(views), self.stopping, chosen)
            if drawn < most and self.stopping.decided(counts, drawn, most, self.smoothing.sigma):
                break
        return drawn, third

    def of_divergence(self, divergence: Divergence, observed: Observed) -> Observed:
        """Part of ``observed`` that belongs to one divergence."""
        return {**entries(observed, self.divergences.index(divergence)), "copies": observed["copies"]}

    def of_probe(self, probe: Probe, observed: Observed) -> Observed:
        """Counts ``first`` and ``votes`` of one probe, and ``copies``."""
        return {**entries(observed, f"probe {self.probes.index(probe)}"), "copies": observed["copies"]}

    def _answering(self, population: Population) -> dict[int, FittedProbe]:
        """Return the probes that could be learned, by their places; without labels no one asks them.

        An evaluation that needs a failed one gets the reason when it concludes; the others do not fail with it.

        Raises:
            HoldfastError: a probe scores the embeddings of another encoder.
        """
        probes: dict[int, FittedProbe] = {}
        if population.images.labels is None:
            return probes
        for index, probe in enumerate(self.probes):
            with suppress(HoldfastError):
                probes[index] = population.learned(probe)
        for index, fitted in probes.items():
            if fitted.encoder is not population.encoder:
                raise HoldfastError(
                    f"noisy copies are encoded once for all probes, and {self.probes[index]} scores embeddings of an "
                    "encoder of its own; use knn, linear, noise or robust"
                )
        return probes


@final
@dataclass(frozen=True)
class AttackedCentres(Observation):
    """What noisy copies of each image say once it is attacked in the l2 ball of ``radius``.

    ``centre`` and ``held`` are as in ``NoisyCodes``; ``kept``: the fraction of copies that are nearest to their own entry.
    """

    smoothing: Smoothing
    """Settings of the noise and of the copies."""
    radius: float
    """ε in ℓ2, in pixel units."""
    divergence: Divergence
    """Distance between embeddings."""
    attack: Attack
    """Attack to run."""
    name = "attacked-centres"
    version = 2
    uses_bank = True

    def fits(self) -> tuple[Fit[Any], ...]:
        return (*whitenings(self), self.smoothing.index)

    def inputs(self, population: Population) -> int:
        return 2 * self.smoothing.selection

    def forward_passes(self, population: Population) -> int:
        return COPIES * self.attack.forward_passes + self.inputs(population)

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        pixels = self.pixels(population, rows)
        observations = [self._of_image(population, row, pixels[[k]]) for k, row in enumerate(rows)]
        return {name: torch.stack([values[name] for values in observations]) for name in observations[0]}

    def pixels(self, population: Population, rows: Sequence[int]) -> Pixels:
        """Attacked images at ``rows``."""
        away = Away(population.fitted(self.divergence if self.divergence.smooth else L2Distance()))
        ball, sigma = L2(self.radius), self.smoothing.sigma
        return attacked_mean(population, rows, sigma, self.attack, away, ball, ("attack", "smoothed"))

    def _of_image(self, population: Population, row: int, pixels: Pixels) -> Observed:
        embed = embedding(population, self.divergence)
        copies, count = Copies.of(population, row, self.smoothing.sigma), self.smoothing.selection
        index = Index.of(population, row, embed, self.smoothing)
        samples = embed(copies.reduced("attacked", count, lambda codes: {"codes": codes}, pixels)["codes"])
        central = central_sample(samples)
        centre = samples[central.index]

        def work(codes: Codes) -> Observed:
            points = embed(codes)
            inside = torch.linalg.vector_norm(points - centre, dim=1) <= central.radius
            return {"held": inside, "kept": index.nearer(points).all(1)}

        fresh = copies.reduced("attacked and held", count, work, pixels)
        return {"centre": centre, **{name: values.double().mean() for name, values in fresh.items()}}


def attacked_mean(
    population: Population,
    rows: Sequence[int],
    sigma: float,
    attack: Attack,
    away: Away,
    ball: Ball,
    streams: tuple[str, str],
) -> Pixels:
    """Images after an attack on the mean embedding of their noisy copies.

    ``streams`` name the random numbers of the copies and of the attack.
    """
    context = population.context(rows)
    # One set of copies for all images: sharing a batch changes nothing.
    drawn = population.run.noise(["copies"] * COPIES)[:1].fork(streams[0])
    numbers = torch.arange(COPIES, device=context.pixels.device)
    noise = drawn.numbered(numbers).gaussian(context.pixels.shape[1:], context.pixels.dtype)
    smoothed = mean_encoder(population.optimised, sigma * noise)
    objective = away(AttackContext(smoothed, context.pixels, context.noise))
    return attack(smoothed, context.pixels, objective, ball, context.noise.fork(streams[1]))


# Confidence sequences: bounds of a mean that hold at every number of draws at once, so that one may stop when one
# likes.
#
# For draws in [0, 1] of mean ``m`` and bets ``l_t`` that depend on earlier draws alone, the capital ``K_t = prod_i (1
# + l_i (h_i - m))`` is a martingale, and by Ville's inequality exceeds ``1 / alpha`` ever with chance ``alpha`` at
# most. So every ``m`` at which it ever did is ruled out. Waudby-Smith and Ramdas 2023,
# https://arxiv.org/abs/2010.09686, theorem 3; bets after their equation 26, for the lower bound alone. Capital falls
# as ``m`` grows, since bets here do not depend on ``m``, so what is ruled out is all below one number.

BOLDEST = 0.99
"""The largest bet: below 1, so that no draw costs all of the capital."""
HALVINGS = 50


def least_mean(draws: Float[Tensor, "n"], alpha: float) -> float:
    """Return the lower end, with confidence ``1 - alpha`` at any stopping time, of the mean of what ``draws`` come from.

    Args:
        draws: in [0, 1], in the order in which they were drawn; independent, of one mean.
        alpha: the chance that the mean ever lies below the result, however long one goes on.

    Example:
        >>> least_mean(torch.ones(100), 0.001) > 0.92, least_mean(torch.zeros(100), 0.001)
        (True, 0.0)
    """
    draws = draws.double()
    bets = predicted_bets(draws, alpha)
    threshold, low, high = -log(alpha), 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if bool((torch.log1p(bets * (draws - middle)).cumsum(0) >= threshold).any()):
            low = middle
        else:
            high = middle
    return low


def predicted_bets(draws: Float[Tensor, "n"], alpha: float) -> Float[Tensor, "n"]:
    """Return the bet on each draw from the draws before it; less variation means larger bets."""
    count = torch.arange(1, len(draws) + 1, dtype=torch.float64, device=draws.device)
    means = (0.5 + draws.cumsum(0)) / (count + 1)
    variances = (0.25 + (draws - means).square().cumsum(0)) / (count + 1)
    before = torch.cat([variances.new_tensor([0.25]), variances[:-1]])
    bets = (2 * log(1 / alpha) / (before * count * (count + 1).log())).sqrt()
    return bets.clamp_max(BOLDEST)


# The mean unit code of noisy copies: drawn until its certificate is as good as more copies could make it.
#
# For ``h(n) = (1 + cos(f(x + n), a)) / 2`` in [0, 1], ``S(x) = E h(n)`` and ``n ~ N(0, sigma^2)``, ``Phi^-1(S)`` is
# ``1 / sigma``-Lipschitz in l2 (Salman et al. 2019, https://arxiv.org/abs/1906.04584, lemma 2). ``F``, the mean of
# unit codes, is no longer than 1, so ``cos(F(x'), a) >= <F(x'), a> = 2 S(x') - 1`` wherever that is positive.

FIRST = 128
"""Copies of the first round; each round has twice as many as all before it."""


@final
@dataclass(frozen=True)
class FeatureNoise(SharedSettings):
    """Noise and number of copies; ``copies`` is the maximum, and most images need few."""

    sigma: float
    selection: int
    copies: int
    samples: int
    alpha: float
    radius: float
    precision: float


@final
@dataclass(frozen=True)
class UnitCodes(Observation):
    """Mean unit embedding of each image's noisy copies.

    ``anchor``: mean unit embedding of the ``selection``, scaled to norm one; ``low``: lower end of ``S`` at that anchor,
    with confidence ``1 - alpha`` at any stopping time; ``mean``: observed ``S``; ``copies``: number of copies drawn.
    Copies are drawn until ``2 S - 1`` at ``radius`` by ``low`` is within ``precision`` of that by ``mean``.
    """

    settings: FeatureNoise
    name = "unit-codes"
    version = 1

    def inputs(self, population: Population) -> int:
        return self.settings.selection + self.settings.copies

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        observations = [self._of_image(population, row) for row in rows]
        return {name: torch.stack([values[name] for values in observations]) for name in observations[0]}

    def _of_image(self, population: Population, row: int) -> Observed:
        settings = self.settings
        copies = Copies.of(population, row, settings.sigma)
        anchor = mean_unit(copies, "feature anchor", settings.selection)
        anchor = anchor / torch.linalg.vector_norm(anchor).clamp_min(torch.finfo(anchor.dtype).tiny)
        draws, turn = torch.zeros(0, dtype=torch.float64, device=anchor.device), 0
        low = 0.0
        while len(draws) < settings.copies:
            count = min(max(FIRST, len(draws)), settings.copies - len(draws))
            fresh = copies.reduced(f"feature {turn}", count, lambda z: {"similarity": similarities(unit(z), anchor)})
            draws, turn = torch.cat([draws, fresh["similarity"]]), turn + 1
            low = least_mean(draws, settings.alpha)
            reachable = certified_cosine(draws.mean(), settings.radius, settings.sigma)
            sure = certified_cosine(draws.new_tensor(low), settings.radius, settings.sigma)
            if float(reachable - sure) <= settings.precision:
                break
        return {
            "anchor": anchor,
            "low": torch.tensor(low, dtype=torch.float64),
            "mean": draws.mean(),
            "copies": torch.tensor(len(draws)),
        }


@final
@dataclass(frozen=True)
class AttackedUnitCodes(Observation):
    """``similarity``: cosine of each attacked image's mean unit embedding and the clean image's anchor."""

    settings: FeatureNoise
    radius: float
    attack: Attack
    name = "attacked-unit-codes"
    version = 1

    def inputs(self, population: Population) -> int:
        return 2 * self.settings.selection

    def forward_passes(self, population: Population) -> int:
        return COPIES * self.attack.forward_passes + self.inputs(population)

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        pixels = self.pixels(population, rows)
        observed = [self._of_image(population, row, pixels[[k]]) for k, row in enumerate(rows)]
        return {"similarity": torch.stack(observed)}

    def pixels(self, population: Population, rows: Sequence[int]) -> Pixels:
        """Return the attacked images at ``rows``."""
        ball, sigma = L2(self.radius), self.settings.sigma
        return attacked_mean(population, rows, sigma, self.attack, Away(Cosine()), ball, ("feature attack", "feature"))

    def _of_image(self, population: Population, row: int, pixels: Pixels) -> Tensor:
        copies, count = Copies.of(population, row, self.settings.sigma), self.settings.selection
        anchor = mean_unit(copies, "feature anchor", count)
        moved = mean_unit(copies, "feature attacked", count, pixels)
        return torch.cosine_similarity(anchor, moved, dim=0)


def unit(codes: Codes) -> Float[Tensor, "b d"]:
    """Return embeddings of length 1 in float64; 0 for embeddings without a direction, which the certificate allows."""
    codes = codes.double()
    lengths = torch.linalg.vector_norm(codes, dim=1, keepdim=True)
    sound = codes.isfinite().all(1, keepdim=True) & lengths.isfinite() & (lengths > 0)
    return torch.where(sound, codes / lengths, 0.0)


def similarities(units: Float[Tensor, "b d"], anchor: Float[Tensor, "d"]) -> Float[Tensor, "b"]:
    """Return ``(1 + cos) / 2``, in [0, 1]."""
    return ((1 + units @ anchor) / 2).clamp(0.0, 1.0)


def mean_unit(copies: Copies, purpose: str, count: int, pixels: Pixels | None = None) -> Float[Tensor, "d"]:
    """Return the mean unit embedding over the noisy copies, of the image or of other ``pixels``."""
    return copies.reduced(purpose, count, lambda codes: {"units": unit(codes)}, pixels)["units"].mean(0)


def certified_cosine(share: Float[Tensor, "*b"], radius: float, sigma: float) -> Float[Tensor, "*b"]:
    """Return ``2 Phi(Phi^-1(S) - eps / sigma) - 1``, a lower bound of the cosine wherever it is positive.

    Example:
        >>> certified_cosine(torch.tensor([0.5, 0.99]).double(), 0.25, 0.25)
        tensor([-0.6827,  0.8153], dtype=torch.float64)
    """
    return 2 * torch.special.ndtr(torch.special.ndtri(share) - radius / sigma) - 1
