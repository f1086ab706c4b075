"""The part of the page about agreement: advice, its evidence and its limits."""

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
        *(encoders(judged.again.everyone, KEPT, "The held-out encoders", 1) if judged.again else ()),
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
    """Yield the advice."""
    everyone, found, verdicts, strata = judged.everyone, judged.found, judged.verdicts, judged.strata
    kinds = {
        kind: [one for one in verdicts if one.kind == kind] for kind in ("use", "some", "none", "against", NOT_JUDGED)
    }
    yield from ("", "## What to do", "")
    yield f"The downstream use is a kNN or linear probe under attack (*{PRIMARY}*, [defined below](#what-was-measured))."
    yield ""
    won = {headline.name: by for headline in HEADLINES if (by := deceived(everyone, headline))}
    chosen = {choice.by: choice for choice in costs}
    yield from _baselines(judged, chosen)
    yield from _beyond(found, strata)
    if kinds["use"]:
        yield (
            f"- **Use these** to predict robust probe accuracy. They say more than {CLEAN}, {SCALE} and {RADIUS} together."
        )
        for one in kinds["use"]:
            lost = f"choosing by this metric lost {_lost(chosen[one.measure])}{_but(one.measure, chosen, won)}"
            yield f"    - **{_named([one], found)}**; {lost}"
    else:
        yield "- **No metric passed every test** as a predictor of robust probe accuracy."
    yield from by_stratum(strata)
    if kinds["some"]:
        yield f"- **Some evidence**: {_named(kinds['some'], found)}. [Doubts](#doubts) names what is missing."
    failed, empty = ([one for one in kinds["none"] if bool(one.reasons) is known] for known in (True, False))
    if failed:
        yield f"- **No longer advised**, because not confirmed on held-out encoders: {_named(failed, found)}."
    if empty:
        yield f"- **No evidence**, because the interval contains 0: {listed([one.measure for one in empty])}."
    if kinds["against"]:
        yield f"- **Do not choose by {_named(kinds['against'], found)}**: here they rank encoders in reverse."
    for one in kinds[NOT_JUDGED]:
        yield f"- **Not judged**: {one.measure} ({listed(one.reasons)})."
    yield from _other_uses(found)
    if won:
        yield (
            "- **Never alone**: by these metrics a trivial encoder ranks first although a trained one has a larger "
            f"{PRIMARY}. Brackets: {PRIMARY} of the trivial and of the best trained encoder."
        )
    for name, by in won.items():
        yield f"    - {name}: {listed([f'{one.case} ({one.serves:.2f}, {one.best:.2f})' for one in by])}"


def _baselines(judged: Judged, chosen: Mapping[str, Choice]) -> Iterator[str]:
    """Yield what is known without any metric: what a metric has to beat."""
    radius, clean, scale = (judged.found[name, PRIMARY] for name in (RADIUS, CLEAN, SCALE))
    yield (
        f"- **First ask how an encoder was trained.** The {RADIUS}, read off the recipe, ranks encoders with τ "
        f"{value(radius.tau, radius.over_both)}. {larger_than_radius(judged.found, judged.beyond, judged.trained)}"
    )
    yield f"    - {CLEAN.capitalize()} (with labels) has τ {value(clean.tau, clean.over_both)}."
    yield f"    - The {SCALE} (no labels, no attacks) has τ {value(scale.tau, scale.over_both)}."
    yield (
        f"    - {PRIMARY.capitalize()} lost against the best encoder: {_lost(chosen[RADIUS])} by {RADIUS}, "
        f"{_lost(chosen[CLEAN])} by {CLEAN}, {_lost(chosen['random'])} at random."
    )


def _lost(choice: Choice) -> str:
    """Return what a choice loses in each data set.

    Example:
        >>> _lost(Choice("tau", {"mnist": 0.1, "cifar10": 0.02}, 0.5))
        '0.100 (MNIST) and 0.020 (CIFAR-10)'
    """
    return listed([f"{lost:.3f} ({TITLES[dataset]})" for dataset, lost in choice.lost.items()])


