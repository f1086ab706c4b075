"""What the library raises: one sentence that says what was expected, what arrived and what to do."""


class HoldfastError(ValueError):
    """A caller's mistake or an input that cannot be measured; the command line prints it and exits with status 2."""


class BudgetSpentError(Exception):
    """The time is up, which is no mistake: everything finished is kept, and the same command goes on."""


class HoldfastWarning(UserWarning):
    """Something a reader of the numbers should know, though they are right."""


def nearest(name: str, known: list[str]) -> str:
    """Return the clause that lists the ``known`` names and suggests the one nearest to ``name``.

    Example:
        >>> nearest("breakway", ["breakaway", "overlap"])
        "did you mean 'breakaway'? known: breakaway, overlap"
    """
    from difflib import get_close_matches

    close = get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}known: {', '.join(sorted(known))}"


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
