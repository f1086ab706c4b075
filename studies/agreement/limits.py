"""The part of the page about traps, limits and the measured encoders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from studies.agreement.collected import Found
from studies.agreement.conclusions import FEWEST, Resampled, among, oriented
from studies.agreement.measures import CLEAN, HEADLINES
from studies.agreement.members import FIRST, REFUSED, TITLES, ZOO, Member
from studies.agreement.rankings import LEVEL, Interval, tau
from studies.agreement.references import PRIMARY
from studies.agreement.verdicts import deceived, tied
from studies.agreement.words import Agreements, listed, primary, value
from studies.common import table

Strata = Mapping[str, tuple[int, Mapping[str, tuple[float, Interval]]]]
"""Of each part of the zoo, how many encoders it has, and tau of each measure with its interval unless they are too few."""
UNDEFENDED, TRAINED, EQUAL = "undefended only", "adversarially trained only", "at equal radius"


def stratified(resampled: Resampled) -> Strata:
    """Return agreement with the primary reference among other encoders than all trained ones."""
    found = resampled.found
    published = np.array([member.family == "published" for member in found.members])
    chosen = {
        "with degenerate encoders": np.ones(len(found.members), bool),
        UNDEFENDED: ~found.degenerate & (found.eps == 0),
        TRAINED: ~found.degenerate & (found.eps > 0),
        "not published": ~found.degenerate & ~published,
    }
    strata: dict[str, tuple[int, Mapping[str, tuple[float, Interval]]]] = {
        name: (int(kept.sum()), among(resampled.only(kept)) if kept.sum() >= FEWEST else {})
        for name, kept in chosen.items()
    }
    trained = resampled.only(~found.degenerate)
    return {**strata, EQUAL: (len(trained.found.members), among(trained, trained.found.recipe))}


def by_stratum(strata: Strata) -> Iterator[str]:
    """Yield what to use if all encoders are undefended, and if all are adversarially trained."""
    for name, who in ((UNDEFENDED, "none of your encoders was"), (TRAINED, "all your encoders were")):
        count, taus = strata[name]
        kept = [f"{measure} ({found:+.2f})" for measure, (found, ends) in taus.items() if ends.above]
        if taus:
            yield (
                f"- **If {who} trained against attacks**: τ above 0 among {count} such encoders: "
                f"{listed(kept) if kept else 'none'}. These intervals are from before "
                "[the test](#the-advice-put-to-the-test) and not corrected for the number of metrics."
                f"{_beside_accuracy(taus)}"
            )


def _beside_accuracy(taus: Mapping[str, tuple[float, Interval]]) -> str:
    """Return how many metrics rank such encoders better than clean accuracy does."""
    better = sum(taus[headline.name][0] > taus[CLEAN][0] for headline in HEADLINES)
    return (
        f" {CLEAN.capitalize()} (with labels) has {taus[CLEAN][0]:+.2f} there; {better} of {len(HEADLINES)} metrics have a "
        "larger τ."
    )


def traps(everyone: Found, found: Agreements, strata: Strata) -> Iterator[str]:
    """Yield what can mislead in the agreement, with its size here."""
    yield from ("", "## Traps")
    trained = everyone.only(~everyone.degenerate)
    heads = ["metric", "all trained", *(f"{name} ({count})" for name, (count, _) in strata.items())]
    rows = []
    for one in primary(found):
        cells = [value(*taus[one.measure]) if taus else "too few" for _, taus in strata.values()]
        rows.append([one.measure, value(one.tau, one.over_both), *cells])
    yield from table(f"τ with {PRIMARY} among other sets of encoders (how many)", heads, rows)
    yield ""
    won = [headline.name for headline in HEADLINES if deceived(everyone, headline)]
    yield (
        f"- *Trivial encoders*: {sum(everyone.degenerate)} were measured separately. They rank first by "
        f"{listed(won) if won else 'no metric'}."
    )
    larger = [tau(oriented(trained, headline), trained.eps, trained.dataset) > 0 for headline in HEADLINES]
    served = float(tau(trained.values[PRIMARY], trained.eps, trained.dataset))
    yield (
        "- *Adversarial training drives both sides*: encoders trained in larger balls have a larger "
        f"{PRIMARY} (τ {served:+.2f}), and {sum(larger)} of {len(larger)} metrics call them more robust. So τ may only show "
        "who was adversarially trained. Two columns look at each kind alone. The last column compares only encoders of one "
        "data set and training ball."
    )
    yield "- *500 epochs against 20*: published encoders were trained 25 times as long. One column leaves them out."
    several = sum(count > 1 for count in trained.seeds)
    yield (
        f"- *Seeds are not encoders*: {several} of {len(trained.members)} encoders were measured with several seeds. Their "
        "numbers are averaged and count once."
    )
    yield "- *l2 against cosine*: attacked metrics compare embeddings by l2, nearest neighbours by cosine."
    ties = [(headline.name, tied(trained, headline)) for headline in HEADLINES]
    full = [f"{name} ({share:.0%})" for name, share in ties if share > LEVEL]
    yield (
        f"- *Saturation*: percentage of pairs that a metric cannot tell apart, mostly at an end of its scale: "
        f"{listed(full)}."
        if full
        else f"- *Saturation*: every metric tells at least {1 - LEVEL:.0%} of pairs apart."
    )


def silence(trained: Found, found: Agreements, threatened: bool) -> Iterator[str]:
    """Yield what the study does not show; ``threatened`` says whether other encoders met other threats."""
    yield from ("", "## What this study cannot say", "")
    counts = {name: sum(member.dataset == name for member in trained.members) for name in FIRST}
    few = [f"{TITLES[name]} ({count})" for name, count in counts.items() if count < FEWEST]
    if few:
        yield f"- Anything about {listed(few)} alone: too few encoders."
    other = [member.case for member in trained.members if "vit" in str(member.recipe.get("architecture"))]
    but = f" (except the transformer {listed(other)})" if other else ""
    yield f"- Anything about large encoders: all are small convolutional networks{but} on images of 28 or 32 pixels."
    yield "- Anything about CIFAR-10 as published: these images went through JPEG."
    yield "- Anything about other uses, such as detection or segmentation."
    yield "- Whether stronger attacks would change the order: these take ten steps from one start."
    yield (
        "- Results under other threats: only held-out encoders were measured under them."
        if threatened
        else "- Anything about other threats: the reference is an attack by the same program in the same ball as those of "
        "the attacked metrics, which partly predict themselves."
    )
    missing = [headline.name for headline in HEADLINES if np.isnan(trained.values[headline.name]).all()]
    if missing:
        yield f"- Anything about {listed(missing)}: no encoder has a value."
    yield "- The certified radius under a trained linear head, which was not measured."
    wide = [one for one in primary(found) if one.over_both.high - one.over_both.low > 0.5]
    if wide:
        yield f"- The exact τ of {listed([one.measure for one in wide])}: their intervals are wider than 0.5."


def first_by_nothing(everyone: Found) -> str:
    """Return by which metrics trivial encoders rank before all trained ones, as a line of a list."""
    won = {one.name: by for one in HEADLINES if (by := deceived(everyone, one))}
    names = [f"{name} ({listed([one.case for one in by])})" for name, by in won.items()]
    beaten = sorted((one for by in won.values() for one in by), key=lambda one: one.best)  # not all measure everybody
    first = {one.case: f"{one.case} {one.serves:.3f}, best {one.best:.3f}" for one in beaten}
    areas = f" Their {PRIMARY} and that of the best trained encoder: {'; '.join(first.values())}." if first else ""
    return f"- Trivial encoders rank first by {listed(names) if names else 'no metric'}.{areas}"


def encoders(everyone: Found, planned: Sequence[Member], title: str, wanted: int) -> Iterator[str]:
    """Yield the encoders that were measured with up to ``wanted`` seeds, and those of the plan that were not."""
    yield from ("", f"## {title}")
    heads = ["encoder", "family", "adversarial training", "made", "seeds", CLEAN, PRIMARY]
    rows = [
        [
            member.case,
            member.family,
            f"{member.eps:.3g}" if member.eps else "none",
            member.made,
            str(seeds),
            f"{clean:.2f}",
            f"{robust:.3f}",
        ]
        for member, seeds, clean, robust in zip(
            everyone.members, everyone.seeds, everyone.values[CLEAN], everyone.values[PRIMARY], strict=True
        )
    ]
    yield from table("Measured", heads, rows)
    there = {member.case: seeds for member, seeds in zip(everyone.members, everyone.seeds, strict=True)}
    lacking = [member.case for member in planned if member.case not in {**there, **REFUSED}]
    ended = (
        f"Not measured yet, because the budget ended: {listed(lacking)}." if lacking else "No other encoder is missing."
    )
    once = [case for case, seeds in there.items() if seeds < wanted]
    yield from (
        "",
        *(f"Not measured: {case}, because {why}." for case, why in REFUSED.items() if planned is ZOO),
        ended,
    )
    if wanted == 1:
        return
    yield ""
    yield f"{len(once)} of {len(there)} encoders were measured with fewer than {wanted} seeds. Untrained ones have one seed."
