"""Trainings on images that were changed, chosen by class or generated: what CLSL-4 to CLSL-7 are measured on.

All have as many images as the long-tailed subset has, so that the trainings on the uniform subset are what each of the
others is compared with.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float

import holdfast as hf
from holdfast.corruptions.corrupted_codes import drops
from holdfast.measure.population import Population
from holdfast.probes.neighbours import Knn
from holdfast.transforms.base import transformed
from holdfast.transforms.subsets import labels_of
from studies.claims.answers import Right, right
from studies.claims.certificates import kept
from studies.claims.generated import generated
from studies.claims.material import TAUGHT, TESTED, Material
from studies.claims.measured import Measured, of_images, of_seeds
from studies.common import plain
from studies.pretraining.cases import ORDERS, Case
from studies.pretraining.under_change import Study, seeded, tail_of

SUPERVISED, CONTRASTIVE = "supervised", ("simclr", "moco-v2")
CHANGES = ("gamma:0.2", "global-shuffle:grid=4")
RESTORED = CHANGES[1]
"""The change of which the paper compares the two orders."""
UNIFORM, RAREST = "uniform", 3
SEEDS, MORE = range(10), range(20)
"""Of trainings, and of those of CLSL-6 and CLSL-7, which ten left open."""
IMAGES, EPOCHS, BATCH = 8000, 10, 128
"""Images that subsets are chosen from, about a quarter of them; and how subsets are learned."""
BANK, MEASURED = 2000, 2000
GENERATOR_EPOCHS = 40
SHAPES = {"mnist": (28, 1, "rvcl-mnist-view"), "cifar": (32, 3, "moco-cifar-view")}
"""Height, channels and augmentation of the images."""


@dataclass
class Trainings:
    """Encoders of the study of pre-training under change, trained when they are first asked for, and their answers."""

    material: Material
    study: Study
    seeds: range = SEEDS

    @classmethod
    def of(
        cls, material: Material, dataset: str = "mnist", architecture: str = "cnn-a", seeds: range = SEEDS
    ) -> Trainings:
        """Return those of a data set and an architecture."""
        taught, tested = (
            f"{material.folder() / 'images' / files[dataset]}.npz?images=images&labels=labels"
            for files in (TAUGHT, TESTED)
        )
        out = material.work / f"pretraining-{dataset}-{architecture}"
        size, channels, augmentation = SHAPES[dataset]
        asked = (taught, tested, out, size, channels, architecture, augmentation)
        return cls(material, Study(*asked, EPOCHS, IMAGES, MEASURED, BATCH, None), seeds)

    @cached_property
    def bank(self) -> hf.Images:
        """Return what nearest neighbours are looked for in."""
        return self.study.bank[range(min(BANK, len(self.study.bank)))]

    def right(self, case: Case, seed: int, change: str = "") -> Right:
        """Return where nearest neighbours are right, in a bank changed like the images."""
        encoder = self.encoder(case, seed)

        def compute() -> np.ndarray:
            bank, images = self.bank, self.study.measured_images
            if change:
                bank, images = (transformed(one, seeded(change, seed)) for one in (bank, images))
            run = hf.RunSettings()
            return right(Population(encoder, images, run, bank=Population(encoder, bank, run)), Knn(k=20))

        return kept(self.material, f"right-{encoder.fingerprint}-{len(self.bank)}-{MEASURED}-{plain(change)}", compute)

    def encoder(self, case: Case, seed: int) -> hf.Encoder:
        """Return the encoder of a case."""
        study = self.study
        if case.subset == "substituted":
            study = replace(study, substitute=f"{self.generated(seed)}?images=images&labels=labels")
        encoder = study.encoder(case, seed)
        encoder.name = f"{study.architecture}, {case}, seed {seed}"
        return self.material.noted(encoder)

    def generated(self, seed: int) -> Path:
        """Return the file of the images that are generated in place of those of the uniform subset."""
        path = self.study.out / f"generated-{seed}.npz"
        if not path.exists():
            uniform = self.study.subset(UNIFORM, seed)
            labels = torch.tensor(labels_of(uniform))
            pixels = uniform.pixels(range(len(uniform)))
            count = len(uniform) // (int(labels.max()) + 1)
            images, made = generated(pixels, labels, count, GENERATOR_EPOCHS, seed)
            path.parent.mkdir(parents=True, exist_ok=True)
            np.savez(path, images=(255 * images).round().to(torch.uint8).numpy(), labels=made.numpy())
        return path

    def accuracies(self, case: Case, change: str = "") -> Float[np.ndarray, "s"]:
        """Return the accuracy of each seed."""
        return np.array([self.right(case, seed, change).mean() for seed in self.seeds])

    def lost(self, case: Case, change: str = "") -> Float[np.ndarray, "s n"]:
        """Return values of the images whose mean is the share of accuracy that a training loses.

        It is lost against the training of the same seed on the uniform subset, unchanged.
        """
        lost = []
        for seed in self.seeds:
            original = self.right(Case(case.objective, subset=UNIFORM), seed)
            lost.append(drops(torch.tensor(original), torch.tensor(self.right(case, seed, change))).numpy())
        return np.stack(lost)

    def rarest(self, seed: int) -> Bool[np.ndarray, "n"]:
        """Return which measured images are of the classes that are rarest in the long tail."""
        rare = tail_of(self.study.subset("", seed), seed).classes[-RAREST:]
        found: Bool[np.ndarray, "n"] = np.isin(labels_of(self.study.measured_images), rare)
        return found


def corrupted(material: Material) -> Iterator[Measured]:
    """CLSL-4: drop of contrastive encoders trained and measured on changed images less that of supervised ones."""
    trainings = Trainings.of(material)
    lost = {
        arm: np.array([trainings.lost(Case(arm, one, ORDERS[0], UNIFORM), one) for one in CHANGES])
        for arm in (SUPERVISED, *CONTRASTIVE)
    }
    for arm in CONTRASTIVE:
        less = (lost[arm] - lost[SUPERVISED]).mean(0)
        yield of_images("drop of contrastive less supervised", f"MNIST, {arm}", less)
    for arm, of_arm in lost.items():
        yield of_seeds("accuracy", f"MNIST, {arm}, as they are", trainings.accuracies(Case(arm, subset=UNIFORM)))
        for change, values in zip(CHANGES, of_arm, strict=True):
            yield of_seeds("drop", f"MNIST, {arm}, {change}", values.mean(1))


def both_orders(material: Material) -> Iterator[Measured]:
    """CLSL-5: drop of MoCo trained on images changed before the augmentation less that on images changed after it."""
    trainings = Trainings.of(material)
    before, after = (trainings.lost(Case("moco-v2", RESTORED, order, UNIFORM), RESTORED) for order in ORDERS)
    where = f"MNIST, moco-v2, {RESTORED}"
    yield of_images("drop if changed before less if changed after", where, before - after)
    for order, values in zip(ORDERS, (before, after), strict=True):
        yield of_seeds("drop", f"{where}, {order}", values.mean(1))


def synthesised(material: Material) -> Iterator[Measured]:
    """CLSL-6: drop of supervised encoders by learning from generated images less that of contrastive ones."""
    yield from less_by(Trainings.of(material, seeds=MORE), "substituted", "generated images")


def imbalance(material: Material) -> Iterator[Measured]:
    """CLSL-7: drop of supervised encoders by learning from a long tail of classes less that of contrastive ones."""
    trainings = Trainings.of(material, seeds=MORE)
    yield from less_by(trainings, "long-tail", "a long tail")
    rare = [trainings.rarest(seed) for seed in MORE]
    for arm in (SUPERVISED, *CONTRASTIVE):
        for subset in (UNIFORM, "long-tail"):
            right = [trainings.right(Case(arm, subset=subset), seed)[rare[seed]].mean() for seed in MORE]
            yield of_seeds(f"accuracy of the {RAREST} rarest classes", f"MNIST, {arm}, {subset}", right)


def less_by(trainings: Trainings, subset: str, called: str) -> Iterator[Measured]:
    """Yield drops by learning from ``subset`` instead of the uniform one, and accuracies."""
    lost = {arm: trainings.lost(Case(arm, subset=subset)) for arm in (SUPERVISED, *CONTRASTIVE)}
    for arm in CONTRASTIVE:
        yield of_images("drop of supervised less contrastive", f"MNIST, {arm}", lost[SUPERVISED] - lost[arm])
    for arm in lost:
        for one, name in ((UNIFORM, "a uniform subset"), (subset, called)):
            yield of_seeds("accuracy", f"MNIST, {arm}, {name}", trainings.accuracies(Case(arm, subset=one)))
