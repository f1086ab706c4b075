"""Contrastive against supervised learning under change (Zhong et al. 2022, https://arxiv.org/abs/2206.05259)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch
from numpy.typing import ArrayLike

import holdfast as hf
from holdfast.probes.neighbours import Knn
from holdfast.protocol.population import Population
from holdfast.transforms.base import transformed
from studies.claims import pretraining
from studies.claims.answers import right
from studies.claims.claim import ABOVE, Claim
from studies.claims.material import Material
from studies.claims.measured import Measured, measured, of_images, of_seeds

PAPER = "Zhong et al. 2022"
CONTRASTIVE = ("simclr", "moco-v2", "byol", "barlow-twins")
SUPERVISED = "supervised"
SPREADING = ("gamma:5", "local-shuffle:grid=4", "global-shuffle:grid=4")
BANK, IMAGES, ALL = 1000, 2000, 10_000
"""Images of the bank, of CLSL-1, and of CLSL-9, which 2,000 and ten trainings left open."""
DROPS = {
    "Sup-a": (76.1, 39.8),
    "Sup-b": (75.5, 40.7),
    "BYOL": (72.3, 35.6),
    "SimSiam": (68.3, 34.4),
    "MoCo-v2-a": (66.4, 32.8),
    "MoCo-v2-b": (71.1, 35.7),
    "SimCLR-v2": (71.0, 36.5),
    "BarlowTwins": (73.5, 34.7),
    "DeepCluster-v2": (75.2, 36.0),
    "SwAV-a": (72.0, 33.9),
    "SwAV-b": (74.9, 34.5),
}
"""Table 1: ImageNet accuracy and mean drop, in percent."""
CLEAN = {
    "Sup-a": (86.4, 65.1, 96.6, 26.8, 40.3),
    "Sup-b": (84.9, 63.2, 96.0, 28.8, 46.9),
    "BYOL": (87.5, 67.4, 94.9, 22.5, 38.2),
    "SimSiam": (83.6, 59.9, 92.1, 17.1, 32.8),
    "MoCo-v2-a": (81.4, 56.6, 90.1, 13.1, 25.2),
    "MoCo-v2-b": (83.6, 59.5, 95.3, 13.8, 26.8),
    "SimCLR-v2": (85.4, 63.5, 91.9, 17.7, 31.2),
    "BarlowTwins": (83.8, 63.7, 94.5, 23.4, 39.2),
    "DeepCluster-v2": (87.2, 65.0, 94.8, 22.7, 40.3),
    "SwAV-a": (83.5, 60.1, 94.4, 17.2, 31.5),
    "SwAV-b": (84.7, 62.7, 94.3, 19.3, 33.5),
}
"""Table D.3: accuracy on the original images of CIFAR-10, CIFAR-100, STL-10, Cars and Aircraft."""
TUNED = {
    "Sup": (11.3, 21.5, 17.6, 47.3, 33.0),
    "BYOL": (9.8, 21.4, 16.9, 46.1, 31.4),
    "SimSiam": (9.4, 18.1, 15.2, 38.8, 26.3),
    "MoCo-b": (9.0, 17.8, 14.3, 39.7, 26.8),
    "SimCLR2": (11.5, 19.9, 18.0, 43.8, 28.7),
    "BarlowTwins": (12.1, 27.2, 19.1, 49.4, 35.7),
    "DeepCluster2-b": (9.3, 19.9, 15.3, 43.0, 30.8),
    "SwAV-b": (9.0, 19.3, 14.7, 41.6, 29.5),
}
"""Table D.5: mean drops after fine-tuning on the same five data sets."""


def drop(material: Material, encoder: hf.Encoder) -> tuple[float, np.ndarray]:
    """Return accuracy on clean images, and values of the images whose mean is the share of it that six changes cost."""
    settings = {"corruption-test": {"probes": "knn:k=20", "permutations": 1, "samples": IMAGES, "reference": 100}}
    found = material.evaluate(encoder, IMAGES, settings, bank=BANK)["corruption-test"]
    clean = found.estimate("clean_accuracy").value
    lost = [one for one in found.findings.series if one.quantity == "mean_relative_accuracy_drop"]
    return clean, np.array(lost[0].values)


def drops(material: Material) -> Mapping[str, tuple[np.ndarray, np.ndarray]]:
    """Return accuracies (s,) and values of the images (s, n), whose means are drops, of the trainings of each arm."""
    arms = (SUPERVISED, *CONTRASTIVE)
    each = {arm: [drop(material, material.arm(arm, seed)) for seed in material.seeds(*arms)] for arm in arms}
    return {
        arm: (np.array([one for one, _ in found]), np.stack([two for _, two in found])) for arm, found in each.items()
    }


def downstream(material: Material) -> Iterator[Measured]:
    """CLSL-1: drop of supervised encoders less that of contrastive ones, over the seeds that both have."""
    found = drops(material)
    supervised = found[SUPERVISED][1]
    for arm in CONTRASTIVE:
        lost = found[arm][1]
        yield of_images("drop of supervised less contrastive", f"MNIST, {arm}", supervised - lost)
        yield of_seeds("drop", f"MNIST, {arm}", lost.mean(1))
    yield of_seeds("drop", f"MNIST, {SUPERVISED}", supervised.mean(1))


def at_equal_accuracy(material: Material) -> Iterator[Measured]:
    """CLSL-2: by how much supervised encoders lose more than contrastive ones of the same accuracy."""
    clean = [float(np.mean(CLEAN[name])) for name in DROPS]
    lost = [DROPS[name][1] for name in DROPS]
    supervised = [float(name.startswith("Sup")) for name in DROPS]
    yield from matched("tables 1 and D.3", supervised, clean, lost)
    found = drops(material)
    # Trainings of one kind are alike: seeds are not encoders.
    accuracies, losses = zip(*((right.mean(), lost.mean()) for right, lost in found.values()), strict=True)
    groups = [float(arm == SUPERVISED) for arm in found]
    yield from matched("MNIST, means over seeds", groups, accuracies, losses)


def matched(where: str, supervised: ArrayLike, clean: ArrayLike, lost: ArrayLike) -> Iterator[Measured]:
    """Yield the drop that supervised encoders have beyond others of their accuracy, and how drop and accuracy go."""
    quantity, statistic = "drop of supervised less contrastive, at equal accuracy", "difference at equal accuracy"
    yield measured(quantity, where, statistic, supervised, clean, lost, units="encoders")
    yield measured("Kendall's tau of accuracy and drop", where, "Kendall", clean, lost, units="encoders")


def fine_tuned(material: Material) -> Iterator[Measured]:
    """CLSL-3: drop of the supervised encoder after fine-tuning less those of contrastive ones, in the paper's table."""
    for name, values in TUNED.items():
        if name not in ("Sup", "BarlowTwins"):
            less = np.array(TUNED["Sup"]) - np.array(values)
            yield measured(
                "drop of supervised less contrastive, fine-tuned", f"table D.5, {name}", "mean", less, units="data sets"
            )
    less = np.array(TUNED["BarlowTwins"]) - np.array(TUNED["Sup"])
    yield measured("drop of Barlow Twins less supervised", "table D.5", "mean", less, units="data sets")


