"""How often drift's intervals of the energy distance, and of the share of it that an edit explains, hold the truth.

    python -m benchmarks.statistics.explained --draws 400

The population are the built-in digits; sets are drawn from it with replacement, those after under ``--change``, and as many
images before as drift edits are edited.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from itertools import groupby

import torch
from torch import Tensor

from benchmarks.statistics.false_alarms import UNCHANGED, Changed, two_sets
from holdfast.core.records import Estimate
from holdfast.service.drift_findings import compare
from holdfast.service.edited_codes import explained
from holdfast.transforms.base import Transform

EDITS = ("contrast:0.8", "contrast:0.6", "contrast:0.4", "rotation:5.0", "rotation:10.0", "blur:0.02", "blur:0.04")


def energy(before: Tensor, after: Tensor) -> float:
    """Return the energy distance of two populations."""
    across, here, there = (float(torch.cdist(*pair).mean()) for pair in ((before, after), [before] * 2, [after] * 2))
    return 2 * across - here - there


def counted(changed: Changed, change: str, draws: int, size: int, edited: int) -> dict[str, tuple[float, float, int]]:
    """Return of each number how often its interval held the truth, its mean width, and how often there was one."""
    codes = {name: each.double() for name, each in changed.codes.items()}
    clean, moved = codes[UNCHANGED], codes[change]
    whole = energy(clean, moved)
    truths = {"energy_distance": whole / float(torch.cdist(clean, moved).mean())}
    for family, members in groupby(EDITS, key=family_of):
        truths[family] = max(1 - energy(codes[edit], moved) / whole for edit in members)
    held, defined, widths = Counter[str](), Counter[str](), defaultdict[str, float](float)
    for draw in range(draws):
        places = torch.randint(len(clean), (2, size), generator=torch.Generator().manual_seed(draw))
        sets = two_sets(clean[places[0]], moved[places[1]], draw)
        comparison = compare(sets, 99, draw)
        rows = list(range(edited))
        points = torch.stack([codes[edit][places[0][:edited]] for edit in EDITS], dim=1)
        shares, _ = explained(points, rows, comparison, [Transform.read(edit) for edit in EDITS], shown=True)
        for name, estimate in {"energy_distance": comparison.tests[0], **by_family(shares)}.items():
            if estimate.value == estimate.value:
                defined[name] += 1
                widths[name] += estimate.high - estimate.low
                held[name] += estimate.low <= truths[name] <= estimate.high
    return {name: (held[name] / max(1, n), widths[name] / max(1, n), n) for name, n in defined.items()}


def family_of(edit: str) -> str:
    """Return the name of an edit without its strength."""
    return edit.partition(":")[0]


def by_family(shares: tuple[Estimate, ...]) -> dict[str, Estimate]:
    """Return the share of each family of edits."""
    return {family_of(estimate.conditions["edit"]): estimate for estimate in shares}


def main() -> None:
    """Print how often intervals hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=400)
    parser.add_argument("--changes", default="contrast:0.4,contrast:0.8,noise:0.2,rotation:10.0")
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--edited", type=int, default=16)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    changes = asked.changes.split(",")
    changed = Changed.of("builtin:digits-contrastive", "builtin:digits", [*dict.fromkeys((*changes, *EDITS))])
    for change in changes:
        for name, (share, width, count) in counted(changed, change, asked.draws, asked.size, asked.edited).items():
            print(f"{change} {name}: held {share:.3f} of {count}, mean width {width:.3g}", flush=True)


if __name__ == "__main__":
    main()
