"""``holdfast doctor``: may this encoder's numbers be trusted?"""

from __future__ import annotations

from typing import Annotated

from holdfast.cli import flags
from holdfast.core.options import DoctorOptions


@flags.options(DoctorOptions, "doctor")
def command(
    encoder: flags.Encoder,
    images: Annotated[
        str | None,
        flags.like(
            flags.Images,
            help="A folder, an array file, tar shards, an address or source:name; pixels of up to 1,000 images are checked "
            "and codes of 4 computed.",
            show_default="noise",
        ),
    ] = None,
    *,
    options: DoctorOptions,
) -> int:
    """Examine an encoder: does it load the same twice, ignore the batch, pass gradients, tell images apart?"""
    from rich.table import Table
    from rich.text import Text

    from holdfast.cli.terminal import announce, show

    announce(f"loading and examining {encoder}")
    from holdfast.commands.doctor import doctor  # loaded here, because it needs torch

    checks = doctor(
        encoder,
        images,
        **options,
    )
    table = Table.grid(padding=(0, 2))
    colours = {"ok": "green", "warning": "yellow", "failed": "red"}
    for check in checks:
        table.add_row(Text(check.status, style=colours[check.status]), Text(check.name), Text(check.sentence))
    show(table)
    return 1 if any(check.status == "failed" for check in checks) else 0
