"""What is looked at, sample by sample: the expensive half of a measurement, computed anywhere."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

from holdfast.core.run_settings import Observed
from holdfast.measure.population import Fit, LooksAt, Population, whitenings


@dataclass(frozen=True)
class SharedSettings:
    """Settings that several observations have in common, held in one field; keys list them as if each were a field."""


@dataclass(frozen=True)
class Observation(ABC):
    """What is seen of each sample. Evaluations that ask for an equal observation share one computation of it."""

    name: ClassVar[str]
    version: ClassVar[int]
    """Raised whenever the numbers change."""
    uses_labels: ClassVar[bool] = False
    """Whether ``observe`` looks at labels, which are then part of its key."""
    uses_bank: ClassVar[bool] = False
    """Whether ``observe`` looks at the bank, if there is one, which is then part of its key."""
    uses_groups: ClassVar[bool] = False
    """Whether ``observe`` looks at which images belong together, which is then part of its key."""

    def looks_at(self) -> LooksAt:
        """Return what of the encoder is looked at; unless something else is said, the encoder itself."""
        return "encoder"

    def fits(self) -> tuple[Fit[Any], ...]:
        """Return what is asked of ``population.learned``; by default what the divergences among the settings learn."""
        return whitenings(self)

    @abstractmethod
    def rows(self, population: Population) -> list[int]:
        """Return which samples are looked at."""

    @abstractmethod
    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        """Return what is seen of ``rows``: tensors whose first axis runs over them. Independent of other rows."""

    def in_batches(self, population: Population, rows: Sequence[int]) -> Observed:
        """Return what is seen of ``rows``, looked at in batches that fit into memory."""
        name = f"{self.name} of {population.encoder.name}"
        return population.run.batches(rows, lambda batch: self.observe(population, batch), name)

    def ids(self, population: Population) -> tuple[str, ...]:
        """Return what each row there can be is called: the image's id, unless something else than images is looked at."""
        return population.images.ids

    def inputs(self, population: Population) -> int:
        """Return how many inputs one row makes the encoder look at, so that shards last about equally long."""
        return 1

    def forwards(self, population: Population) -> int:
        """Return how many forwards of the encoder a row takes, a gradient counted as three: what a budget plans with.

        Only until it was measured; by default one for each of its inputs.
        """
        return self.inputs(population)


@final
@dataclass(frozen=True)
class Joint(Observation):
    """Several observations of the same rows as one; entry ``name`` of part ``k`` is called ``k.name``."""

    parts: tuple[Observation, ...]
    name = "joint"
    version = 1

    def fits(self) -> tuple[Fit[Any], ...]:
        return tuple(dict.fromkeys(fit for part in self.parts for fit in part.fits()))

    def rows(self, population: Population) -> list[int]:
        first, *others = (part.rows(population) for part in self.parts)
        assert all(other == first for other in others), "the parts of a joint observation look at different rows"
        return first

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        return joined([part.observe(population, rows) for part in self.parts])

    def of(self, part: Observation, observed: Observed) -> Observed:
        """Return what ``part``, or an equal one, saw, from what this observation saw."""
        assert part in self.parts, f"a joint observation of {len(self.parts)} parts has no part {part!r}"
        return entries(observed, self.parts.index(part))


def joined(parts: Sequence[Observed]) -> Observed:
    """Return several sets of entries as one, entry ``name`` of set ``k`` being called ``k.name``.

    Example:
        >>> import torch
        >>> both = joined([{"codes": torch.zeros(2)}, {"codes": torch.ones(2)}])
        >>> both["1.codes"], entries(both, 0)
        (tensor([1., 1.]), {'codes': tensor([0., 0.])})
    """
    return {f"{k}.{name}": value for k, part in enumerate(parts) for name, value in part.items()}


def entries(observed: Observed, k: int | str) -> Observed:
    """Return set ``k`` of those that were ``joined``, under their own names again."""
    prefix = f"{k}."
    return {name.removeprefix(prefix): value for name, value in observed.items() if name.startswith(prefix)}
