"""The linear probe: multinomial logistic regression on embeddings.

    minimise over A, b:   sum over the reference set of  -log softmax(A s + b)_y  +  |A|^2 / 2,     s = (f - mean) / std

Features are standardised on the reference set, and the solver (L-BFGS) is deterministic. With two classes, whose rows are
opposite, the penalty is ``|A|^2``. The recipes of the literature use gradient steps on raw embeddings without a penalty:
``rvcl`` (Wang and Liu 2022, https://proceedings.mlr.press/v162/wang22q.html) and ``moco`` (He et al. 2020,
https://arxiv.org/abs/1911.05722).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from holdfast.attacks.base import GRADIENT, Attack
from holdfast.attacks.gradient import GradientAttack
from holdfast.attacks.objectives.simple import cross_entropy
from holdfast.core.balls import L2, Ball
from holdfast.core.encoder import Codes, Encoder, Pixels
from holdfast.core.errors import HoldfastError, OutOfRange, UnknownName
from holdfast.core.noise import Noise
from holdfast.core.run_settings import Observed
from holdfast.core.settings import check_positive
from holdfast.measure.evaluation import LATER
from holdfast.measure.population import LooksAt, Population
from holdfast.probes.base import FittedProbe, Probe, taught
from holdfast.synthetic.score import FEWEST, PER_FEATURE, SAMPLES, suggested_budget
from holdfast.transforms.augmentations.cropping import HorizontalFlip, RandomResizedCrop
from holdfast.transforms.base import Chain

TOLERANCE = 1e-6
"""The largest entry of the mean loss's gradient at which the solver stops."""


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class LinearScores(FittedProbe):
    """The logits ``A f + b``, in float64."""

    weight: Float[Tensor, "c d"]
    bias: Float[Tensor, "c"]

    def scores(self, codes: Codes) -> Float[Tensor, "b c"]:
        return codes.double() @ self.weight.T + self.bias


@dataclass(frozen=True)
class Recipe:
    """Published training schedule of a linear head."""

    optimiser: Callable[[list[Tensor]], torch.optim.Optimizer]
    """Optimiser and its settings, as in `sgd:rate=0.1`."""
    drops: tuple[int, ...]
    """Epochs after which the learning rate is divided by ten."""
    epochs: int
    """Passes over the images."""
    batch: int = 256
    """Images per training step."""


RECIPES = {
    "rvcl": Recipe(lambda weights: torch.optim.Adam(weights, lr=1e-3), (50,), 100),
    "moco": Recipe(lambda weights: torch.optim.SGD(weights, lr=30.0, momentum=0.9), (15, 20), 25),
}


@dataclass(frozen=True)
class Headed(Probe):
    """Probe whose fit is a linear head on the embeddings of the measured encoder."""

    def restore(self, population: Population, learned: Observed) -> LinearScores:
        return linear_scores(population.encoder, learned, population.run.device)


@final
@dataclass(frozen=True)
class Linear(Headed):
    """Linear head: multinomial logistic regression on embeddings."""

    recipe: str = "lbfgs"
    """`lbfgs` (converged), `rvcl` or `moco` (recipes of two papers)."""
    crops: int = field(default=0, metadata=LATER)
    """Random crops, half of them mirrored, that stand for each image of the reference set; 0 for the image itself."""
    name = "linear"
    version = 1

    def __post_init__(self) -> None:
        check_recipe(self.name, self.recipe, self.crops)

    def looks_at(self) -> LooksAt:
        return "encoder" if self.crops else "codes"

    def forward_passes(self, population: Population) -> int:
        return self.crops * len(population.bank.images)

    def learn(self, population: Population) -> Observed:
        bank = population.bank
        copies = [bank.codes] if not self.crops else [copy_codes(bank, bank.encode, k) for k in range(self.crops)]
        return head(bank, copies, self.recipe, self.name)


def check_recipe(name: str, recipe: str, crops: int) -> None:
    """Check the settings that linear heads share.

    Raises:
        HoldfastError: There is no such recipe, or a negative number of crops.
    """
    if recipe not in ("lbfgs", *RECIPES):
        raise UnknownName(f"{name}: recipe", recipe, ["lbfgs", *RECIPES])
    if crops < 0:
        raise OutOfRange(f"{name}: crops", crops, "0 or more")


