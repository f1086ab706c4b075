"""The terminal: tables that fit its width, parsing of commands, one result in print.

Also here: the layout of ``--help`` (commands in groups, flags in panels, every default once), and warnings of a command,
each once and at most three.
"""

from __future__ import annotations

import codecs
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from io import TextIOWrapper
from math import isnan
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, final

from rich.console import Console
from rich.table import Table
from typer.core import TyperCommand, TyperGroup

from holdfast.core.errors import HoldfastError, check_not_blank
from holdfast.core.options import INPUT, PANELS

if TYPE_CHECKING:
    from holdfast.core.records import Result


OTHER = "More"
"""Group of commands that ``GROUPS`` does not name, such as those of other packages."""
GROUPS = {
    "Measure": ("evaluate", "compare", "check", "doctor"),
    "Attack and prove": ("attack", "certify"),
    "Improve": ("harden", "train"),
    "Deploy": ("parity", "canary", "drift", "threshold", "sites"),
    "Data and runs": ("corrupt", "spade", "runs", "clean", "publish", "list"),
}
"""Groups of commands in ``holdfast --help``, in their order."""
Rows = list[tuple[str, str]]


def write_parameters(formatter: Any, parameters: Sequence[Any], titles: Iterable[str] = PANELS) -> None:
    """Write a line per argument and flag, panel by panel; flags without a panel go to the last one."""
    panels: dict[str, Rows] = {title: [] for title in titles}
    last = list(panels)[-1]
    for parameter in parameters:
        title = INPUT if parameter.param_type_name == "argument" else parameter.rich_help_panel or last
        panels.setdefault(title, []).append((signature(parameter), meaning(parameter)))
    for title, rows in panels.items():
        _write(formatter, title, rows)


def _write(formatter: Any, title: str, rows: Rows) -> None:
    if rows:
        formatter.write(f"\n{title}\n")
        formatter.indent()
        formatter.write_dl(rows, col_max=28)
        formatter.dedent()


def signature(parameter: Any) -> str:
    """Return how an argument or flag is typed, as in ``--limit N``."""
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name.upper().rstrip("_"))
    names = " / ".join([max(parameter.opts, key=len), *parameter.secondary_opts])
    return names if parameter.is_flag else f"{names} {parameter.metavar or 'VALUE'}"


def meaning(parameter: Any) -> str:
    """Return the help of an argument or flag, with its default unless the text states one."""
    words = (parameter.help or "").strip()
    shown, value = parameter.show_default, parameter.default
    if not isinstance(shown, str):
        hidden = callable(value) or value is None or parameter.required or isinstance(value, (bool, list, tuple))
        shown = "" if hidden else f"{value:,}" if isinstance(value, int) else str(value)
    if shown and "(default" not in words:
        words = f"{words.removesuffix('.')} (default: {shown})."
    return f"{words} Required." if parameter.required else words


MOST = 3
"""Warnings that a command prints; a reader of more acts on none."""
_printed: ContextVar[dict[str, None] | None] = ContextVar("printed", default=None)


@contextmanager
def limited(debug: bool) -> Iterator[None]:
    """Let a command print ``MOST`` warnings, and at its end how many more there are; all of them with ``debug``."""
    sentences: dict[str, None] = {}
    token = _printed.set(None if debug else sentences)
    try:
        yield
    finally:
        _printed.reset(token)
        if not debug and len(sentences) > MOST:
            print(f"holdfast: {len(sentences) - MOST} more warnings: add --debug to see them", file=sys.stderr)


def may_warn(sentence: str) -> bool:
    """Return whether a command may print this warning; outside of a command it always may."""
    sentences = _printed.get()
    if sentences is None:
        return True
    if sentence in sentences:
        return False
    sentences[sentence] = None
    return len(sentences) <= MOST


UNLIMITED = 10_000


def console() -> Console:
    """Return a console that prints names as they are, without markup or colours of its own."""
    return Console(highlight=False, markup=False, soft_wrap=True, width=None if sys.stdout.isatty() else UNLIMITED)


