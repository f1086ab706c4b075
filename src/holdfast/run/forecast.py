"""Forecast of the remaining work and its time, and the deadline of a run."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate, starmap
from math import inf, isfinite, log
from statistics import median
from time import monotonic
from typing import Any, final

import torch

from holdfast.attacks.base import GRADIENT
from holdfast.attacks.gradient import GradientAttack
from holdfast.core.balls import Linf
from holdfast.core.encoder import Encoder
from holdfast.core.images import constant_images
from holdfast.core.noise import Noise
from holdfast.core.optimised import operations, optimised
from holdfast.core.run_settings import without_tf32
from holdfast.measure.evaluation import Evaluation, parts
from holdfast.measure.observation import Observation
from holdfast.measure.population import Fit
from holdfast.run.plan import attacked_together, keep_freed_memory

# Work is planned in forwards of the encoder, a gradient step counted as three; from the first shard on, in what it took.

What = Observation | Evaluation | Fit[Any]
"""Fit, observation or conclusion of an encoder."""
Piece = tuple[str, What]
"""An encoder's name, and what is done for it."""
TIMED = 1 << 29
"""Operations of the encoder in the batch that its pace is measured on: as many as the smallest shards have ..."""
MOST_TIMED = 64
"""... and no more images."""
READ = 7e-6
"""Seconds that an embedding takes which was computed elsewhere: to be read, checked and written."""
PATIENCE = 2.0
"""Seconds: what takes longer is timed once."""
TIMES, TOGETHER = 5, 0.2
"""Repetitions and seconds of timing short tasks; the least time counts, because other work only adds."""
SET_UP = 0.5
"""Seconds of an observation of a small network beside its forward passes: graphs are traced, tables read and written."""
COLD = 3.0
"""Slow-down factor of a process's first shard (imports, warm-up)."""
CONCLUSION = 0.2
"""Seconds of a conclusion of which nothing is known: most are short."""
EARLY = 20.0
"""Seconds of work for which what is known of the engine weighs as much as what was seen of it."""
FARTHEST = 5.0
"""Forwards tell of work that they are not the cost of, as a graph of neighbours: no farther off than this is believed."""


@without_tf32()
def seconds_per_forward(encoder: Encoder, attacked: bool = True) -> float:
    """Measure the seconds per forward pass of one image, or per attack step.

    A step counts as three forward passes, and the slower of both is returned. A step includes clipping and projection. An
    encoder that fails gets 0; its preflight check says why. The batch is that of attacks; without attacks, only forward
    passes are timed.
    """
    if encoder.codes_only:
        return READ
    keep_freed_memory()
    weight = next(encoder.module.parameters(), torch.zeros(()))
    fitting = TIMED // max(operations(encoder), 1) if weight.device.type == "cpu" else MOST_TIMED
    count = max(attacked_together(encoder) if attacked else 1, min(MOST_TIMED, fitting))
    encoder = optimised(encoder)
    images, width = constant_images(encoder.domain, count, weight), encoder.domain.high - encoder.domain.low
    noise = Noise.of(0, [str(k) for k in range(count)], str(weight.device))
    ball = Linf(width / 100 if isfinite(width) else 1.0)
    step = GradientAttack(steps=1, start=0.0, keep="last")

    def forward() -> None:
        with torch.no_grad():
            encoder.forward(images).cpu()

    def both() -> None:
        encoder.forward(step(encoder, images, lambda codes: codes.square().sum(1), ball, noise)).cpu()

    timed = [(_seconds(forward), count)]
    if attacked:
        timed.append((_seconds(both), count * (2 + GRADIENT)))
    return max((seconds / forwards for seconds, forwards in timed if seconds is not None), default=0.0)


def _seconds(task: Callable[[], None]) -> float | None:
    """Return the seconds of ``task`` after its first run, which includes the set-up; None if it fails.

    If the first run takes longer than ``PATIENCE``, its time counts, because a second one would cost as much.
    """
    with suppress(Exception):
        least, began = inf, monotonic()
        for time in range(TIMES):
            since = monotonic()
            task()
            seconds = monotonic() - since
            if time == 0 and seconds > PATIENCE:
                return seconds
            if time > 0:
                least = min(least, seconds)
                if monotonic() - began > TOGETHER:
                    break
        return least
    return None


