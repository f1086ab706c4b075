"""Linear probes trained against attacks within the radius that SynBench suggests: what SYN-3 is measured on."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

import holdfast as hf
from holdfast.attacks.objectives.simple import margin_of_logits as margin
from holdfast.attacks.presets import read_attack
from holdfast.measure.population import Population
from holdfast.probes.base import Probe
from holdfast.probes.linear import Linear, RobustProbe
from holdfast.synthetic.score import BUDGETS, suggested_budget
from holdfast.transforms.base import transformed
from studies.claims.certificates import kept
from studies.claims.material import Material
from studies.claims.measured import Measured, of_images, of_seeds
from studies.claims.pretraining import SEEDS, UNIFORM, Trainings
from studies.pretraining.cases import Case

ARMS = ("supervised", "simclr", "moco-v2")
CORRUPTIONS = ("gaussian-noise-c:3", "defocus-blur-c:3", "contrast-c:3", "pixelate-c:3", "jpeg-compression-c:3")
IMAGES, BANK, ATTACKED = 1000, 400, 100
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
        radii, success, right = found[:, 0, 0], found[..., 1], found[..., 2:]
        chosen = np.arange(len(found)), [BUDGETS.index(radius) for radius in radii]
        where = f"CIFAR-10, {arm}"
        yield of_images("gain in mean accuracy", where, right[chosen] - right[:, 0])
        yield of_images("gain over a random eps", where, right[chosen] - right.mean(1))
        for quantity, values in (
            ("fall of attack success", success[:, 0] - success[chosen]),
            ("suggested eps", radii),
            ("mean accuracy of linear probes", right[:, 0].mean(1)),
            ("attack success of linear probes", success[:, 0]),
        ):
            yield of_seeds(quantity, where, values)


def of_training(trainings: Trainings, arm: str, seed: int) -> Float[np.ndarray, "b 2+n"]:
    """Return for each budget the one that is suggested, and by this one attack success and answers to each image."""
    encoder = trainings.encoder(Case(arm, subset=UNIFORM), seed)

    def compute() -> np.ndarray:
        population = trainings.material.population(encoder, IMAGES, bank=BANK)
        radius = suggested_budget(population, SAMPLES)
        found = [answers_and_success(population, probe(budget)) for budget in BUDGETS]
        return np.array([(radius, success, *right) for right, success in found])

    sizes = f"{IMAGES}-{BANK}-{ATTACKED}-{EPOCHS}-{SAMPLES}"
    return kept(trainings.material, f"robust-answers-{encoder.fingerprint}-{sizes}", compute)


def probe(budget: float) -> Probe:
    """Return the robust probe at this radius; at 0 it is the linear one."""
    return RobustProbe(hf.L2(budget), epochs=EPOCHS) if budget else Linear()


def answers_and_success(population: Population, asked: Probe) -> tuple[list[float], float]:
    """Return the mean of clean and corrupted answers to each image, and the share of right ones that an attack turns."""
    fitted, rows = population.learned(asked), range(ATTACKED)
    places = fitted.places(population.labels)

    def right(codes: Float[Tensor, "n d"]) -> Bool[Tensor, "n"]:
        return fitted.scores(codes).argmax(1) == places[: len(codes)]

    clean, corrupted = right(population.codes), []
    for corruption in CORRUPTIONS:
        changed = Population(population.encoder, transformed(population.images, corruption), population.run)
        corrupted.append(right(changed.codes).double())
    context, objective = population.context(rows), margin(fitted.logits, places[:ATTACKED])
    noise = context.noise.fork("probe")
    moved = read_attack("adaptive:restarts=1")(population.encoder, context.pixels, objective, hf.L2(RADIUS), noise)
    wrong = ~right(population.encode(moved))[clean[:ATTACKED]]
    answers: list[float] = ((clean.double() + torch.stack(corrupted).mean(0)) / 2).tolist()
    return answers, float(wrong.double().mean())
