"""Certified attack radius: the ε up to which an image provably keeps its own match.

The event is that of ``attack-radius``, on the same images, the same gallery and the same distance:

    R(x) = min { norm(x' - x) : d(f(x'), f(z)) < d(f(x'), f(x)) for some other image z }

Under l2 and cosine the embeddings nearer to ``z`` fill a half-space, so each ``z`` is one linear specification of
``f(x')``. Bounds of all of them prove a radius below ``R(x)`` (``bounds/own_match``), the attack finds one above it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from holdfast.attacks.attacked_radii import LEFT_OUT, SMALLEST, Radii, neighbours, of_neighbours
from holdfast.attacks.base import Attack
from holdfast.attacks.presets import NAMED, label
from holdfast.bounds.bound_findings import CertifiedEvaluation, CrossCheck, findings, point_witness
from holdfast.bounds.certified_pairs import PairAttack
from holdfast.bounds.methods.base import Crown, Method
from holdfast.bounds.own_match import OwnMatch, own_match
from holdfast.bounds.pair_bounds import INSIDE, CertifiedObservation, cross_check
from holdfast.core.balls import Ball, Linf
from holdfast.core.divergences import Divergence, L2Distance
from holdfast.core.encoder import Pixels
from holdfast.core.records import Claim, Conditions, Findings
from holdfast.core.run_settings import Observed
from holdfast.core.statistics.quantiles import radius_findings
from holdfast.core.statistics.summaries import series_of
from holdfast.measure.evaluation import Sizes
from holdfast.measure.observation import Joint
from holdfast.measure.population import Population

CERTIFIED, ATTACKED = "certified_attack_radius", "attacked_attack_radius"


@final
@dataclass(frozen=True)
class OwnMatchBounds(CertifiedObservation):
    """For each image the ``certified`` radius, and whether an attack ``entered`` it: 1 if another image was nearer."""

    widest: Ball
    divergence: Divergence
    tolerance: float
    name = "own match"
    version = 1
    uses_bank = True
    uses_groups = True

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        match = self.match(population, rows)
        certified = match.radii(self.tolerance)
        entered = match.entered(self.attacked(population, rows, match, certified))
        return {"certified": certified, "entered": (entered & (certified > 0)).double()}

    def match(self, population: Population, rows: Sequence[int]) -> OwnMatch:
        """Return the images at ``rows`` and the others that each is compared with."""
        return own_match(population, rows, self.certification, self.divergence, self.widest)

    def attacked(
        self, population: Population, rows: Sequence[int], match: OwnMatch, radii: Float[Tensor, "b"]
    ) -> Pixels:
        """Return where attacks at the image nearest by lead inside the certified ``radii``."""
        pairs = match.weakest(match.margins(match.own), population, rows, "own match")
        return cross_check(PairAttack(pairs, type(self.widest)(1.0), self.certification.attack), radii[:, None]).points


@final
@dataclass(frozen=True)
class CertifiedAttackRadius(CertifiedEvaluation):
    """Smallest perturbation that makes an image match another one: proved and attacked.

    The radius is at least as large as proved (lower bound) and at most as large as attacked (upper bound).
    """

    widest: Ball = Linf(0.5)
    """Norm of perturbations and largest ε searched."""
    attack: Attack = NAMED["adaptive"]
    """As in `attack-radius`; also tries to violate every certificate."""
    divergence: Divergence = L2Distance()
    """Distance between embeddings: `l2` or `cosine`."""
    rivals: int = 10
    """As in `attack-radius`."""
    samples: int = 300
    """Number of certified images, the first that `attack-radius` attacks."""
    method: Method = Crown()
    """Bounding method."""
    tolerance: float = 1e-4
    """Precision of the search for certified radii, as a fraction of `widest`."""
    neurons: int = 50_000
    """Largest number of nonlinear units; larger encoders are refused."""
    arithmetic: str = "real"
    """`real` for exact arithmetic, `executed` for floating-point arithmetic."""
    # The attack is that of attack-radius; bounds are expensive, so there are fewer images.
    sizes = Sizes(
        quick={"samples": 60, "attack": "adaptive:restarts=1,steps=10"},
        full={"samples": 500, "method": "alpha", "attack": "adaptive:steps=100,restarts=5"},
        large={"samples": 30, "attack": "adaptive:restarts=1,steps=5"},
    )
    name = "certified-attack-radius"
    version = 2
    uses_bank = True
    title = "Certified attack radius"
    meaning = (
        "The certified attack radius of an image is a size of change up to which no other image becomes nearer to it than "
        "its own clean self: this is proved for every such change and every other image. The attacked radius is the "
        "smallest change found after which another image is nearer, so the true radius lies between the two."
    )
    headline = (CERTIFIED, ATTACKED)
    words = ((ATTACKED, "attack radius"),)

    positive = ("rivals", "tolerance")

    def observation(self) -> Joint:
        # Bounds first: an encoder that they refuse is not attacked.
        return Joint((self._bounds, self._radii))

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        bounds, radii = (self.observation().of(part, observed) for part in (self._bounds, self._radii))
        attacked = radii["radius"].double()
        certified, entered = bounds["certified"].double(), bounds["entered"] > 0
        certified = certified.masked_fill(attacked.isnan(), torch.nan)
        entered = (entered & ~attacked.isnan()) | self._entered(population, rows, certified, attacked)
        # What an attack in the run's precision enters, and exact arithmetic does not, lies within rounding of the end.
        certified = torch.where(entered, certified, torch.minimum(certified, attacked))
        case: Conditions = {"ball": str(self.widest), "divergence": str(self.divergence)}
        proved: Conditions = {**case, **self.certification.cases(population, str(self.widest))[0]}
        unit = f"{self.widest.name} distance"
        reached: Conditions = {**case, "attack": label(self.attack)}
        all_series = [
            series_of(CERTIFIED, proved, certified, unit, Claim.LOWER, SMALLEST, LEFT_OUT),
            series_of(ATTACKED, reached, attacked, unit, Claim.UPPER, SMALLEST, LEFT_OUT),
        ]
        ids = [population.images.ids[row] for row in rows]
        found = radius_findings(ids, all_series, self.widest.name, ())
        # The images of a bank are given, and groups of images have intervals of their own.
        if population.bank_images is None and population.images.groups is None:
            linked = neighbours(population, rows, self.divergence)
            for quantity in (CERTIFIED, ATTACKED):
                found = of_neighbours(found, quantity, *linked)

        def witness(image: int) -> dict[str, str]:
            return self._witness(population, rows[image], float(certified[image]))

        check = CrossCheck(entered, certified > 0, proved, witness)
        return findings(population, rows, found.series, found.estimates, [check], found.curves)

    def _entered(
        self, population: Population, rows: Sequence[int], certified: Float[Tensor, "b"], attacked: Float[Tensor, "b"]
    ) -> Bool[Tensor, "b"]:
        """Return which certificates the attacked images refute, made again and decided as certificates are."""
        entered = attacked < certified * INSIDE
        places = entered.nonzero()[:, 0].tolist()
        if places:
            chosen = [rows[place] for place in places]
            points = self._points(population, chosen)
            entered[places] = self._bounds.match(population, chosen).entered(points)
        return entered

    def _points(self, population: Population, rows: Sequence[int]) -> Pixels:
        """Return the nearest images found at which another image is nearer, in float64."""
        search = self._radii.search(population, rows)
        return self._radii.nearest(population, rows, search).points.double()

    def _witness(self, population: Population, row: int, radius: float) -> dict[str, str]:
        """Return a point inside the certified radius of an image at which another image is nearer."""
        match = self._bounds.match(population, [row])
        radii = torch.full_like(match.own[:, 0], radius)
        point = self._bounds.attacked(population, [row], match, radii)
        if not bool(match.entered(point)):
            point = self._points(population, [row])
        facts = {
            "image": population.images.ids[row],
            "divergence": str(self.divergence),
            "certified_radius": f"{radius:.6g}",
        }
        return point_witness(population, row, point[0], self.widest, facts)

    @property
    def _bounds(self) -> OwnMatchBounds:
        return OwnMatchBounds(self.certification, self.widest, self.divergence, self.tolerance)

    @property
    def _radii(self) -> Radii:
        return Radii("retrieval", self.widest, self.attack, self.divergence, self.rivals, self.samples)
