"""The part of the study's page about agreement: what to use for what, how sure that is, and what one study cannot say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite

import numpy as np

from studies.agreement import figures, measures, references
from studies.agreement.again import put_to_the_test, waiting
from studies.agreement.collected import SECONDS, SEEDS, Found
from studies.agreement.conclusions import ALL, GIVEN, REPLICATES, Choice, choices
from studies.agreement.judged import Judged
from studies.agreement.kept_apart import KEPT
from studies.agreement.limits import EQUAL, Strata, by_stratum, encoders, silence, traps
from studies.agreement.measures import BASELINES, CLEAN, HEADLINES, JUDGED, RADIUS, SCALE
from studies.agreement.members import TITLES, ZOO
from studies.agreement.opening import larger_than_radius
from studies.agreement.rankings import LEVEL, detectable, taus
from studies.agreement.real_networks import section
from studies.agreement.references import PRIMARY, REFERENCES
from studies.agreement.verdicts import NOT_JUDGED, Verdict, deceived, tied
from studies.agreement.words import Agreements, known, listed, primary, spread, value
from studies.common import table

FIGURES = "images/study"


def render(judged: Judged) -> tuple[list[str], dict[str, str]]:
    """Return the lines of the section and its figures by path."""
    everyone, trained, found = judged.everyone, judged.trained, judged.found
    costs = choices(trained)
    tested, drawn = put_to_the_test(judged.again, judged.second) if judged.again else ([*waiting(judged.apart)], {})
    lines = [
        *_advice(costs, judged),
        *tested,
        *section(judged.real),
        *_measured(trained),
        *_agreements(found),
        *_doubts(trained, found, judged.verdicts),
        *_choices(costs),
        *traps(everyone, found, judged.strata),
        *silence(trained, found, judged.again is not None),
        *encoders(everyone, ZOO, "The encoders", SEEDS),
        *(encoders(judged.again.everyone, KEPT, "The encoders kept apart", 1) if judged.again else ()),
    ]
    drawn |= {
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
        for headline in JUDGED
    ]


def _advice(costs: Sequence[Choice], judged: Judged) -> Iterator[str]:
    """Yield what to do, first of all."""
    everyone, found, verdicts, strata = judged.everyone, judged.found, judged.verdicts, judged.strata
    kinds = {
        kind: [one for one in verdicts if one.kind == kind] for kind in ("use", "some", "none", "against", NOT_JUDGED)
    }
    yield from ("", "## What to do", "")
    yield f"The later use here is a nearest-neighbour or a linear probe under attack (*{PRIMARY}*, explained below)."
    yield ""
    won = {headline.name: by for headline in HEADLINES if (by := deceived(everyone, headline))}
    chosen = {choice.by: choice for choice in costs}
    yield from _baselines(judged, chosen)
    yield from _beyond(found, strata)
    if kinds["use"]:
        yield (
            f"- **Use these** to foresee how well probes hold under attack: they say more than {CLEAN}, {SCALE} and "
            f"{RADIUS} together."
        )
        for one in kinds["use"]:
            lost = f"choosing by it lost {_lost(chosen[one.measure])}{_but(one.measure, chosen, won)}"
            yield f"    - **{_named([one], found)}**; {lost}"
    else:
        yield "- **No measure passed every test** for how well probes hold under attack."
    yield from by_stratum(strata)
    if kinds["some"]:
        yield f"- **Some evidence** for {_named(kinds['some'], found)}; what is missing stands under [doubts](#doubts)."
    failed, empty = ([one for one in kinds["none"] if bool(one.reasons) is known] for known in (True, False))
    if failed:
        yield f"- **No longer advised**: {_named(failed, found)}, for that did not hold among encoders kept apart."
    if empty:
        yield f"- **No evidence** for {listed([one.measure for one in empty])}: their intervals contain 0."
    if kinds["against"]:
        yield f"- **Do not choose by {_named(kinds['against'], found)}**: here they point the wrong way."
    for one in kinds[NOT_JUDGED]:
        yield f"- **Not judged**: {one.measure}, because {listed(one.reasons)}."
    yield from _other_uses(found)
    if won:
        yield (
            "- **Never alone**, because encoders that learned nothing win where a trained one serves probes better (in "
            f"brackets the {PRIMARY} of the winner and of the best trained one):"
        )
    for name, by in won.items():
        yield f"    - {name}: {listed([f'{one.case} ({one.serves:.2f}, {one.best:.2f})' for one in by])}"


def _baselines(judged: Judged, chosen: Mapping[str, Choice]) -> Iterator[str]:
    """Yield what is known without any measure: what a measure has to be better than."""
    radius, clean, scale = (judged.found[name, PRIMARY] for name in (RADIUS, CLEAN, SCALE))
    yield (
        f"- **First ask how an encoder was trained.** The {RADIUS}, read off the recipe, ranks encoders with tau "
        f"{value(radius.tau, radius.over_both)}; {larger_than_radius(judged.found, judged.beyond, judged.trained)}. "
        f"{CLEAN.capitalize()}, with labels, has {value(clean.tau, clean.over_both)}, and the {SCALE} of two codes, with "
        f"neither labels nor attacks, {value(scale.tau, scale.over_both)}. Choosing by the {RADIUS} lost "
        f"{_lost(chosen[RADIUS])} of {PRIMARY} against the best encoder (in its own units, at most 1), by {CLEAN} "
        f"{_lost(chosen[CLEAN])}, at random {_lost(chosen['random'])}."
    )


def _lost(choice: Choice) -> str:
    """Return what a choice loses in each data set.

    Example:
        >>> _lost(Choice("tau", {"mnist": 0.1, "cifar10": 0.02}, 0.5))
        '0.100 (MNIST) and 0.020 (CIFAR-10)'
    """
    return listed([f"{lost:.3f} ({TITLES[dataset]})" for dataset, lost in choice.lost.items()])


def _beyond(found: Agreements, strata: Strata) -> Iterator[str]:
    """Yield which measures say more than is known without them, whatever else they fail."""
    equal = strata[EQUAL][1]
    more = [
        f"{headline.name} ({value(*one.given[ALL])}, and {value(*equal[headline.name])})"
        for headline in HEADLINES
        if (one := found[headline.name, PRIMARY]).given[ALL][1].above and equal[headline.name][1].above
    ]
    yield (
        f"- **Beyond that**, given {CLEAN}, {SCALE} and {RADIUS}, and among encoders of one data set trained in the same "
        f"ball, {f'only {listed(more)} still' if more else 'no measure'} ranked encoders as probes did, before "
        "[the test](#the-advice-put-to-the-test)."
    )


def _but(measure: str, chosen: Mapping[str, Choice], won: Mapping[str, object]) -> str:
    """Return what to mind of a measure that is recommended."""
    worse = chosen[measure].mean > chosen["random"].mean
    said = [", more than at random: rank by it, but do not take the first"] if worse else []
    said += [f"; compare encoders of like {CLEAN} by it, for alone it is won by ones that learned nothing"] * (
        measure in won
    )
    return "".join(said)


def _other_uses(found: Agreements) -> Iterator[str]:
    yield (
        "- Other uses were looked at without a plan. Measures and baselines with an interval above 0 there, and a p that "
        "was corrected for their number:"
    )
    for reference in REFERENCES[1:]:
        fit = [found[h.name, reference.name] for h in JUDGED]
        good = [one for one in fit if one.over_both.above and one.adjusted < LEVEL]
        said = listed([f"{one.measure} ({one.tau:+.2f})" for one in good]) if good else "none of them"
        yield f"    - for *{reference.name}*: {said}"


def _named(verdicts: Sequence[Verdict], found: Agreements) -> str:
    return listed(
        [
            f"{one.measure} (tau {value(found[one.measure, PRIMARY].tau, found[one.measure, PRIMARY].over_both)})"
            for one in verdicts
        ]
    )


def _measured(found: Found) -> Iterator[str]:
    counted = [
        f"{sum(m.dataset == name for m in found.members)} of {TITLES[name]}" for name in dict.fromkeys(_datasets(found))
    ]
    yield from ("", "## What was measured", "")
    yield (
        f"{len(found.members)} encoders ({listed(counted)}) of {len(set(found.family.tolist()))} families. Each measure "
        f"looks at test images without labels, {measures.IMAGES} at most; attacks are `{measures.ATTACK}`. The references "
        f"use {references.IMAGES} other test images with labels, and another random seed. Settings, and what earns advice, "
        f"were fixed in code before the results, but for these: the {SCALE} of codes became a baseline when all had been "
        "measured; *never alone* at first asked whether encoders that "
        "learned nothing beat the middle one of the trained ones, and after eight results whether they beat the best; "
        "that a measure must hold within one kind of training was asked after all; and that it must say more than the "
        f"{RADIUS}, and hold at equal radius, once a reader had found that the {RADIUS} alone does better than most. "
        "Settings are small, for two cores to do all."
    )
    yield ""
    yield (
        "A measure agrees with a reference if it ranks encoders of the same data set alike: *tau* is 1 if all pairs are in "
        "the same order, -1 if all are reversed, 0 if as many are one as the other. It is Kendall's tau-b, which makes up "
        f"for pairs that a number cannot tell apart: of the {RADIUS} these are {tied(found, BASELINES[0]):.0%}, and all "
        f"pairs taken alike its tau would be {_untied(found):+.2f}."
    )
    yield ""
    yield from (f"- *{reference.name}*: {reference.says}." for reference in REFERENCES)
    yield from (f"- {one.name}, a baseline: {one.says}." for one in BASELINES)
    for headline in HEADLINES:
        link = f"[{headline.name}](evaluations/{headline.page})"
        yield f"- {link} ({_better(headline.sign)}{_counted(found, headline.name)}): {headline.says}."
    seconds = found.values[SECONDS]
    yield ""
    yield f"All of it took {np.median(seconds):.0f} seconds of one core for an encoder (median), without training."


def _untied(found: Found) -> float:
    """Return tau-a of the training radius: agreement over all pairs, those that it cannot tell apart among them."""
    both = np.stack([found.values[RADIUS], found.values[PRIMARY]])
    return float(taus(both, found.dataset, alike=True)[0, 1])


def _counted(found: Found, name: str) -> str:
    """Return how many images a number is made of, where it is made of images."""
    known = next((one for one in found.series.get(name, ()) if one is not None), None)
    return "" if known is None else f"; {known.shape[-1]} images"


def _better(sign: int) -> str:
    return "large is said to be robust" if sign > 0 else "small is said to be robust"


def _datasets(found: Found) -> list[str]:
    return [member.dataset for member in found.members]


def _agreements(found: Agreements) -> Iterator[str]:
    yield from ("", "## How far measures and references agree", "")
    yield f"![Tau of each measure with each reference]({FIGURES}/agreement.svg)"
    yield ""
    yield (
        f"Colour is tau, with its 95% interval over images and encoders ({REPLICATES:,} replicates); hatched cells contain "
        "0, or would with another seed of the bootstrap. The first three rows are the baselines. Encoders were drawn "
        "families first, because members of a family resemble each other. Measures of which a small value is robust were "
        "turned round."
    )
    yield ""
    yield f"![Each measure against {PRIMARY}]({FIGURES}/scatters.svg)"
    heads = ["measure", "tau", "over images", "over encoders", "over both", "Spearman", "ceiling", "p after Holm", "n"]
    rows = [
        [
            one.measure,
            f"{one.tau:+.2f}",
            spread(one.over_images),
            spread(one.over_encoders),
            spread(one.over_both),
            f"{one.spearman:+.2f}",
            known(one.ceiling),
            f"{one.adjusted:.2f}",
            str(one.n),
        ]
        for one in primary(found)
    ]
    yield from table(f"Agreement with {PRIMARY}", heads, rows)
    yield ""
    yield (
        "*Ceiling*: how far measure and reference agree with themselves on two halves of their images, which is less than "
        "they do on all; no tau can be expected far above it. *p*: numbers shuffled among encoders of one family and data "
        f"set, corrected for {len(JUDGED)} measures and baselines and for the number of shuffles. A measure without a value "
        "for each image has no interval over images."
    )


def _doubts(trained: Found, found: Agreements, verdicts: Sequence[Verdict]) -> Iterator[str]:
    yield from ("", "## Doubts", "")
    yield (
        "Tau may only repeat that better trained encoders do better, that their codes are longer, or that they were trained "
        f"against attacks. So it was also taken given {CLEAN}, given the {SCALE} of two codes, given the {RADIUS}, and "
        "given all three (a baseline: given the others); and with each family left out."
    )
    heads = ["measure", *(f"given {name}" for name in GIVEN), "without a family"]
    rows = [
        [
            one.measure,
            *(value(partial, ends) for partial, ends in one.given.values()),
            f"{one.families[0]:+.2f} to {one.families[1]:+.2f}" if isfinite(one.families[0]) else "unknown",
        ]
        for one in primary(found)
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


def _choices(found: Sequence[Choice]) -> Iterator[str]:
    datasets = list(found[0].lost)
    rows = [
        [one.by, *(f"{one.lost[dataset]:.3f}" for dataset in datasets), f"{one.mean:.3f}", f"{one.wins:.0%}"]
        for one in found
    ]
    yield from ("", "## What a choice costs", "")
    yield (
        "Each choice is one encoder of each data set, without an interval. A number without evidence may do well here by "
        "chance: read this beside tau."
    )
    heads = ["chosen by", *(f"lost of {TITLES[dataset]}" for dataset in datasets), "mean", "loses least"]
    yield from table(
        f"{PRIMARY.capitalize()} lost by taking the best encoder of each data set by a measure, not by the reference itself",
        heads,
        rows,
    )
    yield ""
    yield (
        f"*Loses least*: in this share of {REPLICATES:,} redrawn sets of encoders no way of choosing lost less on average, "
        "so that columns of equal choices add up to more than 1."
    )
