"""Gates for continuous integration: ``breakaway_risk@8/255<=0.05`` must hold for every encoder, or the check fails.

``QUANTITY[@SELECTOR,...] <= NUMBER``, with ``>=``, ``<`` or ``>`` as well. A selector is a ball (``8/255`` of any norm, or
``linf:8/255``), a condition such as ``divergence=cosine``, or ``encoder=NAME`` to speak of that encoder alone. The worst
matching value of each encoder counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isclose, isfinite, isnan
from operator import ge, gt, le, lt
from typing import Literal

from holdfast.core.balls import BALLS
from holdfast.core.errors import HoldfastError, did_you_mean
from holdfast.core.records import UNFINISHED, Claim, Conditions, Estimate, Failure, Result
from holdfast.core.settings import convert, read
from holdfast.core.statistics import is_share
from holdfast.report import text
from holdfast.report.comparison.protocol import labels
from holdfast.report.comparison.tables import interval

OPERATORS: dict[str, Callable[[float, float], bool]] = {"<=": le, ">=": ge, "<": lt, ">": gt}
FORM = re.compile(r"\s*(?P<quantity>\w+)\s*(?:@(?P<selectors>.*?))?\s*(?P<operator><=|>=|<|>)\s*(?P<bound>[^<>=]+)\s*")


@dataclass(frozen=True)
class Gate:
    """A bound that a quantity must keep."""

    text: str
    quantity: str
    radius: float | None
    selectors: dict[str, str]
    encoder: str | None
    """The only encoder it speaks of; none: all of them."""
    operator: str
    bound: float

    @property
    def limits(self) -> Literal["above", "below"]:
        """Return on which side the bound shuts."""
        return "above" if self.operator in ("<=", "<") else "below"

    def holds(self, value: float) -> bool:
        """Return whether ``value`` keeps the bound; an undefined one does not."""
        return OPERATORS[self.operator](value, self.bound)

    def matches(self, estimate: Estimate) -> bool:
        """Return whether the gate speaks about ``estimate``."""
        return estimate.quantity == self.quantity and fits(estimate.conditions, self.radius, self.selectors)

    def concerns(self, *called: str) -> bool:
        """Return whether the gate speaks about an encoder that is ``called`` so."""
        return self.encoder is None or self.encoder in called

    def worst(self, estimates: Sequence[Estimate]) -> Estimate:
        """Return the estimate that does the gate worst; an undefined one is worse than any value."""
        sign = 1 if self.limits == "above" else -1
        return max(estimates, key=lambda estimate: (isnan(estimate.value), sign * estimate.value))


@dataclass(frozen=True)
class Answer:
    """Whether one encoder passed one gate, in a sentence."""

    gate: Gate
    encoder: str
    passed: bool
    sentence: str


def parse(text: str) -> Gate:
    """Return the gate that ``text`` spells.

    Example:
        >>> parse("breakaway_risk@linf:8/255,divergence=cosine<=0.05").selectors
        {'ball': 'linf', 'divergence': 'cosine'}
        >>> parse("breakaway_risk is small")
        Traceback (most recent call last):
        holdfast.core.errors.HoldfastError: gate 'breakaway_risk is small' needs the form QUANTITY[@BALL,...]<=NUMBER, ...
    """
    if not isinstance(text, str):
        raise HoldfastError(f"a gate is text of the form QUANTITY[@BALL,...]<=NUMBER, got {text!r}")
    match = FORM.fullmatch(text)
    if match is None:
        raise HoldfastError(
            f"gate {text!r} needs the form QUANTITY[@BALL,...]<=NUMBER, as in breakaway_risk@8/255,divergence=l2<=0.05"
        )
    # Spaces within a name belong to it.
    parts = list(filter(None, map(str.strip, (match["selectors"] or "").split(","))))
    radius, chosen = selectors(parts, f"gate {text!r}")
    bound = convert(match["bound"].strip(), float, f"bound in gate {text!r}")
    encoder = chosen.pop("encoder", None)
    return Gate(text, match["quantity"], radius, chosen, encoder, match["operator"], bound)


def selectors(parts: Sequence[str], where: str) -> tuple[float | None, dict[str, str]]:
    """Return the radius and the conditions that ``parts`` select, as in ``8/255``, ``linf:8/255`` or ``attack=adaptive``.

    ``where`` they were written is for the error.

    Example:
        >>> selectors(["ball=linf:1/4", "k=5"], "here")
        (0.25, {'ball': 'linf', 'k': '5'})
    """
    radius, chosen = None, {}
    for part in parts:
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if equals and key != "ball":
            if key in chosen:
                raise HoldfastError(f"{where}: {key} is given twice; keep one")
            chosen[key] = value
            continue
        if radius is not None or "ball" in chosen:
            raise HoldfastError(f"{where}: more than one ball or radius, {part!r} the second; keep one")
        ball = value if equals else part
        if ":" in ball:
            parsed = read(ball, BALLS, "ball")
            radius, chosen["ball"] = parsed.radius, parsed.name
        elif ball in BALLS:
            chosen["ball"] = ball
        else:
            radius = convert(ball, float, f"radius in {where}")
    return radius, chosen


def fits(conditions: Conditions, radius: float | None, wanted: Mapping[str, str]) -> bool:
    """Return whether a number taken under ``conditions`` is among those that a radius and conditions select."""
    return (radius is None or isclose(_radius(conditions), radius, rel_tol=1e-6)) and all(
        _fits_value(conditions.get(key), value) for key, value in wanted.items()
    )


def check(
    gate: Gate,
    results: Sequence[Result],
    failures: Sequence[Failure] = (),
    catalogue: Mapping[str, Sequence[str]] | None = None,
) -> tuple[Answer, ...]:
    """Return for each encoder whether its worst matching value keeps the bound.

    ``catalogue`` says which evaluations report a quantity, of those without a result too: what it names was not measured,
    what nobody knows is a mistake.

    An encoder that was to be measured but has no matching value fails, for a gate must not open on silence; so does one
    whose values on one set of images are there, and on another could not be computed. And so does one that has collapsed,
    for nothing can break away from a single code.

    Raises:
        HoldfastError: no encoder has the quantity, or none under these conditions; the encoder is unknown.
    """
    _require_measured(gate, results, failures, catalogue or {})
    reporting = (catalogue or {}).get(gate.quantity, ())
    telling = _telling(gate, results, failures, reporting)
    labels_of = labels(results)
    collapsed = {labels_of[r.encoder.name, r.encoder.fingerprint] for r in results if r.findings.collapsed}
    estimates_of: dict[str, list[Estimate]] = {}
    for result in results:
        name = labels_of[result.encoder.name, result.encoder.fingerprint]
        if gate.concerns(name, result.encoder.name, result.encoder.source):
            matching = [estimate for estimate in result.estimates if gate.matches(estimate)]
            estimates_of[name] = estimates_of.get(name, []) + matching
    unfinished = {id(e): result for result in results if result.planned is not None for e in result.estimates}
    reasons = {failure.encoder: _reason(failure) for failure in (*failures, *telling)}  # of several the last counts
    measured = {result.encoder.name for result in results} | {result.encoder.source for result in results}
    missing = [name for name in reasons if name not in measured]
    # An encoder that was never loaded is called by its source.
    estimates_of.update({name: [] for name in missing if gate.concerns(name, name.partition(":")[2])})
    if reporting:  # failures of other evaluations are no reasons
        told = {failure.encoder for failure in telling}
        reasons |= {name: _to_measure(reporting) for name in estimates_of if name not in told}
    gaps = _gaps(results, telling)
    if not estimates_of:
        names = sorted({*labels_of.values(), *missing})
        raise HoldfastError(
            f"gate {gate.text!r}: unknown encoder {gate.encoder!r}; {did_you_mean(gate.encoder or '', names)}"
        )
    return tuple(
        Answer(gate, name, False, f"{name} has collapsed: one code for all images is useless, whatever its numbers")
        if name in collapsed
        else Answer(gate, name, False, f"{name}: {gate.quantity} was not measured on {gaps[name]}")
        if name in gaps
        else _answer(gate, name, worst := gate.worst(estimates), unfinished.get(id(worst)))
        if estimates
        else Answer(
            gate, name, False, f"{name}: {gate.quantity} was not measured; {reasons.get(name, 'no result matches')}"
        )
        for name, estimates in estimates_of.items()
    )


def _gaps(results: Sequence[Result], telling: Sequence[Failure]) -> dict[str, str]:
    """Return the encoders with results that miss a number on some images: which, and why."""
    names = labels(results)
    label_of = {
        name: names[r.encoder.name, r.encoder.fingerprint]
        for r in results
        for name in (r.encoder.name, r.encoder.source)
    }
    cells = {(r.evaluation, name, r.images.name) for r in results for name in (r.encoder.name, r.encoder.source)}
    return {
        label_of[failure.encoder]: f"{failure.images}; {_reason(failure)}"
        for failure in telling
        if failure.encoder in label_of and (failure.evaluation, failure.encoder, failure.images) not in cells
    }


def _reason(failure: Failure) -> str:
    """Return why there is no number: an error, or a run that ended before."""
    return f"{failure.evaluation} failed: {failure.reason}" if failure.state == "failed" else failure.reason


def _to_measure(reporting: Sequence[str]) -> str:
    """Return what to do about a number that the evaluations ``reporting`` it would measure."""
    return f"the run was not asked for it; holdfast evaluate --only {' or '.join(reporting)} measures it"


def _telling(
    gate: Gate, results: Sequence[Result], failures: Sequence[Failure], reporting: Sequence[str]
) -> list[Failure]:
    """Return the failures of evaluations that give this number, and those that stand for all of a stopped run."""
    giving = {r.evaluation for r in results if any(e.quantity == gate.quantity for e in r.estimates)} | {*reporting}
    return [failure for failure in failures if failure.evaluation in giving or failure.error == UNFINISHED]


def warning(gate: Gate, results: Sequence[Result]) -> str:
    """Return a warning if ``gate`` shuts out the better values; empty if it does not."""
    directions = {e.better for result in results for e in result.estimates if e.quantity == gate.quantity}
    if directions != {"lower" if gate.limits == "below" else "higher"}:
        return ""
    turned = gate.operator.translate(str.maketrans("<>", "><"))
    return (
        f"warning: gate {gate.text!r} keeps better encoders out, because {directions.pop()} is better; "
        f"did you mean {gate.quantity} {turned} {gate.bound:g}?"
    )


def suggested(results: Sequence[Result], encoder: str, like: Estimate) -> str:
    """Return a gate on the quantity and ball of ``like`` that ``encoder`` keeps now; empty if there is none.

    Its bound is the upper end of the worst interval, rounded up.
    """
    try:
        gate = parse(f"{like.quantity}@{like.conditions['ball']},encoder={encoder}<=1")
    except HoldfastError:
        return ""  # a name with a comma or a comparison in it cannot be spelled in a gate
    labels_of = labels(results)
    estimates = [
        estimate
        for result in results
        if gate.concerns(labels_of[result.encoder.name, result.encoder.fingerprint], result.encoder.name)
        for estimate in result.estimates
        if gate.matches(estimate)
    ]
    if not estimates or not all(isfinite(estimate.value) and isfinite(estimate.high) for estimate in estimates):
        return ""
    bound = _up(max(estimate.high for estimate in estimates))
    # No share is above 1, so that such a gate would never shut.
    return "" if is_share(like.unit) and bound >= 1 else gate.text.removesuffix("1") + f"{bound:g}"


def _up(value: float) -> float:
    """Return ``value`` rounded up to two digits.

    Example:
        >>> _up(0.0101), _up(0.05)
        (0.011, 0.05)
    """
    rounded = float(f"{value:.2g}")
    return rounded if rounded >= value else float(f"{value * 1.05:.2g}")


def _answer(gate: Gate, name: str, worst: Estimate, partial: Result | None) -> Answer:
    where = f" at {text.conditions(worst.conditions, aim=worst.aim)}" if worst.conditions else ""
    if isnan(worst.value):
        return Answer(
            gate, name, False, f"{name}: {gate.quantity}{where} is undefined; {worst.reason or 'no reason given'}"
        )
    passed = gate.holds(worst.value)
    finding = f"{name}: {gate.quantity} is {text.value(worst, worst.value)} {interval(worst)}".rstrip() + where
    verdict = f"{'keeps' if passed else 'breaks'} {gate.operator} {gate.bound:g}"
    return Answer(gate, name, passed, f"{finding}, {verdict}{_caveat(gate, worst, passed, partial)}")


def _caveat(gate: Gate, worst: Estimate, passed: bool, partial: Result | None) -> str:
    """Return what a reader should know of an answer that the bare comparison hides."""
    open_end = Claim.LOWER if gate.limits == "above" else Claim.UPPER
    parts = []
    if partial is not None:
        parts.append(f"partial: the run ended after {partial.looked_at} of {partial.planned} samples")
    if gate.holds(worst.low) != gate.holds(worst.high):
        parts.append("its interval contains the bound")
    # Contradictions are counted, and are none of the encoder's: nothing stronger is asked of it.
    if passed and worst.claim is open_end and worst.quantity != "contradictions":
        parts.append(
            f"as {'an' if worst.claim is Claim.UPPER else 'a'} {worst.claim} it proves nothing about stronger attacks"
        )
    return f" ({'; '.join(parts)})" if parts else ""


def _require_measured(
    gate: Gate, results: Sequence[Result], failures: Sequence[Failure], catalogue: Mapping[str, Sequence[str]]
) -> None:
    every = [estimate for result in results for estimate in result.estimates]
    if not every:
        if failures:  # of which each is a reason why nothing was measured
            return
        raise HoldfastError(f"no results to check gate {gate.text!r} against; run holdfast evaluate first")
    estimates = [estimate for estimate in every if estimate.quantity == gate.quantity]
    if not estimates and gate.quantity in catalogue:
        return
    if not estimates:
        names = {estimate.quantity for estimate in every}
        hint = did_you_mean(gate.quantity, sorted({*names, *catalogue})).partition("known: ")[0]
        raise HoldfastError(
            f"gate {gate.text!r}: unknown quantity {gate.quantity!r}; {hint}measured here: {', '.join(sorted(names))}"
            f"{_silent(results, failures)}"
        )
    if all(is_share(estimate.unit) for estimate in estimates):
        _require_possible_bound(gate)
    keys = sorted({key for estimate in estimates for key in estimate.conditions})
    for key in gate.selectors:
        if key not in keys:
            raise HoldfastError(
                f"gate {gate.text!r}: {gate.quantity} has no condition {key!r}; {did_you_mean(key, keys)}"
            )
    if not any(map(gate.matches, estimates)):
        offered = dict.fromkeys(", ".join(f"{k}={v}" for k, v in estimate.conditions.items()) for estimate in estimates)
        raise HoldfastError(
            f"gate {gate.text!r}: nothing matches; {gate.quantity} was measured at {'; '.join(offered)}"
        )


def _silent(results: Sequence[Result], failures: Sequence[Failure]) -> str:
    """Return which evaluations have no result, for nobody knows all that these would report; empty if all have."""
    names = sorted({failure.evaluation for failure in failures} - {result.evaluation for result in results})
    return f"; what else {text.listed(names)} would report is not known, for want of a result" if names else ""


def _require_possible_bound(gate: Gate) -> None:
    """Raise if every share answers the gate alike: such a bound is a mistake, most often a percentage."""
    if not 0 <= gate.bound <= 1 or not (gate.holds(0.0) or gate.holds(1.0)):
        percent = f"; for {gate.bound:g}% write {gate.bound / 100:g}" if 1 < gate.bound <= 100 else ""
        raise HoldfastError(
            f"gate {gate.text!r}: {gate.quantity} is a share between 0 and 1, so {gate.operator}{gate.bound:g} says "
            f"nothing about it; give a bound in that range{percent}"
        )


def _radius(conditions: Conditions) -> float:
    """Return the radius of the ball that a number was taken in; nan if it was not taken in one."""
    radius = conditions.get("ball", "").partition(":")[2].partition(",")[0]
    return float(convert(radius, float, "radius of a stored ball")) if radius else float("nan")


def _fits_value(has: str | None, wanted: str) -> bool:
    """Return whether a condition is the one wanted; ``adaptive`` also selects ``adaptive:restarts=5``."""
    return has is not None and (has == wanted or has.partition(":")[0] == wanted)
