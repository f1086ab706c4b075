"""The largest radius at which a specification is proved, by bracketing or by bisection."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from holdfast.bounds.methods.base import Crown, Method, RadiusProblem, RadiusResult, RadiusSearch, vacuous_unless_finite
from holdfast.bounds.methods.lipschitz import Lipschitz
from holdfast.bounds.network.network_graph import Graph
from holdfast.bounds.regions import Region, region
from holdfast.core.balls import Ball, Linf
from holdfast.core.encoder import Domain, Pixels
from holdfast.core.errors import OutOfRange

# The largest radius at which a bound is found positive, for all specifications of an image at once.
#
# Each specification has a bracket: a radius with a positive bound and one without. Bounding all open specifications
# at one radius may narrow many brackets. The next radius is the one that narrows most: just below or above the root
# that a parabola through earlier bounds predicts. The bound need not fall monotonically with the radius, so the
# radius returned is one that was itself certified, never an inferred one.
#
# With nested regions, one evaluation can close a bracket from both sides: it finds no proof just above the root, and
# the linear relaxations computed there give a proof just below it.

Radii = Float[Tensor, "b s"]
Bound = Callable[[Int[Tensor, "a"], Float[Tensor, "a"], Int[Tensor, "a k"]], Float[Tensor, "a k"]]
"""Lower bounds of the named specifications of the named images, each image at its own radius."""
GROWTH = 4.0
FIRST = 2.0**-6  # the first radius tried, as a share of the largest
ASIDE = (-0.3, 0.3)  # candidates above a predicted root, in tolerances: one on either side closes a bracket
ABOVE = (0.3, 0.15, 0.45)  # the same for nested regions: one closes it; the first is safest, all serve neighbours
STEADY = 1.0  # how far, in tolerances, the newest bounds may have moved a root that counts as steady
CANDIDATES = 8  # the most radii of an image that are tried together
REACH = 0.98  # how far the inner radius lies below the outer one, in tolerances: a proof there closes a bracket
PATIENCE = 8  # evaluations that may each leave more than half of a bracket, before it is bisected


@dataclass
class BracketSearch:
    """The radii ``eps`` tried so far for each image, and the bounds ``values`` there (NaN: not computed), newest last."""

    eps: Float[Tensor, "b r"]
    values: Float[Tensor, "b s r"]
    most: float
    tolerance: float
    stale: Int[Tensor, "b s"]
    """Number of successive evaluations that left more than half of the bracket."""
    guess: Float[Tensor, "b s"]
    """The root that was predicted before the newest bound."""
    nested: bool = False
    """Whether an evaluation just above a root may close the bracket by itself."""

    @property
    def asides(self) -> tuple[float, ...]:
        """The candidates above a predicted root, in tolerances, the preferred first."""
        return ABOVE if self.nested else ASIDE

    def bracket(self) -> tuple[Float[Tensor, "b s"], Float[Tensor, "b s"]]:
        """Return the largest radius with a positive bound, and the smallest one above it without (infinite if none)."""
        eps = self.eps[:, None].expand_as(self.values)
        low = torch.where(self.values > 0, eps, -torch.inf).amax(2)
        high = torch.where((self.values <= 0) & (eps > low[..., None]), eps, torch.inf).amin(2)
        return low, high

    def open(self) -> Bool[Tensor, "b s"]:
        """Return the specifications whose brackets are wider than the tolerance."""
        low, high = self.bracket()
        return (self.values[..., 0] > 0) & (low < self.most) & (high - low > self.tolerance)

    def add(self, eps: Float[Tensor, "b p"], values: Float[Tensor, "b s p"]) -> None:
        """Add the bounds at more radii of each image."""
        width = torch.sub(*reversed(self.bracket()))
        self.eps = torch.cat([self.eps, eps], 1)
        self.values = torch.cat([self.values, values], 2)
        left = torch.sub(*reversed(self.bracket()))
        self.stale = torch.where(left <= width / 2, 0, self.stale + (left < width))

    def next(self) -> tuple[Float[Tensor, "b p"], Bool[Tensor, "b p s"]]:
        """Return the next radii of each image, NaN where it needs fewer, and which specifications to bound there.

        The first radius is the one that narrows most brackets; among equals, the one nearest to the median root. Until
        most roots are steady, all specifications whose roots still move are bounded there. Later, more radii are
        returned, close to steady roots.
        """
        todo, (low, high) = self.open(), self.bracket()
        root = self.root(low, high).clamp_max(self.most)
        steady = (root - self.guess).abs() <= self.tolerance * STEADY
        candidates = torch.cat([self._beside(root, steady, low, high, aside) for aside in self.asides], 1)
        every = len(self.asides)
        gap = candidates[:, :, None] - root[:, None]
        useful = self._useful(root, gap, low, high) & todo[:, None, :, None]
        queries = torch.where(todo, root, torch.nan)
        far = ((root - queries.nanmedian(1, keepdim=True).values).abs() / self.most).repeat(1, every)
        ripe = todo & steady
        ripe = ripe & (2 * ripe.sum(1, keepdim=True) >= todo.sum(1, keepdim=True))
        chosen, asked_there = list[Tensor](), list[Tensor]()
        for turn in range(CANDIDATES):
            gain = useful.sum((2, 3))
            allowed = todo.repeat(1, every) if turn == 0 else ripe.repeat(1, every) & (gain > 0)
            if not allowed.any():
                break
            best = torch.where(allowed, gain - far, -torch.inf).argmax(1, keepdim=True)
            eps = torch.where(allowed.any(1, keepdim=True), candidates.gather(1, best), torch.nan)
            decisive = torch.zeros_like(todo).scatter(1, best % todo.shape[1], True)
            near = decisive | (~steady & ~ripe.any(1, keepdim=True)) | ((eps - root).abs() <= self.tolerance)
            chosen.append(eps)
            asked_there.append(todo & near & (low < eps) & (eps < high))
            useful = useful & ~useful.take_along_dim(best[..., None, None], 1)
        wanted = torch.stack(asked_there, 1)
        self.guess = torch.where(wanted.any(1), root, self.guess)
        return torch.cat(chosen, 1), wanted

    def _useful(self, root: Radii, gap: Float[Tensor, "b q s"], low: Radii, high: Radii) -> Bool[Tensor, "b q s n"]:
        """Return which candidates, ``gap`` above a root, would be the first close enough below it, and above it.

        Both sides of a bracket share the tolerance: half each, or what the other side leaves. Nested regions close both
        sides by one evaluation above the root.
        """
        half = self.tolerance / 2
        below, above = (root - low)[:, None], (high - root)[:, None]
        lower = (gap < 0) & (-gap < (self.tolerance - above).clamp_min(half)) & (below > half)
        upper = (gap >= 0) & (gap < (self.tolerance - below).clamp_min(half)) & (above > half)
        if self.nested:
            return (upper | (lower & (above <= half)))[..., None]
        return torch.stack([lower, upper], 3)

    def _beside(self, root: Radii, steady: Bool[Tensor, "b s"], low: Radii, high: Radii, aside: float) -> Radii:
        """Return the candidate on one side of each root, or on the other side where this one is close enough."""
        near = self.tolerance * aside
        settled = (root - low if aside < 0 else high - root) <= self.tolerance / 2
        candidate = root + torch.where(settled, -near, near)
        margin = (high - low).clamp_max(self.tolerance) / 8
        candidate = torch.maximum(low + margin, torch.minimum(candidate, high - margin))
        candidate = torch.where(self.stale >= PATIENCE, (low + high) / 2, candidate)
        beyond = torch.maximum(torch.minimum(root, GROWTH * low), low + self.tolerance)
        beyond = torch.where(low > 0, beyond, self.most * FIRST)
        return torch.where(high.isinf() & ~(steady & (root <= GROWTH * low)), beyond, candidate).clamp_max(self.most)

    def root(self, low: Float[Tensor, "b s"], high: Float[Tensor, "b s"]) -> Float[Tensor, "b s"]:
        """Return the radius at which the parabola through the three nearest points has bound zero."""
        middle = torch.where(high.isinf(), low, (low + high) / 2)
        distance = (self.eps[:, None] - middle[..., None]).abs().masked_fill(~self.values.isfinite(), torch.inf)
        near = distance.argsort(2)[..., :3]
        y, x = self.values.gather(2, near), self.eps[:, None].expand_as(self.values).gather(2, near)
        x, y = torch.where(y.isfinite(), x, torch.nan), torch.where(y.isfinite(), y, torch.nan)
        roots = inverse(x, y)
        roots = torch.where(roots.isfinite(), roots, inverse(x[..., :2], y[..., :2]))
        halves = torch.where(high.isinf(), 2 * low, (low + high) / 2)
        return torch.where((roots > low) & (roots < high), roots, halves)


def inverse(x: Float[Tensor, "b s p"], y: Float[Tensor, "b s p"]) -> Float[Tensor, "b s"]:
    """Return Lagrange's polynomial of x over y at y = 0."""
    roots = torch.zeros_like(x[..., 0])
    for i in range(x.shape[2]):
        weight = torch.ones_like(roots)
        for j in range(x.shape[2]):
            if j != i:
                weight = weight * y[..., j] / (y[..., j] - y[..., i])
        roots = roots + weight * x[..., i]
    return roots


