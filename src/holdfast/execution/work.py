"""How much work there is: the operations of an encoder, counted, and the seconds left, forecast from those measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from statistics import median
from typing import Any, final

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from holdfast.core.encoder import Encoder
from holdfast.protocol.evaluation import Evaluation
from holdfast.protocol.fits import Fit
from holdfast.protocol.observation import Observation

What = Observation | Evaluation | Fit[Any]
"""What is learned or observed of an encoder or concluded about it."""
Piece = tuple[str, What]
"""An encoder's name, and what is done for it."""


def operations(encoder: Encoder) -> int:
    """Return the floating-point operations of one image's code, those of products and convolutions alone.

    Counted rather than timed, so that the same encoder always has the same number. What torch does not see counts as 0,
    and so does an encoder that fails: its examination says why.

    Example:
        >>> from torch import nn
        >>> from holdfast.core.encoder import Domain
        >>> operations(Encoder(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), "linear", Domain((1, 8, 8))))
        1280
    """
    weight = next(encoder.module.parameters(), torch.zeros(()))
    image = torch.full((1, *encoder.domain.shape), encoder.domain.low, device=weight.device, dtype=weight.dtype)
    counted = _Counting()
    with torch.no_grad(), counted, suppress(Exception):
        encoder.module(image)
    return counted.operations


class _Counting(TorchDispatchMode):
    """Counts while it is entered; torch's own counter decomposes what it does not know, which takes seconds."""

    operations = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler, more than a second for every command

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if known := flop_registry.get(func.overloadpacket):
            self.operations += known(*args, **(kwargs or {}), out_val=out)
        return out


@final
@dataclass
class Forecast:
    """The seconds that pieces of work will take, from the pace of what was measured of them.

    ``operations`` of each encoder, by name: what is known of one encoder tells of another in their proportion.
    """

    operations: Mapping[str, int]
    measured: dict[What, dict[str, list[tuple[int, float]]]] = field(default_factory=dict)
    """Of what was measured: for each encoder, rows and their seconds."""
    waiting: dict[Piece, int] = field(default_factory=dict)
    """How many rows of each piece are to be done."""
    totals: dict[What, int] = field(default_factory=dict)
    """How many rows there are of what was begun for some encoder."""
    worked: float = 0.0
    """The seconds that observations took where they were computed ..."""
    passed: float = 0.0
    """... while so many passed here: fewer where many are computed side by side."""

    def expect(self, piece: Piece) -> None:
        """Take note that ``piece`` is to be done; how many rows it has is not known yet."""
        self.waiting[piece] = -1

    def drop(self, piece: Piece) -> None:
        """Take note that nothing more of ``piece`` will be done."""
        self.waiting[piece] = 0

    def tell(self, piece: Piece, rows: int, seconds: float, done: int, total: int) -> None:
        """Take note that ``rows`` of ``piece`` took so long, and that so many are now ``done``."""
        self.waiting[piece], self.totals[piece[1]] = total - done, total
        if rows:
            self.measured.setdefault(piece[1], {}).setdefault(piece[0], []).append((rows, seconds))

    def pass_time(self, worked: float, passed: float) -> None:
        """Take note that observations took ``worked`` seconds where they were computed, while so many passed here."""
        self.worked, self.passed = self.worked + worked, self.passed + passed

    def seconds(self, piece: Piece, rows: int) -> float | None:
        """Return how long ``rows`` of ``piece`` will take, if that or the same of another encoder was measured."""
        name, what = piece
        timed = self.measured.get(what, {})
        if name in timed:
            return rows * _pace(timed[name]) * (self._settled(what) if len(timed[name]) == 1 else 1.0)
        if isinstance(what, Evaluation):  # conclusions hardly look at the encoder
            return rows * sum(map(_pace, timed.values())) / len(timed) if timed else None
        others = [
            _pace(times) * max(self.operations[name], 1) / max(self.operations[other], 1)
            for other, times in timed.items()
        ]
        return rows * sum(others) / len(others) if others else None

    def _settled(self, what: What) -> float:
        """Return the pace of later rows over that of the first, by the same of other encoders or else by everything."""
        for known in (
            self.measured.get(what, {}).values(),
            (one for each in self.measured.values() for one in each.values()),
        ):
            ratios = [_pace(times) / first for times in known if len(times) > 1 and (first := _pace(times[:1]))]
            if ratios:
                return median(ratios)
        return 1.0

    @property
    def conclusions(self) -> float:
        """Return the seconds of what is waiting to be concluded, as far as they are known."""
        waiting = [(piece, rows) for piece, rows in self.waiting.items() if rows and isinstance(piece[1], Evaluation)]
        return sum((self._left(piece, rows) for piece, rows in waiting), 0.0)

    @property
    def left(self) -> float:
        """Return the seconds that everything waiting will take, infinite while an observation in it is unknown."""
        return sum((self._left(piece, rows) for piece, rows in self.waiting.items() if rows), 0.0)

    def _left(self, piece: Piece, rows: int) -> float:
        found = self.seconds(piece, self.totals.get(piece[1], 1) if rows < 0 else rows)
        # Nothing is known of fits and conclusions before their end; most are short beside what is observed.
        if not isinstance(piece[1], Observation):
            return found or 0.0
        return inf if found is None else found * (self.passed / self.worked if self.worked else 1.0)


def _pace(times: Sequence[tuple[int, float]]) -> float:
    """Return the seconds of a row."""
    # The first rows bear what is set up once (a traced graph), so later ones speak for the rest.
    counted = times[1:] or times
    return sum(seconds for _, seconds in counted) / sum(rows for rows, _ in counted)
