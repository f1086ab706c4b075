"""Observation of SynBench: accuracies of the robust rules on an encoder's embeddings, scale by scale.

A scale has a fresh train set, from which the rules are fitted, and a fresh test set. Both are drawn, encoded and forgotten
batch by batch. Rules are also fitted on each half of the train set, to see what more samples would change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from math import isfinite
from operator import add
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.core.encoder import Codes, Domain, Pixels
from holdfast.core.errors import HoldfastError, OutOfRange
from holdfast.core.run_settings import Observed
from holdfast.measure.evaluation import LATER
from holdfast.measure.observation import Observation
from holdfast.measure.population import Population
from holdfast.synthetic.mixture import Mixture, Pooled, Rules, direction

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
                f"synbench learns from {n:,} embeddings of {count:,} features, which takes {8e-9 * numbers:.0f} "
                f"GB and more; ask "
                f"for fewer samples, as in --set synbench.samples={MOST_NUMBERS // count}"
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
            f"{stream[1]:g}, which "
            "leave its domain; check its weights and precision, or leave synbench out"
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
