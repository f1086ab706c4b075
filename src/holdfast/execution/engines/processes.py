"""Shards in worker processes of this machine. A worker that dies costs the shard it held, which is computed again."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from itertools import islice
from pathlib import Path
from tempfile import NamedTemporaryFile
from threading import Thread
from time import sleep
from typing import Any, final
from weakref import finalize

from holdfast.core.errors import HoldfastError
from holdfast.execution.engines.base import Context, Output, Unit

RETRIES = 3
"""How often in a row workers may die without a shard finished between."""
LEAK = "1e15"
"""Bytes by which a worker may grow: a network and its batch take more than what loky restarts a worker for."""
BEAT = 0.5
"""Seconds after which a worker looks whether it still has a parent."""
_FILE: list[str] = []
"""In a worker, the file of its last context."""


class WorkersDiedError(HoldfastError):
    """Worker processes die again and again."""


def cores() -> int:
    """Return how many cores this process may use: a container or a batch system may allow fewer than there are."""
    from loky import cpu_count

    return max(1, int(cpu_count()))


@final
@dataclass(frozen=True)
class Processes:
    """Computes in ``count`` processes of so many ``threads``; each sees one of ``gpus``, if there are.

    GPUs are named as in ``CUDA_VISIBLE_DEVICES``. There are no more processes than those. By default processes share this
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
        if self.count < 1:
            raise HoldfastError(f"--workers must be at least 1, got {self.count}")
        finalize(self, _stop, self._pools)

    def map(
        self, task: Callable[[Context, Unit], Output], context: Context, shards: Iterable[Unit]
    ) -> Generator[tuple[Unit, Output], None, None]:
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
                            f"worker processes died {deaths} times in a row, most likely for want of memory; use fewer "
                            "--workers or a smaller --batch-size"
                        ) from error
                    waiting[self._submit(worker, task, path, shard)] = worker, shard
                    continue
                idle.append(worker)
                finished.append((shard, value))
        finally:
            for worker, _ in waiting.values():  # nobody wants it any more
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
        """Return how many processes there are at most."""
        return min(self.count, len(self.gpus) or self.count)

    def begin(self) -> list[Future[Any]]:
        """Start the workers, and return what waits until each of them has loaded torch."""
        return [self._pool(worker).submit(_load_torch) for worker in range(self.side_by_side)]

    def _submit(self, worker: int, task: Callable[[Any, Any], Any], path: str, shard: Any) -> Future[Any]:
        """Send ``shard`` to a worker, which is started if it does not live."""
        from loky.process_executor import BrokenProcessPool

        with suppress(BrokenProcessPool):
            return self._pool(worker).submit(_apply, task, path, shard)
        del self._pools[worker]
        return self._pool(worker).submit(_apply, task, path, shard)

    def _pool(self, worker: int) -> Any:
        """Return the pool of a worker, made if there is none."""
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

        from holdfast.encoders.loading.torchvision_operators import operators_are_declared

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
    """End this worker, in the middle of a shard if need be, when the process that started it is gone, however it went."""

    def watch() -> None:
        while os.getppid() == parent:
            sleep(BEAT)
        with suppress(OSError):
            Path(_FILE[0] if _FILE else "").unlink()  # which nobody else will
        os._exit(1)

    Thread(target=watch, daemon=True).start()


@lru_cache(maxsize=1)
def _loaded(path: str) -> Any:
    """Return the context, in a worker; the file was written by the process that started it."""
    with open(path, "rb") as file:
        if pickle.load(file):  # without them, what its networks are made of cannot be imported
            from holdfast.encoders.loading.torchvision_operators import declare_missing_operators

            declare_missing_operators()
        return pickle.load(file)


def _load_torch() -> None:
    """Load in a worker what takes longest of all that it needs."""
    import_module("torch")


def _read(context: object, _: None) -> None:
    """Do nothing with the context, which a worker has read by then."""


def _apply(task: Callable[[Any, Any], Any], path: str, shard: Any) -> Any:
    _FILE[:] = [path]
    return task(_loaded(path), shard)
