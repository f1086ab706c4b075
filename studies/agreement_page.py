"""The part of the study's page about agreement: what to use for what, how sure that is, and what one study cannot say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path

import numpy as np

from studies import figures, measures, references
from studies.agreement import LEVEL, detectable
from studies.collected import SEEDS, Found, read
from studies.common import table
from studies.conclusions import FEWEST, SCALE, Agreement, choices, concluded
from studies.measures import HEADLINES
from studies.references import CLEAN, PRIMARY, REFERENCES
from studies.verdicts import Verdict, deceived, tied, verdict
from studies.zoo import ZOO

FIGURES = "images/study"
Agreements = Mapping[tuple[str, str], Agreement]


def render(folder: Path) -> tuple[list[str], dict[str, str]]:
    """Return the lines of the section and its figures by path."""
    everyone = read(folder)
    trained = everyone.only(~everyone.degenerate)
    found = concluded(trained)
    verdicts = [verdict(found[headline.name, PRIMARY]) for headline in HEADLINES]
    lines = [
        *_advice(trained, everyone, found, verdicts),
        *_measured(trained),
        *_agreements(found),
        *_doubts(trained, found, verdicts),
        *_choices(trained),
        *_traps(trained, everyone, found),
        *_silence(trained, found),
        *_encoders(everyone),
    ]
    drawn = {
        f"{FIGURES}/agreement.svg": figures.heat_map(found),
        f"{FIGURES}/scatters.svg": figures.scatters(_panels(trained), PRIMARY),
    }
    return lines, drawn


def _panels(found: Found) -> list[tuple[str, list[tuple[float, float, str, str]]]]:
    y = found.values[PRIMARY]
    return [
        (
            headline.name,
            [
                (float(x), float(reference), member.family, member.dataset)
                for x, reference, member in zip(found.values[headline.name], y, found.members, strict=True)
            ],
        )
        for headline in HEADLINES
    ]


def _advice(trained: Found, everyone: Found, found: Agreements, verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Yield what to do, first of all."""
    kinds = {
        kind: [one for one in verdicts if one.kind == kind] for kind in ("use", "some", "none", "against", "unknown")
    }
    yield from ("", "## What to do", "")
    yield f"The later use here is a nearest-neighbour or a linear probe under attack (*{PRIMARY}*, explained below)."
    yield ""
    if kinds["use"]:
        yield f"- **Use {_named(kinds['use'], found)}** to foresee how well probes hold under attack."
    else:
        yield "- **No measure passed every test** for how well probes hold under attack."
    if kinds["some"]:
        yield f"- **Some evidence** for {_named(kinds['some'], found)}; what is missing stands under [doubts](#doubts)."
    if kinds["none"]:
        yield f"- **No evidence** for {_listed([one.measure for one in kinds['none']])}: their intervals contain 0."
    if kinds["against"]:
        yield f"- **Do not choose by {_named(kinds['against'], found)}**: here they point the wrong way."
    if kinds["unknown"]:
        yield f"- Nothing is known of {_listed([one.measure for one in kinds['unknown']])}: too few encoders have a value."
    yield from _other_uses(found)
    tricked = {headline.name: deceived(everyone, headline) for headline in HEADLINES}
    for name, by in tricked.items():
        if by:
            yield f"- **Never {name} alone**: it puts {_listed(by)} first, though half of the trained encoders serve better."
    best, clean = choices(trained)[0], next(one for one in choices(trained) if one.by == CLEAN)
    yield (
        f"- If only one number can be had, choosing by {best.by} cost the least: {best.lost:.3f} of {PRIMARY} on "
        f"average, where "
        f"choosing by {CLEAN} (with labels) cost {clean.lost:.3f}."
    )


def _other_uses(found: Agreements) -> Iterator[str]:
    for reference in REFERENCES[1:]:
        fit = [found[h.name, reference.name] for h in HEADLINES]
        good = [one for one in fit if one.over_both[0] > 0 and one.adjusted < LEVEL]
        said = _listed([f"{one.measure} ({one.tau:+.2f})" for one in good]) if good else "none of the measures"
        yield f"- For *{reference.name}* ({reference.says}): {said}. This part is exploratory."


def _named(verdicts: Sequence[Verdict], found: Agreements) -> str:
    return _listed([f"{one.measure} (tau {_value(found[one.measure, PRIMARY])})" for one in verdicts])


def _value(one: Agreement) -> str:
    return f"{one.tau:+.2f} {_interval(one.over_both)}"


