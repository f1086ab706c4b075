"""Clean embeddings on the unit sphere: neighbours, sums over all pairs, tags of images, warnings."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from holdfast.core.divergences import Cosine
from holdfast.core.errors import Described, HoldfastError, OutOfRange, Unreadable
from holdfast.core.points.neighbours import nearest_neighbours
from holdfast.core.points.points import Points, points
from holdfast.core.records import Estimate, Warned
from holdfast.core.run_settings import Observed
from holdfast.core.settings import TextSettings
from holdfast.core.statistics.groups import Groups, numbered
from holdfast.core.statistics.intervals import bounded_interval
from holdfast.measure.observation import estimate_of
from holdfast.measure.population import Fit, LooksAt, Population

# Sums over all pairs of codes, in blocks: one matrix product for each pair of blocks, O(n) memory beside the codes.
#
# ``potential(i) = mean over j != i of exp(-2 ||f_i - f_j||^2)``, whose mean is the Gaussian potential of Wang and
# Isola 2020, https://arxiv.org/abs/2005.10242. With ``a = 2 (f - centre)`` it is ``exp(a_i . a_j - |a_i|^2 / 2 -
# |a_j|^2 / 2)``; centred, close codes keep their digits in float32.

ROWS, COLUMNS = 1024, 2048
"""A tile of products: 8 MB in float32, which stays near the processor."""


def potentials(codes: Points) -> Float[Tensor, "n"]:
    """Return the Gaussian potential of each code: the mean over the others of ``exp(-2 ||f_i - f_j||^2)``.

    Example:
        >>> from holdfast.core.points.points import points
        >>> [round(value, 6) for value in potentials(points(torch.eye(2))).log().tolist()]
        [-4.0, -4.0]
    """
    n, device = len(codes), codes.values.device
    dtype = torch.float64 if codes.values.dtype == torch.float64 else torch.float32
    total = torch.zeros(n, dtype=torch.float64, device=device)
    half = torch.cat([_tile(codes, start, COLUMNS, dtype).square().sum(1) / 2 for start in range(0, n, COLUMNS)])
    for top in range(0, n, ROWS):
        queries = _tile(codes, top, ROWS, dtype)
        for left in range(top, n, COLUMNS):
            product = torch.addmm(-half[left : left + COLUMNS], queries, _tile(codes, left, COLUMNS, dtype).T)
            value = product.sub_(half[top : top + ROWS, None]).exp_()
            if left == top:
                value.fill_diagonal_(0)
            total[top : top + ROWS] += value.sum(1)
            # The square on the diagonal holds both orders of its pairs; all others stand for both.
            done = max(0, top + ROWS - left)
            total[left + done : left + COLUMNS] += value[:, done:].sum(0)
    return total / max(1, n - 1)


def _tile(codes: Points, start: int, count: int, dtype: torch.dtype) -> Float[Tensor, "b d"]:
    return codes.tile(slice(start, start + count), dtype).mul_(2 / codes.scale)


# Tags of what should not matter about each image (scanner, camera, site): a setting that names a file.
#
# The file is CSV, ``id,tag`` or ``id,tag,group`` on each line, or a JSON object from ids to tags or to pairs of tag
# and group. Images that belong together, of one slide, patient or video, are a group. The file's content is part of
# the setting's text, hence of every key: ``scanners.csv@3f9a0c1d2e4b5a67``.


@final
@dataclass(frozen=True)
class Tags(TextSettings):
    """A file of tags and a hash of its content."""

    path: str
    content: str

    @classmethod
    def read(cls, text: str) -> Tags:
        """Return the file that ``text`` names, with or without the hash of what it must hold."""
        hashed = re.fullmatch(r"(.+)@([0-9a-f]{16})", text)
        path, content = hashed.groups() if hashed else (text, "")
        digest = sha256(_bytes(path)).hexdigest()[:16]
        if content and content != digest:
            raise HoldfastError(f"tags in {path} are no longer those of {text}; name the file alone to read it again")
        return cls(path, digest)

    def __str__(self) -> str:
        return f"{self.path}@{self.content}"

    def of(self, ids: Sequence[str]) -> Int[np.ndarray, "n"]:
        """Return a number for the tag of each of ``ids``, equal where the tags are.

        Raises:
            HoldfastError: the file has changed or is of another form, an image has no tag, or all have the same.
        """
        names, numbers = np.unique(self.names(ids), return_inverse=True)
        if len(names) < 2:
            raise HoldfastError(f"all images have the tag {str(names[0])!r} in {self.path}; a nuisance needs two")
        return numbers

    def names(self, ids: Sequence[str]) -> list[str]:
        """Return the tag of each of ``ids``.

        Raises:
            HoldfastError: the file has changed or is of another form, or an image has no tag.
        """
        stated = self._stated(ids)
        return [stated[name][0] for name in ids]

    def groups(self, ids: Sequence[str]) -> tuple[str, ...] | None:
        """Return the group of each of ``ids``; None where the file states none.

        Raises:
            HoldfastError: as ``of``.
        """
        stated = self._stated(ids)
        return tuple(stated[name][1] for name in ids) if all(len(stated[name]) > 1 for name in ids) else None

    def _stated(self, ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Return the tag, and the group if the file has one, of each image."""
        Tags.read(str(self))
        stated = _parsed(self.path, _bytes(self.path).decode("utf-8-sig"))
        if missing := [name for name in ids if name not in stated]:
            raise HoldfastError(
                f"{self.path} has no tag for {len(missing)} of {len(ids)} images, {missing[0]!r} among them; add them"
            )
        return stated


