"""Exact counts over whole populations: embeddings closer to an attacked one than its original, and quantiles over pairs.

If a divergence grows with a Euclidean distance, ``|a - r_j| < |a - r_i|`` is ``h_j < h_i`` with ``h_j = |r_j|^2 / 2 - a .
r_j``: one matrix product per tile. Embeddings are centred first, because with an offset the products cancel and float32
miscounts. They are scaled, so that squares neither overflow nor vanish. Comparisons that rounding leaves undecided are
repeated on the embeddings themselves in float64, so counts are exact. An embedding that cannot be mapped (zero under
cosine) is never a neighbour.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log2

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from holdfast.core.divergences import Divergence
from holdfast.core.encoder import Codes
from holdfast.core.errors import check_whole

TILE = 2**21
"""Entries of one tile of products: 8 MB in float32, which stays near the processor."""
WIDE = 2**21
"""Entries of one block of clean codes: 16 MB in float64, three of which are at work at once."""

CANCELS = 1e-3
"""Share of two squared norms below which their distance is computed from the difference."""
TIE = 1e-10
"""Relative difference in float64 up to which two divergences count as equal: stepwise ones tie except for rounding."""

Moved = Float[Tensor, "m d"]
Clean = Float[Tensor, "n d"]
Groups = Int[Tensor, "n"]
"""The number of each code's group, equal where images belong together."""


@dataclass(frozen=True)
class Kin:
    """Groups of embeddings and of the embeddings they are compared with.

    An embedding of the same group is not another one, and never counts.
    """

    mine: Int[Tensor, "m"]
    """Group of each embedding, shape (m,)."""
    theirs: Groups
    """Group of each embedding of the gallery, shape (n,)."""

    @property
    def fewest(self) -> int:
        """Smallest number of others that an embedding has."""
        counts = self.theirs.bincount(minlength=int(self.mine.max()) + 1)
        return len(self.theirs) - int(counts[self.mine].max())

    def among(self, rows: slice, columns: slice) -> Bool[Tensor, "b k"]:
        """Mask of the others that belong to the same group."""
        return self.mine[rows, None] == self.theirs[None, columns]


def closer_counts(
    divergence: Divergence, moved: Moved, originals_of: Int[Tensor, "m"], clean: Clean, kin: Kin | None = None
) -> Int[Tensor, "m"]:
    """For each attacked embedding: other clean embeddings strictly closer than its original.

    Args:
        moved: Attacked embeddings, shape (m, d); rows that are not finite count none.
        kin: Groups of both; embeddings of the same group are not counted.

    Example:
        >>> from holdfast.core.divergences import L2Distance
        >>> clean = torch.tensor([[0.0], [1.0], [2.0]])
        >>> closer_counts(L2Distance(), torch.tensor([[1.6]]), torch.tensor([0]), clean)
        tensor([2])
    """
    return crossings(divergence, moved, originals_of, clean, kin=kin)[0]


def crossings(
    divergence: Divergence,
    moved: Moved,
    originals_of: Int[Tensor, "m"],
    clean: Clean,
    originals: Moved | None = None,
    left_out: Bool[Tensor, "n"] | None = None,
    kin: Kin | None = None,
) -> tuple[Int[Tensor, "m"], Int[Tensor, "n"]]:
    """Counts of clean embeddings closer than the original, by attacked and by clean row.

    Args:
        moved: Attacked embeddings, shape (m, d); rows that are not finite count none.
        originals_of: Row of ``clean`` that each belongs to, shape (m,); -1 if ``originals`` are given.
        originals: Own clean embeddings, shape (m, d), where they are not in ``clean``.
        left_out: Mask of clean embeddings that never count, shape (n,).
        kin: Groups of both; embeddings of the same group are not counted.

    Returns:
        Closer clean embeddings per attacked one, shape (m,), and attacked ones that pass each clean one, shape (n,).
    """
    originals = clean[originals_of] if originals is None else originals
    if divergence.embed(clean[:1]) is None:
        return _slow_crossings(divergence, moved, originals, clean, left_out, kin)
    frame = Frame.of(divergence, clean)
    points, mine = frame.embed(moved), frame.embed(originals)
    height = min(len(points), 1024)
    counts = torch.zeros(len(points), dtype=torch.int64, device=points.device)
    passed = torch.zeros(len(clean), dtype=torch.int64, device=points.device)
    width = _width(height, clean.shape[1])
    for left in range(0, len(clean), width):
        block = clean[left : left + width]
        candidates, there = frame.embed(block), passed[left : left + len(block)]
        if left_out is not None:
            candidates.masked_fill_(left_out[left : left + width, None], torch.nan)
        for top in range(0, len(points), height):
            part = slice(top, top + height)
            tile = Tile(
                points[part],
                mine[part],
                torch.where(originals_of[part] < 0, -1, originals_of[part] - left),
                candidates,
                None if kin is None else kin.among(part, slice(left, left + width)),
            )
            counts[part] += among(tile.sure)
            there += tile.sure.sum(0, dtype=torch.int32)
            for row, column in tile.settled(divergence, moved[part], originals[part], block):
                counts[part] += row.bincount(minlength=len(counts[part]))
                there += column.bincount(minlength=len(block))
    return counts, passed