def _interval(ends: tuple[float, float]) -> str:
    return f"[{ends[0]:+.2f}, {ends[1]:+.2f}]" if isfinite(ends[0]) else "[unknown]"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _measured(found: Found) -> Iterator[str]:
    counted = [f"{sum(m.dataset == name for m in found.members)} of {name}" for name in dict.fromkeys(_datasets(found))]
    yield from ("", "## What was measured", "")
    yield (
        f"{len(found.members)} encoders ({_listed(counted)}) of {len(set(found.family.tolist()))} families. Each "
        f"measure is one "
        f"number of {measures.IMAGES} test images without labels; {measures.ATTACKED} of them are attacked "
        f"(`{measures.ATTACK}`), and smoothing, gradients, edits and certificates look at fewer. The references use "
        f"{references.IMAGES} other test images with labels and another random seed. Settings were fixed in code before the "
        "results. A measure agrees with a reference if it ranks encoders of the same data set alike: *tau* is 1 if "
        "all pairs "
        "are in the same order, -1 if all are reversed, 0 if it is as often one as the other."
    )
    yield ""
    yield from (f"- *{reference.name}*: {reference.says}." for reference in REFERENCES)
    yield from (f"- {headline.name} ({_better(headline.sign)}): {headline.says}." for headline in HEADLINES)


def _better(sign: int) -> str:
    return "large is said to be robust" if sign > 0 else "small is said to be robust"


def _datasets(found: Found) -> list[str]:
    return [member.dataset for member in found.members]


def _agreements(found: Agreements) -> Iterator[str]:
    yield from ("", "## How far measures and references agree", "")
    yield f"![Tau of each measure with each reference]({FIGURES}/agreement.svg)"
    yield ""
    yield (
        "Colour is tau, with its 95% interval over images and encoders; hatched cells contain 0. Encoders were "
        "drawn families "
        "first, because members of a family resemble each other. Measures of which a small value is robust were "
        "turned round."
    )
    yield ""
    yield f"![Each measure against {PRIMARY}]({FIGURES}/scatters.svg)"
    heads = ["measure", "tau", "over images", "over encoders", "over both", "Spearman", "ceiling", "p after Holm", "n"]
    rows = [
        [
            one.measure,
            f"{one.tau:+.2f}",
            _interval(one.over_images),
            _interval(one.over_encoders),
            _interval(one.over_both),
            f"{one.spearman:+.2f}",
            f"{one.ceiling:.2f}" if isfinite(one.ceiling) else "unknown",
            f"{one.adjusted:.2f}",
            str(one.n),
        ]
        for one in _primary(found)
    ]
    yield from table(f"Agreement with {PRIMARY}", heads, rows)
    yield ""
    yield (
        "*Ceiling*: how far measure and reference agree with themselves on two halves of their images; no tau can "
        "be expected "
        "much above it. *p*: numbers shuffled among encoders of one family and data set, corrected for "
        f"{len(HEADLINES)} measures. A measure without a value for each image has no interval over images."
    )


def _primary(found: Agreements) -> list[Agreement]:
    chosen = [one for (_, reference), one in found.items() if reference == PRIMARY]
    return sorted(chosen, key=lambda one: -one.tau if isfinite(one.tau) else 2)


def _doubts(trained: Found, found: Agreements, verdicts: Sequence[Verdict]) -> Iterator[str]:
    yield from ("", "## Doubts", "")
    yield (
        "Tau may only repeat that better trained encoders do better, or that their codes are longer. So it was also "
        "taken given "
        f"{CLEAN}, given the {SCALE} of two codes, and given both; and with each family left out."
    )
    heads = ["measure", f"given {CLEAN}", f"given {SCALE}", "given both", "without a family"]
    rows = [
        [
            one.measure,
            *(f"{value:+.2f} {_interval((low, high))}" for value, low, high in one.given.values()),
            f"{one.families[0]:+.2f} to {one.families[1]:+.2f}",
        ]
        for one in _primary(found)
    ]
    yield from table(f"Partial agreement with {PRIMARY}", heads, rows)
    yield ""
    for one in verdicts:
        if one.reasons:
            yield f"- {one.measure}: {'; '.join(one.reasons)}."
    alone, corrected = detectable(trained.dataset, 1), detectable(trained.dataset, len(HEADLINES))
    yield ""
    yield (
        f"If encoders were independent, a tau of {alone:.2f} could be told from 0, and {corrected:.2f} among "
        f"{len(HEADLINES)} "
        "measures; as they are not, it takes more."
    )


def _choices(trained: Found) -> Iterator[str]:
    found = choices(trained)
    rows = [[one.by, f"{one.lost:.3f}", f"[{one.low:.3f}, {one.high:.3f}]"] for one in found]
    yield from ("", "## What a choice costs")
    heads = ["chosen by", f"{PRIMARY} lost", "95% over encoders"]
    yield from table(
        "Lost by taking the best encoder of each data set by a measure, not by the reference itself", heads, rows
    )
    yield ""
    clean = next(one.lost for one in found if one.by == CLEAN)
    better = [one.by for one in found if one.lost < clean and one.by in {h.name for h in HEADLINES}]
    yield (
        f"Choosing by {_listed(better)} cost less than choosing by {CLEAN}, which needs labels."
        if better
        else f"No measure chose better than {CLEAN}, which needs labels."
    )


