"""The encoder under measurement: what is known of it, and what is to be observed of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, final

from jaxtyping import Float
from torch import Tensor

from holdfast.core.encoder import Encoder
from holdfast.core.errors import BudgetSpentError
from holdfast.core.images import Images
from holdfast.core.run_settings import Observed, RunSettings
from holdfast.protocol.evaluation import Evaluation, learning, parts
from holdfast.protocol.fits import Fit
from holdfast.protocol.observation import Observation
from holdfast.protocol.population import Population


@final
@dataclass
class Subject:
    """An encoder whose codes and fits are known, and what is to be observed of it."""

    encoder: Encoder
    images: Images
    bank: tuple[Images, Float[Tensor, "m d"]] | None
    codes: Float[Tensor, "n d"]
    learned: dict[Fit[Any], Observed | Exception]
    run: RunSettings
    other_encoders: Sequence[Encoder] = ()
    """Those of the run beside it, where attacks on them are shown to it."""
    groups: dict[Observation, list[Evaluation]] = field(default_factory=dict)
    """The evaluations that share each observation."""
    failed: dict[Observation, Exception] = field(default_factory=dict)
    """Why parts of the observations cannot be made."""

    @cached_property
    def population(self) -> Population:
        """The images with all that is known of them."""
        return Population(
            self.encoder, self.images, self.run, self.codes, self.learned, self._bank(), self.other_encoders
        )

    @cached_property
    def planning(self) -> Population:
        """The population to plan with: what is not learned yet is refused, where it would be learned at once."""
        pending = dict.fromkeys(self.fits, BudgetSpentError("not learned yet"))
        known = {**pending, **self.learned}
        return Population(self.encoder, self.images, self.run, self.codes, known, self._bank(), self.other_encoders)

    def _bank(self) -> Population | None:
        return self.bank and Population(self.encoder, self.bank[0], self.run, self.bank[1])

    @property
    def fits(self) -> tuple[Fit[Any], ...]:
        """What must be learned for the evaluations, each once."""
        return tuple(dict.fromkeys(fit for group in self.groups.values() for each in group for fit in learning(each)))

    def know(self, fit: Fit[Any], learned: Observed | Exception) -> None:
        """Take note of what a fit learned, or why it could not: later populations know it."""
        self.learned[fit] = learned
        self.rest()

    def rest(self) -> None:
        """Let go of what is on the device, until the next turn."""
        for population in ("population", "planning"):
            self.__dict__.pop(population, None)

    def why_not(self, observation: Observation) -> Exception | None:
        """Return why ``observation`` cannot be made, if it is known not to be."""
        return next((self.failed[part] for part in parts(observation) if part in self.failed), None)
