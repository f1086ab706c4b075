"""The probe of class groups: a linear head on the classes of the bank, whose answers count as groups of these classes.

    score of a group = max over its classes of the head's scores,   score of no group = max over all other classes

So it answers with a group where the class with the highest score belongs to it. Petrov and Kwiatkowska 2022
(https://arxiv.org/abs/2210.04076, appendix C.11) so judge cats and dogs by a head on all classes of ImageNet.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from holdfast.core.encoder import Codes
from holdfast.core.errors import Conflict, Described, HoldfastError, OutOfRange, UnknownName, Unreadable
from holdfast.core.files import checksum
from holdfast.core.run_settings import Observed
from holdfast.measure.population import LooksAt, Population
from holdfast.probes.base import FittedProbe, Probe, class_names
from holdfast.probes.linear import LinearScores, check_recipe, head, linear_scores

HEADER = ("class", "group")


def content(path: str) -> tuple[dict[str, str], str]:
    """Return the group of each class in a file, and a digest of them.

    Args:
        path: CSV with a line ``class,group`` for each class of the reference set that belongs to a group.

    Raises:
        HoldfastError: The file cannot be read, is empty, or has a line of another form or a class twice.
    """
    try:
        lines = Path(path).expanduser().read_text("utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        raise Unreadable(f"class groups {path!r}", error, fix="name a CSV file with lines class,group") from error
    rows = [tuple(cell.strip() for cell in row) for row in csv.reader(lines) if row]
    rows = rows[1:] if rows[:1] == [HEADER] else rows
    if wrong := next((row for row in rows if len(row) != 2 or not all(row)), None):
        raise OutOfRange(f"columns of {path}", Described(f"{len(wrong)}: {wrong}"), "two, class and group")
    groups = dict[str, str]()
    for name, group in rows:
        if name in groups:
            raise Conflict(path, f"{name!r} in {groups[name]!r} and {group!r}", "each class once")
        groups[name] = group
    if not groups:
        raise Unreadable(f"class groups {path!r}", "it has no lines", fix="write a line class,group for each class")
    return groups, checksum("\n".join(f"{name},{group}" for name, group in sorted(groups.items())).encode())[:8]


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class GroupScores(FittedProbe):
    """Scores of groups of classes; the last column is of no group, and no image has its label."""

    head: LinearScores
    group: Int[Tensor, "k"]
    """Column of each of these classes, shape (k,)."""

    def scores(self, codes: Codes) -> Float[Tensor, "b c"]:
        each = self.head.scores(codes)
        none = each.new_full((len(each), len(self.classes)), -torch.inf)
        return none.scatter_reduce(1, self.group.expand(len(each), -1), each, "amax")


@final
@dataclass(frozen=True)
class ClassGroups(Probe):
    """Linear head on all classes of the reference set, whose answers count as groups of classes."""

    groups: str
    """CSV file with a line `class,group` for each class that belongs to a group; the images' labels are groups."""
    recipe: str = "lbfgs"
    """`lbfgs` (converged), `rvcl` or `moco` (recipes of two papers)."""
    digest: str = ""
    """Hash of the groups, part of every cache key; filled in when the file is read."""
    name = "class-groups"
    example = "groups.csv"
    version = 1
    uses_texts = True
    """Keys hold the names of classes, which the file refers to."""

    def __post_init__(self) -> None:
        check_recipe(self.name, self.recipe, 0)
        digest = content(self.groups)[1]
        if self.digest not in ("", digest):
            raise Conflict(f"digest of {self.groups}", f"{self.digest} for groups of {digest}", "that of the file")
        object.__setattr__(self, "digest", digest)

    def looks_at(self) -> LooksAt:
        return "codes"

    def learn(self, population: Population) -> Observed:
        bank, (groups, _) = population.bank, content(self.groups)
        learned = head(bank, [bank.codes], self.recipe, "linear")
        names = class_names(bank, learned["classes"])
        if unknown := next((name for name in groups if name not in names), None):
            raise UnknownName(f"classes of {bank.images.name}", unknown, names)
        labels = population.labels.unique().cpu()
        shown = dict(zip(class_names(population, labels), labels.tolist(), strict=True))
        if unknown := next((group for group in groups.values() if group not in shown), None):
            raise UnknownName(f"labels of {population.images.name} as groups", unknown, shown)
        taken = sorted({shown[group] for group in groups.values()})
        if len(taken) < 2:
            raise HoldfastError(f"{self.groups} has one group; a probe tells at least two apart")
        columns = [taken.index(shown[groups[name]]) if name in groups else len(taken) for name in names]
        return {
            **learned,
            "group": torch.tensor(columns),
            "groups": torch.tensor([*taken, 1 + int(max(labels.max(), learned["classes"].max()))]),
        }

    def restore(self, population: Population, learned: Observed) -> GroupScores:
        device = population.run.device
        return GroupScores(
            encoder=population.encoder,
            classes=learned["groups"].to(device),
            head=linear_scores(population.encoder, learned, device),
            group=learned["group"].to(device),
        )
