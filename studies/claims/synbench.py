"""SynBench: two Gaussian classes as inputs (Ko et al. 2022, https://arxiv.org/abs/2210.02989)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn

import holdfast as hf
from studies.claims import pretraining, robust_probes
from studies.claims.claim import ABOVE, Claim, Range
from studies.claims.material import ARMS, MNIST, Material
from studies.claims.measured import Measured, exact, measured, of_seeds
from studies.claims.pretraining import SUPERVISED, UNIFORM, Trainings
from studies.objectives.training_small import COMMON
from studies.pretraining.cases import Case

PAPER = "Ko et al. 2022"
TABLES = {
    "ViT-Ti/16": (0.01, 81.9),
    "ViT-B/16": (0.33, 95.0),
    "ViT-B/16-in21k": (0.20, 89.6),
    "ViT-L/16": (0.26, 98.0),
    "ViT-B/32": (0.0, 92.2),
}
"""Score at threshold 0.7 and eps 0, and CIFAR-10 accuracy (table 3; of B/16-in21k and B/32 the tables of appendix C)."""
RISING = {"ViT-B/16": (0.33, 0.37), "ViT-L/16": (0.26, 0.33), "ViT-B/16-in21k": (0.20, 0.23)}
"""Scores at threshold 0.7 and eps 0 and 0.2 (tables 2 and 3)."""
SCALES = tuple(k / 2 for k in range(1, 10))
"""A tenth of the published grid's points, for speed; the score is a ratio of sums over them."""
SIZES = ("base", "cnn-a", "cnn-b")
"""Architectures with 8 and 16, 16 and 32, 32 and 128 channels."""
LEFT = 0.4
"""The eps at which the fall of scores is looked at."""
TUNED_IMAGES, TUNED_EPOCHS, TUNED_SAMPLES = 2000, 5, 512
SEEDS = range(3)
"""Of SYN-4."""


def scores(
    encoder: hf.Encoder, images: hf.Images, samples: int, scales: Sequence[float] = SCALES, direction: str = "ones"
) -> dict[float, float]:
    """Return the score at threshold 0.7 for each eps."""
    evaluation = hf.SynBench(scales=tuple(scales), thresholds=(0.7,), samples=samples, direction=direction)
    found = evaluation(encoder, images, hf.RunSettings()).estimates
    return {
        float(one.conditions["budget"]): one.value
        for one in found
        if one.quantity == "synbench_score" and "budget" in one.conditions
    }


def agrees(material: Material) -> Iterator[Measured]:
    """SYN-1: rank correlation of the score with accuracy, in the paper's tables and over small encoders."""
    columns = zip(*TABLES.values(), strict=True)
    yield measured("Kendall's tau in the paper's tables", "five ViTs", "Kendall", *columns, units="encoders")
    found, right = [], []
    for encoder in known(material):
        images = material.images(encoder, 300)
        found.append(scores(encoder, images, 256)[0.0])
        answers = hf.evaluate(
            encoder,
            images,
            bank=material.images(encoder, 1000, taught=True),
            only=["probe-accuracy"],
            settings={"probe-accuracy": {"probes": "linear"}},
            suite="standard",
            progress=False,
        )
        right.append(answers["probe-accuracy"].estimate("top1_accuracy").value)
    yield measured("Kendall's tau over small encoders", "MNIST", "Kendall", found, right, units="encoders")


def known(material: Material) -> Iterator[hf.Encoder]:
    """Yield the published encoders of MNIST and, where there are any, those that were trained once by each method."""
    for name in MNIST:
        yield material.published(name)
    if material.trained is not None:
        for arm in ARMS:
            yield material.arm(arm, 0)


