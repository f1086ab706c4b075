"""The tables of the study of training under change: means over seeds, each with Student's 95% interval."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite, sqrt

from studies.common import Results, averaged, drops, interval, said, table
from studies.pretraining.cases import BASELINES, PROBES, REGULARISED, SHOTS, SUBSETS, UNIFORM_CHANGES, Case, orders


@dataclass(frozen=True)
class Tables:
    """What is concluded from results; parts without any have no table."""

    results: Results
    objectives: Sequence[str]
    changes: Sequence[str]
    seeds: int
    measured: int

    def __iter__(self) -> Iterator[str]:
        parts = {
            "pretraining": self.pretraining,
            "downstream": self.downstream,
            "classes": self.classes,
            "fluctuation": self.fluctuation,
            "uniformity": self.uniformity,
        }
        for part, lines in parts.items():
            if self.results.has(part):
                yield from lines()

    def values(self, part: str, case: Case, quantity: str) -> list[float]:
        """Return a quantity of a case with each seed."""
        return self.results.values(f"{part}: {case}", quantity, self.seeds)

    def pretraining(self) -> Iterator[str]:
        """Yield a table for each probe, of images changed alike and of clean ones."""
        heads = ["trained by", "order", "trained and tested clean", *self.changes, "mean drop"]
        for probe in PROBES:
            for tested in ("changed", "clean"):
                rows = [
                    self._changed(name, order, probe, tested)
                    for name in (*BASELINES, *self.objectives)
                    for order in orders(name)
                ]
                title = f"Trained on changed images, tested on {tested} ones, {probe}: accuracy (relative drop)"
                yield from table(title, heads, rows)

    def _changed(self, name: str, order: str, probe: str, tested: str) -> list[str]:
        clean = self.values("pretraining", Case(name), f"clean, {probe}")
        chance = self.values("pretraining", Case(name), "chance")
        seen = [self.values("pretraining", Case(name, one, order), f"{tested}, {probe}") for one in self.changes]
        lost = [drops(clean, one) for one in seen]
        return [
            name,
            "untrained" if name in BASELINES else order,
            near_chance(clean, chance, self.measured),
            *(beside(*pair) for pair in zip(seen, lost, strict=True)),
            percent(averaged(lost)),
        ]

    def downstream(self) -> Iterator[str]:
        """Yield what probes taught again on changed images lose, with encoders trained on clean ones."""
        quantities = {
            "clean": "clean_accuracy, {}",
            "changed": "mean_corrupted_accuracy, {}, all",
            "drop": "mean_relative_accuracy_drop, {}, all",
        }
        rows = []
        for name in (*BASELINES, *self.objectives):
            row = [name]
            for probe in PROBES:
                for head, quantity in quantities.items():
                    values = self.values("downstream", Case(name), quantity.format(probe))
                    row.append(percent(values) if head == "drop" else said(values))
            rows.append(row)
        heads = ["trained by", *(f"{probe}: {head}" for probe in PROBES for head in quantities)]
        yield from table("Trained on clean images, bank and tested images changed: means over six changes", heads, rows)

    def classes(self) -> Iterator[str]:
        """Yield a table for each probe: all classes, and those with many, medium and few images in the long tail."""
        groups = ("all", *SHOTS)
        for probe in PROBES:
            rows = []
            for name in self.objectives:
                for subset in SUBSETS:
                    images = self.values("classes", Case(name, subset=subset), "images")
                    if not any(map(isfinite, images)):
                        continue
                    row = [name, subset, said(images, 0)]
                    for group in groups:
                        quantity = f"{group}, {probe}"
                        uniform = self.values("classes", Case(name, subset="uniform"), quantity)
                        seen = self.values("classes", Case(name, subset=subset), quantity)
                        row.append(said(seen) if subset == "uniform" else beside(seen, drops(uniform, seen)))
                    rows.append(row)
            title = f"Trained on other balances of classes or other images, {probe}: accuracy (drop from uniform)"
            yield from table(title, ["trained by", "on", "images", *groups], rows)

    def fluctuation(self) -> Iterator[str]:
        """Yield how much the accuracy of classes comes and goes."""
        rows = [
            [name, *(said(self.values("fluctuation", Case(name), what)) for what in ("mean", "largest", "final"))]
            for name in self.objectives
        ]
        heads = ["trained by", "mean of classes", "largest of a class", "accuracy at the end"]
        yield from table(f"Semantic fluctuation over checkpoints, {PROBES[0]}", heads, rows)

    def uniformity(self) -> Iterator[str]:
        """Yield accuracy and uniformity of regularised supervised training."""
        rows = []
        for name in REGULARISED:
            row, clean = [name], self.values("uniformity", Case(name), "accuracy, ")
            for change in ("", *UNIFORM_CHANGES):
                seen, spread = (
                    self.values("uniformity", Case(name), f"{q}, {change}") for q in ("accuracy", "uniformity")
                )
                row.append(f"{beside(seen, drops(clean, seen)) if change else said(seen)}, {said(spread, 2)}")
            rows.append(row)
        title = f"Regularised by uniformity, {PROBES[0]}: accuracy (relative drop), uniformity"
        yield from table(title, ["trained by", "clean", *UNIFORM_CHANGES], rows)


def percent(values: Sequence[float]) -> str:
    """Return mean and interval of shares in percent.

    Example:
        >>> percent([0.25, 0.25])
        '25.0 ± 0.0%'
    """
    return said([100 * value for value in values], 1, "%")


def beside(accuracies: Sequence[float], lost: Sequence[float]) -> str:
    """Return accuracies with what is lost in brackets.

    Example:
        >>> beside([0.5, 0.5], [0.1, 0.1])
        '0.500 ± 0.000 (10.0 ± 0.0%)'
    """
    value, drop = said(accuracies), percent(lost)
    return value if drop == "missing" else f"{value} ({drop})"


def near_chance(accuracies: Sequence[float], chances: Sequence[float], measured: int) -> str:
    """Return accuracies in words, and whether they are within 3 standard errors of chance, where drops mean nothing.

    Example:
        >>> near_chance([0.12], [0.1], 100), near_chance([0.9], [0.1], 100)
        ('0.120 ± unknown, near chance', '0.900 ± unknown')
    """
    value, chance = interval(accuracies)[0], interval(chances)[0]
    near = value - chance <= 3 * sqrt(max(chance * (1 - chance), 0) / measured)
    return said(accuracies) + (", near chance" if near else "")
