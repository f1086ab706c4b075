"""RVCL: certified radii of contrastive encoders (Wang and Liu 2022, https://proceedings.mlr.press/v162/wang22q.html).

All on the authors' published encoders.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.stats import spearmanr
from torch import Tensor

import holdfast as hf
from holdfast.attacks.objectives.simple import margin_of_logits as margin
from holdfast.attacks.presets import read_attack
from holdfast.bounds import Interval, certified_radius, lower_bound
from holdfast.bounds.certified_pairs import image_pairs
from holdfast.core.divergences import Cosine
from holdfast.core.points.counting import nearest_rows
from holdfast.measure.population import Population
from studies.claims.certificates import (
    IMAGES,
    NEURONS,
    PLAIN,
    Bracketed,
    anchors,
    attacked_sizes,
    batches,
    certified,
    proved_at,
    with_head,
)
from studies.claims.claim import ABOVE, BELOW, Claim, Range
from studies.claims.material import MNIST, PUBLISHED, STEPS, Material
from studies.claims.measured import Measured, measured, share

PAPER = "Wang and Liu 2022"
HEADED = ("mnist_cnn_4layer_a", "mnist_cnn_4layer_a_adv1", "mnist_cnn_4layer_a_adv3")
ROBUST = HEADED[-1]
BRACKETED = ("mnist_base", *HEADED[:2], "cifar10_base_adv4")
ANCHORS, K = 12, 5
"""Images with certificates, and negatives of each."""
GROWN = 600
"""Images of RVCL-1, of whose last step 12 said nothing, and 120 too little."""
LADDER = 20
VAGUE, VAGUE_PHOTOGRAPHS, NEIGHBOURS, NEAR = 6000, 3000, 2000, 20
"""Images of RVCL-5, of MNIST and of CIFAR-10; images among which neighbours are looked for, and how many are."""
HEADS, MANY = 2000, 400
"""Images of RVCL-3, and of RVCL-8."""
ATTACKED = 400
"""Images of RVCL-7."""
ROUNDING = 1e-9
"""Relative rise of a bound that float64 may make by itself."""
FACTORS = (1.05, 1.1, 1.2, 1.4, 1.7)
"""Multiples of CROWN's radius at which a tighter method is asked for a proof."""


def growth(material: Material) -> Iterator[Measured]:
    """RVCL-1: differences of the average certified radius from one training eps to the next, image by image."""
    for weaker, stronger in STEPS:
        low, high = (certified(material, name, GROWN, K).mean(1) for name in (weaker, stronger))
        yield measured("step of the CROWN radius", f"{stronger} over {weaker}", "mean", high - low)
    low, high = (attacked_radii(material, name) for name in HEADED[1:])
    yield measured("step of the attacked radius", f"{HEADED[2]} over {HEADED[1]}", "mean", high - low)


def attacked_radii(material: Material, name: str) -> Float[np.ndarray, "b"]:
    """Return the mean over its negatives of the smallest change that takes each of the first anchors for one of them."""
    pairs = batches(material, name, ANCHORS, K)[0]
    radii = torch.tensor(certified(material, name, ANCHORS, K)[: len(pairs.anchors)])
    return attacked_sizes(pairs, radii).mean(1).numpy()


def order_of_radii(material: Material) -> Iterator[Measured]:
    """RVCL-2: pairs of images of two classes whose attacked radius lies below the certified radius of the two classes."""
    for name in HEADED[:2]:
        pairs = Bracketed.of(material, name)
        labels = material.arrays("images/mnist_test.npz")["labels"][: len(pairs.images)].astype(np.int64)
        by_class = class_radii(material, name, pairs, labels)
        of_pair = np.take_along_axis(by_class, labels[pairs.negatives.astype(np.int64)], 1)
        known = np.isfinite(of_pair)
        yield share("pairs that contradict", name, int((pairs.attacked < of_pair)[known].sum()), int(known.sum()))
        columns = pairs.certified.mean(1), np.fmin.reduce(by_class, 1)
        yield measured("average radius of pairs over that of the classifier", name, "ratio of means", *columns)


def class_radii(
    material: Material, name: str, pairs: Bracketed, labels: Int[np.ndarray, "b"]
) -> Float[np.ndarray, "b c"]:
    """Return the certified radius of each image's class against each other under the published head, nan where it errs."""
    encoder, x, own = with_head(material, name), torch.tensor(pairs.images), torch.tensor(labels)
    eye = torch.eye(10, dtype=torch.float64)
    with torch.no_grad():
        right = encoder(x).argmax(1) == own
    # Half the range of pixels is far beyond any certificate of these heads.
    radii = certified_radius(encoder, x, eye[own][:, None] - eye[None], hf.Linf(0.5), PLAIN, tolerance=1e-3)
    return radii.masked_fill(eye[own].bool() | ~right[:, None], torch.nan).numpy()


