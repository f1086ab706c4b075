"""Whose turn it is: of several observations of one encoder, the one that soonest reaches what it is to reach.

Where all of it will be done the order is that of no idle processes: what takes longest first, and what is short in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import final

from holdfast.execution.computing.shards import Waiting
from holdfast.protocol.evaluation import parts
from holdfast.protocol.observation import Observation


@final
@dataclass
class Turns:
    """Chooses the next shard: that of the observation which the least work is left of, so that most of them have answers.

    Or the one that takes longest, if everything is computed in any case.

    The parts of a joint one go on side by side, for it is concluded on the rows that all of them have.

    Args:
        observations: take turns, joint ones as one.
        seconds: how long so many rows of a part are expected to take.
        affordable: whether there are so many seconds left.
        whole: these say nothing before all of their waiting rows are seen: they go on only if there is time for those.
        side_by_side: how many seconds pass while shards take one.
        longest_first: whether the longest shard is next, for everything is computed in any case.
    """

    observations: Sequence[Observation]
    seconds: Callable[[Observation, int], float]
    affordable: Callable[[float], bool]
    whole: Collection[Observation] = ()
    side_by_side: Callable[[], float] = lambda: 1.0
    longest_first: bool = False
    refused: bool = False
    """Whether there was no time for any."""

    def choose(self, waiting: Waiting) -> Observation | None:
        """Return the part whose first shard is next, None if there is no time for any; see ``shards.compute``."""
        left = {observation: self._left(observation, waiting) for observation in self.observations}
        going = [(each, part) for each in sorted(left, key=left.__getitem__) if (part := self._behind(each, waiting))]
        seconds_of = {part: self.seconds(part, len(waiting[part][0])) for _, part in going}
        if self.longest_first:
            going.sort(key=lambda pair: -seconds_of[pair[1]])
        for observation, part in going:
            seconds = seconds_of[part]
            whole = max(seconds, left[observation] * self.side_by_side())
            if self.affordable(whole if observation in self.whole else seconds):
                return part
        self.refused = True
        return None

    def _left(self, observation: Observation, waiting: Waiting) -> float:
        """Return the seconds that all waiting rows of ``observation`` are expected to take."""
        return sum(self.seconds(part, sum(map(len, waiting.get(part, ())))) for part in parts(observation))

    def _behind(self, observation: Observation, waiting: Waiting) -> Observation | None:
        """Return the part of ``observation`` that has most rows before it, if any part may go on."""
        going = [part for part in parts(observation) if part in waiting]
        return max(going, key=lambda part: sum(map(len, waiting[part])), default=None)