CROPS = Chain((RandomResizedCrop(), HorizontalFlip()))
"""Augmentation of linear heads in the literature, here of images at the encoder's resolution."""


def copy_codes(bank: Population, encode: Callable[[Pixels], Codes], copy: int) -> Codes:
    """Embeddings of one random crop of each image of a reference set, shape (n, d)."""

    def encoded(rows: Sequence[int]) -> Observed:
        noise = bank.run.noise([bank.images.ids[row] for row in rows]).fork("crops", copy)
        return {"codes": encode(CROPS(bank.pixels(rows), noise))}

    return bank.run.batches(range(len(bank.images)), encoded)["codes"]


def head(bank: Population, copies: Sequence[Codes], recipe: str, name: str) -> Observed:
    """Fit a linear head to embeddings of one or several copies of a reference set.

    ``lbfgs`` fits all copies at once; published recipes take one copy per epoch, in turn.

    Args:
        name: Probe whose random stream decides the batches.

    Returns:
        ``weight``, ``bias`` and ``classes``.
    """
    labels = taught(bank)
    if recipe == "lbfgs":
        return logistic_regression(torch.cat([*copies]), labels.repeat(len(copies)))
    return descended(copies, labels, RECIPES[recipe], bank.run.noise(bank.images.ids).fork(name))


@final
class Logits(Headed):
    """No head: the encoder returns the logits of its own classifier, output c for label c."""

    name = "logits"
    version = 1
    uses_bank = False

    def looks_at(self) -> LooksAt:
        return "codes"

    def learn(self, population: Population) -> Observed:
        classes, largest = population.codes.shape[1], int(population.labels.max())
        if not largest < classes:
            raise HoldfastError(
                f"the probe logits takes output c for label c: {population.encoder.name} has {classes} outputs, and labels "
                f"go up to {largest}. Name an encoder that returns logits, as in trained:FOLDER?head=logits"
            )
        identity = torch.eye(classes, dtype=torch.float64)
        return {"weight": identity, "bias": torch.zeros_like(identity[0]), "classes": torch.arange(classes)}


def linear_scores(encoder: Encoder, learned: Observed, device: str, caution: str = "") -> LinearScores:
    """Load a linear head for embeddings of ``encoder``."""
    classes, weight, bias = (learned[name].to(device) for name in ("classes", "weight", "bias"))
    return LinearScores(encoder=encoder, classes=classes, weight=weight, bias=bias, caution=caution)


def logistic_regression(
    codes: Float[Tensor, "n d"], labels: Int[Tensor, "n"], tolerance: float = TOLERANCE
) -> Observed:
    """Fit multinomial logistic regression on standardised embeddings.

    Returns:
        ``weight``, ``bias`` and ``classes``.

    Example:
        >>> learned = logistic_regression(torch.tensor([[0.0], [1.0], [4.0], [5.0]]), torch.tensor([3, 3, 8, 8]))
        >>> learned["classes"].tolist(), float(-learned["bias"][1] / learned["weight"][1, 0])
        ([3, 8], 2.5...)
    """
    from sklearn.linear_model import LogisticRegression

    standardised = codes.to("cpu", torch.float64, copy=True)  # the only copy, standardised in its place
    centre, spread = standardised.mean(0), standardised.std(0).clamp_min(1e-9)
    standardised.sub_(centre).div_(spread)
    fit = LogisticRegression(tol=tolerance, max_iter=5000).fit(standardised.numpy(), labels.cpu().numpy())
    weight, bias = torch.tensor(fit.coef_) / spread, torch.tensor(fit.intercept_)
    bias = bias - weight @ centre
    if len(weight) == 1:  # two classes share one row
        weight, bias = torch.cat([-weight, weight]) / 2, torch.cat([-bias, bias]) / 2
    return {"weight": weight, "bias": bias, "classes": torch.tensor(fit.classes_)}


def descended(copies: Sequence[Codes], labels: Int[Tensor, "n"], recipe: Recipe, noise: Noise) -> Observed:
    """Train a linear head from zero with a published schedule.

    Returns:
        ``weight``, ``bias`` and ``classes``.
    """
    classes, places = labels.unique(return_inverse=True)
    head = zero_head(copies[0], classes)
    optimiser = recipe.optimiser([*head.parameters()])
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, [*recipe.drops], gamma=0.1)

    def loss(epoch: int, batch: Int[Tensor, "b"]) -> Tensor:
        return nn.functional.cross_entropy(head(copies[epoch % len(copies)][batch]), places[batch])

    descend(optimiser, schedule, noise, recipe.epochs, recipe.batch, loss)
    return learned_head(head, classes)


