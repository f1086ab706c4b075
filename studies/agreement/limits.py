"""The part of the study's page about what misleads, what one study cannot say, and which encoders it is about."""

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
UNDEFENDED, TRAINED, EQUAL = "undefended alone", "adversarially trained alone", "at equal radius"


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
    """Yield what to use where all encoders are undefended, and where all were trained against attacks."""
    for name, who in ((UNDEFENDED, "none of your encoders was"), (TRAINED, "all your encoders were")):
        count, taus = strata[name]
        kept = [f"{measure} ({found:+.2f})" for measure, (found, ends) in taus.items() if ends.above]
        if taus:
            said = f"{listed(kept)} had a tau above 0" if kept else "no number had a tau above 0"
            yield (
                f"- If {who} trained against attacks: among such alone {said} ({count} encoders, intervals not corrected "
                f"for the number of measures), before [the test](#the-advice-put-to-the-test).{_beside_accuracy(taus)}"
            )


def _beside_accuracy(taus: Mapping[str, tuple[float, Interval]]) -> str:
    """Return how many measures rank such encoders better than clean accuracy does."""
    better = [headline.name for headline in HEADLINES if taus[headline.name][0] > taus[CLEAN][0]]
    which = f"{len(better)} of {len(HEADLINES)} measures have" if better else f"none of {len(HEADLINES)} measures has"
    return f" Clean accuracy, with labels, has {taus[CLEAN][0]:+.2f} there, and {which} a larger tau."


def traps(everyone: Found, found: Agreements, strata: Strata) -> Iterator[str]:
    """Yield what can mislead in the agreement found, each trap with what is seen of it here."""
    yield from ("", "## Traps")
    trained = everyone.only(~everyone.degenerate)
    heads = ["measure", "all trained", *(f"{name} ({count})" for name, (count, _) in strata.items())]
    rows = []
    for one in primary(found):
        cells = [value(*taus[one.measure]) if taus else "too few" for _, taus in strata.values()]
        rows.append([one.measure, value(one.tau, one.over_both), *cells])
    yield from table(f"Tau with {PRIMARY} among other encoders (how many)", heads, rows)
    yield ""
    won = [headline.name for headline in HEADLINES if deceived(everyone, headline)]
    yield (
        f"- *Encoders that learned nothing*: {sum(everyone.degenerate)} were measured apart. "
        + (f"They win under {listed(won)}, which may therefore mislead alone." if won else "They win under no measure.")
    )
    larger = [tau(oriented(trained, headline), trained.eps, trained.dataset) > 0 for headline in HEADLINES]
    served = float(tau(trained.values[PRIMARY], trained.eps, trained.dataset))
    yield (
        "- *Adversarial training drives both sides*: encoders trained in larger balls have a larger "
        f"{PRIMARY} (tau {served:+.2f}), and {sum(larger)} of {len(larger)} measures call them more robust. So tau may be "
        "about who was so trained: two columns look at each kind alone, and the last one compares only encoders of one data "
        "set that were trained in the same ball."
    )
    yield "- *500 epochs against 20*: published encoders were trained 25 times as long. One column leaves them out."
    several = sum(count > 1 for count in trained.seeds)
    yield (
        f"- *Seeds are not encoders*: {several} of {len(trained.members)} encoders were measured with several seeds, whose "
        "numbers were averaged; they count once."
    )
    yield "- *l2 against cosine*: attacked measures compare codes by l2, nearest neighbours by cosine; these may differ."
    ties = [(headline.name, tied(trained, headline)) for headline in HEADLINES]
    full = [f"{name} ({share:.0%})" for name, share in ties if share > LEVEL]
    yield (
        f"- *Saturation*: {listed(full)} cannot tell this share of pairs apart, mostly at an end of their scale."
        if full
        else f"- *Saturation*: every measure tells at least {1 - LEVEL:.0%} of pairs apart."
    )


def silence(trained: Found, found: Agreements, threatened: bool) -> Iterator[str]:
    """Yield what nobody should read into the study; ``threatened`` says whether others met other threats."""
    yield from ("", "## What this study cannot say", "")
    counts = {name: sum(member.dataset == name for member in trained.members) for name in FIRST}
    few = [f"{TITLES[name]} ({count})" for name, count in counts.items() if count < FEWEST]
    if few:
        yield f"- Anything about {listed(few)} by itself: that is too few encoders of it."
    other = [member.case for member in trained.members if "vit" in str(member.recipe.get("architecture"))]
    but = f", but for the transformer {listed(other)}," if other else ""
    yield f"- Anything about large encoders: all are small convolutional networks{but} on images of 28 or 32 pixels."
    yield "- Anything about CIFAR-10 as it is published: these images went through JPEG."
    yield "- Anything about other uses than those listed: detection or segmentation."
    yield "- Whether stronger attacks would change the order: these take ten steps from one start."
    yield (
        "- How these encoders fare under other threats: that was measured of encoders kept apart alone."
        if threatened
        else "- Anything about other threats: the reference is an attack by the same program in the same ball as those of "
        "the attacked measures, which in part foretell themselves."
    )
    missing = [headline.name for headline in HEADLINES if np.isnan(trained.values[headline.name]).all()]
    if missing:
        yield f"- Anything about {listed(missing)}, which no encoder has a value of."
    yield "- The certified radius under a trained linear head, which was not measured."
    wide = [one for one in primary(found) if one.over_both.high - one.over_both.low > 0.5]
    if wide:
        yield f"- Where {listed([one.measure for one in wide])} stand exactly: their intervals are wider than half a tau."


def first_by_nothing(everyone: Found) -> str:
    """Return by which measures encoders that learned nothing come out before all trained ones, as a line of a list."""
    won = {one.name: by for one in HEADLINES if (by := deceived(everyone, one))}
    names = [f"{name} ({listed([one.case for one in by])})" for name, by in won.items()]
    beaten = sorted((one for by in won.values() for one in by), key=lambda one: one.best)  # not all measure everybody
    first = {one.case: f"{one.case} {one.serves:.3f}, best {one.best:.3f}" for one in beaten}
    areas = f" Their {PRIMARY} and that of the best trained one: {'; '.join(first.values())}." if first else ""
    return f"- Encoders that learned nothing come out first by {listed(names) if names else 'no measure'}.{areas}"


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
    ended = f"Not measured yet, for the budget ended: {listed(lacking)}." if lacking else "Nobody else is missing."
    once = [case for case, seeds in there.items() if seeds < wanted]
    yield from (
        "",
        *(f"Not measured: {case}, for {why}." for case, why in REFUSED.items() if planned is ZOO),
        ended,
    )
    if wanted == 1:
        return
    yield ""
    yield f"{len(once)} of {len(there)} were measured with fewer than {wanted} seeds; those that are not trained have one."
