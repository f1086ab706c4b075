"""The HTML page of a report: one file that opens offline, with a block for each evaluation."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from struct import unpack
from typing import TYPE_CHECKING

from holdfast.core.records import EncoderInfo, Failure, ImagesInfo, Picture, Result, Verdict, grouped
from holdfast.report import text
from holdfast.report.comparison import tables as differences
from holdfast.report.comparison.comparable import Group, difference
from holdfast.report.comparison.compare import Comparison, Refusal, incomparable
from holdfast.report.comparison.tables import Table, table
from holdfast.report.contents import RELOAD, Contents, RunState, heading
from holdfast.report.figures.plots import Plate
from holdfast.report.figures.svg import COLOURS
from holdfast.report.overview.advice import advice
from holdfast.report.overview.alerts import SPENT, Alert, Cause, alerts, by_budget, causes, encoders_without_results
from holdfast.report.overview.first_rows import GROUPS
from holdfast.report.overview.first_screen import FirstScreen
from holdfast.report.overview.study import Evidence, study
from holdfast.report.overview.tally import OTHERS, heading_of
from holdfast.report.sets import Sets

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


@dataclass(frozen=True)
class Block:
    """One evaluation under one protocol."""

    group: Group
    other: str
    """Differences of its settings from the evaluation's first block."""
    table: Table
    plates: tuple[Plate, ...]
    refusals: tuple[Refusal, ...]
    everywhere: Mapping[str, str]
    """Provenance that all results of the page share."""

    @property
    def unranked(self) -> list[tuple[str, str, str]]:
        """Return who is not ranked on what, and why: each reason once, and none where there is no one to rank."""
        if len(self.group.encoders) < 2:
            return []
        refused: dict[tuple[str, str], tuple[dict[str, None], dict[str, None]]] = {}
        for refusal in self.refusals:
            who, under = refused.setdefault((refusal.name, refusal.reason), ({}, {}))
            who.update(dict.fromkeys(refusal.encoders))
            under[text.conditions(refusal.conditions, aim=refusal.aim)] = None
        merged = grouped(
            ((tuple(who), reason), f"{quantity} ({where})" if where else quantity)
            for (quantity, reason), (who, under) in refused.items()
            for where in (next(iter(under)) if len(under) == 1 else f"{len(under)} cases",)
        )
        everyone = self.group.encoders
        return [(text.among(who, everyone), text.listed(what), reason) for (who, reason), what in merged.items()]

    @property
    def verdicts(self) -> dict[str, list[tuple[str, Verdict]]]:
        """Return the answers to each question, by encoder."""
        answers = ((name, each) for name, result in self.group.items() for each in result.findings.verdicts)
        return grouped((verdict.question, (name, verdict)) for name, verdict in answers)

    @property
    def shared(self) -> dict[str, str]:
        """Return the provenance that all encoders share, without that of the whole page."""
        return {key: value for key, value in _alike(self.group.results).items() if key not in self.everywhere}

    @property
    def own(self) -> dict[str, dict[str, object]]:
        """Return the provenance of each encoder alone."""
        return {
            name: {
                "source": result.encoder.source,
                "fingerprint": result.encoder.fingerprint,
                "samples": len(result.findings.ids),
                **{k: v for k, v in result.provenance.items() if k not in self.shared and k not in self.everywhere},
            }
            for name, result in self.group.items()
        }

    @property
    def pictures(self) -> list[tuple[str, tuple[Picture, ...]]]:
        """Return each encoder's pictures."""
        return [(name, result.findings.pictures) for name, result in self.group.items() if result.findings.pictures]


def _alike(results: Sequence[Result]) -> dict[str, str]:
    records = [result.provenance for result in results]
    return {key: value for key, value in records[0].items() if all(each.get(key) == value for each in records)}


