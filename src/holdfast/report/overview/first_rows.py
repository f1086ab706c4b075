"""Rows of the report's first screen: one event each, on the same images, gallery, ball and distance.

A proof and an attack share a cell only where all of these agree: proved <= true value <= attacked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from math import inf, isfinite, isnan
from typing import Literal, NamedTuple

from holdfast.core.errors import HoldfastError
from holdfast.core.records import Claim, Estimate, Result, grouped
from holdfast.core.settings import convert
from holdfast.report import text
from holdfast.report.comparison.comparable import Group
from holdfast.report.comparison.compare import Contest
from holdfast.report.comparison.tables import Cell, Row, Table
from holdfast.report.overview.study import study

GROUPS = {
    "Attacked": "White-box attacks. A stronger attack can only make these numbers worse.",
    "Proved and attacked": "Same images, same change, same distance: proved ≤ true value ≤ attacked.",
    "Everyday changes": "No attacker. All severities averaged.",
    "Space": "No attack: how the embedding space is used. This is not robustness, so no encoder is best.",
    "Labels": "Measured with labelled images.",
}
"""Headings of the first screen, each with a sentence on its rows."""
ROBUSTNESS = ("Attacked", "Proved and attacked", "Everyday changes", "Labels")
Form = Literal["percent", "radius", "score", "count", "plain"]
BOUNDS = ("proved", "attacked")
SLACK = 1e-9
"""Rounding that a lower bound may stand above an upper bound by."""


@dataclass(frozen=True)
class Kind:
    """Kind of row: a metric, or the two metrics that bound it from both sides."""

    group: str
    title: str
    short: str
    """The title on a terminal."""
    evaluation: str
    quantities: tuple[str, ...]
    """One, or the proved and the attacked bound of one event."""
    form: Form
    event: str
    gallery: str = "all other images"
    """Gallery of the comparison; names of settings in braces."""
    note: str = ""
    """Text of the second line besides ε, direction and n."""
    counts: str = ""
    """Unit of n, if not images."""
    attack: tuple[str, str] = ("", "")
    """Evaluation and quantity of the attack alone, for encoders of which nothing is proved."""

    @property
    def alone(self) -> Kind:
        """The row of the attack alone, where there is no proof of any encoder."""
        evaluation, quantity = self.attack
        return replace(self, group="Attacked", evaluation=evaluation, quantities=(quantity,), attack=("", ""))


KINDS = (
    Kind(
        "Proved and attacked", "Change that makes half of the images match another image",
        "change that makes half match another", "certified-attack-radius",
        ("certified_attack_radius", "attacked_attack_radius"), "radius",
        "another image becomes the nearest, median over images", attack=("attack-radius", "attack_radius"),
    ),
    Kind(
        "Attacked", "Images that can be made to match one image chosen in advance", "made to match a chosen image",
        "impersonation", ("impersonation_rate",), "percent", "a chosen other image is matched",
        "one chosen other image", counts="pairs",
    ),
    Kind(
        "Attacked", "Overlap margin left between two attacked images", "overlap margin left under attack",
        "overlap", ("adversarial_margin",), "score", "distance left between two attacked images",
        "one other image", "1 = nothing lost, below 0 = the two are confused", "pairs",
    ),
    Kind(
        "Proved and attacked", "Images that stay closest to their own original", "stay closest to their original",
        "certified-breakaway", ("certified_nearest_neighbour_accuracy", "attacked_nearest_neighbour_accuracy"),
        "percent", "no other image becomes nearer",
    ),
    Kind(
        "Proved and attacked", "Change up to which an image stays closer to itself than to a random other image",
        "stays closer to itself than to a random image", "certified-radius",
        ("average_certified_radius", "average_attacked_radius"), "radius",
        "closer to itself than to a random other image, mean radius", "{negatives} random other images",
    ),
    Kind(
        "Everyday changes", "Edited images that still match their original", "match their original after an edit",
        "common-perturbations", ("edits_survived",), "percent", "nearest image after an everyday edit",
    ),
    Kind(
        "Everyday changes", "Corrupted images that still match their original",
        "match their original after a corruption", "common-corruptions", ("corruptions_survived",), "percent",
        "nearest image after a common corruption",
    ),
    Kind(
        "Space", "Effective dimensions (RankMe)", "effective dimensions", "geometry", ("rankme",), "count",
        "dimensions that embeddings fill",
    ),
    Kind(
        "Labels", "Attacked images that a probe classifies correctly", "classified correctly under attack",
        "robust-accuracy", ("robust_accuracy",), "percent", "a probe is right under attack", "labelled reference set",
    ),
)  # fmt: skip
"""At most nine rows, in the order of the page."""


class Key(NamedTuple):
    """Key that two numbers must share to be about the same event."""

    event: str
    images: str
    gallery: str
    ball: str
    divergence: str


class Shown(NamedTuple):
    """One encoder's cell: its number or both bounds in print."""

    encoder: str
    parts: tuple[tuple[str, str], ...]
    """Words and numbers: ``("proved", "18.2/255")`` and ``("attacked", "20.3/255")``, or one number without a word."""
    best: bool
    detail: str
    """Intervals and method, for the tooltip."""
    values: tuple[float, ...]
    estimates: tuple[Estimate, ...] = ()
    """Shown estimates: one number, or the proved and the attacked bound."""

    @property
    def said(self) -> str:
        """The cell on one line; two bounds with their words, so that they do not read as an interval."""
        return " · ".join(f"{word} {number}".lstrip() for word, number in self.parts)