def rises(material: Material) -> Iterator[Measured]:
    """SYN-2: the score at eps 0.2 less that at 0, in the paper and with few and many samples for each feature."""
    low, high = (np.array(one) for one in zip(*RISING.values(), strict=True))
    yield exact("ViTs whose score rises in the paper's tables", "tables 2 and 3", int((high > low).sum()), 3, "models")
    for per_feature, quantity in ((2, "rise at 2 samples a feature"), (64, "rise at 64 samples a feature")):
        rising = []
        for name in MNIST:
            encoder = material.published(name)
            found = scores(encoder, material.images(encoder, 50), 100 * per_feature, scales=(0.5, 1.0, 1.5, 2.0))
            rising.append(found[0.2] - found[0.0])
        yield measured(quantity, "MNIST, published", "mean", rising, units="encoders")


def comparable(material: Material) -> Iterator[Measured]:
    """SYN-5: whether settings that the paper leaves open change the order of encoders, and what the identity scores."""
    encoders = [material.published(name) for name in MNIST]
    if material.trained is not None:
        encoders += [material.arm(arm, 0) for arm in ARMS[:7]]
    images = material.images(encoders[0], 50)
    settings: dict[str, dict[str, Any]] = {
        "as published": {"scales": SCALES},
        "scales up to 2": {"scales": tuple(k / 4 for k in range(1, 9))},
        "a smooth direction": {"scales": SCALES, "direction": "smooth"},
        "a direction of random signs": {"scales": SCALES, "direction": "signs"},
        "four times the samples": {"scales": SCALES},
    }
    columns = {
        name: [scores(one, images, 1024 if "four" in name else 256, **given)[0.0] for one in encoders]
        for name, given in settings.items()
    }
    for name in [*settings][1:]:
        yield measured(
            "Kendall's tau of two rankings",
            f"as published against {name}",
            "Kendall",
            columns["as published"],
            columns[name],
            units="encoders",
        )
    identity = hf.Encoder(nn.Flatten(), "identity", hf.Domain((1, 16, 48)))
    found = scores(identity, hf.Images(torch.zeros(50, 1, 16, 48)), 2048)[0.0]
    yield exact("score of the identity", "768 features, 2,048 samples; the definition says 1", found, 2048, "samples")


def fine_tuned(material: Material) -> Iterator[Measured]:
    """SYN-4: gain in score when SimCLR is trained further with labels, and how much of it is left at a larger eps."""
    gained, seeds = [], material.seeds("simclr")
    for seed in seeds:
        before = material.arm("simclr", seed)
        images = material.images(before, TUNED_IMAGES, taught=True)
        recipe = {**COMMON, "objective": "supervised", "epochs": TUNED_EPOCHS, "seed": seed}
        after = hf.train(recipe, images, start=before, out=material.work / f"tuned-simclr-{seed}", progress=False)
        after.name = f"simclr-{seed}, fine-tuned"
        one, other = (scores(encoder, images, TUNED_SAMPLES)[0.0] for encoder in (material.noted(after), before))
        gained.append(one - other)
    yield of_seeds("gain by fine-tuning", "MNIST, SimCLR with labels after SimCLR", gained)
    kept = {size: left_at(material, size) for size in SIZES}
    for smaller, larger in pairwise(SIZES):
        where = f"MNIST, supervised, {larger} less {smaller}"
        yield of_seeds(
            f"share of the score left at eps {LEFT:g}, larger less smaller", where, kept[larger] - kept[smaller]
        )
    for size in SIZES:
        yield of_seeds(f"share of the score left at eps {LEFT:g}", f"MNIST, supervised, {size}", kept[size])


def left_at(material: Material, architecture: str) -> np.ndarray:
    """Return for each seed which share of the score of a supervised encoder at eps 0 is left at ``LEFT``."""
    trainings, left = Trainings.of(material, architecture=architecture), []
    for seed in SEEDS:
        encoder = trainings.encoder(Case(SUPERVISED, subset=UNIFORM), seed)
        found = scores(encoder, trainings.bank, TUNED_SAMPLES)
        left.append(found[LEFT] / found[0.0] if found[0.0] else np.nan)
    return np.array(left)