def blocks_by_evaluation(contents: Contents) -> dict[str, list[Block]]:
    """Return the blocks of each evaluation, the one with most encoders first."""
    blocks: dict[str, list[Block]] = {}
    for group in contents.groups:
        blocks_of_evaluation = blocks.setdefault(group.first.evaluation, [])
        first = blocks_of_evaluation[0].group if blocks_of_evaluation else group
        other = difference(group.first, first.first) if group is not first else ""
        own = table(group.first.title, [group], contents.comparison)
        refused = (r for r in contents.comparison.refusals if r.evaluation == group.first.evaluation and r.quantity)
        refusals = tuple(refusal for refusal in refused if set(refusal.encoders) <= set(group.encoders))
        alike = _alike(contents.results)
        blocks_of_evaluation.append(Block(group, other, own, contents.plates[group.key], refusals, alike))
    return blocks


@dataclass(frozen=True)
class Missing:
    """Missing results."""

    summary: str
    """Number of missing results, in words."""
    absent: Mapping[str, tuple[str, ...]]
    """The encoders without any result, each with the reasons."""
    over_budget: Sequence[Failure]
    failed: Sequence[Failure]


@dataclass(frozen=True)
class Part:
    """Content of one heading, each behind one click."""

    heading: str
    notes: tuple[Alert, ...]
    anchor: str
    numbers: tuple[Table, ...]
    """The rows of the first screen and the other main numbers, with intervals and paired differences."""
    evaluations: Sequence[tuple[str, Sequence[Block]]]


@dataclass(frozen=True)
class Measured:
    """Measured encoders, with images, machine and time."""

    encoders: Mapping[str, EncoderInfo]
    facts: Mapping[str, str]


@dataclass(frozen=True)
class Page:
    """The sections of the page, from top to bottom; the template shows those that hold something."""

    state: RunState | None
    """Progress of a run that goes on."""
    headline: str
    lead: str
    colours: Mapping[str, str]
    """Colour of each encoder, by its name in the style sheet."""
    meta: str
    """Images, suite, version and day on one line."""
    first: tuple[FirstScreen, ...]
    missing: Missing
    notes: tuple[Alert, ...]
    """Warnings about the whole run or several headings."""
    parts: tuple[Part, ...]
    advice: tuple[str, ...]
    studied: tuple[tuple[str, Evidence], ...]
    """The measured numbers that the study looked at."""
    refusals: tuple[str, ...]
    """Results that could not be compared."""
    causes: tuple[Cause, ...]
    """Why results are missing."""
    measured: Measured
    numbers: str = ""
    """The file beside the page that holds all numbers, which the page then leaves out; empty: the page shows them."""
    sets: Sets | None = None
    """Several data sets, whose mean and ranks are shown."""

    @cached_property
    def pictures(self) -> dict[str, tuple[str, int, int]]:
        """Return each distinct PNG in base64 with its class in the style sheet, its width and its height."""
        blocks = (block for part in self.parts for _, blocks in part.evaluations for block in blocks)
        pngs = dict.fromkeys(
            png for block in blocks for _, pictures in block.pictures for picture in pictures for png in picture.pngs
        )
        heads = {png: b64decode(png[:32]) for png in pngs}
        sizes = {p: unpack(">II", h[16:24]) if h.startswith(b"\x89PNG") else (1, 1) for p, h in heads.items()}
        return {png: (f"p{place}", *sizes[png]) for place, png in enumerate(pngs)}


def render(
    contents: Contents,
    runs: Sequence[str] = (),
    state: RunState | None = None,
    numbers: str = "",
    suite: str = "",
    sets: Sets | None = None,
) -> str:
    """Return the page.

    Args:
        contents: what was measured, and what follows from it.
        runs: the folders of the results, which the page names in commands to copy.
        state: how far the run is, if it lasts: such a page reads itself again from time to time.
        numbers: the file beside the page that holds all numbers; the page links to it instead of showing them.
        suite: the name of the suite that was asked for, if it is known.
        sets: what belongs to each of several data sets, whose mean and ranks the page then shows.
    """
    whole = replace(page_of(contents, runs, state, suite), numbers=numbers, sets=sets)
    html = environment().get_template("page.html").render(page=whole)
    return re.sub(r"\n\s*", "\n", html)  # indentation is a hundredth of a large page


