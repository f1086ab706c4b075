"""SPADE: spectral scores of two neighbour graphs (Cheng et al. 2021, https://proceedings.mlr.press/v139/cheng21a.html)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from scipy.stats import spearmanr

import holdfast as hf
from holdfast.core.points import points
from holdfast.evaluations.spectral.eigen import SCORES, spectrum
from holdfast.evaluations.spectral.graph_pair import GraphPair, draw
from holdfast.evaluations.spectral.graphs.knn import KNN
from holdfast.evaluations.spectral.hops import edge_hops
from holdfast.evaluations.spectral.resistance import resistances
from holdfast.evaluations.spectral.scores import edge_scores
from holdfast.evaluations.spectral.stability import numbers
from holdfast.probes.neighbours import Knn
from studies.claims.answers import robustly_right
from studies.claims.certificates import IMAGES, anchors, certified_and_attacked, kept
from studies.claims.claim import ABOVE, BELOW, Claim, Range
from studies.claims.material import MNIST, STEPS, Material
from studies.claims.measured import Measured, measured, share

PAPER = "Cheng et al. 2021"
SUBSETS, SIZE = 10, 600
"""Random subsets without a common image, and their images."""
THREE = (MNIST[0], MNIST[2], MNIST[4])
"""Base and CNN-A trained without attacks, and CNN-A trained at eps 0.3."""
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
    """Disjoint random subsets of the test images, and the graphs of a map on each."""

    def __init__(self, material: Material, name: str = MNIST[0], count: int = SUBSETS, size: int = SIZE) -> None:
        encoder = material.published(name)
        everything = material.images(encoder, count * size)
        self.parts = [everything[range(start, start + size)] for start in range(0, count * size, size)]
        self.material = material

    def graphs(self, encoder: hf.Encoder, k: int = 10) -> Iterator[GraphPair]:
        """Yield the graphs of pixels and codes on each subset."""
        for images in self.parts:
            pixels = images.pixels(range(len(images)))
            with torch.no_grad():
                codes = torch.cat([encoder(part) for part in pixels.split(256)])
            yield draw(points(pixels.flatten(1), "pixels"), points(codes, "codes"), k, KNN())

    def of(self, encoder: hf.Encoder, quantity: str, k: int = 10) -> np.ndarray:
        """Return a number of each subset."""
        wanted = ("spade_score", "riemannian_distance")

        def compute() -> np.ndarray:
            found = [numbers(graphs) for graphs in self.graphs(encoder, k)]
            return np.array([[one[name] for one in found] for name in wanted])

        name = f"spade-{encoder.fingerprint}-{k}-{len(self.parts)}-{len(self.parts[0])}"
        row: np.ndarray = kept(self.material, name, compute)[wanted.index(quantity)]
        return row


def score_falls(material: Material) -> Iterator[Measured]:
    """SPADE-1: differences of the score from one training eps to the next, subset by subset."""
    yield from differences(material, "spade_score", "step of the score")


def distance_falls(material: Material) -> Iterator[Measured]:
    """SPADE-3: the same of the Riemannian distance over ten eigenvalues, with several k."""
    yield from differences(material, "riemannian_distance", "step of the Riemannian distance")


def differences(material: Material, quantity: str, called: str) -> Iterator[Measured]:
    """Yield for each step up in training eps by how much a number changes, with two numbers of neighbours."""
    subsets = Subsets(material)
    for k in (10, 20):
        known = {name: subsets.of(material.published(name), quantity, k) for name in MNIST}
        for weaker, stronger in STEPS:
            change = known[stronger] - known[weaker]
            yield measured(called, f"{stronger} over {weaker}, k {k}", "mean", change, units="subsets")


def degenerate(material: Material) -> Iterator[Measured]:
    """SPADE-2: the score of a trained encoder over that of a random projection of the pixels."""
    subsets = Subsets(material)
    projection = hf.Encoder(
        torch.nn.Sequential(torch.nn.Flatten(), random_layer()), "projection", hf.Domain((1, 28, 28))
    )
    useless = subsets.of(projection, "spade_score")
    yield measured("score of a random projection", "MNIST", "mean", useless, units="subsets")
    for name in MNIST:
        trained = subsets.of(material.published(name), "spade_score")
        yield measured("trained over random projection", name, "ratio of means", trained, useless, units="subsets")


def random_layer() -> torch.nn.Linear:
    """Return a random projection of MNIST's pixels to 100 features."""
    layer = torch.nn.Linear(784, 100, bias=False)
    layer.weight.data = torch.randn(100, 784, generator=torch.Generator().manual_seed(0)) / 10
    return layer


def cubes(material: Material) -> Iterator[Measured]:
    """SPADE-4: how the score of an edge grows with its stretch: the slope between their logarithms."""
    for name in THREE:
        encoder = material.published(name)
        found = hf.spade(*features(material, encoder), certify=False)
        if found.split:
            continue  # codes that fall apart have no finite score
        graphs = found.graphs
        stretch = stretches(graphs)
        known = (found.edge_scores[10] > 0) & (stretch > 0)
        logs = np.log(stretch[known]), np.log(found.edge_scores[10][known])
        drawn = np.random.default_rng(0).permutation(known.sum())[:1000]
        yield measured(
            "slope of log score on log stretch", name, "slope", logs[0][drawn], logs[1][drawn], units="edges"
        )
        yield share(
            "edges stretched more than the score", name, int((stretch > found.score * (1 + 1e-9)).sum()), len(stretch)
        )


