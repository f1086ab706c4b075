"""Label-free measures of robustness (Petrov and Kwiatkowska 2022, https://arxiv.org/abs/2210.04076)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

import holdfast as hf
from holdfast.attacks.presets import read_attack
from holdfast.core.divergences import Cosine, L2Distance
from holdfast.measure.population import Population
from holdfast.probes.linear import Linear, NoiseProbe
from holdfast.probes.own_encoder import LowPassProbe
from studies.claims.answers import right
from studies.claims.certificates import kept
from studies.claims.claim import ABOVE, Claim, Range
from studies.claims.material import ARMS, MNIST, STEPS, Material
from studies.claims.measured import Measured, exact, measured, of_images
from studies.claims.measures import NAMES, STRONG, U_PGD, UNITS, Series, away, better, breakaway, measured_of

PAPER = "Petrov and Kwiatkowska 2022"
EPS = 0.1
"""Of MNIST, where the paper's 0.05 moves little."""
IMAGES, ATTACKED = 1000, 300
"""All images, and those that are attacked."""
FIRST_PART, NEXT_PART = range(1), range(1, 2)
"""Samples of ``IMAGES`` images, by their places."""
PARTS, TRAININGS = range(2), range(30)
"""Of the third looks at UNSUP-6 and UNSUP-7: samples of ``IMAGES``, all of them attacked, and seeds."""
CHOOSING, LEAST, MANY, MOST = range(8), 5, 8, 12
"""Seeds of UNSUP-5 by which rivals are chosen, and how many further ones these are measured on, with other images."""
FURTHER = {
    **dict.fromkeys(("byol", "barlow-twins", "vicreg", "swav", "dino", "mae"), LEAST),
    **dict.fromkeys(("simsiam", "deepcluster-v2"), 6),
    "supcon": MOST,
}
"""Where that is not ``MANY``: fewer for methods whose rival was far ahead when it was chosen."""
STOOD_FOR, FILTERED = 200, 1500
"""Images of UNSUP-4, and of UNSUP-9."""
PRESET = "u-pgd"
"""The attack as the authors' program has it: 50 steps of 0.001."""
TUNED = ("moco-v2+tar", "moco-v2+untar", "moco-v2+l-pgd")
GROUPED = 20
"""Images that are kept as one in UNSUP-6 and UNSUP-7, of many trainings."""
LAST = 8
"""Images of the last batch of 1,000, the only ones that the authors' program adds up before it divides by all."""
STANDARD = ("PixPro", "AMDIM", "SimCLR", "SimSiam", "Nonsem", "MoCo v2")
TABLES: Mapping[str, tuple[bool, tuple[float, ...], tuple[float, ...]]] = {
    "targeted, eps .05, 5 steps": (True, (80.51, 80.82, 75.04, 73.25, 61.54, 65.64), (92.97, 94.00, 95.41)),
    "targeted, eps .05, 10 steps": (True, (67.91, 70.26, 65.77, 65.94, 46.52, 52.08), (87.38, 88.86, 91.57)),
    "targeted, eps .05, 50 steps": (True, (37.57, 44.28, 36.38, 28.13, 22.23, 20.51), (62.79, 64.83, 71.65)),
    "targeted, eps .1, 5 steps": (True, (83.06, 85.59, 78.02, 78.11, 64.28, 68.68), (93.01, 93.92, 95.24)),
    "targeted, eps .1, 10 steps": (True, (71.18, 75.93, 69.01, 70.45, 48.57, 55.02), (87.23, 88.59, 91.11)),
    "targeted, eps .1, 50 steps": (True, (38.07, 47.28, 38.60, 30.33, 22.32, 21.88), (59.67, 61.21, 68.19)),
    "untargeted, eps .05, 5 steps": (False, (14.35, 81.30, 43.65, 72.55, 46.80, 65.10), (0.0, 0.0, 0.0)),
    "untargeted, eps .05, 10 steps": (False, (85.60, 98.50, 99.40, 98.60, 98.10, 99.00), (0.0, 0.0, 0.0)),
    "untargeted, eps .05, 50 steps": (False, (99.9, 99.9, 99.9, 99.9, 99.9, 99.9), (75.35, 30.35, 3.40)),
    "untargeted, eps .1, 5 steps": (False, (11.25, 92.10, 48.30, 65.65, 43.20, 69.25), (0.0, 0.0, 0.0)),
    "untargeted, eps .1, 10 steps": (False, (77.50, 98.90, 98.70, 98.00, 96.65, 98.80), (0.01, 0.0, 0.0)),
    "untargeted, eps .1, 50 steps": (False, (99.9, 99.9, 99.9, 99.9, 99.9, 99.9), (91.65, 65.30, 18.40)),
    "breakaway risk": (False, (0.190, 0.414, 0.039, 0.146, 0.211, 0.254), (0.049, 0.001, 0.000)),
    "nearest neighbour accuracy": (True, (0.0, 0.10, 0.10, 0.0, 0.0, 0.0), (17.00, 35.60, 64.40)),
    "overlap risk": (False, (39.65, 34.30, 45.61, 40.72, 93.46, 91.80), (0.0, 0.0, 0.0)),
    "median adversarial margin": (True, (4.08, 2.72, 1.23, 1.60, -27.18, -16.50), (61.54, 67.50, 76.00)),
    "average certified radius": (True, (0.14, 0.02, 0.24, 0.21, 0.14, 0.22), (0.30, 0.30, 0.31)),
}
"""Tables 2 and 3: whether more is better, the six standard encoders, and TAR, UNTAR and L-PGD of MoCo v2."""


