"""The SynBench score: accuracies of the robust rules on embeddings, what the mixture allows, and the suggested budget."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from math import isfinite, log, pi, sqrt
from operator import add
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.core.encoder import Codes, Domain, Pixels
from holdfast.core.errors import HoldfastError, OutOfRange, UnknownName
from holdfast.core.run_settings import Observed
from holdfast.measure.evaluation import LATER
from holdfast.measure.observation import Observation
from holdfast.measure.population import Population
from holdfast.synthetic.mixture import Mixture, Pooled, Rules, direction

# Observation of SynBench: accuracies of the robust rules on an encoder's embeddings, scale by scale.
#
# A scale has a fresh train set, from which the rules are fitted, and a fresh test set. Both are drawn, encoded and forgotten
# batch by batch. Rules are also fitted on each half of the train set, to see what more samples would change.

MOST_NUMBERS = 400_000_000
"""Largest number of entries of the covariance, or of the embeddings with fewer samples than features: 3 GB."""
CHUNK = 1024
"""Embeddings held at a time."""
FEWEST = 64
"""Samples per set below which a half of it may well hold one class only."""
PER_FEATURE = 20
"""Train samples per feature that ``auto`` asks for: a bias of a few percent."""


@final
@dataclass(frozen=True)
class RuleAccuracies(Observation):
    """Accuracies and bounds of the robust rules, scale by scale: its rows are scales, not images."""

    scales: tuple[float, ...]
    budgets: tuple[float, ...]
    samples: int | str
    encodings: int
    direction: str
    prior: float = 0.5
    offset: float = 0.0
    spectrum: float = 0.0
    norm: str = "l2"
    sweep: bool = False
    size: int = field(default=0, metadata=LATER)
    """Height and width of the inputs in pixels; 0: the encoder's own."""
    name = "mixture"
    version = 2

    def ids(self, population: Population) -> tuple[str, ...]:
        return tuple(f"s={scale:g}" for scale in self.scales)

    def inputs(self, population: Population) -> int:
        return 2 * self.drawn(features(population))

    def rows(self, population: Population) -> list[int]:
        return list(range(len(self.scales)))

    def wanted(self, features: int) -> int:
        """Return the wanted number of samples per set and scale."""
        return self.samples if isinstance(self.samples, int) else PER_FEATURE * features

    def drawn(self, features: int) -> int:
        """Return the number of samples per set and scale within the limit on encodings."""
        return min(self.wanted(features), self.encodings // (2 * len(self.scales)))

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        """Return for each scale, with ``p`` the rules of the first half, the second half and the whole train set, and of
        its first quarter before the whole with ``sweep``:

        ``right`` and ``bound``, shape (b, p, e), the means of ``c`` (1 if a test sample is classified correctly) and of
        ``B c``; ``products``, shape (b, 2pe, 2pe), the mean products of all (c, B c), with p as the slowest index;
        ``margin``, shape (b, e), the distance from a class mean to the middle in embedding units; ``rank``, shape (b,), of
        the whole set's covariance.
        """
        scales = [self._scale(population, self.scales[row]) for row in rows]
        return {name: torch.stack([scale[name] for scale in scales]) for name in scales[0]}

    def domain(self, population: Population) -> Domain:
        """Return the inputs: those of the encoder, or of another size."""
        own = population.encoder.domain
        return replace(own, shape=(own.shape[0], self.size, self.size)) if self.size else own

    def check_size(self, population: Population) -> None:
        """Check that the encoder takes inputs of another size and returns as many features.

        Raises:
            HoldfastError: It has one size only.
        """
        domain, count = self.domain(population), features(population)
        if len(population.encoder.domain.shape) != 3:
            raise OutOfRange("inputs of synbench.input_sizes", population.encoder.domain.shape, "images")
        blank = placed(torch.zeros(1, *domain.shape, dtype=population.run.dtype), domain).to(population.run.device)
        try:
            fits = population.encode(blank).shape == (1, count)
        except (RuntimeError, ValueError, AssertionError):  # whatever a network of one size says to another
            fits = False
        if not fits:
            raise OutOfRange(
                f"synbench.input_sizes of {population.encoder.name}",
                self.size,
                f"a size that the network takes, and its own is {population.encoder.domain.shape}",
                fix="leave input_sizes out for this encoder",
            )

    def mixture(self, population: Population, scale: float = 1.0) -> Mixture:
        """Return the mixture at one scale."""
        mean = scale * direction(self.direction, self.domain(population).shape, population.run.seed)
        return Mixture(mean, self.prior, self.spectrum)

    def _scale(self, population: Population, scale: float) -> Observed:
        if self.size:
            self.check_size(population)
        mixture = self.mixture(population, scale)
        count = features(population)
        n = self.drawn(count)
        if (numbers := min(n, count) * count) > MOST_NUMBERS:
            raise HoldfastError(
                f"synbench learns from {n:,} embeddings of {count:,} features, which takes {8e-9 * numbers:.0f} GB and "
                f"more; ask for fewer samples, as in --set synbench.samples={MOST_NUMBERS // count}"
            )
        if n < count and self.norm == "linf":
            raise HoldfastError(
                f"synbench with norm=linf needs as many samples as features, got {n:,} for {count:,}; raise samples"
            )

        def chunks(of: str, rows: range) -> Iterator[tuple[Codes, Float[Tensor, "b"]]]:
            for start in range(rows.start, rows.stop, CHUNK):
                batch = range(start, min(start + CHUNK, rows.stop))
                yield _encoded(population, self.domain(population), mixture, self.offset, (of, scale), batch)

        cuts = (
            [range(n // 4), range(n // 4, n // 2), range(n // 2, n)]
            if self.sweep
            else [range(n // 2), range(n // 2, n)]
        )
        basis = None
        if n < count:  # no rule looks outside of the span of the codes that it learned from
            train, labels = (torch.cat(parts) for parts in zip(*chunks("train", range(n)), strict=True))
            basis = torch.linalg.qr(train.double().T).Q
            seen = train.double() @ basis
            pooled = [Pooled.of(seen[rows.start : rows.stop], labels[rows.start : rows.stop]) for rows in cuts]
        else:
            pooled = [reduce(add, (Pooled.of(*chunk) for chunk in chunks("train", rows))) for rows in cuts]
        halves = [reduce(add, pooled[:-1]), pooled[-1]]
        learned = [*halves, *pooled[: len(pooled) - 2], halves[0] + halves[1]]
        rules = [Rules.fit(part, self.budgets, population.run.dtype, self.norm, self.prior) for part in learned]
        tested = [
            _tested(rules, codes if basis is None else codes.double() @ basis, labels)
            for codes, labels in chunks("test", range(n))
        ]
        return {
            **{name: torch.stack([part[name] for part in tested]).sum(0) / n for name in tested[0]},
            "margin": rules[-1].margins(self.norm),
            "rank": torch.tensor(rules[-1].rank, device=rules[-1].middle.device),
        }


def _tested(rules: Sequence[Rules], codes: Codes, labels: Float[Tensor, "b"]) -> Observed:
    """Return the sums over samples that ``RuleAccuracies`` averages."""
    judged = [rule(codes, labels) for rule in rules]
    every = torch.cat([part.double() for pair in judged for part in pair], 1)
    right, bound = every.sum(0).reshape(len(rules), 2, -1).unbind(1)
    return {"right": right, "bound": bound, "products": every.T @ every}


def _encoded(
    population: Population, domain: Domain, mixture: Mixture, offset: float, stream: tuple[str, float], rows: range
) -> tuple[Codes, Float[Tensor, "b"]]:
    """Return the embeddings of samples ``rows`` of one set, and their classes.

    The Gaussians leave the encoder's domain, as published: clipping them would change their distances. So the encoder is
    entered where inputs are not checked.
    """
    run = population.run

    def work(batch: Sequence[int]) -> Observed:
        noise = run.noise([f"sample {row}" for row in batch]).fork(*stream)
        inputs, labels = mixture.sample(noise, run.dtype)
        return {"codes": population.encode(placed(inputs + offset, domain)), "labels": labels}

    drawn = run.batches(rows, work)
    if not torch.isfinite(drawn["codes"]).all():
        raise HoldfastError(
            f"{population.encoder.name} returned NaN or infinite embeddings for Gaussian inputs of scale "
            f"{stream[1]:g}, which leave its domain; check its weights and precision, or leave synbench out"
        )
    return drawn["codes"], drawn["labels"]


def placed(inputs: Pixels, domain: Domain) -> Pixels:
    """Return ``inputs`` with their origin in the middle of ``domain`` and its width as their unit (0.5 + x for pixels)."""
    if not (isfinite(domain.low) and isfinite(domain.high)):
        return inputs
    return (domain.low + domain.high) / 2 + (domain.high - domain.low) * inputs


def features(population: Population) -> int:
    """Return the number of features of an embedding."""
    return population.codes.shape[1]


# What the mixture itself allows: the accuracy of its robust Bayes rules and how far, on average, inputs lie from their
# boundary.
#
# At scale ``s`` the best accuracy is ``a = Phi(s)``, whatever the budget. The distance of an input to the boundary,
# in units of the mean's own and averaged over the inputs that are classified rightly, depends on that accuracy alone:
#
#     h(a) = 1 + exp(-q^2 / 2) / (sqrt(2 pi) a q),      q = Phi^-1(a),      1/2 < a < 1
#
# SynBench (Ko et al. 2022, https://arxiv.org/abs/2210.02989), result 3.3. Of any other noise the same holds with
# ``Phi(g s)``, where ``g`` is ``mu'w / sqrt(w' Sigma w)`` of the budget's rule for a mean of length 1. With a prior ``p``
# the boundary lies ``c = log((1 - p) / p) / 2`` from the middle (theorem 4.1 of Dobriban et al. 2020,
# https://arxiv.org/abs/2006.05161), and both numbers are means over the two classes.

SCALES = tuple(k / 10 for k in range(1, 50))
"""The published grid: accuracies from 0.54 to 1. The score depends on where it ends."""


def expected_bound(accuracy: Float[Tensor, "n *e"]) -> Float[Tensor, "n *e"]:
    """Return ``h(a)``; its limit 1 at ``a = 1``, and nan where ``a`` is no better than a coin.

    Example:
        >>> expected_bound(torch.tensor([0.6, 0.7, 0.9]).double())
        tensor([3.5416, 1.9472, 1.1522], dtype=torch.float64)
    """
    inside = torch.where((accuracy > 0.5) & (accuracy <= 1), accuracy, torch.nan)
    q = torch.special.ndtri(inside)
    return 1 + (-q.square() / 2).exp() / (sqrt(2 * pi) * inside * q)


Curves = Float[Tensor, "n *e"]
Allowed = tuple[Float[Tensor, "n *k"], Float[Tensor, "n *k"]]
"""The accuracy and the expected bound that the mixture itself allows at each scale (and budget)."""


def reference(scales: Sequence[float]) -> Allowed:
    """Return the accuracy and expected bound of the published mixture at each scale: the same for all budgets."""
    accuracy = torch.special.ndtr(torch.tensor(scales, dtype=torch.float64))
    return accuracy, expected_bound(accuracy)


def allowed(scales: Sequence[float], mixture: Mixture, budgets: Sequence[float], norm: str) -> Allowed:
    """Return the accuracy and expected bound of a ``mixture`` of mean length 1 at each scale and budget, shape (n, e).

    Example:
        >>> from holdfast.synthetic.mixture import direction
        >>> allowed([1.0], Mixture(direction("ones", (4, 4))), [0.0], "l2")[0]
        tensor([[0.8413]], dtype=torch.float64)
    """
    gain, spread = mixture.rules(budgets, norm)
    s = gain.new_tensor(scales)[:, None]
    if mixture.prior == 0.5:
        accuracy = torch.special.ndtr(gain * s)
        return accuracy, expected_bound(accuracy)
    middle = log((1 - mixture.prior) / mixture.prior) / 2
    accuracy, bound = torch.zeros_like(gain * s), torch.zeros_like(gain * s)
    for share, sign in ((mixture.prior, 1), (1 - mixture.prior, -1)):
        # How far the class mean is from the boundary, and the standard deviation, in units of mean to middle.
        mean, deviation = 1 - sign * middle / (s.square() * gain * spread), 1 / (s * gain)
        ratio = mean / deviation
        right = torch.special.ndtr(ratio)
        accuracy += share * right
        bound += share * (mean * right + deviation * (-ratio.square() / 2).exp() / sqrt(2 * pi))
    return accuracy, bound / accuracy


# The SynBench score: the area under an encoder's accuracy and bound, over that of the mixture itself.
#
# With ``a_i`` the accuracy and ``b_i`` the expected bound at scale ``i`` of ``n``, accuracy above ``a_t`` comes with
# the bound ``E(a_t) = (1/n) sum b_i 1[a_i > a_t]``. Its area from ``a_t`` to 1 is a sum, and the score a ratio of two
# of them:
#
#     score(a_t) = sum b_i (a_i - a_t)_+  /  sum h(Phi(s_i)) (Phi(s_i) - a_t)_+
#
# Ko et al. 2022, https://arxiv.org/abs/2210.02989, section 3.3. Departure: the area is exact; ``published`` adds up
# ``E`` on
# 100 points from 0.6 to 1, as the authors' program does, which differs by less than 0.01 up to ``a_t = 0.9``.

MODES = ("exact", "published")
GRID = (0.6, 1.0, 100)
"""Grid of the sum in the authors' program: from, to, number of points."""


def expected_above(accuracy: Curves, bound: Curves, thresholds: Float[Tensor, "t"]) -> Float[Tensor, "t *e"]:
    """Return ``E(a_t)``: the expected bound, averaged over scales, counting those of accuracy above each threshold."""
    above = accuracy > thresholds.reshape(-1, *[1] * accuracy.ndim)
    return (above * bound).mean(1)


def area(accuracy: Curves, bound: Curves, thresholds: Sequence[float], mode: str = "exact") -> Float[Tensor, "t *e"]:
    """Return the area under ``E`` from each threshold to 1 (in ``published`` mode, its sum over the grid points there)."""
    if mode not in MODES:
        raise UnknownName("mode", mode, MODES)
    from_ = torch.tensor(thresholds, dtype=accuracy.dtype, device=accuracy.device)
    if mode == "exact":
        return (bound * (accuracy - from_.reshape(-1, *[1] * accuracy.ndim)).clamp_min(0)).mean(1)
    grid = torch.linspace(*GRID, dtype=accuracy.dtype, device=accuracy.device)
    heights = expected_above(accuracy, bound, grid)
    counted = (grid >= from_[:, None]).to(accuracy)
    return torch.tensordot(counted, heights, 1)


def score(
    accuracy: Curves, bound: Curves, best: Allowed, thresholds: Sequence[float], mode: str = "exact"
) -> Float[Tensor, "t *e"]:
    """Return the score at each threshold from the ``accuracy`` and ``bound`` at each of the ``n`` scales (per budget).

    Args:
        best: what the mixture allows: one number per scale, or one per scale and budget, the last axis of ``accuracy``.
        thresholds: accuracies above which area counts.

    Example:
        >>> best = reference([0.5, 1.0, 2.0])
        >>> score(*best, best, [0.7])  # the mixture itself keeps everything
        tensor([1.], dtype=torch.float64)
    """
    areas = area(*best, thresholds, mode).to(accuracy)
    if not bool((areas > 0).all()):
        raise HoldfastError(
            f"no scale reaches the threshold {max(thresholds):g}: the largest allows an accuracy of "
            f"{float(best[0][-1].min()):.3g}; add larger scales or lower the threshold"
        )
    return area(accuracy, bound, thresholds, mode) / areas.reshape(
        len(thresholds), *[1] * (accuracy.ndim - best[0].ndim), *areas.shape[1:]
    )


# The budget for robust linear probing that SynBench suggests: the one at which the encoder scores best.
#
#     eps* = argmax over eps of  score(eps, a_t),  averaged over the thresholds a_t
#
# Ko et al. 2022, https://arxiv.org/abs/2210.02989, section 4.

THRESHOLDS = (0.7, 0.75, 0.8, 0.85, 0.9)
BUDGETS = (0.0, 0.2, 0.4, 0.6, 0.8)
SAMPLES = 2048
ENCODINGS = 2_000_000
"""The most that are encoded for all scales together."""


def expected_bounds(observed: Observed) -> Float[Tensor, "n p e"]:
    """Return the expected bounds; 0 where nothing was classified rightly, which is above no threshold anyway."""
    return observed["bound"] / observed["right"].clamp_min(1e-9)


def suggested_budget(population: Population, samples: int = SAMPLES) -> float:
    """Return the budget with the highest mean score; 0 also where every score is 0, which suggests none.

    The mixture lies along the published direction, all input values alike.
    """
    accuracies = RuleAccuracies(SCALES, BUDGETS, samples, ENCODINGS, "ones")
    observed = {name: each.double().cpu() for name, each in accuracies.observe(population, range(len(SCALES))).items()}
    right, bound = (values[:, -1] for values in (observed["right"], expected_bounds(observed)))  # the whole train set's
    return BUDGETS[int(score(right, bound, reference(SCALES), THRESHOLDS).mean(0).argmax())]
