"""Linear probes trained against attacks within the radius that SynBench suggests: what SYN-3 is measured on."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

import holdfast as hf
from holdfast.attacks.presets import read_attack
from holdfast.objectives.misclassification import margin
from holdfast.probes.base import Probe
from holdfast.probes.linear import Linear
from holdfast.probes.robust import RobustProbe
from holdfast.protocol.population import Population
from holdfast.synthetic.suggestion import BUDGETS, suggested_budget
from holdfast.transforms.base import transformed
from studies.claims.certificates import kept
from studies.claims.material import Material
from studies.claims.measured import Measured, of_seeds
from studies.claims.pretraining import SEEDS, UNIFORM, Trainings
from studies.pretraining.cases import Case

ARMS = ("supervised", "simclr", "moco-v2")
CORRUPTIONS = ("gaussian-noise-c:3", "defocus-blur-c:3", "contrast-c:3", "pixelate-c:3", "jpeg-compression-c:3")
IMAGES, BANK, ATTACKED = 300, 400, 100
EPOCHS = 3
SAMPLES = 256
"""Of each synthetic set: 2.6 for each feature, about as in the paper."""
RADIUS = 0.2
"""Of the attacks in l2, the smallest budget that can be suggested."""


def suggested(material: Material) -> Iterator[Measured]:
    """SYN-3: what robust probes at the suggested radius gain over linear ones, and over robust ones at any radius."""
    trainings = Trainings.of(material, "cifar")
    for arm in ARMS:
        found = np.stack([of_training(trainings, arm, seed) for seed in SEEDS])
        radii, by_budget = found[:, 0, 0], found[..., 1:]
        linear, random = by_budget[:, 0], by_budget.mean(1)
        chosen = by_budget[np.arange(len(found)), [BUDGETS.index(radius) for radius in radii]]
        for quantity, values in (
            ("gain in mean accuracy", chosen[:, 0] - linear[:, 0]),
            ("gain over a random eps", chosen[:, 0] - random[:, 0]),
            ("fall of attack success", linear[:, 1] - chosen[:, 1]),
            ("suggested eps", radii),
            ("mean accuracy of linear probes", linear[:, 0]),
            ("attack success of linear probes", linear[:, 1]),
        ):
            yield of_seeds(quantity, f"CIFAR-10, {arm}", values)


def of_training(trainings: Trainings, arm: str, seed: int) -> Float[np.ndarray, "b 3"]:
    """Return for each budget the one that is suggested, and mean accuracy and attack success by this one."""
    encoder = trainings.encoder(Case(arm, subset=UNIFORM), seed)

    def compute() -> np.ndarray:
        population = trainings.material.population(encoder, IMAGES, bank=BANK)
        radius = suggested_budget(population, SAMPLES)
        return np.array([(radius, *accuracy_and_success(population, probe(budget))) for budget in BUDGETS])

    sizes = f"{IMAGES}-{BANK}-{ATTACKED}-{EPOCHS}-{SAMPLES}"
    return kept(trainings.material, f"robust-probes-{encoder.fingerprint}-{sizes}", compute)


def probe(budget: float) -> Probe:
    """Return the robust probe at this radius; at 0 it is the linear one."""
    return RobustProbe(hf.L2(budget), epochs=EPOCHS) if budget else Linear()


def accuracy_and_success(population: Population, asked: Probe) -> tuple[float, float]:
    """Return the mean of clean and corrupted accuracy, and the share of right answers that an attack makes wrong."""
    fitted, rows = population.learned(asked), range(ATTACKED)
    places = fitted.places(population.labels)

    def right(codes: Float[Tensor, "n d"]) -> Bool[Tensor, "n"]:
        return fitted.scores(codes).argmax(1) == places[: len(codes)]

    clean, corrupted = right(population.codes), []
    for corruption in CORRUPTIONS:
        changed = Population(population.encoder, transformed(population.images, corruption), population.run)
        corrupted.append(right(changed.codes).double().mean())
    context, objective = population.context(rows), margin(fitted.logits, places[:ATTACKED])
    noise = context.noise.fork("probe")
    moved = read_attack("adaptive:restarts=1")(population.encoder, context.pixels, objective, hf.L2(RADIUS), noise)
    wrong = ~right(population.encode(moved))[clean[:ATTACKED]]
    mean = (clean.double().mean() + torch.stack(corrupted).mean()) / 2
    return float(mean), float(wrong.double().mean())