def found_of(
    material: Material, encoder: hf.Encoder, attacked: int = ATTACKED, parts: range = FIRST_PART
) -> dict[str, Series]:
    """Return the measures of an encoder on MNIST at ``EPS``, in one sample of images after the other."""

    def compute() -> np.ndarray:
        found = np.full((len(NAMES), len(parts), attacked), np.nan)  # there are fewer pairs than images
        for part, images in enumerate(samples(material, encoder, parts)):
            each = measured_of(Population(encoder, images, hf.RunSettings()), attacked, EPS, STRONG)
            for name, values in zip(NAMES, found, strict=True):
                values[part, : len(each[name])] = each[name]
        return found.reshape(len(NAMES), -1)

    called = f"measures-{encoder.fingerprint}-{IMAGES}-{attacked}-{EPS:g}-{STRONG}-{parts.start}-{parts.stop}"
    return dict(zip(NAMES, kept(material, called, compute), strict=True))


def samples(material: Material, encoder: hf.Encoder, parts: range) -> list[hf.Images]:
    """Return samples of ``IMAGES`` images, without any in common, by their places."""
    images = material.images(encoder, parts.stop * IMAGES)
    return [images[range(part * IMAGES, (part + 1) * IMAGES)] for part in parts]


def of_arms(
    material: Material, arm: str, seeds: Sequence[int], attacked: int = ATTACKED, parts: range = FIRST_PART
) -> dict[str, np.ndarray]:
    """Return the measures of the trainings of one kind, a row for each seed."""
    found = [found_of(material, material.arm(arm, seed), attacked, parts) for seed in seeds]
    return {name: np.stack([one[name] for one in found]) for name in found[0]}


def trained_against_attacks(material: Material) -> Iterator[Measured]:
    """UNSUP-1: by how much adversarially trained encoders are better, measure by measure."""
    for standard, robust in STEPS[:2]:
        one, other = (found_of(material, material.published(name)) for name in (robust, standard))
        for name in one:
            gained = better(name, one[name], other[name])
            yield measured("gain by training against attacks", f"{name}; {robust} over {standard}", "mean", gained)
    if material.trained is not None:
        seeds = material.seeds("supervised", "madry")
        robust_arms, plain_arms = (of_arms(material, arm, seeds) for arm in ("madry", "supervised"))
        for name, values in robust_arms.items():
            where = f"{name}; supervised, trained here"
            gained = better(name, values, plain_arms[name])
            yield measured("gain by training against attacks", where, "mean", gained, trainings=True)


