"""Linear radius: how far an image may change before a linear head on its code takes it for another class.

For an image of class ``y`` and the logits ``g = A f + b`` of a head on clean codes,

    R(x) = sup { eps : g_y(x') - g_j(x') > 0 for all j and all x' in the domain with norm(x' - x) <= eps }

Wang and Liu 2022 (RVCL, https://proceedings.mlr.press/v162/wang22q.html), sections 4.1 and 4.2; ``ACR_LE`` is its mean
over the images that are classified right. A bound on every margin ``g_y - g_j``, one linear function of the code, finds
a radius below ``R``, and an attack that succeeds one above it.

The authors' program bounds each logit by itself and compares the least ``g_y`` with the largest ``g_j``, which no one
``x'`` attains together: the same bounds, at a smaller radius. It is computed as well, for comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from holdfast.attacks.adaptive import AdaptiveAttack
from holdfast.attacks.base import Attack
from holdfast.bounds.methods.base import Crown, Method
from holdfast.bounds.proved import known
from holdfast.bounds.radius import radii
from holdfast.bounds.regions import region
from holdfast.core.balls import Ball
from holdfast.core.records import Claim, Conditions, Curve, Findings, Series
from holdfast.core.run import Observed
from holdfast.core.statistics import summarise
from holdfast.evaluations.certified.findings import alarm, counted, series, share_beyond, verdict, witness_of
from holdfast.evaluations.certified.head import POOL, Classifier, margins, trained
from holdfast.evaluations.certified.pair_attack import AttackResult, PairAttack
from holdfast.evaluations.certified.pairs import Pairs, bounded, norm
from holdfast.evaluations.certified.radius_bounds import INSIDE, certified_radii, cross_check, nearest_confusion
from holdfast.protocol.evaluation import Evaluation
from holdfast.protocol.observation import Observation
from holdfast.protocol.population import Population

RADIUS = "robust radius of the class that a linear head gives"
UNDEFINED = "the head does not give the image its label, or no attack on it succeeds"
UNLABELLED = "no labels, or fewer than two classes among the images left to train a head on"
POINTS = 81


@final
@dataclass(frozen=True)
class Linear(Observation):
    """For each image: whether the head is right, the radius certified jointly and separately, the attacked one.

    Radii are nan where the head is wrong. ``refuted`` says whether an attack succeeds inside the certified radius.
    """

    norm: str
    anchors: int
    rivals: int
    method: Method
    tolerance: float
    attack: Attack
    neurons: int
    name = "linear"
    version = 4
    uses_labels = True

    def rows(self, population: Population) -> list[int]:
        return population.choose(self.anchors)

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        bounded(population, self.neurons)  # says why not, labels or none
        seen = {name: torch.full((len(rows),), torch.nan).double() for name in SEEN}
        head, labels = trained(population, self.anchors, self.neurons), population.images.labels
        if head is None or labels is None:
            return seen
        places = head.places(torch.as_tensor(labels).to(head.classes.device)[list(rows)])
        right = head.right(population.pixels(rows).double(), places).cpu()
        seen["right"] = right.double()
        if bool(right.any()):
            chosen = right.nonzero()[:, 0].tolist()
            names = [population.images.ids[rows[k]] for k in chosen for _ in head.classes[1:]]
            pool = population.pixels(population.shuffled[:POOL].tolist()).double()
            pixels = population.pixels([rows[k] for k in chosen]).double()
            two = margins(head, pixels, places[chosen], pool, population.run.noise(names).fork("linear"))
            for name, values in self.radii(two, head, places[chosen]).items():
                seen[name][right] = values.cpu()
        return seen

    def radii(self, two: Pairs, head: Classifier, places: Int[Tensor, "b"]) -> Observed:
        """Return the radii of images that the head gets right."""
        ball = norm(self.norm)
        certified = certified_radii(two, ball, self.method, self.tolerance)
        attacked, lowest = self.attacks(two, certified)
        sizes = ball.norm(attacked.points - two.anchors.repeat_interleave(self.strongest(two), 0))
        sizes = sizes.masked_fill(~(attacked.values < 0), torch.inf).reshape(len(places), -1).amin(1)
        inside = sizes <= certified.amin(1) * INSIDE
        return {
            "certified": certified.amin(1),
            "separate": separate_radii(two, head, places, ball, self.method, self.tolerance),
            "attacked": sizes.masked_fill(sizes.isinf(), torch.nan),
            "refuted": (inside | (lowest.values <= 0).reshape(len(places), -1).any(1)).double(),
        }

    def attacks(self, two: Pairs, certified: Float[Tensor, "b k"]) -> tuple[AttackResult, AttackResult]:
        """Return the nearest mistakes found, and the lowest margins found inside the certified radius of the image.

        Only the classes with the smallest certified radii are attacked: one mistake is enough.
        """
        chosen = certified.topk(self.strongest(two), dim=1, largest=False).indices
        images = torch.arange(len(chosen), device=chosen.device)[:, None]
        classes = two.rows.shape[1]
        near = Pairs(
            encoder=two.encoder,
            graph=two.graph,
            ids=(),
            anchors=two.anchors,
            negatives=two.negatives[images, chosen],
            rows=two.rows[images, chosen],
            noise=two.noise[(images * classes + chosen).flatten()],
        )
        pair_attack, radius = PairAttack(near, norm(self.norm), self.attack), certified.amin(1, keepdim=True)
        inside = cross_check(pair_attack, radius.expand(-1, chosen.shape[1]).contiguous())
        return nearest_confusion(pair_attack, certified.gather(1, chosen)), inside

    def strongest(self, two: Pairs) -> int:
        """Return how many classes are attacked for each image."""
        return min(self.rivals, two.rows.shape[1])


SEEN = ("right", "certified", "separate", "attacked", "refuted")


def separate_radii(
    two: Pairs, head: Classifier, places: Int[Tensor, "b"], ball: Ball, method: Method, tolerance: float
) -> Float[Tensor, "b"]:
    """Return the radius at which the least own logit is proved above the largest of each other, bounded one by one."""
    reach = two.distances(ball).amax(1)
    eye = torch.eye(len(head.classes), dtype=two.rows.dtype, device=two.rows.device)
    own = eye[places][:, None]
    others = own - two.rows
    clean = two.values(two.images).reshape(two.shape)

    def bound(images: Int[Tensor, "a"], shares: Float[Tensor, "a"], chosen: Int[Tensor, "a s"]) -> Float[Tensor, "a s"]:
        place = region(two.anchors[images], type(ball), shares * reach[images], two.encoder.domain)
        rows = torch.cat([own[images], -others[images[:, None], chosen]], 1)
        found = known(method(two.graph, place, rows))
        return found[:, :1] + found[:, 1:]

    return radii(bound, clean, 1.0, tolerance).amin(1) * reach


@final
@dataclass(frozen=True)
class LinearRadius(Evaluation):
    """How far images may change before a linear head takes them for another class: proved, and attacked."""

    norm: str = "linf"
    anchors: int = 100
    rivals: int = 3
    method: Method = Crown()
    tolerance: float = 1e-4
    attack: Attack = AdaptiveAttack(restarts=2, steps=50)
    neurons: int = 50_000
    name = "linear-radius"
    version = 3
    needs_gradients = True
    uses_labels = True
    title = "Linear radius, with labels"
    meaning = (
        "A linear classifier is trained on the clean representations of labelled images. The certified radius is a size of "
        "change up to which it provably gives an image the same class; the attacked radius is the smallest change found "
        "that makes it err, so the true robust radius lies between the two. Labels are needed: without them it is undefined."
    )
    headline = ("average_linear_radius", "average_attacked_linear_radius")

    def observation(self) -> Linear:
        return Linear(self.norm, self.anchors, self.rivals, self.method, self.tolerance, self.attack, self.neurons)

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        seen = {name: values.double() for name, values in observed.items()}
        found = self._series(seen)
        names = ["average_linear_radius", "average_attacked_linear_radius", "average_separate_radius"]
        estimates = [summarise(one, "mean", "higher", name) for one, name in zip(found, names, strict=False)]
        accuracy = summarise(found[-1], "share", "higher", "linear_accuracy")
        case: Conditions = {"ball": self.norm, "method": str(self.method)}
        count = counted(seen["refuted"] == 1, seen["certified"] > 0, case)
        headless = bool(seen["right"].isnan().all())
        return Findings(
            ids=tuple(population.images.ids[row] for row in rows),
            series=tuple(found),
            estimates=(*estimates, accuracy, count),
            curves=() if headless else self._curves(seen),
            verdicts=(verdict([count], self._witness(population, rows, seen)),),
            warnings=alarm([count]),
        )

    def _series(self, seen: Observed) -> list[Series]:
        proved: Conditions = {"ball": self.norm, "method": str(self.method)}
        struck: Conditions = {"ball": self.norm, "attack": str(self.attack)}
        reason = UNLABELLED if bool(seen["right"].isnan().all()) else UNDEFINED
        unit, accuracy = f"{self.norm} distance", "accuracy of the head on clean images"
        values = [
            ("linear_radius", proved, seen["certified"], unit, Claim.LOWER, RADIUS),
            ("attacked_linear_radius", struck, seen["attacked"], unit, Claim.UPPER, RADIUS),
            ("separate_radius", proved, seen["separate"], unit, Claim.LOWER, RADIUS),
            ("classified_right", {}, seen["right"], "yes or no", Claim.ESTIMATE, accuracy),
        ]
        return [series(name, where, v, kind, claim, of, reason) for name, where, v, kind, claim, of in values]

    def _curves(self, seen: Observed) -> tuple[Curve, ...]:
        """Return the share of images that are classified right at each radius; those that never are hold at none."""
        end = float(seen["attacked"].nan_to_num(0).max())
        grid = tuple(end * step / (POINTS - 1) for step in range(POINTS)) if end > 0 else ()
        kinds = {
            f"certified by {self.method}": seen["certified"],
            "certified logit by logit": seen["separate"],
            f"left by {self.attack}": seen["attacked"],
        }
        return tuple(
            Curve(
                quantity="images_classified_right",
                conditions={"ball": self.norm, "attack": kind},
                x_label=f"{self.norm} radius",
                y_label="share of images classified right",
                x=grid,
                y=share_beyond(values.nan_to_num(-1)[:, None], grid),
            )
            for kind, values in kinds.items()
        )

    def _witness(self, population: Population, rows: Sequence[int], seen: Observed) -> dict[str, str]:
        """Return the first contradiction, found once more."""
        wrong = (seen["refuted"] == 1).nonzero()[:, 0].tolist()
        head, labels = trained(population, self.anchors, self.neurons) if wrong else None, population.images.labels
        if head is None or labels is None:
            return {}
        row = rows[wrong[0]]
        places = head.places(torch.as_tensor(labels).to(head.classes.device)[[row]])
        name, pool = population.images.ids[row], population.pixels(population.shuffled[:POOL].tolist()).double()
        noise = population.run.noise([name for _ in head.classes[1:]]).fork("linear")
        two = margins(head, population.pixels([row]).double(), places, pool, noise)
        certified = certified_radii(two, norm(self.norm), self.method, self.tolerance)
        attacked, inside = self.observation().attacks(two, certified)
        found = inside if bool((inside.values <= 0).any()) else attacked
        worst = int(found.values.argmin())
        radius = float(certified.amin())
        facts = {
            "image": name,
            "certified_radius": f"{radius:.6g}",
            "margin": f"{float(found.values[worst]):.3g}",
        }
        return witness_of(population, row, found.points[worst], norm(self.norm).scaled(max(radius, 1e-12)), facts)