@cache
def environment() -> Environment:
    """Return the environment that renders the templates, compiled once."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    jinja = Environment(
        loader=PackageLoader("holdfast.report.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    jinja.globals.update(
        text=text, differences=differences, zip=zip, code=_code, stopped=SPENT, reload=RELOAD, study=study()
    )
    return jinja


def colours_of(comparison: Comparison) -> dict[str, str]:
    """Return the colour of each encoder, as the style sheet names it."""
    return {name: f"var(--e{place % COLOURS})" for place, name in enumerate(comparison.encoders)}


def page_of(contents: Contents, runs: Sequence[str] = (), state: RunState | None = None, suite: str = "") -> Page:
    """Return the sections of the page."""
    results, failures, comparison = contents.results, contents.failures, contents.comparison
    missing, said = _missing(contents), {screen.amber for screen in contents.first_screens}
    notes = [note for note in alerts(contents.groups) if note.warning not in said]
    whole = tuple(note for note in notes if not heading_of_note(note))
    gaps = [f"{gap.sentence}." for tallied in contents.tallies for gap in tallied.gaps]
    encoders = {name: result.encoder for group in contents.groups for name, result in group.items()}
    return Page(
        state=state,
        headline=_headline(results, comparison, len(missing.absent)),
        lead=_lead(results),
        colours=colours_of(comparison),
        meta=_meta(results, suite),
        first=contents.first_screens,
        missing=missing,
        notes=whole,
        parts=_parts(contents, [note for note in notes if note not in whole]),
        advice=advice(contents.tables[0], contents.groups, failures, runs, contents.screen) if contents.tables else (),
        studied=_studied(contents.groups),
        refusals=(*gaps, *incomparable(comparison.refusals)),
        causes=causes(failures),
        measured=Measured(encoders, _facts(results)),
    )


def heading_of_note(note: Alert) -> str:
    """Return the heading of the only section that a note concerns; empty where it concerns several, or the run."""
    return next(iter(note.headings)) if len(note.headings) == 1 else ""


def _parts(contents: Contents, notes: Sequence[Alert]) -> tuple[Part, ...]:
    blocks: dict[str, list[tuple[str, Sequence[Block]]]] = {name: [] for name in (*GROUPS, OTHERS)}
    headings: dict[str, str] = {}
    for name, of_evaluation in blocks_by_evaluation(contents).items():
        headings[name] = heading_of(of_evaluation[0].group.first)
        blocks[headings[name]].append((name, of_evaluation))
    exact = {screen.title: screen.exact for screen in contents.first_screens}
    tables_of = {
        heading: [_under(table, exact.get(table.title), heading, headings) for table in contents.tables]
        for heading in blocks
    }
    return tuple(
        Part(
            heading,
            tuple(note for note in notes if heading_of_note(note) == heading),
            heading.lower().replace(" ", "-"),
            tuple(table for table in tables_of[heading] if table.sections),
            named,
        )
        for heading, named in blocks.items()
        if named
    )


def _under(main: Table, exact: Table | None, heading: str, headings: Mapping[str, str]) -> Table:
    first = [part for part in (exact.sections if exact else ()) if headings[part.evaluation] == heading]
    shown = [(part.evaluation, part.like.quantity, part.like.conditions) for part in first]
    others = [
        replace(part, rows=rows)
        for part in main.sections
        if headings[part.evaluation] == heading
        and (
            rows := tuple(
                row for row in part.rows if (part.evaluation, part.like.quantity, row.like.conditions) not in shown
            )
        )
    ]
    return replace(main, sections=(*first, *others))


def _studied(groups: Sequence[Group]) -> tuple[tuple[str, Evidence], ...]:
    """Return the measured numbers that the study looked at, by the names of reports, those with evidence first."""
    found = {
        text.name_of(estimate): evidence
        for group in groups for result in group.results for estimate in result.estimates
        if (evidence := study().of(result.evaluation, estimate.quantity))
    }  # fmt: skip
    return tuple(sorted(found.items(), key=lambda item: item[1].place))


def _missing(contents: Contents) -> Missing:
    absent = encoders_without_results(contents.results, contents.failures)
    over_budget, failed = by_budget(contents.failures)
    parts = [f"{text.counted(len(absent), 'encoder')} without any result"] if absent else []
    counts = {"not measured": len(over_budget), "failed": len(failed)}
    parts += [f"{text.counted(count, 'result')} {state}" for state, count in counts.items() if count]
    summary = ", ".join(parts)
    return Missing(summary, absent, over_budget, failed)


def _headline(results: Sequence[Result], comparison: Comparison, absent: int) -> str:
    if not results:
        return "Nothing could be measured"
    # Baselines stand beside what is measured, unless nothing else is there.
    encoders = [name for name in comparison.encoders if name not in comparison.baselines] or comparison.encoders
    who = encoders[0] if len(encoders) == 1 else text.counted(len(encoders), "encoder")
    if absent:  # who was asked for and is not here belongs into the count
        who = f"{len(encoders)} of {text.counted(len(encoders) + absent, 'encoder')}"
    return heading(results, who)


def _meta(results: Sequence[Result], suite: str) -> str:
    images = dict.fromkeys(
        f"{text.counted(result.images.count, 'image')} of {result.images.name}" for result in results
    )
    facts = _facts(results)
    version = f"Holdfast {facts['Holdfast']}" if "Holdfast" in facts else ""
    return " · ".join(
        filter(None, (*images, f"suite {suite}" if suite else "", version, facts.get("Measured", "")[:10]))
    )


def _lead(results: Sequence[Result]) -> str:
    if not results:
        return "Nothing that was asked for has a result; the reasons are below."
    counts = sorted({len(result.findings.ids) for result in results} - {0})
    looked = "of its own making"
    if counts:
        looked = f"{counts[0]:,} to {counts[-1]:,}" if len(counts) > 1 else f"{counts[0]:,}"
    days = _distinct(result.provenance.get("started", "")[:10] for result in results)
    versions = _distinct(result.provenance.get("holdfast", "") for result in results)
    facts = " ".join(filter(None, (days and f"on {days}", versions and f"with Holdfast {versions}")))
    measured = f"Measured {facts}." if facts else ""
    # Why attacks are measured at these radii if none was given, in the words of the latest run.
    chosen = [result.provenance for result in results if "radii" in result.provenance]
    radii = f" {max(chosen, key=lambda origin: origin.get('started', ''))['radii']}" if chosen else ""
    return f"Samples per evaluation: {looked}. {measured}{radii}"


def _code(sentence: str) -> Markup:
    """Return ``sentence`` escaped, with text between backticks set as code."""
    from markupsafe import Markup, escape

    parts = [escape(part) for part in sentence.split("`")]
    return Markup("").join(Markup("<code>{}</code>").format(part) if k % 2 else part for k, part in enumerate(parts))


def _facts(results: Sequence[Result]) -> dict[str, str]:
    images = [result.images for result in results]
    banks = grouped((result.bank_title, result.bank) for result in results if result.bank)
    facts = {
        "Images": _sets(images),
        **{title: _sets(sets) for title, sets in banks.items()},
        "Skipped images": "; ".join(
            dict.fromkeys(f"{len(i.skipped):,} of {i.name}: {'; '.join(i.skipped)}" for i in images if i.skipped)
        ),
        "Evaluations": ", ".join(dict.fromkeys(result.title for result in results)),
        "Seed": _distinct(str(result.settings.get("seed", "")) for result in results),
        "Precision": _distinct(str(result.settings.get("precision", "")) for result in results),
    }
    recorded = {"Measured": "started", "Holdfast": "holdfast", "Device": "device", "Commit": "commit"}
    for title, key in recorded.items():
        facts[title] = _distinct(result.provenance.get(key, "") for result in results)
    everywhere = _alike(results) if results else {}
    facts.update(
        {text.words(key).capitalize(): value for key, value in everywhere.items() if key not in recorded.values()}
    )
    return {title: value for title, value in facts.items() if value}


def _sets(images: Iterable[ImagesInfo]) -> str:
    distinct = dict.fromkeys((image.name, image.count, image.fingerprint) for image in images)
    return "; ".join(f"{name}, {text.counted(n, 'image')}, fingerprint {mark}" for name, n, mark in distinct)


def _distinct(values: Iterable[str]) -> str:
    """Return the distinct values, joined; of many only the first and the last."""
    distinct = sorted(set(values) - {""})
    return ", ".join(distinct) if len(distinct) < 3 else f"{distinct[0]} to {distinct[-1]}"