def worst_and_best(material: Material) -> Iterator[Measured]:
    """UNSUP-2: measures of the paper's tables on which the worst adversarial encoder does not beat the best standard one."""
    exceptions = {
        name: (min(robust) <= max(plain)) if higher else (max(robust) >= min(plain))
        for name, (higher, plain, robust) in TABLES.items()
    }
    failed = [name for name, failed in exceptions.items() if failed]
    yield exact(
        "exceptions in the paper's own tables", ", ".join(failed) or "none", len(failed), len(TABLES), "measures"
    )


def last_batch(material: Material) -> Iterator[Measured]:
    """UNSUP-3: the breakaway risk over what the authors' program prints, which adds up the last batch alone."""
    for name in MNIST[:3]:
        population = material.population(material.published(name), IMAGES)
        rows, moved = away(population, IMAGES, EPS, U_PGD)
        shares = breakaway(population, rows, moved)
        printed = np.where(np.arange(IMAGES) >= IMAGES - LAST, shares, 0.0)
        if printed.any():
            ratio = float(shares.mean() / printed.mean())
            yield exact("risk over what the program prints", f"MNIST, {name}, eps {EPS:g}", ratio, IMAGES, "images")
        yield measured("breakaway risk", f"MNIST, {name}, eps {EPS:g}", "mean", shares)


def supremum(material: Material) -> Iterator[Measured]:
    """UNSUP-4: breakaway under an adaptive attack over that under the published one."""
    for name in MNIST[:4]:
        population = material.population(material.published(name), IMAGES)
        shares = [breakaway(population, *away(population, STOOD_FOR, 0.05, attack)) for attack in (STRONG, PRESET)]
        if shares[1].any():
            where = f"MNIST, {name}, eps 0.05"
            yield measured("adaptive over published breakaway", where, "ratio of means", *shares)


def dominance(material: Material) -> Iterator[Measured]:
    """UNSUP-5: by how much some rival of each method beats it on some measure.

    Rival and measure are chosen by some trainings on some images, and measured on other trainings and other images.
    """

    def gain(name: str, where: str, rival: Mapping[str, np.ndarray], own: Mapping[str, np.ndarray]) -> Measured:
        gained = better(name, rival[name], own[name])
        return measured("gain of the rival that was chosen", where, "mean", gained, units=UNITS[name], trainings=True)

    def lead(one: Measured) -> float:
        return one.value / (one.value - one.low)

    known = {arm: of_arms(material, arm, CHOOSING) for arm in ARMS}
    for arm in ARMS:
        rivals = [(rival, name) for rival in ARMS if rival != arm for name in NAMES]
        rival, name = max(rivals, key=lambda one: lead(gain(one[1], one[0], known[one[0]], known[arm])))
        pair = (of_arms(material, each, further(FURTHER.get(arm, MANY)), parts=NEXT_PART) for each in (rival, arm))
        yield gain(name, f"{rival} over {arm}, {name}", *pair)
    found = {arm: of_arms(material, arm, further(LEAST), parts=NEXT_PART) for arm in ARMS}
    for name in NAMES:
        best = max(ARMS, key=lambda arm: float(np.nanmean(better(name, found[arm][name], np.zeros(1)))))
        yield measured(f"best {name}", best, "mean", found[best][name], units=UNITS[name], trainings=True)


def further(count: int) -> range:
    """Return the seeds that follow on those by which rivals were chosen."""
    return range(CHOOSING.stop, CHOOSING.stop + count)