def downstream(material: Material) -> Iterator[Measured]:
    """RVCL-3: accuracy of the published heads under attack, from one training eps to the next."""
    for eps in (0.15, 0.2):
        right = [robustly_right(material, name, eps, HEADS) for name in HEADED]
        for before, after, name in zip(right, right[1:], HEADED[1:], strict=False):
            yield measured("step of robust accuracy", f"up to {name}, eps {eps:g}", "mean", after - before)


def robustly_right(material: Material, name: str, eps: float, count: int) -> Float[np.ndarray, "n"]:
    """Return 1 for each image that the published head still gives its class under attack, else 0."""
    encoder = with_head(material, name)
    population = material.population(encoder, count)
    context = population.context(range(count))
    objective = margin(lambda codes: codes, population.labels)
    moved = read_attack("adaptive:restarts=2")(encoder, context.pixels, objective, hf.Linf(eps), context.noise)
    return (objective(population.encode(moved)) < 0).double().numpy()


def similarity(material: Material) -> Iterator[Measured]:
    """RVCL-4: pairs of images of which the one more similar to a negative provably takes the larger change."""
    for name in BRACKETED:
        among, proved, ranks = 0, 0, list[float]()
        for cosines, radii, attacked in by_negative(Bracketed.of(material, name)):
            nearer = cosines[:, None] > cosines
            among += int(nearer.sum())
            proved += int((nearer & (radii[:, None] > attacked)).sum())
            ranks.append(float(spearmanr(cosines, radii).statistic))
        yield share("proved inversions", name, proved, among, "pairs of images")
        yield measured("Spearman of similarity and certified radius", name, "mean", ranks)


def by_negative(pairs: Bracketed) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield, for each negative, the cosines, certified and attacked radii of the images that it is a negative of."""
    for negative in np.unique(pairs.negatives):
        places = np.nonzero(pairs.negatives == negative)
        yield pairs.cosines[places], pairs.certified[places], pairs.attacked[places]


def vagueness(material: Material) -> Iterator[Measured]:
    """RVCL-5: rank correlation of an image's certified radius with how mixed the labels of its neighbours are."""
    for name in ("mnist_base", "mnist_base_adv1", "cifar10_base_adv4"):
        count = VAGUE if PUBLISHED[name].images == "mnist" else VAGUE_PHOTOGRAPHS
        radii = certified(material, name, count, K, among=count).mean(1)
        population = material.population(material.published(name), count)
        rows = anchors(population, count)
        near = neighbours(population, rows, NEIGHBOURS, NEAR)
        counts = torch.nn.functional.one_hot(population.labels[near], 10).double().mean(1)
        entropy = -(counts * counts.clamp_min(1e-12).log()).sum(1)
        yield measured("Spearman of entropy and radius", name, "Spearman", entropy.numpy(), radii)


def neighbours(population: Population, rows: Sequence[int], among: int, k: int) -> Int[Tensor, "b k"]:
    """Return the ``k`` of the first ``among`` images with the codes nearest to each of those in ``rows``, without itself."""
    near = nearest_rows(Cosine(), population.codes[rows], population.codes[:among], k + 1)
    own = near == torch.tensor(rows)[:, None]
    # The farthest is one too many for an image that is not among them.
    own[~own.any(1), -1] = True
    return near[~own].reshape(len(rows), k)


def tighter(material: Material) -> Iterator[Measured]:
    """RVCL-6: what alpha proves beyond CROWN, as a share of an image's pairs at three sizes of change."""
    for name in BRACKETED:
        crown = material.arrays(f"verification/autolirpa__{name}.npz")["crown_clip_f32"]
        alpha = material.arrays(f"verification/alpha__{name}.npz")["autolirpa_alpha_clip_f32"]
        attacked = material.arrays(f"verification/pgd__{name}.npz")["pgd_ub_clip"]
        left = [(bound > 0).mean((0, 2)) for bound in (crown, alpha, attacked)]
        yield measured("gain of alpha over CROWN", name, "mean", left[1] - left[0])
        for method, values in zip(("CROWN", "alpha"), left, strict=False):
            yield measured(f"share of pairs proved by {method}", name, "mean", values)
        yield measured("share of pairs left by the attack", name, "mean", left[2])


