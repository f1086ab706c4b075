"""Several processes that run one command over one folder, started by torchrun or srun: no server, no messages.

Each takes the units of work whose hash is its own, then units that no other process has begun. A process claims a unit by a
lease: a file that only one process can create and whose time the owner renews while it computes. If a lease is no longer
renewed, its process has died and another one takes it over. A process without work computes again what a slow one holds
for much longer than units take here. Leases only save work: two processes compute the same values, and the store accepts
both.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from shutil import rmtree
from threading import Event, Thread
from time import monotonic, sleep
from typing import final
from zlib import crc32

from holdfast.core.errors import HoldfastError
from holdfast.run.engines.base import Context, Engine, Outcomes, Output, Task, Unit

RANKS = "ranks"
"""The cluster made of the processes that torchrun or srun started."""
LEASES = "leases"
"""The folder of a run in which ranks meet."""
BEAT = 2.0
"""Seconds after which a lease is renewed."""
STALE = 20.0
"""Seconds without renewal after which a lease is taken over: several beats and what a shared folder may lag behind."""
LATE = 2.0
"""A unit is late if another rank holds it for this many times the longest that a unit took here ..."""
SOONEST = 5.0
"""... and for this many seconds: a shorter wait costs less than computing it again."""
AGAIN = ".again"
"""Ends the name of the lease of a late unit, so that only one rank computes it again."""
PAUSE = 0.05
LONGEST_PAUSE = 1.0
"""Seconds between two looks at what others do: few at first, then more."""


def process_rank(environment: Mapping[str, str] = os.environ) -> tuple[int, int, int]:
    """Return which process this is, of how many, and which on its machine, as torchrun or srun say.

    Example:
        >>> process_rank({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"})
        (3, 8, 1)
        >>> process_rank({"SLURM_PROCID": "5", "SLURM_NTASKS": "6", "SLURM_LOCALID": "0"})
        (5, 6, 0)
        >>> process_rank({})
        (0, 1, 0)
    """
    for rank, count, local in (("RANK", "WORLD_SIZE", "LOCAL_RANK"), ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID")):
        with suppress(KeyError, ValueError):
            numbers = int(environment[rank]), int(environment[count])
            return *numbers, int(environment.get(local, "0"))
    return 0, 1, 0


@final
@dataclass(frozen=True)
class Ranks:
    """Process ``rank`` of ``count``, which meet in ``folder``. Rank 0 alone concludes and reports."""

    rank: int
    count: int
    folder: Path
    _watched: dict[Path, tuple[float, float, tuple[int, int]]] = field(default_factory=dict, init=False, compare=False)
    """When each lease of others was first seen, when with the renewal it still has, and its file and renewal."""

    def map(
        self, task: Task[Context, Unit, Output], context: Context, shards: Iterable[Unit]
    ) -> Outcomes[Unit, Output]:
        """Compute here what every rank must know for itself."""
        return ((shard, task(context, shard)) for shard in shards)

    def share(
        self,
        task: Task[Context, Unit, Output],
        context: Context,
        units: Mapping[str, Unit],
        is_kept: Callable[[Unit], bool],
        begin: Callable[[Unit], bool] = lambda _: True,
        patient: Callable[[], bool] = lambda: True,
    ) -> Outcomes[Unit, Output | None]:
        """Yield each of the named ``units`` with what ``task`` made of it here, or with None once others did.

        ``is_kept`` says whether a unit's outcome is in the folder, ``begin`` whether there is time for another unit, and
        ``patient`` whether there is time for anything. What is computed here must be put into the folder before
        the next is asked for. A unit that failed here is left to others: each rank tries it once, so each knows why.

        Raises:
            HoldfastError: the folder cannot be written.
        """
        # This rank's own units, then those of others, which begin at the other end.
        mine = {name: unit for name, unit in units.items() if crc32(name.encode()) % self.count == self.rank}
        waiting, pause = mine | {name: units[name] for name in reversed(list(units)) if name not in mine}, PAUSE
        longest, idle = 0.0, False
        while waiting:
            before = len(waiting)
            for name in list(waiting):
                if not patient():
                    return
                late = idle and longest > 0 and self._held(name) > max(SOONEST, LATE * longest)
                if (lease := self._claim(f"{name}{AGAIN}" if late else name)) is not None:
                    with _renewed(lease):
                        shard, began = waiting.pop(name), monotonic()
                        if is_kept(shard):
                            yield shard, None
                        elif begin(shard):
                            with suppress(OSError):  # so that it is known for how long others hold what they hold now
                                for path in self.folder.iterdir():
                                    self._abandoned(path)
                            outcome = task(context, shard)
                            longest = max(longest, monotonic() - began)
                            yield shard, outcome
                    if late:
                        break  # others may have ended meanwhile
            idle = len(waiting) == before
            pause = PAUSE if len(waiting) < before else min(2 * pause, LONGEST_PAUSE)
            if waiting:
                sleep(pause)

    def end(self) -> None:
        """Remove the leases: rank 0 has everything it needs, and nothing uses the work of others any more."""
        if self.rank == 0:
            rmtree(self.folder, ignore_errors=True)
        with suppress(OSError):
            self.folder.rmdir()

    def _claim(self, name: str) -> Path | None:
        """Return the lease of a unit, or None while another process holds it."""
        path = self.folder / name
        if self._abandoned(path):
            aside = path.with_name(f".{name}.{token_hex(4)}")
            with suppress(FileNotFoundError):  # someone else was quicker
                path.rename(aside)
                aside.unlink()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with path.open("x") as file:
                file.write(f"rank {self.rank} on {platform.node()}, process {os.getpid()}\n")
        except (FileExistsError, FileNotFoundError):  # the folder goes when rank 0 ends
            return None
        except OSError as error:
            raise HoldfastError(
                f"cannot write {path}: {error.strerror or error}; all ranks write into one folder, name it as --out"
            ) from error
        return path

    def _abandoned(self, path: Path) -> bool:
        """Return whether a lease was not renewed for a time that only a dead owner explains.

        This process's clock tells how long its time has not changed, so machines need not agree about the time.
        """
        try:
            with path.open() as file:  # opened, since a network drive remembers what it said of files that are not
                status = os.fstat(file.fileno())
        except OSError:
            self._watched.pop(path, None)
            return False
        now, renewal = monotonic(), (status.st_ino, status.st_mtime_ns)
        held, since, known = self._watched.get(path, (now, now, renewal))
        same = known[0] == renewal[0]
        self._watched[path] = (held if same else now), (since if known == renewal else now), renewal
        return known == renewal and now - since > STALE

    def _held(self, name: str) -> float:
        """Return for how many seconds another rank has been seen to hold a unit."""
        held, *_ = self._watched.get(self.folder / name, (monotonic(),))
        return monotonic() - held


@contextmanager
def _renewed(lease: Path) -> Iterator[None]:
    """Renew ``lease`` until the end, then give it back."""
    over = Event()

    def renew() -> None:
        while not over.wait(BEAT):
            with suppress(OSError):
                os.utime(lease)

    thread = Thread(target=renew, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        with suppress(OSError):
            lease.unlink()


def is_main(engine: Engine) -> bool:
    """Return whether this process concludes and reports; false for ranks after the first."""
    return not isinstance(engine, Ranks) or engine.rank == 0
