"""What was found of the zoo, encoder by encoder: kept in one file each, and read back as arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import nan
from pathlib import Path
from time import process_time

import numpy as np
from jaxtyping import Float

from studies.agreement import kept_apart, measures, photographed, references, threats
from studies.agreement.members import EPOCHS, FIRST, TAUGHT, TUNED_EPOCHS, ZOO, Member
from studies.agreement.zoo import Zoo
from studies.common import Kept, Results

DIGITS = 5
SECONDS = "seconds"
"""Of one core, to measure an encoder."""
SEEDS = 3
"""Looked for in a folder of results."""


KEPT_APART, SECOND = 5000, ("fashion", "mnist")
"""Place of the first test image of held-out encoders, and their data sets."""


def results(folder: Path) -> Results:
    """Return the results in a folder; one that was filled under other settings is refused."""
    decides = {
        "measures": {name: measures.settings(name) for name in FIRST},
        "references": {name: references.settings(name) for name in FIRST},
        "images": [measures.IMAGES, references.IMAGES],
        "training": [EPOCHS, TUNED_EPOCHS, TAUGHT],
    }
    return Results(folder, decides)


def kept_results(folder: Path) -> Results:
    """Return the results of held-out encoders in a folder, in the same way."""
    decides = {
        "measures": {name: measures.settings(name) for name in SECOND},
        "references": {name: references.settings(name) for name in SECOND},
        "threats": {name: threats.settings(name) for name in SECOND},
        "images": [measures.IMAGES, references.IMAGES, threats.IMAGES, KEPT_APART],
        "training": [kept_apart.EPOCHS, kept_apart.TUNED_EPOCHS, kept_apart.TAUGHT],
    }
    return Results(folder, decides)


def real_results(folder: Path) -> Results:
    """Return the results of real networks in a folder, in the same way."""
    decides = {
        "measures": measures.settings("photographs"),
        "references": references.settings("photographs"),
        "training": [photographed.EPOCHS, photographed.NOISE],
    }
    return Results(folder, decides)


def found(zoo: Zoo, member: Member, seed: int, out: Path) -> dict[str, Kept]:
    """Return all numbers of a member, and the values of the images that they are made of as "NAME: images".

    Held-out encoders are measured under other threats as well.
    """
    encoder, place, began = zoo.encoder(member, seed), out / member.case.replace(" ", "-") / str(seed), process_time()
    kept: dict[str, Kept] = {"weights": encoder.fingerprint}
    parts = {"measures": measures.measured, "references": references.measured}
    if member in kept_apart.KEPT:
        parts["threats"] = threats.measured
    for name, part in parts.items():
        values, series = part(zoo, member, encoder, place / name)
        kept |= {quantity: _short(value) for quantity, value in values.items()}
        known = {quantity: values for quantity, values in series.items() if not np.isnan(values).all()}
        kept |= {f"{quantity}: images": [_short(one) for one in values] for quantity, values in known.items()}
    return kept | {SECONDS: _short(process_time() - began)}


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


@dataclass(frozen=True)
class Found:
    """What was found of the members that were measured; ``e`` counts them, and seeds of a member are averaged."""

    members: tuple[Member, ...]
    seeds: tuple[int, ...]
    """How many seeds of each member were measured."""
    values: Mapping[str, Float[np.ndarray, "e"]]
    series: Mapping[str, tuple[Float[np.ndarray, "s n"] | None, ...]]
    """The values of the images, a row for each seed."""

    def only(self, kept: Float[np.ndarray, "e"]) -> Found:
        """Return what was found of those members for which ``kept`` is true."""
        places = np.flatnonzero(kept)
        return Found(
            tuple(self.members[place] for place in places),
            tuple(self.seeds[place] for place in places),
            {name: values[places] for name, values in self.values.items()},
            {name: tuple(series[place] for place in places) for name, series in self.series.items()},
        )

    @property
    def dataset(self) -> Float[np.ndarray, "e"]:
        """Return the data set of each member as a number."""
        return _codes([member.dataset for member in self.members])

    @property
    def family(self) -> Float[np.ndarray, "e"]:
        """Return the family of each member as a number."""
        return _codes([member.family for member in self.members])

    @property
    def degenerate(self) -> Float[np.ndarray, "e"]:
        """Return which members are trivial."""
        return np.array([member.degenerate for member in self.members], dtype=bool)

    @property
    def recipe(self) -> Float[np.ndarray, "e"]:
        """Return as a number which members share data set and radius of adversarial training."""
        return _codes([f"{member.dataset} {member.eps:g}" for member in self.members])

    @property
    def eps(self) -> Float[np.ndarray, "e"]:
        """Return the radius of each member's adversarial training."""
        return np.array([member.eps for member in self.members])


def _codes(names: list[str]) -> Float[np.ndarray, "e"]:
    order = {name: place for place, name in enumerate(dict.fromkeys(names))}
    return np.array([order[name] for name in names], dtype=int)


@cache
def read(folder: Path) -> Found:
    """Return what a folder of results holds of the members of the zoo."""
    return _read(results(folder), ZOO, range(SEEDS))


@cache
def read_kept(folder: Path, seed: int) -> Found:
    """Return what a folder of results holds of the held-out encoders, as trained with a seed."""
    return _read(kept_results(folder), kept_apart.KEPT, (seed,))


@cache
def read_real(folder: Path) -> Found:
    """Return what a folder of results holds of real networks."""
    return _read(real_results(folder), photographed.REAL, (0,))


def _read(kept: Results, everyone: Sequence[Member], wanted: Sequence[int]) -> Found:
    members, seeds, values, series = (
        list[Member](),
        list[int](),
        list[dict[str, float]](),
        list[dict[str, np.ndarray]](),
    )
    for member in everyone:
        there = [seed for seed in wanted if kept.path(member.case, seed).exists()]
        if not there:
            continue
        numbers = [kept.found(member.case, seed) or {} for seed in there]
        parts = [kept.series(member.case, seed) for seed in there]
        members.append(member)
        seeds.append(len(there))
        means = {name: float(np.mean([one.get(name, nan) for one in numbers])) for name in numbers[0]}
        values.append({measures.RADIUS: member.eps, **means})
        series.append({name: np.array([one[name] for one in parts]) for name in parts[0]})
    names = list(dict.fromkeys(name for one in values for name in one))
    imaged = list(dict.fromkeys(name for one in series for name in one))
    return Found(
        tuple(members),
        tuple(seeds),
        {name: np.array([one.get(name, nan) for one in values]) for name in names},
        {name.removesuffix(": images"): tuple(one.get(name) for one in series) for name in imaged},
    )