def weak_attack(material: Material) -> Iterator[Measured]:
    """RVCL-7: instance accuracy that the published attack leaves, and that is left by one on the objective itself."""
    for name, eps in ((HEADED[0], 0.1), (HEADED[1], 0.2), (ROBUST, 0.3)):
        evaluation = hf.InstanceAccuracy(
            balls=(hf.Linf(eps),),
            samples=ATTACKED,
            negatives=5,
            method=Interval(),
            attack=read_attack("adaptive:restarts=2"),
        )
        encoder = material.published(name)
        series = evaluation(encoder, material.images(encoder, IMAGES), hf.RunSettings()).series
        left = [np.array(one.values) for one in series if one.quantity == "robust_pairs"]
        yield measured("accuracy under the published attack", f"{name}, eps {eps:g}", "mean", left[0])
        yield measured("accuracy lost to a direct attack", f"{name}, eps {eps:g}", "mean", left[0] - left[1])


def negatives(material: Material) -> Iterator[Measured]:
    """RVCL-8: how much the average certified radius changes from five negatives to fifty."""
    for name in ("mnist_base", "mnist_base_adv1"):
        radii = certified(material, name, MANY, 50)
        yield measured("change from K 50 to 5", name, "relative difference", radii[:, :5].mean(1), radii.mean(1))
        yield measured("change from K 50 to 10", name, "relative difference", radii[:, :10].mean(1), radii.mean(1))


def ladders(material: Material) -> Iterator[Measured]:
    """RVCL-9: pairs whose bound is larger at some radius than at a smaller one, in float64."""
    for name in (*MNIST, "cifar10_base_adv4"):
        population = material.population(material.published(name), IMAGES)
        pairs = image_pairs(population, anchors(population, 10), 5, NEURONS)
        largest = 0.3 if PUBLISHED[name].images == "mnist" else 0.03
        bounds = torch.stack(
            [
                lower_bound(population.double, pairs.anchors, pairs.specifications, hf.Linf(eps), PLAIN)
                for eps in np.linspace(largest / LADDER, largest, LADDER).tolist()
            ]
        )
        rises = (bounds.diff(dim=0) > ROUNDING * bounds[:-1].abs()).any(0)
        yield share("pairs with a rise", name, int(rises.sum()), rises.numel())


def gain(material: Material) -> Iterator[Measured]:
    """RVCL-10: how much larger a radius alpha proves than CROWN, at least: multiples of CROWN's radius are tried."""
    for name in (HEADED[0], ROBUST):
        (pairs,) = batches(material, name, 5, 3)
        crown = certified(material, name, 5, 3)
        reached = proved_at(pairs, torch.tensor(crown).flatten(), FACTORS, "alpha").numpy()
        yield measured(
            "gain of alpha in the average radius, at least",
            name,
            "relative difference",
            (crown.flatten() * reached).reshape(crown.shape).mean(1),
            crown.mean(1),
        )


