"""The HTML page: one file that opens anywhere, offline, and asks nothing of the network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.core.records import EncoderInfo, Failure, ImagesInfo, Picture, Result, Verdict
from holdfast.report import differences, text
from holdfast.report.advice import advice
from holdfast.report.alerts import STOPPED, Alert, alerts, causes, lost, split
from holdfast.report.compare import Comparison, Refusal, unmet
from holdfast.report.plots import Plate, plates
from holdfast.report.protocol import Group, difference, groups, plain
from holdfast.report.scorecard import scorecards
from holdfast.report.svg import COLOURS
from holdfast.report.tables import Table, summary, table
from holdfast.report.tally import sentences, tally

if TYPE_CHECKING:
    from markupsafe import Markup


@dataclass(frozen=True)
class Block:
    """One evaluation under one protocol."""

    group: Group
    other: str
    """How its protocol departs from that of the evaluation's first block."""
    table: Table
    plates: tuple[Plate, ...]
    refusals: tuple[Refusal, ...]

    @property
    def unranked(self) -> list[tuple[str, str, str]]:
        """Return who is not ranked on what, and why: each reason once, and none where there is nobody to rank."""
        if len(self.group.encoders) < 2:
            return []
        refused: dict[tuple[str, str], tuple[dict[str, None], dict[str, None]]] = {}
        for refusal in self.refusals:
            who, under = refused.setdefault((text.words(refusal.quantity or ""), refusal.reason), ({}, {}))
            who.update(dict.fromkeys(refusal.encoders))
            under[text.conditions(refusal.conditions)] = None
        merged: dict[tuple[tuple[str, ...], str], list[str]] = {}
        for (quantity, reason), (who, under) in refused.items():
            where = next(iter(under)) if len(under) == 1 else f"{len(under)} cases"
            merged.setdefault((tuple(who), reason), []).append(f"{quantity} ({where})" if where else quantity)
        everyone = self.group.encoders
        return [(text.among(who, everyone), text.listed(what), reason) for (who, reason), what in merged.items()]

    @property
    def verdicts(self) -> dict[str, list[tuple[str, Verdict]]]:
        """Return the answers to each question, by encoder."""
        answers: dict[str, list[tuple[str, Verdict]]] = {}
        for name, result in self.group.items():
            for verdict in result.findings.verdicts:
                answers.setdefault(verdict.question, []).append((name, verdict))
        return answers

    @property
    def pictures(self) -> list[tuple[str, tuple[Picture, ...]]]:
        """Return each encoder's pictures."""
        return [(name, result.findings.pictures) for name, result in self.group.items() if result.findings.pictures]