def _bytes(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise Unreadable(f"the tags in {path!r}", error, fix="name a CSV or JSON file") from error


def _parsed(path: str, text: str) -> dict[str, tuple[str, ...]]:
    """Return the tag of each id, followed by its group if all have one."""
    if path.lower().endswith(".json"):
        try:
            content = json.loads(text)
        except ValueError as error:
            raise HoldfastError(f"{path} is no JSON ({error})") from error
        if not isinstance(content, dict):
            raise OutOfRange(str(path), Described(type(content).__name__), "an object from ids to tags")
        rows = [[name, *map(str, tag if isinstance(tag, list) else [tag])] for name, tag in content.items()]
    else:
        rows = [row for row in csv.reader(text.splitlines()) if row]
    wide = len(rows[0]) if rows and len(rows[0]) in (2, 3) else 2
    if wrong := next((row for row in rows if len(row) != wide), None):
        raise OutOfRange(
            f"columns of {path}", Described(f"{len(wrong)} in {wrong}"), "two, id and tag, or three, id, tag and group"
        )
    return {name: tuple(rest) for name, *rest in rows}


MOST = 1 << 22
"""Neighbours held at a time where groups are large."""
ZERO = "the embedding is zero and has no direction"


@dataclass(frozen=True, eq=False)
class Sphere:
    """Unit codes of some images in an order that their ids alone decide, with what pairs of them say."""

    rows: list[int]
    codes: Float[Tensor, "n d"]
    potential: Float[np.ndarray, "n"]
    near: Int[np.ndarray, "n k"]
    """The nearest neighbours of each, as places in ``rows``; none where there are too few images."""
    constant: bool
    """Whether all codes point the same way up to rounding."""
    ties: int
    """How many images share their code with ``k`` others, so that their neighbours are arbitrary."""


def distinct(population: Population, samples: int) -> list[int]:
    """Random rows without exact copies, in an order that ids alone decide.

    Raises:
        HoldfastError: There is only one image.
    """
    if samples < 2:
        raise OutOfRange("samples", samples, "at least 2")
    chosen = population.random_order[:samples]
    rows: list[int] = chosen[population.first_copies[chosen] == chosen].tolist()
    if len(rows) < 2:
        raise HoldfastError("pairs of different images are needed, but there is only one; add images")
    return rows


@final
@dataclass(frozen=True)
class Neighbourhoods(Fit[Sphere]):
    """The Gaussian potential of each code among all others, and its ``k`` nearest neighbours, both exact."""

    k: int
    samples: int
    name = "neighbourhoods"
    version = 1

    def looks_at(self) -> LooksAt:
        return "codes"

    def learn(self, population: Population) -> Observed:
        rows, codes = directions(population, self.samples)
        on_sphere = points(codes)
        if self.k < 1:
            raise OutOfRange("k", self.k, "at least 1")
        empty = np.empty((len(rows), 0), dtype=np.int64), np.empty((len(rows), 0))
        index, distance = empty
        if len(rows) > self.k and not on_sphere.constant:
            neighbours = nearest_neighbours(on_sphere, self.k)
            index, distance = neighbours.index, neighbours.distance
        return {
            "potential": potentials(on_sphere).cpu(),
            "near": torch.from_numpy(index),
            "constant": torch.tensor(on_sphere.constant),
            "ties": torch.tensor(int((distance[:, -1:] == 0).sum())),
        }

    def restore(self, population: Population, learned: Observed) -> Sphere:
        rows, codes = directions(population, self.samples)
        potential, near = learned["potential"].cpu().numpy(), learned["near"].cpu().numpy()
        return Sphere(rows, codes, potential, near, bool(learned["constant"]), int(learned["ties"]))


def directions(population: Population, samples: int) -> tuple[list[int], Float[Tensor, "n d"]]:
    """Rows of distinct images whose embeddings have a direction, and their unit embeddings.

    Raises:
        HoldfastError: Fewer than two embeddings have a direction.
    """
    rows = distinct(population, samples)
    codes = Cosine().embed(population.codes[rows])
    assert codes is not None
    defined = codes.isfinite().all(1)
    rows = [row for row, kept in zip(rows, defined.tolist(), strict=True) if kept]
    if len(rows) < 2:
        raise HoldfastError("embeddings of two images at least must not be zero; the encoder tells nothing apart")
    return rows, codes[defined]


@final
@dataclass(frozen=True)
class Strangers(Fit[Int[np.ndarray, "n k"]]):
    """The ``k`` nearest neighbours of each image on the sphere among those of other groups than its own.

    Groups are those of the file of tags or else of the images; without any, each image is its own.
    """

    k: int
    samples: int
    tags: Tags
    name = "strangers"
    version = 1
    uses_groups = True

    def looks_at(self) -> LooksAt:
        return "codes"

    def learn(self, population: Population) -> Observed:
        rows, codes = directions(population, self.samples)
        on_sphere, names = points(codes), groups_of(population, self.tags)
        if self.k < 1:
            raise OutOfRange("k", self.k, "at least 1")
        groups = np.arange(len(rows)) if names is None else numbered(np.array(names)[rows])
        if on_sphere.constant or len(rows) <= self.k:
            return {"near": torch.empty((len(rows), 0), dtype=torch.int64)}
        return {"near": torch.from_numpy(nearest_strangers(on_sphere, self.k, groups))}

    def restore(self, population: Population, learned: Observed) -> Int[np.ndarray, "n k"]:
        return learned["near"].cpu().numpy()


def groups_of(population: Population, tags: Tags) -> tuple[str, ...] | None:
    """Return the group of every image: from the file of tags, or as the images have them.

    Raises:
        HoldfastError: both state groups.
    """
    stated = tags.groups(population.images.ids)
    if stated is not None and population.images.groups is not None:
        raise HoldfastError(f"groups are stated twice, in {tags.path} and by ?groups= of the images; keep one")
    return population.images.groups if stated is None else stated


def nearest_strangers(directions: Points, k: int, groups: Groups) -> Int[np.ndarray, "n k"]:
    """Return the ``k`` nearest points of other groups of each point, exactly.

    Of the nearest ``k`` and as many as the rest of a group, ``k`` are of others; so points are searched by the size of
    their groups.
    """
    sizes = np.bincount(groups)
    if len(groups) - sizes.max() < k:
        raise HoldfastError(
            f"one group holds {sizes.max()} of {len(groups)} images, so fewer than {k} others are left for its neighbours; "
            "lower k or give more groups"
        )
    near = np.empty((len(groups), k), dtype=np.int64)
    steps = np.ceil(np.log2(sizes[groups])).astype(int)
    for step in np.unique(steps):
        rows = np.flatnonzero(steps == step)
        count = min(len(groups) - 1, k + int(sizes[groups[rows]].max()) - 1)
        for part in np.array_split(rows, -(-len(rows) * count // MOST)):
            index = nearest_neighbours(directions, count, torch.from_numpy(part)).index
            same_group = groups[index] == groups[part][:, None]
            near[part] = np.take_along_axis(index, np.argsort(same_group, axis=1, kind="stable"), axis=1)[:, :k]
    return near


# Semantic fluctuation: how much what is known of a class comes and goes during training.
#
# ``TV_c = mean_t |Acc_{t+1}^c - Acc_t^c|`` over checkpoints at equal steps, with the accuracy of one probe on each
# class (Zhong et al. 2022). Chance in the images makes accuracies differ even where nothing changes, which the value
# does not allow for; the interval does: it adds up intervals of all differences that hold together.

CONFIDENCE = 0.95


def semantic_fluctuation(
    predictions: Int[np.ndarray, "checkpoints n"], labels: Int[np.ndarray, "n"]
) -> tuple[Estimate, ...]:
    """Return the semantic fluctuation of each class from the ``predictions`` of a probe on each of several checkpoints.

    Raises:
        HoldfastError: there is only one checkpoint.

    Example:
        >>> labels = np.array([0, 0, 1, 1])
        >>> found = semantic_fluctuation(np.array([[0, 0, 1, 1], [0, 1, 1, 1], [0, 0, 1, 1]]), labels)
        >>> [estimate.value for estimate in found]
        [0.5, 0.0]
    """
    if len(predictions) < 2:
        raise OutOfRange("the number of checkpoints with predictions", len(predictions), "at least 2")
    right = (predictions == labels).astype(float)
    return tuple(_fluctuation(name, np.diff(right[:, labels == name], axis=0)) for name in np.unique(labels).tolist())


def _fluctuation(name: int, differences: Float[np.ndarray, "steps m"]) -> Estimate:
    confidence = 1 - (1 - CONFIDENCE) / len(differences)  # so that all hold together (Bonferroni)
    ends = np.array([bounded_interval(step, (-1.0, 1.0), confidence) for step in differences])
    least = np.where((ends[:, 0] <= 0) & (ends[:, 1] >= 0), 0.0, np.abs(ends).min(1))
    number = (float(np.abs(differences.mean(1)).mean()), float(least.mean()), float(np.abs(ends).max(1).mean()))
    method = f"Gaffke's bounds of {len(differences)} differences together (Bonferroni)"
    of, n = "mean change of the class's accuracy from checkpoint to checkpoint", differences.shape[1]
    found = estimate_of("semantic_fluctuation", number, n, method, "accuracy", of, "lower", {"class": str(name)})
    return found.model_copy(update={"confidence": CONFIDENCE, "statistic": "whole"})


def sphere_warnings(population: Population, sphere: Sphere, looked_at: int) -> tuple[str, ...]:
    """Return what a reader must see beside any number about these codes."""
    warnings: list[str] = []
    digests = population.images.digests
    if sphere.constant:
        sentence = "Collapsed: all embeddings point the same way up to rounding, so cosine tells no two images apart."
        warnings.append(Warned(sentence, "collapsed"))
    if sphere.ties:
        warnings.append(
            f"{sphere.ties} images share their embedding with {sphere.near.shape[1]} others or more, so which of these "
            "are their neighbours is arbitrary: read hubness with suspicion."
        )
    if twins := len(digests) - len(set(digests)):
        copies = f"{twins} of {len(digests)} images are exact copies of others; each image is counted once."
        warnings.append(Warned(copies, "duplicates"))
    if zero := looked_at - len(sphere.rows):
        warnings.append(
            f"{zero} of {looked_at} images have a zero embedding, which has no direction, and are left out."
        )
    if len(sphere.rows) < 2 * sphere.codes.shape[1]:
        warnings.append(
            f"RankMe of {len(sphere.rows)} images cannot exceed their number, and embeddings have {sphere.codes.shape[1]} "
            "features: use several times as many images before comparing it with other data."
        )
    return tuple(warnings)