CLAIMS = (
    Claim(
        "RVCL-1",
        "The average certified radius of a contrastive encoder grows with the size of the attacks it was trained against.",
        f"{PAPER}, figure 4 (a, b)",
        f"Published MNIST encoders, each against the next stronger trained one of its architecture; {GROWN} images, "
        f"{K} negatives, CROWN, paired by image ({ANCHORS} images left it open, and 120). For the last step the "
        "smallest changes at which attacks succeed, of five of the images, stand beside it.",
        {"step of the CROWN radius": ABOVE},
        growth,
        "Training eps 0.2 and CIFAR-10 CNN-B, whose bounds take minutes an image.",
        on="its encoders",
        looks=3,
    ),
    Claim(
        "RVCL-2",
        "The robust radius of a pair of images is never smaller than that of a linear classifier on the same code, and on "
        "average it is larger by an order of magnitude.",
        f"{PAPER}, theorem 5.3 and appendix E.1",
        "Two published MNIST CNN-A encoders (eps 0 and 0.1) with their published heads; 20 images, 5 negatives. A pair "
        "contradicts if an attack on it succeeds within the radius proved for the margin between its two classes. On "
        "average: the radius of an image's pairs over that at which no class takes it over, all margins bounded jointly; an "
        "order of magnitude is a ratio nearer to ten than to one (with the margin between the pair's own two classes in "
        "place of the least of all, which was looked at first, it is 1.8 and 1.1). Radii of pairs by independent programs.",
        {
            "pairs that contradict": Range(0, 0),
            "average radius of pairs over that of the classifier": Range(low=10**0.5),
        },
        order_of_radii,
        "CNN-A trained at eps 0.3, and CIFAR-10 CNN-B, whose bounds take minutes an image.",
        on={
            "pairs that contradict": "its theorem",
            "average radius of pairs over that of the classifier": "its encoders",
        },
    ),
    Claim(
        "RVCL-3",
        "A linear head on clean codes is the more robust, the larger the attacks its encoder was trained against.",
        f"{PAPER}, figure 4 (c, d)",
        "Published MNIST CNN-A encoders (training eps 0, 0.1, 0.3) with their published heads; "
        f"{HEADS:,} images, attacks on the head's margin at eps 0.15 and 0.2, differences image by image (200 left "
        "it open).",
        {"step of robust accuracy": ABOVE},
        downstream,
        "Training eps 0.2 and CIFAR-10 CNN-B.",
        on="its encoders",
        looks=2,
    ),
    Claim(
        "RVCL-4",
        "Of two images, the one more similar to a negative has the smaller robust radius against it.",
        f"{PAPER}, theorem 5.5",
        "Four published encoders, 20 images, each the negative of 5 others, radii certified by CROWN and attacked by "
        "independent programs. An inversion is proved where the certified radius of the image that is more similar to the "
        "negative exceeds the attacked one of the other image.",
        {"proved inversions": Range(0, 0)},
        similarity,
        on="its theorem",
    ),
    Claim(
        "RVCL-5",
        "Vague images, whose class is hard to see, have small certified radii.",
        f"{PAPER}, section 6.2 and figure 5",
        f"Three published encoders, {VAGUE:,} images of MNIST and {VAGUE_PHOTOGRAPHS:,} of CIFAR-10, {K} negatives, CROWN. "
        f"Vague: the labels of the {NEAR} nearest codes of {NEIGHBOURS:,} images are mixed (entropy). Rank correlation over "
        "images (60 left it open, and 600).",
        {"Spearman of entropy and radius": BELOW},
        vagueness,
        "The encoder of figure 5, a CNN-B trained at 4.4/255 on CIFAR-10, and 50 negatives.",
        on="its encoders",
        looks=3,
    ),
    Claim(
        "RVCL-6",
        "A tighter verifier proves more.",
        f"{PAPER}, table E.2, where attacks, branch and bound and CROWN give accuracies of 100, 85 and 3%",
        "Four published encoders, 20 images, 5 negatives, three sizes of change; bounds by CROWN and by alpha, with which "
        "branch and bound begins, and attacks, all by independent programs.",
        {"gain of alpha over CROWN": ABOVE},
        tighter,
        "Branch and bound itself, and negatives made by attacks on the anchor, as in the table; here they are other images.",
        on="its definition",
    ),
    Claim(
        "RVCL-7",
        "Under attack, the instance accuracy stays at 100% in most cases.",
        f"{PAPER}, table 1",
        f"Published MNIST CNN-A encoders; {ATTACKED} images, 5 negatives. The published attack approaches the negative's "
        "code; the direct one climbs the very difference that the accuracy is about. Within a point: the published one was "
        "enough.",
        {"accuracy lost to a direct attack": Range(-0.01, 0.01)},
        weak_attack,
        "Negatives made by attacks on the anchor, as in the table; here they are other images.",
        on="its encoders",
    ),
    Claim(
        "RVCL-8",
        "The average certified radius hardly depends on the number of negatives (5 to 50) and of features (beyond 150).",
        f"{PAPER}, figure 7",
        f"Two published MNIST encoders, {MANY} images, CROWN; an equivalence test with a margin of 5% (20 images left it "
        "open, by an interval that was too short, for neighbours share negatives). The radius is an average over negatives, "
        "which is expected to be the same for any number of them.",
        {"change from K 50 to 5": Range(-0.05, 0.05), "change from K 50 to 10": Range(-0.05, 0.05)},
        negatives,
        "The number of features: no encoders of other widths were trained.",
        on="its definition",
        looks=2,
    ),
    Claim(
        "RVCL-9",
        "The certified bound never rises with the size of the change, so that bisection finds the radius.",
        f"{PAPER}, appendix C.2",
        "Six published encoders, 10 images, 5 negatives, 20 radii each, plain CROWN in float64.",
        {"pairs with a rise": Range(0, 0)},
        ladders,
        "The two CIFAR-10 CNN-B, whose bounds take minutes an image.",
        on="its encoders",
    ),
    Claim(
        "RVCL-10",
        "CROWN gives nearly the same average certified radius as branch and bound, at a three-hundredth of the time.",
        f"{PAPER}, figure E.1 and table E.3",
        "Two published MNIST CNN-A encoders, 5 images, 3 negatives. Branch and bound starts from alpha, which is asked to "
        "prove 1.05 to 1.7 times CROWN's radius: a lower end of the gain. Nearly the same: within 5%.",
        {"gain of alpha in the average radius, at least": Range(-0.05, 0.05)},
        gain,
        on="its encoders",
    ),
)
