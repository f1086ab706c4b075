"""Zip archives as torch writes them: nothing is compressed, so none unpacks to more than it holds."""

from __future__ import annotations

import zipfile
from io import BytesIO
from pathlib import Path

from holdfast.core.errors import HoldfastError


def check_expansion(file: Path | BytesIO, name: str) -> None:
    """Raise if ``file``, called ``name``, is a zip archive that would fill more memory than disk."""
    if not zipfile.is_zipfile(file):
        return
    with zipfile.ZipFile(file) as archive:
        # Records may overlap, so their compression alone says nothing.
        unpacked, packed = sum(record.file_size for record in archive.infolist()), archive.start_dir
    if unpacked > packed:
        raise HoldfastError(
            f"{name} holds {packed:,} bytes but would unpack to {unpacked:,}, while torch saves without compression; "
            "save it again with torch"
        )
