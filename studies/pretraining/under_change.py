"""What becomes of encoders whose training images were changed: ``python -m studies.pretraining.under_change TRAIN TEST``.

After Zhong et al. 2022, https://arxiv.org/abs/2206.05259, with the parts (``--only``)

    pretraining    trained on changed images (test II, tables 2, A.1 and D.7): the change comes before the augmentation
                   (corrupt-aug) or after it (aug-corrupt); measured on images changed alike, and on clean ones
    downstream     trained on clean images, bank and measured images changed (test I, table 1)
    classes        trained on a long-tailed subset, a uniform one of its size, and on other images (tables 4 and 5)
    fluctuation    how much the accuracy of each class comes and goes over ten checkpoints (figure 2)
    uniformity     supervised training that promotes or reduces uniformity (table A.2)

and the paper's quantity, the relative drop ``(Acc(original) - Acc(changed)) / Acc(original)``, by seed. Encoders that know
little lose little: raw pixels and random weights stand beside the others. Each seed is another initialisation, choice of
images, and permutation of shuffles.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

import holdfast as hf
from holdfast import data
from holdfast.core.records import Result
from holdfast.geometry.sphere import semantic_fluctuation
from holdfast.transforms.base import Transform, transformed
from holdfast.transforms.subsets import LongTail, labels_of, long_tail, substituted, uniform_subset
from studies import common
from studies.common import OPTIMISED, Found, Results
from studies.pretraining.cases import CHANGES, OBJECTIVES, PROBES, REGULARISED, UNIFORM_CHANGES, Case, cases
from studies.pretraining.tables import Tables

CHECKPOINTS = 10
QUICK = {
    "epochs": 10,
    "images": 2000,
    "measured": 500,
    "batch": 128,
    "objectives": ["supervised", "simclr", "moco-v2"],
    "changes": ["gamma:0.2", "global-shuffle:grid=4", "local-shuffle:grid=4"],
}


@dataclass(frozen=True)
class Study:
    """Where everything is and how large it is."""

    taught: str
    tested: str
    out: Path
    size: int
    channels: int
    architecture: str
    augmentation: str
    epochs: int
    images: int
    measured: int
    batch: int
    substitute: str | None

    @property
    def domain(self) -> hf.Domain:
        """Return what inputs are."""
        return hf.Domain((self.channels, self.size, self.size))

    @cached_property
    def bank(self) -> hf.Images:
        """Return the labelled images that probes learn from."""
        return data.load(self.taught, self.domain, limit=self.images)

    @cached_property
    def measured_images(self) -> hf.Images:
        """Return the images that all encoders are measured on."""
        return data.load(self.tested, self.domain, limit=self.measured)

    def encoder(self, case: Case, seed: int) -> hf.Encoder:
        """Return the encoder of ``case``, trained now if it has not been yet."""
        if case.objective == "pixels":
            return hf.load_encoder(f"baseline:pixels?shape={self.channels}x{self.size}x{self.size}")
        if case.objective == "random":
            return common.untrained(self.architecture, self.domain, seed)
        folder = self.folder(case, seed)
        if not (folder / "card.json").exists():
            change = seeded(case.change, seed) if case.change else None
            images = self.subset(case.subset, seed)
            hf.train(
                self.recipe(case, seed, change, len(images)),
                images,
                transform=change if case.order == "corrupt-aug" else None,
                keep_epochs=self.kept if not (case.change or case.subset) else 0,
                out=folder,
                progress=False,
            )
        return hf.load_encoder(f"trained:{folder}")

    def folder(self, case: Case, seed: int) -> Path:
        """Return where the encoder of a case is kept."""
        return self.out / "encoders" / f"{common.plain(str(case))}-{seed}"

    def recipe(self, case: Case, seed: int, change: Transform | None, images: int) -> dict[str, Any]:
        """Return how ``case`` is trained on so many images."""
        settings = {**OBJECTIVES, **REGULARISED}[case.objective]
        asked = {"architecture": self.architecture, "augmentation": self.augmentation, **OPTIMISED, **settings}
        if case.objective == "moco-v2":
            asked["objective"] += f",queue={queue(images, self.batch)}"
        if case.order == "aug-corrupt":
            asked["augmentation"] = f"{asked['augmentation']} + {change}"
        return {**asked, "batch": self.batch, "epochs": self.epochs, "seed": seed}

    def subset(self, name: str, seed: int) -> hf.Images:
        """Return the images to train on: all, or a subset with another balance of classes, or other images."""
        everything = data.load(self.taught, self.domain, limit=self.images, seed=seed)
        if not name:
            return everything
        tail = tail_of(everything, seed)
        if name == "long-tail":
            return tail.images
        uniform = uniform_subset(everything, len(tail.images), seed)
        if name == "uniform":
            return uniform
        if self.substitute is None:
            raise hf.HoldfastError("no other images to train on; name them with --substitute")
        others = data.load(self.substitute, self.domain)
        return substituted(uniform, uniform_subset(others, len(uniform), seed))

    @property
    def kept(self) -> int:
        """Return after every how many epochs weights are kept."""
        return max(1, self.epochs // CHECKPOINTS)

    def evaluate(self, encoders: Any, change: Transform | None, only: Sequence[str], **settings: Any) -> Any:
        """Return what evaluations find of encoders, with bank and measured images changed alike."""
        bank, images = self.bank, self.measured_images
        if change is not None:
            bank, images = transformed(bank, change), transformed(images, change)
        probed = {"probe-accuracy": {"probes": [*PROBES]}} if "probe-accuracy" in only else {}
        asked: dict[str, Any] = {"only": only, "settings": probed | settings, "suite": "standard"}
        return hf.evaluate(encoders, images, bank=bank, progress=False, **asked)


def queue(images: int, batch: int) -> int:
    """Return the paper's queue, or a shorter one of a quarter of the images: a longer one holds the same images again.

    Example:
        >>> queue(50_000, 512), queue(2000, 128)
        (4096, 384)
    """
    return max(batch, min(4096 // batch, images // 4 // batch) * batch)


def seeded(change: str, seed: int) -> Transform:
    """Return the transform with the permutation of ``seed``, if it has any."""
    made = Transform.read(change)
    kind: Callable[..., Transform] = type(made)
    return kind(**{**vars(made), "seed": seed}) if "seed" in vars(made) else made


def tail_of(images: hf.Images, seed: int) -> LongTail:
    """Return the subset in which the rarest class has a hundredth of what the most frequent one has."""
    most = min(Counter(labels_of(images)).values())
    return long_tail(images, most, max(1, most // 100), seed)


def right(result: Result, images: hf.Images, probe: str) -> tuple[Bool[np.ndarray, "n"], Int[np.ndarray, "n"]]:
    """Return which images a probe gets right, and their labels."""
    series = next(s for s in result.series if s.quantity == "classified_right" and s.conditions["probe"] == probe)
    labels = dict(zip(images.ids, labels_of(images), strict=True))
    return np.array(series.values) == 1, np.array([labels[name] for name in result.findings.ids])


def pretraining(study: Study, case: Case, seed: int) -> Found:
    """Return accuracies on clean images and, if the training images were changed, on images changed alike."""
    encoder, found = study.encoder(case, seed), dict[str, float]()
    changes = {"clean": None, "changed": seeded(case.change, seed) if case.change else None}
    for name, change in changes.items():
        if name == "clean" or change is not None:
            result = study.evaluate(encoder, change, ["probe-accuracy"])["probe-accuracy"]
            found["chance"] = result.estimate("chance_accuracy").value
            found |= {f"{name}, {probe}": result.estimate("top1_accuracy", probe=probe).value for probe in PROBES}
    return found


def downstream(study: Study, case: Case, seed: int) -> Found:
    """Return accuracies and drops of an encoder trained on clean images, over the six changes of the paper."""
    settings = {"probes": [*PROBES], "samples": study.measured}
    run = study.evaluate(study.encoder(case, seed), None, ["corruption-test"], **{"corruption-test": settings})
    wanted = ("clean_accuracy", "mean_corrupted_accuracy", "mean_relative_accuracy_drop", "relative_accuracy_drop")
    return {
        ", ".join((one.quantity, *one.conditions.values())): one.value
        for one in run["corruption-test"].estimates
        if one.quantity in wanted
    }


def classes(study: Study, case: Case, seed: int) -> Found:
    """Return the accuracy on clean images: of all classes, and of those with many, medium and few training images."""
    result = study.evaluate(study.encoder(case, seed), None, ["probe-accuracy"])["probe-accuracy"]
    tail, found = tail_of(study.subset("", seed), seed), {"images": float(len(study.subset(case.subset, seed)))}
    for probe in PROBES:
        correct, labels = right(result, study.measured_images, probe)
        found[f"all, {probe}"] = float(correct.mean())
        for name, group in tail.shots().items():
            of_group = [float(correct[labels == label].mean()) for label in group if label in labels]
            found[f"{name}, {probe}"] = mean(of_group) if of_group else float("nan")
    return found


def fluctuation(study: Study, case: Case, seed: int) -> Found:
    """Return the semantic fluctuation over checkpoints: the mean over classes, and of the class where it is largest."""
    study.encoder(case, seed)
    folder, epochs = study.folder(case, seed), range(study.kept, study.epochs + 1, study.kept)
    run = study.evaluate([f"e{one}=trained:{folder}?epoch={one}" for one in epochs], None, ["probe-accuracy"])
    seen = [right(run["probe-accuracy", f"e{one}"], study.measured_images, PROBES[0]) for one in epochs]
    labels = seen[0][1]
    found = semantic_fluctuation(np.stack([np.where(correct, labels, -1) for correct, _ in seen]), labels)
    values = [one.value for one in found]
    return {"mean": mean(values), "largest": max(values), "final": float(seen[-1][0].mean()), "checkpoints": len(seen)}


def uniformity(study: Study, case: Case, seed: int) -> Found:
    """Return kNN accuracy and uniformity on clean images and on changed ones."""
    encoder, found = study.encoder(case, seed), dict[str, float]()
    for change in ("", *UNIFORM_CHANGES):
        run = study.evaluate(encoder, seeded(change, seed) if change else None, ["probe-accuracy", "geometry"])
        accuracy = run["probe-accuracy"].estimate("top1_accuracy", probe=PROBES[0])
        found[f"accuracy, {change}"] = accuracy.value
        found[f"uniformity, {change}"] = run["geometry"].estimate("uniformity").value
    return found


PARTS: dict[str, Callable[[Study, Case, int], Found]] = {
    "pretraining": pretraining,
    "downstream": downstream,
    "classes": classes,
    "fluctuation": fluctuation,
    "uniformity": uniformity,
}


def main(given: Sequence[str] | None = None) -> None:
    """Train, measure and print the tables."""
    made = common.sized(common.parser(__doc__, "runs/pretraining-under-change"))
    made.add_argument("--architecture", default="cnn-a")
    made.add_argument("--augmentation", help="by default rvcl-mnist-view of gray images, else moco-cifar-view")
    made.add_argument("--objectives", nargs="*", default=[*OBJECTIVES], choices=[*OBJECTIVES])
    made.add_argument("--changes", nargs="*", default=[*CHANGES])
    made.add_argument(
        "--substitute", help="labelled images of the same classes to train on instead, generated ones say"
    )
    made.add_argument("--only", nargs="*", default=[*PARTS], choices=[*PARTS], help="parts to run; all are concluded")
    asked = common.read(made, QUICK, given)
    study = study_of(asked)
    results = Results(study.out, {**asdict(study), "out": None})
    planned = {p: cases(p, asked.objectives, asked.changes) for p in PARTS}
    results.run({part: partial(PARTS[part], study) for part in asked.only}, planned, asked.seeds)
    lines = [*Tables(results, asked.objectives, asked.changes, asked.seeds, study.measured)]
    lines += results.missing(planned, asked.seeds)
    common.publish(lines, study.out)


def study_of(asked: argparse.Namespace) -> Study:
    """Return the study that the arguments ask for."""
    augmentation = asked.augmentation or ("rvcl-mnist-view" if asked.channels == 1 else "moco-cifar-view")
    return Study(
        taught=asked.train,
        tested=asked.test,
        **{name: getattr(asked, name) for name in ("out", "size", "channels", "architecture")},
        augmentation=augmentation,
        **{name: getattr(asked, name) for name in ("epochs", "images", "measured", "batch", "substitute")},
    )


if __name__ == "__main__":
    main()
