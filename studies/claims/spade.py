"""SPADE: spectral scores of two neighbour graphs (Cheng et al. 2021, https://proceedings.mlr.press/v139/cheng21a.html)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch

import holdfast as hf
from holdfast.core.points.points import points
from holdfast.probes.neighbours import Knn
from holdfast.spectral.analysis import riemannian
from holdfast.spectral.eigen import spectrum
from holdfast.spectral.graph_pair import KNN, draw
from studies.claims.answers import robustly_right
from studies.claims.certificates import kept, radii_attacked
from studies.claims.claim import ABOVE, BELOW, Claim, Range
from studies.claims.material import MNIST, STEPS, Material
from studies.claims.measured import Measured, exact, measured, share

PAPER = "Cheng et al. 2021"
SUBSETS, SIZE = 10, 500
"""Subsets without a common image, and their images."""
TAUGHT_SUBSETS, WEAK = 120, 1000
"""Subsets of SPADE-1, of images that were trained on; images of SPADE-6."""
SETTINGS = ((300, 10), (1000, 20), (2000, 10))
"""Images and neighbours of the graphs that an independent program made."""
K = 5
"""Images that each is attacked towards."""
GUIDED = {
    "MNIST-MLP": (1.317, 0.819),
    "MNIST-CNN": (0.379, 0.721),
    "MNIST-DD": (0.408, 0.865),
    "CIFAR-MLP": (0.213, 0.219),
    "CIFAR-CNN": (0.141, 0.072),
    "CIFAR-DD": (0.310, 0.130),
    "MNIST-2CL, eps 0": (0.049, 68.544),
    "MNIST-2CL, eps 0.3": (0.112, 0.431),
}
"""Table 5, first norm: CLEVER of the ten images chosen by SPADE, and of 100 random ones."""
ROBUST = {"GRASS": (0.964, 0.045), "PCA": (0.195, 0.034), "CKNN": (0.784, 0.541), "KNN": (0.049, 0.112)}
"""Table 9, first norm: guided CLEVER of MNIST-2CL trained without attacks and with eps 0.3, by graph."""


class Subsets:
    """Disjoint subsets of test or ``taught`` images, and the graphs of a map on each."""

    def __init__(
        self,
        material: Material,
        name: str = MNIST[0],
        count: int = SUBSETS,
        size: int = SIZE,
        taught: bool = False,
    ) -> None:
        encoder = material.published(name)
        everything = material.images(encoder, count * size, taught=taught)
        self.parts = [everything[range(start, start + size)] for start in range(0, count * size, size)]
        self.material = material

    def of(self, encoder: hf.Encoder) -> np.ndarray:
        """Return the score of each subset."""

        def compute() -> np.ndarray:
            return np.array([score(encoder, images) for images in self.parts])

        return kept(
            self.material, f"spade-{encoder.fingerprint}-{self.parts[0].fingerprint}-{len(self.parts)}", compute
        )


def score(encoder: hf.Encoder, images: hf.Images) -> float:
    """Return the largest eigenvalue of the graphs of pixels and codes, infinite where codes fall apart."""
    pixels = images.pixels(range(len(images)))
    with torch.no_grad():
        codes = torch.cat([encoder(part) for part in pixels.split(256)])
    graphs = draw(points(pixels.flatten(1), "pixels"), points(codes, "codes"), 10, KNN())
    return np.inf if graphs.split else float(spectrum(graphs.inputs, graphs.outputs, 1).values[0])


def score_falls(material: Material) -> Iterator[Measured]:
    """SPADE-1: differences of the score from one training eps to the next, subset by subset."""
    subsets = Subsets(material, count=TAUGHT_SUBSETS, taught=True)
    known = {name: subsets.of(material.published(name)) for name in MNIST}
    for weaker, stronger in STEPS:
        change = known[stronger] - known[weaker]
        yield measured("step of the score", f"{stronger} over {weaker}", "mean", change, units="subsets")


def distance_falls(material: Material) -> Iterator[Measured]:
    """SPADE-3: steps up in training eps at which the distance over ten eigenvalues rises, in graphs of three sizes."""
    for count, k in SETTINGS:
        found = {name: riemannian(oracle(material, name, count, k)["lam"][:10]) for name in MNIST}
        rises = sum(found[stronger] > found[weaker] for weaker, stronger in STEPS)
        where = f"{count:,} images, k {k}"
        yield exact("steps at which the distance rises", where, rises, len(STEPS), "steps")
        for name in MNIST:
            yield exact("Riemannian distance", f"{name}, {where}", found[name], count, "images")


def degenerate(material: Material) -> Iterator[Measured]:
    """SPADE-2: the score of a trained encoder over that of a random projection of the pixels."""
    subsets = Subsets(material)
    projection = hf.Encoder(
        torch.nn.Sequential(torch.nn.Flatten(), random_layer()), "projection", hf.Domain((1, 28, 28))
    )
    useless = subsets.of(projection)
    yield measured("score of a random projection", "MNIST", "mean", useless, units="subsets")
    for name in MNIST:
        trained = subsets.of(material.published(name))
        yield measured("trained over random projection", name, "ratio of means", trained, useless, units="subsets")


def random_layer() -> torch.nn.Linear:
    """Return a random projection of MNIST's pixels to 100 features."""
    layer = torch.nn.Linear(784, 100, bias=False)
    layer.weight.data = torch.randn(100, 784, generator=torch.Generator().manual_seed(0)) / 10
    return layer