def bracket_radii(
    bound: Bound, clean: Float[Tensor, "b s"], most: float, tolerance: float, nested: bool = False
) -> Float[Tensor, "b s"]:
    """Return the largest radius, up to ``most``, at which each bound was found positive; 0 where even radius zero is not.

    Args:
        bound: lower bounds at given radii.
        clean: the specifications' values at radius zero.
        most: the largest radius of interest.
        tolerance: how close above the result a radius without a positive bound must have been tried.
        nested: whether to call ``bound`` with each image twice, the second time at a slightly smaller radius, where it
            may return a weaker bound for little more work.
    """
    start = torch.zeros_like(clean[:, :1])
    never = torch.full_like(clean, torch.inf)
    search = BracketSearch(
        start, clean[..., None], most, tolerance, torch.zeros_like(clean, dtype=torch.int64), never, nested
    )
    while True:
        todo = search.open()
        if not todo.any():
            return torch.where(clean > 0, search.bracket()[0], 0.0)
        eps, wanted = search.next()
        if not nested:
            search.add(eps, *_ask(bound, eps[None], wanted))
            continue
        below = (eps - tolerance * REACH).clamp_min(0)
        values, inner = _ask(bound, torch.stack([eps, below]), wanted)
        # A failure at the inner radius says nothing: relaxed over its own region, the bound may be positive.
        inner = torch.where((values <= 0) & (inner > 0), inner, torch.nan)
        search.add(torch.cat([below, eps], 1), torch.cat([inner, values], 2))