def _width(height: int, features: int) -> int:
    """Return how many clean codes are looked at together by ``height`` points: few points would see too many at once."""
    return max(1, min(TILE // height, WIDE // features))


@dataclass(frozen=True)
class Frame:
    """Embedded, centred and scaled coordinates in which embeddings are compared."""

    divergence: Divergence
    centre: Float[Tensor, "d"]
    unit: float
    """Scale of the coordinates, a power of two."""

    @classmethod
    def of(cls, divergence: Divergence, clean: Clean) -> Frame:
        """Frame from a sample of the population; any centre near it serves."""
        sample = embedded(divergence, clean[:: max(1, len(clean) // 4096)]).double()
        sample = sample[sample.isfinite().all(1)]
        if not len(sample):
            return cls(divergence, torch.zeros(sample.shape[1], dtype=torch.float64, device=clean.device), 1.0)
        centre = sample.mean(0)
        spread = float((sample - centre).abs().max())
        return cls(divergence, centre, 2.0 ** -round(log2(spread)) if spread > 0 else 1.0)

    def embed(self, codes: Codes) -> Codes:
        """Coordinates of ``codes`` in this frame, in their precision."""
        points = embedded(self.divergence, codes)
        return (points - self.centre.to(points.dtype)).mul_(self.unit).to(codes.dtype)


def embedded(divergence: Divergence, codes: Codes) -> Codes:
    """Points whose Euclidean distance grows with a divergence, in float64 if computed."""
    points = divergence.embed(codes)
    assert points is not None
    if points is codes:
        return codes
    precise = divergence.embed(codes.double())
    assert precise is not None
    return precise


class Tile:
    """Block of attacked points against clean ones: which are closer, surely or perhaps."""

    def __init__(
        self,
        points: Codes,
        mine: Codes,
        originals: Int[Tensor, "b"],
        block: Float[Tensor, "k d"],
        kin: Bool[Tensor, "b k"] | None = None,
    ) -> None:
        present = block.abs().amax(1).isfinite()
        if not present.all():
            block = torch.where(present[:, None], block, 0)  # a code that cannot be embedded is no one's neighbour
        half = torch.linalg.vector_norm(block, dim=1).square() / 2
        self.h = torch.addmm(half.masked_fill(~present, torch.inf), points, block.T, alpha=-1)
        here = ((originals >= 0) & (originals < len(block))).nonzero()[:, 0]
        self.h[here, originals[here]] = torch.inf
        if kin is not None:
            self.h.masked_fill_(kin, torch.inf)
        size = torch.linalg.vector_norm(mine, dim=1)
        level = size.square() / 2 - (points * mine).sum(1)
        # Rounding of the places, of two products of length d and of two half squares, in whatever order they are summed.
        reach = (2 * half.max()).sqrt().maximum(size)
        slack = 2 * (block.shape[1] + 8) * torch.finfo(self.h.dtype).eps * reach
        slack = slack * (torch.linalg.vector_norm(points, dim=1) + reach)
        self.low, self.high = (level - slack)[:, None], (level + slack)[:, None]
        self.sure = self.h < self.low

    def settled(
        self, divergence: Divergence, moved: Codes, mine: Codes, block: Float[Tensor, "k d"]
    ) -> Iterator[tuple[Int[Tensor, "p"], Int[Tensor, "p"]]]:
        """Rows and columns of doubtful pairs that are closer after all, computed in float64.

        Args:
            mine: Own clean embeddings, shape (b, d).
            block: Clean embeddings to compare with, shape (k, d).
        """
        # Few rows have anyone within rounding, and only these are looked at again.
        doubtful = (among(self.h <= self.high) > among(self.sure)).nonzero()[:, 0]
        if not len(doubtful):
            return
        row, column = ((self.h[doubtful] <= self.high[doubtful]) & ~self.sure[doubtful]).nonzero(as_tuple=True)
        row, step = doubtful[row], max(1, 2 * TILE // block.shape[1])
        for start in range(0, len(row), step):
            i, j = row[start : start + step], column[start : start + step]
            point, ours, theirs = (embedded(divergence, codes.double()) for codes in (moved[i], mine[i], block[j]))
            closer = (point - theirs).square().sum(1) < (point - ours).square().sum(1) * (1 - 2 * TIE)
            yield i[closer], j[closer]


def among(mask: Bool[Tensor, "b k"]) -> Int[Tensor, "b"]:
    """Return how many entries of each row are true, in the integers that are summed fastest."""
    return mask.sum(1, dtype=torch.int32)


def _slow_crossings(
    divergence: Divergence,
    moved: Moved,
    originals: Moved,
    clean: Clean,
    left_out: Bool[Tensor, "n"] | None = None,
    kin: Kin | None = None,
) -> tuple[Int[Tensor, "m"], Int[Tensor, "n"]]:
    """The definition, one moved code at a time: for divergences without an embedding, and the tests' oracle."""
    counts, passed = (torch.zeros(len(codes), dtype=torch.int64, device=clean.device) for codes in (moved, clean))
    moved, clean = moved.double(), clean.double()
    threshold = divergence(moved, originals.double()) * (1 - TIE)
    for i, code in enumerate(moved):
        closer = divergence(code.expand_as(clean), clean) < threshold[i]
        if left_out is not None:
            closer &= ~left_out
        if kin is not None:
            closer &= kin.theirs != kin.mine[i]
        counts[i] = closer.sum()
        passed += closer
    return counts, passed


def shares_within(
    divergence: Divergence, thresholds: Float[Tensor, "t"], clean: Clean, groups: Groups | None = None
) -> Float[Tensor, "t p"]:
    """Fraction of the other embeddings within each threshold of each embedding.

    Computed in float64, in blocks. For many thresholds ``share_of_pairs_within`` is faster.

    Args:
        clean: Embeddings, shape (n, d); rows that cannot be embedded are left out.
        groups: Group of each embedding; embeddings of the same group are left out.

    Example:
        >>> from holdfast.core.divergences import L2Distance
        >>> shares_within(L2Distance(), torch.tensor([1.0]).double(), torch.tensor([[0.0], [1.0], [3.0]]))
        tensor([[0.5000, 0.5000, 0.0000]], dtype=torch.float64)
    """
    points, groups = _present(divergence, clean, groups)
    n = len(clean if points is None else points)
    others: int | Int[Tensor, "p"] = max(1, n - 1)
    if groups is not None:
        others = (n - groups.bincount()[groups]).clamp_min(1)
    shares = torch.zeros(len(thresholds), n, dtype=torch.float64, device=clean.device)
    width = max(1, TILE // max(n, 1))
    for top in range(0, n, width):
        if points is None:
            block = _divergences(divergence, clean.double(), top, width)
        else:
            block = divergence.of_distance(torch.cdist(points[top : top + width], points))
            rows = torch.arange(len(block), device=block.device)
            block[rows, rows + top] = torch.nan
        if groups is not None:
            block.masked_fill_(groups[top : top + width, None] == groups, torch.nan)
        for k, threshold in enumerate(thresholds.tolist()):
            shares[k, top : top + width] = (block * (1 - TIE) <= threshold).sum(1)
    return shares / others


def _present(
    divergence: Divergence, clean: Clean, groups: Groups | None
) -> tuple[Float[Tensor, "p e"] | None, Int[Tensor, "p"] | None]:
    """Return the centred points of the embeddings that have one, in float64, and their groups; no points where none have."""
    points = divergence.embed(clean.double())
    if points is None:
        return None, groups
    present = points.isfinite().all(1)
    points, groups = points[present], None if groups is None else groups[present]
    return points - points.mean(0), groups


def share_of_pairs_within(
    divergence: Divergence, thresholds: Float[Tensor, "t"], clean: Clean, groups: Groups | None = None
) -> Float[Tensor, "t"]:
    """Fraction of ordered pairs of distinct embeddings within each threshold.

    Exact over all pairs, in float64, in blocks; nan for a threshold that is nan.

    Args:
        groups: Group of each embedding; two embeddings of one group make no pair.
    """
    points, groups = _present(divergence, clean, groups)
    ordered, back = torch.sort(torch.nan_to_num(thresholds.double(), nan=torch.inf))
    below = torch.zeros(len(ordered) + 1, dtype=torch.int64, device=clean.device)
    n, pairs = len(clean) if points is None else len(points), 0
    width = max(1, TILE // max(n, 1))
    for top in range(0, n, width):
        block = (
            _divergences(divergence, clean.double(), top, width) if points is None else _triangle(points, top, width)
        )
        if points is not None:
            block = divergence.of_distance(block)
        if groups is not None:
            columns = groups if points is None else groups[top:]
            block.masked_fill_(groups[top : top + width, None] == columns, torch.nan)
        bins = torch.searchsorted(ordered, block * (1 - TIE))  # the first threshold that is not smaller
        bins[block.isnan()] = len(ordered) + 1
        # A triangle's block begins at its own diagonal; beyond its square each pair stands for both of its orders.
        for part in (bins, bins[:, len(block) :]) if points is not None else (bins,):
            counted = torch.bincount(part.flatten(), minlength=len(ordered) + 2)[: len(ordered) + 1]
            below += counted
            pairs += int(counted.sum())
    share = below.cumsum(0)[:-1].double() / (pairs or torch.nan)
    result = torch.empty_like(share)
    result[back] = share
    return result.masked_fill(thresholds.isnan(), torch.nan)


def _divergences(divergence: Divergence, clean: Clean, top: int, width: int) -> Float[Tensor, "b n"]:
    """Divergences of some rows to all, nan to themselves."""
    block = torch.stack([divergence(code.expand_as(clean), clean) for code in clean[top : top + width]])
    rows = torch.arange(len(block), device=clean.device)
    block[rows, rows + top] = torch.nan
    return block


def _triangle(points: Clean, top: int, width: int) -> Float[Tensor, "b k"]:
    """Euclidean distances of some points to those from there on, nan to themselves."""
    part, rest = points[top : top + width], points[top:]
    norms = part.square().sum(1)[:, None] + rest.square().sum(1)
    square = norms - 2 * part @ rest.T
    # Where the difference cancels, it is taken before squaring.
    i, j = (square < CANCELS * norms).nonzero(as_tuple=True)
    for start in range(0, len(i), TILE // points.shape[1] + 1):
        pick = slice(start, start + TILE // points.shape[1] + 1)
        square[i[pick], j[pick]] = (part[i[pick]] - rest[j[pick]]).square().sum(1)
    rows = torch.arange(len(part), device=points.device)
    square[rows, rows] = torch.nan
    return square.sqrt()


def nearest_rows(
    divergence: Divergence, codes: Codes, clean: Clean, count: int, exclude: Sequence[int] = (), kin: Kin | None = None
) -> Int[Tensor, "b k"]:
    """Rows of the clean embeddings nearest to each embedding, nearest first.

    Args:
        divergence: Distance between embeddings, fitted if it needs to be.
        codes: Embeddings to look up, shape (b, d).
        clean: Clean embeddings of the population, shape (n, d).
        count: Neighbours per embedding, 1 or more.
        exclude: Row of ``clean`` to leave out for each embedding; empty leaves out none.
        kin: Groups of both; embeddings of the same group come last, so there must be ``count`` others.

    Returns:
        Rows, shape (b, k) with k = ``count`` or as many as there are.

    Raises:
        HoldfastError: ``count`` is below 1.

    Example:
        >>> from holdfast.core.divergences import L2Distance
        >>> nearest_rows(L2Distance(), torch.tensor([[0.9]]), torch.tensor([[0.0], [1.0], [3.0]]), 2, exclude=[1])
        tensor([[0, 2]])
    """
    check_whole(count, "the number of nearest embeddings", 1)
    # Around the centre and in float64: with an offset, products in float32 find other neighbours. Block by block, so that
    # a large population is never copied as a whole.
    frame = None if divergence.embed(clean[:1]) is None else Frame.of(divergence, clean)
    rows = torch.full((len(codes),), -1, device=clean.device)
    rows[: len(exclude)] = torch.as_tensor(exclude, dtype=rows.dtype)
    count, height, chosen = min(count, len(clean) - bool(exclude)), max(1, min(len(codes), 1024)), []
    for top in range(0, len(codes), height):
        part, mine = codes[top : top + height], rows[top : top + height]
        own_points = None if frame is None else frame.embed(part.double())
        best = torch.full((len(part), 0), torch.inf, dtype=torch.float64, device=clean.device)
        which = torch.zeros(len(part), 0, dtype=torch.int64, device=clean.device)
        width = _width(height, clean.shape[1])
        for left in range(0, len(clean), width):
            block = clean[left : left + width]
            if frame is None or own_points is None:
                distance = torch.stack([divergence(code.expand_as(block), block) for code in part]).double()
            else:
                # Half of the squared distance except for what all candidates have in common: it ranks alike.
                points = frame.embed(block.double())
                distance = torch.addmm(points.square().sum(1) / 2, own_points, points.T, alpha=-1)
            here = ((mine >= left) & (mine < left + len(block))).nonzero()[:, 0]
            # Codes without a distance come last of those that count, before what is left out.
            largest = torch.finfo(distance.dtype).max
            distance = torch.nan_to_num_(distance, nan=largest, posinf=largest, neginf=-torch.inf)
            distance[here, mine[here] - left] = torch.inf
            if kin is not None:
                distance.masked_fill_(kin.among(slice(top, top + height), slice(left, left + width)), torch.inf)
            near, places = distance.topk(min(count, distance.shape[1]), largest=False)
            both = torch.cat([best, near], 1)
            best, order = both.topk(min(count, both.shape[1]), largest=False)
            which = torch.cat([which, places + left], 1).gather(1, order)
        chosen.append(which)
    return torch.cat(chosen)