def tuned(material: Material) -> Iterator[Measured]:
    """UNSUP-6: what three kinds of adversarial fine-tuning gain over MoCo, and L-PGD over the other two."""
    arms = ("moco-v2", *TUNED)
    found = {arm: of_arms(material, arm, TRAININGS, IMAGES, PARTS) for arm in arms}
    plain = found["moco-v2"]
    for arm in TUNED:
        for name, values in found[arm].items():
            gained = better(name, values, plain[name])
            yield of_images("gain over MoCo", f"{name}; {arm}", gained, group=GROUPED, units=UNITS[name])
    for rival in TUNED[:2]:
        for name, values in found[TUNED[2]].items():
            gained = better(name, values, found[rival][name])
            where = f"{name}; over {rival}"
            yield of_images("gain of L-PGD over the others", where, gained, group=GROUPED, units=UNITS[name])


def cosine(material: Material) -> Iterator[Measured]:
    """UNSUP-10: gains of adversarial fine-tuning where distances are cosines."""
    seeds = material.seeds("moco-v2", *TUNED)
    for arm in TUNED:
        rows = []
        for seed in seeds:
            one, other = (
                measured_of(material.population(material.arm(name, seed), IMAGES), ATTACKED, EPS, STRONG, Cosine())
                for name in (arm, "moco-v2")
            )
            rows.append({name: better(name, one[name], other[name]) for name in one})
        for name in rows[0]:
            gained = np.stack([row[name] for row in rows])
            yield measured("gain under cosine", f"{name}; {arm}", "mean", gained, trainings=True)
    yield exact(
        "UNTAR under cosine less ResNet50, lower is better", "table 6, eps .05, 5 steps", 0.97 - 0.77, 2, "models"
    )


def impersonation(material: Material) -> Iterator[Measured]:
    """UNSUP-7: impersonation of fine-tuned encoders over that of MoCo, with the ball fixed at the image."""
    rates = {arm: np.stack([impersonated(material, arm, seed) for seed in TRAININGS]) for arm in ("moco-v2", *TUNED)}
    for arm in TUNED:
        both, kind = (rates[arm], rates["moco-v2"]), "ratio of means"
        yield of_images("impersonation over MoCo's", arm, *both, statistic=kind, group=GROUPED, units="pairs")
        whole = rates["moco-v2"].mean()
        ratio = rates[arm].mean() / whole  # as a mean of values, to first order
        linear = ratio + (rates[arm] - ratio * rates["moco-v2"]) / whole
        yield of_images("ratio of the mean rates, looked at later", arm, linear, group=GROUPED, units="pairs")
    for arm, rate in rates.items():
        yield of_images("impersonation rate", arm, rate, group=GROUPED, units="pairs")


def impersonated(material: Material, arm: str, seed: int) -> Series:
    """Return for each pair whether a search takes the attacked image for its target."""
    evaluation = hf.Impersonation(
        balls=(hf.Linf(EPS),), attacks=(read_attack(STRONG),), divergences=(L2Distance(),), samples=IMAGES
    )
    encoder = material.arm(arm, seed)

    def compute() -> np.ndarray:
        each = [evaluation(encoder, images, hf.RunSettings()).series for images in samples(material, encoder, PARTS)]
        return np.concatenate([one.values for series in each for one in series if one.quantity == "impersonated"])

    return kept(material, f"impersonated-{encoder.fingerprint}-{len(PARTS)}-{IMAGES}-{EPS:g}-{STRONG}", compute)


def smoothed(material: Material) -> Iterator[Measured]:
    """UNSUP-8: certified radii of a smoothed linear probe on fine-tuned encoders less those on MoCo."""
    seeds = material.seeds("moco-v2", *TUNED)
    radii = {arm: np.stack([smoothed_radii(material, arm, seed) for seed in seeds]) for arm in ("moco-v2", *TUNED)}
    for arm in TUNED:
        gained = radii[arm] - radii["moco-v2"]
        yield measured("gain in average certified radius", arm, "mean", gained, trainings=True)