def zero_head(codes: Codes, classes: Int[Tensor, "c"]) -> nn.Linear:
    """Linear head from ``codes`` to ``classes`` that gives 0."""
    head = nn.Linear(codes.shape[1], len(classes), dtype=codes.dtype, device=codes.device)
    for weight in head.parameters():
        nn.init.zeros_(weight)  # the problem is convex: no start is better, and this one needs no draw
    return head


def learned_head(head: nn.Linear, classes: Int[Tensor, "c"]) -> Observed:
    """What a probe keeps of its head."""
    return {"weight": head.weight.data.double(), "bias": head.bias.data.double(), "classes": classes}


def descend(
    optimiser: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
    order: Noise,
    epochs: int,
    size: int,
    loss: Callable[[int, Int[Tensor, "b"]], Tensor],
) -> None:
    """Train on batches of ``size`` by their ``loss``, which takes the epoch and the rows of a batch."""
    for epoch in range(epochs):
        for batch in batches(order, epoch, size):
            value = loss(epoch, batch)
            optimiser.zero_grad()
            value.backward()
            optimiser.step()
        schedule.step()


def batches(noise: Noise, epoch: int, size: int) -> tuple[Int[Tensor, "b"], ...]:
    """Batches of an epoch, in an order that depends on the random streams alone."""
    return noise.fork("order", epoch).uniform((1,), torch.float64)[:, 0].argsort().split(size)


# The robust probe: a linear head trained against an attack on the pixels, through the frozen encoder.
#
#     minimise over A, b:   mean over the bank of  max over x' in the ball around x of  -log softmax(A f(x') + b)_y
#
# with the inner maximum by ten steps of PGD (Madry et al. 2018, https://arxiv.org/abs/1706.06083), as in SynBench (Ko
# et al.
# 2023, https://arxiv.org/abs/2210.02989, section 4), which suggests the radius at which an encoder's synthetic score is
# best.
#
# Departure: the head begins at the linear probe, from which it has little to go, and so takes few epochs.


@final
@dataclass(frozen=True)
class RobustProbe(Headed):
    """Linear head trained on images attacked within ``ball``."""

    ball: Ball
    """Perturbation set of adversarial training."""
    epochs: int = 10
    """Training epochs."""
    steps: int = 10
    """PGD steps per training step."""
    batch: int = 64
    """Images per training step."""
    name = "robust"
    version = 1

    def __post_init__(self) -> None:
        check_positive(self, "epochs", "steps", "batch")

    def forward_passes(self, population: Population) -> int:
        return self.epochs * (GRADIENT * self.steps + 1) * len(population.bank.images)

    def learn(self, population: Population) -> Observed:
        bank, labels = population.bank, taught(population.bank)
        plain = logistic_regression(bank.codes, labels)
        places = torch.searchsorted(plain["classes"].to(labels.device), labels)
        # The head descends on standardised features, or a step would mean something else for each of them.
        centre, spread = bank.codes.double().mean(0), bank.codes.double().std(0).clamp_min(1e-9)
        weight, bias = (plain[name].to(centre.device) for name in ("weight", "bias"))
        head = nn.Linear(weight.shape[1], len(weight), dtype=torch.float64, device=centre.device)
        head.load_state_dict({"weight": weight * spread, "bias": bias + weight @ centre})
        attack: Attack = GradientAttack(steps=self.steps, stride=2.5 / self.steps)
        optimiser = torch.optim.Adam(head.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, self.epochs)
        order = bank.run.noise(bank.images.ids).fork(self.name)

        def standardised(codes: Codes) -> Codes:
            return (codes.double() - centre) / spread

        def logits(codes: Codes) -> Float[Tensor, "b c"]:
            return functional.linear(standardised(codes), head.weight.detach(), head.bias.detach())

        def loss(epoch: int, batch: Int[Tensor, "b"]) -> Tensor:
            objective, noise = cross_entropy(logits, places[batch]), order[batch].fork(epoch)
            moved = attack(bank.encoder, bank.pixels(batch.tolist()), objective, self.ball, noise)
            return functional.cross_entropy(head(standardised(bank.encode(moved))), places[batch])

        descend(optimiser, schedule, order, self.epochs, self.batch, loss)
        weight = head.weight.data / spread
        return {"weight": weight, "bias": head.bias.data - weight @ centre, "classes": plain["classes"]}