@dataclass(frozen=True)
class FirstRow:
    """One event with the numbers of all encoders."""

    kind: Kind
    key: Key
    under: str
    """The second line: ε and norm, direction, n and what it counts."""
    confirmed: bool
    """Whether the number predicted robust probes on held-out encoders."""
    cells: tuple[Shown, ...]
    fewest: int
    """Fewest samples of any of its numbers."""
    ranks: Mapping[str, int]
    """1 + how many encoders are better, at 95% for the whole screen."""
    numbers: Mapping[str, Estimate]
    """Each encoder's number; of two bounds the proved one."""

    @property
    def bounds(self) -> tuple[str, ...]:
        """The words of the two bounds, or one empty word."""
        return BOUNDS if len(self.kind.quantities) == 2 else ("",)

    @property
    def title(self) -> str:
        """The noun phrase whose number the row is."""
        return self.kind.title


class Picked(NamedTuple):
    """The rows of a table that one row of the screen shows: one, or the proved and the attacked one."""

    kind: Kind
    rows: tuple[Row, ...]
    group: Group
    alone: Picked | None = None
    """The attack alone, which may have met encoders of which nothing is proved."""

    @property
    def contest(self) -> Contest | None:
        """Who beats whom, by the proved end of a bracket."""
        return self.rows[0].contest

    @property
    def like(self) -> Estimate:
        """An estimate of the row."""
        return self.rows[0].like


def key_of(kind: Kind, estimate: Estimate, result: Result) -> Key:
    """Return event, images, gallery, ball and distance of ``estimate``."""
    ball, settings = estimate.conditions.get("ball", ""), dict(result.settings)
    for name in ("others", "negatives"):
        if isinstance(settings.get(name), int):
            settings[name] = min(settings[name], max(result.images.count - 1, 0))
    gallery = kind.gallery
    for name in ("others", "negatives"):
        gallery = gallery.replace(f"{{{name}}}", str(settings.get(name, "all")))
    return Key(
        kind.event,
        sha256("\n".join(result.findings.ids).encode()).hexdigest()[:12],
        gallery,
        ball.partition(":")[0] if kind.form == "radius" else ball,
        estimate.conditions.get("divergence", str(settings.get("divergence", ""))),
    )


