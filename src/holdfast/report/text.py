"""Formatting of numbers, conditions and metrics in the report."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import inf, isfinite, isnan
from typing import Any

from holdfast.core.records import Curve, Estimate, Series
from holdfast.core.settings import convert

NORMS = {"linf": "ℓ∞", "l2": "ℓ2", "l1": "ℓ1"}
COUNTS = {"n": "samples", "k": "neighbours"}
ALL = "all encoders"
STATUSES = {"proved": "certified", "refuted": "falsified"}
"""Printed words of verdicts, if they differ from the stored ones."""
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


def in_print(norm: str) -> tuple[float, str]:
    """Factor and suffix with which a radius is printed: ℓ∞ in 1/255.

    Example:
        >>> in_print("linf"), in_print("l2")
        ((255.0, '/255'), (1.0, ''))
    """
    return (255.0, "/255") if norm == "linf" else (1.0, "")


def radius_in_print(norm: str, radius: float) -> str:
    """Format a radius with three digits, as in a caption.

    Args:
        norm: Name of the norm, such as ``linf``.
        radius: Radius in pixel units.

    Example:
        >>> radius_in_print("linf", 0.0005), radius_in_print("l2", 0.25)
        ('0.128/255', '0.25')
    """
    times, behind = in_print(norm)
    return f"{times * radius:.3g}{behind}"


def norm_and_radius(ball: str) -> tuple[str, float]:
    """Return norm and radius of a ball as records write it.

    Example:
        >>> norm_and_radius("l2:0.5")
        ('l2', 0.5)
    """
    norm, _, size = ball.partition(":")
    return norm, convert(size, float, f"ball {ball!r}")


def norm_of(record: Series | Estimate) -> str:
    """Return the norm of the change of pixels that ``record`` is the radius of; empty for what is no such radius."""
    norm = record.conditions.get("ball", "").partition(":")[0]
    of_pixels = record.unit in ("radius", f"{norm} distance") and "radius" in f"{record.quantity} {record.unit}"
    return norm if of_pixels else ""


def radius(norm: str, size: float) -> str:
    """Return a radius of pixels in print, l_inf in grey levels; other numbers, of no ``norm``, as they are.

    Example:
        >>> radius("linf", 0.0005), radius("l2", 0.0005), radius("", 0.0005), radius("linf", 0.0), radius("linf", -inf)
        ('0.128/255', '5.0e-4', '5.0e-4', '0', '−∞')
    """
    times, behind = in_print(norm)
    return f"{number(times * size)}{behind if isfinite(size) and size else ''}"


def value(estimate: Estimate, of: float) -> str:
    """Return ``of``, the value or an end of ``estimate``, in print; an infinite radius as more than what was searched.

    Example:
        >>> from holdfast.core.records import Claim
        >>> searched = Estimate(quantity="attack_radius", conditions={"ball": "linf:0.5"}, value=inf, low=0.0005, high=inf,
        ...                     n=9, method="", unit="linf distance", claim=Claim.UPPER, of="", better="higher")
        >>> value(searched, searched.value), interval(searched)
        ('more than 127.5/255', '[0.128/255, more than 127.5/255]')
    """
    norm = norm_of(estimate)
    widest = estimate.conditions.get("ball", "").partition(":")[2]
    if of == inf and widest and estimate.unit.endswith("distance"):
        times, behind = in_print(norm)
        return f"more than {times * convert(widest, float, 'radius'):.6g}{behind}"
    return radius(norm, of)


def interval(estimate: Estimate) -> str:
    """Return the interval of ``estimate``, or that it has none; empty where there is no value either."""
    if isnan(estimate.low) or isnan(estimate.high):
        return "" if isnan(estimate.value) else "no interval"
    low, high = value(estimate, estimate.low), value(estimate, estimate.high)
    return "" if low == high and estimate.low == inf else f"[{low}, {high}]"


def words(name: str) -> str:
    """Return a unit, setting or quantity in words; ``name_of`` gives quantities the names that evaluations have for them.

    Example:
        >>> words("breakaway_risk"), words("linf radius")
        ('breakaway risk', 'ℓ∞ radius')
    """
    return " ".join(NORMS.get(word, word) for word in name.replace("_", " ").split(" "))


def name_of(record: Series | Estimate | Curve) -> str:
    """Return what the quantity of ``record`` is called in print.

    Example:
        >>> score = Curve(quantity="spade_score", x_label="", y_label="", x=(), y=())
        >>> name_of(score), name_of(score.model_copy(update={"name": "SPADE score"}))
        ('spade score', 'SPADE score')
    """
    return record.name or words(record.quantity)


def ball(text: str) -> str:
    """Return the text form of a ball as mathematics, l_inf in grey levels; other text as it is.

    Example:
        >>> ball("linf:8/255"), ball("linf:0.05"), ball("l2:0.5"), ball("linf"), ball("everything")
        ('ℓ∞ ≤ 8/255', 'ℓ∞ ≤ 12.75/255', 'ℓ2 ≤ 0.5', 'ℓ∞', 'everything')
    """
    name, _, radius = text.partition(":")
    if name not in NORMS:
        return text
    return f"{NORMS[name]} ≤ {chosen(name, radius)}" if radius else NORMS[name]


def chosen(norm: str, radius: str) -> str:
    """Return the written ``radius`` of a ball in the one unit that its ``norm`` has in print.

    Example:
        >>> chosen("linf", "8/255"), chosen("linf", "0.1"), chosen("l2", "0.25")
        ('8/255', '25.5/255', '0.25')
    """
    times, behind = in_print(norm)
    if not behind or radius.endswith(behind):
        return radius
    return f"{times * convert(radius, float, 'radius'):.5g}{behind}"


def condition(key: str, value: str, aim: str = "") -> str:
    """Return one condition as the report shows it; balls, attacks and divergences need no introduction.

    Example:
        >>> condition("attack", "u-pgd"), condition("k", "5"), condition("attack", "pgd at retrieval", "another neighbour")
        ('u-pgd', '5 neighbours', 'pgd (objective: another neighbour)')
    """
    if key == "ball":
        return ball(value)
    if key == "divergence":
        return words(value)
    if key == "attack":
        search, at, _ = value.partition(" at ")
        return f"{search} (objective: {aim})" if at and aim else value
    return f"{value} {COUNTS[key]}" if key in COUNTS else f"{words(key)} {value}"


def conditions(values: Mapping[str, str], without: tuple[str, ...] = (), aim: str = "") -> str:
    """Return all conditions on one line; ``aim`` is that of the estimate.

    Example:
        >>> conditions({"ball": "linf:0.05", "attack": "u-pgd", "divergence": "cosine"})
        'ℓ∞ ≤ 12.75/255 · u-pgd · cosine'
    """
    return " · ".join(condition(key, value, aim) for key, value in values.items() if key not in without)


def setting(value: Any) -> str:
    """Return a setting as text.

    Example:
        >>> setting(["linf:0.05", "linf:0.1"]), setting(None)
        ('linf:0.05, linf:0.1', 'none')
    """
    if isinstance(value, (list, tuple)):
        return ", ".join(map(setting, value)) or "none"
    return "none" if value is None else str(value)


def listed(parts: Iterable[str]) -> str:
    """Return a list as English.

    Example:
        >>> listed(["a"]), listed(["a", "b", "c"])
        ('a', 'a, b and c')
    """
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last


def among(names: Sequence[str], everyone: Collection[str]) -> str:
    """Return a list of encoders, in short if it is all of them.

    Example:
        >>> among(["a", "b"], ["a", "b"]), among(["a"], ["a", "b"])
        ('all encoders', 'a')
    """
    return ALL if len(everyone) > 1 and set(names) == set(everyone) else listed(names)


def have(names: Sequence[str]) -> str:
    """Return the verb for these subjects.

    Example:
        >>> have(["a"]), have(["a", "b"])
        ('has', 'have')
    """
    return "has" if len(names) == 1 else "have"


def opening(sentence: str) -> str:
    """Return ``text`` with a capital first letter, unless it begins with a name.

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


def about(seconds: float) -> str:
    """Return a time as people say it.

    Example:
        >>> [about(seconds) for seconds in (20.0, 70.0, 280.0, 5400.0, 200_000.0)]
        ['less than a minute', 'about a minute', 'about 5 minutes', 'about 90 minutes', 'about 2 days']
    """
    if seconds < 45:
        return "less than a minute"
    for unit, length, most in (("minute", 60.0, 99.5), ("hour", 3600.0, 47.5), ("day", 86400.0, float("inf"))):
        if round(count := seconds / length) <= most:
            return (
                f"about a{'n' if unit == 'hour' else ''} {unit}" if round(count) == 1 else f"about {count:,.0f} {unit}s"
            )
    raise AssertionError("days have no end")
