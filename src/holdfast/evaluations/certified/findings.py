"""How certificates and the attacks on them are reported: series, curves, contradictions, verdict and warnings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import nan

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from holdfast.core.records import Claim, Conditions, Curve, Estimate, Findings, Question, Series, Verdict
from holdfast.core.statistics import Better, summarise
from holdfast.core.statistics.series import series_of
from holdfast.evaluations.certified.pairwise.pairs import UNDEFINED
from holdfast.protocol.curves import radius_curves
from holdfast.protocol.population import Population

QUESTION = "Does every certificate withstand attack?"
POINTS = 81
"""Of a curve."""
PREFIXES = ("certified_", "attacked_", "robust_")
"""How the names of the two bounds of one quantity begin."""


def series(
    quantity: str, conditions: Conditions, values: Float[Tensor, "b *k"], unit: str, claim: Claim, of: str, reason: str
) -> Series:
    """Return one value per image: the mean of its values that are not nan; without one it is missing for ``reason``."""
    values = values.double().cpu()
    means = values if values.ndim == 1 else values.nanmean(1)
    return series_of(quantity, conditions, means, unit, claim, of, reason)


def influence(
    radii: Series, values: Float[Tensor, "b k"], rows: Sequence[int], negatives: Int[Tensor, "b k"]
) -> Series:
    """Return the mean of ``radii`` over pairs as each image moves it: as an anchor, and as a negative of other anchors.

    Anchors share negatives, so their values are not independent; these are, to first order (Hoeffding 1948).
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
    """Return the mean of ``radii`` with the interval that ``influences`` give it."""
    estimate = summarise(influences, "mean", better, quantity or radii.quantity)
    return estimate.model_copy(update={"value": summarise(radii, "mean", better).value})


CONTRADICTIONS = Question(
    place=80,
    text="Do the proofs withstand attack?",
    quantities=("contradictions",),
    meaning="certificates that an attack entered",
    check=True,
)
"""Asked of all certificates together."""


@dataclass(frozen=True)
class CrossCheck:
    """Which certificates attacks refute, image by image: any contradiction is a defect of the bounds."""

    refuted: Tensor
    """Flags or counts; the first axis runs over images."""
    certificates: Tensor
    """Flags or counts of what was certified."""
    conditions: Conditions
    witness: Callable[[int], dict[str, str]] | None = None
    """Recomputes and spells the point that refutes a certificate of the image at this position."""

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
    """Return what was found of the images at ``rows``, with what ``checks`` say of its certificates."""
    counts = [check.estimate() for check in checks]
    return Findings(
        ids=tuple(population.images.ids[row] for row in rows),
        series=tuple(all_series),
        estimates=(*estimates, *counts),
        curves=tuple(curves),
        verdicts=(verdict(counts, first_witness(checks)), *verdicts),
        warnings=warnings(counts),
    )


def first_witness(checks: Sequence[CrossCheck]) -> dict[str, str]:
    """Return the witness of the first contradiction, recomputed: all of it is drawn from the image's own noise stream."""
    for check in checks:
        images = (check.refuted > 0).nonzero()[:, 0].tolist()
        if images and check.witness:
            return check.witness(images[0])
    return {}


def verdict(counts: Sequence[Estimate], witness: dict[str, str]) -> Verdict:
    """Return what the counts of contradictions say of certificates: attacks can refute them, never prove them."""
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
    """Return the sentence that must stand beside every number if attacks refute certificates."""
    contradictions = sum(int(count.value) for count in counts)
    if not contradictions:
        return ()
    return (
        f"CONTRADICTION: attacks succeed inside {contradictions} certified balls, so the bounds do not hold for this "
        "encoder; trust no certificate of it, and report the witness in its verdict as a defect.",
    )


def ball_curves(estimates: Sequence[Estimate]) -> tuple[Curve, ...]:
    """Return quantities by the radius of the ball, where balls of one norm differ: both bounds of each in one figure."""
    # What is the same in another unit is left out.
    return radius_curves([_as_drawn(estimate) for estimate in estimates if estimate.better != "neither"])


def _as_drawn(estimate: Estimate) -> Estimate:
    """Return a bound under the name of its quantity; figures draw what differs in the attack alone as lines of one plot."""
    case, quantity = dict(estimate.conditions), estimate.quantity
    if "method" in case:
        case["attack"] = f"certified by {case.pop('method')}"
    for prefix in PREFIXES:
        quantity = quantity.removeprefix(prefix)
    return estimate.model_copy(update={"quantity": quantity, "conditions": case})


def survival_curves(
    quantity: str, norm: str, radii: Mapping[str, Float[Tensor, "b *k"]], start: float, end: float
) -> tuple[Curve, ...]:
    """Return the share whose radius is above each of ``POINTS`` from ``start`` to ``end``, for each kind of ``radii``."""
    grid = tuple(start + (end - start) * step / (POINTS - 1) for step in range(POINTS)) if start < end else ()
    return tuple(
        Curve(
            quantity=quantity,
            conditions={"ball": norm, "attack": kind},
            x_label=f"{norm} radius",
            y_label=f"share of {quantity.replace('_', ' ')}",
            x=grid,
            y=share_beyond(values, grid),
        )
        for kind, values in radii.items()
    )


def share_beyond(radii: Float[Tensor, "b *k"], grid: Sequence[float]) -> tuple[float, ...]:
    """Return the share of ``radii`` above each point of ``grid``; those that are nan do not count."""
    known = np.sort(radii[~radii.isnan()].double().cpu().numpy())
    return tuple((1 - np.searchsorted(known, grid, side="right") / max(1, len(known))).tolist())


def label_share(population: Population, rows: Sequence[int], count: int) -> tuple[Estimate, ...]:
    """Return how many negatives carry their anchor's own label, if known: being mistaken for those is no harm."""
    labels = population.images.labels
    if labels is None:
        return ()
    labels = torch.as_tensor(labels)
    same = (labels[population.others(rows, count)] == labels[list(rows)][:, None]).double()
    of, unit = "negatives of the same label", "share of negatives"
    shares = series("same_label_negatives", {}, same, unit, Claim.ESTIMATE, of, UNDEFINED)
    # A property of the images, equal for all encoders: no series, so that no distribution is drawn of it.
    return (summarise(shares, "mean", "neither").model_copy(update={"series": None, "statistic": "other"}),)
