"""Every training objective at small scale, three seeds each: ``python -m studies.training_small TRAIN TEST``.

TRAIN and TEST are references of labelled images, as in ``mnist_train.npz?images=images&labels=labels``. CNN-A is trained on
10,000 of TRAIN for 20 epochs by each objective and adversary, and then measured on 1,000 of TEST with TRAIN as its bank:
accuracy of nearest neighbours, clean and under PGD-20 at 0.1, and for two of them the average certified radius. What is done
already in ``--out`` is not done again, so that the study may be interrupted; what is missing is said.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from scipy.stats import t as student

import holdfast as hf
from holdfast.encoders.architectures.base import Architecture

EPS = 0.1
COMMON: dict[str, Any] = {
    "architecture": "cnn-a",
    "augmentation": "rvcl-mnist-view",
    "optimiser": "adam:rate=0.001",
    "schedule": "constant",
    "batch": 256,
}
MOCO = "moco-v2:momentum=0.99,queue=4096"
TRAINED: dict[str, dict[str, Any]] = {
    "supervised": {"objective": "supervised"},
    "supervised-uniform": {"objective": "supervised:uniformity=0.01"},
    "supcon": {"objective": "supcon"},
    "simclr": {"objective": "simclr"},
    "moco-v2": {"objective": MOCO},
    "moco-v3": {"objective": "moco-v3"},
    "byol": {"objective": "byol:momentum=0.99"},
    "simsiam": {"objective": "simsiam"},
    "barlow-twins": {"objective": "barlow-twins"},
    "vicreg": {"objective": "vicreg"},
    "swav": {"objective": "swav:prototypes=100"},
    "deepcluster-v2": {"objective": "deepcluster-v2:prototypes=100"},
    "dino": {"objective": "dino:momentum=0.9,warmup_epochs=5"},
    "mae": {"objective": "mae"},
    "rocl": {"objective": "simclr", "adversary": f"loss:ball=linf:{EPS},steps=10"},
    "madry": {"objective": "supervised", "adversary": f"loss:ball=linf:{EPS},steps=7"},
}
TUNED: dict[str, dict[str, Any]] = {
    "moco-v2+tar": {"objective": MOCO, "adversary": "targeted:ball=linf:0.05,steps=3"},
    "moco-v2+untar": {"objective": MOCO, "adversary": "untargeted:ball=linf:0.05,steps=3"},
    "moco-v2+l-pgd": {"objective": MOCO, "adversary": "loss:ball=linf:0.05,steps=3"},
    "moco-v2+fare": {"objective": "distillation", "adversary": f"loss:ball=linf:{EPS},steps=10"},
    "moco-v2+spade": {
        "objective": "distillation",
        "adversary": "spade-guided:ball=linf:0.1,low=0.05,share=0.5,steps=7",
    },
    "moco-v2+spade-control": {
        "objective": "distillation",
        "adversary": "spade-guided:ball=linf:0.1,low=0.05,share=0.5,steps=7,scores=random",
    },
}
"""Trained further from the moco-v2 of the same seed."""
START = "moco-v2"
CERTIFIED = ("simclr", "rocl")


@dataclass(frozen=True)
class Study:
    """Where everything is and how large it is."""

    taught: str
    tested: str
    out: Path
    epochs: int
    tuned_epochs: int
    images: int
    measured: int

    def encoder(self, name: str, seed: int) -> hf.Encoder:
        """Return the encoder called ``name``, trained now if it has not been yet."""
        folder = self.out / f"{name}-{seed}"
        if (folder / "card.json").exists():
            return hf.load_encoder(f"trained:{folder}")
        start, settings, epochs = None, TRAINED.get(name), self.epochs
        if settings is None:
            start, settings, epochs = self.encoder(START, seed), TUNED[name], self.tuned_epochs
        recipe = {**COMMON, **settings, "epochs": epochs, "seed": seed}
        return hf.train(recipe, self.taught, start=start, size=28, channels=1, limit=self.images, out=folder)

    def untrained(self, seed: int) -> hf.Encoder:
        """Return CNN-A with random weights."""
        import torch

        torch.manual_seed(seed)
        domain = hf.Domain((1, 28, 28))
        return hf.Encoder(Architecture.read(COMMON["architecture"]).build(domain).eval(), "random", domain)

    def measure(self, name: str, seed: int, encoder: hf.Encoder) -> Mapping[str, float]:
        """Return what is measured of an encoder, by name."""
        probes = {"probes": "knn:k=20"}
        run = hf.evaluate(
            encoder,
            self.tested,
            bank=hf.load_images(self.taught, encoder, limit=self.images),
            only=["probe-accuracy", "robust-accuracy"],
            settings={
                "probe-accuracy": probes,
                "robust-accuracy": {**probes, "balls": f"linf:{EPS}", "attacks": "pgd:steps=20,stride=0.125"},
            },
            limit=self.measured,
            out=self.out / "measured" / f"{name}-{seed}",
        )
        attack = "pgd:stride=0.125 at the probe"
        found = {
            "kNN accuracy": run["probe-accuracy"].estimate("top1_accuracy", probe="knn:k=20").value,
            f"under PGD-20 at {EPS}": run["robust-accuracy"].estimate("robust_accuracy", attack=attack).value,
        }
        if name == START or name in TUNED:
            moved = hf.evaluate(
                encoder,
                self.tested,
                only=["breakaway"],
                settings={"breakaway": {"balls": f"linf:{EPS}", "attacks": "adaptive", "divergences": "l2"}},
                limit=self.measured,
                out=self.out / "attacked" / f"{name}-{seed}",
            )
            found[f"breakaway risk at {EPS}"] = moved["breakaway"].estimate("breakaway_risk").value
        if name in CERTIFIED:
            for method, count in (("crown", 50), ("branch", 5)):
                certified = hf.evaluate(
                    encoder,
                    self.tested,
                    only=["certified-radius"],
                    settings={"certified-radius": {"method": method, "samples": count}},
                    limit=max(count, 10),
                    out=self.out / "certified" / f"{name}-{seed}-{method}",
                )
                found[f"ACR, {method}"] = certified["certified-radius"].estimate("average_certified_radius").value
        return found


def conclude(name: str, found: Sequence[Mapping[str, float]]) -> Iterator[str]:
    """Yield a row of the table for each quantity: mean over seeds with the interval of Student's t."""
    for quantity in dict.fromkeys(key for one in found for key in one):
        values = [one[quantity] for one in found if not isnan(one.get(quantity, float("nan")))]
        half = (
            student.ppf(0.975, len(values) - 1) * stdev(values) / len(values) ** 0.5
            if len(values) > 1
            else float("nan")
        )
        yield f"| {name} | {quantity} | {mean(values):.3f} | ± {half:.3f} | {len(values)} |"


