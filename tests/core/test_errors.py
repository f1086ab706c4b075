"""Kinds of error: each carries its facts, builds one short sentence and survives the way back from a worker."""

from __future__ import annotations

import pickle

import pytest

from holdfast.core.balls import BALLS
from holdfast.core.errors import (
    CannotBound,
    Conflict,
    HoldfastError,
    OutOfRange,
    UnknownName,
    Unreadable,
)
from holdfast.core.run_settings import RunSettings
from holdfast.core.settings import read
from tests.facts import refused, says

NAMES = [f"name-{k:02}" for k in range(30)]
KINDS = [
    UnknownName("layer of net", "nane-03", NAMES, "rename it"),
    OutOfRange("k", 0, "at least 1", "add images"),
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
    assert len(str(error)) <= 240


def test_an_unknown_name_suggests_the_nearest_and_lists_few() -> None:
    error = KINDS[0]
    assert says(error, "'nane-03'", "'name-03'", NAMES[0], "22 more")
    assert NAMES[9] not in str(error)


def test_all_names_are_listed_where_the_count_of_the_rest_would_take_their_place() -> None:
    assert says(UnknownName("kind", "zzz", NAMES[:9]), *NAMES[:9])


def test_a_long_value_is_cut() -> None:
    assert len(str(OutOfRange("ids", "x" * 10_000, "text"))) < 120


def test_callers_read_the_facts_of_a_refused_argument() -> None:
    with refused(UnknownName, "'l2'", argument="ball", got="l3", expected=sorted(BALLS)):
        read("l3:0.5", BALLS, "ball")
    with refused(OutOfRange, argument="batch_size", got=0):
        RunSettings(batch_size=0)
