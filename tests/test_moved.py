"""Old names of modules: each leads to the new module, with one warning."""

from __future__ import annotations

import subprocess
import sys
import warnings
from importlib import import_module

import pytest

from holdfast import _moved
from tests.test_layers import HERE

LEAVES = sorted(old for old in _moved.MOVED if not old.startswith(("integrations", "run.engines.ray")))


def old_parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]


def reachable(old: str) -> bool:
    """Whether every parent of an old name is still a package, or was one that is found by its old name."""
    return all(hasattr(import_module(f"holdfast.{parent}"), "__path__") for parent in old_parents(old))


def test_every_new_place_exists():
    for new in set(_moved.MOVED.values()):
        assert import_module(f"holdfast.{new}").__name__ == f"holdfast.{new}"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_old_names_have_the_same_objects():
    found = [old for old in LEAVES if reachable(old)]
    assert len(found) > 100
    for old in found:
        new = vars(import_module(f"holdfast.{_moved.MOVED[old]}"))
        for name, value in vars(import_module(f"holdfast.{old}")).items():
            if not name.startswith("__"):
                assert value is new[_moved.RENAMED.get(old, {}).get(name, name)], f"{old}.{name}"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("old", ["core.clock", "data.reading.survey", "report.overview.recorded", "run.folder"])
def test_modules_that_joined_others_after_version_0_3_are_found(old):
    assert import_module(f"holdfast.{old}")


def test_an_old_name_warns_once_and_names_its_successor():
    code = (
        "import warnings\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    import holdfast.protocol.population\n"
        "    from holdfast.protocol.population import Population\n"
        "from holdfast.measure.population import Population as Now\n"
        "assert Population is Now\n"
        "print(*(f'{w.category.__name__} {w.filename} {w.message}' for w in caught), sep='\\n')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=HERE, capture_output=True, text=True, check=True)
    (line,) = done.stdout.splitlines()
    kind, file, message = line.split(" ", 2)
    assert (kind, file) == ("DeprecationWarning", "<string>")
    assert "holdfast.measure.population" in message


def test_names_that_never_were_are_refused():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ModuleNotFoundError):
            import_module("holdfast.protocols")
        with pytest.raises(ModuleNotFoundError):
            import_module("holdfast.core.argument")
