"""Series, curves, verdicts and warnings of certificates and of the attacks on them.

Witnesses are points that refute a certificate, written so that anyone can check them.
"""

from __future__ import annotations

from abc import abstractmethod
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import nan
from typing import ClassVar, Literal, final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from holdfast.attacks.adaptive import AdaptiveAttack
from holdfast.attacks.attacked_codes import ATTACKS
from holdfast.attacks.attacked_codes import SIZES as ATTACKED
from holdfast.attacks.base import Attack
from holdfast.bounds.certified_pairs import UNDEFINED, AttackResult, PairAttack
from holdfast.bounds.methods.base import Crown, Method
from holdfast.bounds.pair_bounds import (
    Certification,
    PairRadii,
    arithmetic_of,
    certify_cheaply_and_attack,
    cross_check,
    refuted,
)
from holdfast.core.balls import Ball, Linf
from holdfast.core.divergences import Cosine, Divergence, L2Distance
from holdfast.core.encoder import Codes, Pixels
from holdfast.core.records import Claim, Conditions, Curve, Estimate, Findings, Question, Series, Verdict
from holdfast.core.run_settings import Observed, without_tf32
from holdfast.core.settings import check_positive
from holdfast.core.statistics.summaries import Better, Scale, over_scale, series_of, summarise
from holdfast.measure.evaluation import Evaluation, Sizes
from holdfast.measure.observation import Joint, Observation, radius_curves
from holdfast.measure.population import Population

QUESTION = "Does every certificate withstand attack?"
POINTS = 81
"""Number of points of a curve."""
PREFIXES = ("certified_", "attacked_", "robust_")
"""Prefixes of the names of a metric's two bounds."""


def series(
    quantity: str, conditions: Conditions, values: Float[Tensor, "b *k"], unit: str, claim: Claim, of: str, reason: str
) -> Series:
    """Return one value per image: the mean of its finite values, or missing with ``reason``."""
    values = values.double().cpu()
    means = values if values.ndim == 1 else values.nanmean(1)
    return series_of(quantity, conditions, means, unit, claim, of, reason)


def influence(
    radii: Series, values: Float[Tensor, "b k"], rows: Sequence[int], negatives: Int[Tensor, "b k"]
) -> Series:
    """Return each image's influence on the mean of ``radii`` over pairs, as anchor and as negative of other anchors.

    Anchors share negatives, so their values depend on each other; influences are independent to first order (Hoeffding).
    """
    values, anchors = values.double().cpu(), torch.as_tensor(rows)
    means = torch.tensor(radii.values, dtype=torch.float64)
    share = ((values - means.nanmean()) / (~values.isnan()).sum(1, keepdim=True)).nan_to_num(0)
    passive = torch.zeros(int(max(anchors.max(), negatives.max())) + 1, dtype=torch.float64)
    passive.index_add_(0, negatives.flatten().cpu(), share.flatten())
    passive -= passive[anchors].mean()
    moves = tuple((means + passive[anchors]).tolist())
    return radii.model_copy(update={"quantity": f"{radii.quantity}_influence", "values": moves})


def over_pairs(radii: Series, influences: Series, better: Better, quantity: str | None = None) -> Estimate:
    """Return the mean of ``radii`` with an interval from ``influences``."""
    estimate = summarise(influences, "mean", better, quantity or radii.quantity)
    return estimate.model_copy(update={"value": summarise(radii, "mean", better).value})


CONTRADICTIONS = Question(
    place=80,
    text="Do the proofs withstand attack?",
    quantities=("contradictions",),
    meaning="certificates that an attack entered",
    check=True,
)
"""Event that is checked for all certificates together."""


