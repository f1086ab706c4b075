"""Tags of what should not matter about each image (scanner, camera, site): a setting that names a file.

The file is CSV, ``id,tag`` on each line, or a JSON object from ids to tags. Its content is part of the setting's text, hence
of every key: ``scanners.csv@3f9a0c1d2e4b5a67``.
"""

from __future__ import annotations

import csv
import json
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
        path, _, content = text.rpartition("@") if "@" in text else (text, "", "")
        found = sha256(_bytes(path)).hexdigest()[:16]
        if content and content != found:
            raise HoldfastError(
                f"the tags in {path} are no longer those of {text}; name the file alone to read it anew"
            )
        return cls(path, found)

    def __str__(self) -> str:
        return f"{self.path}@{self.content}"

    def of(self, ids: Sequence[str]) -> Int[np.ndarray, "n"]:
        """Return a number for the tag of each of ``ids``, equal where the tags are.

        Raises:
            HoldfastError: the file has changed or is of another form, an image has no tag, or all have the same.
        """
        Tags.read(str(self))
        given = _parsed(self.path, _bytes(self.path).decode("utf-8-sig"))
        if missing := [name for name in ids if name not in given]:
            raise HoldfastError(
                f"{self.path} has no tag for {len(missing)} of {len(ids)} images, {missing[0]!r} among them; add them"
            )
        names, numbers = np.unique([given[name] for name in ids], return_inverse=True)
        if len(names) < 2:
            raise HoldfastError(
                f"all images have the tag {str(names[0])!r} in {self.path}; a nuisance needs two at least"
            )
        return numbers


def _bytes(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise HoldfastError(
            f"the file of tags {path!r} cannot be read ({error.strerror}); name a CSV or JSON"
        ) from error


def _parsed(path: str, text: str) -> dict[str, str]:
    """Return the tag of each id."""
    if path.lower().endswith(".json"):
        try:
            given = json.loads(text)
        except ValueError as error:
            raise HoldfastError(f"{path} is no JSON ({error})") from error
        if not isinstance(given, dict):
            raise HoldfastError(f"{path} must hold an object from ids to tags, got {type(given).__name__}")
        return {name: str(tag) for name, tag in given.items()}
    rows = [row for row in csv.reader(text.splitlines()) if row]
    if wrong := next((row for row in rows if len(row) != 2), None):
        raise HoldfastError(f"{path} must have two columns, id and tag, got {len(wrong)}: {wrong}")
    return dict(rows)