def smoothed_radii(material: Material, arm: str, seed: int) -> Series:
    """Return the certified l2 radius of each image, 0 where the probe errs or abstains."""
    encoder = material.arm(arm, seed)
    evaluation = hf.RandomizedSmoothing(
        samples=20, selection=200, copies=2000, probes=(NoiseProbe(),), divergences=(L2Distance(),), radii=(0.25,)
    )
    taught = material.images(encoder, 1000, taught=True)
    series = evaluation(encoder, material.images(encoder, 100), hf.RunSettings(), bank=taught).series
    return np.array(next(one.values for one in series if one.quantity == "certified_probe_radius"))


def low_pass(material: Material) -> Iterator[Measured]:
    """UNSUP-9: accuracy lost without high frequencies by MoCo less that lost by its fine-tuned versions."""
    seeds = material.seeds("moco-v2", *TUNED)
    lost = {arm: np.stack([low_pass_gap(material, arm, seed) for seed in seeds]) for arm in ("moco-v2", *TUNED)}
    for arm in TUNED:
        less = lost["moco-v2"] - lost[arm]
        yield measured("gap of standard less that of fine-tuned", arm, "mean", less, trainings=True)
    for arm, gaps in lost.items():
        yield measured("gap", arm, "mean", gaps, trainings=True)


def low_pass_gap(material: Material, arm: str, seed: int) -> Series:
    """Return for each image the answer of a linear probe less that of one behind a low-pass filter."""
    population = material.population(material.arm(arm, seed), FILTERED, bank=1000)
    return right(population, Linear()) - right(population, LowPassProbe(radius=6.0))


