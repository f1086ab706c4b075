"""The radius up to which an image provably keeps its own match: no other image of the gallery becomes nearer.

Under l2 and cosine the embeddings nearer to another image fill a half-space, so each other image is one linear
specification of ``f(x')``. The radius is that of the first specification to fail. Few specifications need a costly bound:

1. bracket the radius of the ``FIRST`` nearest images;
2. at that radius, a box around the embeddings settles images far away, and the bound itself all others;
3. bracket those without a proof below that radius. A proof at a larger radius holds at smaller ones, so an image leaves
   after its first proof.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from holdfast.attacks.attacked_radii import Searched
from holdfast.bounds.certified_pairs import CertifiedEncoder, Pairs
from holdfast.bounds.certified_search import bracket_radii
from holdfast.bounds.methods.base import Crown, Interval, Method, vacuous_unless_finite
from holdfast.bounds.outputs import AT_ONCE, BisectorHyperplanes, bisector_hyperplanes
from holdfast.bounds.pair_bounds import Certification
from holdfast.bounds.regions import region
from holdfast.core.balls import Ball, Linf
from holdfast.core.divergences import Divergence
from holdfast.core.encoder import Codes, Pixels
from holdfast.measure.population import Population

FIRST = 16
"""Other images whose radius is bracketed together."""
ROUNDING = 1e-12
"""Relative error of a float64 sum over a box of thousands of features."""


@dataclass(frozen=True)
class OwnMatch:
    """The ``b`` images at ``rows``, and the ``n`` images of the gallery that each is compared with."""

    certified: CertifiedEncoder
    divergence: Divergence
    method: Method
    """Bounds what a box of embeddings does not settle."""
    ball: Ball
    """Kind of ball, and the largest radius of interest."""
    anchors: Pixels
    own: Codes
    """Clean embeddings of the images, (b, d)."""
    gallery: Float[Tensor, "n d"]
    """Clean embeddings of the gallery, (n, d)."""
    counted: Bool[Tensor, "b n"]
    """Mask of other images in the gallery: no copies, not of the own group, with a direction under cosine."""

    def planes(self, images: Int[Tensor, "a"], others: Int[Tensor, "a k"]) -> BisectorHyperplanes:
        """Return the hyperplanes between some images and ``k`` others each."""
        return bisector_hyperplanes(self.divergence, self.own[images], self.gallery[others])

    def margins(self, codes: Codes) -> Float[Tensor, "b n"]:
        """Return the distance of each embedding from each hyperplane; infinite for images that do not count."""
        margins = torch.full(self.counted.shape, torch.inf, dtype=torch.float64, device=self.own.device)
        for image, others in self._blocks(self.counted):
            margins[image, others] = self.planes(image, others[None]).signed_distances(codes[image, None])[0, :, 0]
        return margins

    def passed(self, codes: Codes) -> Bool[Tensor, "b n"]:
        """Return which images of the gallery are nearer to each of these embeddings than its own clean one."""
        return self.margins(codes) < 0  # never where there is no hyperplane, whose distance is 0

    def entered(self, points: Pixels) -> Bool[Tensor, "b"]:
        """Return whether any image of the gallery is nearer to each of these points than its own clean embedding."""
        return self.passed(self.certified.codes(points)).any(1)

    def weakest(
        self, bounds: Float[Tensor, "b n"], population: Population, rows: Sequence[int], purpose: str, count: int = 1
    ) -> Pairs:
        """Return each image with the ``count`` other images whose bounds are the least, to be attacked there."""
        others = bounds.topk(min(count, bounds.shape[1]), dim=1, largest=False).indices
        images, keys = torch.arange(len(rows), device=others.device), [population.images.ids[row] for row in rows]
        return Pairs(
            encoder=self.certified.encoder,
            graph=self.certified.graph,
            ids=(),
            anchors=self.anchors,
            negatives=self.anchors[:, None].expand(-1, others.shape[1], *self.anchors.shape[1:]),
            specifications=self.planes(images, others).normals,
            noise=population.run.noise([key for key in keys for _ in others[0]]).fork(purpose),
            executed=self.certified.executed,
        )

    def radii(self, tolerance: float) -> Float[Tensor, "b"]:
        """Return the largest radius found, up to that of ``ball``, at which every image of the gallery is proved farther.

        It is 0 where another image has the same embedding. The ``tolerance`` is a fraction of the largest radius.
        """
        radii = torch.full_like(self.own[:, 0], self.ball.radius)
        bounds, unproved = self.margins(self.own), self.counted.clone()
        while len(images := (unproved.any(1) & (radii > 0)).nonzero()[:, 0]):
            weakest = bounds[images].masked_fill(~unproved[images], torch.inf)
            others = weakest.topk(min(FIRST, weakest.shape[1]), dim=1, largest=False).indices
            found = self._bracketed(images, others, unproved, tolerance)
            radii[images] = torch.minimum(radii[images], found)
            unproved[images[:, None], others] = False
            bounds = self.bounds(radii, unproved)
            unproved &= bounds <= 0
        return radii

    def bounds(self, radii: Float[Tensor, "b"], wanted: Bool[Tensor, "b n"]) -> Float[Tensor, "b n"]:
        """Return lower bounds of the signed distances to hyperplanes over each image's ball; infinite where not wanted.

        Bounds that the box proves positive are those of the box.
        """
        found = torch.full(wanted.shape, torch.inf, dtype=torch.float64, device=self.own.device)
        if 2 * self.own.shape[1] < int(wanted.sum(1).max()):
            low, high = self._box(radii, wanted.any(1))
            for image, others in self._blocks(wanted):
                found[image, others] = least_in_box(self.planes(image, others[None]), low[image], high[image])
            wanted = wanted & ~(found > 0)
        for images, others in self._batches(wanted):
            here = wanted[images[:, None], others]
            bounds = self._bound(radii[images], images, others).masked_fill(~here, torch.inf)
            found[images[:, None], others] = torch.where(here, bounds, found[images[:, None], others])
        return found

    def _bracketed(
        self, images: Int[Tensor, "a"], others: Int[Tensor, "a k"], wanted: Bool[Tensor, "b n"], tolerance: float
    ) -> Float[Tensor, "a"]:
        """Return the radius up to which all ``others`` of each image are proved farther away."""
        # In other balls, minimising over a second region costs as much as all the rest.
        nested, widest = isinstance(self.method, Crown) and isinstance(self.ball, Linf), self.ball.radius
        counts = wanted[images[:, None], others]

        def bound(chosen: Int[Tensor, "c"], shares: Float[Tensor, "c"], _: Tensor) -> Float[Tensor, "c 1"]:
            bounds = self._bound(shares * widest, images[chosen], others[chosen], nested)
            return bounds.masked_fill(~counts[chosen], torch.inf).amin(1, keepdim=True)

        clean = self.planes(images, others).signed_distances(self.own[images, None])[..., 0]
        clean = clean.masked_fill(~counts, torch.inf).amin(1, keepdim=True)
        return bracket_radii(bound, clean, 1.0, tolerance, nested)[:, 0] * widest

    def _bound(
        self, radii: Float[Tensor, "a"], images: Int[Tensor, "a"], others: Int[Tensor, "a k"], nested: bool = False
    ) -> Float[Tensor, "a k"]:
        """Return lower bounds of the signed distances to some hyperplanes over balls of these radii."""
        graph, domain = self.certified.graph, self.certified.encoder.domain
        around = region(self.anchors[images], type(self.ball), radii, domain, nested, graph.inputs)
        planes = self.planes(images, others)
        bounds = vacuous_unless_finite(self.method(graph, around, planes.normals)) - planes.offsets
        return bounds.masked_fill(~planes.defined, 0.0)

    def _box(
        self, radii: Float[Tensor, "b"], wanted: Bool[Tensor, "b"]
    ) -> tuple[Float[Tensor, "b d"], Float[Tensor, "b d"]]:
        """Return the least and the largest value of each feature over the balls of the images wanted."""
        graph, domain, d = self.certified.graph, self.certified.encoder.domain, self.own.shape[1]
        cheap = self.method if isinstance(self.method, Interval) else Crown()
        axes = torch.eye(d, dtype=torch.float64, device=self.own.device)
        low, high = torch.full_like(self.own, -torch.inf), torch.full_like(self.own, torch.inf)
        for images in wanted.nonzero()[:, 0].split(max(1, AT_ONCE // (2 * d))):
            around = region(self.anchors[images], type(self.ball), radii[images], domain, inputs=graph.inputs)
            both = cheap(graph, around, torch.cat([axes, -axes]).expand(len(images), -1, -1))
            low[images], high[images] = vacuous_unless_finite(both).chunk(2, 1)
            high[images] = -high[images]
        return low, high

    def _blocks(self, wanted: Bool[Tensor, "b n"]) -> Iterator[tuple[Int[Tensor, "1"], Int[Tensor, "k"]]]:
        """Yield each image with the others wanted of it, some thousand at a time."""
        for image in wanted.any(1).nonzero():
            for others in wanted[image[0]].nonzero()[:, 0].split(AT_ONCE):
                yield image, others

    def _batches(self, wanted: Bool[Tensor, "b n"]) -> Iterator[tuple[Int[Tensor, "a"], Int[Tensor, "a k"]]]:
        """Yield images with others, all that are wanted and some besides, at most some thousand specifications together."""
        counts = wanted.sum(1)
        images = counts.argsort(descending=True)
        images = images[counts[images] > 0]
        while len(images):
            width = int(counts[images[0]])
            batch, images = images[: max(1, AT_ONCE // width)], images[max(1, AT_ONCE // width) :]
            others = wanted[batch].int().argsort(dim=1, descending=True)[:, :width]
            for part in others.split(AT_ONCE, dim=1):
                yield batch, part


def own_match(
    population: Population, rows: Sequence[int], certification: Certification, divergence: Divergence, ball: Ball
) -> OwnMatch:
    """Return the images at ``rows`` with the images that an attack at retrieval counts."""
    anchors = population.pixels(rows).double()
    certified = certification.encoder(population, anchors)
    searched, device = Searched(population), population.codes.device
    own, gallery = population.codes[list(rows)].double(), searched.gallery.codes.double()
    counted = searched.counted(rows) & present(divergence, gallery) & present(divergence, own)[:, None]
    # Of exact copies the first stands for all.
    originals = population.first_copies[list(rows)] == torch.as_tensor(rows)
    counted = counted & originals.to(device)[:, None]
    return OwnMatch(certified, divergence, certification.method, ball, anchors, own, gallery, counted)


def present(divergence: Divergence, codes: Float[Tensor, "n d"]) -> Bool[Tensor, "n"]:
    """Return which embeddings have a place: under cosine a zero one has no direction."""
    embedded = divergence.embed(codes)
    return torch.ones_like(codes[:, 0], dtype=torch.bool) if embedded is None else embedded.isfinite().all(1)


def least_in_box(planes: BisectorHyperplanes, low: Float[Tensor, "1 d"], high: Float[Tensor, "1 d"]) -> Tensor:
    """Return lower bounds of the signed distances of a box to each of ``k`` hyperplanes, (k,); minus infinity without one.

    The box ends may be infinite.
    """
    (normals,), (offsets,), (defined,) = planes.normals, planes.offsets, planes.defined
    ends = torch.where(normals > 0, low, high)
    terms = torch.where(normals == 0, 0.0, normals * ends)
    rounding = ROUNDING * (terms.abs().sum(1) + offsets.abs())
    return vacuous_unless_finite(terms.sum(1) - offsets - rounding).masked_fill(~defined, -torch.inf)
