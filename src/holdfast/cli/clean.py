"""``holdfast clean``: remove what no result of a run needs."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from holdfast.cli import flags


def command(
    folder: flags.StoredRun,
    yes: Annotated[bool, typer.Option("--yes", help="Remove it without asking.")] = False,
) -> int:
    """Remove what finished cells were made from, failures, abandoned partial files and leases; results always stay."""
    from holdfast.cli.terminal import size
    from holdfast.commands.clean import clean
    from holdfast.core.errors import HoldfastError

    removables = clean(folder)
    if not removables:
        print(f"nothing in {folder} can be spared")
        return 0
    for removable_kind in removables:
        print(f"{removable_kind.kind:9} {len(removable_kind.files):6} files {size(removable_kind.bytes):>10}")
    total = size(sum(removable_kind.bytes for removable_kind in removables))
    if not yes:
        if not sys.stdin.isatty():
            raise HoldfastError(f"{total} in {folder} can be removed; --yes does so")
        typer.confirm(f"remove {total} from {folder}?", abort=True)
    clean(folder, yes=True)
    print(f"removed {total}")
    return 0
