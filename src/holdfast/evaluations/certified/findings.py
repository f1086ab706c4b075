"""What certificates and attacks on pairs have in common when they are reported."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from math import nan

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from holdfast.core.balls import Ball
from holdfast.core.encoder import Pixels
from holdfast.core.records import Claim, Conditions, Curve, Estimate, Findings, Series, Verdict
from holdfast.core.statistics import summarise
from holdfast.evaluations.certified.pair_attack import AttackResult, PairAttack
from holdfast.evaluations.certified.pairs import UNDEFINED
from holdfast.protocol.population import Population

QUESTION = "Does every certificate withstand attack?"


def over_negatives(
    quantity: str, conditions: Conditions, values: Float[Tensor, "b k"], unit: str, claim: Claim, of: str
) -> Series:
    """Return the mean over each anchor's negatives as a series; undefined pairs are left out of it."""
    return series(quantity, conditions, values.double().nanmean(1), unit, claim, of, UNDEFINED)


def series(
    quantity: str, conditions: Conditions, values: Float[Tensor, "b"], unit: str, claim: Claim, of: str, reason: str
) -> Series:
    """Return one value per image as a series; those that are nan are missing for ``reason``."""
    numbers = values.double().cpu().tolist()
    return Series(
        quantity=quantity,
        conditions=conditions,
        values=tuple(numbers),
        unit=unit,
        claim=claim,
        of=of,
        reasons={position: reason for position, value in enumerate(numbers) if value != value},
    )


def contradictions(refuted: Bool[Tensor, "b k"], certificates: int, conditions: Conditions) -> Estimate:
    """Return how many of the ``certificates`` an attack refutes: anything but 0 is a defect of the bounds."""
    return counted(refuted, torch.tensor(certificates), conditions)


def counted(refuted: Tensor, certificates: Tensor, conditions: Conditions) -> Estimate:
    """Return the number of contradictions where both were counted image by image."""
    count = float(refuted.sum())
    return Estimate(
        quantity="contradictions",
        conditions=conditions,
        value=count,
        low=nan,
        high=nan,
        n=int(certificates.sum()),
        method="counted; no interval",
        unit="certificates",
        claim=Claim.LOWER,
        of="certificates that do not hold",
        better="lower",
    )


def verdict(found: Sequence[Estimate], proof: dict[str, str]) -> Verdict:
    """Return what attacks on certificates say of them: they can refute, never prove."""
    count, all_ = sum(int(estimate.value) for estimate in found), sum(estimate.n for estimate in found)
    advice = "attacks can refute a certificate, never prove one"
    if count:
        advice = "trust none of them, and report this as a defect"
    elif not all_:
        advice = "there was nothing to attack"
    return Verdict(
        question=QUESTION,
        status="refuted" if count else "no violation found" if all_ else "unknown",
        reason=f"contradictions: {count:,} of {all_:,} certificates; {advice}",
        witness=proof,
    )


def alarm(found: Sequence[Estimate]) -> tuple[str, ...]:
    """Return the sentence that must stand beside every number if attacks refute certificates."""
    count = sum(int(estimate.value) for estimate in found)
    if not count:
        return ()
    return (
        f"CONTRADICTION: attacks succeed inside {count} certified balls, so the bounds do not hold for this encoder; "
        "trust no certificate of it, and report the witness in its verdict as a defect.",
    )


def witness(
    population: Population,
    pair_attack: PairAttack,
    found: AttackResult,
    certified: Bool[Tensor, "k"],
    radius: float | Tensor,
) -> dict[str, str]:
    """Return the worst point ``found`` of a ``certified`` pair, replayed on the module in the run's own precision.

    All pairs belong to one anchor; ``radius`` is that of each certificate, or of all.
    """
    worst = int(found.values.masked_fill(~certified, torch.inf).argmin())
    point = found.points[worst : worst + 1]
    code = population.encode(point.to(population.run.dtype))[0]
    replayed = (pair_attack.pairs.rows[0, worst] * code).sum()
    return {
        "image": pair_attack.pairs.ids[0][0],
        "negative": pair_attack.pairs.ids[0][1 + worst],
        "certified_radius": f"{float(torch.as_tensor(radius).expand(len(certified))[worst]):.6g}",
        "distance": f"{float(pair_attack.sizes(found.points)[worst]):.6g}",
        "value_in_float64": f"{float(found.values[worst]):.3g}",
        f"value_in_{population.run.precision}": f"{float(replayed):.3g}",
        "pixels_float64_base64": spelled(point),
    }


