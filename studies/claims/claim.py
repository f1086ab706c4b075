"""A claim: a sentence that a paper makes, the rule that decides it, and the function that measures what the rule looks at.

The rule is frozen with the claim, before anything is measured: for each quantity it says where the whole 95% interval must
lie. What it was tested on is part of the claim as well, and decides the words: a paper's own tables, encoders, theorems and
programs bear out or refute it; other encoders that stand in for them show what is seen at small scale, and no more.

A claim holds if every interval lies as claimed. It fails if one of the ``m`` intervals that decide together lies elsewhere
at confidence 1 - .05 / m, the first step of Holm (1979): that any one does so by chance is then as rare as said. Else it is
open. A claim that was left open may be measured again on more: its k-th look is judged at .05 / k. A rule errs on one side
of its intervals, so three looks together are wrong in at most 2.5 + 1.25 + 0.83 = 4.6% of cases; there is no fourth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite, isnan, nan
from typing import Literal

from studies.claims.material import Material
from studies.claims.measured import Measured

Basis = Literal["its tables", "its encoders", "its theorem", "its program", "its definition", "other encoders"]
"""What a claim is tested on; the last stands in for the paper's own."""
Verdict = Literal[
    "holds", "fails", "follows from the definition", "seen at small scale", "not seen at small scale", "open",
    "untestable here",
]  # fmt: skip
LEVEL, LOOKS = 0.05, 3
"""One minus the confidence of a first look, and how many there may be."""


@dataclass(frozen=True)
class Range:
    """Where a claim says that a quantity lies; an end that is no limit is infinite. ``strict``: ends are not included.

    Example:
        >>> print(Range(0.9, 1.1), Range(low=0.9), Range(0, 0), ABOVE, sep=", ")
        from 0.9 to 1.1, at least 0.9, exactly 0, above 0
    """

    low: float = -inf
    high: float = inf
    strict: bool = False

    def __str__(self) -> str:
        if self.low == self.high:
            return f"exactly {self.low:g}"
        if self.high == inf:
            return f"{'above' if self.strict else 'at least'} {self.low:g}"
        if self.low == -inf:
            return f"{'below' if self.strict else 'at most'} {self.high:g}"
        return f"from {self.low:g} to {self.high:g}"

    def holds(self, one: Measured) -> bool:
        """Return whether the whole interval lies in the range."""
        if self.strict:
            return self.low < one.low and one.high < self.high
        return self.low <= one.low and one.high <= self.high

    def fails(self, one: Measured) -> bool:
        """Return whether the whole interval lies outside."""
        return one.high < self.low or one.low > self.high

    def times(self, one: Measured, outside: bool = False) -> float:
        """Return how many times as many units put the interval wholly inside, or outside; infinite if none do.

        Example:
            >>> from studies.claims.measured import Measured
            >>> near = Measured("gain", "here", "mean", [[[0.0, 0.2]]], "images", 100, 1, False, 0.1, -0.1, 0.3)
            >>> ABOVE.times(near), BELOW.times(near), BELOW.times(near, outside=True)
            (4.0, inf, 4.0)
        """
        if isnan(one.low) or isnan(one.high):
            return inf
        below, above = one.value - one.low, one.high - one.value
        if outside:
            gaps = [(above, self.low - one.value), (below, one.value - self.high)]
            return min(float((half / gap) ** 2) if gap > 0 else inf for half, gap in gaps)
        gaps = [(below, one.value - self.low), (above, self.high - one.value)]
        return max(float((half / gap) ** 2) if gap > 0 else inf for half, gap in gaps)