def picked(part: Sequence[Group], whole: Table) -> Iterator[Picked]:
    """Yield for each kind the rows at the radius where the encoders differ most."""
    groups = {group.first.evaluation: group for group in part}
    for kind in KINDS:
        found = [each for each in (kind, kind.alone) if (each.evaluation in groups)]
        shown = [
            Picked(each, most_telling(rows, whole), groups[each.evaluation])
            for each in found
            if (rows := list(_candidates(each, whole)))
        ]
        if shown:
            yield shown[0]._replace(alone=shown[1] if len(shown) > 1 else None)


def most_telling(found: Sequence[tuple[Row, ...]], whole: Table) -> tuple[Row, ...]:
    """Return the rows in which the encoders differ most."""
    return max(found, key=lambda rows: _told_apart(rows, whole))


def candidates(rows: Sequence[Row], whole: Table) -> list[Row]:
    """Return per ball and distance the row of the strongest attack."""
    return [_strongest(same, whole) for same in grouped((_case(row), row) for row in rows).values()]


def _candidates(kind: Kind, whole: Table) -> Iterator[tuple[Row, ...]]:
    """Yield per ball and distance the row of the strongest attack, with the proof of the same event before it."""
    by_case: list[dict[tuple[str, str], Row]] = []
    for quantity in kind.quantities:
        rows = [
            row for section in whole.sections
            if (section.evaluation, section.like.quantity) == (kind.evaluation, quantity) for row in section.rows
        ]  # fmt: skip
        by_case.append({_case(row): row for row in candidates(rows, whole)})
    for case, row in by_case[0].items():
        if all(case in cases for cases in by_case) and any(cell and cell.defined for cell in row.cells):
            yield row, *(cases[case] for cases in by_case[1:])


def _case(row: Row) -> tuple[str, str]:
    conditions = row.like.conditions
    return conditions.get("ball", ""), conditions.get("divergence", "")


def _numbers(row: Row, whole: Table) -> list[float]:
    return [cell.estimate.value for cell in row.defined(whole, whole.ranked).values()]


def _strongest(rows: Sequence[Row], whole: Table) -> Row:
    """Return the row in which most encoders have a number, and of these the tightest bound on average."""

    def tightness(row: Row) -> tuple[int, float]:
        numbers = [number for number in _numbers(row, whole) if isfinite(number)]
        like = row.like
        sign = {Claim.UPPER: -1, Claim.LOWER: 1}.get(like.claim, -1 if like.better == "higher" else 1)
        return len(numbers), sign * sum(numbers) / max(1, len(numbers))

    return max(reversed(rows), key=tightness)


def _told_apart(rows: Sequence[Row], whole: Table) -> tuple[int, float]:
    """Return in how many encoders there is a number, and how far these differ; of one encoder how far it is from 0 and 1."""
    spread, count = 0.0, 0
    for row in rows:
        numbers = [number for number in _numbers(row, whole) if isfinite(number)]
        count += len(numbers)
        spread += max(numbers) - min(numbers) if len(numbers) > 1 else sum(min(abs(x), abs(1 - x)) for x in numbers)
    return count, spread