CLAIMS = (
    Claim(
        "SYN-1",
        "The score matches how well linear probes on real images do.",
        f"{PAPER}, tables 2 to 4",
        "The paper's own five vision transformers (score at threshold 0.7 and eps 0 against CIFAR-10 accuracy), and small "
        "encoders of MNIST: the published ones and one training by each of 14 methods (256 samples, 9 scales) against the "
        "accuracy of a linear probe on 300 images.",
        {"Kendall's tau in the paper's tables": ABOVE, "Kendall's tau over small encoders": ABOVE},
        agrees,
        "More vision transformers, whose weights are not at hand.",
        on={"Kendall's tau in the paper's tables": "its tables", "Kendall's tau over small encoders": "other encoders"},
    ),
    Claim(
        "SYN-2",
        "The score may rise with the eps of the robust rule, so that robust linear probes may be better than plain ones.",
        f"{PAPER}, table 3",
        "For codes that are normal the score cannot rise: the plain rule is the most accurate. The published MNIST encoders "
        "with 2 and with 64 samples for each of their 100 features: a rise that goes away was one of too few samples.",
        {"rise at 64 samples a feature": ABOVE},
        rises,
        "The paper's vision transformers, with 2,048 samples for 192 to 1,024 features.",
    ),
    Claim(
        "SYN-3",
        "A linear probe trained against attacks of the eps that the score suggests has the higher mean of clean and "
        "corrupted accuracy, and attacks succeed less often.",
        f"{PAPER}, table 5 and appendix C (gains of 0.5, 0.6, 0.5, -0.1 and 0 points)",
        "CNN-A trained here on about 2,200 images of CIFAR-10 with labels, by SimCLR and by MoCo, "
        f"{len(pretraining.SEEDS)} seeds each (one seed and one published encoder left it open, and ten seeds and 300 "
        f"images). Probes of {robust_probes.BANK} images, {robust_probes.EPOCHS} epochs; eps suggested by "
        f"{robust_probes.SAMPLES} samples a set; {robust_probes.IMAGES} images, five corruptions of severity 3, attacks "
        f"within {robust_probes.RADIUS:g} (l2) on {robust_probes.ATTACKED} of them. Random: the mean over the five eps.",
        {"gain in mean accuracy": ABOVE, "gain over a random eps": ABOVE, "fall of attack success": ABOVE},
        robust_probes.suggested,
        "More encoders, and such that learned more; all corruptions; chance in the attacked images. "
        "Probes, images and synthetic samples were cut for want of time.",
        looks=3,
    ),
    Claim(
        "SYN-4",
        "Fine-tuned encoders have a higher score than encoders before, and that of larger ones falls more slowly with eps.",
        f"{PAPER}, tables 2 and 3",
        f"SimCLR of MNIST, as many seeds as there were, then supervised training of the same encoder ({TUNED_IMAGES:,} "
        f"images, {TUNED_EPOCHS} epochs); score at eps 0. Base, CNN-A and CNN-B (8 and 16, 16 and 32, 32 and 128 channels) "
        f"trained with labels on about 2,200 images, three seeds; score at eps {LEFT:g} over that at 0. {TUNED_SAMPLES} "
        f"samples, {len(SCALES)} scales.",
        {"gain by fine-tuning": ABOVE, f"share of the score left at eps {LEFT:g}, larger less smaller": ABOVE},
        fine_tuned,
        "Vision transformers, and one architecture of several widths.",
    ),
    Claim(
        "SYN-5",
        "Scores of different encoders can be compared.",
        f"{PAPER}, section 3",
        "Published and trained encoders of MNIST, ranked with the published setting and with others that the definition "
        "leaves open: direction of the classes, range of scales, number of samples. Rankings agree if tau is 0.9 or more.",
        {"Kendall's tau of two rankings": Range(low=0.9)},
        comparable,
    ),
)