@dataclass(frozen=True)
class CrossCheck:
    """Certificates that attacks refute, per image; each contradiction is a bug in the bounds."""

    refuted: Tensor
    """Flags or counts of refuted certificates, images first."""
    certificates: Tensor
    """Flags or counts of certificates, images first."""
    conditions: Conditions
    witness: Callable[[int], dict[str, str]] | None = None
    """Recomputes the point that refutes a certificate of the image at this position, as text."""

    def estimate(self) -> Estimate:
        """Return the number of contradictions."""
        return Estimate(
            quantity="contradictions",
            conditions=self.conditions,
            value=float(self.refuted.sum()),
            low=nan,
            high=nan,
            n=int(self.certificates.sum()),
            method="counted; no interval",
            unit="certificates",
            claim=Claim.LOWER,
            of="certificates that do not hold",
            better="lower",
        )


def findings(
    population: Population,
    rows: Sequence[int],
    all_series: Sequence[Series],
    estimates: Sequence[Estimate],
    checks: Sequence[CrossCheck],
    curves: Sequence[Curve] = (),
    verdicts: Sequence[Verdict] = (),
) -> Findings:
    """Return the findings of the images at ``rows``, with the verdicts of ``checks``."""
    counts = [check.estimate() for check in checks]
    broken = [(check.witness, (check.refuted > 0).nonzero()[:, 0].tolist()) for check in checks if check.witness]
    witnesses = (witness(images[0]) for witness, images in broken if images)
    return Findings(
        ids=tuple(population.images.ids[row] for row in rows),
        series=tuple(all_series),
        estimates=(*estimates, *counts),
        curves=tuple(curves),
        verdicts=(verdict(counts, next(witnesses, {})), *verdicts),
        warnings=warnings(counts),
    )


def verdict(counts: Sequence[Estimate], witness: dict[str, str]) -> Verdict:
    """Return the verdict on certificates from the counts of contradictions; attacks cannot prove them."""
    contradictions, certificates = sum(int(count.value) for count in counts), sum(count.n for count in counts)
    advice = "attacks can refute a certificate, never prove one"
    if contradictions:
        advice = "trust none of them, and report this as a defect"
    elif not certificates:
        advice = "there was nothing to attack"
    return Verdict(
        question=QUESTION,
        status="refuted" if contradictions else "no violation found" if certificates else "unknown",
        reason=f"contradictions: {contradictions:,} of {certificates:,} certificates; {advice}",
        witness=witness,
    )


def warnings(counts: Sequence[Estimate]) -> tuple[str, ...]:
    """Return the warning for numbers whose certificates attacks refute."""
    contradictions = sum(int(count.value) for count in counts)
    if not contradictions:
        return ()
    return (
        f"CONTRADICTION: attacks succeed inside {contradictions} certified balls, so the bounds do not hold for this "
        "encoder; trust no certificate of it, and report the witness in its verdict as a defect.",
    )


def ball_curves(estimates: Sequence[Estimate]) -> tuple[Curve, ...]:
    """Return metrics by ε for balls of one norm, both bounds of a metric in one figure."""
    # What is the same in another unit is left out.
    return radius_curves([_as_drawn(estimate) for estimate in estimates if estimate.better != "neither"])


def _as_drawn(estimate: Estimate) -> Estimate:
    """Return a bound under its metric's name; a plot has one line per attack."""
    case, quantity = dict(estimate.conditions), estimate.quantity
    if "method" in case:
        case["attack"] = f"certified by {case.pop('method')}"
    for prefix in PREFIXES:
        quantity = quantity.removeprefix(prefix)
    return estimate.model_copy(update={"quantity": quantity, "conditions": case})


def survival_curves(
    quantity: str, norm: str, radii: Mapping[str, Float[Tensor, "b *k"]], start: float, end: float
) -> tuple[Curve, ...]:
    """Return the fraction of each kind of ``radii`` above each of ``POINTS`` values from ``start`` to ``end``."""
    grid = tuple(start + (end - start) * step / (POINTS - 1) for step in range(POINTS)) if start < end else ()
    return tuple(
        Curve(
            quantity=quantity,
            conditions={"ball": norm, "attack": kind},
            x_label=f"{norm} radius",
            y_label=f"fraction of {quantity.replace('_', ' ')}",
            x=grid,
            y=share_beyond(values, grid),
        )
        for kind, values in radii.items()
    )


