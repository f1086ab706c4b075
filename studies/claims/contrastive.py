"""Contrastive against supervised learning under change (Zhong et al. 2022, https://arxiv.org/abs/2206.05259)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike

import holdfast as hf
from holdfast.measure.population import Population
from holdfast.probes.neighbours import Knn
from holdfast.transforms.base import transformed
from studies.claims import pretraining
from studies.claims.answers import right
from studies.claims.claim import ABOVE, Claim
from studies.claims.material import ARMS, Material
from studies.claims.measured import CONTRAST, Measured, measured, of_images, of_seeds

PAPER = "Zhong et al. 2022"
Drops = tuple[tuple[float, float, float], tuple[float, float, float]]
CONTRASTIVE = ("simclr", "moco-v2", "byol", "barlow-twins")
SUPERVISED = "supervised"
SPREADING = ("gamma:5", "local-shuffle:grid=4", "global-shuffle:grid=4")
SEEDS = range(8)
"""Of CLSL-2."""
BANK, IMAGES, ALL = 1000, 2000, 10_000
"""Images of the bank, of CLSL-1, and of CLSL-9, which 2,000 and ten trainings left open."""
RESNETS: Mapping[str, Drops] = {
    "Sup-a": ((86.4, 65.1, 96.6), (31.5, 45.3, 31.0)),
    "Sup-b": ((84.9, 63.2, 96.0), (32.1, 47.2, 31.9)),
    "BYOL": ((87.5, 67.4, 94.9), (29.3, 43.0, 29.0)),
    "SimSiam": ((83.6, 59.9, 92.1), (27.8, 40.8, 29.3)),
    "MoCo-v2-a": ((81.4, 56.6, 90.1), (28.1, 40.5, 29.4)),
    "MoCo-v2-b": ((83.6, 59.5, 95.3), (31.3, 45.2, 31.0)),
    "SimCLR-v2": ((85.4, 63.5, 91.9), (31.5, 45.4, 30.8)),
    "BarlowTwins": ((83.8, 63.7, 94.5), (26.7, 39.8, 29.7)),
    "DeepCluster-v2": ((87.2, 65.0, 94.8), (28.2, 41.1, 28.5)),
    "SwAV-a": ((83.5, 60.1, 94.4), (27.0, 39.8, 28.3)),
    "SwAV-b": ((84.7, 62.7, 94.3), (26.8, 39.3, 28.6)),
}
"""Table D.3, of CIFAR-10, CIFAR-100 and STL-10: accuracy on the original images and mean drop, in percent."""
VITS: Mapping[str, Drops] = {
    "ViT (Sup)": ((94.23, 79.86, 98.85), (32.3, 49.0, 27.1)),
    "DeiT (Sup)": ((95.37, 78.23, 98.64), (25.0, 37.7, 23.3)),
    "DINO": ((96.68, 83.88, 98.91), (20.9, 33.7, 20.1)),
    "MoCo-v3": ((96.16, 82.32, 97.89), (22.9, 36.2, 22.3)),
}
"""Table D.4, of the same data sets; without MAE, which is trained neither by labels nor by contrast."""
AT_EQUAL = "drop of supervised less contrastive at equal accuracy"
LABELLED = ("supervised", "supervised-uniform", "supcon")
"""Arms that are trained with labels."""
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


def drops(material: Material, arm: str, seeds: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return accuracies (s,) and values of the images (s, n), whose means are drops, of the trainings of an arm."""
    found = [drop(material, material.arm(arm, seed)) for seed in seeds]
    return np.array([one for one, _ in found]), np.stack([two for _, two in found])


def downstream(material: Material) -> Iterator[Measured]:
    """CLSL-1: drop of supervised encoders less that of contrastive ones, over the seeds that both have."""
    seeds = material.seeds(SUPERVISED, *CONTRASTIVE)
    supervised = drops(material, SUPERVISED, seeds)[1]
    for arm in CONTRASTIVE:
        lost = drops(material, arm, seeds)[1]
        yield of_images("drop of supervised less contrastive", f"MNIST, {arm}", supervised - lost)
        yield of_seeds("drop", f"MNIST, {arm}", lost.mean(1))
    yield of_seeds("drop", f"MNIST, {SUPERVISED}", supervised.mean(1))