def first_row(found: Picked, whole: Table, ranks: Mapping[str, int]) -> FirstRow:
    """Return a row in print."""
    kind, like = found.kind, found.like
    results = dict(found.group.items())
    names = [name for name, cell in zip(whole.encoders, found.rows[0].cells, strict=True) if cell]
    lead = [name for name in names if ranks.get(name) == 1]
    best = lead[0] if len(lead) == 1 and len(ranks) > 1 else None
    cells = tuple(
        _cell(name, [row.cells[place] for row in found.rows], kind, name == best, results.get(name))
        for place, name in enumerate(whole.encoders)
    )
    if found.alone:
        cells = tuple(
            cell if cell.values else _attacked(found, found.alone, whole, place) or cell
            for place, cell in enumerate(cells)
        )
    told = len(ranks) > 1 and len(set(ranks.values())) == 1
    counts = sorted({cell.estimate.n for cell in found.rows[0].cells if cell and cell.defined})
    n = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,}–{counts[-1]:,}"
    studied = [study().of(kind.evaluation, quantity) for quantity in kind.quantities]
    return FirstRow(
        kind=kind,
        key=key_of(kind, like, results[names[0]]),
        under=_under(kind, like, results[names[0]], n, told),
        confirmed=any(each and each.again and each.again.held for each in studied),
        cells=cells,
        fewest=min((cell.estimate.n for row in found.rows for cell in row.defined(whole).values()), default=0),
        ranks=ranks,
        numbers={name: cell.estimate for name, cell in found.rows[0].defined(whole).items()},
    )


def _attacked(found: Picked, alone: Picked, whole: Table, place: int) -> Shown | None:
    """Return the attacked bound of an encoder without a proof, if it is of the same event as the row.

    It has no values, so that no attack is compared with proofs.
    """
    name, cell = whole.encoders[place], alone.rows[0].cells[place]
    like, shown = dict(found.group.items()), dict(alone.group.items())
    lead = next(each for each, known in zip(whole.encoders, found.rows[0].cells, strict=True) if known)
    if not cell or key_of(alone.kind, cell.estimate, shown[name]) != key_of(found.kind, found.like, like[lead]):
        return None
    parts = ((BOUNDS[1], number(alone.kind.form, cell.estimate, cell.estimate.value)),)
    return _cell(name, [cell], alone.kind, False, shown[name])._replace(parts=parts, values=())


LISTED = 80
"""Characters of a list of edits that the second line has room for; a longer list is counted."""


def _edits(settings: Mapping[str, object]) -> str:
    """Return how many edits or corruptions a number is of, by name where these are short.

    Example:
        >>> _edits({"edits": ["jpeg", "crop"]}), _edits({"samples": 60})
        ('2 edits: jpeg, crop', '')
    """
    for key, noun in (("edits", "edit"), ("kinds", "corruption")):
        names = settings.get(key)
        if isinstance(names, list | tuple) and all(isinstance(name, str) for name in names):
            written = ", ".join(map(str, names))
            return f"{text.counted(len(names), noun)}{f': {written}' if len(written) <= LISTED else ''}"
    return ""


def _under(kind: Kind, like: Estimate, result: Result, n: str, told: bool) -> str:
    key = key_of(kind, like, result)
    norm, _, _ = like.conditions.get("ball", "").partition(":")
    in_ball = ball(like.conditions["ball"]) if norm and kind.form != "radius" else ""
    where = f"ε in {text.NORMS.get(norm, norm)}" if kind.form == "radius" else in_ball
    among = "" if kind.gallery in ("all other images", "one chosen other image", "one other image") else key.gallery
    parts = (
        kind.note, where, _edits(result.settings) if kind.group == "Everyday changes" else "",
        f"{like.better} is better" if like.better != "neither" and not kind.note else "",
        f"among {among}" if among else "", f"n = {n}{f' {kind.counts}' if kind.counts else ''}",
        "no significant difference" if told else "",
    )  # fmt: skip
    return " · ".join(filter(None, parts))


def ball(written: str) -> str:
    """Return a ball as ε, in grey levels for ℓ∞.

    Example:
        >>> ball("linf:0.05"), ball("linf:8/255"), ball("l2:0.5")
        ('ε = 12.75/255', 'ε = 8/255', 'ε = 0.5 in ℓ2')
    """
    norm, _, radius = written.partition(":")
    return f"ε = {text.chosen(norm, radius)}{'' if norm == 'linf' else f' in {text.NORMS.get(norm, norm)}'}"


