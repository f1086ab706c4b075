"""``holdfast doctor``: check an encoder before it is measured."""

from __future__ import annotations

from holdfast.cli import flags
from holdfast.cli.flags import like
from holdfast.core.options import DoctorOptions


@flags.options(DoctorOptions, "doctor")
def command(
    encoder: flags.Encoder,
    images: str | None = like(
        flags.Images, help="Check these images: pixels of 1,000, embeddings of 4.", show_default="noise"
    ),
    *,
    options: DoctorOptions,
) -> int:
    """Check that an encoder is fit to be measured.

    The checks cover reloading, batches, gradients and whether the embeddings differ between images.

    holdfast doctor timm:resnet50 --images photos/
    """
    from rich.table import Table
    from rich.text import Text

    from holdfast.cli.terminal import announce, show

    announce(f"loading and checking {encoder}")
    from holdfast.commands.doctor import doctor  # loaded here, because it needs torch

    checks = doctor(encoder, images, **options)
    table = Table.grid(padding=(0, 2))
    colours = {"ok": "green", "warning": "yellow", "failed": "red"}
    for check in checks:
        table.add_row(Text(check.status, style=colours[check.status]), Text(check.name), Text(check.sentence))
    show(table)
    return 1 if any(check.status == "failed" for check in checks) else 0
