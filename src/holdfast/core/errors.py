"""What the library raises: one sentence that says what was expected, what arrived and what to do."""

from __future__ import annotations

from collections.abc import Mapping


class HoldfastError(ValueError):
    """A caller's mistake or an input that cannot be measured; the command line prints it and exits with status 2."""


class BudgetSpentError(Exception):
    """The time is up, which is no mistake: everything finished is kept, and the same command goes on."""


class AgreementLostError(HoldfastError):
    """Training moved the codes too far from those that it was to keep; ``epoch`` is the last in which it had not, or 0."""

    def __init__(self, sentence: str, epoch: int) -> None:
        super().__init__(sentence)
        self.epoch = epoch


class HoldfastWarning(UserWarning):
    """Something a reader of the numbers should know, though they are right."""


def did_you_mean(name: str, known: list[str]) -> str:
    """Return the clause that lists the ``known`` names and suggests the one nearest to ``name``.

    Example:
        >>> did_you_mean("breakway", ["breakaway", "overlap"])
        "did you mean 'breakaway'? known: breakaway, overlap"
    """
    from difflib import get_close_matches

    close = get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}known: {', '.join(sorted(known))}"


def refuse_blank(name: str, value: object) -> None:
    """Raise if ``value``, a text or one of several, is empty or white space, as an unset variable of a script is.

    Example:
        >>> refuse_blank("--images", "")
        Traceback (most recent call last):
        holdfast.core.errors.HoldfastError: --images is empty, as an unset variable would be; give it a value or leave it out
    """
    texts = value if isinstance(value, (list, tuple)) else (value,)
    if any(isinstance(text, str) and not text.strip() for text in texts):
        raise HoldfastError(f"{name} is empty, as an unset variable would be; give it a value or leave it out")


def refuse_blanks(arguments: Mapping[str, object]) -> None:
    """Raise if one of the ``arguments`` of a function, by name, is an empty text."""
    for name, value in arguments.items():
        refuse_blank(name, value)


def refuse_twice(name: str, values: object) -> None:
    """Raise if ``values`` is a list in which something occurs twice.

    Example:
        >>> refuse_twice("steps", [1, 2, 1])
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


def refuse_empty(setting: str, value: object, default: object) -> None:
    """Raise if ``value`` is a list without entries, unless ``default`` is one too.

    Example:
        >>> refuse_empty("overlap.balls", (), ("linf:0.05",))
        Traceback (most recent call last):
        holdfast.core.errors.HoldfastError: overlap.balls needs at least one entry, got none; leave it out for its default
    """
    if isinstance(value, (list, tuple)) and not value and default:
        raise HoldfastError(f"{setting} needs at least one entry, got none; leave it out for its default")
