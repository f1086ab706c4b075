"""Kinds of error: each carries its facts, builds one short sentence and survives the way back from a worker."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from holdfast.core.balls import BALLS
from holdfast.core.errors import (
    LONGEST,
    CannotBound,
    Conflict,
    Described,
    HoldfastError,
    NotMeasured,
    OutOfRange,
    UnknownName,
    Unreadable,
    _Fault,
)
from holdfast.core.run_settings import RunSettings
from holdfast.core.settings import read
from tests.facts import refused, says

NAMES = [f"name-{k:02}" for k in range(30)]
KINDS = [
    UnknownName("layer of net", "nane-03", NAMES, "rename it"),
    OutOfRange("k", 0, "at least 1", "add images"),
    OutOfRange("k", Described("nan in row 3"), ["one", "two"], "remove it"),
    NotMeasured("gate 'x': risk", "at radius 0.03", ["linf:0.05"], "name one of these"),
    Conflict("pgd", "step=1 and stride=2", "step or stride, not both"),
    Unreadable("recipe.toml", OSError(2, "No such file or directory"), fix="check the path"),
    CannotBound("dropout", "it is random", fix="call eval()"),
]


@pytest.mark.parametrize("error", KINDS, ids=lambda error: type(error).__name__)
def test_a_kind_carries_its_facts_through_pickling(error: HoldfastError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    for field in ("argument", "expected", "fix"):
        assert getattr(again, field) == getattr(error, field)
    assert says(error, error.argument, error.fix[1:])  # type: ignore[attr-defined]
    assert str(error).endswith(".")
    assert len(str(error)) <= LONGEST


def test_an_unknown_name_suggests_the_nearest_and_lists_few() -> None:
    error = KINDS[0]
    assert says(error, "'nane-03'", "'name-03'", "22 more")
    assert str(error).count("name-") == 1 + 8
    assert NAMES[29] not in str(error)
    far = UnknownName("kind", "name-29", [f"aaa-{k}" for k in range(20)] + NAMES)
    listed = str(far).partition("Known: ")[2]
    assert listed.startswith("name-29"), "the nearest comes first, not the first of the alphabet"


LONG = "a long word of a sentence " * 40
PATH = f"/data/{'deep/' * 60}photos.npy"


@pytest.mark.parametrize("path", ["", PATH], ids=["no path", "path"])
@pytest.mark.parametrize("kind", _Fault.__subclasses__())
def test_no_value_makes_a_sentence_long_and_a_path_is_kept(kind: type[_Fault], path: str) -> None:
    names: list[Any] = [f"{'long name ' * 30}{k}" for k in range(500)]
    texts = kind is UnknownName
    for got in (LONG, Described(LONG), *([] if texts else [OSError(2, LONG)])):
        for expected in (names, *([] if texts else [LONG])):
            sentence = str(kind(f"{LONG}{path}", got, expected, LONG))
            assert len(sentence) - len(path) <= LONGEST
            assert path in sentence
            assert all(part[:3] in sentence for part in (LONG, names[0])), "something is left of every part"


def test_the_law_knows_every_kind() -> None:
    assert {kind.__name__ for kind in _Fault.__subclasses__()} == {type(error).__name__ for error in KINDS}


def test_all_names_are_listed_where_the_count_of_the_rest_would_take_their_place() -> None:
    assert says(UnknownName("kind", "zzz", NAMES[:9]), *NAMES[:9])


def test_a_long_value_is_cut() -> None:
    assert len(str(OutOfRange("ids", "x" * 10_000, "text"))) < 120


def test_callers_read_the_facts_of_a_refused_argument() -> None:
    with refused(UnknownName, "'l2'", argument="ball", got="l3", expected=sorted(BALLS)):
        read("l3:0.5", BALLS, "ball")
    with refused(OutOfRange, argument="batch_size", got=0):
        RunSettings(batch_size=0)