@final
@dataclass
class Forecast:
    """The seconds that pieces of work will take, from what was measured of them or else from their forward passes.

    ``paces``: the seconds of a forward of each encoder, by name: what is known of one encoder tells of another in their
    proportion.
    """

    paces: dict[str, float]
    measured: dict[What, dict[str, list[tuple[int, float]]]] = field(default_factory=dict)
    """Measured pieces: rows and their seconds per encoder."""
    waiting: dict[Piece, int] = field(default_factory=dict)
    """Number of remaining rows per piece."""
    totals: dict[What, int] = field(default_factory=dict)
    """Number of rows of pieces that were begun for an encoder."""
    forward_passes: dict[Piece, int] = field(default_factory=dict)
    """Planned forward passes per row of each piece."""
    planned: dict[Piece, int] = field(default_factory=dict)
    """Planned rows of each piece, until it is begun."""
    concluding: dict[Piece, float] = field(default_factory=dict)
    """The seconds of conclusions that will be drawn and take long, until they are known better."""
    pictures: dict[Piece, Mapping[Piece, int]] = field(default_factory=dict)
    """Rows of observations that the pictures of full results compute again."""
    worked: float = 0.0
    """The seconds that observations took where they were computed ..."""
    passed: float = 0.0
    """... and the seconds that passed meanwhile here; fewer if shards run in parallel."""
    beside: int = 1
    """Number of shards that the engine computes in parallel."""
    _lines: dict[Piece, tuple[float, float] | None] = field(default_factory=dict)
    _corrections: dict[str, float] = field(default_factory=dict)
    # Both are asked for thousands of times between two shards, and follow from what only the methods below change.

    def expect(self, piece: Piece) -> None:
        """Take note that ``piece`` is to be done; how many rows it has is not known yet."""
        self.waiting[piece] = -1

    def plan(self, piece: Piece, forwards: int, rows: int | None = None) -> None:
        """Record the forward passes per row of ``piece``, and its number of rows, if known."""
        self.forward_passes[piece] = forwards
        if rows is not None:
            self.planned[piece] = rows
        self._forget()

    def know_pace(self, name: str, seconds: float) -> None:
        """Take note that a forward of one image takes the encoder called ``name`` so long."""
        self.paces[name] = seconds
        self._forget()

    def _forget(self) -> None:
        self._lines.clear()
        self._corrections.clear()

    def drop(self, piece: Piece) -> None:
        """Take note that nothing more of ``piece`` will be done."""
        self.waiting[piece] = 0

    def tell(self, piece: Piece, rows: int, seconds: float, done: int, total: int) -> None:
        """Record the ``seconds`` of ``rows`` rows of ``piece``, and that ``done`` rows are finished."""
        self.waiting[piece], self.totals[piece[1]] = total - done, total
        if rows:
            self.measured.setdefault(piece[1], {}).setdefault(piece[0], []).append((rows, seconds))
            self._forget()

    def pass_time(self, worked: float, passed: float) -> None:
        """Record that observations took ``worked`` seconds where they were computed, and ``passed`` seconds here."""
        self.worked, self.passed = self.worked + worked, self.passed + passed

    def seconds(self, piece: Piece, rows: int) -> float | None:
        """Return the expected seconds of ``rows`` of ``piece``, if measured for this or another encoder."""
        line = self._measured_line(piece)
        return None if line is None else rows and line[0] + rows * line[1]

    def expected(self, piece: Piece, rows: int) -> float:
        """Return the expected seconds of ``rows`` of ``piece``, from its forward passes if nothing similar was measured."""
        seconds = self.seconds(piece, rows)
        return rows * self.row(piece) if seconds is None else seconds

    def row(self, piece: Piece) -> float:
        """Return the expected seconds per further row of ``piece``."""
        line = self._measured_line(piece)
        return self._by_forwards(piece) * self._corrected(piece[0]) if line is None else line[1]

    def _measured_line(self, piece: Piece) -> tuple[float, float] | None:
        """Return the seconds that ``piece`` takes beside its rows, and those of each row, if anything tells of it.

        What was measured of other encoders tells as well, of those whose pace is most alike: the last, and the least where
        the first shards of a process bore what it sets up once.
        """
        if piece not in self._lines:
            self._lines[piece] = self._line_of(*piece)
        line = self._lines[piece]
        return (0.0, self.concluding[piece]) if line is None and piece in self.concluding else line

    def _line_of(self, name: str, what: What) -> tuple[float, float] | None:
        timed = self.measured.get(what, {})
        if not timed:
            return None
        if isinstance(what, Evaluation):  # conclusions hardly look at the encoder
            known = [timed[name]] if name in timed else timed.values()
            return 0.0, sum(map(_pace, known)) / len(known)
        # The paces of later rows over those of the first, where anything was measured twice.
        ratios = [_pace(each) / first for each in timed.values() if len(each) > 1 and (first := _pace(each[:1]))]
        later, planned = median(ratios) if ratios else None, self._by_forwards((name, what))
        if name in timed and later is not None:
            return 0.0, _line(timed[name], later, planned)[1]
        paces = {other: self.paces.get(other, 0.0) for other in (name, *timed)}
        # The time of this encoder relative to each other; 1 if unknown.
        slower = {o: paces[name] / paces[o] if paces[name] > 0 and paces[o] > 0 else 1.0 for o in timed}
        nearest = min(int(abs(log(times))) for times in slower.values())
        lines = {
            other: (beside, slower[other] * row)
            for other, times in timed.items()
            if int(abs(log(slower[other]))) == nearest
            for beside, row in (_line(times, later, planned / slower[other]),)
        }
        line, least = lines.get(name, [*lines.values()][-1]), min(lines.values(), key=sum)
        return line if sum(line) <= COLD * sum(least) else least

    def _by_forwards(self, piece: Piece) -> float:
        return self.forward_passes.get(piece, 0) * self.paces.get(piece[0], 0.0)

    def _corrected(self, name: str) -> float:
        """Return the measured time of an encoder's pieces, relative to the time of their forward passes.

        The median, weighted by forward passes, because slow pieces with few of them (bounds) tell nothing of others. Until
        much is measured, the plan counts.
        """
        if name in self._corrections:
            return self._corrections[name]
        pairs = [(EARLY, EARLY)] + [
            (rows * by_forwards, rows * _line(timed[name], None, by_forwards)[1])
            for what, timed in self.measured.items()
            if name in timed and (by_forwards := self._by_forwards((name, what)))
            for rows in (sum(rows for rows, _ in timed[name]),)
        ]
        pairs.sort(key=lambda pair: pair[1] / pair[0])
        reached = list(accumulate(planned for planned, _ in pairs))
        planned, took = pairs[bisect_left(reached, reached[-1] / 2)]
        self._corrections[name] = min(max(took / planned, 1 / FARTHEST), FARTHEST)
        return self._corrections[name]

    @property
    def side_by_side(self) -> float:
        """Return the seconds that pass here per second of computing."""
        return (self.passed + EARLY / self.beside) / (self.worked + EARLY)

    @property
    def conclusions(self) -> float:
        """Return the seconds of what is waiting to be concluded, which is done side by side."""
        waiting = (piece for piece, rows in self.waiting.items() if rows and isinstance(piece[1], Evaluation))
        seconds = [self._conclusion(piece) for piece in waiting]
        return max(max(seconds, default=0.0), sum(seconds) / self.beside)

    @property
    def seconds_left(self) -> float:
        """Return the seconds that everything waiting will take, infinite while nothing is known of an observation in it."""
        waiting = [(piece, rows) for piece, rows in self.waiting.items() if rows]
        return self.conclusions + sum(
            (self._left(piece, rows) for piece, rows in waiting if not isinstance(piece[1], Evaluation)), 0.0
        )

    def _conclusion(self, piece: Piece) -> float:
        seconds = self.seconds(piece, 1)
        pictures = self.pictures.get(piece, {})
        return (CONCLUSION if seconds is None else seconds) + sum(starmap(self.expected, pictures.items()))

    def _left(self, piece: Piece, rows: int) -> float:
        if rows < 0:
            rows = self.planned.get(piece, self.totals.get(piece[1], 1))
        if isinstance(piece[1], Fit):
            return self.expected(piece, 1)
        seconds = self.seconds(piece, rows)
        if seconds is None and not self._by_forwards(piece):
            return inf
        seconds = self.expected(piece, rows) + SET_UP if seconds is None else seconds
        return seconds * self.side_by_side


