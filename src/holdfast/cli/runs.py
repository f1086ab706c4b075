"""``holdfast runs``: what is in the folder of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    folder: Annotated[Path, typer.Argument(help="The folder of a run, or one with several runs in it.")],
    json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Say what runs hold: encoders, images, evaluations, what is missing, how large it is, what cannot be read."""
    from rich.table import Table
    from rich.text import Text

    from holdfast.cli.console import show, size
    from holdfast.execution.inventory import Inventory, inventories

    found = inventories(folder)
    if json:
        print("[" + ",\n".join(one.model_dump_json(indent=1) for one in found) + "]")
        return

    def shown(one: Inventory) -> list[tuple[str, str]]:
        counts = {"finished": one.finished, "failed": len(one.failed), "missing": len(one.missing)}
        sizes = [f"{kind} {size(count)}" for kind, count in one.bytes.items() if count]
        return [
            ("encoders", ", ".join(one.encoders) or "none yet"),
            ("images", ", ".join(one.images) or "none yet"),
            ("evaluations", ", ".join(one.evaluations) or "none yet"),
            ("cells", ", ".join(f"{count} {what}" for what, count in counts.items())),
            *(("failed", f"{cell.evaluation} of {cell.encoder}: {cell.reason}") for cell in one.failed),
            *(("missing", f"{cell.evaluation} of {cell.encoder}") for cell in one.missing),
            ("size", f"{size(sum(one.bytes.values()))}: {', '.join(sizes)}"),
            *(("unreadable", path) for path in one.unreadable),
            ("last changed", one.touched),
        ]

    for one in found:
        table = Table.grid(padding=(0, 2))
        table.add_row(Text(one.folder, style="bold"))
        for name, said in shown(one):
            table.add_row(Text(f"  {name}"), Text(said))
        show(table)