def spread(material: Material) -> Iterator[Measured]:
    """CLSL-8: uniformity of contrastive codes less that of supervised ones at the end of training."""
    seeds = material.seeds(SUPERVISED, *CONTRASTIVE[:2])
    own = np.array([uniformity(material, SUPERVISED, seed) for seed in seeds])
    yield of_seeds("uniformity", f"MNIST, {SUPERVISED}", own)
    for arm in CONTRASTIVE[:2]:
        other = np.array([uniformity(material, arm, seed) for seed in seeds])
        yield of_seeds("uniformity of contrastive less supervised", f"MNIST, {arm}", other - own)
        yield of_seeds("uniformity", f"MNIST, {arm}", other)


def uniformity(material: Material, arm: str, seed: int) -> float:
    """Return minus the logarithm of the mean of ``exp(-2 d^2)`` over pairs of unit codes."""
    encoder = material.arm(arm, seed)
    codes = torch.nn.functional.normalize(material.population(encoder, 1000).codes.double(), dim=1)
    return -float(torch.pdist(codes).square().mul(-2).exp().mean().log())


def regularised(material: Material) -> Iterator[Measured]:
    """CLSL-9: accuracy on changed images of supervised encoders with a little uniformity less that of those without."""
    seeds = material.seeds(SUPERVISED, "supervised-uniform")
    for change in SPREADING:
        with_it, without = (
            np.stack([changed(material, material.arm(arm, seed), change) for seed in seeds])
            for arm in ("supervised-uniform", SUPERVISED)
        )
        yield of_images("gain under change", f"MNIST, {change}", with_it - without)


def changed(material: Material, encoder: hf.Encoder, change: str) -> np.ndarray:
    """Return where nearest neighbours are right when bank and images are changed alike."""
    images, bank = (
        transformed(material.images(encoder, count, taught=taught), change)
        for count, taught in ((ALL, False), (BANK, True))
    )
    run = hf.RunSettings()
    return right(Population(encoder, images, run, bank=Population(encoder, bank, run)), Knn(k=20))


def alike(seeds: range, before: str) -> str:
    """Return what claims on pre-training under change are measured on, and by what they were left open."""
    return (
        f"Supervised, SimCLR and MoCo, CNN-A trained here on about 2,200 images of MNIST for {pretraining.EPOCHS} epochs, "
        f"{len(seeds)} seeds; kNN, {pretraining.MEASURED:,} images, a bank of {pretraining.BANK:,} ({before} left it open)"
    )


