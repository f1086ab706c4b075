"""What is looked at, sample by sample: the expensive half of a measurement, computed anywhere."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

from holdfast.core.old_names import OldName, OldNames
from holdfast.core.run_settings import Observed
from holdfast.measure.population import Fit, LooksAt, Population, whitenings


@dataclass(frozen=True)
class SharedSettings:
    """Settings that several observations have in common, held in one field; keys list them as if each were a field."""


@dataclass(frozen=True)
class Observation(ABC, OldNames):
    """What is computed for each sample; equal observations of several evaluations are shared."""

    name: ClassVar[str]
    version: ClassVar[int]
    """Version of the observation; it rises whenever the numbers change."""
    uses_labels: ClassVar[bool] = False
    """True if ``observe`` reads labels, which are then part of the key of results."""
    uses_bank: ClassVar[bool] = False
    """True if ``observe`` reads the reference set, if there is one; it is then part of the key."""
    uses_groups: ClassVar[bool] = False
    """True if ``observe`` reads groups of images, which are then part of the key."""
    forwards = OldName("forward_passes")

    def looks_at(self) -> LooksAt:
        """Part of the encoder that the observation reads; by default the encoder itself."""
        return "encoder"

    def fits(self) -> tuple[Fit[Any], ...]:
        """Fits that the observation needs; by default those of divergences among the settings."""
        return whitenings(self)

    @abstractmethod
    def rows(self, population: Population) -> list[int]:
        """Return which samples are looked at."""

    @abstractmethod
    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        """Observe ``rows``, each independently of other rows.

        Args:
            population: Images of the run with their clean embeddings.
            rows: Rows of the population.

        Returns:
            Tensors by name; their first axis runs over ``rows``.
        """

    def in_batches(self, population: Population, rows: Sequence[int]) -> Observed:
        """Observe rows in batches that fit into memory.

        Args:
            population: Encoder and images.
            rows: Rows of the population.

        Returns:
            What ``observe`` returns, for all rows in their order.
        """
        name = f"{self.name} of {population.encoder.name}"
        return population.run.batches(rows, lambda batch: self.observe(population, batch), name)

    def ids(self, population: Population) -> tuple[str, ...]:
        """Name of each row; the id of the image unless rows are something else."""
        return population.images.ids

    def inputs(self, population: Population) -> int:
        """Inputs of the encoder that one row needs, so that shards last about equally long."""
        return 1

    def forward_passes(self, population: Population) -> int:
        """Forward passes per row, about; a gradient counts as 3.

        Budgets use this number until it was measured. By default one for each input.
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