def share_beyond(radii: Float[Tensor, "b *k"], grid: Sequence[float]) -> tuple[float, ...]:
    """Return the fraction of finite ``radii`` above each point of ``grid``."""
    known = np.sort(radii[~radii.isnan()].double().cpu().numpy())
    return tuple((1 - np.searchsorted(known, grid, side="right") / max(1, len(known))).tolist())


def label_share(population: Population, rows: Sequence[int], count: int) -> tuple[Estimate, ...]:
    """Return the fraction of negatives with their anchor's label, if labels are known; matching them is harmless."""
    labels = population.images.labels
    if labels is None:
        return ()
    labels = torch.as_tensor(labels)
    same = (labels[population.random_others(rows, count)] == labels[list(rows)][:, None]).double()
    of, unit = "negatives of the same label", "fraction of negatives"
    shares = series("same_label_negatives", {}, same, unit, Claim.ESTIMATE, of, UNDEFINED)
    # A property of the images, equal for all encoders: no series, so that no distribution is drawn of it.
    return (summarise(shares, "mean", "neither").model_copy(update={"series": None, "statistic": "other"}),)


OPPOSITE = {Claim.UPPER: Claim.LOWER, Claim.LOWER: Claim.UPPER}


@final
@dataclass(frozen=True)
class Bracket:
    """Metric per image with its two bounds: proved and attacked."""

    quantity: str
    values: tuple[Float[Tensor, "n"], Float[Tensor, "n"]]
    """Values of both bounds: certified, attacked."""
    unit: str
    claim: Claim
    """Bound type of the certified values; attacked ones have the opposite type."""
    of: str
    undefined: str
    """Reason for nan values."""
    statistic: Literal["mean", "median", "share"]
    better: Better
    estimate: str = ""
    """Name of the estimates, if it differs from the series."""
    scale: Scale | None = None
    """Denominator of the values, if the images determine it too."""

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


