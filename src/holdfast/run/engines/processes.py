"""Shards in worker processes of this machine, from the start or once shards have taken a while.

If a worker dies, its shard is computed again.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from itertools import chain, islice
from pathlib import Path
from tempfile import NamedTemporaryFile
from threading import Thread
from time import monotonic, sleep
from typing import Any, final
from weakref import finalize

from holdfast.core.errors import HoldfastError, check_whole, first_line, warn
from holdfast.run.engines.base import Context, Local, Outcomes, Output, Task, Unit

RETRIES = 3
"""Number of workers that may die in a row without a finished shard in between."""
LEAK = "1e15"
"""Bytes by which a worker may grow: a network and its batch take more than what loky restarts a worker for."""
BEAT = 0.5
"""Seconds after which a worker looks whether it still has a parent."""
_FILE: list[str] = []
"""In a worker, the file of its last context."""


class WorkersDiedError(HoldfastError):
    """Worker processes die again and again."""


def cores() -> int:
    """Return the number of cores this process may use; containers and batch systems may allow fewer than there are."""
    from loky import cpu_count

    return max(1, int(cpu_count()))


@final
@dataclass(frozen=True)
class Processes:
    """Engine with ``count`` processes of ``threads`` threads each; each process sees one of ``gpus``, if any.

    GPUs are named as in ``CUDA_VISIBLE_DEVICES`` and limit the number of processes. By default processes share this
    machine's cores evenly.
    """

    count: int
    gpus: Sequence[str] = ()
    threads: int | None = None
    _pools: dict[int, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """One pool for each process: when one dies, no other is disturbed."""
    _sent: list[tuple[Any, Path]] = field(default_factory=list, init=False, repr=False, compare=False)
    """The last context, and the file in which workers find it."""

    def __post_init__(self) -> None:
        check_whole(self.count, "--workers", 1)
        finalize(self, _stop, self._pools)

    def map(
        self, task: Task[Context, Unit, Output], context: Context, shards: Iterable[Unit]
    ) -> Outcomes[Unit, Output]:
        from loky import FIRST_COMPLETED, wait
        from loky.process_executor import BrokenProcessPool

        path, coming, deaths = str(self._file(context)), iter(shards), 0
        waiting: dict[Future[Output], tuple[int, Unit]] = {}
        idle, finished = list(range(self.side_by_side)), list[tuple[Unit, Output]]()
        try:
            while True:
                for shard in islice(coming, len(idle)):
                    worker = idle.pop(0)
                    waiting[self._submit(worker, task, path, shard)] = worker, shard
                yield from finished  # while the workers go on
                finished.clear()
                if not waiting:
                    return
                done = wait(list(waiting), return_when=FIRST_COMPLETED).done.pop()
                worker, shard = waiting.pop(done)
                try:
                    value, deaths = done.result(), 0
                except BrokenProcessPool as error:
                    deaths += 1
                    if deaths > RETRIES:
                        raise WorkersDiedError(
                            f"worker processes died {deaths} times in a row, most likely because memory ran out; use fewer "
                            "--workers or a smaller --batch-size"
                        ) from error
                    waiting[self._submit(worker, task, path, shard)] = worker, shard
                    continue
                idle.append(worker)
                finished.append((shard, value))
        finally:
            for worker, _ in waiting.values():  # not needed any more
                _stop({worker: self._pools.pop(worker)})

    def send(self, context: object) -> list[Future[None]]:
        """Return for each worker what waits until it has read the ``context``.

        Raises:
            Exception: the context cannot be pickled; the errors of what is in it are of all kinds.
        """
        path = str(self._file(context))
        return [self._submit(worker, _read, path, None) for worker in range(self.side_by_side)]

    @property
    def side_by_side(self) -> int:
        """Return the largest number of processes."""
        return min(self.count, len(self.gpus) or self.count)

    def begin(self) -> list[Future[Any]]:
        """Start the workers, and return what waits until each of them has loaded torch."""
        return [self._pool(worker).submit(import_module, "torch") for worker in range(self.side_by_side)]

    def _submit(self, worker: int, task: Callable[[Any, Any], Any], path: str, shard: Any) -> Future[Any]:
        """Send ``shard`` to a worker, started if it does not run."""
        from loky.process_executor import BrokenProcessPool

        with suppress(BrokenProcessPool):
            return self._pool(worker).submit(_apply, task, path, shard)
        del self._pools[worker]
        return self._pool(worker).submit(_apply, task, path, shard)

    def _pool(self, worker: int) -> Any:
        from loky import ProcessPoolExecutor

        if worker not in self._pools:
            environment = {
                "OMP_NUM_THREADS": str(self.threads or max(1, cores() // self.side_by_side)),
                "LOKY_MAX_MEMORY_LEAK_SIZE": LEAK,
            }
            if self.gpus:
                environment["CUDA_VISIBLE_DEVICES"] = self.gpus[worker]
            self._pools[worker] = ProcessPoolExecutor(
                1, env=environment, initializer=_end_with, initargs=(os.getpid(),)
            )
        return self._pools[worker]

    def _file(self, context: object) -> Path:
        """Return the file that holds the ``context``: written once, also if the next call has the same."""
        import cloudpickle

        from holdfast.encoders.loading.inputs import operators_are_declared

        if not self._sent or self._sent[0][0] is not context:
            with NamedTemporaryFile(prefix="holdfast-", suffix=".context", delete=False) as file:
                try:
                    cloudpickle.dump(operators_are_declared(), file)
                    cloudpickle.dump(context, file)
                except BaseException:  # also Ctrl-C in the middle of a large network
                    _delete(Path(file.name))
                    raise
            if self._sent:
                _delete(self._sent[0][1])
            self._sent[:] = [(context, Path(file.name))]
            finalize(self, _delete, Path(file.name))
        return self._sent[0][1]


def _stop(pools: dict[int, Any]) -> None:
    for pool in pools.values():
        pool.shutdown(wait=False, kill_workers=True)


def _delete(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


def _end_with(parent: int) -> None:
    """End this worker, even within a shard, when its parent process is gone."""

    def watch() -> None:
        while os.getppid() == parent:
            sleep(BEAT)
        with suppress(OSError):
            Path(_FILE[0] if _FILE else "").unlink()  # no other process will
        os._exit(1)

    Thread(target=watch, daemon=True).start()


@lru_cache(maxsize=1)
def _loaded(path: str) -> Any:
    with open(path, "rb") as file:
        if pickle.load(file):  # without them, what its networks are made of cannot be imported
            from holdfast.encoders.loading.inputs import declare_missing_operators

            declare_missing_operators()
        return pickle.load(file)


def _read(context: object, _: None) -> None:
    """Do nothing: a worker that runs this has read the context."""


def _apply(task: Callable[[Any, Any], Any], path: str, shard: Any) -> Any:
    _FILE[:] = [path]
    return task(_loaded(path), shard)


# Starting a worker takes seconds, because it imports torch; small work is over by then. Each process has one thread:
# threads that wake each other for every operation cost more than they save in small networks, and leave cores idle in
# those of a billion operations.

PATIENCE = 1.5
"""Seconds of shards computed here after which workers are started; they take some more, in which this process goes on."""
MOST = 16
"""Workers at most, each with a copy of the encoder and of torch; who has the memory for more asks for them ..."""
EACH = 2 << 30
"""... and no more than this machine has such parts of memory, in bytes."""


def automatic(threaded: Callable[[Any], bool]) -> Automatic | Local:
    """Return the default engine: one process if there is one core or this is a worker itself.

    ``threaded`` tells from a task's context whether threads of this process are faster than workers.
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
    """Tasks that wait for each started worker."""
    awaited: bool = False
    """Whether to wait for them."""

    def begin(self) -> None:
        """Start the workers now, and wait for them then, because there will be much to do."""
        self.spent, self.starts, self.awaited = PATIENCE, self.workers.begin(), True

    def map(
        self, task: Task[Context, Unit, Output], context: Context, shards: Iterable[Unit]
    ) -> Outcomes[Unit, Output]:
        if self.threaded(context):
            return Local().map(task, context, shards)
        return self._spread(task, context, iter(shards))

    def _spread(
        self, task: Task[Context, Unit, Output], context: Context, coming: Iterator[Unit]
    ) -> Outcomes[Unit, Output]:
        """Yield the result of each shard; this process computes them until workers pay off."""
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
        self, task: Task[Context, Unit, Output], context: Context, shards: Iterable[Unit]
    ) -> Outcomes[Unit, Output]:
        for shard in shards:
            since = monotonic()
            with torch_threads(1):
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
            warn(
                f"worker processes cannot read this encoder ({first_line(error)}), so that all is computed in this one: the "
                "numbers are the same, and take longer"
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
def torch_threads(count: int) -> Iterator[None]:
    """Have torch compute with ``count`` threads inside."""
    import torch  # not above: a worker that starts imports this module, and torch while it reads its context

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
