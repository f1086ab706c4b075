"""Code is described alike by every version of Python, whatever its layout, and otherwise if it computes otherwise."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.pages import ROOT

SYNTAX = ROOT / "src" / "holdfast" / "core" / "syntax.py"

DESCRIBE = """
import importlib.util, json, sys, types

def load(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

def functions(code):
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            if constant.co_flags & 2 and (constant.co_name[0] != "<" or constant.co_name == "<lambda>"):
                yield constant
            yield from functions(constant)

syntax = load("syntax", sys.argv[1])
file = sys.argv[2]
found = sorted(functions(compile(open(file).read(), file, "exec", dont_inherit=True)), key=lambda c: c.co_firstlineno)
texts = [[c.co_name, c.co_firstlineno, syntax.has_source(c), list(syntax.code_text(c))] for c in found]
print(json.dumps([sorted(texts), [code.co_code.hex() for code in found]]))
"""

FILE = '''
import functools
import math

OFFSET = 2

class Encoder:
    """Takes images."""
    width: int = 3

    def __init__(self, depth: int = 2, *, names=("a", "b")) -> None:
        self.depth, self.names = depth, names

    @property
    def size(self) -> float:
        return math.sqrt(self.width) // 2 - -1.5e-3 + 0xFF

    def forward(self, x, scale=1.0):
        """Return the embeddings."""
        total: float = 0
        for index, (name, value) in enumerate(zip(self.names, [x * s for s in range(self.depth) if s])):
            if name not in {"a", "c"} and index:
                total += value ** 2
            elif name == f"{name!r:>{self.depth}} é {scale=}":
                continue
            else:
                total = (lambda y: y + total)(value), (lambda y: y - total)(value)
        try:
            with open(name) as file, functools.partial(print)() as other:
                total = [*file, *other]
        except (ValueError, KeyError) as error:
            raise RuntimeError("no") from error
        finally:
            pass
        match total:
            case [first, *rest] if rest:
                return first
            case {"a": 1, **more} | more:
                return more
        return {**{key: self.forward(x) for key in "ab"}, "z": ...}, x[..., 1:-1, None], not x and (y := 1) < 2 <= 3

    async def later(self, *given, **named):
        async for one in self.given():
            yield await one
        assert named, "empty"
        del given[0]

    def inner(self):
        count = 0

        def step():
            nonlocal count
            count += 1
            return super().__repr__(), count

        return step, [lambda q: q + count for _ in range(3)]
'''


def described(file: Path, python: str = sys.executable) -> Any:
    done = subprocess.run([python, "-c", DESCRIBE, str(SYNTAX), str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def others() -> list[str]:
    """Return other versions of Python on this machine that Holdfast may run on."""
    places = [str(path) for path in Path.home().glob(".pyenv/versions/3.*/bin/python")]
    names = [found for minor in range(11, 20) if (found := shutil.which(f"python3.{minor}"))]
    ask = "import sys; print(*sys.version_info[:2])"
    versions = {}
    for python in [*names, *places]:
        said = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=False).stdout.split()
        if said and (3, 11) <= (version := (int(said[0]), int(said[1]))) != sys.version_info[:2]:
            versions[version] = python
    return list(versions.values())


def test_every_version_of_python_describes_code_alike(tmp_path: Path) -> None:
    if not (pythons := others()):
        pytest.skip("no second version of Python is installed here")
    (tmp_path / "encoder.py").write_text(FILE)
    for file in (tmp_path / "encoder.py", ROOT / "src/holdfast/bounds/network/tracing.py"):
        texts, bytecode = described(file)
        assert all(text[2] for text in texts)
        for python in pythons:
            there, bytecode_there = described(file, python)
            assert bytecode_there != bytecode, "vacuous: this Python compiles to the same bytecode"
            assert there == texts, python


SAME = {
    "docstring": ("Return the embeddings.", "Return embeddings, one for each image."),
    "docstring added": ("        self.depth, self.names", '        """Keep both."""\n        self.depth, self.names'),
    "comment": ("total += value ** 2", "total += value ** 2  # squared"),
    "layout": ("total += value ** 2", "total += (\n                    value**2\n                )"),
    "line": ("OFFSET = 2", "OFFSET = 2\n\n\n"),
    "quotes": ('"no"', "'no'"),
    "annotation": ("def forward(self, x, scale=1.0):", "def forward(self, x: object, scale: float = 1.0) -> float:"),
    "annotation of a variable": ("total: float = 0", "total = 0"),
    "spelling of a number": ("0xFF", "255"),
}
OTHER = {
    "constant": ("1.5e-3", "1.5e-2"),
    "operator": ("value ** 2", "value * 2"),
    "attribute": ("self.width) //", "self.depth) //"),
    "comparison": ("< 2 <= 3", "< 2 < 3"),
    "default": ("scale=1.0", "scale=2.0"),
    "text": ('"a", "c"', '"a", "d"'),
    "format": (":>{self", ":<{self"),
    "decorator": ("@property", "@functools.cached_property"),
    "nested function": ("count += 1", "count += 2"),
    "function without name": ("lambda y: y - total", "lambda y: y + total"),
    "function without name in a comprehension": ("q + count", "q - count"),
    "integer for float": ("scale=1.0", "scale=1"),
    "pattern": ('{"a": 1', '{"a": 2'),
    "asynchronous": ("async for one", "for one"),
}


def texts_of(file: Path) -> list[Any]:
    """Return the texts alone, without the lines at which functions start."""
    return sorted([name, text] for name, _, _, text in described(file)[0])


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    file = tmp_path_factory.mktemp("usual") / "encoder.py"
    file.write_text(FILE)
    return texts_of(file)


@pytest.mark.parametrize(("edit", "same"), [*((edit, True) for edit in SAME), *((edit, False) for edit in OTHER)])
def test_only_what_computes_counts(edit: str, same: bool, usual: list[Any], tmp_path: Path) -> None:
    before, after = {**SAME, **OTHER}[edit]
    assert FILE.count(before) == 1, "vacuous"
    (tmp_path / "encoder.py").write_text(FILE.replace(before, after))
    assert (texts_of(tmp_path / "encoder.py") == usual) == same
