"""Which images belong together, as the setting ``groups`` of a reference says: by their names, or by a file."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from holdfast.core.errors import HoldfastError

FORMS = "prefix (the name before the last underscore), folders, or a CSV file with a line id,group for each image"


def groups_of(ids: Sequence[str], grouping: str) -> tuple[str, ...]:
    """Return the name of the group of each image.

    Args:
        ids: of the images, for files their relative paths.
        grouping: ``prefix``, ``folders``, or a CSV file.

    Raises:
        HoldfastError: it is none of these, or leaves an image without a group.

    Example:
        >>> groups_of(["a/cat_01.png", "a/cat_02.png", "b/dog_01.png"], "prefix")
        ('a/cat', 'a/cat', 'b/dog')
        >>> groups_of(["a/cat_01.png", "b/dog_01.png"], "folders")
        ('a', 'b')
    """
    if grouping in ("prefix", "folders"):
        mark = "_" if grouping == "prefix" else "/"
        if without := [name for name in ids if mark not in (name.rpartition("/")[2] if mark == "_" else name)]:
            raise HoldfastError(f"groups={grouping} needs {mark!r} in every name, and {without[0]!r} has none")
        return tuple(name.rpartition(mark)[0] for name in ids)
    try:
        text = Path(grouping).expanduser().read_text("utf-8-sig")
    except (OSError, ValueError) as error:
        raise HoldfastError(f"groups are {FORMS}; {grouping!r} cannot be read ({error})") from error
    rows = [row for row in csv.reader(text.splitlines()) if row]
    if wrong := next((row for row in rows if len(row) != 2), None):
        raise HoldfastError(f"{grouping} must have two columns, id and group, got {len(wrong)}: {wrong}")
    stated = dict(rows)
    if blank := next((name for name, group in stated.items() if not group.strip()), None):
        raise HoldfastError(f"{grouping} has an empty group for {blank!r}; name one, or leave groups out")
    if missing := [name for name in ids if name not in stated]:
        raise HoldfastError(
            f"{grouping} has no group for {len(missing)} of {len(ids)} images, {missing[0]!r} among them; add them"
        )
    return tuple(stated[name] for name in ids)
