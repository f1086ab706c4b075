"""AutoAttack: an ensemble of attacks on a classifier, each on the images that those before it left right.

Croce and Hein 2020, https://arxiv.org/abs/2003.01690: APGD on the cross-entropy, APGD on the difference of logits ratio
(DLR), FAB (Croce and Hein 2020, https://arxiv.org/abs/1907.02044) and the square attack. The ensemble ``standard`` is
that of the authors' program, whose second and third member aim at nine classes in turn; ``untargeted`` with five starts
is that of the paper. All constants are the published ones; none is tuned.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from holdfast.attacks.adaptive import ascend
from holdfast.attacks.base import GRADIENT, Attack, Gain, assert_inside, better, gain_and_gradient
from holdfast.attacks.black_box import SquareAttack
from holdfast.attacks.objectives.simple import ClassMargin, cross_entropy
from holdfast.core.balls import Ball, column
from holdfast.core.encoder import Codes, Encoder, Pixels
from holdfast.core.errors import Conflict, OutOfRange, UnknownName
from holdfast.core.noise import Noise
from holdfast.core.objective import ObjectiveFunction
from holdfast.core.settings import check_positive

STEPS, TARGETS, QUERIES, AREA = 100, 9, 5000, 0.8
"""Steps of APGD and FAB, classes that targeted members aim at, queries and first window of the square attack."""
DENSE, SPARSE = 2.0, 1.0
"""The first step of APGD as a share of the radius, in dense and in sparse balls."""
TINY = 1e-12
"""Added to the denominator of the DLR loss."""
ALPHA, ETA, BETA = 0.1, 1.05, 0.9
"""FAB: largest weight of the original image, overshoot over the boundary, and where a find steps back to."""


@dataclass(frozen=True)
class ClassAttack(Attack):
    """Attack on the logits of a classifier; each further run goes on with the images that are still right."""

    steps: int = STEPS
    """Steps of each run."""
    targets: int = 0
    """Other classes to aim at in turn, the most likely first; 0 aims at any."""
    needs_classes = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "steps")
        if self.targets < 0:
            raise OutOfRange(f"{self.name}: targets", self.targets, "0 or more")

    @property
    def runs(self) -> int:
        """Largest number of runs per image."""
        return self.restarts * max(1, self.targets)

    @property
    def fewest_classes(self) -> int:
        """Fewest classes of a classifier that can be attacked."""
        return 2

    def __call__(
        self, encoder: Encoder, pixels: Pixels, objective: ObjectiveFunction, ball: Ball, noise: Noise
    ) -> Pixels:
        margin = class_margin(self, objective)
        ball.check(encoder.domain)
        with torch.no_grad():
            logits = margin.logits(encoder.forward(pixels))
        if (classes := logits.shape[1]) < self.fewest_classes:
            setting, fix = f"{self.name}: classes of the probe", "name adaptive instead"
            raise OutOfRange(setting, classes, f"at least {self.fewest_classes}", fix)
        others = other_classes(logits, margin.places)[:, : self.targets]

        def run(restart: int, target: int, left: Int[Tensor, "n"]) -> Pixels:
            aimed = replace(margin.of(left), targets=others[left, target] if self.targets else None)
            streams = Noise(noise.keys[left]).fork(self.name, restart, target)
            return self.run(encoder, pixels[left], aimed, ball, streams, first=restart == 0)

        turns = product(range(self.restarts), range(max(1, others.shape[1])))
        attacked = in_turn((partial(run, *at) for at in turns), encoder, pixels, margin)
        assert_inside(encoder, pixels, attacked, ball)
        return attacked

    def search(
        self, encoder: Encoder, pixels: Pixels, objective: ObjectiveFunction, ball: Ball, noise: Noise
    ) -> tuple[Pixels, Gain]:
        margin = class_margin(self, objective)
        moved = self.run(encoder, pixels, margin, ball, noise, first=True)
        with torch.no_grad():
            return moved, margin(encoder.forward(moved))

    @abstractmethod
    def run(
        self, encoder: Encoder, pixels: Pixels, margin: ClassMargin, ball: Ball, noise: Noise, *, first: bool
    ) -> Pixels:
        """Run the attack once, from one start, at the classes that ``margin`` aims at.

        Args:
            encoder: Encoder under attack.
            pixels: Clean images, shape (b, *domain.shape), within the range of the domain.
            margin: Classifier, correct classes and target classes.
            ball: Perturbation set around each clean image; its radius is in pixel units.
            noise: Random streams, one per image.
            first: True for the first start.

        Returns:
            Attacked images, shape (b, *pixels), inside the ball and the domain.
        """


@final
@dataclass(frozen=True)
class APGD(ClassAttack):
    """Automatic projected gradient descent on a loss of logits, as published."""

    loss: str = "ce"
    """`ce` (cross-entropy) or `dlr` (difference of logits ratio)."""
    name = "apgd"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loss not in ("ce", "dlr"):
            raise UnknownName("apgd: loss", self.loss, ["ce", "dlr"])
        if self.loss == "ce" and self.targets:
            raise Conflict("apgd", f"loss=ce and targets={self.targets}", "loss=dlr with targets")

    @property
    def fewest_classes(self) -> int:
        return 2 if self.loss == "ce" else 4 if self.targets else 3

    @property
    def forward_passes(self) -> int:
        return 1 + self.runs * (GRADIENT * (self.steps + 1) + 1)

    def run(
        self, encoder: Encoder, pixels: Pixels, margin: ClassMargin, ball: Ball, noise: Noise, *, first: bool
    ) -> Pixels:
        loss = cross_entropy(margin.logits, margin.places) if self.loss == "ce" else logit_ratio(margin)
        found = Found(margin, pixels)
        start, length = on_surface(encoder, pixels, ball, noise, 1.0), SPARSE if ball.sparse else DENSE
        ascend(encoder, pixels, loss, ball, start, self.steps, length, found.look)
        return found.points


@final
class FAB(ClassAttack):
    """Smallest perturbation that crosses a boundary, by projections on linearised boundaries (FAB)."""

    name = "fab"

    @property
    def forward_passes(self) -> int:
        # Without targets a step asks for the gradient of every other class, whose number is not known here, once it
        # knows their order.
        step = GRADIENT if self.targets else GRADIENT * TARGETS + 1
        return 1 + self.runs * (self.steps * (step + 1) + 1)

    def run(
        self, encoder: Encoder, pixels: Pixels, margin: ClassMargin, ball: Ball, noise: Noise, *, first: bool
    ) -> Pixels:
        start = pixels if first else on_surface(encoder, pixels, ball, noise, 0.5)
        points, sizes = nearest_errors(encoder, pixels, margin, ball, self.steps, start)
        return torch.where(column(sizes <= ball.radius, pixels), points, pixels)


@final
@dataclass(frozen=True)
class AutoAttack(Attack):
    """Ensemble of APGD, FAB and the square attack on a classifier, as published."""

    ensemble: str = "standard"
    """`standard` (APGD on cross-entropy, targeted APGD and FAB, square) or `untargeted` (that of the paper)."""
    steps: int = STEPS
    """Steps of each run of APGD and FAB."""
    queries: int = QUERIES
    """Forward passes of the square attack."""
    name = "autoattack"
    needs_classes = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ensemble not in ("standard", "untargeted"):
            raise UnknownName("autoattack: ensemble", self.ensemble, ["standard", "untargeted"])
        assert self.members  # which check their settings

    @property
    def members(self) -> tuple[Attack, ...]:
        """The attacks, in the order in which they run."""
        targets = TARGETS if self.ensemble == "standard" else 0
        return (
            APGD(self.restarts, self.steps),
            APGD(self.restarts, self.steps, targets, "dlr"),
            FAB(self.restarts, self.steps, targets),
            SquareAttack(queries=self.queries, area=AREA),
        )

    @property
    def forward_passes(self) -> int:
        return 1 + sum(member.forward_passes + 1 for member in self.members)

    def __call__(
        self, encoder: Encoder, pixels: Pixels, objective: ObjectiveFunction, ball: Ball, noise: Noise
    ) -> Pixels:
        margin = class_margin(self, objective)
        ball.check(encoder.domain)
        with torch.no_grad():
            self._check_classes(margin.logits(encoder.forward(pixels[:1])).shape[1])

        def run(member: Attack, left: Int[Tensor, "n"]) -> Pixels:
            return member(encoder, pixels[left], margin.of(left), ball, Noise(noise.keys[left]).fork(self.name))

        attacked = in_turn((partial(run, member) for member in self.members), encoder, pixels, margin)
        assert_inside(encoder, pixels, attacked, ball)
        return attacked

    def search(
        self, encoder: Encoder, pixels: Pixels, objective: ObjectiveFunction, ball: Ball, noise: Noise
    ) -> tuple[Pixels, Gain]:
        moved = self(encoder, pixels, objective, ball, noise)
        with torch.no_grad():
            return moved, objective(encoder.forward(moved))

    def _check_classes(self, classes: int) -> None:
        """Raise if a member's loss is not defined for so few classes: leaving it out would be another attack."""
        fewest = max(member.fewest_classes for member in self.members if isinstance(member, ClassAttack))
        if classes < fewest:
            other = "autoattack:ensemble=untargeted,restarts=5" if classes == fewest - 1 == 3 else "adaptive"
            raise OutOfRange(
                f"{self}: classes of the probe", classes, f"at least {fewest}, because of the DLR loss", f"name {other}"
            )