def _ask(bound: Bound, at: Float[Tensor, "n b p"], wanted: Bool[Tensor, "b p s"]) -> Float[Tensor, "n b s p"]:
    """Return the bounds of the specifications wanted at each candidate, at its ``n`` radii; NaN for others.

    A few candidates are bounded at a time.
    """
    values = torch.full((len(at), *wanted.shape), torch.nan, dtype=at.dtype, device=at.device)
    images, candidates = wanted.any(2).nonzero(as_tuple=True)
    most = max(len(wanted), CANDIDATES)
    for image, candidate in zip(images.split(most), candidates.split(most), strict=True):
        here = wanted[image, candidate]
        # Wanted specifications come first; where there are fewer, others fill the batch and are dropped.
        indices = here.int().argsort(dim=1, descending=True)[:, : int(here.sum(1).max())]
        bounds = bound(image.repeat(len(at)), at[:, image, candidate].flatten(), indices.repeat(len(at), 1))
        bounds = bounds.nan_to_num(-torch.inf, torch.inf, -torch.inf).unflatten(0, (len(at), -1))
        kept = torch.where(here.gather(1, indices), bounds, torch.nan)
        values[:, image, candidate] = values[:, image, candidate].scatter(2, indices.expand(len(at), -1, -1), kept)
    return values.mT


# The radius up to which each specification is proved positive, by any method.
#
# Most methods are asked for bounds at many radii; a ``RadiusSearch`` searches by itself, from what CROWN proves,
# in l2 and l1 balls with Lipschitz constants beside it.

SMALLEST_TOLERANCE = 1e-9
"""The smallest tolerance: float64 tells no radii apart that are much closer."""


def quick_method(method: Method, ball: type[Ball]) -> Method:
    """Return ``method``, or a cheap one if it searches for radii itself."""
    cheap = Crown() if ball is Linf else Lipschitz()
    return cheap if isinstance(method, RadiusSearch) else method