def cubes(material: Material) -> Iterator[Measured]:
    """SPADE-4: how the score of an edge grows with its stretch: the slope between their logarithms."""
    for name in MNIST:
        found = oracle(material, name)
        stretch, score = found["res_dY"] / found["res_dX"], found["edge_r10"]
        drawn = np.random.default_rng(0).permutation(np.flatnonzero((score > 0) & (stretch > 0)))[:1000]
        logs = np.log(stretch[drawn]), np.log(score[drawn])
        yield measured("slope of log score on log stretch", name, "slope", *logs, units="edges")
        beyond = int((stretch > found["lam"][0] * (1 + 1e-9)).sum())
        yield share("edges stretched more than the score", name, beyond, len(stretch), "edges")


def first(material: Material, name: str, count: int) -> hf.Images:
    """Return the first test images, in the order in which the independent program has them."""
    file = material.folder() / "images" / "mnist_test.npz"
    return hf.load_images(f"{file}?images=images&labels=labels", material.published(name))[range(count)]


def oracle(material: Material, name: str, count: int = 2000, k: int = 10) -> Mapping[str, np.ndarray]:
    """Return eigenvalues, edges and their scores of the first images, by an independent program."""
    return material.arrays(f"spade/oracle_{name}_N{count}_k{k}.npz")


def edges_distort(material: Material) -> Iterator[Measured]:
    """SPADE-5: hops between the outputs of the 100 edges with the largest scores, and of 100 random edges."""
    for name in MNIST:
        found = oracle(material, name)
        hops = found["geo_dY"].astype(float)
        top = hops[np.argsort(-found["edge_r1"], kind="stable")[:100]]
        drawn = hops[np.random.default_rng(0).permutation(len(hops))[:100]]
        yield measured("hops of top edges less random ones", name, "mean", top - drawn, units="edges")
        yield measured("hops of top edges", name, "mean", top, units="edges")
        yield measured("hops of random edges", name, "mean", drawn, units="edges")


def weak_samples(material: Material) -> Iterator[Measured]:
    """SPADE-6: rank correlation of node scores with the size of change at which attacks succeed."""
    for name in (MNIST[0], *MNIST[2:4]):
        images = first(material, name, WEAK)
        scores, attacked = oracle(material, name)["node_r10"][:WEAK], radii_attacked(material, name, images, K)
        yield measured("Spearman of node score and attacked radius", name, "Spearman", scores, attacked)
        lengths = images.pixels(range(WEAK)).flatten(1).norm(dim=1).numpy()
        yield measured("the same of the image's length", name, "Spearman", lengths, attacked)


def guided(material: Material) -> Iterator[Measured]:
    """SPADE-7: counts in the paper's tables."""
    smaller = sum(chosen < random for chosen, random in GUIDED.values())
    yield share(
        "networks of which guided CLEVER is smaller", "table 5, T10 against R100", smaller, len(GUIDED), "networks"
    )
    ordered = sum(robust > plain for plain, robust in ROBUST.values())
    yield share("graphs that rank the robust network higher", "table 9, MNIST-2CL", ordered, len(ROBUST), "graphs")


def guided_training(material: Material) -> Iterator[Measured]:
    """SPADE-8: robust accuracy after fine-tuning guided by SPADE less that after a random choice."""
    arms = ("moco-v2+spade", "moco-v2+spade-control")
    seeds = material.seeds(*arms)
    for eps in (0.05, 0.1):
        chosen, random = (
            np.stack(
                [
                    robustly_right(material.population(material.arm(arm, seed), 150, bank=1000), Knn(k=20), eps)
                    for seed in seeds
                ]
            )
            for arm in arms
        )
        yield measured("gain over a random choice", f"MNIST, eps {eps:g}", "mean", chosen - random, trainings=True)


