"""Certified instance accuracy as in table E.2 of RVCL (Wang and Liu 2022), beside the paper's numbers.

    python examples/rvcl_table.py FOLDER MNIST.npz CIFAR10.npz [--limit 100] [--method crown] [--only mnist] [--times]

FOLDER holds the state dicts that the authors published (``mnist_base.pt``, ``cifar10_cnn_4layer_b_adv8.pt``, ...); rows
whose file is not there are left open. The two other files hold test images (arrays ``images``). Without arguments it
prints the paper's rows. ``--times`` prints table E.3 instead: processor seconds per image for the radii of five
pairs. The paper's radii for CIFAR-10 are in normalised units: pixels are 0.225 of them.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from time import perf_counter, process_time

from holdfast import Encoder, Images, Linf, RunSettings, data
from holdfast.attacks.adaptive import AdaptiveAttack
from holdfast.bounds import read_method
from holdfast.bounds.certified_pairs import image_pairs
from holdfast.bounds.evaluations.instance_accuracy import InstanceAccuracy
from holdfast.bounds.pair_bounds import certified_radii
from holdfast.encoders import Options, load
from holdfast.measure.population import Population

STD = 0.225


@dataclass(frozen=True)
class Row:
    """One line of the paper's table: radii as it states them, accuracies in percent (PGD, CBC, CROWN)."""

    file: str
    architecture: str
    negative: str
    test: str
    paper: tuple[int, int, int]

    @property
    def dataset(self) -> str:
        return self.architecture.partition("_")[0]

    def pixels(self, radius: str) -> float:
        """Return a radius of the paper in pixels."""
        return float(Fraction(radius)) * (STD if self.dataset == "cifar" else 1.0)


ROWS = (
    Row("mnist_base", "mnist_base", "0.3", "0.1", (20, 2, 0)),
    Row("mnist_cnn_4layer_a", "mnist_cnn_a", "0.3", "0.1", (6, 0, 0)),
    Row("mnist_base_adv1", "mnist_base", "0.3", "0.1", (100, 100, 100)),
    Row("mnist_cnn_4layer_a_adv1", "mnist_cnn_a", "0.3", "0.1", (100, 100, 99)),
    Row("mnist_base_adv3", "mnist_base", "0.5", "0.3", (100, 98, 42)),
    Row("mnist_cnn_4layer_a_adv3", "mnist_cnn_a", "0.5", "0.3", (100, 85, 3)),
    Row("cifar10_cnn_4layer_b", "cifar_cnn_b", "16/255", "4/255", (91, 26, 11)),
    Row("cifar10_cnn_4layer_b_adv4", "cifar_cnn_b", "16/255", "4/255", (100, 55, 34)),
    Row("cifar10_cnn_4layer_b_adv8", "cifar_cnn_b", "16/255", "4/255", (100, 68, 52)),
    Row("cifar10_base_adv4", "cifar_base", "16/255", "4/255", (100, 99, 95)),
    Row("cifar10_deep_adv4", "cifar_deep", "16/255", "4/255", (100, 96, 84)),
    Row("cifar10_cnn_4layer_a_adv4", "cifar_cnn_a", "16/255", "4/255", (99, 91, 81)),
    Row("cifar10_cnn_4layer_b_adv8", "cifar_cnn_b", "16/255", "8/255", (1, 0, 0)),
    Row("cifar10_cnn_4layer_b_adv4", "cifar_cnn_b", "24/255", "6/255", (100, 8, 2)),
    Row("cifar10_cnn_4layer_b_adv8", "cifar_cnn_b", "24/255", "6/255", (100, 24, 11)),
)
HEAD = (
    "encoder",
    "eps_neg",
    "eps_test",
    "pixels",
    "paper: PGD",
    "CBC",
    "CROWN",
    "here: published PGD",
    "direct attack",
    "certified",
    "seconds",
)


