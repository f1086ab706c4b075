"""The part of the page about encoders kept apart: what became of the advice, and other threats."""

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
from studies.agreement.opening import foreseen, larger_than_radius
from studies.agreement.references import PRIMARY
from studies.agreement.threats import IMAGES, THREATS
from studies.agreement.words import known, listed, value
from studies.common import table

THREATENED = "images/study/threats.svg"
KINDS = {
    "agrees": f"tau with {PRIMARY}",
    "beyond": "partial tau, given clean accuracy, median distance and training radius",
    "undefended": "tau among encoders not trained against attacks",
}


def put_to_the_test(again: Confirmation, second: Confirmation | None) -> tuple[list[str], dict[str, str]]:
    """Return the lines on the test of the advice and on other threats, and the figure of these by path.

    ``second`` is what second trainings say, which decides nothing.
    """
    drawn = {THREATENED: figures.heat_map(again.found)}
    return [*_test(again, second), *_undefended(again), *_threats(again, second)], drawn


def waiting(measured: int) -> Iterator[str]:
    """Yield what will be tested, while too few encoders kept apart were measured to conclude anything."""
    planned = [member for member in KEPT if not member.degenerate]
    undefended, new = sum(not member.eps for member in planned), sum(m.dataset == "fashion" for m in planned)
    yield from ("", "## The advice put to the test", "")
    yield (
        f"**This was not done yet.** {len(planned)} encoders that have no part in the advice ({undefended} of them not "
        f"trained against attacks, {new} of a new data set, Fashion-MNIST), other test images, {len(THREATS)} other threats "
        f"({listed([threat.name for threat in THREATS])}) and the claims below with the rule that decides them are fixed in "
        f"code. {measured or 'None'} of them {'was' if measured == 1 else 'were'} measured so far, and nothing is concluded "
        f"of fewer than {ENOUGH}. Until then the advice is that of the encoders it was made from, under attacks of one "
        "program in one kind of ball."
    )
    rows = [[claim.name, KINDS[claim.kind], "open"] for claim in CLAIMS]
    yield from table("What the advice claims", ["number", "claim: above 0", ""], rows)


def _test(again: Confirmation, second: Confirmation | None) -> Iterator[str]:
    members = again.trained.members
    counts = [f"{sum(m.dataset == name for m in members)} of {TITLES[name]}" for name in ("fashion", "mnist")]
    copies, families = sum(bool(member.copy) for member in members), len({member.family for member in members})
    undefended = sum(member.eps == 0 for member in members)
    yield from ("", "## The advice put to the test", "")
    yield (
        f"{len(members)} encoders of {families} families ({listed(counts)}) had no part in the advice. {undefended} of "
        f"them were not trained against attacks; {copies} are copies of others with weights of 4 bits or with four of five "
        "weights removed; and one data set, small grey photographs of clothes, is new. Their list, settings, other test "
        "images, the claims below and the rule that decides them were fixed in code before the first was trained "
        f"({kept_apart.EPOCHS} epochs of {kept_apart.TAUGHT:,} images)."
    )
    rows = [
        [one.claim.name, KINDS[one.claim.kind], *_outcome(one), *(_outcome(other) if other else ())]
        for one, other in zip(again.claims, second.claims if second else [None] * len(CLAIMS), strict=True)
    ]
    outcome = ["encoders", "seen", "p after Holm", ""]
    twice = ["trained once more", "seen", "p after Holm", ""] if second else []
    yield from table("What the advice claimed", ["number", "claim: above 0", *outcome, *twice], rows)
    yield ""
    yield (
        f"*p*: twice the share of {REPLICATES:,} redrawn encoders (families first) and images on the wrong side of 0, with "
        "its Monte Carlo error, corrected for all claims together. The bootstrap redraws few families and may be too sure "
        "of itself. *Did not hold* says that it was not shown, not that the contrary was. A measure whose claim did not "
        "hold has lost its grade above and in reports, and none can gain one here."
    )
    if second:
        yield ""
        yield (
            f"{len(second.trained.members)} of them were trained once more with another seed, or copied from those that "
            "were, and measured on the same images, after the first trainings had decided: how much of the above was chance "
            "in training. This changes no grade. (Two of these had been averaged in when the claims were first decided; "
            "without them no verdict changed.)"
        )
    yield from _plainly(again)
    seconds = np.median(again.everyone.values[SECONDS])
    yield f"- Measuring one took {seconds:.0f} seconds of one core (median), with the threats below."


def _outcome(one: Confirmed) -> list[str]:
    held = "held" if one.held else "did not hold"
    return [str(one.encoders), value(one.value, one.ends), f"{one.adjusted:.3f}", held]