class CertifiedEvaluation(Evaluation):
    """Evaluation of certificates, whose settings say how they are made."""

    samples: int
    method: Method
    attack: Attack
    neurons: int
    arithmetic: str
    partial = True
    needs_gradients = True
    questions: ClassVar[tuple[Question, ...]] = (CONTRADICTIONS,)
    positive: ClassVar[tuple[str, ...]] = ()
    """Settings that are refused unless they are positive."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, *self.positive)

    @property
    def certification(self) -> Certification:
        """Settings that all its observations share."""
        return Certification(self.samples, self.method, self.attack, self.neurons, self.arithmetic)


@dataclass(frozen=True)
class Case:
    """Images of a population, and the ball and the divergence that they are certified in."""

    population: Population
    rows: Sequence[int]
    ball: Ball
    divergence: Divergence


@dataclass(frozen=True)
class BracketEvaluation(CertifiedEvaluation):
    """Brackets in every ball under every divergence, with the attacks set against the certificates."""

    balls: tuple[Ball, ...] = (Linf(0.05), Linf(0.1))
    """Perturbation sets."""
    divergences: tuple[Divergence, ...] = (L2Distance(), Cosine())
    """Distances between embeddings; each evaluation refuses those that it cannot bound."""
    samples: int = 100
    """Number of certified images, the first that the attacked evaluation uses."""
    method: Method = Crown()
    """Bounding method."""
    attack: Attack = AdaptiveAttack()
    """Attack in float64 on what is certified."""
    attacks: tuple[Attack, ...] = ATTACKS
    """Attacks of the attacked evaluation, which close the bracket too."""
    neurons: int = 50_000
    """Largest number of nonlinear units; larger encoders are refused."""
    arithmetic: str = "real"
    """`real` for exact arithmetic, `executed` for floating-point arithmetic; half precision is always executed."""
    reached: ClassVar[Mapping[str, Literal["most", "least"]]]
    """Name of the value that attacks reach, and the function that picks the stronger of two."""

    @abstractmethod
    def bounds(self, ball: Ball, divergence: Divergence) -> Observation:
        """Return the observation of one case."""

    @abstractmethod
    def attacked(self, ball: Ball, divergence: Divergence) -> tuple[Observation, ...]:
        """Return the attacks of the evaluation whose event is certified; equal settings share one computation."""

    @abstractmethod
    def endings(self, seen: Sequence[Observed]) -> list[Codes]:
        """Return the final embeddings of the attacks of ``attacked``, from their tensors."""

    @abstractmethod
    def struck(self, case: Case, ends: Sequence[Codes]) -> Observed:
        """Return the values that attacks reached at these embeddings, in float64; nan if undefined."""

    @abstractmethod
    def ends(self, case: Case) -> list[Pixels]:
        """Run these attacks again and return their final images."""

    @abstractmethod
    def brackets(self, case: Case, values: Observed) -> tuple[Bracket, ...]:
        """Return the brackets of a case from its observed ``values``, in float64."""

    @abstractmethod
    def refuted(self, values: Observed) -> tuple[Tensor, Tensor]:
        """Return the refuted certificates per image (flags or counts), and all certificates."""

    @abstractmethod
    def witness(self, case: Case, image: int) -> dict[str, str]:
        """Return the recomputed point that refutes a certificate of the image at this position of the rows."""

    def observation(self) -> Joint:
        # Bounds first: an encoder that they refuse is not attacked.
        bounds = [self.bounds(ball, divergence) for ball, divergence in self._cases()]
        return Joint((*bounds, *(part for case in self._cases() for part in self.attacked(*case))))

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        ends: list[tuple[Series, Estimate]] = []
        checks: list[CrossCheck] = []
        arithmetic = arithmetic_of(population, self.arithmetic)
        for ball, divergence in self._cases():
            bounds = self.observation().of(self.bounds(ball, divergence), observed)
            values = {name: value.double() for name, value in bounds.items()}
            case = Case(population, rows, ball, divergence)
            values = self._with_attacks(case, values, observed)
            where: Conditions = {"ball": str(ball), "divergence": str(divergence), **arithmetic}
            for bracket in self.brackets(case, values):
                ends += bracket.ends(where, self.method, self.attack)
            witness = partial(self.witness, case)
            checks.append(CrossCheck(*self.refuted(values), {**where, "method": str(self.method)}, witness))
        all_series, estimates = zip(*ends, strict=True)
        return findings(population, rows, all_series, estimates, checks, ball_curves(estimates))

    def _with_attacks(self, case: Case, values: Observed, observed: Observed) -> Observed:
        """Return ``values``, replaced where the attacks of the certified event reached more."""
        seen = [self.observation().of(part, observed) for part in self.attacked(case.ball, case.divergence)]
        struck = self.struck(case, self.endings(seen))
        stronger = self._stronger(values, struck)
        beyond = (self.refuted(stronger)[0] > 0) & ~(self.refuted(values)[0] > 0)
        if beyond.any():
            # These ran in the run's precision, certificates are decided in float64: so are these attacks.
            places = beyond.nonzero()[:, 0].tolist()
            chosen = replace(case, rows=[case.rows[place] for place in places])
            certified = self.certification.encoder(case.population, case.population.pixels(chosen.rows).double())
            again = self.struck(chosen, [certified.codes(each.double()) for each in self.ends(chosen)])
            for name, value in again.items():
                struck[name][places] = value
            stronger = self._stronger(values, struck)
        return stronger

    def _stronger(self, values: Observed, struck: Observed) -> Observed:
        best = {"most": torch.fmax, "least": torch.fmin}
        return {**values, **{name: best[kind](values[name], struck[name]) for name, kind in self.reached.items()}}

    def _cases(self) -> list[tuple[Ball, Divergence]]:
        return list(product(self.balls, self.divergences))


def most(reached: Sequence[Float[Tensor, "b"]]) -> Float[Tensor, "b"]:
    """Return the largest value of several attacks; nan only if all are undefined."""
    largest = torch.stack(list(reached)).double()
    return torch.where(largest.isnan().all(0), torch.nan, largest.nan_to_num(-torch.inf, torch.inf, -torch.inf).amax(0))


SIZES = Sizes(
    quick={"samples": 50, "attack": "adaptive:restarts=1,steps=25"},
    full={"samples": 500, "method": "alpha", "attack": "adaptive:steps=100,restarts=5"},
    heavy={"samples": 8, "attack": "adaptive:restarts=1,steps=2"},
)
BRACKETS = Sizes(
    quick={**ATTACKED.quick, "attack": "adaptive:restarts=1,steps=10"},
    full={**SIZES.full, "attacks": ATTACKED.full["attacks"]},
    large=ATTACKED.large,
    heavy={**ATTACKED.heavy, "attack": "u-fgsm"},
)
"""Sizes of evaluations with brackets; ``quick`` certifies all attacked images."""


def point_witness(
    population: Population, row: int, point: Float[Tensor, "*pixels"], norm: Ball, facts: dict[str, str]
) -> dict[str, str]:
    """Return ``facts`` about a ``point`` near the image at ``row``, how far away it is in ``norm``, and its pixels."""
    distance = norm.norm(point[None] - population.pixels([row]).double())
    # Exactly, as text.
    pixels = b64encode(point.cpu().numpy().astype("<f8").tobytes()).decode()
    return {**facts, "distance": f"{float(distance):.6g}", "pixels_float64_base64": pixels}


def pair_witness(
    population: Population, row: int, pair_attack: PairAttack, result: AttackResult, certified: Tensor, radii: Tensor
) -> dict[str, str]:
    """Return the worst point of the ``certified`` pairs of the image at ``row``, replayed in the run's own precision.

    Args:
        population: the images and their encoder.
        row: the anchor of all pairs.
        pair_attack: the attacks on its pairs alone.
        result: what they found.
        certified: the pairs whose certificate is at stake, (k,).
        radii: the certified radius of each pair, (k,).
    """
    worst = int(result.values.masked_fill(~certified, torch.inf).argmin())
    point = result.points[worst]
    replayed = replay(population, point, pair_attack.pairs.specifications[0, worst])
    facts = {
        "image": population.images.ids[row],
        "negative": pair_attack.pairs.ids[0][1 + worst],
        "certified_radius": f"{float(radii[worst]):.6g}",
        "value_in_float64": f"{float(result.values[worst]):.3g}",
        f"value_in_{population.run.precision}": f"{replayed:.3g}",
    }
    return point_witness(population, row, point, pair_attack.ball, facts)


@without_tf32()
def replay(population: Population, point: Float[Tensor, "*pixels"], specification: Float[Tensor, "d"]) -> float:
    """Return ``W f`` of a witness by the encoder as users run it, in the run's own precision."""
    with torch.no_grad():
        (code,) = population.encoder.forward(point[None].to(population.run.device, population.run.dtype))
    return float((code.to(specification) * specification).sum())


def radius_witness(
    observation: PairRadii, observed: Observed, population: Population, rows: Sequence[int], image: int
) -> dict[str, str]:
    """Return a point inside one of the certified radii of the image at this position of ``rows`` that attacks refuted."""
    pair_attack = observation.pair_attack(population, [rows[image]])
    device = pair_attack.pairs.specifications.device
    radii, wrong = (values[image].to(device) for values in (observed["certified"], refuted(observed)))
    result = cross_check(pair_attack, radii[None].nan_to_num(0))
    if not bool((result.values <= 0).any()):
        _, result = certify_cheaply_and_attack(pair_attack, observation.certification.method, observation.tolerance)
    return pair_witness(population, rows[image], pair_attack, result, wrong, radii)
