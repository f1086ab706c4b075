"""Arguments of one command line that replace those of another."""

from __future__ import annotations

from collections.abc import Sequence


def overriding(base: Sequence[str], given: Sequence[str]) -> list[str]:
    """Return ``base`` and ``given``, without the options of ``base`` that ``given`` has as well.

    Example:
        >>> overriding(["attack", "--limit", "6", "--out", "out"], ["--limit", "1"])
        ['attack', '--out', 'out', '--limit', '1']
    """
    kept, position = list[str](), 0
    while position < len(base):
        replaced = base[position].startswith("--") and base[position] in given
        if not replaced:
            kept.append(base[position])
        position += 1 + replaced
    return [*kept, *given]