def _beyond(found: Agreements, strata: Strata) -> Iterator[str]:
    """Yield which metrics say more than is known without them, whatever else they fail."""
    equal = strata[EQUAL][1]
    more = [
        f"{headline.name} ({value(*one.given[ALL])}, and {value(*equal[headline.name])})"
        for headline in HEADLINES
        if (one := found[headline.name, PRIMARY]).given[ALL][1].above and equal[headline.name][1].above
    ]
    yield (
        f"- **Beyond that**: {listed(more) if more else 'no metric'}. The first τ is given {CLEAN}, {SCALE} and {RADIUS}; "
        "the second is among encoders of one data set and training ball. Both are from before "
        "[the test](#the-advice-put-to-the-test)."
    )


def _but(measure: str, chosen: Mapping[str, Choice], won: Mapping[str, object]) -> str:
    """Return the cautions for a recommended metric."""
    worse = chosen[measure].mean > chosen["random"].mean
    said = [", more than at random: rank by this metric, but do not take the first"] if worse else []
    said += [f"; compare only encoders of similar {CLEAN}, because a trivial encoder ranks first"] * (measure in won)
    return "".join(said)


def _other_uses(found: Agreements) -> Iterator[str]:
    yield "- Other uses, not planned. Metrics with an interval above 0 and a corrected p below .05:"
    for reference in REFERENCES[1:]:
        fit = [found[h.name, reference.name] for h in JUDGED]
        good = [one for one in fit if one.over_both.above and one.adjusted < LEVEL]
        said = listed([f"{one.measure} ({one.tau:+.2f})" for one in good]) if good else "none"
        yield f"    - *{reference.name}*: {said}"


def _named(verdicts: Sequence[Verdict], found: Agreements) -> str:
    return listed(
        [
            f"{one.measure} (τ {value(found[one.measure, PRIMARY].tau, found[one.measure, PRIMARY].over_both)})"
            for one in verdicts
        ]
    )


def _measured(found: Found) -> Iterator[str]:
    counted = [
        f"{sum(m.dataset == name for m in found.members)} of {TITLES[name]}" for name in dict.fromkeys(_datasets(found))
    ]
    yield from ("", "## What was measured", "")
    yield (
        f"{len(found.members)} encoders ({listed(counted)}) of {len(set(found.family.tolist()))} families. Each metric uses "
        f"at most {measures.IMAGES} test images without labels; attacks are `{measures.ATTACK}`. The references use "
        f"{references.IMAGES} other test images with labels, and another random seed. Settings are small, so that two cores "
        "can run the study."
    )
    yield ""
    yield "Settings and rules were fixed in code before the results, with these exceptions:"
    yield ""
    yield f"- The {SCALE} became a baseline after all encoders had been measured."
    yield (
        "- *Never alone* first asked whether trivial encoders beat the median trained one. After eight results it asked "
        "whether they beat the best."
    )
    yield "- The rule that a metric must hold within one kind of training was added afterwards."
    yield (
        f"- So was the rule that it must say more than the {RADIUS} and hold at equal radius. A reader had found that the "
        f"{RADIUS} alone does better than most metrics."
    )
    yield ""
    yield (
        "A metric agrees with a reference if both rank encoders of the same data set alike. *τ* is Kendall's tau-b: 1 for "
        "the same order, -1 for the reverse, 0 for no relation. Tau-b corrects for pairs that a number cannot tell apart. "
        f"The {RADIUS} cannot tell {tied(found, BASELINES[0]):.0%} of pairs apart; with all pairs counted alike its τ is "
        f"{_untied(found):+.2f}."
    )
    yield ""
    yield from (f"- *{reference.name}*: {reference.says}." for reference in REFERENCES)
    yield from (f"- {one.name}, a baseline: {one.says}." for one in BASELINES)
    for headline in HEADLINES:
        link = f"[{headline.name}](evaluations/{headline.page})"
        yield f"- {link} ({_better(headline.sign)}{_counted(found, headline.name)}): {headline.says}."
    seconds = found.values[SECONDS]
    yield ""
    yield f"Measuring took {np.median(seconds):.0f} seconds of one core per encoder (median), without training."