def _traps(trained: Found, everyone: Found, found: Agreements) -> Iterator[str]:
    yield from ("", "## Traps", "")
    strata = {
        "with degenerate encoders": everyone,
        "undefended alone": trained.only(trained.eps == 0),
        "adversarially trained alone": trained.only(trained.eps > 0),
        "not published": trained.only(np.array([member.family != "published" for member in trained.members])),
    }
    heads = ["measure", "all trained", *(f"{name} ({len(part.members)})" for name, part in strata.items())]
    rows = []
    parts = {name: concluded(part, thorough=False) for name, part in strata.items()}
    for one in _primary(found):
        cells = [_value(part[one.measure, PRIMARY]) for part in parts.values()]
        rows.append([one.measure, f"{one.tau:+.2f}", *cells])
    yield from table(f"Tau with {PRIMARY} among other encoders", heads, rows)
    yield ""
    won = [headline.name for headline in HEADLINES if deceived(everyone, headline)]
    yield (
        f"- *Encoders that learned nothing*: {sum(everyone.degenerate)} were measured apart. "
        + (
            f"They win under {_listed(won)}, which therefore mean nothing alone."
            if won
            else "They win under no measure."
        )
    )
    yield (
        "- *Adversarial training drives both sides*: it raises most measures and the reference, so that tau may be "
        "about who was "
        f"so trained. Within strata, {_within(parts)}."
    )
    yield (
        "- *500 epochs against 20*: published encoders were trained 25 times as long as ours. The last column "
        "leaves them out."
    )
    several = sum(count > 1 for count in trained.seeds)
    yield (
        f"- *Seeds are not encoders*: {several} of {len(trained.members)} encoders were measured with several seeds, whose "
        "numbers were averaged; they count once."
    )
    yield (
        "- *l2 against cosine*: the attacked measures compare codes by l2, nearest neighbours by cosine. An encoder "
        "whose codes "
        "differ much in length may be ranked differently by the two."
    )
    ties = [(headline.name, tied(trained, headline)) for headline in HEADLINES]
    full = [f"{name} ({share:.0%})" for name, share in ties if share > LEVEL]
    yield (
        f"- *Saturation*: {_listed(full)} cannot tell this share of pairs apart, mostly at an end of their scale."
        if full
        else f"- *Saturation*: every measure tells at least {1 - LEVEL:.0%} of pairs apart."
    )


def _within(parts: Mapping[str, Agreements]) -> str:
    said = []
    for name in ("undefended alone", "adversarially trained alone"):
        kept = [one.measure for one in _primary(parts[name]) if one.over_both[0] > 0]
        said.append(
            f"{_listed(kept) if kept else 'no measure'} keep{'s' if len(kept) < 2 else ''} an interval above 0 {name}"
        )
    return " and ".join(said)


def _silence(trained: Found, found: Agreements) -> Iterator[str]:
    yield from ("", "## What this study cannot say", "")
    counts = {name: _datasets(trained).count(name) for name in dict.fromkeys(member.dataset for member in ZOO)}
    few = [f"{name} ({count})" for name, count in counts.items() if count < FEWEST]
    if few:
        yield f"- Anything about {_listed(few)} by itself: that is too few encoders of it."
    yield (
        "- Anything about large encoders or large images: all are small convolutional networks on images of 28 or "
        "32 pixels, and "
        "those of CIFAR-10 went through JPEG."
    )
    yield "- Anything about other uses than those listed: detection, segmentation, fine-tuning of the encoder itself."
    yield (
        "- Whether stronger attacks would change the order: all attacks take ten steps from one start, and show "
        "only what is "
        "possible."
    )
    missing = [headline.name for headline in HEADLINES if np.isnan(trained.values[headline.name]).all()]
    if missing:
        yield f"- Anything about {_listed(missing)}, which no encoder has a value of."
    yield "- The certified radius under a trained linear head, which was not measured."
    wide = [one for one in _primary(found) if one.over_both[1] - one.over_both[0] > 0.5]
    if wide:
        yield f"- Where {_listed([one.measure for one in wide])} stand exactly: their intervals are wider than half a tau."


def _encoders(everyone: Found) -> Iterator[str]:
    yield from ("", "## The encoders")
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
    lacking = [member.case for member in ZOO if member.case not in there]
    once = [case for case, seeds in there.items() if seeds < SEEDS]
    yield from (
        "",
        f"Not reached by the budget: {_listed(lacking)}." if lacking else "No member of the zoo is missing.",
    )
    yield ""
    yield f"{len(once)} of {len(there)} were measured with fewer than {SEEDS} seeds; published ones have one."
