"""``holdfast doctor``: may this encoder's numbers be trusted?"""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.flags import Arch, Size, TrustRemoteCode


def command(
    encoder: Annotated[str, typer.Argument(help="source:name, as in timm:resnet50.")],
    images: Annotated[str | None, typer.Option(help="Images to look at; none: noise.")] = None,
    arch: Arch = None,
    size: Size = None,
    trust_remote_code: TrustRemoteCode[bool] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps.")] = "cpu",
    precision: Annotated[str, typer.Option(help="float32, float64, bfloat16, float16.")] = "float32",
) -> int:
    """Examine an encoder: does it load the same twice, ignore the batch, pass gradients, tell images apart?"""
    from rich.table import Table
    from rich.text import Text

    from holdfast.cli.console import show
    from holdfast.commands.doctor import doctor

    checks = doctor(
        encoder,
        images,
        arch=arch,
        size=size,
        trust_remote_code=trust_remote_code,
        device=device,
        precision=precision,
    )
    table = Table.grid(padding=(0, 2))
    colours = {"ok": "green", "warning": "yellow", "failed": "red"}
    for check in checks:
        table.add_row(Text(check.status, style=colours[check.status]), Text(check.name), Text(check.sentence))
    show(table)
    return 1 if any(check.status == "failed" for check in checks) else 0
