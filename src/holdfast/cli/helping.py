"""Layout of ``--help``: commands in groups, flags in panels, every default stated once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from holdfast.core.options import INPUT, PANELS

OTHER = "More"
"""Group of commands that ``GROUPS`` does not name, such as those of other packages."""
GROUPS = {
    "Measure": ("evaluate", "compare", "check", "doctor"),
    "Attack and prove": ("attack", "certify"),
    "Improve": ("harden", "train"),
    "Deploy": ("parity", "canary", "drift", "threshold"),
    "Data and runs": ("corrupt", "spade", "runs", "clean", "publish", "list"),
}
"""Groups of commands in ``holdfast --help``, in their order."""
Rows = list[tuple[str, str]]


def write_commands(formatter: Any, commands: dict[str, str]) -> None:
    """Write the first line of each command's help, group by group."""
    rest = [name for name in commands if not any(name in group for group in GROUPS.values())]
    width = max(map(len, commands))  # equal in all groups, so that the texts align
    for title, names in {**GROUPS, OTHER: rest}.items():
        rows = [(name.ljust(width), commands[name]) for name in names if name in commands]
        _write(formatter, title, rows)


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
    shown = parameter.show_default if isinstance(parameter.show_default, str) else _default(parameter)
    if shown and "(default" not in words:
        words = f"{words.removesuffix('.')} (default: {shown})."
    return f"{words} Required." if parameter.required else words


def _default(parameter: Any) -> str:
    value = None if callable(parameter.default) else parameter.default
    if value is None or parameter.required or isinstance(value, (bool, list, tuple)):
        return ""
    return f"{value:,}" if isinstance(value, int) else str(value)
