"""Whose turn it is: of several observations of one encoder, the one that has had the least time so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, final

from jaxtyping import Float
from torch import Tensor

from holdfast.core.encoder import Encoder
from holdfast.core.images import Images
from holdfast.core.run import Observed, Run
from holdfast.execution.shards import Waiting
from holdfast.protocol.evaluation import Evaluation, parts
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
    run: Run
    groups: dict[Observation, list[Evaluation]] = field(default_factory=dict)
    """The evaluations that share each observation."""
    failed: dict[Observation, Exception] = field(default_factory=dict)
    """Why parts of the observations cannot be made."""
    rows: Counter[Observation] = field(default_factory=Counter)
    """How many rows of each part were begun."""

    @cached_property
    def population(self) -> Population:
        """The images with all that is known of them."""
        bank = self.bank and Population(self.encoder, self.bank[0], self.run, self.bank[1])
        return Population(self.encoder, self.images, self.run, self.codes, self.learned, bank)

    def rest(self) -> None:
        """Let go of what is on the device, until the next turn."""
        self.__dict__.pop("population", None)

    def why_not(self, observation: Observation) -> Exception | None:
        """Return why ``observation`` cannot be made, if it is known not to be."""
        return next((self.failed[part] for part in parts(observation) if part in self.failed), None)


@final
@dataclass
class Turns:
    """Chooses the next shard so that dear observations do not starve cheap ones, nor cheap ones the dear.

    What several observations share counts for each. The parts of a joint one go on side by side, for it is concluded on
    the rows that all of them have.

    Args:
        observations: take turns, joint ones as one.
        seconds: how long so many rows of a part will take, None if nobody knows yet.
        affordable: whether there are so many seconds left.
        most: how many shards of each part are computed; all by default.
    """

    observations: Sequence[Observation]
    seconds: Callable[[Observation, int], float | None]
    affordable: Callable[[float], bool]
    most: int | None = None
    rows: Counter[Observation] = field(default_factory=Counter)
    """How many rows of each part were begun."""
    begun: Counter[Observation] = field(default_factory=Counter)
    """How many shards of each part were begun."""
    refused: bool = False
    """Whether there was no time for any."""

    def choose(self, waiting: Waiting) -> Observation | None:
        """Return the part whose first shard is next, None if there is no time for any; see ``shards.compute``."""
        ranked = sorted(self.observations, key=self._had)
        for part in filter(None, (self._behind(observation, waiting) for observation in ranked)):
            count = len(waiting[part][0])
            if self.affordable(self.seconds(part, count) or 0.0):
                self.rows[part] += count
                self.begun[part] += 1
                return part
        self.refused = True
        return None

    def _had(self, observation: Observation) -> tuple[float, int]:
        """Return the seconds that ``observation`` has had and, for as long as these are not known, its rows."""
        own = [(self.seconds(part, self.rows[part]) or 0.0, self.rows[part]) for part in parts(observation)]
        return sum(seconds for seconds, _ in own), sum(rows for _, rows in own)

    def _behind(self, observation: Observation, waiting: Waiting) -> Observation | None:
        """Return the part of ``observation`` that has most rows before it, if any part may go on."""
        going = [part for part in parts(observation) if part in waiting and self.begun[part] != self.most]
        return max(going, key=lambda part: sum(map(len, waiting[part])), default=None)
