"""Embeddings of two sets of images, as input of all drift tests; conformal p-values and a betting test of the new ones."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import hypot
from os.path import splitext

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from holdfast.core.divergences import DIVERGENCES, Divergence
from holdfast.core.encoder import Codes
from holdfast.core.errors import HoldfastError
from holdfast.core.noise import hashed_each
from holdfast.core.statistics.groups import numbered
from holdfast.core.statistics.intervals import quantile_interval, share_interval
from holdfast.measure.population import Population
from holdfast.service.energy import BLOCK, Clusters, Weights, assignments, distances, smallest_p_value
from holdfast.service.false_matches import groups_of

TESTS = 2
"""Tests that decide together: the energy distance and the classifier."""
LEAST = 4
"""Least number of images, or of groups of images, in each set: two to fit and two to test."""


@dataclass(frozen=True)
class TwoSets:
    """Points of the reference images, ``before``, and of the measured images, ``after``, with their ids."""

    before: Float[Tensor, "n d"]
    after: Float[Tensor, "m d"]
    before_ids: tuple[str, ...]
    after_ids: tuple[str, ...]
    before_groups: tuple[str, ...]
    after_groups: tuple[str, ...]
    before_half: Bool[Tensor, "n"]
    """Points on which classifiers are fitted, and which form the support."""
    after_half: Bool[Tensor, "m"]

    @cached_property
    def frame(self) -> tuple[Float[Tensor, "d"], Float[Tensor, ""]]:
        """Centre and scale of both, on which float32 neither overflows nor vanishes."""
        both = torch.cat([self.before, self.after])
        centre = both.mean(0)
        return centre, (both - centre).abs().max().clamp_min(1e-300)

    def framed(self, points: Float[Tensor, "*s d"]) -> Float[Tensor, "*s d"]:
        """Return ``points`` as ``self.points`` are: centred and on one scale."""
        centre, scale = self.frame
        return (points - centre) / scale

    @cached_property
    def points(self) -> Float[Tensor, "s d"]:
        """Both, those before first, framed."""
        return self.framed(torch.cat([self.before, self.after]))

    @cached_property
    def first(self) -> Bool[Tensor, "s"]:
        """Mask of ``points`` from the reference set."""
        return torch.arange(len(self.points)) < len(self.before)

    @cached_property
    def learning(self) -> Bool[Tensor, "s"]:
        """Mask of ``points`` for fitting."""
        return torch.cat([self.before_half, self.after_half])

    @cached_property
    def smallest_p_values(self) -> tuple[float, float]:
        """The smallest p-values of both tests that so few images allow, whatever their embeddings: energy, classifier."""
        names = np.array(self.before_groups), np.array(self.after_groups)
        asked = names[0][~self.before_half.numpy()], names[1][~self.after_half.numpy()]
        (n, m), (p, q) = ([len(np.unique(groups)) for groups in sides] for sides in (names, asked))
        return smallest_p_value(n, m, two_sided=True), smallest_p_value(p, q, two_sided=False)

    @property
    def smallest_p_value(self) -> float:
        """The smallest p-value of drift that so few images allow: of both tests, corrected."""
        return min(1.0, TESTS * min(self.smallest_p_values))

    @cached_property
    def copies(self) -> Int[Tensor, "p 2"]:
        """Rows before and after of one name: the same image, perhaps, before and after something was done to it."""
        places = {name: row for row, name in enumerate(without_endings(self.after_ids))}
        names = enumerate(without_endings(self.before_ids))
        pairs = [(row, places[name]) for row, name in names if name in places]
        return torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2)

    @cached_property
    def clusters(self) -> Clusters:
        """The number of each point's cluster: its group, in either set, or itself and its copy."""
        names = [*without_endings(self.before_groups), *without_endings(self.after_groups)]
        return torch.from_numpy(numbered(np.array(names)))

    def assignments(self, permutations: int, seed: int, of: Bool[Tensor, "s"] | None = None) -> Weights:
        """Weights of random assignments of the samples to both sets.

        Args:
            of: Mask of samples to assign, shape (s,); None for all.
        """
        of = torch.ones(len(self.points), dtype=torch.bool) if of is None else of
        chosen = of.nonzero()[:, 0].tolist()
        ids = [*(f"before/{name}" for name in self.before_ids), *(f"after/{name}" for name in self.after_ids)]
        groups = [*self.before_groups, *self.after_groups]
        count = int(of[: len(self.before)].sum())
        return assignments(count, [ids[k] for k in chosen], [groups[k] for k in chosen], permutations, seed)