ABOVE, BELOW = Range(low=0.0, strict=True), Range(high=0.0, strict=True)


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper that can be tested.

    ``claimed`` names the quantities that decide, and where the claim says they lie. Quantities that ``measure`` returns
    beside those are shown for the reader and decide nothing.
    """

    name: str
    sentence: str
    source: str
    data: str
    """What it is measured on, and how."""
    claimed: Mapping[str, Range]
    measure: Callable[[Material], Iterable[Measured]] | None = None
    """None for a claim of which nothing can be measured yet."""
    lacks: str = ""
    """What of the claim is not tested, and what is missing for it."""
    untestable: bool = False
    """Whether nothing of it can be tested without what it lacks."""
    on: Basis | Mapping[str, Basis] = "other encoders"
    """What it is tested on, for each quantity where that differs."""
    looks: int = 1
    """How often it was measured: after the first time on more, because it had been left open."""
    refutable: bool = True
    """Whether values elsewhere refute it: those of an example that was chosen before only say that it was chosen badly."""

    @property
    def rule(self) -> str:
        """Return the rule in words."""
        wanted = "; ".join(f"{quantity}: {wanted}" for quantity, wanted in self.claimed.items())
        of_looks = f" (look {self.looks})" if self.looks > 1 else ""
        refuting = "" if self.refutable else "; elsewhere it refutes nothing, for what is measured was chosen"
        return f"the whole {percent(1 - self.level)} interval{of_looks} must lie as claimed ({wanted}){refuting}"

    @property
    def level(self) -> float:
        """Return one minus the confidence of the intervals that the last look is judged by."""
        return LEVEL / self.looks

    def basis(self, quantity: str) -> Basis:
        """Return what the claim is tested on by a quantity."""
        return self.on if isinstance(self.on, str) else self.on[quantity]

    @property
    def _own(self) -> dict[str, Range]:
        """Return what is tested on the paper's own objects."""
        return {name: wanted for name, wanted in self.claimed.items() if self.basis(name) != "other encoders"}

    def verdict(self, found: Sequence[Measured]) -> Verdict:
        """Return what the rule says of what was found, in the words that its basis allows.

        The paper's own objects come first: where they decide nothing, other encoders do not either.
        """
        own = self._own
        outcome = decided(own or self.claimed, found, self.level)
        if self.untestable or outcome == "open" or (outcome == "fails" and not self.refutable):
            return "untestable here" if self.untestable else "open"
        if not own:
            return "seen at small scale" if outcome == "holds" else "not seen at small scale"
        if outcome == "holds" and {self.basis(quantity) for quantity in own} == {"its definition"}:
            return "follows from the definition"
        return outcome

    def would_take(self, found: Sequence[Measured]) -> float:
        """Return how many times as many images and trainings decide at the next look, if values stay; nan if none would."""
        claimed = self._own or self.claimed
        deciding = [(claimed[one.quantity], one) for one in found if one.quantity in claimed]
        if {one.quantity for _, one in deciding} != set(claimed):
            return nan
        by_chance = max(1, sum(one.statistic != "exact" for _, one in deciding))
        level = LEVEL / (self.looks + 1)
        held = max(wanted.times(one.at(1 - level)) for wanted, one in deciding)
        failed = min(wanted.times(one.at(1 - level / by_chance), outside=True) for wanted, one in deciding)
        times = min(held, failed) if self.refutable else held
        return times if isfinite(times) else nan

    def parts(self, found: Sequence[Measured]) -> dict[str, str]:
        """Return what is found of each quantity, where several decide: of an *every* without exception, no contradiction."""
        parts = dict[str, str]()
        for quantity in self.claimed if len(self.claimed) > 1 else ():
            alone = replace(self, claimed={quantity: self.claimed[quantity]}, on=self.basis(quantity))
            said: str = alone.verdict(found)
            counts = [one for one in found if one.quantity == quantity]
            never = self.claimed[quantity] == Range(0, 0) and all(one.value == 0 for one in counts)
            parts[quantity] = "not contradicted" if said == "open" and counts and never else said
        return parts


def percent(confidence: float) -> str:
    """Return a confidence in words.

    Example:
        >>> percent(0.95), percent(1 - 0.05 / 3)
        ('95%', '98.3%')
    """
    return f"{100 * confidence:.3g}%"


def decided(
    claimed: Mapping[str, Range], found: Sequence[Measured], level: float = LEVEL
) -> Literal["holds", "fails", "open"]:
    """Return the outcome, which is wrong at most at ``level``: of nothing measured, that nothing is known."""
    deciding = [(claimed[one.quantity], one) for one in found if one.quantity in claimed]
    by_chance = sum(one.statistic != "exact" for _, one in deciding)
    if any(wanted.fails(one.at(1 - level / max(1, by_chance))) for wanted, one in deciding):
        return "fails"
    complete = {one.quantity for _, one in deciding} == set(claimed)
    return "holds" if complete and all(wanted.holds(one.at(1 - level)) for wanted, one in deciding) else "open"