def stretches(graphs: GraphPair) -> np.ndarray:
    """Return for each input edge how much its effective resistance grows from input to output."""
    edges = graphs.inputs.edges
    grown: np.ndarray = resistances(graphs.outputs, edges) / resistances(graphs.inputs, edges)
    return grown


def features(material: Material, encoder: hf.Encoder, count: int = SIZE) -> tuple[torch.Tensor, torch.Tensor]:
    """Return pixels and codes of the first subset."""
    images = material.images(encoder, count)
    pixels = images.pixels(range(count))
    with torch.no_grad():
        return pixels.flatten(1), encoder(pixels)


def edges_distort(material: Material) -> Iterator[Measured]:
    """SPADE-5: hops between the outputs of the 100 edges with the largest scores, and of all edges."""
    for name in THREE:
        top, every = [], []
        for graphs in Subsets(material, count=5).graphs(material.published(name)):
            if graphs.split:
                continue  # codes that fall apart have no finite score
            hops = edge_hops(graphs.inputs, graphs.outputs, 0)
            order = np.argsort(-first_scores(graphs), kind="stable")[:100]
            top.append(hops[order].mean())
            every.append(hops.mean())
        yield measured("hops of top edges over all", f"MNIST, {name}", "ratio of means", top, every, units="subsets")
        yield measured("hops of top edges", f"MNIST, {name}", "mean", top, units="subsets")


def first_scores(graphs: GraphPair) -> np.ndarray:
    """Return the score of each input edge from the first eigenvector."""
    found = spectrum(graphs.inputs, graphs.outputs, 1, SCORES, 0)
    return edge_scores(graphs.inputs, found, 1)


def weak_samples(material: Material) -> Iterator[Measured]:
    """SPADE-6: rank correlation of node scores with the size of change at which attacks succeed."""
    for name in MNIST[2:]:
        _, attacked = certified_and_attacked(material, name, 10, 10)
        population = material.population(material.published(name), IMAGES)
        rows = anchors(population, 10)
        pixels = population.pixels(range(IMAGES)).flatten(1)
        scores = hf.spade(pixels, population.codes, certify=False).node_scores()[rows]
        yield measured("Spearman of node score and attacked radius", name, "Spearman", scores, np.nanmean(attacked, 1))
        norms = pixels.norm(dim=1)[rows].numpy()
        beside = float(spearmanr(norms, np.nanmean(attacked, 1)).statistic)
        yield measured("the same of the image's length", name, "mean", [beside, beside])


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
        f"Published MNIST encoders, each against the next stronger trained one; {SUBSETS} disjoint subsets of {SIZE:,} test "
        "images, k 10 and 20.",
        {"step of the score": BELOW},
        score_falls,
        "10,000 images, where the order of two of the encoders is another one; trainings with several seeds.",
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
        f"As SPADE-1: {SUBSETS} subsets of {SIZE:,} images, k 10 and 20.",
        {"step of the Riemannian distance": BELOW},
        distance_falls,
        "k 5, other numbers of images, and trainings with several seeds.",
    ),
    Claim(
        "SPADE-4",
        "The score of an edge grows with the cube of its stretch.",
        f"{PAPER}, theorem 3",
        f"Three published MNIST encoders, {SIZE:,} images, k 10: slope of the logarithms over 1,000 random edges; the "
        "theorem's 3 within a half. That no edge is stretched more than the score (theorem 1) is counted beside it.",
        {"slope of log score on log stretch": Range(2.5, 3.5)},
        cubes,
    ),
    Claim(
        "SPADE-5",
        "Edges with the largest scores distort more than random ones.",
        f"{PAPER}, table 2 (6.6 against 3.1 steps)",
        f"Three published MNIST encoders, 5 subsets of {SIZE:,} images, k 10: steps in the graph of codes between the ends "
        "of the 100 edges with the largest scores, over those of all edges.",
        {"hops of top edges over all": Range(low=1.0)},
        edges_distort,
    ),
    Claim(
        "SPADE-6",
        "Images with large node scores are weak: attacks on them succeed with smaller changes.",
        f"{PAPER}, sections 3.3 and 5.3, figure 8",
        "Published MNIST CNN-A encoders, 1,000 images; attacked radius over 10 negatives of 10 of the images.",
        {"Spearman of node score and attacked radius": BELOW},
        weak_samples,
        "More attacked images, and density as a rival explanation.",
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
    ),
    Claim(
        "SPADE-8",
        "Training against larger attacks on the images that SPADE chooses beats a random choice (88.5 against 83.1%).",
        f"{PAPER}, table 3 (eps 0.3 in the text, 0.2 and 0.4 in the table)",
        "Fine-tuning of MoCo with SPADE's choice and with random scores, trained here on MNIST, as many seeds as there are; "
        "accuracy of nearest neighbours under attack, 150 images, a bank of 1,000.",
        {"gain over a random choice": ABOVE},
        guided_training,
        "Five seeds of each, and inverted scores.",
    ),
)
