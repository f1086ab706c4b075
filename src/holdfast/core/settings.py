"""One text form for small settings objects: ``name``, ``name:field=value,field=value``, ``linf:8/255``.

Balls, attacks, divergences and objectives are frozen dataclasses with a ``name``. Command line, TOML, reports and cache keys
all use this text, so users learn one form and only one must stay stable.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import MISSING, Field, fields
from fractions import Fraction
from functools import cache
from math import inf, nan
from operator import le, lt
from time import monotonic
from types import NoneType, UnionType
from typing import Any, ClassVar, TypeVar, Union, get_args, get_origin, get_type_hints

from holdfast.core.errors import HoldfastError, OutOfRange, check_known, explained

T = TypeVar("T")
LOADED = monotonic()
"""When this module was loaded: among the first of the library, before torch."""
_BEGAN: ContextVar[float | None] = ContextVar("began", default=None)
REPEAT = "; commas do not separate values: where several are taken, repeat the flag, or give a list in TOML and Python"


class Searching:
    """Settings of a search: keys of results name their version, from the second on."""

    version: ClassVar[int] = 1
    needs_classes: ClassVar[bool] = False
    """True if the search looks at the logits of a classifier, so that it cannot aim at an embedding."""


class TextSettings(ABC):
    """Settings object with a text form; a field of this type accepts the text as well."""

    allowed: ClassVar[tuple[str, ...]] = ()
    """Settings with the interval in which each one lies, as in ``("share in [0, 1)",)``."""

    @classmethod
    @abstractmethod
    def read(cls, text: str) -> TextSettings:
        """Return the object of this kind that ``text`` spells."""

    def __post_init__(self) -> None:
        for each in self.allowed:
            _check_interval(self, *each.split(" in "))

    def __str__(self) -> str:
        return to_text(self)


def to_text(thing: Any) -> str:
    """Text form of settings: the name, and the settings that differ from their defaults.

    Example:
        >>> from holdfast.core.balls import Linf
        >>> to_text(Linf(8 / 255))
        'linf:8/255'
    """
    texts = []
    for field in fields(thing):
        value = getattr(thing, field.name)
        if field.default is MISSING or value != field.default:
            text = number(value) if isinstance(value, float) else str(value)
            texts.append(text if field.default is MISSING else f"{field.name}={text}")
    return f"{thing.name}:{','.join(texts)}" if texts else thing.name


def read(text: str, kinds: Mapping[str, type[T]], what: str) -> T:
    """Parse the text form of settings.

    Raises:
        HoldfastError: A name is unknown, a setting is missing or given twice, or a value does not fit.

    Example:
        >>> from holdfast.core.balls import BALLS
        >>> read("l2:0.5", BALLS, "ball")
        L2(radius=0.5)
        >>> read("l3:0.5", BALLS, "ball")
        Traceback (most recent call last):
        holdfast.core.errors.UnknownName: ball: unknown name 'l3'. Did you mean 'l2'? Known: l1, l2, linf.
    """
    name, _, rest = text.partition(":")
    check_known(what, name, kinds)
    kind = kinds[name]
    known = fields_of(kind)
    required = [field.name for field in known.values() if field.default is MISSING]
    values: dict[str, Any] = {}
    for position, part in enumerate(filter(None, rest.split(","))):
        key, equals, value = part.partition("=")
        if not equals:
            if position >= len(required):
                raise HoldfastError(
                    f"{what} {name!r}: {part!r} needs the form setting=value; {name} takes {list(known)}{REPEAT}"
                )
            key, value = required[position], part
        check_known(f"settings of {what} {name!r}", key, known)
        if key in values:
            raise HoldfastError(f"{what} {name!r}: setting {key!r} is given twice; keep one")
        values[key] = convert(value, types_of(kind)[key], f"{what} {name!r}, setting {key!r}")
    missing = [key for key in required if key not in values]
    if missing:
        example = getattr(kind, "example", ",".join(required).upper())
        raise HoldfastError(f"{what} {name!r} needs {', '.join(missing)}, as in {name}:{example}")
    return kind(**values)


def pairs(texts: Sequence[str], what: str) -> dict[str, str]:
    """Parse texts of the form ``setting=value``.

    Args:
        what: Sentence about the form, with an example, for the error.

    Raises:
        HoldfastError: A text has no equals sign.

    Example:
        >>> pairs(["epochs=10", "rate = 1e-3"], "--set takes setting=value, as in epochs=10")
        {'epochs': '10', 'rate': '1e-3'}
    """
    values = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise HoldfastError(f"{what}; got {text!r}")
        values[name.strip()] = value.strip()
    return values


def names_of(texts: str | Sequence[str], what: str) -> list[str]:
    """Parse names that are given one by one or separated by commas.

    Raises:
        HoldfastError: The texts name nothing.

    Example:
        >>> names_of("breakaway, overlap", "only"), names_of((), "only")
        (['breakaway', 'overlap'], [])
    """
    names = [name.strip() for text in listed(texts) for name in str(text).split(",") if name.strip()]
    if not names and len(texts):
        raise HoldfastError(f"{what} names nothing: {texts!r}; leave it out or name something")
    return names


def listed(value: Any) -> list[Any]:
    """Return what is given once or several times as a list.

    Example:
        >>> listed("8/255"), listed(("8/255", 0.1))
        (['8/255'], ['8/255', 0.1])
    """
    return list(value) if isinstance(value, (list, tuple)) else [value]


def fields_of(kind: type[Any]) -> dict[str, Field[Any]]:
    """Return the fields of a dataclass by name."""
    return {field.name: field for field in fields(kind)}


def types_of(kind: Any) -> dict[str, Any]:
    """Types of the fields of a dataclass, by name, with annotations evaluated."""
    return _types_of(kind)


@cache
def _types_of(kind: Any) -> dict[str, Any]:
    fix = f"import it at the top of {kind.__module__}, not under TYPE_CHECKING"
    with explained(f"the settings of {kind.__name__} have a type that is not known", fix, NameError):
        hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def members(kind: Any) -> tuple[Any, ...]:
    """Types that make up ``kind``: of a union, of a repeating tuple, or the type itself.

    Example:
        >>> members(int | None), members(tuple[float, ...]), members(str)
        ((<class 'int'>, <class 'NoneType'>), (<class 'float'>,), (<class 'str'>,))
    """
    if get_origin(kind) in (UnionType, Union):
        return get_args(kind)
    return members(get_args(kind)[0]) if get_origin(kind) is tuple else (kind,)


def is_text(kind: Any, base: type = TextSettings) -> Any:
    """Member of ``kind`` that extends ``base``; None if there is none."""
    return next((member for member in members(kind) if isinstance(member, type) and issubclass(member, base)), None)


def convert(value: Any, kind: Any, where: str) -> Any:
    """Convert text, or a value from JSON or TOML, to the type of a settings field.

    Args:
        value: Value to convert.
        kind: Type of the field.
        where: Place of the value, for the error.

    Raises:
        HoldfastError: The value is no ``kind``.

    Example:
        >>> convert("8/255", float, "eps") == 8 / 255, convert(["1", 2], tuple[int, ...], "steps")
        (True, (1, 2))
        >>> convert("many", int, "steps")
        Traceback (most recent call last):
        holdfast.core.errors.HoldfastError: steps: expected int, got 'many'
    """
    if get_origin(kind) is tuple:
        parts = value if isinstance(value, (list, tuple)) else [value]
        return tuple(convert(part, get_args(kind)[0], where) for part in parts)
    kinds = members(kind)
    expected = " | ".join("None" if kind is NoneType else getattr(kind, "__name__", str(kind)) for kind in kinds)
    if isinstance(value, (list, tuple, dict)):
        raise HoldfastError(f"{where}: expected one {expected}, got {value!r}")
    text = number(value) if isinstance(value, float) else str(value)
    if NoneType in kinds and text in ("none", "None"):
        return None
    if spelled_kind := is_text(kind):
        return value if isinstance(value, spelled_kind) else spelled_kind.read(text)
    try:
        return _simple(text, kinds)
    except (ValueError, KeyError, ArithmeticError) as error:
        form = " such as 0.05 or 8/255" if float in kinds else ""
        raise HoldfastError(
            f"{where}: expected {expected}{form}, got {text!r}{REPEAT if ',' in text else ''}"
        ) from error


def _simple(text: str, kinds: tuple[Any, ...]) -> bool | int | float | str:
    """Return ``text`` as the first of bool, int and float among ``kinds``, or as it is if it may be text."""
    try:
        if bool in kinds:
            return {"true": True, "yes": True, "false": False, "no": False}[text.lower()]
        if int in kinds:
            return int(text)
        if float in kinds:
            dividend, divisor = text.replace(" ", "").split("/") if "/" in text else (text.replace(" ", ""), "1")
            return float(Fraction(dividend)) / float(Fraction(divisor))  # 0.05, 8/255 or 0.5/255
    except (ValueError, KeyError, ArithmeticError):
        if str not in kinds:
            raise
    return text


def number(value: float) -> str:
    """Return a short text that ``convert`` reads back exactly: 0.05, 8/255, 0.5/255, 1e-06.

    Example:
        >>> number(0.05), number(8 / 255), number(0.2), number(0.25 / 255)
        ('0.05', '8/255', '0.2', '0.25/255')
    """
    exact = repr(float(value))  # numpy's own floats say what type they are
    grey = float(f"{value * 255:.3g}") if abs(value) < 1 else 0.0
    return f"{grey:g}/255" if len(exact) > 6 and grey and grey / 255 == value else exact


def check_positive(thing: Any, *settings: str) -> None:
    """Check that settings are positive and finite; None is skipped.

    Example:
        >>> from holdfast.training.objectives.contrastive import SimCLR
        >>> SimCLR(temperature=0.0)
        Traceback (most recent call last):
        holdfast.core.errors.OutOfRange: simclr: temperature must be positive, got 0.0.
    """
    _require(thing, settings, lambda value: 0 < value < inf, "positive")


def check_not_negative(thing: Any, *settings: str) -> None:
    """Check that settings are finite and 0 or more; None is skipped.

    Args:
        thing: Object with the settings.
        *settings: Names of the settings.

    Raises:
        HoldfastError: A setting is below 0 or infinite.
    """
    _require(thing, settings, lambda value: 0 <= value < inf, "0 or more")


def _check_interval(thing: Any, setting: str, interval: str) -> None:
    """Raise if a setting lies outside an interval, such as "(0, 1]", or is NaN; None is skipped."""
    low, high = map(float, interval[1:-1].split(","))
    above, below = (le if interval[0] == "[" else lt), (le if interval[-1] == "]" else lt)
    _require(thing, [setting], lambda value: above(low, value) and below(value, high), f"in {interval}")


def check_fraction(thing: Any, *settings: str) -> None:
    """Check that settings lie in [0, 1]."""
    _require(thing, settings, lambda value: 0 <= value <= 1, "in [0, 1]")


def _require(thing: Any, settings: Sequence[str], fits: Callable[[float], bool], demand: str) -> None:
    for setting in settings:
        value = getattr(thing, setting)
        if value is not None and not fits(value):
            raise OutOfRange(f"{thing.name}: {setting}", value, demand)


def seconds(budget: Any) -> float:
    """Return a budget of time, which is a positive number of seconds.

    Example:
        >>> seconds("1.5")
        1.5
        >>> seconds(-5)
        Traceback (most recent call last):
        holdfast.core.errors.OutOfRange: budget must be a positive number of seconds, as in 600, got -5.
    """
    try:
        time = convert(budget, float, "budget")
    except HoldfastError:
        time = nan
    if not 0 < time < inf:
        raise OutOfRange("budget", budget, "a positive number of seconds, as in 600")
    return float(time)


# A budget counts from the start of a command; on the command line, from the start of the process: loading torch takes
# seconds, and a user who allows two minutes includes them.


@contextmanager
def running_since(began: float) -> Iterator[None]:
    """Let the command inside have begun at ``began``, by ``time.monotonic``."""
    token = _BEGAN.set(began)
    try:
        yield
    finally:
        _BEGAN.reset(token)


def budget_start() -> float:
    """Start time of the running command on the clock of ``time.monotonic``, else now.

    Functions that a command calls, as ``harden`` does with shares of its budget, begin when they are called.

    Example:
        >>> with running_since(5.0):
        ...     budget_start(), budget_start() > 5.0
        (5.0, True)
    """
    began = _BEGAN.get()
    _BEGAN.set(None)
    return monotonic() if began is None else began