CLAIMS = (
    Claim(
        "SPADE-1",
        "The score, the largest eigenvalue, falls with the size of the attacks that a network was trained against.",
        f"{PAPER}, table 1 (42, 40, 37, 33)",
        f"Published MNIST encoders, each against the next stronger trained one; {TAUGHT_SUBSETS} disjoint subsets of "
        f"{SIZE:,} images that they were trained on, k 10 ({SUBSETS} subsets of test images left it open).",
        {"step of the score": BELOW},
        score_falls,
        "10,000 images, where the order of two of the encoders is another one; trainings with several seeds.",
        looks=2,
    ),
    Claim(
        "SPADE-2",
        "A smaller score means a more robust encoder.",
        f"{PAPER}, theorem 1 and section 5.2",
        f"A random projection of the pixels, which knows nothing, against published MNIST encoders; {SUBSETS} subsets of "
        f"{SIZE:,} images. It fails where the projection has the smaller score.",
        {"trained over random projection": Range(high=1.0)},
        degenerate,
        "Other useless encoders (a constant, a collapsed one).",
    ),
    Claim(
        "SPADE-3",
        "The Riemannian distance over the ten largest eigenvalues always falls with the eps of training.",
        f"{PAPER}, figure 4",
        "Published MNIST encoders, three steps up in eps, graphs of 300, 1,000 and 2,000 images with k 10, 20 and 10 by an "
        "independent program. Always: no step at which it rises. Chance in the images is not allowed for.",
        {"steps at which the distance rises": Range(0, 0)},
        distance_falls,
        "k 5, and trainings with several seeds.",
    ),
    Claim(
        "SPADE-4",
        "The score of an edge grows with the cube of its stretch.",
        f"{PAPER}, theorem 3",
        "Five published MNIST encoders, 2,000 images, k 10, graphs and scores by an independent program: slope of the "
        "logarithms over 1,000 random edges; the theorem's 3 within a half. That no edge is stretched more than the score "
        "(theorem 1) is counted beside it.",
        {"slope of log score on log stretch": Range(2.5, 3.5)},
        cubes,
        on="its theorem",
    ),
    Claim(
        "SPADE-5",
        "Edges with the largest scores distort more than random ones.",
        f"{PAPER}, table 2 (6.6 against 3.1 steps)",
        "Five published MNIST encoders, 2,000 images, k 10, graphs and scores by an independent program: steps in the graph "
        "of codes between the ends of the 100 edges with the largest scores, less those of 100 random ones.",
        {"hops of top edges less random ones": ABOVE},
        edges_distort,
        on="its definition",
    ),
    Claim(
        "SPADE-6",
        "Images with large node scores are weak: attacks on them succeed with smaller changes.",
        f"{PAPER}, sections 3.3 and 5.3, figure 8",
        f"Three published MNIST encoders; node scores among 2,000 images, by an independent program, and attacked radii of "
        f"{WEAK} of these, towards {K} others each; beside them the length of the image (20 images left it open, and 400).",
        {"Spearman of node score and attacked radius": BELOW},
        weak_samples,
        "Density as a rival explanation.",
        looks=3,
    ),
    Claim(
        "SPADE-7",
        "CLEVER scores of images chosen by SPADE are smaller in most cases, and rank robust networks higher.",
        f"{PAPER}, tables 5 and 9",
        "Counts in the paper's own tables, the first of the two norms. Most: more than half, beyond the interval.",
        {
            "networks of which guided CLEVER is smaller": Range(low=0.5),
            "graphs that rank the robust network higher": Range(low=0.5),
        },
        guided,
        "CLEVER of small encoders without labels.",
        on="its tables",
    ),
    Claim(
        "SPADE-8",
        "Training against larger attacks on the images that SPADE chooses beats a random choice (88.5 against 83.1%).",
        f"{PAPER}, table 3 (eps 0.3 in the text, 0.2 and 0.4 in the table)",
        "Fine-tuning of MoCo with SPADE's choice and with random scores, trained here on MNIST, as many seeds as there "
        "were; accuracy of nearest neighbours under attack, 150 images, a bank of 1,000.",
        {"gain over a random choice": ABOVE},
        guided_training,
        "Five seeds of each, and inverted scores.",
    ),
)
