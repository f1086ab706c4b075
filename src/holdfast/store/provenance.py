"""Who, where and when: what a result carries so that it can be trusted and repeated, and that changes no number."""

from __future__ import annotations

import platform
import subprocess
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from holdfast.core.run_settings import RunSettings
from holdfast.core.version import VERSION


def provenance(run: RunSettings, started: datetime) -> dict[str, str]:
    """Return versions, commit, device and times of a computation that began at ``started`` (aware) and ends now."""
    seconds = (datetime.now(UTC) - started).total_seconds()
    return {
        **versions(),
        **checkout(),
        "device": run.computes_on,
        "batch_size": str(run.batch_size),
        "started": started.isoformat(timespec="seconds"),
        "seconds": f"{seconds:.1f}",
    }


@cache
def versions() -> dict[str, str]:
    """Return the versions of everything that computes."""
    import numpy
    import torch

    return {
        "holdfast": VERSION,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "platform": platform.platform(),
    }


@cache
def checkout() -> dict[str, str]:
    """Return the commit of the source tree the library runs from and whether it has changes; nothing if installed."""
    home = Path(__file__).parent
    # An installed copy may lie inside somebody else's repository, whose commit would say nothing.
    if _git(home, "ls-files", "--error-unmatch", "__init__.py") is None:
        return {}
    commit, changes = _git(home, "rev-parse", "HEAD"), _git(home, "status", "--porcelain", "--", ".")
    return {"commit": commit, "dirty": str(bool(changes)).lower()} if commit else {}


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