class Found:
    """Remembers, for each image, the point that a search passed at which the classifier errs most.

    Args:
        margin: Classifier and correct classes.
        pixels: Clean images, shape (b, *pixels).
    """

    def __init__(self, margin: ClassMargin, pixels: Pixels) -> None:
        self.margin, self.points = margin, pixels
        self.gain: Tensor | None = None

    def look(self, encoder: Encoder, moved: Pixels, loss: ObjectiveFunction) -> tuple[Gain, Pixels]:
        """Gain and gradient of ``loss`` at ``moved``, which is remembered."""
        here: list[Tensor] = []

        def watched(codes: Codes) -> Gain:
            here.append(self.margin(codes.detach()))
            return loss(codes)

        gain, gradient = gain_and_gradient(encoder, moved, watched)
        before = torch.full_like(here[0], -torch.inf) if self.gain is None else self.gain
        self.points, self.gain = better(self.points, before, moved, here[0])
        return gain, gradient


def class_margin(attack: Attack, objective: ObjectiveFunction) -> ClassMargin:
    """Return ``objective`` as the margin of a classifier.

    Raises:
        OutOfRange: It is another objective, so that ``attack`` has no classes to attack.
    """
    if isinstance(objective, ClassMargin):
        return objective
    raise OutOfRange(
        f"{attack.name}: target",
        "an embedding",
        "a classifier, because its losses compare classes",
        "use it in robust-accuracy, or name adaptive here",
    )