ALIKE = alike(pretraining.SEEDS, "three seeds and 1,000 images")
LARGER = alike(pretraining.MORE, "three seeds and 1,000 images, and ten and 2,000,")
SMALL = "CIFAR-10, longer trainings"
CLAIMS = (
    Claim(
        "CLSL-1",
        "Contrastive encoders lose less accuracy than supervised ones when later images are changed.",
        f"{PAPER}, table 1 (drops of 32.8 to 36.5 against 39.8 and 40.7%)",
        f"Supervised, SimCLR, MoCo, BYOL and Barlow Twins, trained here on MNIST, as many seeds as there are; kNN, "
        f"{IMAGES:,} images, a bank of {BANK:,}, six changes of both (three seeds and 500 images left it open).",
        {"drop of supervised less contrastive": ABOVE},
        downstream,
        "Three permutations of each shuffle; here there is one.",
        looks=2,
    ),
    Claim(
        "CLSL-2",
        "So contrastive encoders are the more robust ones, and not merely the less accurate, who have less to lose.",
        f"{PAPER}, section 3.1",
        "The paper's eleven encoders and the five kinds of CLSL-1: drops are explained by accuracy on the original images "
        "and by labels in training (least squares), encoders drawn anew (CLSL-1 as first measured left it open).",
        {"drop of supervised less contrastive, at equal accuracy": ABOVE},
        at_equal_accuracy,
        "A third supervised encoder in the paper's tables: nothing is known of how much two vary.",
        looks=2,
    ),
    Claim(
        "CLSL-3",
        "Contrastive encoders lose less after fine-tuning as well, but for Barlow Twins.",
        f"{PAPER}, table D.5",
        "The paper's own table: five data sets for each of eight encoders, differences data set by data set.",
        {"drop of supervised less contrastive, fine-tuned": ABOVE},
        fine_tuned,
        "Fine-tuning of small encoders; vision transformers (table D.4).",
        on="its tables",
    ),
    Claim(
        "CLSL-4",
        "Trained on corrupted images, supervised encoders lose less: 16.7 against 20.3 to 25.2%.",
        f"{PAPER}, tables 2 and 3 (one mean is 11.01, printed 6.65)",
        f"{ALIKE}. Training images, bank and measured images changed alike (gamma 0.2, and patches shuffled in a grid of "
        "4), against the same training on images as they are; means over the two changes.",
        {"drop of contrastive less supervised": ABOVE},
        pretraining.corrupted,
        f"{SMALL}, the other four changes, left out for want of time, and more methods.",
        looks=2,
    ),
    Claim(
        "CLSL-5",
        "Changing the images after the augmentation instead of before restores MoCo: a drop of 6.0 instead of 20.7%.",
        f"{PAPER}, table A.1 (printed 17.1)",
        f"{ALIKE}. MoCo alone, patches shuffled in a grid of 4 before or after the augmentation; bank and measured images "
        "changed alike.",
        {"drop if changed before less if changed after": ABOVE},
        pretraining.both_orders,
        f"{SMALL}, and the other changes.",
        looks=2,
    ),
    Claim(
        "CLSL-6",
        "Trained on synthesised images, contrastive encoders lose 0.93% and supervised ones 7.71%.",
        f"{PAPER}, table 4 (the text has other numbers)",
        f"{LARGER}. Training images, with their classes, by a small conditional variational autoencoder of these, in place "
        f"of the paper's GAN ({pretraining.GENERATOR_EPOCHS} epochs, one for each seed).",
        {"drop of supervised less contrastive": ABOVE},
        pretraining.synthesised,
        f"The paper's GAN; {SMALL}.",
        looks=3,
    ),
    Claim(
        "CLSL-7",
        "Contrastive encoders suffer less from unbalanced classes: 0.71 against 3.17% of accuracy.",
        f"{PAPER}, table 5",
        f"{LARGER}. A long-tailed subset (the rarest class has a hundredth of what the most frequent one has) against a "
        "uniform one of its size; top-1.",
        {"drop of supervised less contrastive": ABOVE},
        pretraining.imbalance,
        f"{SMALL}.",
        looks=3,
    ),
    Claim(
        "CLSL-8",
        "Contrastive codes are spread more uniformly than supervised ones (above 2.5 against 1.25 to 2.2).",
        f"{PAPER}, figure 3",
        "SimCLR, MoCo and supervised, trained here on MNIST, as many seeds as there are; 1,000 images, last epoch.",
        {"uniformity of contrastive less supervised": ABOVE},
        spread,
        "Every epoch, and how steady the accuracy of single classes is (figure 2).",
    ),
    Claim(
        "CLSL-9",
        "A little uniformity in the supervised loss makes it more robust: 37.9 becomes 42.2% under shuffled pixels.",
        f"{PAPER}, table A.2 (one seed)",
        "Supervised training with and without 0.01 of uniformity, trained here on MNIST, as many seeds as there are; kNN, "
        f"{ALL:,} images, a bank of {BANK:,}, three changes of both (three seeds and 500 images left it open, and ten and "
        "2,000).",
        {"gain under change": ABOVE},
        regularised,
        "Uniformity reduced.",
        looks=3,
    ),
)
