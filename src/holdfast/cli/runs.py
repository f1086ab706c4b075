"""``holdfast runs``: what is in the folder of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from holdfast.commands.inventory import Inventory


def command(
    folder: Annotated[Path, typer.Argument(help="The folder of a run, or one with several runs in it.")],
    json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Say what runs hold: encoders, images, evaluations, what is missing, how large it is, what cannot be read."""
    from rich.table import Table
    from rich.text import Text

    from holdfast.cli.terminal.console import show
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
    """Return what there is to say of a run, each with its name."""
    from holdfast.cli.terminal.console import size

    counts = {"finished": inventory.finished, "failed": len(inventory.failed), "missing": len(inventory.missing)}
    sizes = [f"{kind} {size(count)}" for kind, count in inventory.bytes.items() if count]
    return [
        ("encoders", ", ".join(inventory.encoders) or "none yet"),
        ("images", ", ".join(inventory.images) or "none yet"),
        ("evaluations", ", ".join(inventory.evaluations) or "none yet"),
        ("cells", ", ".join(f"{count} {what}" for what, count in counts.items())),
        *(("failed", f"{cell.evaluation} of {cell.encoder}: {cell.reason}") for cell in inventory.failed),
        *(("missing", f"{cell.evaluation} of {cell.encoder}") for cell in inventory.missing),
        ("size", f"{size(sum(inventory.bytes.values()))}: {', '.join(sizes)}"),
        *(("unreadable", path) for path in inventory.unreadable),
        ("last changed", inventory.touched),
    ]
