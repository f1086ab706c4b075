"""Certified training: the loss of the images themselves, and the loss of the worst embeddings that bounds allow in the ball.

With ``n_i = |f(v_i)|`` fixed, unit embeddings ``k_i`` of the other view (of the teacher in distillation) fixed, and
``L_ij`` a lower bound of ``(k_i - k_j) . f(x)`` for all ``x`` in the ball around view ``v_i``, no ``x`` has a larger
InfoNCE loss than

    log( 1 + sum_j exp(-L_ij / (T n_i)) )          for contrastive objectives, and for distillation with a temperature
    max |f(x) - f0(v_i)|^2 / d   over the box of embeddings                                  for distillation without
    loss = (1 - share) * loss of the clean or attacked view + share * worst

``L_ij`` is the certified margin of RVCL (Wang and Liu 2022, https://proceedings.mlr.press/v162/wang22q.html), here in
training. The sum of two losses is that of MTL-IBP (De Palma et al. 2024, https://arxiv.org/abs/2305.13991). Interval
bounds merge the last affine map into the specifications (Gowal et al. 2018, https://arxiv.org/abs/1810.12715).
``crown-ibp`` begins with CROWN on interval boxes and ends with intervals (Zhang et al. 2020,
https://arxiv.org/abs/1906.06316). ``box`` below 1 is SABR, a small box around an attacked point (Mueller et al. 2023,
https://arxiv.org/abs/2210.04871). First weights and the two regularisers are those of Shi et al. 2021,
https://arxiv.org/abs/2103.17268.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log, pi, prod, sqrt
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import normalize, relu

from holdfast.bounds.methods import crown, interval
from holdfast.bounds.methods.crown import NetworkRelaxation
from holdfast.bounds.network.network_graph import Graph
from holdfast.bounds.network.tracing import Program
from holdfast.bounds.regions import region
from holdfast.bounds.relaxations import Box, Rule
from holdfast.core.balls import Ball, Linf
from holdfast.core.encoder import Codes, Domain, Pixels
from holdfast.core.errors import HoldfastError, UnknownName
from holdfast.core.objective import ObjectiveFunction
from holdfast.core.settings import check_not_negative, check_positive
from holdfast.training.adversaries.base import Adversary, Prepared, in_training, untouched
from holdfast.training.health import eval_codes
from holdfast.training.learner import Batch, Learner
from holdfast.training.objectives.teachers import DistillationLearner
from holdfast.training.processes import gathered, own_rows

BOUNDS = ("interval", "crown-ibp")
SMALLEST = 1e-3
"""The ramp of the radius begins at this share of it: a ball of radius 0 has no bounds to train on."""
TOLERANCE = 0.5
"""Boxes that grow, and neurons that lean to one side, by less than this factor are not regularised."""


@final
@dataclass(frozen=True)
class Certified(Adversary):
    """Add the loss of the worst embeddings that bounds allow, for encoders with certificates."""

    ball: Ball = Linf(0.1)
    """Perturbation set of the certificates."""
    steps: int = 0
    """Attack steps on the views of the other loss term; 0: clean views."""
    share: float = 0.2
    """Weight of the certified loss, in (0, 1]."""
    temperature: float = 0.2
    """Temperature of the certified InfoNCE."""
    negatives: int = 24
    """Images of the batch that the bound uses as negatives."""
    ramp: float = 0.5
    """Fraction of the training over which the radius grows from 0."""
    bound: str = "interval"
    """Bounding method: `interval` or `crown-ibp`."""
    box: float = 1.0
    """Fraction of the radius that is bounded around an attacked point; 1: the whole ball."""
    regularised: float = 0.5
    """Weight of the regularisers while the radius grows."""
    name = "certified"

    def __post_init__(self) -> None:
        check_positive(self, "temperature", "negatives", "step")
        check_not_negative(self, "steps", "regularised")
        if not isinstance(self.ball, Linf):
            raise HoldfastError(f"certified training bounds linf balls, got {self.ball}; use ball=linf:0.1")
        if self.bound not in BOUNDS:
            raise UnknownName("certified: bound", self.bound, BOUNDS)
        if not (0 < self.share <= 1 and 0 <= self.ramp <= 1 and 0 < self.box <= 1):
            raise HoldfastError(
                "certified needs share and box in (0, 1] and ramp in [0, 1], got "
                f"share={self.share}, box={self.box} and ramp={self.ramp}"
            )
        if self.box < 1 and not self.steps:
            raise HoldfastError(
                f"certified: box={self.box} bounds a small box around an attacked point, which takes steps of an attack; "
                "set steps=8, or box=1"
            )

    @property
    def attacks(self) -> bool:
        return self.steps > 0

    def around(self, learner: Learner, domain: Domain, from_scratch: bool) -> Learner:
        if from_scratch or (isinstance(learner, DistillationLearner) and learner.settings.fresh):
            keep_boxes_small(learner.encoder)
        return CertifiedLearner(learner, self, domain)

    def ramped(self, progress: float) -> float:
        """Fraction of the radius in use after a fraction ``progress`` of the training."""
        return 1.0 if progress >= self.ramp else max(SMALLEST, progress / self.ramp)

    def ball_at(self, progress: float) -> Ball:
        """Ball in use after a fraction ``progress`` of the training."""
        return replace(self.ball, radius=self.ball.radius * self.ramped(progress))

    def __call__(self, learner: Learner, batch: Batch, domain: Domain, prepared: Prepared) -> Pixels:
        within = replace(self, ball=self.ball_at(batch.progress), ramp=0.0)
        return super(Certified, within).__call__(learner, batch, domain, prepared)


@final
class CertifiedLearner(Learner):
    """Learner with an added loss of the worst embeddings in a ball.

    Args:
        learner: Learner to extend.
        settings: Settings of certified training.
        domain: Shape and range of the inputs.
    """

    def __init__(self, learner: Learner, settings: Certified, domain: Domain) -> None:
        super().__init__(learner.encoder)
        self.learner, self.settings, self.domain = learner, settings, domain
        self.program: Program | None = None

    @property
    def classifier(self) -> nn.Linear | None:
        return self.learner.classifier

    def forward(self, batch: Batch) -> Float[Tensor, ""]:
        loss: Float[Tensor, ""] = self.learner(batch)
        with torch.autocast(loss.device.type, enabled=False):
            worst, regular = self.worst_loss(batch)
        ramped = self.settings.ramped(batch.progress)
        share = self.settings.share
        return (1 - share) * loss + share * worst + self.settings.regularised * (1 - ramped) * regular

    def worst_loss(self, batch: Batch) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """Mean loss of the worst embeddings around each first view, and regularisers of the boxes."""
        settings, centre = self.settings, batch.views[0]
        radius = settings.ball_at(batch.progress).radius
        if batch.attacked is not None:
            centre = centre + (1 - settings.box) * (batch.attacked - centre)
        radii = torch.full((len(centre),), settings.box * radius, dtype=centre.dtype, device=centre.device)
        graph, ball = self.graph(centre), region(centre, Linf, radii, self.domain)
        boxes = interval.intermediate_bounds(graph, ball)
        crown_share = 1 - settings.ramped(batch.progress) if settings.bound == "crown-ibp" else 0.0

        def bounds(specifications: Float[Tensor, "b s d"]) -> Float[Tensor, "b s"]:
            lower = interval.output_bounds(graph, boxes, specifications)
            if not crown_share:
                return lower
            by_crown = crown.output_bounds(NetworkRelaxation.within(graph, ball, boxes), specifications)
            return (1 - crown_share) * lower + crown_share * by_crown

        worst = (
            self._distance(batch, bounds)
            if isinstance(self.learner, DistillationLearner) and self.learner.settings.temperature is None
            else self._contrast(batch, bounds)
        )
        return worst.mean(), regularisers(graph, boxes) if settings.regularised else torch.zeros_like(radii[0])

    def graph(self, pixels: Pixels) -> Graph:
        """Return the encoder as it is now as a graph, differentiable in its weights."""
        if self.program is None:
            with untouched(self.learner):
                self.program = Program(in_training(self.encoder, self.domain), pixels[:1].detach())
        return self.program.graph(self.encoder, pixels.dtype)

    def _contrast(
        self, batch: Batch, bounds: Callable[[Float[Tensor, "b s d"]], Float[Tensor, "b s"]]
    ) -> Float[Tensor, "b"]:
        """Return a bound of the InfoNCE loss of each first view among the second ones, or among the teacher's embeddings."""
        settings, learner = self.settings, self.learner
        with torch.no_grad():
            norms = torch.linalg.vector_norm(eval_codes(self.encoder, batch.views[0]), dim=1, keepdim=True)
            teacher = learner.target if isinstance(learner, DistillationLearner) else None
            others = teacher(batch) if teacher else eval_codes(self.encoder, batch.views[:2][-1])
            keys = gathered(normalize(others, dim=1))
            lots = gathered(batch.noise.fork("negatives").uniform((1,), keys.dtype).to(keys.device))[:, 0]
        anchors = own_rows(len(norms), keys.device)
        chosen = lots.argsort()[: settings.negatives + 1]
        specifications = keys[anchors][:, None] - keys[chosen]
        itself = chosen == anchors[:, None]
        drawn = (~itself).sum(1, keepdim=True)
        if len(keys) < 2:
            raise HoldfastError("certified training compares images and needs 2 in a batch, got 1; raise batch")
        exponents = -bounds(specifications) / (settings.temperature * norms.clamp_min(torch.finfo(norms.dtype).tiny))
        exponents = exponents.masked_fill(itself, -torch.inf) + (log(len(keys) - 1) - drawn.log())
        return torch.logsumexp(torch.cat([torch.zeros_like(norms), exponents], 1), dim=1)

    def _distance(
        self, batch: Batch, bounds: Callable[[Float[Tensor, "b s d"]], Float[Tensor, "b s"]]
    ) -> Float[Tensor, "b"]:
        """Return a bound of the mean square of how far codes move from those of the starting encoder."""
        assert isinstance(self.learner, DistillationLearner)
        target = self.learner.target(batch)
        units = torch.eye(target.shape[1], dtype=target.dtype, device=target.device)
        lower, upper = bounds(torch.cat([units, -units]).expand(len(target), -1, -1)).chunk(2, 1)
        return torch.maximum((target - lower).square(), (-upper - target).square()).mean(1)

    def loss_under_attack(self, batch: Batch) -> tuple[nn.Module, ObjectiveFunction]:
        return self.learner.loss_under_attack(batch)

    def before_epoch(self, epoch: int, codes: Callable[[], Codes]) -> None:
        self.learner.before_epoch(epoch, codes)

    def after_epoch(self, numbers: Mapping[str, float]) -> None:
        self.learner.after_epoch(numbers)

    def before_step(self, progress: float) -> None:
        self.learner.before_step(progress)

    def after_step(self, progress: float) -> None:
        self.learner.after_step(progress)


