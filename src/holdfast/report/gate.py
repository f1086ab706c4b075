"""Gates for continuous integration: ``breakaway.breakaway_risk@8/255<=0.05`` must hold for every encoder.

``EVALUATION.QUANTITY[@SELECTOR,...] <= NUMBER``, also with ``>=``, ``<`` or ``>``. The evaluation may be omitted if only
one reports the metric. A selector is a ball (``8/255`` of any norm, or ``linf:8/255``), a condition such as
``divergence=cosine``, or ``encoder=NAME`` for that encoder alone. The worst matching value of each encoder counts. In a
strict check the whole interval must satisfy the bound. A value that is not finite satisfies none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf, isclose, isfinite, isnan
from operator import ge, gt, le, lt
from typing import Literal

from holdfast.core.errors import HoldfastError, NotMeasured, OutOfRange, UnknownName, check_known
from holdfast.core.records import UNFINISHED, Claim, Conditions, Estimate, Failure, Result
from holdfast.core.settings import convert
from holdfast.core.statistics.summaries import is_share
from holdfast.report import text
from holdfast.report.attainable import EXACT, check_attainable, out_of_reach
from holdfast.report.comparison.comparable import labelled
from holdfast.report.comparison.tables import interval

OPERATORS: dict[str, Callable[[float, float], bool]] = {"<=": le, ">=": ge, "<": lt, ">": gt}
FORM = re.compile(
    r"\s*(?:(?P<evaluation>[\w-]+)\.)?(?P<quantity>\w+)\s*(?:@(?P<selectors>.*?))?"
    r"\s*(?P<operator><=|>=|<|>)\s*(?P<bound>[^<>=]+)\s*"
)
SHOWN = 8
"""Conditions that an error names."""
SPELLED = "[EVALUATION.]QUANTITY[@BALL,...]<=NUMBER"


@dataclass(frozen=True)
class Gate:
    """A bound that a quantity must keep."""

    text: str
    evaluation: str | None
    """The evaluation whose number it is; none: the only one that reports the quantity."""
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
        """Return whether ``value`` meets the threshold; an undefined one does not."""
        return OPERATORS[self.operator](value, self.bound)

    @property
    def number(self) -> str:
        """Return the number's name, as the gate spells it."""
        return f"{self.evaluation}.{self.quantity}" if self.evaluation else self.quantity

    def matches(self, estimate: Estimate) -> bool:
        """Return whether the gate applies to ``estimate`` of its evaluation."""
        return estimate.quantity == self.quantity and fits(estimate.conditions, self.radius, self.selectors)

    def concerns(self, *called: str) -> bool:
        """Return whether the gate applies to the encoder with this name."""
        return self.encoder is None or self.encoder in called

    def worst(self, estimates: Sequence[Estimate], strict: bool = False) -> Estimate:
        """Return the estimate that does the gate worst: one that is not finite, else by value, or by the interval's end."""
        sign = 1 if self.limits == "above" else -1

        def harm(estimate: Estimate) -> tuple[bool, bool, float]:
            end = _far_end(self, estimate) if strict else estimate.value
            return not isfinite(estimate.value), isnan(end), sign * end

        return max(estimates, key=harm)


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
        >>> parse("breakaway.breakaway_risk@linf:8/255,divergence=cosine<=0.05").selectors
        {'ball': 'linf', 'divergence': 'cosine'}
        >>> parse("breakaway_risk is small")
        Traceback (most recent call last):
        holdfast.core.errors.HoldfastError: gate 'breakaway_risk is small' needs the form [EVALUATION.]QUANTITY[@BALL,...]...
    """
    if not isinstance(text, str):
        raise HoldfastError(f"a gate is text of the form {SPELLED}, got {text!r}")
    match = FORM.fullmatch(text)
    if match is None:
        raise HoldfastError(
            f"gate {text!r} needs the form {SPELLED}, as in breakaway.breakaway_risk@8/255,divergence=l2<=0.05"
        )
    # Spaces within a name belong to it.
    parts = list(filter(None, map(str.strip, (match["selectors"] or "").split(","))))
    radius, chosen = selectors(parts, f"gate {text!r}")
    bound = convert(match["bound"].strip(), float, f"bound in gate {text!r}")
    encoder = chosen.pop("encoder", None)
    return Gate(text, match["evaluation"], match["quantity"], radius, chosen, encoder, match["operator"], bound)


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
        norm, colon, size = ball.rpartition(":")
        if ball in text.NORMS:
            chosen["ball"] = ball
            continue
        if colon and norm not in text.NORMS:
            raise UnknownName("ball", norm, text.NORMS)
        chosen |= {"ball": norm} if colon else {}
        radius = convert(size, float, f"radius in {where}")
        if not 0 < radius < inf:
            raise OutOfRange(f"radius in {where}", radius, "positive and finite")
    return radius, chosen


def fits(conditions: Conditions, radius: float | None, wanted: Mapping[str, str]) -> bool:
    """Return whether ``conditions`` match the radius and conditions of the gate."""
    return (radius is None or isclose(_radius(conditions), radius, rel_tol=1e-6)) and all(
        # ``adaptive`` also selects ``adaptive:restarts=5``.
        (has := conditions.get(key)) is not None and value in (has, has.partition(":")[0])
        for key, value in wanted.items()
    )


def check(
    gate: Gate,
    results: Sequence[Result],
    failures: Sequence[Failure] = (),
    catalogue: Mapping[str, Sequence[str]] | None = None,
    *,
    strict: bool = False,
    allow_partial: bool = False,
) -> tuple[Answer, ...]:
    """Return for each encoder whether its worst matching value keeps the bound.

    ``catalogue`` says which evaluations report a quantity, of those without a result too: what it names was not measured,
    what no one knows is a mistake. ``strict``: the whole interval must keep the bound. ``allow_partial``: results that a
    budget ended count as others do.

    An encoder that was to be measured but has no matching value fails, because a gate must not open on silence; so does one
    whose values on one set of images are there, and on another could not be computed. And so does one that has collapsed,
    for nothing can break away from a single code.

    Raises:
        HoldfastError: no encoder has the quantity, or none under these conditions; several evaluations report it; the
            encoder is unknown.
    """
    catalogue = catalogue or {}
    _check_measured(gate, results, failures, catalogue)
    asked = _evaluations(gate, results, failures, catalogue)
    telling = [failure for failure in failures if failure.evaluation in asked or failure.error == UNFINISHED]
    every = labelled(results)
    collapsed = {name for name, result in every if result.findings.collapsed}
    found: dict[str, list[tuple[Estimate, Result]]] = {}
    for name, result in every:
        if gate.concerns(name, result.encoder.name, result.encoder.source):
            found.setdefault(name, []).extend(_matching(gate, result) if result.evaluation in asked else ())
    reasons = {failure.encoder: _reason(failure) for failure in (*failures, *telling)}  # of several the last counts
    measured = {result.encoder.name for result in results} | {result.encoder.source for result in results}
    missing = [name for name in reasons if name not in measured]
    # An encoder that was never loaded is called by its source.
    found.update({name: [] for name in missing if gate.concerns(name, name.partition(":")[2])})
    if not any(result.evaluation in asked for result in results):  # failures of other evaluations are no reasons
        told = {failure.encoder for failure in telling}
        measure = f"the run was not asked for it; holdfast evaluate --only {' or '.join(asked)} measures it"
        reasons |= {name: measure for name in found if asked and name not in told}
    if not found:
        names = sorted({*(name for name, _ in every), *missing})
        raise UnknownName(f"gate {gate.text!r}: encoder", gate.encoder or "", names)
    for matching in found.values():
        check_attainable(gate, [estimate for estimate, _ in matching if isfinite(estimate.value)], strict)
    gaps = _gaps(results, telling)

    def answer(name: str, matching: Sequence[tuple[Estimate, Result]]) -> Answer:
        if name in collapsed:
            return Answer(gate, name, False, f"{name} has collapsed: one embedding for all images is useless")
        if name in gaps or not matching:
            where = f" on {gaps[name]}" if name in gaps else f"; {reasons.get(name, 'no result matches')}"
            return Answer(gate, name, False, f"{name}: {gate.number} was not measured{where}")
        return _judged(gate, name, matching, strict, allow_partial)

    return tuple(answer(name, matching) for name, matching in found.items())


def _matching(gate: Gate, result: Result) -> list[tuple[Estimate, Result]]:
    return [(estimate, result) for estimate in result.estimates if gate.matches(estimate)]


def _gaps(results: Sequence[Result], telling: Sequence[Failure]) -> dict[str, str]:
    """Return the encoders with results that miss a number on some images: which, and why."""
    label_of = {name: label for label, r in labelled(results) for name in (r.encoder.name, r.encoder.source)}
    cells = {(r.evaluation, name, r.images.name) for r in results for name in (r.encoder.name, r.encoder.source)}
    return {
        label_of[failure.encoder]: f"{failure.images}; {_reason(failure)}"
        for failure in telling
        if failure.encoder in label_of and (failure.evaluation, failure.encoder, failure.images) not in cells
    }


def _reason(failure: Failure) -> str:
    return f"{failure.evaluation} failed: {failure.reason}" if failure.state == "failed" else failure.reason


def _evaluations(
    gate: Gate, results: Sequence[Result], failures: Sequence[Failure], catalogue: Mapping[str, Sequence[str]]
) -> tuple[str, ...]:
    """Return the evaluations whose numbers the gate speaks of: one, or all that a check adds up."""
    # Those that failed everywhere are among the candidates: no other may answer for them.
    if gate.evaluation:
        return (gate.evaluation,)
    giving = [result for result in results if _matching(gate, result)]
    failed = {failure.evaluation for failure in failures} - {result.evaluation for result in results}
    reported = catalogue.get(gate.quantity, ())
    silent = [name for name in reported if name in failed or not giving]
    names = tuple(dict.fromkeys((*(result.evaluation for result in giving), *silent)))
    together = all(
        any(question.check and gate.quantity in question.quantities for question in result.questions)
        for result in giving
    )
    if len(names) < 2 or together:
        return names
    chosen = _shown_by_reports(gate.quantity, giving)
    matching = [pair for result in giving if result.evaluation == chosen for pair in _matching(gate, result)]
    worst = gate.worst([estimate for estimate, _ in matching])
    whose = next(result.encoder.name for estimate, result in matching if estimate is worst)
    raise HoldfastError(
        f"gate {gate.text!r}: {text.listed(names)} report {gate.quantity}. Name one, as in {chosen}.{gate.quantity}: "
        f"the number that the report shows ({text.value(worst, worst.value)} for {whose})."
    )


def _shown_by_reports(quantity: str, results: Sequence[Result]) -> str:
    """Return the evaluation whose ``quantity`` answers a question, or else stands in the summary."""

    def place(result: Result) -> tuple[int, int]:
        asked = [each.place for each in result.questions if quantity in each.quantities and not each.check]
        if asked:
            return 0, min(asked)
        return (1, result.headline.index(quantity)) if quantity in result.headline else (2, 0)

    return min(results, key=place).evaluation


def warning(gate: Gate, results: Sequence[Result]) -> str:
    """Return a warning if ``gate`` shuts out the better values; empty if it does not."""
    named = [result for result in results if gate.evaluation in (None, result.evaluation)]
    directions = {e.better for result in named for e in result.estimates if e.quantity == gate.quantity}
    if directions != {"lower" if gate.limits == "below" else "higher"}:
        return ""
    turned = gate.operator.translate(str.maketrans("<>", "><"))
    return (
        f"warning: gate {gate.text!r} keeps better encoders out, because {directions.pop()} is better; "
        f"did you mean {gate.number} {turned} {gate.bound:g}?"
    )


def suggested(results: Sequence[Result], evaluation: str, encoder: str, like: Estimate) -> str:
    """Return a gate on the quantity and ball of ``like``, a number of ``evaluation``, that ``encoder`` keeps now.

    Its bound is the worse end of the worst interval, rounded outwards, so that a strict check passes. Empty if there is
    none.
    """
    operator = ">=" if like.better == "higher" else "<="
    try:
        where = as_printed(like.conditions["ball"])
        gate = parse(f"{evaluation}.{like.quantity}@{where},encoder={encoder}{operator}1")
    except HoldfastError:
        return ""  # a name with a comma or a comparison in it cannot be spelled in a gate
    estimates = [
        estimate
        for name, result in labelled(results)
        if result.evaluation == evaluation and gate.concerns(name, result.encoder.name)
        for estimate, _ in _matching(gate, result)
    ]
    if not estimates or not all(
        isfinite(estimate.value) and isfinite(_far_end(gate, estimate)) for estimate in estimates
    ):
        return ""
    times, behind = text.in_print(text.norm_of(like))
    ends = [times * _far_end(gate, estimate) for estimate in estimates]
    bound = _outward(min(ends), 0.95) if operator == ">=" else _outward(max(ends), 1.05)
    # No share is above 1 or below 0, so that such a gate would never shut.
    if is_share(like.unit) and (bound <= 0 if operator == ">=" else bound >= 1):
        return ""
    return gate.text.removesuffix("1") + f"{bound:g}{behind}"


def as_printed(ball: str) -> str:
    """Return the text of a ball with the radius that the report prints, if that is the same ball.

    Example:
        >>> as_printed("linf:0.05"), as_printed("linf:0.0123456"), as_printed("l2:0.5")
        ('linf:12.75/255', 'linf:0.0123456', 'l2:0.5')
    """
    norm, _, size = ball.partition(":")
    if norm not in text.NORMS or not size or "," in size:
        return ball
    printed = f"{norm}:{text.chosen(norm, size)}"
    return printed if fits({"ball": printed}, _radius({"ball": ball}), {}) else ball


def _outward(value: float, factor: float) -> float:
    """Return ``value`` rounded to two digits: up for a ``factor`` above 1; down, if it is positive, for one below.

    Example:
        >>> _outward(0.0101, 1.05), _outward(0.05, 1.05), _outward(0.0109, 0.95)
        (0.011, 0.05, 0.01)
    """
    rounded = float(f"{value:.2g}")
    return rounded if (rounded - value) * (factor - 1) >= 0 else float(f"{value * factor:.2g}")


def _far_end(gate: Gate, estimate: Estimate) -> float:
    """Return the end of the interval that is nearest to breaking the bound; nan where an interval is missing."""
    if estimate.method.endswith(EXACT):
        return estimate.value
    return estimate.high if gate.limits == "above" else estimate.low


def _judged(
    gate: Gate, name: str, matching: Sequence[tuple[Estimate, Result]], strict: bool, allow_partial: bool
) -> Answer:
    failed = partial(Answer, gate, name, False)
    ended = [(estimate, result) for estimate, result in matching if result.planned is not None]
    worst = gate.worst([estimate for estimate, _ in matching], strict)
    unfinished = next((result for estimate, result in ended if estimate is worst), None)
    where = f" at {text.conditions(worst.conditions, aim=worst.aim)}" if worst.conditions else ""
    if isnan(worst.value):
        reason = worst.reason or "no reason given"
        return failed(f"{name}: {gate.number}{where} is undefined; {reason}")
    finding = f"{name}: {gate.number} is {text.value(worst, worst.value)} {interval(worst)}".rstrip() + where
    if not isfinite(worst.value):
        return failed(f"{finding}, which is not finite and keeps no bound")
    if ended and not allow_partial:
        result = unfinished or ended[0][1]
        return failed(
            f"{finding}, but the run ended after {result.looked_at} of {result.planned} samples; run the same command "
            "again to go on, or pass --allow-partial"
        )
    end = _far_end(gate, worst)
    passed = gate.holds(worst.value) and (not strict or gate.holds(end))
    if strict and isnan(end):
        return failed(f"{finding}: a strict check needs an interval")
    if strict and (reason := out_of_reach(gate, worst, end)):
        return failed(f"{finding}: {reason}")
    times, behind = text.in_print(text.norm_of(worst))
    verdict = f"{'keeps' if passed else 'breaks'} {gate.operator} {times * gate.bound:g}{behind}"
    return Answer(gate, name, passed, f"{finding}, {verdict}{_caveat(gate, worst, passed, unfinished)}")


def _caveat(gate: Gate, worst: Estimate, passed: bool, partial: Result | None) -> str:
    open_end = Claim.LOWER if gate.limits == "above" else Claim.UPPER
    parts = []
    if partial is not None:
        parts.append(f"partial: the run ended after {partial.looked_at} of {partial.planned} samples")
    if gate.holds(worst.low) != gate.holds(worst.high):
        upper = (gate.limits == "above") == passed
        parts.append(
            f"uncertain: {'upper' if upper else 'lower'} end {text.value(worst, worst.high if upper else worst.low)}"
        )
    # Contradictions are counted, and are none of the encoder's: nothing stronger is asked of it.
    if passed and worst.claim is open_end and worst.quantity != "contradictions":
        parts.append(
            f"as {'an' if worst.claim is Claim.UPPER else 'a'} {worst.claim} it proves nothing about stronger attacks"
        )
    return f" ({'; '.join(parts)})" if parts else ""


def _check_measured(
    gate: Gate, results: Sequence[Result], failures: Sequence[Failure], catalogue: Mapping[str, Sequence[str]]
) -> None:
    """Raise unless what the gate names is there, or might be if it had been measured."""
    every = [(result.evaluation, estimate) for result in results for estimate in result.estimates]
    if not every:
        if failures:  # of which each is a reason why nothing was measured
            return
        raise HoldfastError(f"no results to check gate {gate.text!r} against; run holdfast evaluate first")
    reporting = dict.fromkeys([e for e, each in every if each.quantity == gate.quantity])
    known = dict.fromkeys((*reporting, *catalogue.get(gate.quantity, ())))
    if not known:
        names = {*(estimate.quantity for _, estimate in every), *catalogue}
        silent = sorted({failure.evaluation for failure in failures} - {result.evaluation for result in results})
        fix = f"{text.listed(silent)} {text.have(silent)} no result, so not all quantities are known" if silent else ""
        raise UnknownName(f"gate {gate.text!r}: quantity", gate.quantity, names, fix)
    if gate.evaluation and gate.evaluation not in known:
        raise UnknownName(f"gate {gate.text!r}: evaluation with {gate.quantity}", gate.evaluation, known)
    estimates = [each for name, each in every if each.quantity == gate.quantity and gate.evaluation in (None, name)]
    if not estimates:
        return
    shares = all(is_share(estimate.unit) for estimate in estimates)
    if shares and (not 0 <= gate.bound <= 1 or not (gate.holds(0.0) or gate.holds(1.0))):
        # Every share answers the gate alike: such a bound is a mistake, most often a percentage.
        percent = f"; for {gate.bound:g}% write {gate.bound / 100:g}" if 1 < gate.bound <= 100 else ""
        raise HoldfastError(
            f"gate {gate.text!r}: {gate.quantity} is a share between 0 and 1, so {gate.operator}{gate.bound:g} says "
            f"nothing about it; give a bound in that range{percent}"
        )
    keys = sorted({key for estimate in estimates for key in estimate.conditions})
    check_known(f"gate {gate.text!r}: setting of {gate.quantity}", gate.selectors, keys)
    if not any(map(gate.matches, estimates)):
        raise _not_measured_there(gate, estimates)


def _not_measured_there(gate: Gate, estimates: Sequence[Estimate]) -> NotMeasured:
    def at(key: str) -> str:
        found = list(dict.fromkeys(as_printed(e.conditions[key]) for e in estimates if key in e.conditions))
        return f"{', '.join(found[:SHOWN])}{f' and {len(found) - SHOWN} more' if len(found) > SHOWN else ''}"

    found, fix = "; ".join(f"{key}={at(key)}" for key in gate.selectors) or at("ball"), ""
    if gate.radius is not None and not any(fits(e.conditions, gate.radius, {}) for e in estimates):
        found, fix = at("ball"), "name one of these, or measure yours with --ball"
    return NotMeasured(f"gate {gate.text!r}: {gate.number}", "under these conditions", found, fix)


def _radius(conditions: Conditions) -> float:
    """Return the radius of the ball that a number was taken in; nan if it was not taken in one."""
    radius = conditions.get("ball", "").partition(":")[2].partition(",")[0]
    return float(convert(radius, float, "radius of a stored ball")) if radius else float("nan")