def show(table: Table) -> None:
    """Print ``table`` without the spaces that would fill each line to its width."""
    out = console()
    with out.capture() as captured:
        out.print(table)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def announce(sentence: str) -> None:
    """Print ``sentence`` on stderr before what takes long and says nothing, where someone is looking."""
    if sys.stderr.isatty():
        print(sentence, file=sys.stderr, flush=True)


def size(count: int) -> str:
    """Return a number of bytes as people read it.

    Example:
        >>> size(0), size(2_340_000)
        ('0 B', '2.3 MB')
    """
    amount, power = float(count), 0
    while amount >= 1000 and power < 4:
        amount, power = amount / 1000, power + 1
    return f"{amount:.1f} {'kMGT'[power - 1]}B" if power else f"{count} B"


UNREAD = 141
"""The status of a command whose reader is gone, as shells call the end by the signal for that: 128 + 13."""
ERRORS = "holdfast"
"""The name under which Python finds ``writable``."""
ESCAPED = range(0xDC80, 0xDD00)
"""Characters that stand for bytes of paths that are no text."""


class UnreadError(HoldfastError):
    """The reader of standard output has closed it, as ``head`` does: nothing went wrong."""


def writable(error: UnicodeError) -> tuple[str | bytes, int]:
    """Return how what an encoding lacks is written: bytes of paths as they are, anything else by its number.

    Example:
        >>> "±1".encode("ascii", ERRORS), "caf\\udce9".encode("ascii", ERRORS)
        (b'\\\\xb11', b'caf\\xe9')
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    character = error.object[error.start]
    if ord(character) in ESCAPED:
        return bytes([ord(character) - 0xDC00]), error.start + 1
    return character.encode("ascii", "backslashreplace"), error.start + 1


codecs.register_error(ERRORS, writable)


@final
class Output(TextIOWrapper):
    """A standard output that says what is wrong with it, once, instead of an error about any file."""

    broken = False

    def write(self, text: str) -> int:
        try:
            return len(text) if self.broken else super().write(text)
        except OSError as error:
            self.broken = True
            raise _refused(error) from error

    def flush(self) -> None:
        try:
            if not self.broken:
                super().flush()
        except OSError as error:
            self.broken = True
            raise _refused(error) from error


def prepare() -> None:
    """Make of standard output an ``Output``.

    Raises:
        HoldfastError: it is closed.
    """
    if sys.stdout is None:
        raise HoldfastError("standard output is closed; send it to a file or to /dev/null")
    if isinstance(sys.stdout, TextIOWrapper):
        encoding, buffered = sys.stdout.encoding, sys.stdout.line_buffering
        sys.stdout = Output(sys.stdout.detach(), encoding, ERRORS, line_buffering=buffered)


def drop() -> None:
    """Send what is still to be written nowhere, or Python would try again at its end."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _refused(error: OSError) -> HoldfastError:
    if isinstance(error, BrokenPipeError):
        return UnreadError("no one reads standard output any more")
    return HoldfastError(f"cannot write to standard output: {error.strerror or error}; send it elsewhere or free space")