def _untied(found: Found) -> float:
    """Return tau-a of the training radius: agreement over all pairs, those that it cannot tell apart among them."""
    both = np.stack([found.values[RADIUS], found.values[PRIMARY]])
    return float(taus(both, found.dataset, alike=True)[0, 1])


def _counted(found: Found, name: str) -> str:
    """Return how many images a number is made of, where it is made of images."""
    known = next((one for one in found.series.get(name, ()) if one is not None), None)
    return "" if known is None else f"; {known.shape[-1]} images"


def _better(sign: int) -> str:
    return "large means robust" if sign > 0 else "small means robust"


def _datasets(found: Found) -> list[str]:
    return [member.dataset for member in found.members]


def _agreements(found: Agreements) -> Iterator[str]:
    yield from ("", "## How far measures and references agree", "")
    yield f"![τ of each metric with each reference]({FIGURES}/agreement.svg)"
    yield ""
    yield (
        f"Colour is τ, with its 95% interval over images and encoders ({REPLICATES:,} replicates). Hatched cells contain 0, "
        "or would with another seed of the bootstrap. The first three rows are the baselines. The bootstrap draws families "
        "first, because members of a family resemble each other. Metrics for which a small value means robust are negated."
    )
    yield ""
    yield f"![Each metric against {PRIMARY}]({FIGURES}/scatters.svg)"
    heads = ["metric", "τ", "over images", "over encoders", "over both", "Spearman", "ceiling", "p (Holm)", "n"]
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
        "*Ceiling*: agreement of metric and reference with themselves on two halves of their images. It is lower than on "
        "all images; do not expect a τ far above it. *p*: numbers shuffled among encoders of one family and data set, "
        f"corrected for {len(JUDGED)} metrics and baselines and for the number of shuffles. "
        "A metric without a value per image has no interval over images."
    )


def _doubts(trained: Found, found: Agreements, verdicts: Sequence[Verdict]) -> Iterator[str]:
    yield from ("", "## Doubts", "")
    yield (
        "τ may only show that better trained encoders do better, that their embeddings have larger norms, or that they were "
        f"adversarially trained. The table therefore has τ given {CLEAN}, given the {SCALE}, given the {RADIUS}, and given "
        "all three (a baseline: given the others). The last column leaves out each family in turn."
    )
    heads = ["metric", *(f"given {name}" for name in GIVEN), "without a family"]
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
        f"If encoders were independent, the smallest significant τ would be {alone:.2f}, and {corrected:.2f} among "
        f"{len(HEADLINES)} metrics. They are not independent, so it is larger."
    )


def _choices(found: Sequence[Choice]) -> Iterator[str]:
    datasets = list(found[0].lost)
    rows = [
        [one.by, *(f"{one.lost[dataset]:.3f}" for dataset in datasets), f"{one.mean:.3f}", f"{one.wins:.0%}"]
        for one in found
    ]
    yield from ("", "## What a choice costs", "")
    yield (
        "Each choice is one encoder per data set, without an interval. A metric without evidence may do well here by luck, "
        "so read this table together with τ."
    )
    heads = ["chosen by", *(f"loss on {TITLES[dataset]}" for dataset in datasets), "mean", "loses least"]
    yield from table(f"{PRIMARY.capitalize()} lost against the best encoder of each data set", heads, rows)
    yield ""
    yield (
        f"*Loses least*: percentage of {REPLICATES:,} redrawn sets of encoders in which no other choice lost less on "
        "average. Equal choices all count, so the column adds up to more than 100%."
    )
