"""Another package, as pip would install it: its modules, and the entry points that name what is in them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.cli import app as cli
from holdfast.core import discovery

CACHED = (discovery.sources, discovery._classes, cli.application, cli._modules)


@contextmanager
def looked_anew() -> Iterator[None]:
    """What there is is looked for again, and once more afterwards."""
    for cached in CACHED:
        cached.cache_clear()
    try:
        yield
    finally:
        for cached in CACHED:
            cached.cache_clear()


@contextmanager
def installed(
    folder: Path, package: str, modules: Mapping[str, str], points: Mapping[str, Mapping[str, str]]
) -> Iterator[None]:
    """``package`` is installed in ``folder``: its ``modules`` by name, and by group what its entry ``points`` name."""
    (folder / package).mkdir(parents=True)
    (folder / package / "__init__.py").write_text("")
    for name, code in modules.items():
        (folder / package / f"{name}.py").write_text(code)
    about = folder / f"{package}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in named.items()) for group, named in points.items()]
    (about / "entry_points.txt").write_text("\n".join(lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        importlib.invalidate_caches()
        with looked_anew():
            yield
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        del sys.modules[name]
