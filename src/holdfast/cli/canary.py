"""``holdfast canary``: keep a few images and embeddings in one file, and check an encoder against it."""

from __future__ import annotations

import typer

from holdfast.cli import flags
from holdfast.cli.flags import flag, switch
from holdfast.core.options import INPUT, OUTPUT, CanaryOptions


@flags.options(CanaryOptions, "canary")
def command(
    action: str = typer.Argument(..., help="make or check.", metavar="ACTION"),
    subject: str = typer.Argument(
        ..., help="make: the encoder as source:name; check: the canary's file.", metavar="SUBJECT"
    ),
    candidate: str | None = typer.Argument(
        None, help="check: an encoder, or a file of embeddings.", metavar="CANDIDATE"
    ),
    images: flags.Images[str | None] = None,
    url: str | None = flag(None, "check: post PNG images to this service.", INPUT, "URL"),
    out: str | None = flag(None, "make: write this .safetensors file.", OUTPUT, "FILE"),
    hashes: bool = switch("--hashes", "make: keep hashes instead of images.", OUTPUT),
    *,
    options: CanaryOptions,
) -> int:
    """Keep a few embeddings in one file and check an encoder against it; exit 1 if it changed.

    holdfast canary make timm:resnet50 --images photos/ --out canary.safetensors
    """
    # Loaded here, because it needs torch.
    from holdfast.commands.canary import canary
    from holdfast.core.errors import HoldfastError
    from holdfast.service.canary import CanaryCheck

    if action == "make" and out is None:
        raise HoldfastError("canary make writes a file; name it with --out canary.safetensors")
    answer = canary(action, subject, candidate, images=images, out=out, url=url, hashes=hashes, **options)
    if isinstance(answer, CanaryCheck):
        print(answer.sentence)
        return 0 if answer.passed else 1
    header = answer.header
    print(
        f"{out}: {len(header.ids)} {'hashes' if hashes else 'images'}, {len(header.causes)} mistakes of {header.encoder}"
    )
    for name, tolerance in header.tolerances.items():
        print(f"  tolerance in {name}: {tolerance:.2g} of the median distance between images")
    return 0
