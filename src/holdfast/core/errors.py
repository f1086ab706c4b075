"""What the library raises: one sentence that says what was expected, what arrived and what to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar, cast

LONGEST_VALUE = 60
"""Characters of a value that a sentence shows."""
SHOWN_NAMES = 8
"""Known names that a sentence lists."""


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


class _Fault(HoldfastError):
    """A mistake whose sentence is built here from its facts, so that tests and callers read the facts.

    Args:
        argument: Name of what is wrong: an argument, a flag, a setting or a file.
        got: Value that arrived, or the reason why it cannot be used.
        expected: Values that are allowed.
        fix: What to do, without a full stop at its end.
    """

    pattern: ClassVar[str]

    def __init__(self, argument: str, got: object, expected: object = "", fix: str = "") -> None:
        super().__init__(argument, got, expected, fix)  # all four, so that a worker's error survives pickling
        self.argument, self.got, self.expected, self.fix = argument, got, expected, fix

    def __str__(self) -> str:
        """Return the sentence: what is wrong, what arrived, what is expected, what to do."""
        sentence = self.pattern.format(argument=self.argument, got=self._shown(), expected=self._allowed())
        return f"{sentence} {self.fix[0].upper()}{self.fix[1:]}." if self.fix else sentence

    def _shown(self) -> str:
        """Return ``got`` as the sentence shows it."""
        text = repr(self.got) if isinstance(self.got, str) else str(self.got)
        return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 3]}..."

    def _allowed(self) -> str:
        """Return ``expected`` as the sentence shows it."""
        return str(self.expected)


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

    def _shown(self) -> str:
        return str(self.got)


class Unreadable(_Fault):
    """File that cannot be read or has other contents; ``got`` is the reason.

    Example:
        >>> print(Unreadable("recipe.toml", "No such file or directory", fix="check the path"))
        Cannot read recipe.toml: No such file or directory. Check the path.
    """

    pattern = "Cannot read {argument}: {got}."

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

    def _shown(self) -> str:
        return str(self.got)


class UnknownName(_Fault):
    """Name that is not among the known names, which are ``expected``.

    Example:
        >>> print(UnknownName("ball", "l3", ["l1", "l2", "linf"]))
        ball: unknown name 'l3'. Did you mean 'l2'? Known: l1, l2, linf.
    """

    pattern = "{argument}: unknown name {got}. {expected}"

    def __init__(self, argument: str, got: str, expected: Iterable[str], fix: str = "") -> None:
        super().__init__(argument, got, sorted(expected), fix)

    def _allowed(self) -> str:
        return did_you_mean(str(self.got), cast(list[str], self.expected))


class HoldfastWarning(UserWarning):
    """Something that a reader of the numbers should know, although they are right."""


def did_you_mean(name: str, known: list[str]) -> str:
    """Clause that lists the known names and suggests the nearest one.

    Args:
        name: Name that is unknown.
        known: Known names.

    Example:
        >>> did_you_mean("breakway", ["breakaway", "overlap"])
        "Did you mean 'breakaway'? Known: breakaway, overlap."
    """
    from difflib import get_close_matches

    close = get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"Did you mean {close[0]!r}? " if close else ""
    names = sorted(known)
    rest = len(names) - SHOWN_NAMES
    # One name more takes no more room than the count of it.
    listed = [*names[:SHOWN_NAMES], f"... and {rest} more"] if rest > 1 else names
    return f"{hint}Known: {', '.join(listed) or 'none'}."


def check_not_blank(name: str, value: object) -> None:
    """Check that no text is empty or white space, as an unset variable of a script is.

    Args:
        name: Name of the argument in errors.
        value: Text, or several texts.

    Raises:
        HoldfastError: A text is blank.

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
        name: Name of the argument in errors.
        values: Object to check; anything but a list or tuple passes.

    Raises:
        HoldfastError: A value occurs twice.

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
        setting: Name of the setting in errors.
        value: Object to check; anything but a list or tuple passes.
        default: Default of the setting.

    Raises:
        HoldfastError: The list is empty.

    Example:
        >>> check_not_empty("overlap.balls", (), ("linf:0.05",))
        Traceback (most recent call last):
        holdfast.core.errors.HoldfastError: overlap.balls needs at least one entry, got none; leave it out for its default
    """
    if isinstance(value, (list, tuple)) and not value and default:
        raise HoldfastError(f"{setting} needs at least one entry, got none; leave it out for its default")
