"""How the report writes numbers, conditions and quantities."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import inf, isnan
from typing import Any

from holdfast.core.records import Estimate

NORMS = {"linf": "ℓ∞", "l2": "ℓ2", "l1": "ℓ1"}
NAMES = {
    "score_only_wins": "wins of the score-only attack",
    "clever": "CLEVER",
    "spade": "SPADE",
    "synbench": "SynBench",
    "riemannian": "Riemannian",
    "rankme": "RankMe",
    "lidar": "LiDAR",
}
OBJECTIVES = {
    "retrieval": "another nearest neighbour",
    "crossing": "a random other image",
    "the negative": "the negative's code",
    "the difference": "the certified margin",
}
"""What an attack climbs where it is not simply the distance from the clean code."""
COUNTS = {"n": "samples", "k": "neighbours"}
ALL = "all encoders"
ARROWS = {"lower": "↓", "higher": "↑", "neither": ""}


def number(value: float) -> str:
    """Return ``value`` with three significant digits (two if it is small), the way people write numbers.

    Example:
        >>> [number(value) for value in (0.06349, 0.00219, 3.04e-7, 12345.6, 1.0, 0.0, -inf, 0.99993)]
        ['0.0635', '0.0022', '3.0e-7', '12,346', '1', '0', '−∞', '0.9999']
    """
    if isnan(value):
        return "undefined"
    sign, size = "−" if value < 0 else "", abs(value)
    if size == inf:
        return f"{sign}∞"
    if size >= 1e6 or 0 < size < 1e-3:
        mantissa, exponent = f"{size:.1e}".split("e")
        return f"{sign}{mantissa}e{int(exponent)}"
    if size >= 100 or size == int(size):
        return f"{sign}{size:,.0f}"
    if 0.9995 <= size < 1:  # a share that is not quite one must not read as one
        return f"{sign}{int(size * 1e4) / 1e4}"
    return f"{sign}{size:#.3g}" if size >= 0.01 else f"{sign}{size:#.2g}"


def interval(estimate: Estimate) -> str:
    """Return the interval of ``estimate``, or that it has none; empty where there is no value either."""
    if isnan(estimate.low) or isnan(estimate.high):
        return "" if isnan(estimate.value) else "no interval"
    return f"[{number(estimate.low)}, {number(estimate.high)}]"


def is_share(unit: str) -> bool:
    """Return whether numbers of this unit are counts over counts, which lie between 0 and 1.

    Example:
        >>> is_share("share of pairs"), is_share("share of clean distance"), is_share("dimensions")
        (True, False, False)
    """
    return unit.startswith("share") and "distance" not in unit


def unseen(estimate: Estimate) -> bool:
    """Return whether no sample differed, so that the interval only bounds how many others might."""
    return estimate.method.startswith("all values equal")


def words(name: str) -> str:
    """Return a quantity, unit or setting in words.

    Example:
        >>> words("breakaway_risk"), words("linf radius"), words("spade_score")
        ('breakaway risk', 'ℓ∞ radius', 'SPADE score')
    """
    known = NORMS | NAMES
    if name in known:
        return known[name]
    return " ".join(known.get(word, word) for word in name.replace("_", " ").split(" "))


def ball(text: str) -> str:
    """Return the text form of a ball as mathematics; other text as it is.

    Example:
        >>> ball("linf:8/255"), ball("linf"), ball("everything")
        ('ℓ∞ ≤ 8/255', 'ℓ∞', 'everything')
    """
    name, _, radius = text.partition(":")
    if name not in NORMS:
        return text
    return f"{NORMS[name]} ≤ {radius}" if radius else NORMS[name]


def condition(key: str, value: str) -> str:
    """Return one condition as the report shows it; balls, attacks and divergences need no introduction.

    Example:
        >>> condition("attack", "u-pgd"), condition("k", "5"), condition("attack", "adaptive at retrieval")
        ('u-pgd', '5 neighbours', 'adaptive (objective: another nearest neighbour)')
    """
    if key == "ball":
        return ball(value)
    if key == "divergence":
        return words(value)
    if key == "attack":
        search, _, objective = value.partition(" at ")
        return f"{search} (objective: {OBJECTIVES[objective]})" if objective in OBJECTIVES else value
    return f"{value} {COUNTS[key]}" if key in COUNTS else f"{words(key)} {value}"


def conditions(values: Mapping[str, str], without: tuple[str, ...] = ()) -> str:
    """Return all conditions on one line.

    Example:
        >>> conditions({"ball": "linf:0.05", "attack": "u-pgd", "divergence": "cosine"})
        'ℓ∞ ≤ 0.05 · u-pgd · cosine'
    """
    return " · ".join(condition(key, value) for key, value in values.items() if key not in without)


def setting(value: Any) -> str:
    """Return a setting as text.

    Example:
        >>> setting(["linf:0.05", "linf:0.1"]), setting(None)
        ('linf:0.05, linf:0.1', 'none')
    """
    if isinstance(value, (list, tuple)):
        return ", ".join(map(setting, value)) or "none"
    return "none" if value is None else str(value)


def listed(parts: list[str]) -> str:
    """Return a list as English.

    Example:
        >>> listed(["a"]), listed(["a", "b", "c"])
        ('a', 'a, b and c')
    """
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def among(names: Sequence[str], everyone: Collection[str]) -> str:
    """Return a list of encoders, in short if it is all of them.

    Example:
        >>> among(["a", "b"], ["a", "b"]), among(["a"], ["a", "b"])
        ('all encoders', 'a')
    """
    return ALL if len(everyone) > 1 and set(names) == set(everyone) else listed(list(names))


def have(names: Sequence[str]) -> str:
    """Return the verb for so many subjects.

    Example:
        >>> have(["a"]), have(["a", "b"])
        ('has', 'have')
    """
    return "has" if len(names) == 1 else "have"


def opening(sentence: str) -> str:
    """Return what begins a sentence with a capital, but for names, which stay as they are.

    Example:
        >>> opening("all encoders are tied"), opening("resnet50 is best")
        ('All encoders are tied', 'resnet50 is best')
    """
    return f"A{sentence[1:]}" if sentence.startswith(ALL) else sentence


def counted(count: int, noun: str) -> str:
    """Return a count with its noun.

    Example:
        >>> counted(1, "encoder"), counted(1200, "image")
        ('1 encoder', '1,200 images')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