def _line(times: Sequence[tuple[int, float]], later: float | None, planned: float) -> tuple[float, float]:
    """Return the seconds that a first shard took beside its rows, and those of each row.

    With first shards only, the two parts cannot be separated. Up to ``SET_UP`` counts as set-up, which small networks take
    for every shard of any size, but a row takes at least what is ``planned``. A fraction of the whole would make long
    shards seem short.

    Args:
        times: rows and seconds of each shard.
        later: the pace of later rows over that of the first, of the same or another encoder, if known.
        planned: the seconds of a row by its forward passes.
    """
    rows, seconds = times[0]
    if len(times) > 1:
        row = _pace(times)
    elif later is not None:
        row = later * seconds / rows
    else:
        row = max((seconds - SET_UP) / rows, min(seconds / rows, planned))
    return max(0.0, seconds - rows * row), row


def _pace(times: Sequence[tuple[int, float]]) -> float:
    # The first rows bear what is set up once (a traced graph), so later ones speak for the rest.
    counted = times[1:] or times
    return sum(seconds for _, seconds in counted) / sum(rows for rows, _ in counted)


def pictured(evaluation: Evaluation) -> int:
    """Return the rows of its observation that the pictures of a full result compute again."""
    return 0 if type(evaluation).illustrate is Evaluation.illustrate else evaluation.pictured