def witness_of(population: Population, row: int, point: Pixels, ball: Ball, facts: dict[str, str]) -> dict[str, str]:
    """Return ``facts`` about a ``point`` in the ball around the image at ``row`` that refutes a certificate, and itself."""
    distance = ball.norm(point[None] - population.pixels([row]).double())
    return {
        **facts,
        "ball": str(ball),
        "distance": f"{float(distance):.6g}",
        "pixels_float64_base64": spelled(point),
    }


def spelled(point: Tensor) -> str:
    """Return pixels exactly, as text."""
    return b64encode(point.cpu().numpy().astype("<f8").tobytes()).decode()


def bracket_curves(estimates: Sequence[Estimate], balls: Sequence[Ball]) -> tuple[Curve, ...]:
    """Return quantities by radius where balls of one norm differ: what is certified and what is attacked in one figure."""
    by_text = {str(ball): ball for ball in balls}
    lines: dict[tuple[str, tuple[tuple[str, str], ...]], list[tuple[float, Estimate]]] = {}
    for estimate in estimates:
        if estimate.better == "neither":  # the same in another unit
            continue
        case = dict(estimate.conditions)
        ball = by_text[case["ball"]]
        case["ball"] = ball.name
        # Figures draw what differs in the attack alone as lines of one plot.
        case["attack"] = f"certified by {case.pop('method')}" if "method" in case else case["attack"]
        quantity = estimate.quantity.removeprefix("certified_").removeprefix("attacked_")
        lines.setdefault((quantity, tuple(case.items())), []).append((ball.radius, estimate))
    return tuple(
        Curve(
            quantity=quantity,
            conditions=dict(case),
            x_label=f"{dict(case)['ball']} radius",
            y_label=quantity.replace("_", " "),
            x=tuple(radius for radius, _ in points),
            y=tuple(estimate.value for _, estimate in points),
            low=tuple(estimate.low for _, estimate in points),
            high=tuple(estimate.high for _, estimate in points),
        )
        for (quantity, case), found in lines.items()
        if len(points := sorted(found, key=lambda point: point[0])) > 1
    )


def both_ends(
    population: Population,
    rows: Sequence[int],
    found: Sequence[Series],
    estimates: Sequence[Estimate],
    counts: Sequence[Estimate],
    proof: dict[str, str],
    balls: Sequence[Ball],
) -> Findings:
    """Return what is certified and attacked in several ``balls``, with the contradictions and the ``proof`` of one."""
    return Findings(
        ids=tuple(population.images.ids[row] for row in rows),
        series=tuple(found),
        estimates=(*estimates, *counts),
        curves=bracket_curves(estimates, balls),
        verdicts=(verdict(counts, proof),),
        warnings=alarm(counts),
    )


def label_share(population: Population, rows: Sequence[int], count: int) -> tuple[Estimate, ...]:
    """Return how many negatives carry their anchor's own label, if labels are known: being taken for those is no harm."""
    labels = population.images.labels
    if labels is None:
        return ()
    labels = torch.as_tensor(labels)
    same = labels[population.others(rows, count)] == labels[list(rows)][:, None]
    of, unit = "negatives of the same label", "share of negatives"
    series = over_negatives("same_label_negatives", {}, same.double(), unit, Claim.ESTIMATE, of)
    # A property of the images, equal for all encoders: no series, so that no distribution is drawn of it.
    return (summarise(series, "mean", "neither").model_copy(update={"series": None, "statistic": "other"}),)


def share_beyond(radii: Float[Tensor, "b k"], grid: Sequence[float]) -> tuple[float, ...]:
    """Return the share of defined pairs whose radius is above each point of ``grid``."""
    known = np.sort(radii[~radii.isnan()].double().cpu().numpy())
    return tuple((1 - np.searchsorted(known, grid, side="right") / max(1, len(known))).tolist())