@torch.no_grad()
def in_turn(
    runs: Iterable[Callable[[Int[Tensor, "n"]], Pixels]], encoder: Encoder, pixels: Pixels, margin: ClassMargin
) -> Pixels:
    """Points with the largest margin over several runs; each takes the images that all before it left right.

    Args:
        runs: Functions from rows to attacked images of these rows, shape (n, *pixels).
        margin: Classifier and correct classes; images without a correct class are left as they are.

    Returns:
        Attacked images, shape (b, *pixels).
    """
    best, gain = pixels.clone(), margin(encoder.forward(pixels))
    for run in runs:
        (left,) = ((gain <= 0) & (margin.places >= 0)).nonzero(as_tuple=True)
        if not len(left):
            break
        moved = run(left)
        its_gain = margin.of(left)(encoder.forward(moved))
        best[left], gain[left] = better(best[left], gain[left], moved, its_gain)
    return best


def other_classes(logits: Float[Tensor, "b c"], places: Int[Tensor, "b"]) -> Int[Tensor, "b c-1"]:
    """Columns of the classes besides the correct one, by falling logit.

    Args:
        logits: Logits, shape (b, c).
        places: Column of the correct class of each image, shape (b,); -1 counts as column 0.

    Example:
        >>> other_classes(torch.tensor([[3.0, 1.0, 2.0]]), torch.tensor([2]))
        tensor([[0, 1]])
    """
    hidden = logits.scatter(1, places.clamp_min(0)[:, None], -torch.inf)
    return hidden.argsort(dim=1, descending=True)[:, :-1]


def logit_ratio(margin: ClassMargin) -> ObjectiveFunction:
    """Difference of logits ratio, which neither a shift nor a scale of the logits changes (DLR).

    ``-(z_y - max over j != y of z_j) / (z_1 - z_3)``, with the logits by falling order as ``z_1 .. z_c``. At target
    classes ``t`` it is ``-(z_y - z_t) / (z_1 - (z_3 + z_4) / 2)``.

    Paper: Croce and Hein 2020, equations 6 and 7.

    Args:
        margin: Classifier of at least three classes, or four with targets.

    Example:
        >>> scores = torch.tensor([[4.0, 3.0, 1.0, 0.0]])
        >>> aimed = ClassMargin(lambda codes: codes, torch.tensor([0]), torch.tensor([2]))
        >>> [round(float(logit_ratio(of)(scores)), 4) for of in (replace(aimed, targets=None), aimed)]
        [-0.3333, -0.8571]
    """

    def objective(codes: Codes) -> Gain:
        logits = margin.logits(codes)
        ordered = logits.sort(dim=1, descending=True).values
        if margin.targets is None:
            return margin.of_logits(logits) / (ordered[:, 0] - ordered[:, 2] + TINY)
        return gap(logits, margin.places, margin.targets) / (ordered[:, 0] - ordered[:, 2:4].mean(1) + TINY)

    return objective