def pictures_of(
    name: str, observation: Observation, group: Iterable[Evaluation], total: int
) -> dict[Piece, dict[Piece, int]]:
    """Return the rows per part of an observation that the pictures of full results compute again."""
    return {
        (name, each): {(name, part): count for part in parts(observation)}
        for each in group
        if (count := min(total, pictured(each)))
    }


OVERRUN = 1.1
"""Largest expected end of a piece of work that may still begin, as a multiple of the budget."""
SHORT = 10.0
"""Seconds of work that are done in one round, because partial results would not help."""
REPORT, REPORT_SHARE = 5.0, 0.03
"""The seconds that are kept for the report, and the fraction of a budget that they are at most."""


@final
@dataclass
class Deadline:
    """What time there is for work whose conclusions ``forecast`` foresees. Moments are by ``time.monotonic``.

    In the order in which they come: the budget began to run (``began``), the turn of the encoder at work is over
    (``turn_end``), no more work begins (``last_beginning``), all work but conclusions and the report must be over
    (``last_end``), what still computes is abandoned (``last_overrun``).
    """

    forecast: Forecast
    budget: float | None
    """Seconds; None for as long as it takes."""
    began: float
    turn_end: float = inf
    strict: bool = False
    """Whether work must also end by ``turn_end``, not only begin."""

    def begin_turn(self, share: float, strict: bool = False) -> None:
        """Begin a turn of this fraction of the time that is left; in a strict one nothing begins that would outlast it."""
        now = monotonic()
        self.turn_end, self.strict = now + (self.last_beginning - now) * share, strict

    def affords(self, seconds: float) -> bool:
        """Return whether work of this many seconds may begin."""
        if self.budget is None:
            return True
        now = monotonic()
        last_end = self.turn_end if self.strict else self.last_end
        return now < self.last_beginning_of_turn and now + seconds <= last_end

    @property
    def passed(self) -> bool:
        """Whether the time is over, so that no more work begins."""
        return monotonic() >= self.last_beginning

    @property
    def last_beginning_of_turn(self) -> float:
        """The moment after which no more work begins in this turn."""
        return min(self.last_beginning, self.turn_end)

    @property
    def last_beginning(self) -> float:
        """The moment after which no more work begins.

        Conclusions, as far as they are known, end no more than a tenth of the budget later.
        """
        if self.budget is None:
            return inf
        return min(self.began + self.budget, self.last_end)

    @property
    def last_end(self) -> float:
        """The moment when all work but conclusions and the report must be over."""
        budget = inf if self.budget is None else self.budget
        after = self.forecast.conclusions + min(REPORT, REPORT_SHARE * budget)
        return self.began + max(OVERRUN * budget - after, budget / 2)

    @property
    def last_overrun(self) -> float:
        """The moment after which a run is too late in any case."""
        return self.began + OVERRUN * (self.budget or inf)

    @property
    def seconds_of_turn(self) -> float:
        """The seconds left of this turn: without a budget as many as have passed, for rounds double."""
        if self.budget is None:
            return max(SHORT, monotonic() - self.began)
        return max(0.0, self.last_beginning_of_turn - monotonic())

    @property
    def seconds_left(self) -> float:
        """Seconds until everything is done or the budget ends; infinite while unknown."""
        seconds = self.forecast.seconds_left
        return seconds if self.budget is None else min(seconds, max(0.0, self.began + self.budget - monotonic()))