@final
class Command(TyperCommand):
    """A command whose flags and arguments are refused where they are empty or given twice, before they are converted."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse ``args`` as typer does.

        Raises:
            HoldfastError: one is empty (a converted empty path is the current folder), or an option that takes one value is
                given twice.
        """
        if not ctx.resilient_parsing:  # which completion asks for
            texts, _, given = self.make_parser(ctx).parse_args(args=list(args))
            repeated: Counter[Any] = Counter(given)
            for option, times in repeated.items():  # the last one would win without a word
                switch = getattr(option, "is_flag", False) and not option.secondary_opts  # says the same twice
                if times > 1 and option.param_type_name == "option" and not (option.multiple or switch):
                    listed = "comma-separated" in (option.help or "")
                    advice = "separate its values by commas" if listed else "it takes one value, so keep one"
                    raise HoldfastError(f"{max(option.opts, key=len)} is given {times} times; {advice}")
            for parameter in self.get_params(ctx):
                check_not_blank(max(parameter.opts, key=len), texts.get(parameter.name or ""))
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return arguments, required flags and then ``[OPTIONS]``."""
        arguments = [
            part if each.required else f"[{part}]"
            for each in self.params
            if each.param_type_name == "argument"
            for part in [signature(each)]
        ]
        needed = [signature(each) for each in self.params if each.required and each.param_type_name == "option"]
        return [*arguments, *needed, "[OPTIONS]"]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and flags in panels."""
        write_parameters(formatter, self.get_params(ctx))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write usage, description and flags as plain text."""
        _written_plainly(self, ctx, formatter)


@final
class Group(TyperGroup):
    """All commands, shown in groups by ``holdfast --help``."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return where command and options stand."""
        return ["COMMAND", "[OPTIONS]"]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the commands in groups, then the options before a command."""
        found = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        commands = {name: ((each and each.help) or "").partition("\n")[0] for name, each in found.items()}
        rest = [name for name in commands if not any(name in group for group in GROUPS.values())]
        width = max(map(len, commands))  # equal in all groups, so that the texts align
        for title, names in {**GROUPS, OTHER: rest}.items():
            _write(formatter, title, [(name.ljust(width), commands[name]) for name in names if name in commands])
        write_parameters(formatter, self.get_params(ctx), ("Options",))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write usage, commands and options as plain text."""
        _written_plainly(self, ctx, formatter)


def _written_plainly(command: TyperCommand | TyperGroup, ctx: Any, formatter: Any) -> None:
    formatter.width = min(max(get_terminal_size((100, 24)).columns, 60), 120)
    command.format_usage(ctx, formatter)
    for line in (command.help or "").splitlines():
        formatter.write(f"\n{line.rstrip()}" if line.strip() else "\n")
    formatter.write("\n")
    command.format_options(ctx, formatter)
    command.format_epilog(ctx, formatter)


def show_result(result: Result) -> None:
    """Print the numbers of ``result`` with their intervals, each reason once, its verdicts and its warnings."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from holdfast.report.contents import heading
    from holdfast.report.overview.alerts import partial
    from holdfast.report.text import STATUSES, conditions, interval, listed, name_of, value

    screen = console()
    if result.heading:
        screen.print(Text(heading([result], result.encoder.name)))
    grid = Table(box=box.SIMPLE_HEAD)
    for head in ("", "value", "interval", "method"):
        grid.add_column(head, overflow="fold")
    reasons: dict[tuple[str, bool], Counter[str]] = {}
    for estimate in result.estimates:
        if estimate.reason or isnan(estimate.value):
            reason = estimate.reason or "no reason was recorded"
            reasons.setdefault((reason, isnan(estimate.value)), Counter())[name_of(estimate)] += 1
        if isnan(estimate.value):
            continue
        where = conditions(estimate.conditions, aim=estimate.aim)
        name = name_of(estimate) + (f" ({where})" if where else "")
        cells = (name, value(estimate, estimate.value), interval(estimate), estimate.method)
        grid.add_row(*map(Text, cells))
    show(grid)
    for (reason, undefined), counts in reasons.items():
        names = listed([f"{name} ({count} of them)" if count > 1 else name for name, count in counts.items()])
        screen.print(Text(f"{names}{' undefined' if undefined else ''}: {reason}"))
    for verdict in result.findings.verdicts:
        screen.print(Text(f"{verdict.question} {STATUSES.get(verdict.status, verdict.status)}: {verdict.reason}"))
        for key, fact in verdict.witness.items():
            screen.print(Text(f"  {key}: {fact}"))
    for warning in (*result.findings.warnings, *([partial(result)] if result.planned is not None else ())):
        if may_warn(warning):
            screen.print(Text(f"warning: {warning}"))
