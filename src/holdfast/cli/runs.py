"""``holdfast runs``: show what stored runs contain."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from holdfast.cli.flags import switch
from holdfast.core.options import OUTPUT

if TYPE_CHECKING:
    from holdfast.commands.runs import Inventory


def command(
    folder: Path = typer.Argument(..., help="Folder of one run, or folder of several runs.", metavar="FOLDER"),
    json: bool = switch("--json", "Print as JSON, a list of runs.", OUTPUT),
) -> None:
    """Show what stored runs contain.

    The output lists encoders, images, evaluations, unfinished results, sizes and unreadable files.
    """
    from rich.table import Table
    from rich.text import Text

    from holdfast.cli.terminal import show
    from holdfast.commands.runs import runs

    inventories = runs(folder)
    if json:
        print("[" + ",\n".join(inventory.model_dump_json(indent=1) for inventory in inventories) + "]")
        return

    for inventory in inventories:
        table = Table.grid(padding=(0, 2))
        table.add_row(Text(inventory.folder, style="bold"))
        for name, value in _lines(inventory):
            table.add_row(Text(f"  {name}"), Text(value))
        show(table)


def _lines(inventory: Inventory) -> list[tuple[str, str]]:
    from holdfast.cli.terminal import size
    from holdfast.core.records import grouped
    from holdfast.report.overview.alerts import cells_in_words, counted_states

    states = {"partial": inventory.partial, "not measured": inventory.not_measured, "failed": inventory.failed}
    sizes = [f"{kind} {size(count)}" for kind, count in inventory.bytes.items() if count]
    return [
        ("encoders", ", ".join(inventory.encoders) or "none yet"),
        ("images", ", ".join(inventory.images) or "none yet"),
        ("evaluations", ", ".join(inventory.evaluations) or "none yet"),
        ("cells", counted_states(inventory.finished, *map(len, states.values()))),
        *(
            (state, ": ".join(filter(None, (cells_in_words(those), reason))))
            for state, cells in states.items()
            for reason, those in grouped((cell.reason, (cell.evaluation, cell.encoder)) for cell in cells).items()
        ),
        ("size", f"{size(sum(inventory.bytes.values()))}: {', '.join(sizes)}"),
        *(("unreadable", path) for path in inventory.unreadable),
        ("last changed", inventory.touched),
    ]
