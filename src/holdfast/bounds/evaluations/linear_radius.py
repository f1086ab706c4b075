"""Linear radius: the smallest ε at which a linear head predicts another class.

The head is fitted on clean embeddings; bounds and attacks are about its margins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import linear

from holdfast.attacks.adaptive import AdaptiveAttack
from holdfast.attacks.base import Attack
from holdfast.bounds.bound_findings import (
    SIZES,
    CertifiedEvaluation,
    CrossCheck,
    findings,
    point_witness,
    series,
    survival_curves,
)
from holdfast.bounds.certified_pairs import AttackResult, CertifiedEncoder, PairAttack, Pairs, unit_ball
from holdfast.bounds.certified_search import bracket_radii
from holdfast.bounds.methods.base import Crown, Method, vacuous_unless_finite
from holdfast.bounds.network.network_graph import General, Graph, Node
from holdfast.bounds.network.tracing import trace
from holdfast.bounds.pair_bounds import (
    INSIDE,
    CertifiedObservation,
    arithmetic_of,
    certified_radii,
    cross_check,
    nearest_confusion,
)
from holdfast.bounds.regions import region
from holdfast.bounds.rounding.arithmetic import rigorous
from holdfast.bounds.rounding.executed import ExecutedEncoder
from holdfast.core.balls import Ball
from holdfast.core.encoder import Encoder, Pixels
from holdfast.core.noise import Noise
from holdfast.core.records import Claim, Curve, Findings, Series
from holdfast.core.run_settings import Observed
from holdfast.core.statistics.summaries import summarise
from holdfast.measure.evaluation import Sizes
from holdfast.measure.population import Fit, Population
from holdfast.probes.linear import logistic_regression

TRAINING, POOL = 10_000, 1000
"""Images that a head is trained on, and of which one of another class is taken to begin an attack, at most."""


@dataclass(frozen=True)
class Classifier:
    """An encoder with a head in float64; its embeddings are the logits of ``classes``."""

    certified: CertifiedEncoder
    head: nn.Linear
    classes: Int[Tensor, "c"]

    def logits(self, pixels: Pixels) -> Float[Tensor, "b c"]:
        """Return the logits of ``pixels``."""
        return self.certified.codes(pixels)

    def on_codes_of(self, encoder: CertifiedEncoder) -> Classifier:
        """Return the same head, in float64, on the embeddings that certificates of ``encoder`` speak about."""
        if (executed := encoder.executed) is None:
            return self
        graph = with_head(executed.graph, self.head)
        computed, reference = (
            Encoder(HeadOnCodes(part.module, self.head), part.name, part.domain, caution=part.caution)
            for part in (executed.encoder, executed.reference)
        )
        executed = ExecutedEncoder(computed, reference, graph, executed.format)
        return replace(self, certified=CertifiedEncoder(self.certified.encoder, graph, executed))

    def columns(self, population: Population, rows: Sequence[int]) -> Int[Tensor, "b"]:
        """Return which logit the label of each of some images means."""
        return self.places(torch.as_tensor(population.images.labels).to(self.classes.device)[list(rows)])

    def places(self, labels: Int[Tensor, "b"]) -> Int[Tensor, "b"]:
        """Return which logit each label means; -1 for labels that no logit means."""
        same = labels[:, None] == self.classes
        return torch.where(same.any(1), same.to(torch.int8).argmax(1), -1)

    def right(self, pixels: Pixels, columns: Int[Tensor, "b"]) -> Bool[Tensor, "b"]:
        """Return which images are classified as they should be: strictly, because a tie decides nothing."""
        logits = self.logits(pixels)
        logits_of_class = logits.gather(1, columns.clamp_min(0)[:, None])
        return (columns >= 0) & ((logits >= logits_of_class).sum(1) == 1)


@final
class HeadOnCodes(nn.Module):
    """A head in float64 on embeddings of any precision."""

    def __init__(self, encoder: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head

    def forward(self, pixels: Pixels) -> Float[Tensor, "b c"]:
        logits: Float[Tensor, "b c"] = self.head(self.encoder(pixels).double())
        return logits


def with_head(graph: Graph, head: nn.Linear) -> Graph:
    """Return the graph with ``head``, which rounds nothing but in the type of bounds, as its last operation."""
    codes, weight, bias = graph.nodes[-1], head.weight.detach(), head.bias.detach()
    settings = ([codes.shape], graph.dtype, graph.device)
    operation = General(lambda x: linear(x, weight, bias), lambda radii: linear(radii, weight.abs()), *settings)
    node = Node(len(graph.nodes), "linear head", (*codes.shape[:-1], len(bias)), (codes.index,), operation)
    return replace(graph, nodes=(*graph.nodes, node))


@final
@dataclass(frozen=True)
class LinearHead(Fit[Classifier | None]):
    """Logistic regression on clean embeddings of a labelled reference set, or of all but the ``held_out`` first images.

    None without labels, or where the images left show fewer than two classes.
    """

    held_out: int
    name = "linear-head"
    version = 1
    uses_labels = True
    uses_bank = True

    def learn(self, population: Population) -> Observed:
        learned, bank = population, population.bank_images
        rows = population.random_order[self.held_out : self.held_out + TRAINING].tolist()
        if bank is not None and bank.labels is not None:
            learned, rows = population.bank, list(range(len(bank)))
        labels = learned.images.labels
        if labels is None or len(set(torch.as_tensor(labels)[rows].tolist())) < 2:
            return {}
        return logistic_regression(learned.codes[rows], torch.as_tensor(labels)[rows], tolerance=1e-9)

    def restore(self, population: Population, learned: Observed) -> Classifier | None:
        return classifier(population.double, **learned, device=population.run.device) if learned else None


def classifier(
    encoder: Encoder,
    weight: Float[Tensor, "c d"],
    bias: Float[Tensor, "c"],
    classes: Int[Tensor, "c"],
    device: str = "cpu",
) -> Classifier:
    """Return ``encoder`` with the head ``weight . f + bias``."""
    head = nn.Linear(weight.shape[1], len(weight), dtype=torch.float64)
    head.load_state_dict({"weight": weight, "bias": bias})
    double = encoder.to(device, torch.float64)
    module = nn.Sequential(double.module, head.to(device)).eval()
    whole = Encoder(module, encoder.name, encoder.domain, caution=encoder.caution)
    return Classifier(CertifiedEncoder(whole, rigorous(trace(whole, torch.float64, device))), head, classes.to(device))


def margins(
    classifier: Classifier, pixels: Pixels, columns: Int[Tensor, "b"], pool: Float[Tensor, "n *pixels"], noise: Noise
) -> Pairs:
    """Return the margins ``y - j`` of each image's own class over every other one as pairs with specifications of logits.

    The ``negative`` of a pair is the image of ``pool`` that the head takes most clearly for ``j`` rather than ``y``. If
    it takes none for that, it is the corner of the domain that is farthest away, because the search may have to go there.

    Args:
        classifier: a linear head on the encoder.
        pixels: images, in float64.
        columns: the logit of each image's own class.
        pool: other images.
        noise: one stream for each pair.
    """
    count = len(classifier.classes)
    eye = torch.eye(count, dtype=pixels.dtype, device=pixels.device)
    classes_of_rows = eye[columns][:, None].expand(-1, count, -1)
    others = eye.expand(len(pixels), -1, -1)
    kept = torch.ones(len(pixels), count, dtype=torch.bool, device=pixels.device)
    kept[torch.arange(len(pixels)), columns] = False
    specifications = (classes_of_rows - others)[kept].reshape(len(pixels), count - 1, count)
    scores, chosen = (specifications @ classifier.logits(pool).mT).min(2)
    certified = classifier.certified
    low, high = certified.encoder.domain.low, certified.encoder.domain.high
    corner = torch.where(pixels < (low + high) / 2, high, low)[:, None]
    corner = torch.where(corner.isfinite(), corner, pool[chosen])  # a range without end has no corners
    misclassified = (scores < 0).reshape(*scores.shape, *(1,) * (pixels.ndim - 1))
    return Pairs(
        encoder=certified.encoder,
        graph=certified.graph,
        ids=(),
        anchors=pixels,
        negatives=torch.where(misclassified, pool[chosen], corner),
        specifications=specifications,
        noise=noise,
        executed=certified.executed,
    )


# Linear radius: how far an image may change before a linear head on its code takes it for another class.
#
# For an image of class ``y`` and the logits ``g = A f + b`` of a head on clean codes,
#
#     R(x) = sup { eps : g_y(x') - g_j(x') > 0 for all j and all x' in the domain with norm(x' - x) <= eps }
#
# Wang and Liu 2022 (RVCL, https://proceedings.mlr.press/v162/wang22q.html), sections 4.1 and 4.2; ``ACR_LE`` is its
# mean over the images that are classified right. A bound on every margin ``g_y - g_j``, one linear function of the
# code, finds a radius below ``R``, and an attack that succeeds one above it.
#
# The authors' program bounds each logit by itself and compares the least ``g_y`` with the largest ``g_j``, which no one
# ``x'`` attains together: the same bounds, at a smaller radius. It is computed as well, for comparison.

RADIUS = "robust radius of the class that a linear head gives"
UNDEFINED = "the head does not give the image its label, or no attack on it succeeds"
UNLABELLED = "no labels, or fewer than two classes among the images left to train a head on"


@final
@dataclass(frozen=True)
class HeadRadii(CertifiedObservation):
    """For each image: whether the head is right, the radius certified jointly and separately, the attacked one.

    Radii are nan where the head is wrong. ``refuted`` says whether an attack succeeds inside the certified radius.
    """

    norm: str
    rivals: int
    tolerance: float
    name = "linear"
    version = 6
    uses_labels = True
    uses_bank = True

    def fits(self) -> tuple[LinearHead]:
        return (LinearHead(self.certification.samples),)

    def forward_passes(self, population: Population) -> int:
        return self.rivals * self.certification.attack.forward_passes

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        pixels = population.pixels(rows).double()
        head = self.head(population, pixels)
        observed = {name: torch.full((len(rows),), torch.nan).double() for name in OBSERVED}
        if head is None or population.images.labels is None:
            return observed
        columns = head.columns(population, rows)
        right = head.right(pixels, columns).cpu()
        observed["right"] = right.double()
        if bool(right.any()):
            chosen = right.nonzero()[:, 0].tolist()
            pairs = self.pairs(population, [rows[k] for k in chosen], head, pixels[chosen], columns[chosen])
            for name, values in self.radii(pairs, head, columns[chosen]).items():
                observed[name][right] = values.cpu()
        return observed

    def head(self, population: Population, pixels: Pixels) -> Classifier | None:
        """Return the head on the embeddings that certificates around ``pixels`` are about; None without labels."""
        encoder = self.certification.encoder(population, pixels)  # says why not, labels or none
        head = population.learned(*self.fits())
        return head and head.on_codes_of(encoder)

    def pairs(
        self, population: Population, rows: Sequence[int], head: Classifier, pixels: Pixels, columns: Int[Tensor, "b"]
    ) -> Pairs:
        """Return the margins of the images at ``rows``, whose classes are the logits ``columns``."""
        names = [population.images.ids[row] for row in rows for _ in head.classes[1:]]
        pool = population.pixels(population.random_order[:POOL].tolist()).double()
        return margins(head, pixels, columns, pool, population.run.noise(names).fork("linear"))

    def radii(self, pairs: Pairs, head: Classifier, columns: Int[Tensor, "b"]) -> Observed:
        """Return the radii of images that the head gets right."""
        ball = unit_ball(self.norm)
        certified = certified_radii(pairs, ball, self.certification.method, self.tolerance)
        attacked, lowest = self.attacks(pairs, certified)
        sizes = ball.norm(attacked.points - pairs.anchors.repeat_interleave(self.strongest(pairs), 0))
        sizes = sizes.masked_fill(~(attacked.values < 0), torch.inf).reshape(len(columns), -1).amin(1)
        inside = sizes <= certified.amin(1) * INSIDE
        return {
            "certified": certified.amin(1),
            "separate": separate_radii(pairs, head, columns, ball, self.certification.method, self.tolerance),
            "attacked": sizes.masked_fill(sizes.isinf(), torch.nan),
            "refuted": (inside | (lowest.values <= 0).reshape(len(columns), -1).any(1)).double(),
        }

    def attacks(self, pairs: Pairs, certified: Float[Tensor, "b k"]) -> tuple[AttackResult, AttackResult]:
        """Return the nearest mistakes found, and the lowest margins found inside the certified radius of the image.

        Only the classes with the smallest certified radii are attacked: one mistake is enough.
        """
        chosen = certified.topk(self.strongest(pairs), dim=1, largest=False).indices
        images = torch.arange(len(chosen), device=chosen.device)[:, None]
        classes = pairs.specifications.shape[1]
        weakest = replace(
            pairs,
            negatives=pairs.negatives[images, chosen],
            specifications=pairs.specifications[images, chosen],
            noise=pairs.noise[(images * classes + chosen).flatten()],
        )
        pair_attack = PairAttack(weakest, unit_ball(self.norm), self.certification.attack)
        radius = certified.amin(1, keepdim=True)
        inside = cross_check(pair_attack, radius.expand(-1, chosen.shape[1]).contiguous())
        return nearest_confusion(pair_attack, certified.gather(1, chosen)), inside

    def strongest(self, pairs: Pairs) -> int:
        """Return how many classes are attacked for each image."""
        return min(self.rivals, pairs.specifications.shape[1])


OBSERVED = ("right", "certified", "separate", "attacked", "refuted")


def separate_radii(
    pairs: Pairs, head: Classifier, columns: Int[Tensor, "b"], ball: Ball, method: Method, tolerance: float
) -> Float[Tensor, "b"]:
    """Return the radius at which the least own logit is proved above the largest of each other, bounded one by one."""
    reach = pairs.distances(ball).amax(1)
    eye = torch.eye(len(head.classes), dtype=pairs.specifications.dtype, device=pairs.specifications.device)
    class_rows = eye[columns][:, None]
    others = class_rows - pairs.specifications
    clean = pairs.values(pairs.images).reshape(pairs.shape)

    def bound(images: Int[Tensor, "a"], shares: Float[Tensor, "a"], chosen: Int[Tensor, "a s"]) -> Float[Tensor, "a s"]:
        domain, inputs = pairs.encoder.domain, pairs.graph.inputs
        balls = region(pairs.anchors[images], type(ball), shares * reach[images], domain, inputs=inputs)
        specifications = torch.cat([class_rows[images], -others[images[:, None], chosen]], 1)
        bounds = vacuous_unless_finite(method(pairs.graph, balls, specifications))
        return bounds[:, :1] + bounds[:, 1:]

    return bracket_radii(bound, clean, 1.0, tolerance).amin(1) * reach


@final
@dataclass(frozen=True)
class LinearRadius(CertifiedEvaluation):
    """Smallest perturbation that changes the class of a linear head: proved and attacked.

    The radius is at least as large as proved (lower bound) and at most as large as attacked (upper bound).
    """

    norm: str = "linf"
    """Norm of perturbations: `linf`, `l2` or `l1`."""
    samples: int = 100
    """Number of certified images; without a labelled reference set the other images train the head."""
    rivals: int = 3
    """Classes with the smallest certified radii, which attacks aim at."""
    method: Method = Crown()
    """Bounding method."""
    tolerance: float = 1e-4
    """Precision of the search for certified radii, as a fraction of the widest possible ε."""
    attack: Attack = AdaptiveAttack(restarts=2, steps=50)
    """Attack on the margin."""
    neurons: int = 50_000
    """Largest number of nonlinear units; larger encoders are refused."""
    arithmetic: str = "real"
    """`real` for exact arithmetic, `executed` for floating-point arithmetic; the head is always float64."""
    sizes = Sizes(quick={**SIZES.quick, "rivals": 1}, full=SIZES.full, heavy=SIZES.heavy)
    name = "linear-radius"
    version = 5
    uses_labels = True
    uses_bank = True
    title = "Linear radius, with labels"
    meaning = (
        "A linear classifier is trained on the clean representations of labelled images. The certified radius is a size of "
        "change up to which it provably gives an image the same class; the attacked radius is the smallest change found "
        "that makes it err, so the true robust radius lies between the two. Labels are needed: without them it is undefined."
    )
    headline = ("average_linear_radius", "average_attacked_linear_radius")

    positive = ("rivals",)

    def observation(self) -> HeadRadii:
        return HeadRadii(self.certification, self.norm, self.rivals, self.tolerance)

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        values = {name: value.double() for name, value in observed.items()}
        radii = self._series(population, values)
        names = ["average_linear_radius", "average_attacked_linear_radius", "average_separate_radius"]
        estimates = [summarise(each, "mean", "higher", name) for each, name in zip(radii, names, strict=False)]
        accuracy = summarise(radii[-1], "share", "higher", "linear_accuracy")
        witness = partial(self._witness, population, rows)
        check = CrossCheck(values["refuted"] == 1, values["certified"] > 0, radii[0].conditions, witness)
        curves = () if bool(values["right"].isnan().all()) else self._curves(values)
        return findings(population, rows, radii, (*estimates, accuracy), [check], curves)

    def _series(self, population: Population, values: Observed) -> list[Series]:
        by_bounds, by_attack = self.certification.cases(population, self.norm)
        by_head = arithmetic_of(population, self.arithmetic)
        reason = UNLABELLED if bool(values["right"].isnan().all()) else UNDEFINED
        unit, accuracy = f"{self.norm} distance", "accuracy of the head on clean images"
        each = [
            ("linear_radius", by_bounds, values["certified"], unit, Claim.LOWER, RADIUS),
            ("attacked_linear_radius", by_attack, values["attacked"], unit, Claim.UPPER, RADIUS),
            ("separate_radius", by_bounds, values["separate"], unit, Claim.LOWER, RADIUS),
            ("classified_right", by_head, values["right"], "yes or no", Claim.ESTIMATE, accuracy),
        ]
        return [series(name, where, v, kind, claim, of, reason) for name, where, v, kind, claim, of in each]

    def _curves(self, values: Observed) -> tuple[Curve, ...]:
        """Return the fraction of images that are classified right at each radius; those that never are hold at none."""
        end = float(values["attacked"].nan_to_num(0).max())
        unharmed = values["attacked"].isnan() & (values["right"] == 1)
        by_kind = {
            f"certified by {self.method}": values["certified"],
            "certified logit by logit": values["separate"],
            f"left by {self.attack}": values["attacked"].masked_fill(unharmed, torch.inf),
        }
        by_kind = {kind: radii.nan_to_num(-1) for kind, radii in by_kind.items()}
        return survival_curves("images_classified_right", self.norm, by_kind, 0.0, end)

    def _witness(self, population: Population, rows: Sequence[int], image: int) -> dict[str, str]:
        row, observation, pixels = rows[image], self.observation(), population.pixels([rows[image]]).double()
        head = observation.head(population, pixels)
        assert head is not None, "nothing is certified without labels"
        pairs = observation.pairs(population, [row], head, pixels, head.columns(population, [row]))
        certified = certified_radii(pairs, unit_ball(self.norm), self.method, self.tolerance)
        nearest, inside = observation.attacks(pairs, certified)
        result = inside if bool((inside.values <= 0).any()) else nearest
        worst = int(result.values.argmin())
        radius = float(certified.amin())
        ball = unit_ball(self.norm).scaled(max(radius, 1e-12))
        facts = {
            "image": population.images.ids[row],
            "certified_radius": f"{radius:.6g}",
            "margin": f"{float(result.values[worst]):.3g}",
            "ball": str(ball),
        }
        return point_witness(population, row, result.points[worst], ball, facts)
