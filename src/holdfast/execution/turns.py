"""Whose turn it is: of several observations of one encoder, the one that soonest reaches what it is to reach."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, final

from jaxtyping import Float
from torch import Tensor

from holdfast.core.encoder import Encoder
from holdfast.core.errors import BudgetSpentError
from holdfast.core.images import Images
from holdfast.core.run_settings import Observed, RunSettings
from holdfast.execution.shards import Waiting
from holdfast.protocol.evaluation import Evaluation, learning, parts
from holdfast.protocol.fits import Fit
from holdfast.protocol.observation import Observation
from holdfast.protocol.population import Population


@final
@dataclass
class Begun:
    """An encoder whose codes and fits are known, and what is to be observed of it."""

    encoder: Encoder
    images: Images
    bank: tuple[Images, Float[Tensor, "m d"]] | None
    codes: Float[Tensor, "n d"]
    learned: dict[Fit[Any], Observed | Exception]
    run: RunSettings
    groups: dict[Observation, list[Evaluation]] = field(default_factory=dict)
    """The evaluations that share each observation."""
    failed: dict[Observation, Exception] = field(default_factory=dict)
    """Why parts of the observations cannot be made."""

    @cached_property
    def population(self) -> Population:
        """The images with all that is known of them."""
        return Population(self.encoder, self.images, self.run, self.codes, self.learned, self._bank())

    def planning(self) -> Population:
        """Return the population to plan with: what is not learned yet is refused, where it would be learned at once."""
        asked = (fit for group in self.groups.values() for evaluation in group for fit in learning(evaluation))
        pending = dict.fromkeys(asked, BudgetSpentError("not learned yet"))
        return Population(self.encoder, self.images, self.run, self.codes, {**pending, **self.learned}, self._bank())

    def _bank(self) -> Population | None:
        return self.bank and Population(self.encoder, self.bank[0], self.run, self.bank[1])

    def rest(self) -> None:
        """Let go of what is on the device, until the next turn."""
        self.__dict__.pop("population", None)

    def why_not(self, observation: Observation) -> Exception | None:
        """Return why ``observation`` cannot be made, if it is known not to be."""
        return next((self.failed[part] for part in parts(observation) if part in self.failed), None)


@final
@dataclass
class Turns:
    """Chooses the next shard: that of the observation which the least work is left of, so that most of them have answers.

    The parts of a joint one go on side by side, for it is concluded on the rows that all of them have.

    Args:
        observations: take turns, joint ones as one.
        seconds: how long so many rows of a part are expected to take.
        affordable: whether there are so many seconds left.
        most: how many shards of each part are computed; all by default.
        whole: these say nothing before all of their waiting rows are seen: they go on only if there is time for those.
    """

    observations: Sequence[Observation]
    seconds: Callable[[Observation, int], float]
    affordable: Callable[[float], bool]
    most: int | None = None
    whole: Collection[Observation] = ()
    begun: Counter[Observation] = field(default_factory=Counter)
    """How many shards of each part were begun."""
    refused: bool = False
    """Whether there was no time for any."""

    def choose(self, waiting: Waiting) -> Observation | None:
        """Return the part whose first shard is next, None if there is no time for any; see ``shards.compute``."""
        left = {observation: self._left(observation, waiting) for observation in self.observations}
        for observation in sorted(left, key=lambda one: left[one]):
            part = self._behind(observation, waiting)
            if part is None:
                continue
            seconds = self.seconds(part, len(waiting[part][0]))
            if self.affordable(left[observation] if observation in self.whole else seconds):
                self.begun[part] += 1
                return part
        self.refused = True
        return None

    def _left(self, observation: Observation, waiting: Waiting) -> float:
        """Return the seconds that all waiting rows of ``observation`` are expected to take."""
        return sum(self.seconds(part, sum(map(len, waiting.get(part, ())))) for part in parts(observation))

    def _behind(self, observation: Observation, waiting: Waiting) -> Observation | None:
        """Return the part of ``observation`` that has most rows before it, if any part may go on."""
        going = [part for part in parts(observation) if part in waiting and self.begun[part] != self.most]
        return max(going, key=lambda part: sum(map(len, waiting[part])), default=None)
