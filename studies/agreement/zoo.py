"""The encoders of the agreement study: published ones, ones trained here by a recipe each, and degenerate ones.

An encoder is one *member* of the zoo; the same recipe under another seed is the same member again, not another encoder.
Members of one family share an objective or a maker, so what is found of one is expected of the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import holdfast as hf
from holdfast.encoders import rvcl
from holdfast.encoders.architectures.base import Architecture
from studies.common import OPTIMISED, untrained
from studies.objectives.training_small import COMMON, MOCO, TRAINED, TUNED

DOMAINS = {"mnist": hf.Domain((1, 28, 28)), "cifar10": hf.Domain((3, 32, 32))}
TITLES = {"mnist": "MNIST", "cifar10": "CIFAR-10"}
FILES = {
    "mnist": ("mnist_train", "mnist_test"),
    "cifar10": ("cifar10_jpeg_train12k", "cifar10_jpeg_test3k"),
}
EPOCHS, TUNED_EPOCHS, TAUGHT = 20, 10, 10_000
"""Of trainings from random weights, of trainings from other encoders, and how many images each sees."""
CIFAR: dict[str, Any] = {**COMMON, "augmentation": "simclr-view:strength=0.5,blur=0", **OPTIMISED}
PCA_FEATURES = 100


@dataclass(frozen=True)
class Member:
    """One encoder of the zoo, and how it is made."""

    name: str
    dataset: str
    family: str
    eps: float = 0.0
    """Radius of adversarial training in pixels; 0 where there was none."""
    weights: str = ""
    """The published file it is read from, if it is."""
    recipe: Mapping[str, Any] = field(default_factory=dict)
    start: str = ""
    """The recipe of the same seed that it is trained further from."""
    degenerate: bool = False

    @property
    def case(self) -> str:
        """How results call it."""
        return f"{self.dataset} {self.name}"

    @property
    def made(self) -> str:
        """Return in words how it is made."""
        if self.weights:
            return "published weights"
        if self.degenerate:
            return "made, not trained"
        return f"trained further from {self.start}" if self.start else "trained here"


def _published() -> tuple[Member, ...]:
    """Return the encoders of RVCL; the strengths of CIFAR-10 were 4.4 and 8.8 / 255 after division by 0.225."""
    of = {
        ("mnist", "base"): {0.0: "mnist_base", 0.1: "mnist_base_adv1"},
        ("mnist", "cnn-a"): {0.0: "mnist_cnn_4layer_a", 0.1: "mnist_cnn_4layer_a_adv1", 0.3: "mnist_cnn_4layer_a_adv3"},
        ("cifar10", "base"): {4.4 / 255 * 0.225: "cifar10_base_adv4"},
        ("cifar10", "cnn-b"): {0.0: "cifar10_cnn_4layer_b", 8.8 / 255 * 0.225: "cifar10_cnn_4layer_b_adv8"},
    }
    return tuple(
        Member(f"published-{architecture}{f'-{eps:.3g}' if eps else ''}", dataset, "published", eps, weights)
        for (dataset, architecture), files in of.items()
        for eps, weights in files.items()
    )


FAMILIES = {
    "supervised": ("supervised", "supervised-uniform", "supcon", "madry"),
    "simclr": ("simclr", "rocl"),
    "moco": ("moco-v2", "moco-v3", "moco-v2+tar", "moco-v2+untar", "moco-v2+l-pgd"),
    "distilled": ("moco-v2+fare", "moco-v2+spade", "moco-v2+spade-control"),
    "self-distilled": ("byol", "simsiam", "dino"),
    "redundancy": ("barlow-twins", "vicreg"),
    "clusters": ("swav", "deepcluster-v2"),
    "masked": ("mae-pixels", "mae"),
}
STRENGTHS = {"rocl": 0.1, "madry": 0.1, **dict.fromkeys(TUNED, 0.1)}
STRENGTHS |= dict.fromkeys(("moco-v2+tar", "moco-v2+untar", "moco-v2+l-pgd"), 0.05)


def _small() -> tuple[Member, ...]:
    """Return what ``studies.objectives.training_small`` trains."""
    return tuple(
        Member(
            name,
            "mnist",
            family,
            STRENGTHS.get(name, 0.0),
            recipe=TRAINED.get(name) or TUNED[name],
            start="moco-v2" if name in TUNED else "",
        )
        for family, names in FAMILIES.items()
        for name in names
    )


def _loss(eps: float, steps: int) -> str:
    return f"loss:ball=linf:{eps:.6g},steps={steps}"


def _wanted() -> tuple[Member, ...]:
    """Return what the study trains itself, the cheapest first."""
    untar = "untargeted:ball=linf:0.05,steps=3"
    mnist: list[tuple[str, str, float, dict[str, Any], str]] = [
        ("base-supervised", "supervised", 0, {"objective": "supervised", "architecture": "base"}, ""),
        ("base-simclr", "simclr", 0, {"objective": "simclr", "architecture": "base"}, ""),
        ("supervised+untar", "supervised", 0.05, {"objective": "supervised", "adversary": untar}, "supervised"),
        ("madry-0.2", "supervised", 0.2, {"objective": "supervised", "adversary": _loss(0.2, 7)}, ""),
        ("base-rocl", "simclr", 0.1, {"objective": "simclr", "architecture": "base", "adversary": _loss(0.1, 10)}, ""),
        ("rocl-0.2", "simclr", 0.2, {"objective": "simclr", "adversary": _loss(0.2, 10)}, ""),
    ]
    pixel = 1 / 255
    coloured: list[tuple[str, str, float, dict[str, Any], str]] = [
        ("supervised", "supervised", 0, {"objective": "supervised"}, ""),
        ("simclr", "simclr", 0, {"objective": "simclr"}, ""),
        ("moco-v2", "moco", 0, {"objective": MOCO}, ""),
        ("barlow-twins", "redundancy", 0, {"objective": "barlow-twins"}, ""),
        (
            "moco-v2+untar",
            "moco",
            4 * pixel,
            {"objective": MOCO, "adversary": untar.replace("0.05", "4/255")},
            "moco-v2",
        ),
        ("madry", "supervised", 4 * pixel, {"objective": "supervised", "adversary": _loss(4 * pixel, 7)}, ""),
        ("rocl", "simclr", 4 * pixel, {"objective": "simclr", "adversary": _loss(4 * pixel, 10)}, ""),
    ]
    return tuple(
        Member(name, dataset, family, eps, recipe=recipe, start=start)
        for dataset, members in (("mnist", mnist), ("cifar10", coloured))
        for name, family, eps, recipe, start in members
    )


DEGENERATE = ("pixels", "pca", "random", "random-2", "collapsed")
ZOO = (
    *_published(),
    *(Member(name, "mnist", "degenerate", degenerate=True) for name in DEGENERATE),
    *_small(),
    *(Member(name, "cifar10", "degenerate", degenerate=True) for name in DEGENERATE),
    *_wanted(),
)
"""All members, in the order in which they are made and measured."""
REFUSED = {
    "cifar10 collapsed": "the library takes its codes of the labelled images for a single one, and measures nothing"
}
"""Members that cannot be measured, and why: of CIFAR-10 the collapsed network keeps no more than rounding."""


@dataclass(frozen=True)
class Zoo:
    """Where images, published weights and trained encoders are."""

    reference: Path
    """The folder with the images and the published weights."""
    folder: Path
    """Where encoders that are trained here are kept."""
    trained: Path | None = None
    """Where ``studies.objectives.training_small`` left its encoders, if it ran."""

    def encoder(self, member: Member, seed: int) -> hf.Encoder:
        """Return the member, trained now if it has not been yet."""
        if member.weights:
            found = hf.load_encoder(
                f"checkpoint:{self.reference / 'encoders' / member.weights}.pt",
                arch=f"{rvcl.__name__}:{_network(member)}",
            )
        elif member.degenerate:
            found = degenerate(member.name, DOMAINS[member.dataset], seed, self.bank(member.dataset))
        else:
            found = self._trained(member, seed)
        found.name = f"{member.case} {seed}"
        return found

    def made(self, member: Member, seed: int) -> bool:
        """Return whether the member can be had without training it."""
        return bool(member.weights) or member.degenerate or self._place(member, seed) is not None

    def _place(self, member: Member, seed: int) -> Path | None:
        places = [self.folder / member.dataset / f"{member.name}-{seed}"]
        if self.trained and member.dataset == "mnist":
            places.append(self.trained / f"{member.name}-{seed}")
        return next((place for place in places if (place / "encoder.safetensors").exists()), None)

    def _trained(self, member: Member, seed: int) -> hf.Encoder:
        place = self._place(member, seed)
        if place:
            return hf.load_encoder(f"trained:{place}")
        start = self._trained(find(member.start, member.dataset), seed) if member.start else None
        recipe = {**(COMMON if member.dataset == "mnist" else CIFAR), **member.recipe, "seed": seed}
        recipe["epochs"] = TUNED_EPOCHS if start else EPOCHS
        images = self._images(FILES[member.dataset][0], slice(None))
        out = self.folder / member.dataset / f"{member.name}-{seed}"
        return hf.train(recipe, images, start=start, limit=TAUGHT, out=out, progress=False)

    def bank(self, dataset: str) -> hf.Images:
        """Return the labelled training images that probes learn from."""
        return self._images(FILES[dataset][0], slice(0, 2000))

    def measured(self, dataset: str, count: int) -> hf.Images:
        """Return test images without labels, at even places."""
        pixels, _ = self._arrays(FILES[dataset][1])
        return hf.Images(pixels[: 2 * count : 2], name=f"{dataset}, even")

    def labelled(self, dataset: str, count: int) -> hf.Images:
        """Return other test images, with labels, at odd places."""
        return self._images(FILES[dataset][1], slice(1, 2 * count, 2))

    def _images(self, name: str, rows: slice) -> hf.Images:
        pixels, labels = self._arrays(name)
        return hf.Images(pixels[rows], labels=labels[rows], name=name)

    def _arrays(self, name: str) -> tuple[Tensor, Tensor]:
        return _arrays(self.reference / "images" / f"{name}.npz")


def find(name: str, dataset: str) -> Member:
    """Return the member of this name."""
    return next(member for member in ZOO if (member.name, member.dataset) == (name, dataset))


def _network(member: Member) -> str:
    """Return the function of ``holdfast.encoders.rvcl`` that builds a published network."""
    architecture = next(name for name in ("base", "cnn-a", "cnn-b") if member.name.startswith(f"published-{name}"))
    return f"{'mnist' if member.dataset == 'mnist' else 'cifar'}_{architecture.replace('-', '_')}"


@cache
def _arrays(path: Path) -> tuple[Tensor, Tensor]:
    with np.load(path) as arrays:
        return torch.from_numpy(arrays["images"]), torch.from_numpy(arrays["labels"].astype(np.int64))


def degenerate(name: str, domain: hf.Domain, seed: int, bank: hf.Images) -> hf.Encoder:
    """Return an encoder that learned nothing: a measure under which it wins says nothing by itself.

    ``collapsed`` gives all images nearly one code: its codes differ by a thousandth of their length.
    """
    if name == "pixels":
        shape = "x".join(map(str, domain.shape))
        return hf.load_encoder(f"baseline:pixels?shape={shape}")
    if name == "pca":
        return hf.Encoder(nn.Sequential(nn.Flatten(), principal_components(bank)), name, domain)
    if name == "collapsed":
        torch.manual_seed(seed + 2)
        module = Architecture.read("cnn-a").build(domain).eval()
        *_, last = module.children()
        assert isinstance(last, nn.Linear)
        with torch.no_grad():
            last.weight.mul_(1e-3)
            last.bias.fill_(1.0)
        return hf.Encoder(module, name, domain)
    return untrained("cnn-a", domain, seed + (1000 if name == "random-2" else 0))


def principal_components(bank: hf.Images) -> nn.Linear:
    """Return the projection on the first principal components of the images of ``bank``."""
    pixels = bank.pixels(range(len(bank))).flatten(1).double()
    mean = pixels.mean(0)
    directions = torch.linalg.svd(pixels - mean, full_matrices=False).Vh[:PCA_FEATURES]
    layer = nn.Linear(pixels.shape[1], len(directions))
    with torch.no_grad():
        layer.weight.copy_(directions)
        layer.bias.copy_(-(directions @ mean))
    return layer