def search_radii(
    method: Method,
    graph: Graph,
    pixels: Pixels,
    specifications: Float[Tensor, "b s d"],
    ball: type[Ball],
    domain: Domain,
    largest: Float[Tensor, "b"],
    tolerance: float,
    high: Float[Tensor, "b s"] | None = None,
) -> RadiusResult:
    """Return the largest radius found, up to ``largest``, at which each specification is proved positive; 0 where none is.

    A ``RadiusSearch`` may also return points close to which it expects a specification to fail.

    Args:
        method: asked at one radius after another, unless it is a ``RadiusSearch``: that one starts from what CROWN proves.
        graph: the encoder.
        pixels: images.
        specifications: linear functions of the embedding.
        ball: kind of ball.
        domain: range of the pixels.
        largest: for each image, the largest radius of interest.
        tolerance: of the search, as a fraction of ``largest``.
        high: radii at which specifications are known to fail, beyond which a ``RadiusSearch`` does not look.
    """
    if not SMALLEST_TOLERANCE <= tolerance <= 1:
        raise OutOfRange("tolerance", tolerance, f"a fraction from {SMALLEST_TOLERANCE:g} to 1")
    clean = (specifications @ graph(pixels)[..., None]).squeeze(2)
    bounding = quick_method(method, ball)
    # In other balls, minimising over a second region costs as much as all the rest.
    nested = isinstance(bounding, Crown) and ball is Linf

    def bound(images: Int[Tensor, "a"], shares: Float[Tensor, "a"], chosen: Int[Tensor, "a k"]) -> Float[Tensor, "a k"]:
        around = region(pixels[images], ball, shares * largest[images], domain, nested, graph.inputs)
        return vacuous_unless_finite(bounding(graph, around, specifications[images[:, None], chosen]))

    radii = bracket_radii(bound, clean, 1.0, tolerance, nested) * largest[:, None]
    points = torch.full((*radii.shape, *pixels.shape[1:]), torch.nan, dtype=pixels.dtype, device=pixels.device)
    if isinstance(method, RadiusSearch):
        ends = largest[:, None].expand_as(radii) if high is None else high
        ends = torch.where(clean > 0, ends, 0.0)
        for image in range(len(pixels)):

            def region_at(eps: Float[Tensor, "b"], centre: Tensor = pixels[image]) -> Region:
                return region(centre.expand(len(eps), *centre.shape), ball, eps, domain, inputs=graph.inputs)

            problem = RadiusProblem(graph, region_at, specifications[image], radii[image], ends[image])
            radii[image], found = method.search_radii(problem)
            points[image] = torch.nan if found is None else found
    return RadiusResult(radii, points)


BISECTION_GROWTH = 2.5
"""Largest factor from a proved radius to the next one tried: a proof costs more time than a failure."""
CLOSE = 0.01
"""The search of a radius ends when its bracket is this narrow, as a fraction of the radius."""
STEP = 1.02
"""Radii are rounded to powers of this where that is fine enough, so that specifications share intermediate bounds."""

Prove = Callable[[Region, Int[Tensor, "o"], Int[Tensor, "o"], float], Bool[Tensor, "o"]]
"""Function that proves specifications positive, from regions, indices, the region of each, and a deadline."""


def bisect_radii(prove: Prove, problem: RadiusProblem, rounds: int, seconds: float) -> RadiusResult:
    """Return for each specification of one image the largest radius found, from ``low`` to ``high``, that is proved.

    The time is shared so that ``rounds`` attempts can fail; what successes leave of their time goes to later ones.
    """
    low, high, turn = problem.low.clone(), problem.high.clone(), 0
    end = time.monotonic() + seconds
    while len(open_ := (high > low * (1 + CLOSE)).nonzero()[:, 0]) and (now := time.monotonic()) < end:
        eps, region = next_radii(low[open_], high[open_]).unique(return_inverse=True)
        won = prove(problem.region_at(eps), open_, region, now + (end - now) / max(rounds - turn, 2))
        below, above = torch.where(won, eps[region], low[open_]), torch.where(won, high[open_], eps[region])
        low[open_], high[open_], turn = below, above, turn + 1
    return RadiusResult(low)


def next_radii(low: Float[Tensor, "o"], high: Float[Tensor, "o"]) -> Float[Tensor, "o"]:
    """Return the radius to try between the ends of each bracket."""
    middle = (low + high) / 2
    middle = torch.where(low > 0, torch.minimum(middle, BISECTION_GROWTH * low), middle)
    rounded = (math.log(STEP) * (middle.log() / math.log(STEP)).round()).exp()
    margin = (high - low) / 4
    return torch.where((rounded > low + margin) & (rounded < high - margin), rounded, middle)