def main() -> None:
    """Train, measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", help="labelled images to train on")
    parser.add_argument("test", help="labelled images to measure on")
    parser.add_argument("--out", type=Path, default=Path("runs/training-small"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--tuned-epochs", type=int, default=10, help="of what is trained further from moco-v2")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--measured", type=int, default=1000)
    parser.add_argument("--only", nargs="*", default=["pixels", "random", *TRAINED, *TUNED])
    given = parser.parse_args()
    study = Study(given.train, given.test, given.out, given.epochs, given.tuned_epochs, given.images, given.measured)
    found: dict[str, list[Mapping[str, float]]] = {name: [] for name in given.only}
    for seed in range(given.seeds):
        for name in given.only:
            if name == "pixels" and seed:
                continue
            if name == "pixels":
                encoder = hf.load_encoder("baseline:pixels?shape=1x28x28")
            else:
                encoder = study.untrained(seed) if name == "random" else study.encoder(name, seed)
            found[name].append(study.measure(name, seed, encoder))
            print(f"{name}, seed {seed}: {found[name][-1]}", flush=True)
    print("| encoder | quantity | mean | 95% interval | seeds |\n| --- | --- | --- | --- | --- |")
    for name, rows in found.items():
        for line in conclude(name, rows):
            print(line)


if __name__ == "__main__":
    main()
