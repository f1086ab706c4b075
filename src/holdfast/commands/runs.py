"""What stored runs hold."""

from __future__ import annotations

from holdfast.commands.inputs import StoredRun, folder_of
from holdfast.commands.inventory import Inventory, inventory, is_run
from holdfast.core.errors import HoldfastError, refuse_blanks


def runs(folder: StoredRun) -> tuple[Inventory, ...]:
    """Return what a run holds: encoders, images, evaluations, what is not finished, how large it is, what cannot be read.

    Args:
        folder: a run, the folder of one, or a folder with several of them in it.

    Raises:
        HoldfastError: there is none.
    """
    refuse_blanks(locals())
    place = folder_of(folder)
    folders = [place] if is_run(place) else sorted(filter(is_run, place.glob("*")))
    if not folders:
        raise HoldfastError(
            f"{place} holds no run (no run.json); name the folder that was given as --out, or one above"
        )
    return tuple(map(inventory, folders))
