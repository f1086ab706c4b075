"""Every training objective at small scale, three seeds each: ``python -m studies.objectives.training_small TRAIN TEST``.

TRAIN and TEST are references of labelled images, as in ``mnist_train.npz?images=images&labels=labels``. CNN-A (for masked
autoencoders also a small vision transformer, whose tokens can be masked) is trained on 10,000 of TRAIN for 20 epochs by
each objective and adversary, and then measured on 1,000 of TEST with TRAIN as its bank: accuracy of nearest neighbours,
clean and under PGD-20 at 0.1, and for two of them the average certified radius. What is done already in ``--out`` is not
done again, so that the study may be interrupted; what is missing is said.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from math import isfinite, nan
from pathlib import Path
from typing import Any

import holdfast as hf
from studies import common
from studies.common import OPTIMISED, Found, Results, said, table

PART = "training"
EPS = 0.1
COMMON: dict[str, Any] = {
    "architecture": "cnn-a",
    "augmentation": "rvcl-mnist-view",
    **OPTIMISED,
    "batch": 256,
}
VIT = "small-vit:width=64,depth=3"
"""What is trained by masked tokens, which convolutions do not have."""
UNTRAINED = {"random": COMMON["architecture"], "random-vit": VIT}
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
    "dino": {"objective": "dino:momentum=0.99,teacher_temperature=0.04,warmup_epochs=0,norm=true"},
    "mae": {"objective": "mae:decoder_width=64", "architecture": VIT, "augmentation": "none"},
    "mae-pixels": {"objective": "mae"},
    "rocl": {"objective": "simclr", "adversary": f"loss:ball=linf:{EPS},steps=10"},
    "madry": {"objective": "supervised", "adversary": f"loss:ball=linf:{EPS},steps=7"},
}
CHOSEN: dict[str, dict[str, Any]] = {
    "moco-v2-chosen": {"objective": f"{MOCO},temperature=0.1"},
    "dino-chosen": {
        "objective": "dino:momentum=0.99,warmup_epochs=10,norm=true,prototypes=256,frozen_epochs=0",
    },
    "mae-chosen": {**TRAINED["mae"], "batch": 64},
    "mae-pixels-chosen": {
        "objective": "mae:normalised=false,ratio=0.5,decoder_width=512",
        "augmentation": "none",
    },
}
"""The four that fared worst, by settings chosen for the neighbours of 2,000 images of TRAIN."""
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
        if name == "pixels":
            return hf.load_encoder("baseline:pixels?shape=1x28x28")
        if name in UNTRAINED:
            return common.untrained(UNTRAINED[name], hf.Domain((1, 28, 28)), seed)
        folder = self.out / f"{name}-{seed}"
        if (folder / "card.json").exists():
            return hf.load_encoder(f"trained:{folder}")
        start, settings, epochs = None, {**TRAINED, **CHOSEN}.get(name), self.epochs
        if settings is None:
            start, settings, epochs = self.encoder(START, seed), TUNED[name], self.tuned_epochs
        recipe = {**COMMON, **settings, "epochs": epochs, "seed": seed}
        return hf.train(recipe, self.taught, start=start, size=28, channels=1, limit=self.images, out=folder)

    def measure(self, name: str, seed: int) -> Found:
        """Return what is measured of an encoder, by name."""
        encoder = self.encoder(name, seed)
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
            suite="standard",
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
                suite="standard",
                limit=self.measured,
                out=self.out / "attacked" / f"{name}-{seed}",
            )
            found[f"breakaway risk at {EPS}"] = moved["breakaway"].estimate("breakaway_risk").value
        if name in CERTIFIED:
            for method, count in (
                ("crown", 50),
                *((("branch", 4),) if seed == 0 else ()),
            ):  # branch takes minutes an image
                certified = hf.evaluate(
                    encoder,
                    self.tested,
                    only=["certified-radius"],
                    settings={"certified-radius": {"method": method, "samples": count}},
                    suite="standard",
                    limit=max(count, 10),
                    out=self.out / "certified" / f"{name}-{seed}-{method}",
                )
                found[f"ACR, {method}"] = certified["certified-radius"].estimate("average_certified_radius").value
        return found


def conclude(results: Results, names: Sequence[str], seeds: int) -> Iterator[str]:
    """Yield a row of the table for each quantity of each encoder: mean over seeds with the interval of Student's t."""
    rows = []
    for name in names:
        found = [one for seed in range(seeds) if (one := results.found(f"{PART}: {name}", seed))]
        for quantity in dict.fromkeys(key for one in found for key in one):
            values = [one.get(quantity, nan) for one in found]
            rows.append([name, quantity, said(values), str(sum(map(isfinite, values)))])
    yield from table("Means over seeds", ["encoder", "quantity", "mean, 95% interval", "seeds"], rows)


def main(given: Sequence[str] | None = None) -> None:
    """Train, measure and print the table."""
    parser = common.parser(__doc__, "runs/training-small")
    parser.add_argument("--tuned-epochs", type=int, default=10, help="of what is trained further from moco-v2")
    parser.add_argument("--only", nargs="*", default=["pixels", *UNTRAINED, *TRAINED, *CHOSEN, *TUNED])
    asked = parser.parse_args(given)
    study = Study(asked.train, asked.test, asked.out, asked.epochs, asked.tuned_epochs, asked.images, asked.measured)
    results, planned = Results(study.out, {**asdict(study), "out": None}), {PART: asked.only}
    results.run({PART: study.measure}, planned, asked.seeds)
    common.publish([*conclude(results, asked.only, asked.seeds), *results.missing(planned, asked.seeds)], study.out)


if __name__ == "__main__":
    main()
