"""The study of agreement: ``python -m studies --budget 10h --workers 2``.

Trains the encoders of the zoo, measures each with and without labels, and writes the page and its figures from what was
found. What is done already in ``--out`` is not done again; at the end of the budget no new encoder is begun, and the page
lists what lacks. Images and published weights are read from the folder that ``HOLDFAST_REFERENCE`` names.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from time import monotonic

import torch

import holdfast as hf
from studies import page
from studies.agreement import collected, kept_apart
from studies.agreement.kept_apart import KEPT
from studies.agreement.members import REFUSED, ZOO, Member
from studies.agreement.photographed import REAL
from studies.agreement.zoo import Zoo
from studies.common import Results

SECONDS = {"s": 1, "m": 60, "h": 3600}


def seconds(text: str) -> float:
    """Return a duration in seconds.

    Example:
        >>> seconds("10h"), seconds("90m"), seconds("5")
        (36000.0, 5400.0, 5.0)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if not found:
        raise argparse.ArgumentTypeError(f"a duration is a number and s, m or h, as in 10h; got {text!r}")
    return float(found[1]) * SECONDS[found[2] or "s"]


def results_of(member: Member, out: Path) -> Results:
    """Return where what is found of a member is kept: of held-out encoders and of real ones, separately."""
    if member in REAL:
        return collected.real_results(out / "real")
    return collected.kept_results(out / "kept") if member in KEPT else collected.results(out / "zoo")


def work(zoo: Zoo, out: Path, member: Member, seed: int) -> Mapping[str, str]:
    """Measure one encoder in a process of its own, and return why it has no result if it has none."""
    torch.set_num_threads(1)
    results = results_of(member, out)
    results.fill(member.case, seed, lambda: collected.found(zoo, member, seed, results.folder / "measured"))
    return results.failed


def planned(zoo: Zoo, members: Sequence[Member], seeds: int, train: bool) -> Iterator[tuple[Member, int]]:
    """Yield what to measure: seed by seed, and what is trained already first."""
    wanted = [member for member in members if member.case not in REFUSED]
    at_hand = [(member, seed) for seed in range(seeds) for member in wanted if zoo.made(member, seed)]
    yield from ((member, seed) for member, seed in at_hand if seed == 0 or not (member.weights or member.degenerate))
    if train:
        yield from ((member, seed) for seed in range(seeds) for member in wanted if not zoo.made(member, seed))


def planned_apart(zoo: Zoo, seeds: int, train: bool) -> Iterator[tuple[Member, int]]:
    """Yield which held-out encoders to measure, seed by seed in their order."""
    for seed in range(seeds):
        yield from ((m, seed) for m in KEPT if (train or zoo.made(m, seed)) and (seed == 0 or not m.degenerate))


def measure(work_list: Sequence[tuple[Zoo, Member, int]], out: Path, budget: float, workers: int) -> None:
    """Measure what is planned and not done yet, until the budget is spent."""
    began, running = monotonic(), set[Future[Mapping[str, str]]]()
    with ProcessPoolExecutor(workers) as pool:
        for zoo, member, seed in work_list:
            if results_of(member, out).path(member.case, seed).exists():
                continue
            if len(running) == workers:
                running = wait(running, return_when=FIRST_COMPLETED).not_done
            if monotonic() - began > budget:
                print("the budget is spent; the same command goes on from here", file=sys.stderr)
                break
            running.add(pool.submit(work, zoo, out, member, seed))


def main(given: Sequence[str] | None = None) -> None:
    """Train and measure as far as the budget goes, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/study"))
    parser.add_argument("--budget", type=seconds, default="10h", help="after which no new encoder is begun")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--trained", type=Path, help="the --out of studies.objectives.training_small, to take its encoders"
    )
    parser.add_argument(
        "--quick", action="store_true", help="train nothing: published, made and already trained encoders"
    )
    parser.add_argument("--kept", action="store_true", help="measure held-out encoders only, and write no page")
    parser.add_argument("--real", action="store_true", help="measure real networks alone, and write no page")
    parser.add_argument(
        "--page", action="store_true", help="write the page from the stored results, and do nothing else"
    )
    asked = parser.parse_args(given)
    if asked.page:
        page.write(page.STORED, Path())
        return
    if "HOLDFAST_REFERENCE" not in os.environ:
        raise hf.HoldfastError("the study needs HOLDFAST_REFERENCE, the folder with images/ and encoders/")
    zoo = Zoo(Path(os.environ["HOLDFAST_REFERENCE"]), asked.out / "encoders", asked.trained)
    apart = replace(zoo, folder=asked.out / "kept" / "encoders", trained=None, first=collected.KEPT_APART)
    train = not asked.quick
    parts = {
        "zoo": [(zoo, *each) for each in planned(zoo, ZOO, asked.seeds, train)],
        "kept": [(apart, *each) for each in planned_apart(apart, min(asked.seeds, kept_apart.SEEDS), train)],
        "real": [(zoo, member, 0) for member in REAL],
    }
    alone = [name for name in ("kept", "real") if getattr(asked, name)]
    measure([each for name in alone or parts for each in parts[name]], asked.out, asked.budget, asked.workers)
    if alone:
        return
    page.write(asked.out, asked.out)


if __name__ == "__main__":
    main()
