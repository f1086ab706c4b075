"""Images under edits, the worst chain of edits that a search finds, and divergence radii."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from holdfast.core.divergences import Divergence
from holdfast.core.encoder import Codes, Encoder, Pixels
from holdfast.core.errors import HoldfastError
from holdfast.core.noise import Noise
from holdfast.core.points.counting import TIE
from holdfast.core.points.points import enclosing_balls
from holdfast.core.run_settings import Observed
from holdfast.measure.observation import Observation, entries, to_transform
from holdfast.measure.population import Population
from holdfast.transforms.base import Transform
from holdfast.transforms.severity import families

# The divergence radius: how wide a ball must be to hold the unit codes of one image under a whole family of edits.
#
#     rho(x) = min over c of max over edits t of | f(t(x)) / |f(t(x))| - c |
#
# Liu et al. 2026, https://arxiv.org/abs/2604.14973. Label-free, between 0 and 1, and never smaller for a larger family.

TOLERANCE = 1e-7
STEPS = 40
FEW = 8
"""Largest number of points; they have at most 247 subsets of two or more."""


def divergence_radii(families: Sequence[Float[Tensor, "b _ d"]]) -> Float[Tensor, "b f"]:
    """Return the radius of the smallest ball around each image's unit codes of each family; nan where one has no direction.

    Example:
        >>> apart = torch.tensor([[[2.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [-3.0, 0.0]]])
        >>> divergence_radii([apart, apart[:, [0, 0, 0]]])
        tensor([[0.7071, 0.0000],
                [1.0000, 0.0000]], dtype=torch.float64)
    """
    most, placed, undefined = max(codes.shape[1] for codes in families), [], []
    for codes in families:
        unit = codes.double() / torch.linalg.vector_norm(codes.double(), dim=2, keepdim=True)
        undefined.append(~unit.isfinite().flatten(1).all(1))
        points = coordinates(unit.masked_fill(undefined[-1][:, None, None], 0))
        lacking = most - codes.shape[1]
        placed.append(pad(points, (0, lacking, 0, lacking)))  # the first point, at the origin, a few more times
    radii = smallest(torch.stack(placed, dim=1).flatten(0, 1))
    return radii.clamp_max(1).unflatten(0, (-1, len(families))).masked_fill(torch.stack(undefined, dim=1), torch.nan)


def smallest(points: Float[Tensor, "b n d"]) -> Float[Tensor, "b"]:
    """Return the radius of the smallest ball around each set of points, up to ``TOLERANCE``."""
    balls = enclosing_balls(points, TOLERANCE, STEPS)
    slow = balls.radii > balls.least * (1 + TOLERANCE)
    if slow.any():  # few sets need many steps, thousands of them
        exact = (
            circumscribed(points[slow]) if points.shape[1] <= FEW else enclosing_balls(points[slow], TOLERANCE).radii
        )
        balls.radii[slow] = exact.minimum(balls.radii[slow])
    return balls.radii


def circumscribed(points: Float[Tensor, "b n d"]) -> Float[Tensor, "b"]:
    """Return the radius of the smallest ball around each set of few points, all subsets tried.

    The smallest ball is centred in the plane of those points that lie on its surface. From whatever centre, the distance of
    the farthest point is the radius of a ball around all; so centres of subsets without one (points on a line) do no harm.

    Example:
        >>> circumscribed(torch.tensor([[[0.0, 0.0], [2.0, 0.0], [1.0, 0.5], [1.0, -0.9]]]))
        tensor([1.])
    """
    radii = [torch.full_like(points[:, 0, 0], torch.inf)]
    for size in range(2, points.shape[1] + 1):
        corners = points[:, torch.tensor([*combinations(range(points.shape[1]), size)], device=points.device)]
        sides = corners[:, :, 1:] - corners[:, :, :1]
        squares = sides @ sides.mT
        halves = squares.diagonal(dim1=2, dim2=3)[..., None] / 2
        centres = corners[:, :, 0] + (torch.linalg.solve_ex(squares, halves).result.mT @ sides)[:, :, 0]
        farthest = (points[:, None] - centres[:, :, None]).square().sum(3).amax(2).sqrt()
        radii.append(farthest.nan_to_num(nan=torch.inf).amin(1))
    return torch.stack(radii).amin(0)


def coordinates(points: Float[Tensor, "b n d"]) -> Float[Tensor, "b n m"]:
    """Return points as far apart as these, the first at the origin, in the ``n - 1`` dimensions that ``n`` points span.

    Example:
        >>> corner = torch.tensor([[[1.0, 2.0, 2.0], [0.0, 0.0, 0.0]]], dtype=torch.float64)
        >>> torch.pdist(coordinates(corner)[0])
        tensor([3.], dtype=torch.float64)
    """
    sides = points[:, 1:] - points[:, :1]
    squares, axes = torch.linalg.eigh(sides @ sides.mT)
    placed = axes * squares.clamp_min(0).sqrt()[:, None]
    return torch.cat([torch.zeros_like(placed[:, :1]), placed], dim=1)


def ready(population: Population, rows: Sequence[int]) -> tuple[Pixels, Noise]:
    """Images at ``rows`` and their random streams, as transforms take them.

    Raises:
        HoldfastError: The encoder does not take pixels in [0, 1].
    """
    check_range(population.encoder)
    return to_transform(population, rows)


def check_range(encoder: Encoder) -> None:
    """Raise unless ``encoder`` takes pixels in [0, 1], which is what transforms change."""
    low, high = encoder.domain.low, encoder.domain.high
    if (low, high) != (0, 1):
        raise HoldfastError(
            f"edits and corruptions change images in [0, 1], but {encoder.name} takes [{low:g}, {high:g}]; "
            "put the scaling into the encoder"
        )


@final
@dataclass(frozen=True)
class Edited(Observation):
    """What each edit does to the code of an image, and what the worst of up to ``chained`` edits in a row does.

    The search is greedy: from the edit that carries the code farthest under the first divergence, to each family's most
    severe edit on top of it.

    ``k.change`` (b, edits) is about divergence ``k``. Under the first of them: ``kept`` (b, edits), whether
    the own clean code is still nearest; ``overlap`` (b, edits), the Jaccard index of the ``k`` nearest others; ``worst``
    (b, chained), how far up to ``chained`` edits move it; ``worst_edits``, their places in ``edits``, -1 where one more
    carried it no farther; ``worst_kept`` (b, chained), kept under all that was tried. And ``radius``, the divergence
    radius, and ``touched``, whether the most severe edit changes a pixel at all (b, families).
    """

    edits: tuple[Transform, ...]
    chained: int
    """Largest number of edits in a row."""
    divergences: tuple[Divergence, ...]
    k: int
    """Neighbours whose overlap is measured."""
    samples: int
    name = "edited"
    version = 1
    uses_bank = True
    uses_groups = True

    def inputs(self, population: Population) -> int:
        return len(self.edits) + (self.chained - 1) * len(families(self.edits))

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        clean, search = population.codes[list(rows)], Search(self, population, rows)
        single, moved = search.single()
        combinations = [(single, moved), *search.longer()]
        divergence = population.fitted(self.divergences[0])
        searched = population.gallery
        if searched is population and len(searched.images) < 2:
            raise HoldfastError("retrieval needs other images to tell an image from, but there is only one; add images")
        home = population.nearest(divergence, clean, rows, self.k)
        k = home.shape[1]
        kept, overlap = [], []
        for codes, distance in combinations:
            count = codes.shape[1]
            owners = [row for row in rows for _ in range(count)]
            near = population.nearest(divergence, codes.flatten(0, 1), owners, k).unflatten(0, (-1, count))
            kept.append(kept_nearest(divergence, codes, distance, searched.codes[near[:, :, 0]]))
            overlap.append(jaccard(near, home[:, None]))
        ladders = [torch.cat([clean[:, None], single[:, span]], dim=1) for _, span in families(self.edits)]
        changes = {
            f"{index}.change": change(population.fitted(divergence), single, clean)
            for index, divergence in enumerate(self.divergences)
            if index
        }
        return {
            "0.change": moved,
            **changes,
            "kept": kept[0],
            "overlap": overlap[0].masked_fill(~single.isfinite().all(2) | (k < self.k), torch.nan),
            "radius": divergence_radii(ladders),
            "touched": search.touched,
            "worst": search.distances,
            "worst_edits": search.chain,
            "worst_kept": torch.stack([part.amin(1) for part in kept], dim=1).cummin(1).values,
        }

    def changes(self, divergence: Divergence, observed: Observed) -> Float[Tensor, "b edits"]:
        """Distance that each edit moves embeddings, under one divergence."""
        return entries(observed, self.divergences.index(divergence))["change"]

    def worst(self, population: Population, rows: Sequence[int], chains: Int[Tensor, "b chained"]) -> Pixels:
        """Images at ``rows`` under the worst edits found for each.

        Args:
            chains: Places of the edits in ``edits``, shape (b, chained); -1 for none.
        """
        pixels, noise = ready(population, rows)
        for image, chain in enumerate(chains.tolist()):
            alone = slice(image, image + 1)
            for depth, index in enumerate(chain):
                if index >= 0:
                    pixels[alone] = self.edits[index](pixels[alone], link(noise[alone], depth))
        return pixels


def link(noise: Noise, depth: int) -> Noise:
    """Return the streams of the edit at ``depth`` of a row of edits; the first one draws what it draws alone."""
    return noise.fork("then", depth) if depth else noise


Tried = tuple[Float[Tensor, "b m d"], Float[Tensor, "b m"]]


class Search:
    """A greedy search for the edits that carry each code farthest."""

    def __init__(self, settings: Edited, population: Population, rows: Sequence[int]) -> None:
        self.settings, self.population = settings, population
        self.pixels, self.noise = ready(population, rows)
        self.clean = population.codes[list(rows)]
        self.divergence = population.fitted(settings.divergences[0])
        self.severest = [span.stop - 1 for _, span in families(settings.edits)]
        self.touched: Bool[Tensor, "b families"] = torch.zeros(
            len(rows), len(self.severest), dtype=torch.bool, device=self.clean.device
        )
        self.chain = torch.full((len(rows), settings.chained), -1, dtype=torch.int64, device=self.clean.device)
        self.distances = torch.zeros(len(rows), settings.chained, dtype=torch.float64, device=self.clean.device)
        self.farthest = self.pixels

    def single(self) -> Tried:
        """Return the codes of the images under each edit, and how far they are from the clean ones."""
        return self._step(0, range(len(self.settings.edits)))

    def longer(self) -> Iterator[Tried]:
        """Yield the same under one more edit on top of the worst so far, again and again."""
        for depth in range(1, self.settings.chained):
            yield self._step(depth, self.severest)

    def _step(self, depth: int, indices: Sequence[int]) -> Tried:
        start, noise, codes, distances = self.farthest, link(self.noise, depth), [], []
        if depth:
            self.distances[:, depth] = self.distances[:, depth - 1]
        for index in indices:
            pixels = self.settings.edits[index](start, noise)
            codes.append(self.population.encode(pixels.to(self.population.run.dtype)))
            if depth == 0 and index in self.severest:
                self.touched[:, self.severest.index(index)] = (pixels != start).flatten(1).any(1)
            moved = self.divergence(codes[-1].double(), self.clean.double())
            farther = moved > self.distances[:, depth]
            self.distances[farther, depth] = moved[farther]
            self.chain[farther, depth] = index
            self.farthest = torch.where(farther[:, None, None, None], pixels, self.farthest)
            distances.append(moved)
        return torch.stack(codes, dim=1), torch.stack(distances, dim=1)


def change(divergence: Divergence, codes: Float[Tensor, "b m d"], clean: Codes) -> Float[Tensor, "b m"]:
    """Return how far each code is from the clean one of its image."""
    repeated = clean.double()[:, None].expand(codes.shape)
    return divergence(codes.double().flatten(0, 1), repeated.flatten(0, 1)).unflatten(0, codes.shape[:2])


def kept_nearest(
    divergence: Divergence, codes: Float[Tensor, "b m d"], ours: Float[Tensor, "b m"], rival: Float[Tensor, "b m d"]
) -> Float[Tensor, "b m"]:
    """Return 1 where the nearest other code, ``rival``, is not closer than the own clean one, else 0; nan if undefined.

    ``ours`` is how far each code is from its clean one.
    """
    theirs = divergence(codes.double().flatten(0, 1), rival.double().flatten(0, 1)).unflatten(0, ours.shape)
    return (theirs >= ours * (1 - TIE)).double().masked_fill(~(theirs - ours).isfinite(), torch.nan)


def jaccard(left: Int[Tensor, "b m k"], right: Int[Tensor, "b #m k"]) -> Float[Tensor, "b m"]:
    """Return the size of the intersection of two sets of ``k`` over that of their union.

    Example:
        >>> jaccard(torch.tensor([[[0, 1], [2, 3]]]), torch.tensor([[[1, 2]]]))
        tensor([[0.3333, 0.3333]], dtype=torch.float64)
    """
    shared = (left[..., :, None] == right[..., None, :]).flatten(2).sum(2).double()
    return shared / (2 * left.shape[2] - shared)
