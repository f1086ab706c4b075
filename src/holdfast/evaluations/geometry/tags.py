"""Tags of what should not matter about each image (scanner, camera, site): a setting that names a file.

The file is CSV, ``id,tag`` or ``id,tag,group`` on each line, or a JSON object from ids to tags or to pairs of tag and group.
Images that belong together, of one slide, patient or video, are a group. The file's content is part of the setting's text,
hence of every key: ``scanners.csv@3f9a0c1d2e4b5a67``.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import final

import numpy as np
from jaxtyping import Int

from holdfast.core.errors import HoldfastError
from holdfast.core.settings import Spelled


@final
@dataclass(frozen=True)
class Tags(Spelled):
    """A file of tags and a hash of its content."""

    path: str
    content: str

    @classmethod
    def read(cls, text: str) -> Tags:
        """Return the file that ``text`` names, with or without the hash of what it must hold."""
        hashed = re.fullmatch(r"(.+)@([0-9a-f]{16})", text)
        path, content = hashed.groups() if hashed else (text, "")
        digest = sha256(_bytes(path)).hexdigest()[:16]
        if content and content != digest:
            raise HoldfastError(
                f"the tags in {path} are no longer those of {text}; name the file alone to read it anew"
            )
        return cls(path, digest)

    def __str__(self) -> str:
        return f"{self.path}@{self.content}"

    def of(self, ids: Sequence[str]) -> Int[np.ndarray, "n"]:
        """Return a number for the tag of each of ``ids``, equal where the tags are.

        Raises:
            HoldfastError: the file has changed or is of another form, an image has no tag, or all have the same.
        """
        stated = self._stated(ids)
        names, numbers = np.unique([stated[name][0] for name in ids], return_inverse=True)
        if len(names) < 2:
            raise HoldfastError(
                f"all images have the tag {str(names[0])!r} in {self.path}; a nuisance needs two at least"
            )
        return numbers

    def groups(self, ids: Sequence[str]) -> tuple[str, ...] | None:
        """Return the group of each of ``ids``; None where the file states none.

        Raises:
            HoldfastError: as ``of``.
        """
        stated = self._stated(ids)
        return tuple(stated[name][1] for name in ids) if all(len(stated[name]) > 1 for name in ids) else None

    def _stated(self, ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Return the tag, and the group if the file has one, of each image."""
        Tags.read(str(self))
        stated = _parsed(self.path, _bytes(self.path).decode("utf-8-sig"))
        if missing := [name for name in ids if name not in stated]:
            raise HoldfastError(
                f"{self.path} has no tag for {len(missing)} of {len(ids)} images, {missing[0]!r} among them; add them"
            )
        return stated


def _bytes(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise HoldfastError(
            f"the file of tags {path!r} cannot be read ({error.strerror}); name a CSV or JSON"
        ) from error


def _parsed(path: str, text: str) -> dict[str, tuple[str, ...]]:
    """Return the tag of each id, followed by its group if all have one."""
    if path.lower().endswith(".json"):
        try:
            content = json.loads(text)
        except ValueError as error:
            raise HoldfastError(f"{path} is no JSON ({error})") from error
        if not isinstance(content, dict):
            raise HoldfastError(f"{path} must hold an object from ids to tags, got {type(content).__name__}")
        rows = [[name, *map(str, tag if isinstance(tag, list) else [tag])] for name, tag in content.items()]
    else:
        rows = [row for row in csv.reader(text.splitlines()) if row]
    wide = len(rows[0]) if rows and len(rows[0]) in (2, 3) else 2
    if wrong := next((row for row in rows if len(row) != wide), None):
        raise HoldfastError(
            f"{path} must have two columns, id and tag, or three, id, tag and group; got {len(wrong)} in {wrong}"
        )
    return {name: tuple(rest) for name, *rest in rows}
