"""Whether robustness moved: the attack radii of the reference and of a candidate, paired image by image."""

from __future__ import annotations

import warnings

from holdfast.commands.observing import Observer
from holdfast.commands.parity.sides import Side
from holdfast.core.records import Claim, Estimate, Failure, Result, Series
from holdfast.core.statistics.differences import paired
from holdfast.execution.request import Request, planned
from holdfast.execution.request.loading import Inputs
from holdfast.execution.request.plan import plan_for_large_encoders
from holdfast.execution.table import fill_table

EVALUATION, QUANTITY = "attack-radius", "attack_radius"


def radii_of(side: Side, count: int, request: Request, inputs: Inputs, observer: Observer) -> Result | Failure:
    """Return the attack radii of ``count`` images of one side, as ``evaluate`` finds them, or why there are none."""
    settings = {EVALUATION: {"samples": count, "events": ["retrieval"]}}
    radii_request = request.model_copy(update={"only": (EVALUATION,), "settings": settings, "bank": None})
    shown = [encoder for encoder in inputs.encoders if not encoder.recorded]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # how much quick asks of large encoders is said by evaluate, where it is chosen
        plan = plan_for_large_encoders(radii_request, shown) or planned(radii_request)
    results, failures = fill_table(
        [side.encoder],
        inputs.images,
        plan,
        side.run,
        observer.store,
        observer.engine,
        progress=observer.show,
        budget=observer.budget,
        began=observer.began,
    )
    return results[0] if results else failures[0]


def change(reference: Result | Failure, candidate: Result | Failure) -> Estimate | str:
    """Return how much the median attack radius moved, candidate less reference, or why nobody knows."""
    for outcome in (reference, candidate):
        if isinstance(outcome, Failure):
            return f"Whether robustness moved is not known: {outcome.encoder} could not be attacked ({outcome.reason})"
    assert isinstance(reference, Result)
    assert isinstance(candidate, Result)
    known = set(reference.findings.ids) & set(candidate.findings.ids)
    before, after = (_of(result, known) for result in (reference, candidate))
    moved = paired(after, before, "median", "higher")
    return Estimate(
        quantity=f"{QUANTITY}_change",
        conditions=before.conditions,
        value=moved.value,
        low=moved.low,
        high=moved.high,
        n=moved.n,
        method="paired bootstrap of the difference of medians",
        unit=before.unit,
        claim=Claim.ESTIMATE,
        of="attack radius of the candidate less that of the reference",
        better="higher",
        statistic="whole",
        reason="a median lies beyond the widest radius searched" if moved.value != moved.value else None,
    )


def _of(result: Result, ids: set[str]) -> Series:
    """Return the radii of the images ``ids``, in the order of their names."""
    series = next(each for each in result.series if each.quantity == QUANTITY)
    values = dict(zip(result.findings.ids, series.values, strict=True))
    return series.model_copy(update={"values": tuple(values[name] for name in sorted(ids)), "reasons": {}})
