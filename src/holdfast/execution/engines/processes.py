"""Shards in worker processes of this machine. A worker that dies costs the shards it held, which are computed again."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, final
from weakref import finalize

from holdfast.core.errors import HoldfastError
from holdfast.execution.engines.base import Done, Given, Shard

RETRIES = 3
"""How often in a row workers may die without a shard finished between."""


@final
@dataclass(frozen=True)
class Processes:
    """Computes in ``count`` processes, which share this machine's cores evenly."""

    count: int
    _sent: list[tuple[Any, Path]] = field(default_factory=list, init=False, repr=False, compare=False)
    """What was given last, and the file in which workers find it."""

    def __post_init__(self) -> None:
        if self.count < 1:
            raise HoldfastError(f"--workers must be at least 1, got {self.count}")

    def map(
        self, task: Callable[[Given, Shard], Done], given: Given, shards: Iterable[Shard]
    ) -> Generator[tuple[Shard, Done], None, None]:
        from loky import FIRST_COMPLETED, get_reusable_executor, wait
        from loky.process_executor import BrokenProcessPool

        coming, taken, deaths = iter(shards), list[Shard](), 0
        threads = str(max(1, (os.cpu_count() or 1) // self.count))
        while True:
            pool = get_reusable_executor(self.count, env={"OMP_NUM_THREADS": threads})
            path = str(self._file(given))
            waiting = {pool.submit(_apply, task, path, shard): shard for shard in taken}  # those of workers that died
            try:
                while True:
                    # One more than there are workers, so that none waits for the next.
                    for shard in islice(coming, self.count + 1 - len(waiting)):
                        taken.append(shard)
                        waiting[pool.submit(_apply, task, path, shard)] = shard
                    if not waiting:
                        return
                    done = wait(list(waiting), return_when=FIRST_COMPLETED).done.pop()
                    value, deaths, shard = done.result(), 0, waiting.pop(done)
                    taken.remove(shard)
                    yield shard, value
            except BrokenProcessPool as error:
                waiting, deaths = {}, deaths + 1
                if deaths > RETRIES:
                    raise HoldfastError(
                        f"worker processes died {deaths} times in a row, most likely for want of memory; use fewer "
                        "--workers or a smaller --batch-size"
                    ) from error
            finally:
                if waiting:  # nobody wants it any more
                    pool.shutdown(wait=False, kill_workers=True)

    def _file(self, given: object) -> Path:
        """Return the file that holds what is ``given``: written once, also if the next call gives the same."""
        import cloudpickle

        if not self._sent or self._sent[0][0] is not given:
            with NamedTemporaryFile(prefix="holdfast-", suffix=".given", delete=False) as file:
                cloudpickle.dump(given, file)
            if self._sent:
                _delete(self._sent[0][1])
            self._sent[:] = [(given, Path(file.name))]
            finalize(self, _delete, Path(file.name))
        return self._sent[0][1]


def _delete(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


@lru_cache(maxsize=1)
def _loaded(path: str) -> Any:
    """Return what is given, in a worker; the file was written by the process that started it."""
    with open(path, "rb") as file:
        return pickle.load(file)


def _apply(task: Callable[[Any, Any], Any], path: str, shard: Any) -> Any:
    return task(_loaded(path), shard)
