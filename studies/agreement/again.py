"""The part of the page about held-out encoders: the test of the advice, and other threats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from studies.agreement import figures, kept_apart
from studies.agreement.collected import SECONDS, Found
from studies.agreement.conclusions import REPLICATES, choices
from studies.agreement.confirmation import ADVICE, CLAIMS, Confirmed
from studies.agreement.judged import Confirmation
from studies.agreement.kept_apart import ENOUGH, KEPT
from studies.agreement.limits import first_by_nothing
from studies.agreement.measures import CLEAN, JUDGED, RADIUS
from studies.agreement.members import TITLES
from studies.agreement.opening import CONFIRMED, larger_than_radius, threats_ranked
from studies.agreement.references import PRIMARY
from studies.agreement.threats import IMAGES, THREATS
from studies.agreement.words import known, listed, value
from studies.common import table

THREATENED = "images/study/threats.svg"
KINDS = {
    "agrees": f"τ with {PRIMARY}",
    "beyond": "partial τ, given clean accuracy, median distance and training radius",
    "undefended": "τ among encoders without adversarial training",
}


def put_to_the_test(again: Confirmation, second: Confirmation | None) -> tuple[list[str], dict[str, str]]:
    """Return the lines on the test of the advice and on other threats, and the figure of these by path.

    ``second`` is what second trainings say, which decides nothing.
    """
    drawn = {THREATENED: figures.heat_map(again.found)}
    return [*_test(again, second), *_undefended(again), *_threats(again, second)], drawn


def waiting(measured: int) -> Iterator[str]:
    """Yield the planned test, while too few held-out encoders were measured."""
    planned = [member for member in KEPT if not member.degenerate]
    undefended, new = sum(not member.eps for member in planned), sum(m.dataset == "fashion" for m in planned)
    yield from ("", "## The advice put to the test", "")
    yield (
        f"**Not done yet.** {len(planned)} held-out encoders are planned: {undefended} without adversarial training, {new} "
        f"of a new data set (Fashion-MNIST). Other test images, {len(THREATS)} other threats "
        f"({listed([threat.name for threat in THREATS])}), the claims below and their rule are fixed in code. "
        f"Measured so far: {measured}. Conclusions need {ENOUGH}. Until then the advice rests on the encoders it was made "
        "from, under attacks of one program in one kind of ball."
    )
    rows = [[claim.name, KINDS[claim.kind], "open"] for claim in CLAIMS]
    yield from table("Claims of the advice", ["metric", "claim: above 0", ""], rows)


def _test(again: Confirmation, second: Confirmation | None) -> Iterator[str]:
    members = again.trained.members
    counts = [f"{sum(m.dataset == name for m in members)} of {TITLES[name]}" for name in ("fashion", "mnist")]
    copies, families = sum(bool(member.copy) for member in members), len({member.family for member in members})
    undefended = sum(member.eps == 0 for member in members)
    yield from ("", "## The advice put to the test", "")
    yield (
        f"{len(members)} held-out encoders of {families} families ({listed(counts)}) had no part in the advice. "
        f"{undefended} of them were not trained against attacks. {copies} are copies of others, with weights of 4 "
        "bits or with four of five weights removed. Fashion-MNIST is a new data set. Encoders, settings, "
        "other test images, the claims below and their rule were fixed in code before the first training "
        f"({kept_apart.EPOCHS} epochs of {kept_apart.TAUGHT:,} images)."
    )
    rows = [
        [one.claim.name, KINDS[one.claim.kind], *_outcome(one), *(_outcome(other) if other else ())]
        for one, other in zip(again.claims, second.claims if second else [None] * len(CLAIMS), strict=True)
    ]
    outcome = ["encoders", "result", "p (Holm)", ""]
    twice = ["second trainings", "result", "p (Holm)", ""] if second else []
    yield from table("Claims of the advice", ["metric", "claim: above 0", *outcome, *twice], rows)
    yield ""
    yield (
        f"*p*: twice the fraction of {REPLICATES:,} redrawn encoders (families first) and images on the wrong side of 0, "
        "with its Monte Carlo error, corrected for all claims together. The bootstrap redraws few families and may be too "
        "sure of itself. *Not confirmed* does not mean that the contrary was shown. A metric that was not confirmed lost "
        "its grade above and in reports; no metric can gain a grade here."
    )
    if second:
        yield ""
        yield (
            f"{len(second.trained.members)} of these encoders were trained a second time with another seed, or copied from "
            "such trainings. They were measured on the same images after the first trainings had decided. They show the "
            "random variation of training and change no grade. (Two of them had been averaged in when the claims were first "
            "decided; without them no verdict changed.)"
        )
    yield from _plainly(again)


def _outcome(one: Confirmed) -> list[str]:
    return [str(one.encoders), value(one.value, one.ends), f"{one.adjusted:.3f}", CONFIRMED[one.held]]


def _plainly(again: Confirmation) -> Iterator[str]:
    """Yield observations without a test."""
    found = again.found
    quiet = [name for name, grade in ADVICE.items() if grade == "none"]
    awake = [name for name in quiet if found[name, PRIMARY].over_both.above]
    turned = [name for name in quiet if found[name, PRIMARY].over_both.below]
    yield ""
    yield (
        f"- Among the {len(quiet)} metrics without evidence, interval above 0 (not corrected for their number): "
        f"{listed(awake) if awake else 'none'}; below 0: {listed(turned) if turned else 'none'}."
    )
    yield (
        f"- The {RADIUS} has τ {value(found[RADIUS, PRIMARY].tau, found[RADIUS, PRIMARY].over_both)} here, and {CLEAN} "
        f"{value(found[CLEAN, PRIMARY].tau, found[CLEAN, PRIMARY].over_both)}. "
        f"{larger_than_radius(found, again.beyond, again.trained)}"
    )
    yield first_by_nothing(again.everyone)
    seconds = np.median(again.everyone.values[SECONDS])
    yield f"- Measuring took {seconds:.0f} seconds of one core per encoder (median), with the threats below."
    lost = {choice.by: choice.lost for choice in choices(again.trained)}
    ways = [RADIUS, CLEAN, *(name for name, grade in ADVICE.items() if grade == "some"), "random"]
    rows = [[by, *(f"{share:.3f}" for share in lost[by].values())] for by in ways]
    heads = ["chosen by", *(f"loss on {TITLES[name]}" for name in lost["random"])]
    yield from table(f"{PRIMARY.capitalize()} lost by choosing one held-out encoder", heads, rows)


def _undefended(again: Confirmation) -> Iterator[str]:
    alone = again.undefended
    rows = [
        [
            headline.name,
            value(*alone.taus[headline.name]),
            value(again.found[headline.name, PRIMARY].tau, again.found[headline.name, PRIMARY].over_both),
            known(again.found[headline.name, PRIMARY].ceiling),
        ]
        for headline in sorted(JUDGED, key=lambda headline: -again.found[headline.name, PRIMARY].tau)
    ]
    total = len(again.trained.members)
    yield from table(
        f"τ with {PRIMARY} among held-out encoders",
        ["metric", f"undefended only ({alone.count})", f"all ({total})", "ceiling of all"],
        rows,
    )
    yield ""
    yield (
        f"*Ceiling*: as [below](#how-far-measures-and-references-agree). The ceiling of {CLEAN} among undefended encoders "
        f"is {known(alone.ceiling)}, because the images tell few of these accuracies apart."
    )


def _threats(again: Confirmation, second: Confirmation | None) -> Iterator[str]:
    yield from ("", "## Other threats", "")
    yield (
        f"Attacks of the library measure the {PRIMARY}, in the kind of ball that most metrics use. A metric may therefore "
        f"only predict its own attack. Held-out encoders were also measured under other threats, on {IMAGES} images:"
    )
    yield ""
    yield from (f"- *{threat.name}*: {threat.says}." for threat in THREATS)
    yield ""
    yield f"![τ of each metric with each threat]({THREATENED})"
    yield ""
    yield (
        "The picture is drawn as the [one below](#how-far-measures-and-references-agree); the first three rows are the "
        "baselines. These metrics have an interval above 0 and a p below .05, corrected by Benjamini and Hochberg over all "
        "cells except the first column:"
    )
    yield ""
    ranked = {headline.name: threats_ranked(again, headline.name) for headline in JUDGED}
    yield from (f"- {name}: {listed(names)}" for name, names in ranked.items() if names)
    yield f"- {listed([name for name, names in ranked.items() if not names])}: none"
    yield ""
    if second:
        yield _once_more(ranked, {headline.name: threats_ranked(second, headline.name) for headline in JUDGED})
        yield ""
    yield from _after_tuning(again.trained)


def _once_more(ranked: Mapping[str, Sequence[str]], second: Mapping[str, Sequence[str]]) -> str:
    """Return which pairs of metric and threat second trainings show as well."""
    pairs = [(name, threat) for name, threats in ranked.items() for threat in threats]
    lost = [f"{name} under {threat}" for name, threat in pairs if threat not in second[name]]
    new = [
        f"{name} under {threat}" for name, threats in second.items() for threat in threats if threat not in ranked[name]
    ]
    return (
        f"Second trainings alone, by the same rule, show {len(pairs) - len(lost)} of these {len(pairs)} pairs. "
        f"Missing: {listed(lost) if lost else 'none'}. New: {listed(new) if new else 'none'}."
    )


def _after_tuning(trained: Found) -> Iterator[str]:
    """Yield the robust accuracy before and after fine-tuning, by kind of training."""
    certified = np.array([member.family == "certified" for member in trained.members])
    groups = {
        "trained for certificates": certified,
        "trained against attacks": (trained.eps > 0) & ~certified,
        "others": trained.eps == 0,
    }
    yield (
        "*Fine-tuned* was added after the other threats had been measured. A measurement or proof of an encoder need not "
        "hold after fine-tuning. The frozen encoder is also attacked at its embedding."
    )
    rows = [
        [
            name,
            str(which.sum()),
            *(f"{np.mean(trained.values[key][which]):.2f}" for key in ("attacks together", "fine-tuned")),
        ]
        for name, which in groups.items()
        if which.any()
    ]
    yield from table(
        "Robust accuracy of frozen and fine-tuned encoders", ["encoders", "n", "frozen", "fine-tuned"], rows
    )