def arguments() -> Namespace:
    """Return what the command line asks for."""
    parser = ArgumentParser(description="The table of certified instance accuracy of RVCL, computed again.")
    parser.add_argument("folder", nargs="?", type=Path, help="where the published state dicts are")
    parser.add_argument("mnist", nargs="?", type=Path, help="MNIST test images")
    parser.add_argument("cifar", nargs="?", type=Path, help="CIFAR-10 test images")
    parser.add_argument("--limit", type=int, default=100, help="how many images")
    parser.add_argument("--method", default="crown", help="how hard to try to prove")
    parser.add_argument("--only", default="", help="leave out encoders whose name does not begin so")
    parser.add_argument("--times", action="store_true", help="print table E.3 instead")
    return parser.parse_args(sys.argv[1:])


def accuracies(row: Row, encoder: Encoder, images: Images, method: str) -> list[float]:
    """Return the accuracy left by the published attack, by the direct one, and the certified one, in percent."""
    evaluation = InstanceAccuracy(
        balls=(Linf(row.pixels(row.test)),),
        samples=len(images),
        negatives=1,
        generate=Linf(row.pixels(row.negative)),
        method=read_method(method),
        attack=AdaptiveAttack(restarts=2, steps=30),
    )
    certified, published, direct, *rest = evaluation(encoder, images, RunSettings(batch_size=10)).estimates
    contradictions = next(one for one in rest if one.quantity == "contradictions")
    assert not contradictions.value, "an attack succeeded inside a certificate"
    return [100 * one.value for one in (published, direct, certified)]


def measured(row: Row, asked: Namespace) -> list[str]:
    """Return the cells of ``row`` that are computed here; dashes where there is nothing to compute them from."""
    pixels = {"mnist": asked.mnist, "cifar": asked.cifar}[row.dataset]
    weights = asked.folder / f"{row.file}.pt" if asked.folder else None
    if weights is None or pixels is None or not weights.is_file():
        return ["-"] * 4
    started = perf_counter()
    encoder = load(f"checkpoint:{weights}", Options(arch=f"holdfast.encoders.rvcl:{row.architecture}"))
    images = data.load(f"arrays:{pixels}", encoder.domain, limit=asked.limit)
    values = accuracies(row, encoder, images, asked.method)
    return [*(f"{value:.0f}%" for value in values), f"{perf_counter() - started:.0f}"]


TIMES = (("mnist_cnn_4layer_a", "mnist_cnn_a", 1.16, 464.52), ("cifar10_cnn_4layer_b", "cifar_cnn_b", 3.66, 921.78))
"""Of table E.3: encoder, and the paper's seconds per image by CROWN and by CBC."""


def times(asked: Namespace) -> None:
    """Print table E.3: processor seconds per image for the radii of five pairs, over 20 images at most."""
    print("| encoder | paper: CROWN | CBC | here |\n|---|---|---|---|")
    for name, architecture, *paper in TIMES:
        encoder = load(f"checkpoint:{asked.folder / name}.pt", Options(arch=f"holdfast.encoders.rvcl:{architecture}"))
        pixels = asked.mnist if name.startswith("mnist") else asked.cifar
        images = data.load(f"arrays:{pixels}", encoder.domain, limit=min(asked.limit, 20))
        population = Population(encoder, images, RunSettings())
        pairs = image_pairs(population, range(len(images)), 5, 50_000)
        started = process_time()
        certified_radii(pairs, Linf(1.0), read_method(asked.method), 1e-4)
        print(f"| {name} | {paper[0]} | {paper[1]} | {(process_time() - started) / len(images):.2f} |", flush=True)


def main() -> None:
    """Print the table, row by row, as Markdown."""
    asked = arguments()
    if asked.times:
        times(asked)
        return
    print("| " + " | ".join(HEAD) + " |")
    print("|" + "---|" * len(HEAD))
    for row in ROWS:
        if row.file.startswith(asked.only):
            paper = [f"{value}%" for value in row.paper]
            in_pixels = f"{row.pixels(row.test):.4g}"
            print(
                "| " + " | ".join([row.file, row.negative, row.test, in_pixels, *paper, *measured(row, asked)]) + " |",
                flush=True,
            )


if __name__ == "__main__":
    main()