def keep_boxes_small(encoder: nn.Module) -> None:
    """Redraw weights so that boxes keep their width across layers.

    The standard deviation is ``sqrt(2 pi) / fan_in``; biases stay. Paper: Shi et al. 2021,
    https://arxiv.org/abs/2103.17268, section 3.1.
    """
    for part in encoder.modules():
        if isinstance(part, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)):
            fan_in = prod(part.weight.shape[1:])
            nn.init.normal_(part.weight, std=sqrt(2 * pi) / fan_in)


def regularisers(graph: Graph, boxes: Sequence[Box]) -> Float[Tensor, ""]:
    """Penalty for boxes that grow and for neurons that are mostly active or inactive.

    Shi et al. 2021, https://arxiv.org/abs/2103.17268, section 3.3: with ``w_l`` the mean width of the boxes before an
    activation and ``w_0`` that of the input, ``relu(1/2 - w_0 / w_l)``; with ``a`` and ``i`` the sums of the centres of
    neurons that are always and never active, and of their squared distances from the mean of all centres,
    ``relu(1/2 - min(a/i, i/a))``; means over activations, over 1/2.
    """
    activations = [node.inputs[0] for node in graph.nodes if isinstance(node.operation, Rule) and len(node.inputs) == 1]
    width = (boxes[0].upper - boxes[0].lower).mean()
    terms = [charges(boxes[place], width) for place in dict.fromkeys(activations)]
    return torch.stack(terms).mean() / TOLERANCE if terms else torch.zeros_like(width)


def charges(box: Box, width: Float[Tensor, ""]) -> Float[Tensor, ""]:
    """Penalty for the boxes before one activation.

    Args:
        box: Lower and upper bounds before the activation.
        width: Mean width of the boxes of the input.
    """
    growth = relu(TOLERANCE - width / (box.upper - box.lower).mean())
    centres, active, inactive = (box.upper + box.lower) / 2, box.lower > 0, box.upper < 0
    spread = (centres - centres.mean()).square()
    leanings = [
        balance((values * active).sum(), (others * inactive).sum())
        for values, others in ((centres, -centres), (spread, spread))
    ]
    return growth + sum(relu(TOLERANCE - leaning) for leaning in leanings)


def balance(first: Float[Tensor, ""], second: Float[Tensor, ""]) -> Float[Tensor, ""]:
    """Smaller of two sums over the larger; 1 where one is not positive."""
    if not bool((first > 0) & (second > 0)):
        return torch.ones_like(first)
    return torch.minimum(first / second, second / first)