def _cell(name: str, cells: Sequence[Cell | None], kind: Kind, best: bool, result: Result | None) -> Shown:
    if any(cell is None for cell in cells):
        return Shown(name, (("", "–"),), False, "not measured", ())
    estimates = [cell.estimate for cell in cells if cell]
    values = tuple(e.value for e in estimates)
    if any(map(isnan, values)):
        reason = next((e.reason for e in estimates if e.reason), None) or "n/a"
        return Shown(name, (("", "n/a"),), False, reason, values, tuple(estimates))
    partial = f" ({result.looked_at:,} of {result.planned:,})" if result and result.planned is not None else ""
    parts = tuple((word, f"{said}{partial}") for word, said in in_words(kind.form, estimates))
    return Shown(name, parts, best, "; ".join(map(_detail, estimates)), values, tuple(estimates))


def _detail(e: Estimate) -> str:
    setting = text.conditions(e.conditions, aim=e.aim)
    parts = (text.name_of(e), text.value(e, e.value), text.interval(e), setting and f"({setting})")
    return " ".join(filter(None, parts))


def in_words(form: Form, estimates: Sequence[Estimate]) -> tuple[tuple[str, str], ...]:
    """Return a number with the sign of its bound, or the proved and the attacked bound with their words."""
    if len(estimates) == 2:
        return tuple((word, number(form, e, e.value)) for word, e in zip(BOUNDS, estimates, strict=True))
    (estimate,) = estimates
    if estimate.value == inf and form == "radius":
        return (("", number(form, estimate, inf)),)
    if estimate.claim == Claim.LOWER and estimate.better == "lower" and estimate.value == 0:
        return (("", "none found"),)
    sign = {Claim.UPPER: "≤ ", Claim.LOWER: "≥ "}.get(estimate.claim, "")
    return (("", f"{sign}{number(form, estimate, estimate.value)}"),)


def number(form: Form, estimate: Estimate, value: float) -> str:
    """Return ``value`` as the first screen shows it: per cent, a radius with its unit, or two decimals."""
    if form == "plain":
        return text.value(estimate, value)
    if form == "percent":
        return f"{100 * value:.{0 if estimate.n < 1000 else 1}f}%"
    norm, _, widest = estimate.conditions.get("ball", "").partition(":")
    times, behind = text.in_print(norm) if form == "radius" else (1.0, "")
    if value == inf:
        return f"> {times * convert(widest, float, 'radius'):.3g}{behind}" if widest else "∞"
    return f"{value:.2f}" if form == "score" else f"{times * value:.3g}{behind}"


def check_one_event(rows: Sequence[FirstRow], violated: Sequence[str] = ()) -> None:
    """Raise where two rows of one title speak of different things, or where a proof lies above an attack.

    Args:
        rows: of one screen.
        violated: encoders of which an attack falsified a certificate, which the screen says in red.

    Raises:
        HoldfastError: the screen would contradict itself.
    """
    titles: dict[str, FirstRow] = {}
    bounds: dict[tuple[Key, str], tuple[float, float]] = {}
    for row in rows:
        other = titles.setdefault(row.title, row)
        if other.key != row.key:
            parts = [name for name in Key._fields if getattr(row.key, name) != getattr(other.key, name)]
            raise HoldfastError(
                f"report: two rows are called {row.title!r} but differ in {text.listed(parts)}. Give each its own title."
            )
        for cell in row.cells:
            if len(cell.values) != 2 or any(map(isnan, cell.values)) or cell.encoder in violated:
                continue
            low, high = bounds.get((row.key, cell.encoder), (-inf, inf))
            low, high = max(low, cell.values[0]), min(high, cell.values[1])
            bounds[row.key, cell.encoder] = low, high
            if low > high + SLACK * max(1.0, abs(high)):
                raise HoldfastError(
                    f"report: {row.title!r} of {cell.encoder} is proved to be at least {low:.4g}, but an attack leaves "
                    f"{high:.4g}. Both must speak of one event; report this as a defect."
                )