def at_equal_accuracy(material: Material) -> Iterator[Measured]:
    """CLSL-2: by how much supervised encoders lose more than contrastive ones of the same accuracy."""
    kinds = by_kind({**RESNETS, **VITS})
    clean, lost = zip(*kinds.values(), strict=True)
    terms = ["Sup" in kind for kind in kinds], clean, lost, [kind in VITS for kind in kinds]
    yield from matched("in the paper's tables", "D.3 and D.4", *terms)
    found = {arm: tuple(float(values.mean()) for values in drops(material, arm, SEEDS)) for arm in ARMS if arm != "mae"}
    # Trainings of one kind are alike: neither seeds nor a small term of the loss make encoders.
    found[SUPERVISED] = middle([found[SUPERVISED], found.pop("supervised-uniform")])
    clean, lost = zip(*found.values(), strict=True)
    yield from matched(
        "over small encoders", "MNIST, means over seeds", [arm in LABELLED for arm in found], clean, lost
    )


def by_kind(tables: Mapping[str, Drops]) -> dict[str, tuple[float, ...]]:
    """Return the mean accuracy and drop of each method; two models of one (``-a`` and ``-b``) are no two encoders.

    Example:
        >>> by_kind({"Sup-a": ((10, 20, 30), (4, 4, 4)), "Sup-b": ((20, 30, 40), (6, 6, 6))})
        {'Sup': (25.0, 5.0)}
    """
    models = dict[str, list[tuple[float, ...]]]()
    for name, table in tables.items():
        means = tuple(float(np.mean(values)) for values in table)
        models.setdefault(name.removesuffix("-a").removesuffix("-b"), []).append(means)
    return {kind: middle(found) for kind, found in models.items()}


def middle(found: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    """Return the mean of each place."""
    return tuple(float(value) for value in np.mean(found, 0))


def matched(
    on: str, where: str, supervised: ArrayLike, clean: ArrayLike, lost: ArrayLike, *others: ArrayLike
) -> Iterator[Measured]:
    """Yield the drop that supervised encoders have beyond others of their accuracy, and how drop and accuracy go."""
    yield measured(f"{AT_EQUAL}, {on}", where, CONTRAST, supervised, clean, lost, *others, units="encoders")
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
        f"Supervised, SimCLR, MoCo, BYOL and Barlow Twins, trained here on MNIST, as many seeds as there were; kNN, "
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
        f"The paper's {len(RESNETS)} ResNet-50, two models of a method as one, and {len(VITS)} vision transformers (MAE "
        "left out), means over the three data sets that both were measured on (table D.4 changes gamma less), and "
        f"{len(ARMS) - 2} kinds of training on MNIST, measured as in CLSL-1, {len(SEEDS)} seeds each: drops are explained "
        "by accuracy on the original images, labels in training and, in the paper's tables, the architecture (least "
        "squares). Eleven ResNet-50 and the five kinds of CLSL-1 left it open, two supervised encoders saying nothing of "
        "how much they vary. Two models of a method counted as two, the interval of the paper's tables would lie above 0.",
        {f"{AT_EQUAL}, in the paper's tables": ABOVE, f"{AT_EQUAL}, over small encoders": ABOVE},
        at_equal_accuracy,
        "Encoders that differ in labels alone.",
        on={f"{AT_EQUAL}, in the paper's tables": "its tables", f"{AT_EQUAL}, over small encoders": "other encoders"},
        looks=3,
    ),
    Claim(
        "CLSL-3",
        "Contrastive encoders lose less after fine-tuning as well, but for Barlow Twins.",
        f"{PAPER}, table D.5",
        "The paper's own table: five data sets for each of eight encoders, differences data set by data set.",
        {"drop of supervised less contrastive, fine-tuned": ABOVE},
        fine_tuned,
        "Fine-tuning of small encoders, and vision transformers.",
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
        "SimCLR, MoCo and supervised, trained here on MNIST, as many seeds as there were; 1,000 images, last epoch.",
        {"uniformity of contrastive less supervised": ABOVE},
        spread,
        "Every epoch, and how steady the accuracy of single classes is (figure 2).",
    ),
    Claim(
        "CLSL-9",
        "A little uniformity in the supervised loss makes it more robust: 37.9 becomes 42.2% under shuffled pixels.",
        f"{PAPER}, table A.2 (one seed)",
        "Supervised training with and without 0.01 of uniformity, trained here on MNIST, as many seeds as there were; kNN, "
        f"{ALL:,} images, a bank of {BANK:,}, three changes of both (three seeds and 500 images left it open, and ten and "
        "2,000).",
        {"gain under change": ABOVE},
        regularised,
        "Uniformity reduced.",
        looks=3,
    ),
)
