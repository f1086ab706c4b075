"""What is learned once from a whole population: before any sample is looked at, and for all who ask.

Learning gives named tensors, which a run keeps under a key and sends to its workers; restoring makes of them what one
works with, once in each process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar, final

from holdfast.core.divergences import Divergence, Linear
from holdfast.core.run_settings import Observed

if TYPE_CHECKING:
    from holdfast.protocol.population import Population

Learned = TypeVar("Learned")
LooksAt = Literal["codes", "inputs", "encoder"]
"""What of an encoder is looked at: the ``codes`` of clean images alone, their ``inputs`` beside them, or the ``encoder``
itself, as for codes of images that are made from these. Codes that were computed elsewhere have no encoder."""


@dataclass(frozen=True)
class Fit(ABC, Generic[Learned]):
    """What is learned from a whole population. Its fields are its settings; ``population.learned`` takes it.

    Equal ones share one computation, whichever observations and evaluations name them.
    """

    name: ClassVar[str]
    version: ClassVar[int]
    """Raised whenever what is learned changes."""
    uses_labels: ClassVar[bool] = False
    """Whether ``learn`` looks at labels, which are then part of its key, and of the key of whoever asks for it."""
    uses_groups: ClassVar[bool] = False
    """Whether ``learn`` looks at which images belong together, which is then part of those keys."""
    uses_bank: ClassVar[bool] = False
    """Whether ``learn`` looks at the bank, which is then part of those keys."""
    uses_texts: ClassVar[bool] = False
    """Whether ``learn`` looks at the encoder's text tower and the names of classes, which are then part of those keys."""

    def looks_at(self) -> LooksAt:
        """Return what of the encoder is looked at; unless something else is said, the encoder itself."""
        return "encoder"

    def forwards(self, population: Population) -> int:
        """Return how many forwards of the encoder it takes to learn, a gradient counted as three; by default none."""
        return 0

    @abstractmethod
    def learn(self, population: Population) -> Observed:
        """Return what there is to learn, as named tensors of any shape."""

    @abstractmethod
    def restore(self, population: Population, learned: Observed) -> Learned:
        """Return what is worked with, made from what was ``learned``: the cheap part, and no new decision."""


@final
@dataclass(frozen=True)
class Whitening(Fit[Divergence]):
    """The matrix that a divergence takes from the clean codes."""

    divergence: Divergence
    name = "whitening"
    version = 1

    def looks_at(self) -> LooksAt:
        return "codes"

    def learn(self, population: Population) -> Observed:
        fitted = self.divergence.fit(population.codes)
        assert isinstance(fitted, Linear), f"{self.divergence} learns no matrix"
        return {"matrix": fitted.matrix}

    def restore(self, population: Population, learned: Observed) -> Divergence:
        return Linear(learned["matrix"].to(population.run.device), self.divergence)


def whitenings(asking: Any) -> tuple[Fit[Any], ...]:
    """Return what the divergences among the fields of ``asking`` learn.

    Example:
        >>> from holdfast.core.divergences import L2Distance, Whitened
        >>> @dataclass(frozen=True)
        ... class Asking:
        ...     divergences: tuple[Divergence, ...]
        >>> [str(fit.divergence) for fit in whitenings(Asking((L2Distance(), Whitened())))]
        ['whitened']
    """
    values = [getattr(asking, field.name) for field in fields(asking)]
    flat = [part for value in values for part in (value if isinstance(value, tuple) else (value,))]
    return tuple(Whitening(part) for part in flat if isinstance(part, Divergence) and part.learns)
