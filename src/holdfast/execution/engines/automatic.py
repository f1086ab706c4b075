"""Shards in this process at first; once they have taken a while, in workers of this machine.

Starting a worker takes seconds, for it imports torch, and what is small is over by then. Each process has one thread:
threads that wake each other for every operation cost more than they save in small networks, and leave cores idle in those of
a billion operations. Networks of which the memory would not hold so many copies stay in this process, with all its threads.
"""

from __future__ import annotations

import multiprocessing
import os
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import chain, islice
from time import monotonic
from typing import Any, final

import torch

from holdfast.core.errors import HoldfastWarning
from holdfast.encoders.loading.reference import first_line
from holdfast.execution.engines.base import Context, Output, Unit
from holdfast.execution.engines.local import Local
from holdfast.execution.engines.processes import Processes, WorkersDiedError, cores

PATIENCE = 1.5
"""Seconds of shards computed here after which workers are started; they take some more, in which this process goes on."""
MOST = 16
"""Workers at most, each with a copy of the encoder and of torch; who has the memory for more asks for them ..."""
EACH = 2 << 30
"""... and no more than this machine has such parts of memory, in bytes."""


def automatic(threaded: Callable[[Any], bool]) -> Automatic | Local:
    """Return the engine of whoever asks for none: one process, where there is one core or this is a worker itself.

    ``threaded`` says of the context of a task whether this process's threads are better at it than workers.
    """
    alone = (
        multiprocessing.parent_process() is not None
    )  # such a process may not start others, and has its share of cores
    count = 1 if alone else min(MOST, cores(), memory() // EACH)
    return Automatic(Processes(count, threads=1), threaded) if count > 1 else Local()


def memory() -> int:
    """Return the bytes of memory of this machine; where it does not say, as many as all its cores want."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return EACH * cores()


@final
@dataclass
class Automatic:
    """Computes here, and from ``PATIENCE`` seconds on in ``workers``; what those cannot be given stays here.

    Args:
        workers: are not started before they are needed.
        threaded: whether tasks in this context are left to this process and all its threads.
    """

    workers: Processes
    threaded: Callable[[Any], bool]
    spent: float = 0.0
    """The seconds that shards took here."""
    ready: object = field(default=None, repr=False)
    """The context that the workers had last, and can read."""
    starts: list[Future[Any]] = field(default_factory=list, repr=False)
    """What waits for each worker that was started."""
    awaited: bool = False
    """Whether they are waited for."""

    def begin(self) -> None:
        """Start the workers now, and wait for them then, for there will be much to do."""
        self.spent, self.starts, self.awaited = PATIENCE, self.workers.begin(), True

    def map(
        self, task: Callable[[Context, Unit], Output], context: Context, shards: Iterable[Unit]
    ) -> Generator[tuple[Unit, Output], None, None]:
        if self.threaded(context):
            return Local().map(task, context, shards)
        return self._spread(task, context, iter(shards))

    def _spread(
        self, task: Callable[[Context, Unit], Output], context: Context, coming: Iterator[Unit]
    ) -> Generator[tuple[Unit, Output], None, None]:
        """Yield what is made of each shard, here until workers are worth it and there is more than one shard left."""
        while True:
            waiting = list(islice(coming, 1 if self.spent < PATIENCE else 2))
            if not waiting:
                return
            if len(waiting) == 1 or not self._reach(context):
                coming = chain(waiting[1:], coming)
                yield from self._here(task, context, waiting[:1])
                continue
            handed_out: list[Unit] = []
            try:
                with closing(self.workers.map(task, context, _noted(chain(waiting, coming), handed_out))) as finished:
                    for shard, done in finished:
                        handed_out[:] = [each for each in handed_out if each is not shard]
                        yield shard, done
            except WorkersDiedError:
                self.spent = float("-inf")  # most likely there is no memory for them
                yield from self._here(task, context, handed_out)

    def _here(
        self, task: Callable[[Context, Unit], Output], context: Context, shards: Iterable[Unit]
    ) -> Generator[tuple[Unit, Output], None, None]:
        for shard in shards:
            since = monotonic()
            with one_thread():
                done = task(context, shard)
            self.spent += monotonic() - since
            yield shard, done

    def _reach(self, context: object) -> bool:
        """Return whether the workers have read the ``context``; if they cannot, nothing more is sent to them.

        While they start, this process goes on; what they read then is there in a moment.
        """
        if self.ready is context:
            return True
        self.starts = self.starts or self.workers.begin()
        if not (self.awaited or _are_over(self.starts)):
            return False
        try:
            for reading in self.workers.send(context):
                reading.result()
        except (
            Exception
        ) as error:  # of all kinds: what cannot be pickled, or is of a module that a worker cannot import
            self.spent = float("-inf")
            warnings.warn(
                f"worker processes cannot read this encoder ({first_line(error)}), so that all is computed in this one: the "
                "numbers are the same, and take longer",
                HoldfastWarning,
                stacklevel=2,
            )
            return False
        self.ready = context
        return True


def _are_over(starts: Iterable[Future[Any]]) -> bool:
    return all(start.done() for start in starts)


def _noted(shards: Iterable[Unit], handed_out: list[Unit]) -> Iterator[Unit]:
    for shard in shards:
        handed_out.append(shard)
        yield shard


@contextmanager
def one_thread() -> Iterator[None]:
    """Have torch compute with one thread inside."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
