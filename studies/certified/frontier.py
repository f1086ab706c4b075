"""Accuracy against certified radius of encoders that are made to be provable: ``python -m studies.certified.frontier``.

Encoders are trained by ``certified`` adversaries of several radii and shares (docs/training/objectives.md) and measured
beside the published ones of RVCL (Wang and Liu 2022, https://proceedings.mlr.press/v162/wang22q.html) of the same
architecture: SimCLR, and RoCL at several strengths. Some learn what a published one knows, from new weights or from its
own: distillation takes the place of SimCLR. Images and published weights are read from the folder that
HOLDFAST_REFERENCE names. One JSON file for each encoder and seed is kept in ``--out``; what is there is not done again.
``python -m studies --page`` writes docs/training/frontier.md and its picture from what is stored.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import holdfast as hf
from holdfast.encoders import rvcl
from studies.common import Found, Results, plain

STORED = Path(__file__).parents[1] / "stored" / "frontier"
PUBLISHED = {
    ("mnist", "base"): {"SimCLR": "mnist_base", "RoCL .1": "mnist_base_adv1"},
    ("mnist", "cnn-a"): {
        "SimCLR": "mnist_cnn_4layer_a",
        "RoCL .1": "mnist_cnn_4layer_a_adv1",
        "RoCL .3": "mnist_cnn_4layer_a_adv3",
    },
    ("cifar10", "cnn-b"): {"SimCLR": "cifar10_cnn_4layer_b", "RoCL 1.98/255": "cifar10_cnn_4layer_b_adv8"},
}
"""Files of weights by what made them; strengths of CIFAR-10 in pixels."""
FILES = {"mnist": ("mnist_train", "mnist_test"), "cifar10": ("cifar10_jpeg_train12k", "cifar10_jpeg_test3k")}
PROBE, BANK, PROBED = "knn:k=20", 5000, 1000
ANCHORS, NEGATIVES = 40, 9
SEARCH: dict[str, Any] = {
    "samples": ANCHORS,
    "attack": "adaptive:restarts=1,steps=25",
    "tolerance": 1e-3,
}
MILD = {"mnist": "random-affine:degrees=5,translate=0.04", "cifar10": "random-crop:padding=2 + horizontal-flip"}
"""Views that leave more of an image than the published ones, which cut away up to three fifths of a digit."""
BALLS = {"mnist": "linf:0.1", "cifar10": "linf:2/255"}
"""Of breakaway, overlap and displacement."""
RECIPE: dict[str, Any] = {
    "objective": "simclr:temperature=0.2,head=false",
    "schedule": "cosine",
    "clip": 10.0,
    "batch": 256,
}
TAUGHT = "distillation:temperature=0.2"
"""The objective of encoders that have a teacher; those with new weights add ``fresh=true``."""


@dataclass(frozen=True)
class Case:
    """One encoder: published under a name, or trained by a certified adversary, or without one where ``share`` is 0."""

    dataset: str
    architecture: str
    published: str = ""
    radius: float = 0.0
    share: float = 0.0
    epochs: int = 0
    images: int = 0
    view: str = ""
    """The augmentation, where it is not that of the published encoders."""
    teacher: str = ""
    """The published encoder whose embeddings are learned, where there is one."""
    fresh: bool = True
    """Whether a taught encoder begins with new weights; if not, with those of its teacher."""
    rate: float = 0.001
    """The learning rate of Adam."""

    @property
    def taught(self) -> str:
        """Return who taught it, in words after what made it."""
        return f", {'taught by' if self.fresh else 'beginning as'} {self.teacher}" if self.teacher else ""

    @property
    def network(self) -> str:
        """Return the factory of the architecture, as published encoders have it."""
        of = "mnist" if self.dataset == "mnist" else "cifar"
        return f"{rvcl.__name__}:{of}_{self.architecture.replace('-', '_')}"

    @property
    def radius_in_words(self) -> str:
        """Return the radius of training as it is spelled: in gray values of coloured images."""
        return f"{self.radius:g}" if self.dataset == "mnist" else f"{round(255 * self.radius, 2):g}/255"

    def __str__(self) -> str:
        bounds = f"radius {self.radius_in_words}, share {self.share:g}" if self.share else "without bounds"
        made = self.published or f"{bounds}, {self.epochs} epochs{self.taught}"
        return f"{self.dataset} {self.architecture}, {made}" + (f", {self.view}" if self.view else "")


def planned() -> Iterator[tuple[Case, int]]:
    """Yield the encoders of the study, and of how many seeds each is."""
    yield from ((Case(*key, published=name), 1) for key, files in PUBLISHED.items() for name in files)
    short: dict[str, Any] = {"epochs": 16, "images": 20_000}
    yield Case("mnist", "cnn-a", view=MILD["mnist"], **short), 1
    for view in ("", MILD["mnist"]):
        for share in (0.1, 0.2, 0.5):
            yield Case("mnist", "cnn-a", radius=0.3, share=share, view=view, **short), 3 if view and share == 0.2 else 1
    for radius in (0.2, 0.3):
        yield Case("mnist", "base", radius=radius, share=0.2, view=MILD["mnist"], **short), 3
    yield Case("mnist", "base", radius=0.17, share=0.2, view=MILD["mnist"], teacher="SimCLR", **short), 3
    kept: dict[str, Any] = {
        "epochs": 4,
        "fresh": False,
    }  # radius and rate were chosen by the 1,000 test images after PROBED
    robust = Case("mnist", "base", radius=0.2, share=0.2, images=20_000, view=MILD["mnist"], teacher="RoCL .1", **kept)
    yield robust, 3
    changes: dict[str, Any] = {"images": 12_000, "view": MILD["cifar10"]}
    yield Case("cifar10", "cnn-b", epochs=46, **changes), 1
    for radius, epochs in ((4, 48), (8, 46)):  # as many as an H200 shared by eight trainings took in three minutes
        yield Case("cifar10", "cnn-b", radius=radius / 255, share=0.1, epochs=epochs, **changes), 1
    yield Case("cifar10", "cnn-b", radius=0.5 / 255, share=0.1, epochs=10, teacher="SimCLR", **changes), 1
    gentle = Case(
        "cifar10", "cnn-b", radius=1.5 / 255, share=0.1, teacher="RoCL 1.98/255", rate=3e-4, **changes, **kept
    )
    yield gentle, 3


@dataclass(frozen=True)
class Study:
    """Where images and weights are, and where trained encoders are kept."""

    reference: Path
    encoders: Path
    device: str = "cpu"

    def images(self, dataset: str, train: bool, rows: slice) -> hf.Images:
        """Return labelled training or test images."""
        name = FILES[dataset][0 if train else 1]
        with np.load(self.reference / "images" / f"{name}.npz") as arrays:
            pixels, labels = torch.from_numpy(arrays["images"]), torch.from_numpy(arrays["labels"].astype(np.int64))
        return hf.Images(pixels[rows], labels=labels[rows], name=name)

    def encoder(self, case: Case, seed: int) -> hf.Encoder:
        """Return the encoder of ``case``, trained now if it has not been yet."""
        if case.published:
            weights = PUBLISHED[case.dataset, case.architecture][case.published]
            return hf.load_encoder(f"checkpoint:{self.reference / 'encoders' / weights}.pt", arch=case.network)
        settings = f"{case.radius:.4g}-{case.share:g}-{case.epochs}" + (f"-{case.view}" if case.view else "")
        settings += plain(case.taught)
        teacher = self.encoder(Case(case.dataset, case.architecture, case.teacher), 0) if case.teacher else None
        folder = self.encoders / f"{case.dataset}-{case.architecture}-{settings}-{seed}"
        if not (folder / "card.json").exists():
            recipe = {
                **RECIPE,
                "optimiser": f"adam:rate={case.rate:g}",
                "architecture": case.architecture,
                "augmentation": case.view or ("rvcl-mnist-view" if case.dataset == "mnist" else "rvcl-cifar-view"),
                "epochs": case.epochs,
                "seed": seed,
            }
            if case.share:
                recipe["adversary"] = f"certified:ball=linf:{case.radius:.6g},share={case.share:g},negatives=16"
            if teacher is not None:
                recipe["objective"] = TAUGHT + ",fresh=true" * case.fresh
            images = self.images(case.dataset, True, slice(None))
            hf.train(recipe, images, start=teacher, limit=case.images, out=folder, device=self.device, progress=False)
        return hf.load_encoder(f"trained:{folder}", arch=None if teacher is None else case.network)

    def measure(self, case: Case, seed: int) -> Found:
        """Train the encoder and return its accuracy, its radii, and what else is certified of it."""
        began = time.process_time()
        encoder = self.encoder(case, seed)
        trained = time.process_time()
        bank, probed = self.images(case.dataset, True, slice(BANK)), self.images(case.dataset, False, slice(PROBED))
        accuracy = evaluate(encoder, probed, {"probe-accuracy": {"probes": PROBE}}, bank=bank)["probe-accuracy"]
        measures = {"accuracy": accuracy.estimate("top1_accuracy", probe=PROBE).value}
        anchors = self.images(case.dataset, False, slice(ANCHORS))
        for method in ("interval", "crown"):
            radii = {"certified-radius": {**SEARCH, "negatives": NEGATIVES, "method": method}}
            result = evaluate(encoder, anchors, radii)["certified-radius"]
            measures[f"certified radius, {method}"] = result.estimate("average_certified_radius").value
            measures[f"tightness, {method}"] = result.estimate("tightness").value
        measures["attacked radius"] = result.estimate("average_attacked_radius").value
        measures |= self.others(case, encoder, bank)
        measures |= {"seconds of training": trained - began, "seconds of measuring": time.process_time() - trained}
        return measures

    def others(self, case: Case, encoder: hf.Encoder, bank: hf.Images) -> Mapping[str, float]:
        """Return certified breakaway, overlap, displacement, and the radius of a linear head."""
        ball = {"balls": BALLS[case.dataset], "divergences": "cosine", "samples": ANCHORS, "attack": SEARCH["attack"]}
        linear = self.images(case.dataset, False, slice(2 * ANCHORS))
        settings = {
            "certified-breakaway": {**ball, "rivals": 3},
            "certified-overlap": ball,
            "certified-displacement": ball,
            "linear-radius": SEARCH,
        }
        run = evaluate(encoder, linear, settings, bank=bank)
        return {
            "breakaway": run["certified-breakaway"].estimate("certified_breakaway_risk").value,
            "overlap": run["certified-overlap"].estimate("certified_overlap_risk").value,
            "displacement": run["certified-displacement"].estimate("certified_displacement").value,
            "linear radius": run["linear-radius"].estimate("average_linear_radius").value,
            "attacked linear radius": run["linear-radius"].estimate("average_attacked_linear_radius").value,
        }


def evaluate(encoder: hf.Encoder, images: hf.Images, settings: Mapping[str, Any], **more: Any) -> hf.EvaluatedRun:
    """Return what the evaluations named in ``settings`` say."""
    return hf.evaluate(
        encoder, images, only=[*settings], settings=settings, suite="standard", workers=1, progress=False, **more
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Train and measure what is planned and not stored yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=STORED)
    parser.add_argument("--encoders", type=Path, default=Path("runs/frontier"), help="where trained encoders are kept")
    parser.add_argument("--only", default="", help="cases whose names contain this")
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument("--device", default="cpu", help="where encoders are trained; measured they are on the CPU")
    options = parser.parse_args(arguments)
    if "HOLDFAST_REFERENCE" not in os.environ:
        raise hf.HoldfastError("the study needs HOLDFAST_REFERENCE, the folder with images/ and encoders/")
    study = Study(Path(os.environ["HOLDFAST_REFERENCE"]), options.encoders, options.device)
    results = Results(options.out, {"anchors": ANCHORS, "negatives": NEGATIVES, "bank": BANK, "probed": PROBED})
    for case, seeds in planned():
        for seed in range(seeds):
            if options.only in str(case) and options.seed in (None, seed):
                results.fill(str(case), seed, partial(study.measure, case, seed))


if __name__ == "__main__":
    main()