# The noise probe: a linear head trained on codes of noisy images, the one that randomized smoothing asks for.
#
# Codes of ``x + N(0, sigma^2 I)``, the noise added at the encoder's resolution and not clipped, as in Cohen et al. 2019
# (https://arxiv.org/abs/1902.02918), then the linear probe.


@final
@dataclass(frozen=True)
class NoiseProbe(Headed):
    """Linear head trained on noisy copies of the images of the reference set."""

    sigma: float = 0.25
    """Standard deviation of the noise, in pixel units."""
    draws: int = 1
    """Noisy copies per image of the reference set."""
    recipe: str = field(default="lbfgs", metadata=LATER)
    """As for `linear`."""
    crop: bool = field(default=False, metadata=LATER)
    """True to crop each copy at random and mirror half of them, before the noise."""
    name = "noise"
    version = 1

    def __post_init__(self) -> None:
        check_positive(self, "sigma", "draws")
        check_recipe(self.name, self.recipe, 0)

    def forward_passes(self, population: Population) -> int:
        return self.draws * len(population.bank.images)

    def learn(self, population: Population) -> Observed:
        bank = population.bank
        return head(bank, [self._codes(bank, draw) for draw in range(self.draws)], self.recipe, self.name)

    def _codes(self, bank: Population, draw: int) -> torch.Tensor:
        def encoded(rows: Sequence[int]) -> Observed:
            pixels, noise = bank.pixels(rows), bank.run.noise([bank.images.ids[row] for row in rows])
            pixels = CROPS(pixels, noise.fork("crops", draw)) if self.crop else pixels
            noise = noise.fork("noise probe", draw)
            return {"codes": bank.encode(pixels + self.sigma * noise.normal(pixels.shape[1:], pixels.dtype))}

        return bank.run.batches(range(len(bank.images)), encoded)["codes"]


# The robust probe at the radius that SynBench suggests for the encoder, without data.
#
#     minimise over A, b:   mean over the bank of  max over |x' - x|_2 <= eps* of  -log softmax(A f(x') + b)_y
#
# with ``eps*`` the budget at which the encoder's synthetic score is best (Ko et al. 2023,
# https://arxiv.org/abs/2210.02989,
# section 4). Training is that of ``robust``; at ``eps* = 0`` it is the linear probe.


@final
@dataclass(frozen=True)
class SynBenchRobustProbe(Probe):
    """Linear head trained on images attacked in ℓ2, within the radius that SynBench suggests."""

    epochs: int = 10
    """Training epochs."""
    steps: int = 10
    """PGD steps per training step."""
    batch: int = 64
    """Images per training step."""
    samples: int = SAMPLES
    """Synthetic inputs in each set of each scale of SynBench."""
    name = "synbench-robust"
    version = 1

    def __post_init__(self) -> None:
        if self.samples < FEWEST:
            raise HoldfastError(f"{self.name} takes {FEWEST} samples or more per synthetic set, got {self.samples}")
        self._at(1.0)  # which checks the others

    def learn(self, population: Population) -> Observed:
        budget = suggested_budget(population, self.samples)
        return {**self._at(budget).learn(population), "radius": torch.tensor(budget, dtype=torch.float64)}

    def restore(self, population: Population, learned: Observed) -> LinearScores:
        radius = float(learned["radius"])
        taught = (
            f"the head was trained against attacks within {L2(radius)}" if radius else "the head is the linear probe"
        )
        features, few = population.codes.shape[1], ""
        if self.samples < PER_FEATURE * features:
            few = (
                f"; {self.samples} synthetic samples for {features} features are too few to trust it, {PER_FEATURE} a "
                "feature or more are needed (samples)"
            )
        caution = f"{self}: SynBench suggests a budget of {radius:g} for {population.encoder.name}, so {taught}{few}"
        return linear_scores(population.encoder, learned, population.run.device, caution)

    def _at(self, budget: float) -> Probe:
        """Return the probe that learns at this radius."""
        return RobustProbe(L2(budget), self.epochs, self.steps, self.batch) if budget else Linear()
