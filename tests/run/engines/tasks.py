"""What worker processes are given to do; in a module without torch, so that workers start at once."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any


def power(given: int, shard: int) -> int:
    return given**shard


def dying_once(given: Path, shard: int) -> int:
    """Kill the worker that first works on each shard."""
    mark = given / str(shard)
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return shard * shard


def dying(given: int, shard: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return shard


def dying_elsewhere(given: int, shard: int) -> int:
    """Kill every process but that of number ``given``."""
    if os.getpid() != given:
        os.kill(os.getpid(), signal.SIGKILL)
    return shard * shard


def process(given: object, shard: int) -> int:
    return os.getpid()


def name_of(given: Any, shard: int) -> str:
    return str(given.name)


def visible(given: float, shard: int) -> str:
    time.sleep(given)
    return os.environ["CUDA_VISIBLE_DEVICES"]


def logged(given: Path, shard: int) -> int:
    with given.open("a") as file:
        file.write(f"{shard} {os.getpid()}\n")
    time.sleep(0.05)
    return shard * shard


def stuck_then_lost(folder: Path, shard: int) -> int:
    """Square a number; the first worker that gets number 5 stands still, and the second dies."""
    for name in ("stuck", "lost") if shard == 5 else ():
        try:
            (folder / name).touch(exist_ok=False)
        except FileExistsError:
            continue
        if name == "lost":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(120)
        raise AssertionError("no other worker computed this shard")
    return shard * shard
