"""Errors of the library: one sentence with what was expected, what was passed and what to do."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Integral
from pathlib import Path
from typing import ClassVar, cast

LONGEST = 240
"""Characters of a sentence, besides a path in it."""
LONGEST_VALUE = 60
"""Characters of a value that a sentence shows."""
SHOWN_NAMES = 8
"""Known names that a sentence lists."""
ROOMS = ((SHOWN_NAMES, LONGEST), (SHOWN_NAMES, 80), (5, 60), (3, 48), (1, 36))
"""Names and characters of each part that a sentence shows: the first of these with which it is short enough."""


class HoldfastError(ValueError):
    """Mistake of the caller, or an input that cannot be measured.

    The command line prints the sentence and exits with status 2.
    """


class BudgetSpentError(Exception):
    """The time budget ran out; this is no mistake.

    Everything finished is kept, and the same command goes on from there.
    """


class AgreementLostError(HoldfastError):
    """Training moved embeddings too far from the embeddings to preserve.

    Args:
        sentence: What happened and what to do.
        epoch: Last epoch in which the embeddings agreed, or 0.
    """

    def __init__(self, sentence: str, epoch: int) -> None:
        super().__init__(sentence)
        self.epoch = epoch


class Described(str):
    """What arrived in words of ours, which a sentence shows without quotes.

    Example:
        >>> print(OutOfRange("codes", Described("nan in 3 rows"), "finite"))
        codes must be finite, got nan in 3 rows.
    """

    __slots__ = ()
    __repr__ = str.__str__


class _Fault(HoldfastError):
    """A mistake whose sentence is built here from its facts, so that tests and callers read the facts.

    Args:
        argument: Name of what is wrong: an argument, a flag, a setting or a file.
        got: Value that arrived, or the reason why it cannot be used.
        expected: Values that are allowed.
        fix: What to do, without a full stop at its end.
    """

    pattern: ClassVar[str]
    longest_value: ClassVar[int] = LONGEST_VALUE
    quotes: ClassVar[bool] = True
    """Whether ``got`` is a value, which is shown in quotes if it is text; else it is a part of the sentence."""

    def __init__(self, argument: str, got: object, expected: object = "", fix: str = "") -> None:
        super().__init__(argument, got, expected, fix)  # all four, so that a worker's error survives pickling
        self.argument, self.got, self.expected, self.fix = argument, got, expected, fix

    def __str__(self) -> str:
        """Return the sentence: what is wrong, what arrived, what is expected, what to do."""
        sentence = ""
        for names, most in ROOMS:
            argument, got = shortened(str(self.argument), most), shortened(self._shown(), min(most, self.longest_value))
            sentence = self.pattern.format(argument=argument, got=got, expected=self._allowed(names, most))
            fix = shortened(self.fix, most)
            if fix.split(" ")[0].isalpha():  # a name in code begins as it is written
                fix = f"{fix[0].upper()}{fix[1:]}"
            sentence = f"{sentence} {fix}." if fix else sentence
            if len(sentence) <= LONGEST:
                break
        return sentence

    def _shown(self) -> str:
        return repr(self.got) if self.quotes and isinstance(self.got, str) else str(self.got)

    def _allowed(self, names: int, most: int) -> str:
        """Return ``expected`` as the sentence shows it, cut to a few names or characters."""
        if isinstance(self.expected, list | tuple):
            return f"one of {listed(self.expected, names, most)}"
        return shortened(str(self.expected), most)


class OutOfRange(_Fault):
    """Value outside the allowed values.

    Example:
        >>> print(OutOfRange("k", 0, "at least 1"))
        k must be at least 1, got 0.
    """

    pattern = "{argument} must be {expected}, got {got}."


class Conflict(_Fault):
    """Values that exclude each other.

    Example:
        >>> print(Conflict("pgd", "step=0.1 and stride=0.2", "step or stride, not both"))
        pgd takes step or stride, not both, got step=0.1 and stride=0.2.
    """

    pattern = "{argument} takes {expected}, got {got}."
    longest_value = LONGEST
    quotes = False


class Unreadable(_Fault):
    """File that cannot be read or has other contents; ``got`` is the reason.

    Example:
        >>> print(Unreadable("recipe.toml", "No such file or directory", fix="check the path"))
        Cannot read recipe.toml: No such file or directory. Check the path.
    """

    pattern = "Cannot read {argument}: {got}."
    longest_value = LONGEST

    def _shown(self) -> str:
        reason = self.got.strerror if isinstance(self.got, OSError) and self.got.strerror else str(self.got)
        return reason.rstrip(".")


class CannotBound(_Fault):
    """Network or operation that bounds do not support; ``got`` is the reason.

    Example:
        >>> print(CannotBound("dropout", "it is random in training mode", fix="call eval() on the module"))
        dropout cannot be bounded: it is random in training mode. Call eval() on the module.
    """

    pattern = "{argument} cannot be bounded: {got}."
    longest_value = LONGEST
    quotes = False


class NotMeasured(_Fault):
    """Number that a run does not have; ``got`` says where it was looked for, ``expected`` what there is.

    Example:
        >>> print(NotMeasured("breakaway_risk", "at radius 0.03", ["linf:0.05", "linf:0.1"], fix="name one of these"))
        breakaway_risk was not measured at radius 0.03.
        Measured: linf:0.05, linf:0.1. Name one of these.
    """

    pattern = "{argument} was not measured {got}.\nMeasured: {expected}."
    quotes = False

    def _allowed(self, names: int, most: int) -> str:
        return super()._allowed(names, most).removeprefix("one of ")


class UnknownName(_Fault):
    """Name that is not among the known names, which are ``expected``.

    Example:
        >>> print(UnknownName("ball", "l3", ["l1", "l2", "linf"]))
        ball: unknown name 'l3'. Did you mean 'l2'? Known: l1, l2, linf.
    """

    pattern = "{argument}: unknown name {got}. {expected}"

    def __init__(self, argument: str, got: str, expected: Iterable[str], fix: str = "") -> None:
        super().__init__(argument, got, sorted(expected), fix)

    def _allowed(self, names: int, most: int) -> str:
        return did_you_mean(str(self.got), cast(list[str], self.expected), names, most)


def check_known(argument: str, names: str | Iterable[str], known: Collection[str]) -> None:
    """Raise an ``UnknownName`` unless a name, or each of several, is among the ``known`` ones."""
    for name in [names] if isinstance(names, str) else names:
        if name not in known:
            raise UnknownName(argument, name, known)


class HoldfastWarning(UserWarning):
    """Something that a reader of the numbers should know, although they are right."""


def warn(sentence: str, level: int = 1) -> None:
    """Warn the caller of the function that calls this one, or one ``level`` farther out."""
    warnings.warn(sentence, HoldfastWarning, stacklevel=level + 2)


def shortened(text: str, most: int = LONGEST_VALUE) -> str:
    """Text of at most ``most`` characters; a path in it is kept whole.

    Example:
        >>> shortened("a" * 9, 8), shortened("the size of /data/photos/a.npy as it is now", 16)
        ('aaaaa...', 'the s.../data/photos/a.npy as i...')
    """
    path = max((word for word in text.split() if "/" in word or "\\" in word), key=len, default="")
    if len(text) - len(path) <= most:
        return text
    parts = text.split(path, 1) if path else [text]
    room = most // len(parts)
    return path.join(part if len(part) <= room else f"{part[: room - 3]}..." for part in parts)


def listed(names: Sequence[object], count: int = SHOWN_NAMES, most: int = LONGEST) -> str:
    """The first ``count`` names, and how many more there are.

    Example:
        >>> listed(["a", "b"]), listed("abcdefghijkl", 3)
        ('a, b', 'a, b, c, ... and 9 more')
    """
    each = max(12, most // count)
    rest = len(names) - count
    # One name more takes no more room than the count of it.
    shown = [shortened(str(name), each) for name in (names[:count] if rest > 1 else names)]
    return ", ".join([*shown, f"... and {rest} more"] if rest > 1 else shown)


def did_you_mean(name: str, known: list[str], count: int = SHOWN_NAMES, most: int = LONGEST) -> str:
    """Clause that lists the known names, the nearest ones first if not all fit, and suggests the nearest one.

    Args:
        count: Largest number of names.
        most: Room of the list, in characters.

    Example:
        >>> did_you_mean("breakway", ["breakaway", "overlap"])
        "Did you mean 'breakaway'? Known: breakaway, overlap."
    """
    from difflib import get_close_matches

    close = get_close_matches(name, known, n=count, cutoff=0.5)
    hint = f"Did you mean {shortened(close[0], most)!r}? " if close else ""
    names = sorted(known)
    if len(names) > count + 1:
        names = [*close, *(each for each in names if each not in close)]
    return f"{hint}Known: {listed(names, count, most) or 'none'}."


def first_line(error: BaseException) -> str:
    """Reason that the system gives, or the first sentence of an error, or its type if it has no text.

    Example:
        >>> first_line(ValueError("it broke. If you see this, write to us.\\nmore"))
        'it broke'
    """
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    lines = str(error).strip().splitlines()
    return lines[0].partition(". ")[0].rstrip(" .:") if lines else type(error).__name__


@contextmanager
def explained(problem: str, fix: str | Callable[[Exception], str], *kinds: type[Exception]) -> Iterator[None]:
    """Raise what a library or the system raises as ``problem (its first line); fix``; errors of ours pass.

    Args:
        fix: What to do, or a function of the error that says it.
        kinds: Errors to explain (default: all, for libraries that raise anything at all).

    Example:
        >>> with explained("cannot read a.npy", "write it again"):
        ...     raise KeyError("no header")
        Traceback (most recent call last):
        holdfast.core.errors.HoldfastError: cannot read a.npy ('no header'); write it again
    """
    caught = kinds or (Exception,)
    try:
        yield
    except HoldfastError:
        raise
    except caught as error:
        advice = fix if isinstance(fix, str) else fix(error)
        raise HoldfastError(f"{problem} ({first_line(error)}); {advice}") from error


@contextmanager
def readable(name: str, fix: str, *kinds: type[Exception], because: str = "") -> Iterator[None]:
    """Raise errors of these ``kinds`` as an ``Unreadable``, by default with their own reason."""
    try:
        yield
    except kinds as error:
        raise Unreadable(name, because or error, fix=fix) from error


def check_not_blank(name: str, value: object) -> None:
    """Check that no text is empty or white space, as an unset variable of a script is.

    Example:
        >>> check_not_blank("--images", "")
        Traceback (most recent call last):
        holdfast.core.errors.HoldfastError: --images is empty, as an unset variable would be; give it a value or leave it out
    """
    texts = value if isinstance(value, (list, tuple)) else (value,)
    if any(isinstance(text, str) and not text.strip() for text in texts):
        raise HoldfastError(f"{name} is empty, as an unset variable would be; give it a value or leave it out")


def check_no_blanks(arguments: Mapping[str, object]) -> None:
    """Raise if one of the ``arguments`` of a function, by name, is an empty text."""
    for name, value in arguments.items():
        check_not_blank(name, value)


def check_given_once(name: str, values: object) -> None:
    """Check that no value occurs twice in a list.

    Args:
        values: Object to check; anything but a list or tuple passes.

    Example:
        >>> check_given_once("steps", [1, 2, 1])
        Traceback (most recent call last):
        holdfast.core.errors.HoldfastError: steps has 1 twice; keep one
    """
    several = list(values) if isinstance(values, (list, tuple)) else []
    for place, value in enumerate(several):
        if value in several[:place]:
            raise HoldfastError(f"{name} has {value} twice; keep one")


MEMORY = (
    "can't allocate memory",
    "cannot allocate memory",
    "out of memory",
    "alloc_failed",
    "failed to map segment",
    "error return without exception set",  # so Python's own code loses a MemoryError
)
"""How torch, CUDA, the system's loader of libraries and Python say that there is no memory left."""


