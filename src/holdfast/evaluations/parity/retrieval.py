"""What a search answers: the nearest image, the nearest ``k``, and the order of a whole gallery, before and after.

Image by image, by the l2 distance, the image itself left out:

    neighbours_kept(x)       = |N_k(b; B) & N_k(a; A)| / k       the gallery encoded anew by the candidate
    neighbours_kept_mixed(x) = |N_k(b; A) & N_k(a; A)| / k       questions by the candidate, the gallery as it was
    ranks_kept(x)            = Spearman's correlation of the distances of x to the gallery, before and after

with codes ``a`` and ``b`` of ``x`` and ``A`` and ``B`` of the gallery, by the reference and by the candidate.

**Intervals.** Where the images search each other, one image counts twice: by its own neighbours, and as a neighbour of
others. A broken embedding loses its own and leaves (or enters) the lists of many. So the interval of ``kept`` is that of the
mean of the jackknife's pseudo-values (Tukey 1958), with ``T`` the mean over ``n`` images and ``T_-i`` without ``i``:

    influence(i) = n T - (n - 1) T_-i = kept(i) - sum over x != i of (kept_-i(x) - kept(x)),   centred at T

An image that was not seen may lose its own neighbours and those that it is itself, one list on average, hence ``UNSEEN``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from holdfast.core.divergences import L2Distance
from holdfast.core.points.counting import nearest_rows

RANKED = 1000
"""Of a larger gallery so many images, chosen at random, are put in order."""
COLUMNS = 1 << 10
"""More than are ranked; a distance keeps 42 bits of its fraction beside the number of its column."""
UNSEEN = (-1.0, 2.0)
"""Between which the influence of an image lies that was not seen, unless wider influences were."""
BLOCK = 1 << 22
"""Distances that are put in order together."""


@dataclass(frozen=True)
class Gallery:
    """What is searched: its codes by the reference and by the candidate, and where each question stands in it."""

    reference: Float[Tensor, "m d"]
    candidate: Float[Tensor, "m e"]
    is_bank: bool
    """Whether it is another set than the images in question, none of which it then holds."""

    def itself(self, count: int) -> list[int]:
        """Return the row of each of ``count`` questions, which its own search leaves out; none in a bank."""
        return [] if self.is_bank else list(range(count))


@dataclass(frozen=True)
class Kept:
    """Fraction of the answers to each question that stay."""

    values: Float[Tensor, "n"]
    influences: Float[Tensor, "n"]
    """Of each image on the mean, with the same mean; the values themselves in a bank, which is taken as given."""


@dataclass(frozen=True)
class Answers:
    """For each question what is kept of the answers."""

    neighbours: Kept
    nearest: Kept
    mixed: Kept | None
    """None for codes of different widths, which no search can mix."""
    ranks: Float[Tensor, "n"]
    before: Int[Tensor, "n"]
    """The nearest image by the reference."""
    after: Int[Tensor, "n"]
    """The nearest image by the candidate."""


def answers(reference: Float[Tensor, "n d"], candidate: Float[Tensor, "n e"], gallery: Gallery, k: int) -> Answers:
    """Return what is kept of the answers to each question; ``k`` is at most the number of images that may answer.

    Example:
        >>> a = torch.tensor([[0.0], [1.0], [3.0], [7.0]])
        >>> kept = answers(a, -2 * a, Gallery(a, -2 * a, False), k=2)
        >>> kept.neighbours.values.tolist(), kept.mixed.values.tolist()
        ([1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 0.5])
    """
    itself = gallery.itself(len(reference))

    def found(questions: Float[Tensor, "n f"], searched: Float[Tensor, "m f"]) -> Int[Tensor, "n c"]:
        """Return the nearest, and one more, which answers where one of them is left out."""
        return nearest_rows(L2Distance(), questions, searched, k + 1, exclude=itself)

    def both(first: Int[Tensor, "n c"], second: Int[Tensor, "n c"], count: int) -> Kept:
        values = shared(first[:, :count], second[:, :count])
        return Kept(values, values if gallery.is_bank else influences(first, second, count))

    before, after = found(reference, gallery.reference), found(candidate, gallery.candidate)
    mixed = None
    if reference.shape[1] == candidate.shape[1]:
        mixed = both(before, found(candidate, gallery.reference), k)
    return Answers(
        both(before, after, k),
        both(before, after, 1),
        mixed,
        ranks_kept(reference, candidate, gallery),
        before[:, 0],
        after[:, 0],
    )


def shared(before: Int[Tensor, "n k"], after: Int[Tensor, "n k"]) -> Float[Tensor, "n"]:
    """Return the share of each row's entries of ``before`` that occur in its row of ``after``."""
    return (before[:, :, None] == after[:, None, :]).any(dim=2).double().mean(dim=1)