def render(
    results: Sequence[Result],
    failures: Sequence[Failure],
    comparison: Comparison,
    runs: Sequence[str] = (),
    drawn: Mapping[str, tuple[Plate, ...]] | None = None,
) -> str:
    """Return the page.

    Args:
        results: everything measured.
        failures: the results that are missing.
        comparison: of the ``results``.
        runs: the folders of the results, which the page names in commands to copy.
        drawn: the plots by the key of their group, if they have been drawn before.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("holdfast.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    grouped = groups(results)
    tables = summary(grouped, comparison)
    first: dict[str, Group] = {}
    for group in grouped:
        first.setdefault(group.first.evaluation, group)
    drawn = drawn or {group.key: plates(group, comparison.encoders) for group in grouped}
    blocks = [_block(group, first[group.first.evaluation], comparison, drawn[group.key]) for group in grouped]
    absent, warnings, cards = lost(results, failures), alerts(grouped), scorecards(grouped, comparison)
    return environment.get_template("page.html").render(
        text=text,
        differences=differences,
        plain=plain,
        zip=zip,
        code=_code,
        headline=_headline(results, comparison, len(absent)),
        lead=_lead(results),
        facts=_facts(results),
        encoders=_encoders(grouped),
        colours={name: f"var(--e{place % COLOURS})" for place, name in enumerate(comparison.encoders)},
        tables=tables,
        tallies=[sentences(tally(table)) for table in tables],
        advice=advice(tables[0], grouped, failures, runs) if tables else (),
        scorecards=cards,
        studied=dict.fromkeys(sentence for card in cards for sentence in card.studied),
        alerts=warnings,
        warned=_warned(warnings, absent, failures),
        evaluations={name: [b for b in blocks if b.group.first.evaluation == name] for name in first},
        refusals=unmet(comparison.refusals),
        absent=absent,
        failures=failures,
        causes=causes(failures),
        spent=split(failures)[0],
        failed=split(failures)[1],
        stopped=STOPPED,
    )


def _block(group: Group, first: Group, comparison: Comparison, drawn: tuple[Plate, ...]) -> Block:
    refusals = [
        refusal
        for refusal in comparison.refusals
        if refusal.evaluation == group.first.evaluation
        and refusal.quantity
        and set(refusal.encoders) <= set(group.encoders)
    ]
    return Block(
        group,
        difference(group.first, first.first) if group is not first else "",
        table(group.first.title, [group], comparison),
        drawn,
        tuple(refusals),
    )


def _warned(warnings: Sequence[Alert], absent: Mapping[str, object], failures: Sequence[Failure]) -> str:
    """Return how much there is to know before the numbers are read."""
    counts = (
        (len(absent), "encoder", " without any result"),
        (len(warnings), "warning", ""),
        (len(failures), "result", " missing"),
    )
    return ", ".join(f"{text.counted(count, noun)}{rest}" for count, noun, rest in counts if count)


def _headline(results: Sequence[Result], comparison: Comparison, absent: int) -> str:
    if not results:
        return "Nothing could be measured"
    images = list(dict.fromkeys(result.images.name for result in results))
    # Baselines stand beside what is measured, unless nothing else is there.
    encoders = [name for name in comparison.encoders if name not in comparison.baselines] or comparison.encoders
    who = encoders[0] if len(encoders) == 1 else text.counted(len(encoders), "encoder")
    if absent:  # who was asked for and is not here belongs into the count
        who = f"{len(encoders)} of {text.counted(len(encoders) + absent, 'encoder')}"
    return f"Robustness of {who} on {text.listed(images)}"


def _lead(results: Sequence[Result]) -> str:
    if not results:
        return "Nothing that was asked for has a result; the reasons are below."
    counts = sorted({len(result.findings.ids) for result in results} - {0})
    looked = "inputs of its own making"
    if counts:
        looked = f"{counts[0]:,} to {counts[-1]:,} samples" if len(counts) > 1 else text.counted(counts[0], "sample")
    return (
        f"Each evaluation looked at {looked} and asked how much a representation changes when its image barely does. "
        f"{_when(results)}"
    )


def _when(results: Sequence[Result]) -> str:
    days = _distinct(result.provenance.get("started", "")[:10] for result in results)
    versions = _distinct(result.provenance.get("holdfast", "") for result in results)
    facts = " ".join(filter(None, (days and f"on {days}", versions and f"with Holdfast {versions}")))
    return f"Measured {facts}." if facts else ""


def _code(sentence: str) -> Markup:
    """Return ``sentence`` escaped, with what stands between backticks set as code."""
    from markupsafe import Markup, escape

    parts = [escape(part) for part in sentence.split("`")]
    return Markup("").join(Markup("<code>{}</code>").format(part) if k % 2 else part for k, part in enumerate(parts))


def _encoders(grouped: Sequence[Group]) -> dict[str, EncoderInfo]:
    return {name: result.encoder for group in grouped for name, result in group.items()}


def _facts(results: Sequence[Result]) -> dict[str, str]:
    """Return who, where and when in plain words, as far as it was recorded."""
    facts = {
        "Images": _sets(result.images for result in results),
        "Bank": _sets(result.bank for result in results if result.bank),
        "Skipped images": "; ".join(filter(None, dict.fromkeys(map(_skipped, results)))),
        "Evaluations": ", ".join(dict.fromkeys(result.title for result in results)),
        "Seed": _distinct(str(result.settings.get("seed", "")) for result in results),
        "Precision": _distinct(str(result.settings.get("precision", "")) for result in results),
    }
    recorded = {"Measured": "started", "Holdfast": "holdfast", "Device": "device", "Commit": "commit"}
    for title, key in recorded.items():
        facts[title] = _distinct(result.provenance.get(key, "") for result in results)
    return {title: value for title, value in facts.items() if value}


def _sets(images: Iterable[ImagesInfo]) -> str:
    distinct = dict.fromkeys((image.name, image.count, image.fingerprint) for image in images)
    return "; ".join(f"{name}, {text.counted(n, 'image')}, fingerprint {mark}" for name, n, mark in distinct)


def _skipped(result: Result) -> str:
    skipped = result.images.skipped
    return f"{len(skipped):,} of {result.images.name}: {'; '.join(skipped)}" if skipped else ""


def _distinct(values: Iterable[str]) -> str:
    """Return the distinct values, joined; a first and a last one where there are many."""
    distinct = sorted(set(values) - {""})
    return ", ".join(distinct) if len(distinct) < 3 else f"{distinct[0]} to {distinct[-1]}"