def two_sets(population: Population, divergence: Divergence) -> TwoSets:
    """Reference set and measured images as points for tests of drift.

    Raises:
        HoldfastError: A set is too small, or the divergence has no such points.
    """
    bank, divergence = population.bank, population.fitted(divergence)
    names, halves, seed = [groups_of(each) for each in (bank, population)], list[Tensor](), population.run.seed
    for side, each, groups in zip(("before", "after"), (bank, population), names, strict=True):
        if (count := len(set(groups))) < LEAST:
            kind = "images" if each.images.groups is None else "groups of images"
            raise HoldfastError(
                f"drift compares two sets of at least {LEAST} {kind} each, and {each.images.name} ({side}) has "
                f"{count}; add images"
            )
        halves.append(half([f"{side}/{name}" for name in groups], seed))
    return TwoSets(
        before=placed(bank.codes.cpu(), divergence),
        after=placed(population.codes.cpu(), divergence),
        before_ids=bank.images.ids,
        after_ids=population.images.ids,
        before_groups=tuple(names[0]),
        after_groups=tuple(names[1]),
        before_half=halves[0],
        after_half=halves[1],
    )


def divergences() -> dict[str, type[Divergence]]:
    """Return what drift can measure by: Euclidean distances that know nothing of either set.

    Example:
        >>> list(divergences())
        ['l2', 'cosine', 'unit_l2', 'rank', 'wasserstein', 'tokens']
    """
    probe = torch.ones(1, 2)
    return {name: kind for name, kind in DIVERGENCES.items() if not kind.learns and kind().embed(probe) is not None}


def check_euclidean(divergence: Divergence) -> None:
    """Raise unless drift can measure by ``divergence``."""
    if divergence.name not in divergences():
        raise _not_euclidean(divergence)


def _not_euclidean(divergence: Divergence) -> HoldfastError:
    return HoldfastError(
        f"drift measures by Euclidean distances that know nothing of either set, which {divergence} does not give; use "
        f"one of {', '.join(divergences())}"
    )


def placed(codes: Codes, divergence: Divergence) -> Codes:
    """Points whose Euclidean distance grows with a divergence.

    Raises:
        HoldfastError: The divergence has no such points, or an embedding is zero and needs a direction.
    """
    check_euclidean(divergence)
    points = divergence.embed(codes.double())
    if points is None:  # as with tokens:divergence=l2
        raise _not_euclidean(divergence)
    if (codes.isfinite().all(1) & ~points.isfinite().all(1)).any():
        raise HoldfastError(f"an embedding is zero, which {divergence} gives no direction; use l2")
    return points


def without_endings(names: Sequence[str]) -> list[str]:
    """Return names of files without their endings, where these tell none apart.

    Example:
        >>> without_endings(["a.png", "b.png"]), without_endings(["a.0", "a.1"])
        (['a', 'b'], ['a.0', 'a.1'])
    """
    bare = [splitext(name)[0] for name in names]
    return bare if len(set(bare)) == len(set(names)) else list(names)