def influences(before: Int[Tensor, "n c"], after: Int[Tensor, "n c"], k: int) -> Float[Tensor, "n"]:
    """Return the influence of each image on the mean of ``shared`` of the first ``k``, by leaving out each image exactly.

    Args:
        before, after: at least ``k + 1`` nearest images of each image, nearest first; of only ``k`` there is no other
            to take a place, and influences are the values.
    """
    first, second = before[:, :k], after[:, :k]
    values = shared(first, second)
    if before.shape[1] <= k:
        return values
    # Without image i, the next image takes its place in the lists that hold i. Of these lists' common part i itself is lost
    # if both hold it, and the next image counts if the other list holds it, or if it is next there, too.
    next_before, next_after = before[:, k : k + 1], after[:, k : k + 1]
    in_after, in_before = ((a[:, :, None] == b[:, None, :]).any(2) for a, b in ((first, second), (second, first)))
    enters = (next_before == second).any(1, keepdim=True).double()  # the next before, which is an answer after
    returns = (next_after == first).any(1, keepdim=True).double()
    in_both = enters + returns + (next_before == next_after).double() - 1
    gained = torch.zeros(len(values), dtype=torch.float64)
    gained.index_add_(0, first.reshape(-1), torch.where(in_after, in_both, enters).reshape(-1) / k)
    gained.index_add_(0, second.reshape(-1), torch.where(in_before, 0.0, returns).reshape(-1) / k)
    return values - (gained - gained.mean())


def ranks_kept(
    reference: Float[Tensor, "n d"], candidate: Float[Tensor, "n e"], gallery: Gallery
) -> Float[Tensor, "n"]:
    """Return Spearman's correlation of each question's distances to the gallery; nan of fewer than three."""
    chosen = torch.linspace(0, len(gallery.reference) - 1, min(RANKED, len(gallery.reference))).round().long()
    at = torch.full((len(gallery.reference),), -1)
    at[chosen] = torch.arange(len(chosen))
    values = torch.empty(len(reference), dtype=torch.float64)
    step = max(1, BLOCK // len(chosen))
    for start in range(0, len(reference), step):
        rows = torch.arange(start, min(start + step, len(reference)))
        counted = torch.ones(len(rows), len(chosen), dtype=torch.bool)
        if not gallery.is_bank:
            columns = at[rows]
            counted[(columns >= 0).nonzero()[:, 0], columns[columns >= 0]] = False
        ranks = [
            _ranks(torch.cdist(codes[rows].double(), there[chosen].double()), counted)
            for codes, there in ((reference, gallery.reference), (candidate, gallery.candidate))
        ]
        values[rows] = _correlation(ranks[0], ranks[1], counted.double())
    return values


def _ranks(distances: Float[Tensor, "b m"], counted: Tensor) -> Float[Tensor, "b m"]:
    """Return the place of each of those that count in the order of distances; the others come last, of equals the first."""
    # A distance's bits are in its order. Columns in the last of them keep equals in theirs, and numpy sorts integers alone
    # in a tenth of the time in which torch sorts numbers with their places.
    bits = distances.masked_fill(~counted, torch.inf).numpy().view(np.int64)
    keys = (bits & ~(COLUMNS - 1)) | np.arange(distances.shape[1])
    keys.sort(axis=1)
    order = torch.from_numpy(keys & (COLUMNS - 1))
    places = torch.arange(distances.shape[1], dtype=torch.float64).expand_as(distances)
    return torch.empty_like(places).scatter_(1, order, places)


def _correlation(a: Float[Tensor, "b m"], b: Float[Tensor, "b m"], weight: Float[Tensor, "b m"]) -> Float[Tensor, "b"]:
    count = weight.sum(1, keepdim=True)
    a, b = ((ranks - (ranks * weight).sum(1, keepdim=True) / count) * weight for ranks in (a, b))
    value = (a * b).sum(1) / (a.square().sum(1) * b.square().sum(1)).sqrt()
    return value.masked_fill(count[:, 0] < 3, torch.nan)