ATTACKS = f"MNIST, {ATTACKED} of {IMAGES:,} images attacked at eps {EPS:g} by an adaptive attack"
DATA = f"{ATTACKS}, l2, differences image by image"
OPEN = "three seeds and {} left it open"
TRAINED = "MoCo and its three kinds of adversarial fine-tuning (TAR, UNTAR, L-PGD), trained here on MNIST"
TUNINGS, THIRTY = f"{TRAINED}, as many seeds as there were", f"{TRAINED}, {len(TRAININGS)} seeds"
TWICE = f"{len(PARTS)} samples of {IMAGES:,} images of MNIST"
CLAIMS = (
    Claim(
        "UNSUP-1",
        "Training against attacks wins on every measure without labels.",
        f"{PAPER}, table 2",
        f"Two pairs of published encoders, and supervised training with and without PGD, as many seeds as there were; "
        f"{DATA} (one seed and 100 images left it open).",
        {"gain by training against attacks": ABOVE},
        trained_against_attacks,
        looks=2,
    ),
    Claim(
        "UNSUP-2",
        "On every single measure the worst adversarially trained encoder beats the best standard one.",
        f"{PAPER}, section 7",
        "The paper's own tables 2 and 3: 17 measures of six standard encoders and three fine-tuned ones.",
        {"exceptions in the paper's own tables": Range(0, 0)},
        worst_and_best,
        "The same comparison among small encoders.",
        on="its tables",
    ),
    Claim(
        "UNSUP-3",
        "The published values of breakaway risk are those of its definition.",
        f"{PAPER}, tables 2, 3 and 5 to 7",
        f"The authors' program adds up the last batch ({LAST} of {IMAGES:,} images) and divides by all. Both are computed "
        f"of three published MNIST encoders, {IMAGES:,} images attacked by the published attack at eps {EPS:g}; no ratio "
        "where the last batch has no risk.",
        {"risk over what the program prints": Range(0.9, 1.1)},
        last_batch,
        on="its program",
    ),
    Claim(
        "UNSUP-4",
        "The published attack, of fixed steps of 0.001, stands for the worst change in the ball.",
        f"{PAPER}, sections 4 and 5",
        f"Four published MNIST encoders, {STOOD_FOR} images at eps 0.05, the published 50 steps and the adaptive attack; no "
        "ratio of those that the published attack takes past no image. "
        "Stands for it: breakaway less than a tenth larger.",
        {"adaptive over published breakaway": Range(high=1.1)},
        supremum,
        on="its program",
    ),
    Claim(
        "UNSUP-5",
        "No standard encoder is the most robust by all measures.",
        f"{PAPER}, table 2",
        f"{len(ARMS)} methods; {DATA}. For each method the rival and the measure on which it is beaten most clearly are "
        f"chosen by {len(CHOOSING)} trainings of each method, and measured on {LEAST} to {MOST} further ones, the more "
        "the less they were ahead, and on other images (one training of each left it open, and so did four, after a choice "
        "by four).",
        {"gain of the rival that was chosen": ABOVE},
        dominance,
        looks=3,
        refutable=False,
    ),
    Claim(
        "UNSUP-6",
        "Adversarial fine-tuning without labels improves every measure, and L-PGD the most.",
        f"{PAPER}, table 3",
        f"{THIRTY}; {TWICE}, all of them or the {IMAGES // 2} pairs of each attacked at eps {EPS:g} by an adaptive attack, "
        f"l2, differences image by image ({OPEN.format('100 images')}, and ten and {ATTACKED}).",
        {"gain over MoCo": ABOVE, "gain of L-PGD over the others": ABOVE},
        tuned,
        "The cost in accuracy (table 1: 7 to 10 points).",
        looks=3,
    ),
    Claim(
        "UNSUP-7",
        "Adversarial fine-tuning halves the success of impersonation, from 34.2% to 15.2 to 18.9%.",
        f"{PAPER}, table 4 (3 steps; the text says 5)",
        f"{THIRTY}; {IMAGES // 2} pairs of each of {TWICE}, one attacked toward the other at eps {EPS:g} by an adaptive "
        f"attack, with a search by nearest neighbour as the judge ({OPEN.format('100 pairs')}, and ten and {ATTACKED}). The "
        "ratio is the mean of those of single trainings, that of the mean rates decides nothing. Halved: at most 0.6, for "
        "18.9 is 0.55 of 34.2.",
        {"impersonation over MoCo's": Range(high=0.6)},
        impersonation,
        "The authors' ball, which moves with the image at every step; cats and dogs with a linear probe.",
        looks=3,
    ),
    Claim(
        "UNSUP-8",
        "Adversarial fine-tuning also enlarges certified radii: three times the accuracy at radius 0.935.",
        f"{PAPER}, figure 3 and table 3",
        "Randomized smoothing (sigma 0.25, 2,000 copies) of a linear probe on MoCo and its fine-tuned versions, 20 images "
        "of MNIST, as many seeds as there were; average certified radius, images that the probe gets wrong as 0.",
        {"gain in average certified radius": ABOVE},
        smoothed,
        "Accuracy at radius 0.935, which needs 100,000 copies of each image.",
    ),
    Claim(
        "UNSUP-9",
        "Adversarially fine-tuned encoders lose less accuracy on images without high frequencies.",
        f"{PAPER}, table 1 (gaps of 1.7 to 2.1 against 2.2 to 9.7 points)",
        f"Linear probes of MoCo and its fine-tuned versions with and without a low-pass filter of radius 6, {FILTERED:,} "
        f"images of MNIST, as many seeds as there were ({OPEN.format('500 images')}).",
        {"gap of standard less that of fine-tuned": ABOVE},
        low_pass,
        "Arms of equal clean accuracy.",
        looks=2,
    ),
    Claim(
        "UNSUP-10",
        "The gains of adversarial fine-tuning are there under cosine similarity as well.",
        f"{PAPER}, appendix B",
        f"{TUNINGS}; {ATTACKS}, cosine distances, differences image by image ({OPEN.format('100 images')}).",
        {"gain under cosine": ABOVE},
        cosine,
        "Whitened codes.",
        looks=2,
    ),
)
