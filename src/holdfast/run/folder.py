"""Folders that hold the answer to one request: the request, the shards that were computed, and the files made from them.

The same request continues its folder. A different request is refused, because its files would mix with the first ones.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from holdfast.core.errors import HoldfastError, explained
from holdfast.core.files import sealed, unsealed
from holdfast.measure.store import Key, Store
from holdfast.run.engines.ranks import LEASES

REQUEST = "request.json"
UNFINISHED = {REQUEST, "shards", "arrays", LEASES}
"""Files of a request before its result; shards name their observation themselves."""


def check_free(folder: Path, mark: str = REQUEST, others: Collection[str] = ()) -> None:
    """Make ``folder``, before anything is loaded, and refuse one that holds something, but not the file that is its mark.

    The names of ``others`` may stand there before the mark does.

    Raises:
        HoldfastError: it cannot be written, or holds something else than the same verb leaves there.
    """
    with explained(f"cannot write to {folder}", "choose another --out", OSError):
        folder.mkdir(parents=True, exist_ok=True)
        names = _names(folder)
    if names - set(others) and mark not in names:
        raise HoldfastError(f"{folder} is not empty; choose another --out, or delete what is in it")


def claim(store: Store, command: str, key: Key) -> None:
    """Keep what is asked for in the folder of ``store``, and refuse the folder of another request."""
    request: dict[str, Any] = json.loads(json.dumps({"command": command, **key.model_dump()}))
    if _names(store.folder) <= UNFINISHED:
        store.write_file(REQUEST, sealed(json.dumps(request, indent=1).encode()))
        return
    try:
        previous = json.loads(unsealed((store.folder / REQUEST).read_bytes()))
    except ValueError as error:
        raise HoldfastError(
            f"{store.folder / REQUEST} is damaged, or of an earlier version of holdfast, so no one knows what the folder "
            "answers; choose another --out, or delete what is in it"
        ) from error
    if previous != request:
        ours, other = ({**each, **(each.get("settings") or {})} for each in (request, previous))  # settings one by one
        names = [name for name in [*ours, *(set(other) - set(ours))] if ours.get(name) != other.get(name)]
        differing = ", ".join(name for name in names if name != "settings")
        raise HoldfastError(
            f"{store.folder} holds the answer to another request (other {differing}); "
            "choose another --out, or delete what is in it"
        )


def _names(folder: Path) -> set[str]:
    """Return the names in ``folder``, without hidden files of processes that died while writing."""
    return {path.name for path in folder.iterdir() if not path.name.startswith(".")}