def _plainly(again: Confirmation) -> Iterator[str]:
    """Yield what was looked at besides, without a test."""
    found = again.found
    quiet = [name for name, grade in ADVICE.items() if grade == "none"]
    awake = [name for name in quiet if found[name, PRIMARY].over_both.above]
    turned = [name for name in quiet if found[name, PRIMARY].over_both.below]
    yield ""
    yield (
        f"- Of {len(quiet)} measures without evidence, "
        + (
            f"{listed(awake)} have an interval above 0 this time, not corrected for their number"
            if awake
            else "none has an interval above 0 this time"
        )
        + (f", and that of {listed(turned)} lies below 0." if turned else ".")
    )
    yield (
        f"- The {RADIUS} has tau {value(found[RADIUS, PRIMARY].tau, found[RADIUS, PRIMARY].over_both)} here and {CLEAN} "
        f"{value(found[CLEAN, PRIMARY].tau, found[CLEAN, PRIMARY].over_both)}; "
        f"{larger_than_radius(found, again.beyond, again.trained)}."
    )
    lost = {choice.by: choice.lost for choice in choices(again.trained)}
    said = [
        f"{'at' if by == 'random' else 'by'} {by} "
        f"{listed([f'{share:.3f} ({TITLES[name]})' for name, share in lost[by].items()])}"
        for by in (RADIUS, CLEAN, *(name for name, grade in ADVICE.items() if grade == "some"), "random")
    ]
    yield f"- {PRIMARY.capitalize()} lost by choosing one encoder: {'; '.join(said)}."
    yield first_by_nothing(again.everyone)


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
        f"Tau with {PRIMARY} among encoders kept apart",
        ["measure", f"undefended alone ({alone.count})", f"all ({total})", "ceiling of all"],
        rows,
    )
    yield ""
    yield (
        f"*Ceiling*: as [below](#how-far-measures-and-references-agree). Among undefended ones that of {CLEAN} is "
        f"{known(alone.ceiling)}: the images tell few of these accuracies apart."
    )


def _threats(again: Confirmation, second: Confirmation | None) -> Iterator[str]:
    yield from ("", "## Other threats", "")
    yield (
        f"The {PRIMARY} is measured by attacks of the library in the kind of ball that most measures use, too: these may "
        f"only foretell themselves. Encoders kept apart were also measured under other threats, on {IMAGES} images:"
    )
    yield ""
    yield from (f"- *{threat.name}*: {threat.says}." for threat in THREATS)
    yield ""
    yield f"![Tau of each measure with each threat]({THREATENED})"
    yield ""
    yield (
        "Drawn as the [picture below](#how-far-measures-and-references-agree); the first three rows are the baselines. "
        "Among encoders kept apart, with an interval above 0 and a p below .05 after Benjamini and Hochberg over all cells "
        "but those of the first column:"
    )
    yield ""
    ranked = {headline.name: foreseen(again, headline.name) for headline in JUDGED}
    yield from (f"- {name}: {listed(names)}" for name, names in ranked.items() if names)
    yield f"- {listed([name for name, names in ranked.items() if not names])}: none of them"
    yield ""
    if second:
        yield _once_more(ranked, {headline.name: foreseen(second, headline.name) for headline in JUDGED})
        yield ""
    yield _after_tuning(again.trained)


def _once_more(ranked: Mapping[str, Sequence[str]], second: Mapping[str, Sequence[str]]) -> str:
    """Return which pairs of measure and threat second trainings show as well."""
    pairs = [(name, threat) for name, threats in ranked.items() for threat in threats]
    lost = [f"{name} under {threat}" for name, threat in pairs if threat not in second[name]]
    new = [
        f"{name} under {threat}" for name, threats in second.items() for threat in threats if threat not in ranked[name]
    ]
    return (
        f"By the same rule second trainings alone show {len(pairs) - len(lost)} of these {len(pairs)} again"
        + (f" (not {listed(lost)})" if lost else "")
        + (f", and besides {listed(new)}." if new else ", and no other.")
    )


def _after_tuning(trained: Found) -> str:
    """Return what fine-tuning leaves of encoders that were trained for certificates, against attacks, and otherwise."""
    certified = np.array([member.family == "certified" for member in trained.members])
    groups = {
        "trained for certificates": certified,
        "trained against attacks": (trained.eps > 0) & ~certified,
        "others": trained.eps == 0,
    }
    said = [
        f"{np.mean(trained.values['attacks together'][which]):.2f} and {np.mean(trained.values['fine-tuned'][which]):.2f} "
        f"for {which.sum()} {name}"
        for name, which in groups.items()
        if which.any()
    ]
    return (
        "*Fine-tuned* was added when the other threats had been seen. What was measured or proved of an encoder need not be "
        "true of what fine-tuning makes of it. Images that stay right with a frozen encoder, which is attacked at its code "
        f"besides, and after fine-tuning: {listed(said)}."
    )
