"""``holdfast clean``: delete the intermediate files of a run."""

from __future__ import annotations

import sys

import typer

from holdfast.cli import flags
from holdfast.cli.flags import switch
from holdfast.core.options import ADVANCED


def command(folder: flags.StoredRun, yes: bool = switch("--yes", "Delete without asking.", ADVANCED)) -> int:
    """Delete intermediate files of a run; results stay.

    Intermediate files are shards of finished results, failures, abandoned partial files and leases.
    """
    from holdfast.cli.terminal import size
    from holdfast.commands.clean import clean
    from holdfast.core.errors import HoldfastError

    removables = clean(folder)
    if not removables:
        print(f"{folder} has no intermediate files to delete")
        return 0
    for removable_kind in removables:
        print(f"{removable_kind.kind:9} {len(removable_kind.files):6} files {size(removable_kind.bytes):>10}")
    total = size(sum(removable_kind.bytes for removable_kind in removables))
    if not yes:
        if not sys.stdin.isatty():
            raise HoldfastError(f"{folder}: {total} can be deleted. Pass --yes to delete them.")
        typer.confirm(f"remove {total} from {folder}?", abort=True)
    clean(folder, yes=True)
    print(f"deleted {total}")
    return 0