def gap(logits: Float[Tensor, "b c"], places: Int[Tensor, "b"], targets: Int[Tensor, "b"]) -> Float[Tensor, "b"]:
    """Logit of the target class minus the logit of the correct class, shape (b,)."""
    return (logits.gather(1, targets[:, None]) - logits.gather(1, places[:, None]))[:, 0]


def on_surface(encoder: Encoder, pixels: Pixels, ball: Ball, noise: Noise, share: float) -> Pixels:
    """Random point whose perturbation has a fraction of the ball's radius, clipped to the domain.

    Args:
        encoder: Encoder whose domain limits the point.
        share: Fraction of the radius, 0 to 1.
    """
    delta = ball.sample(noise, pixels.shape[1:], pixels.dtype)
    scale = share * ball.radius / ball.norm(delta).clamp_min(torch.finfo(delta.dtype).tiny)
    return encoder.domain.clip(pixels + ball.project(delta * column(scale, delta)))


def nearest_errors(
    encoder: Encoder, pixels: Pixels, margin: ClassMargin, ball: Ball, steps: int, start: Pixels
) -> tuple[Pixels, Float[Tensor, "b"]]:
    """Nearest images found that the classifier gets wrong, anywhere in the domain (FAB).

    Each step projects the current point and the original onto the nearest linearised boundary and moves between both;
    each find steps back towards the original.

    Paper: Croce and Hein 2020, https://arxiv.org/abs/1907.02044, algorithm 1. The final search is left out, as in the
    authors' program: its finds lie so near to the boundary that rounding takes them back.

    Args:
        margin: Classifier, correct classes and target classes.
        ball: Its norm is minimised; its radius does not matter.
        steps: Projections.

    Returns:
        Nearest images, shape (b, *pixels), and the norms of their perturbations, shape (b,); infinite where none was
        found, and the image is clean there.
    """
    domain, moved, nearest = encoder.domain, start, pixels
    smallest = torch.full_like(pixels.flatten(1)[:, 0], torch.inf)
    for _ in range(steps):
        height, slope = nearest_boundary(encoder, moved, margin, ball)
        low, high = domain.low - moved, domain.high - moved
        here = ball.onto_plane(slope, -height, low, high)
        above = height + (slope.double() * (pixels - moved).double()).flatten(1).sum(1)
        there = ball.onto_plane(slope, -above, domain.low - pixels, domain.high - pixels)
        size = ball.norm(here)
        weight = (size / (size + ball.norm(there))).nan_to_num(0.0).clamp_max(ALPHA)
        weight = column(weight, moved)
        moved = domain.clip((1 - weight) * (moved + ETA * here) + weight * (pixels + ETA * there))
        with torch.no_grad():
            wrong = margin(encoder.forward(moved)) > 0
        sizes = ball.norm(moved - pixels)
        nearer = wrong & (sizes < smallest)
        nearest, smallest = torch.where(column(nearer, moved), moved, nearest), torch.where(nearer, sizes, smallest)
        back = domain.clip((1 - BETA) * pixels + BETA * moved)
        moved = torch.where(column(wrong, moved), back, moved)
    return nearest, smallest


def nearest_boundary(
    encoder: Encoder, moved: Pixels, margin: ClassMargin, ball: Ball
) -> tuple[Float[Tensor, "b"], Pixels]:
    """Linearised boundary nearest to each point: between the correct class and its target, or any other class.

    Args:
        margin: Classifier, correct classes and target classes.
        ball: Ball whose norm measures the distance to a boundary.

    Returns:
        Logit of the other class minus that of the correct one, shape (b,), and its gradient, shape (b, *pixels).
    """

    def at(targets: Int[Tensor, "b"]) -> tuple[Float[Tensor, "b"], Pixels]:
        return gain_and_gradient(encoder, moved, lambda codes: gap(margin.logits(codes), margin.places, targets))

    if margin.targets is not None:
        return at(margin.targets)
    with torch.no_grad():
        others = other_classes(margin.logits(encoder.forward(moved)), margin.places)
    height, slope = at(others[:, 0])
    distance = height.abs() / ball.dual_norm(slope).clamp_min(TINY)
    for targets in others.T[1:]:
        its_height, its_slope = at(targets)
        its_distance = its_height.abs() / ball.dual_norm(its_slope).clamp_min(TINY)
        nearer = its_distance < distance
        height, distance = torch.where(nearer, its_height, height), torch.where(nearer, its_distance, distance)
        slope = torch.where(column(nearer, slope), its_slope, slope)
    return height, slope
