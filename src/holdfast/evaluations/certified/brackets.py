"""Evaluations that hold a proved bound of a quantity against an attacked one, in every ball under every divergence."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Literal, final

from jaxtyping import Float
from torch import Tensor

from holdfast.attacks.adaptive import AdaptiveAttack
from holdfast.attacks.base import Attack
from holdfast.bounds.methods.base import Crown, Method
from holdfast.core.balls import Ball, Linf
from holdfast.core.divergences import Cosine, Divergence, L2Distance
from holdfast.core.records import Claim, Conditions, Estimate, Findings, Series
from holdfast.core.run_settings import Observed
from holdfast.core.statistics import Better, Scale, over_scale, summarise
from holdfast.evaluations.certified.certification import Certification, arithmetic_of
from holdfast.evaluations.certified.findings import CrossCheck, ball_curves, findings, series
from holdfast.protocol.evaluation import Evaluation
from holdfast.protocol.observation import Joint, Observation
from holdfast.protocol.population import Population

OPPOSITE = {Claim.UPPER: Claim.LOWER, Claim.LOWER: Claim.UPPER}


@final
@dataclass(frozen=True)
class Bracket:
    """One quantity, image by image, and its two bounds: proved from one side, attacked from the other."""

    quantity: str
    values: tuple[Float[Tensor, "n"], Float[Tensor, "n"]]
    """Certified and attacked."""
    unit: str
    claim: Claim
    """Of the certified values: the attacked ones claim the opposite."""
    of: str
    undefined: str
    """Why values are nan."""
    statistic: Literal["mean", "median", "share"]
    better: Better
    estimate: str = ""
    """What the estimates are called, if not like the series."""
    scale: Scale | None = None
    """What the values are shares of, if that is known from the images as well."""

    def ends(self, case: Conditions, method: Method, attack: Attack) -> Iterator[tuple[Series, Estimate]]:
        """Yield both bounds as series, with their estimates."""
        certified, attacked = self.values
        for kind, conditions, values, claim in (
            ("certified", {**case, "method": str(method)}, certified, self.claim),
            ("attacked", {**case, "attack": str(attack)}, attacked, OPPOSITE[self.claim]),
        ):
            bound = series(f"{kind}_{self.quantity}", conditions, values, self.unit, claim, self.of, self.undefined)
            estimate = summarise(bound, self.statistic, self.better, f"{kind}_{self.estimate or self.quantity}")
            yield bound, over_scale(estimate, self.scale) if self.scale else estimate


@dataclass(frozen=True)
class BracketEvaluation(Evaluation):
    """Brackets in every ball under every divergence, with the attacks set against the certificates."""

    balls: tuple[Ball, ...] = (Linf(0.05), Linf(0.1))
    divergences: tuple[Divergence, ...] = (L2Distance(), Cosine())
    samples: int = 100
    method: Method = Crown()
    attack: Attack = AdaptiveAttack()
    neurons: int = 50_000
    arithmetic: str = "real"
    partial = True

    @property
    def certification(self) -> Certification:
        """The settings that its observations share."""
        return Certification(self.samples, self.method, self.attack, self.neurons, self.arithmetic)

    @abstractmethod
    def bounds(self, ball: Ball, divergence: Divergence) -> Observation:
        """Return what must be seen of each image in one case."""

    @abstractmethod
    def brackets(self, population: Population, divergence: Divergence, values: Observed) -> tuple[Bracket, ...]:
        """Return the quantities of one case from what was seen, ``values`` in float64."""

    @abstractmethod
    def refuted(self, values: Observed) -> tuple[Tensor, Tensor]:
        """Return which certificates, or how many, attacks refute, image by image, and which there are."""

    @abstractmethod
    def witness(
        self, population: Population, rows: Sequence[int], ball: Ball, divergence: Divergence, image: int
    ) -> dict[str, str]:
        """Return the point that refutes a certificate of the image at this position of ``rows``, recomputed."""

    def observation(self) -> Joint:
        return Joint(tuple(self.bounds(ball, divergence) for ball, divergence in self._cases()))

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        ends: list[tuple[Series, Estimate]] = []
        checks: list[CrossCheck] = []
        arithmetic = arithmetic_of(population, self.arithmetic)
        for ball, divergence in self._cases():
            bounds = self.observation().of(self.bounds(ball, divergence), observed)
            values = {name: value.double() for name, value in bounds.items()}
            case: Conditions = {"ball": str(ball), "divergence": str(divergence), **arithmetic}
            for bracket in self.brackets(population, divergence, values):
                ends += bracket.ends(case, self.method, self.attack)
            witness = partial(self.witness, population, rows, ball, divergence)
            checks.append(CrossCheck(*self.refuted(values), {**case, "method": str(self.method)}, witness))
        all_series, estimates = zip(*ends, strict=True)
        return findings(population, rows, all_series, estimates, checks, ball_curves(estimates))

    def _cases(self) -> list[tuple[Ball, Divergence]]:
        return list(product(self.balls, self.divergences))
