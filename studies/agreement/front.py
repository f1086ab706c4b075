"""The page of the study that a reader sees first: which numbers predicted attacked probes, in one table."""

from __future__ import annotations

from collections.abc import Iterator

from studies.agreement.conclusions import Agreement
from studies.agreement.judged import Judged
from studies.agreement.limits import UNDEFENDED
from studies.agreement.measures import CLEAN, HEADLINES, JUDGED, RADIUS
from studies.agreement.rankings import Interval
from studies.agreement.real_networks import ALL
from studies.agreement.references import PRIMARY
from studies.agreement.verdicts import deceived
from studies.agreement.words import listed
from studies.common import table

RESULTS = "study-results.md"
TITLES = {
    "overlap": "overlap margin",
    RADIUS: "*adversarial-training radius (from the recipe)*",
    "universal quantile": "universal quantile of the displacement",
}
"""The names of numbers on this page, where the stored results have others."""


def front(judged: Judged) -> list[str]:
    """Return the lines of the page."""
    return [
        "# Which metrics predict downstream robustness?",
        "",
        *_answer(judged),
        "",
        *_table(judged),
        "",
        f"τ is Kendall's rank agreement with the {PRIMARY} of a kNN and a linear probe under attack.",
        "A τ of 1 is the same order, 0 is unrelated.",
        "Brackets are 95% intervals over images and encoders.",
        "*Confirmed*: τ is above 0 on held-out encoders after Holm's correction.",
        "The rule was fixed before these encoders were trained.",
        "",
        "## What to do",
        "",
        f"Ask how an encoder was trained. Then compare {listed(_titles(_confirmed(judged)))}.",
        "Never use one metric alone.",
        f"A trivial encoder (pixels, PCA, untrained, collapsed) ranks first by {_won(judged)} of {len(HEADLINES)} metrics.",
        "",
        "## What it does not say",
        "",
        *_limits(judged),
        "",
        f"[All results]({RESULTS}) · [Claims of the papers]({RESULTS}#which-claims-hold) · [Repeat it](studies.md)",
    ]


def _first(judged: Judged) -> int:
    return len(judged.trained.members)


def _apart(judged: Judged) -> int:
    return len(judged.again.trained.members) if judged.again else 0


def _confirmed(judged: Judged) -> list[str]:
    """Return the metrics whose agreement was confirmed, the training radius left out."""
    claims = judged.again.claims if judged.again else ()
    held = [one for one in claims if one.claim.kind == "agrees" and one.held and one.claim.name != RADIUS]
    return [one.claim.name for one in sorted(held, key=lambda one: one.adjusted)]


def _titles(names: list[str]) -> list[str]:
    return [TITLES.get(name, name) for name in names] or ["several metrics"]


def _answer(judged: Judged) -> Iterator[str]:
    names = _confirmed(judged)
    claim = judged.again.claim(RADIUS, "agrees") if judged.again else None
    who = listed(_titles(names)) if names else "no metric"
    yield f"**Short answer.** On {_apart(judged)} held-out encoders, {who} ranked encoders as attacked probes do."
    if claim and claim.held:
        yield "The adversarial-training radius, which you read off the recipe, also did."
    yield "The other metrics were not confirmed or showed no evidence."


def _table(judged: Judged) -> Iterator[str]:
    heads = [f"first {_first(judged)} encoders, τ", f"{_apart(judged)} held-out encoders, τ"]
    yield from list(table("", ["metric", *heads, "p (Holm)", "verdict"], _rows(judged)))[3:]


def _rows(judged: Judged) -> Iterator[list[str]]:
    """Yield one row for each tested number, by p, and one for all that were not tested."""
    again = judged.again
    tested = [one for one in again.claims if one.claim.kind == "agrees"] if again else []
    for one in sorted(tested, key=lambda one: one.adjusted):
        name, before = one.claim.name, judged.found[one.claim.name, PRIMARY]
        verdict = "**confirmed**" if one.held else "not confirmed"
        first = _value(before.tau, before.over_both)
        yield [TITLES.get(name, name), first, _value(one.value, one.ends), f"{one.adjusted:.3f}", verdict]
    names = {one.claim.name for one in tested}
    empty = [one.measure for one in judged.verdicts if one.kind == "none" and one.measure not in names]
    other = [one.measure for one in judged.verdicts if one.kind == "not judged" and one.measure not in names]
    if empty:
        yield [", ".join(_titles(empty)), "all intervals contain 0", "not tested", "–", "no evidence"]
    if other:
        yield [
            ", ".join(_titles(other)),
            _range([judged.found[name, PRIMARY] for name in other]),
            "not tested",
            "–",
            "not judged",
        ]


def _range(found: list[Agreement]) -> str:
    return "; ".join(_value(one.tau, one.over_both) for one in found)


def _limits(judged: Judged) -> Iterator[str]:
    yield "- The encoders are small networks, and images have 28 or 32 pixels (MNIST, CIFAR-10, Fashion-MNIST)."
    if judged.real:
        count, taus = judged.real.strata[ALL]
        above = [TITLES.get(h.name, h.name) for h in JUDGED if taus[h.name][1].above]
        who = listed(above) if above else "no number"
        yield f"- Among {count} ImageNet networks of 3 families, {who} had τ above 0 (not corrected)."
    alone = judged.again.undefended if judged.again else None
    if alone:
        claim = judged.again.claim(CLEAN, "undefended") if judged.again else None
        outcome = "predicted" if claim and claim.held else "did not predict"
        yield (
            f"- Among {alone.count} held-out encoders without adversarial training, clean accuracy {outcome} "
            f"robustness: τ {_value(*alone.taus[CLEAN])}."
        )
        names = [TITLES.get(name, name) for name in _confirmed(judged) if not alone.taus[name][1].above]
        if names:
            yield f"- Among these encoders, τ of {listed(names)} was not above 0."
    count, taus = judged.strata[UNDEFENDED]
    unclear = [TITLES.get(n, n) for n in _confirmed(judged) if taus and not taus[n][1].above]
    if unclear:
        yield (
            f"- Among the first {count} encoders without adversarial training, τ of {listed(unclear)} was not above 0 "
            "beyond its Monte Carlo error."
        )
    yield "- Most other threats of the study are gradient attacks too, so they confirm little more."


def _won(judged: Judged) -> int:
    zoos = [judged.everyone, *([judged.again.everyone] if judged.again else [])]
    return sum(any(deceived(zoo, headline) for zoo in zoos) for headline in HEADLINES)


def _value(tau: float, ends: Interval) -> str:
    """Return an agreement and its interval as the page prints them.

    Example:
        >>> _value(-0.5, Interval(-0.75, -0.25, -0.8, -0.2))
        '−0.50 [−0.75, −0.25]'
    """
    return f"{tau:.2f} [{ends.low:.2f}, {ends.high:.2f}]".replace("-", "−")