def half(names: Sequence[str], seed: int) -> Bool[Tensor, "n"]:
    """Mask of a random half of the samples, equal names together, whatever their order.

    Example:
        >>> int(half(["a", "b", "c", "d"], seed=0).sum())
        2
    """
    distinct = sorted(set(names))
    order = np.argsort(hashed_each((seed, "half"), distinct), kind="stable")
    chosen = {distinct[place] for place in order[: (len(distinct) + 1) // 2].tolist()}
    return torch.tensor([name in chosen for name in names])


# Which codes lie outside what another set covers: conformal p-values of nearest-neighbour distances.
#
# The reference set is split at random. A sample's score is its distance to the nearest code of one half; the other
# half says how large such distances are: ``p = (1 + #{reference scores >= score}) / (1 + n)``. A sample of the same
# distribution has ``p <= t`` with chance ``t`` at most, exactly, since its score and theirs are exchangeable.
# Declaring new what Benjamini and Hochberg's procedure picks keeps the expected share of false ones among these at
# the stated rate, although all p-values share one reference (Bates et al. 2023, https://arxiv.org/abs/2104.08279,
# theorem 2).

Scores = Float[np.ndarray, "n"]


def support_distances(points: Float[Tensor, "n d"], support: Float[Tensor, "m d"]) -> Float[Tensor, "n"]:
    """Distance of each point to the nearest point of a reference.

    Args:
        points: Points, shape (n, d).
        support: Points of the reference, shape (m, d).

    Example:
        >>> support_distances(torch.tensor([[0.0], [5.0]]), torch.tensor([[1.0], [3.0]]))
        tensor([1., 2.])
    """
    centre = support.double().mean(0)
    points, support = (points - centre).float(), (support - centre).float()
    nearest = torch.full((len(points),), torch.inf)
    for top in range(0, len(points), BLOCK):
        for left in range(0, len(support), BLOCK):
            block = distances(points[top : top + BLOCK], support[left : left + BLOCK]).amin(1)
            nearest[top : top + BLOCK] = nearest[top : top + BLOCK].minimum(block)
    return nearest


def conformal_p_values(scores: Scores, reference: Float[np.ndarray, "m"]) -> Scores:
    """Conformal p-value of each score: small if it is larger than nearly all references.

    Example:
        >>> conformal_p_values(np.array([0.5, 9.0]), np.array([1.0, 2.0, 3.0]))
        array([1.  , 0.25])
    """
    ordered = np.sort(reference)
    return (1 + len(ordered) - np.searchsorted(ordered, scores, side="left")) / (1 + len(ordered))


def discovered(p_values: Scores, rate: float) -> Bool[np.ndarray, "n"]:
    """Mask of images to declare new at a false discovery rate (Benjamini and Hochberg 1995).

    Args:
        p_values: p-value of each image, shape (n,).
        rate: Expected fraction of false discoveries, 0 to 1.

    Example:
        >>> discovered(np.array([0.01, 0.02, 0.9]), 0.1)
        array([ True,  True, False])
    """
    from scipy.stats import false_discovery_control

    return np.asarray(false_discovery_control(p_values) <= rate)


def share_beyond(scores: Scores, reference: Float[np.ndarray, "m"], alpha: float) -> tuple[float, float, float]:
    """Fraction of scores in the upper tail of the reference, with its interval.

    Variation in both sets adds up in squares (Zou and Donner 2008).

    Args:
        alpha: Probability of the tail, 0 to 1.
    """
    p_values = conformal_p_values(scores, reference)
    beyond = int((p_values <= alpha).sum())
    value = beyond / len(scores)
    ends = share_interval(beyond, len(scores))
    cuts = quantile_interval(reference, 1 - alpha)
    least, most = (float((scores > cut).mean()) for cut in (cuts[1], cuts[0]))
    low = value - hypot(value - ends[0], value - min(value, least))
    high = value + hypot(ends[1] - value, max(value, most) - value)
    return value, max(0.0, low), min(1.0, high)


# A test that may be looked at after every sample: a bet against *nothing has changed* that cannot grow if that is
# true.
#
# Scores of the reference come first, then those that arrive, in the order in which they arrive. The rank of each
# among all before it, ``p_t = (#{s_i > s_t} + u_t #{s_i = s_t}) / t``, is uniform and independent of what came
# earlier as long as all come from one distribution. The simple jumper bets on ``p`` being small, on its being large,
# and on nothing, and moves a hundredth of its capital between the three before every bet (Vovk et al. 2021,
# https://arxiv.org/abs/2102.10439, section 3). Its capital is a martingale that starts at 1: the chance that it
# *ever* reaches ``1 / alpha`` is at most ``alpha`` (Ville).

BETS = np.array([-1.0, 0.0, 1.0])
JUMPING = 0.01
"""Fraction of the capital that is divided again before every bet."""


def ranks_among_earlier(
    reference: Float[np.ndarray, "m"], arriving: Float[np.ndarray, "n"], uniform: Float[np.ndarray, "n"]
) -> Float[np.ndarray, "n"]:
    """Fraction of larger scores among all earlier ones, for each arriving score.

    Args:
        arriving: New scores in order, shape (n,).
        uniform: Uniform draws that break ties, shape (n,).

    Example:
        >>> ranks_among_earlier(np.array([1.0, 2.0, 3.0]), np.array([9.0, 2.5]), np.array([0.5, 0.5]))
        array([0.125, 0.5  ])
    """
    ordered, ranks = sorted(reference.tolist()), []
    for score, draw in zip(arriving.tolist(), uniform.tolist(), strict=True):
        insort(ordered, score)
        equal = bisect_right(ordered, score) - bisect_left(ordered, score)
        ranks.append((len(ordered) - bisect_right(ordered, score) + draw * equal) / len(ordered))
    return np.array(ranks)


def log_capital(ranks: Float[np.ndarray, "n"]) -> Float[np.ndarray, "n"]:
    """Return the logarithm of the capital after each bet.

    Example:
        >>> float(log_capital(np.full(20, 0.01))[-1]) > 3, float(log_capital(np.array([0.5]))[0])
        (True, 0.0)
    """
    shares, logarithm, path = np.full(len(BETS), 1 / len(BETS)), 0.0, []
    for rank in ranks.tolist():
        shares = (1 - JUMPING) * shares + JUMPING / len(BETS)
        shares = shares * (1 + BETS * (rank - 0.5))
        growth = float(shares.sum())
        shares, logarithm = shares / growth, logarithm + float(np.log(growth))
        path.append(logarithm)
    return np.array(path)
