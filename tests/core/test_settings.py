"""The one text form of settings: everything spelled is read back, everything else is refused with advice."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from inspect import isabstract
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.attacks.base import Attack
from holdfast.attacks.pair_attacks import EachOfTwo
from holdfast.bounds import Method
from holdfast.core.balls import BALLS, L2, Ball, Linf
from holdfast.core.divergences import Divergence
from holdfast.core.errors import HoldfastError, did_you_mean
from holdfast.core.settings import TextSettings, convert, members, number, read, to_text, types_of
from holdfast.run import catalog
from holdfast.spectral.graph_pair import GraphConstruction
from tests.facts import refused

if TYPE_CHECKING:
    from holdfast.core.balls import Ball as Missing


@dataclass(frozen=True)
class Walk:
    """Settings of every kind: two required, a nested one, an optional one."""

    ball: Ball
    pace: float
    name: ClassVar[str] = "walk"
    steps: int = 20
    rest: float | None = 0.5
    back: bool = False
    mood: str = "calm"

    def __str__(self) -> str:
        return to_text(self)


@dataclass(frozen=True)
class Stand:
    name: ClassVar[str] = "stand"


KINDS: dict[str, type] = {"walk": Walk, "stand": Stand}
floats = st.floats(allow_nan=False, allow_infinity=False)
walks = st.builds(
    Walk,
    ball=st.builds(lambda kind, radius: kind(radius), st.sampled_from(list(BALLS.values())), st.floats(1e-9, 1e9)),
    pace=floats,
    steps=st.integers(-(10**20), 10**20),
    rest=floats | st.none(),
    back=st.booleans(),
    mood=st.sampled_from(["calm", "gay", "sad"]),
)


@given(walks)
def test_settings_survive_the_round_trip(walk: Walk):
    assert read(to_text(walk), KINDS, "thing") == walk


def test_defaults_are_not_spelled():
    assert to_text(Walk(Linf(8 / 255), 0.1)) == "walk:linf:8/255,0.1"
    assert to_text(Walk(Linf(8 / 255), 0.1, rest=None, steps=5)) == "walk:linf:8/255,0.1,steps=5,rest=None"
    assert to_text(Stand()) == "stand"


@pytest.mark.parametrize(
    "text",
    [
        "walk:linf:0.1,0.5,steps=3",
        "walk:steps=3,pace=1/2,ball=linf:1/10",
        "walk:linf:0.1, 0.5,steps=3",
        "walk:linf:0.1,pace=5e-1,steps=3,",
        "walk:linf:0.1,0.5,steps=3,back=False,rest=1/2",
    ],
)
def test_several_spellings_of_one_thing(text: str):
    assert read(text, KINDS, "thing") == Walk(Linf(0.1), 0.5, steps=3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("wolk:1", r"Did you mean 'walk'\? Known: stand, walk"),
        ("zzz", r"thing.*'zzz'. Known: stand, walk"),
        ("", r"thing.*''"),
        ("walk", r"thing 'walk' needs ball, pace, as in walk:BALL,PACE"),
        ("walk:linf:1", r"thing 'walk' needs pace"),
        ("walk:linf:1,2,3", r"'3' needs the form setting=value; walk takes \['ball', 'pace', 'steps'"),
        ("walk:linf:1,2,step=3", r"Did you mean 'steps'\?"),
        ("walk:linf:1,2,pace=3", r"setting 'pace' is given twice"),
        ("walk:linf:1,2,steps=3,steps=4", r"setting 'steps' is given twice"),
        ("walk:linf:1,2,steps=3.5", r"thing 'walk', setting 'steps': expected int, got '3.5'"),
        ("walk:linf:1,2,steps=", r"setting 'steps': expected int, got ''"),
        ("walk:linf:1,fast", r"setting 'pace': expected float.*8/255, got 'fast'"),
        ("walk:linf:1,1/0", r"setting 'pace': expected float.*8/255, got '1/0'"),
        ("walk:linf:1,1e400", r"setting 'pace': expected float.*8/255, got '1e400'"),
        ("walk:linf:1,nan", r"setting 'pace': expected float.*8/255, got 'nan'"),
        ("walk:linf:1,none", r"setting 'pace': expected float.*8/255, got 'none'"),
        ("walk:linf:1,2,back=maybe", r"setting 'back': expected bool, got 'maybe'"),
        ("walk:linf:1,2,rest=soon", r"setting 'rest': expected float \| None.*8/255, got 'soon'"),
        ("walk:lin:1,2", r"Did you mean 'linf'"),
        ("walk:linf:-1,2", r"radius of a linf ball must be positive"),
        ("stand:1", r"'1' needs the form setting=value"),
    ],
)
def test_anything_else_is_refused_with_advice(text: str, message: str):
    with pytest.raises(HoldfastError, match=message):
        read(text, KINDS, "thing")


def test_numbers_of_numpy_are_spelled_as_those_of_python():
    walk = Walk(Linf(0.1), np.float64(0.05), steps=np.int64(3), rest=np.float64(8 / 255), back=np.bool_(True))  # type: ignore[arg-type]
    assert to_text(walk) == "walk:linf:0.1,0.05,steps=3,rest=8/255,back=True"
    assert convert(np.float64(0.05), float, "eps") == 0.05


@given(floats)
def test_numbers_are_read_back_exactly(value: float):
    again = convert(number(value), float, "here")
    assert repr(again) == repr(value) or value == again == 0


@pytest.mark.parametrize(
    ("value", "text"),
    [(8 / 255, "8/255"), (-1 / 255, "-1/255"), (0.25, "0.25"), (1.0, "1.0"), (51 / 255, "0.2"), (1e-6, "1e-06"),
     (1234567.0, "1234567.0"), (2 / 3, "170/255"), (0.1234567, "0.1234567"), (0.0, "0.0"),
     (5e-05 / 255, "5e-05/255")],
)  # fmt: skip
def test_numbers_are_short(value: float, text: str):
    assert number(value) == text
    assert convert(text, float, "here") == value


@pytest.mark.parametrize("kind", [Ball, Divergence, Attack, Method, GraphConstruction])
def test_every_kind_of_settings_reads_its_text(kind: type[TextSettings]):
    for text in {
        Ball: ["l2:0.5"],
        Divergence: ["l2", "cosine"],
        Attack: ["pgd:steps=7"],
        Method: ["alpha:steps=3"],
    }.get(kind, ["pca:components=5"]):
        found = convert(text, kind, "here")
        assert isinstance(found, kind)
        assert str(found) == text
        assert convert(found, kind, "here") is found


@pytest.mark.parametrize(
    ("value", "kind", "read_as"),
    [
        ("none", Ball | None, None),
        (None, float | None, None),
        ("l2:0.5", Ball | None, L2(0.5)),
        (["l2:0.5", L2(1.0)], tuple[Ball, ...], (L2(0.5), L2(1.0))),
        ("l2:0.5", tuple[Ball, ...], (L2(0.5),)),
        ("auto", int | str, "auto"),
        ("12", int | str, 12),
        (8 / 255, float, 8 / 255),
        (True, bool, True),
    ],
)
def test_values_are_read_as_the_type_of_their_field(value: Any, kind: Any, read_as: Any):
    assert convert(value, kind, "here") == read_as


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        (["a", "b"], int, r"here: expected one int, got \['a', 'b'\]"),
        (["l2:1"], Ball | None, r"here: expected one Ball \| None, got"),
        (True, int, r"here: expected int, got 'True'"),
        ("pgd", Ball, r"ball.*'pgd'"),
    ],
)
def test_values_of_other_types_are_refused(value: Any, kind: Any, message: str):
    with pytest.raises(HoldfastError, match=message):
        convert(value, kind, "here")


def test_a_type_that_is_only_there_for_type_checkers_is_named():
    @dataclass(frozen=True)
    class Lost:
        ball: Missing

    with refused(HoldfastError, "Lost", "'Missing'"):
        types_of(Lost)


def test_only_near_names_are_suggested():
    known = ["breakaway", "overlap", "displacement"]
    assert did_you_mean("overlp", known) == "Did you mean 'overlap'? Known: breakaway, displacement, overlap."
    assert did_you_mean("quux", known) == "Known: breakaway, displacement, overlap."


SIGNED = {("brightness", "amount"), ("crop", "share"), ("rotation", "degrees"), ("global-shuffle", "seed")}
SIGNED |= {("local-shuffle", "seed"), ("sparsified", "seed"), ("supervised", "uniformity"), ("binary", "threshold")}
"""Numbers that may be below zero: directions, seeds, and a weight that may pull either way."""


def filler(kinds: Any) -> Any:
    """A sound value of a setting that has no default."""
    return 0.05 if float in kinds else 1 if int in kinds else "file.npy" if str in kinds else Linf(0.05)


def numeric_settings() -> list[tuple[type[Any], str, dict[str, Any]]]:
    """Return every number among the settings that have a text form, with what its class needs besides."""
    catalog.everything()

    def below(kind: type[Any]) -> Iterator[type[Any]]:
        for child in kind.__subclasses__():
            yield child
            yield from below(child)

    kinds = dict.fromkeys(
        kind
        for kind in below(TextSettings)
        # What other tests put in place for a while and took away again is no part of the library.
        if kind.__module__.startswith("holdfast.")
        and kind.__module__ in sys.modules
        and is_dataclass(kind)
        # No text spells the kind of ball that two images have in common.
        and kind is not EachOfTwo
    )
    return [
        (kind, name, {key: filler(members(types[key])) for key in needed})
        for kind in kinds
        if not isabstract(kind) and hasattr(kind, "name")
        for types, needed in [(types_of(kind), [field.name for field in fields(kind) if field.default is MISSING])]
        for name, its_type in types.items()
        if {int, float} & {*members(its_type)}
    ]


def test_no_setting_is_below_zero_unless_it_has_a_direction():
    settings = numeric_settings()
    assert len(settings) > 100, "vacuous"
    assert all(any((kind.name, name) == signed for kind, name, _ in settings) for signed in SIGNED), "no such setting"
    for kind, name, others in settings:
        if (kind.name, name) not in SIGNED:
            with pytest.raises(HoldfastError):
                print(kind(**{**others, name: -1.0 if float in members(types_of(kind)[name]) else -1}), "takes", name)


def test_no_setting_is_no_number():
    for kind, name, others in numeric_settings():
        if float in members(types_of(kind)[name]):
            with pytest.raises(HoldfastError):
                print(kind(**{**others, name: math.nan}), "takes nan as", name)