def out_of_memory(error: BaseException) -> bool:
    """Return whether ``error`` says that there is no memory left.

    Example:
        >>> out_of_memory(RuntimeError("CUDA out of memory.")), out_of_memory(RuntimeError("shapes differ"))
        (True, False)
    """
    return isinstance(error, MemoryError) or any(words in str(error).lower() for words in MEMORY)


def check_not_empty(setting: str, value: object, default: object) -> None:
    """Check that a list has entries, unless its default has none.

    Args:
        value: Object to check; anything but a list or tuple passes.

    Example:
        >>> check_not_empty("overlap.balls", (), ("linf:0.05",))
        Traceback (most recent call last):
        holdfast.core.errors.HoldfastError: overlap.balls needs at least one entry, got none; leave it out for its default
    """
    if isinstance(value, (list, tuple)) and not value and default:
        raise HoldfastError(f"{setting} needs at least one entry, got none; leave it out for its default")


def check_whole(value: object, name: str, least: int | None = None) -> None:
    """Check that ``value`` is a whole number, of ``least`` or more.

    Args:
        value: Object to check.
        name: Name of the object in errors.
        least: Smallest value; None for any.

    Raises:
        OutOfRange: It is no whole number, or too small.

    Example:
        >>> check_whole(0.5, "seed")
        Traceback (most recent call last):
        holdfast.core.errors.OutOfRange: seed must be a whole number, got 0.5.
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise OutOfRange(name, value, "a whole number")
    if least is not None and cast(int, value) < least:
        raise OutOfRange(name, value, f"at least {least}")


def existing(name: str) -> Path:
    """Return the path of a file that exists and is not empty."""
    path = Path(name).expanduser()
    if not path.exists():
        raise HoldfastError(f"there is no file {name!r}; check the path (relative to {Path.cwd()})")
    if not path.is_file():
        raise HoldfastError(f"{name!r} is a folder, expected a file")
    if path.stat().st_size == 0:
        raise HoldfastError(f"{name!r} is empty (0 bytes); copy or download it again")
    return path
