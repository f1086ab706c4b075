"""Where the encoders of the agreement study come from, how each is made, and the images they are measured on."""

from __future__ import annotations

import gzip
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import holdfast as hf
from holdfast.encoders import rvcl
from holdfast.encoders.architectures.base import Architecture
from studies.agreement import photographed
from studies.agreement.kept_apart import KEPT, PRUNED
from studies.agreement.members import DOMAINS, EPOCHS, TUNED_EPOCHS, ZOO, Member
from studies.agreement.photographed import REAL
from studies.common import OPTIMISED, untrained
from studies.objectives.training_small import COMMON

FILES = {
    "mnist": ("mnist_train", "mnist_test"),
    "cifar10": ("cifar10_jpeg_train12k", "cifar10_jpeg_test3k"),
    "fashion": ("train", "t10k"),
}
FASHION = Path("/usr/share/datasets/fashion-mnist")
"""Where the Debian package dataset-fashion-mnist puts its files."""
CIFAR: dict[str, Any] = {**COMMON, "augmentation": "simclr-view:strength=0.5,blur=0", **OPTIMISED}
PCA_FEATURES = 100
REMOVED = {PRUNED: 0.8, photographed.PRUNED: 0.4}
"""Share of the weights; copies by another name have weights of four bits."""


@dataclass(frozen=True)
class Zoo:
    """Where images, published weights and trained encoders are."""

    reference: Path
    """The folder with the images and the published weights."""
    folder: Path
    """Where encoders that are trained here are kept."""
    trained: Path | None = None
    """Where ``studies.objectives.training_small`` left its encoders, if it ran."""
    first: int = 0
    """The place of the first test image, so that held-out encoders are measured on others."""

    def encoder(self, member: Member, seed: int) -> hf.Encoder:
        """Return the member, trained now if it has not been yet."""
        if member.weights:
            found = self._published(member)
        elif member.degenerate:
            found = degenerate(member.name, DOMAINS[member.dataset], seed, self.bank(member.dataset))
        elif member.copy:
            found = copied(self.encoder(find(member.start, member.dataset), seed), member.copy)
        else:
            found = self._trained(member, seed)
        found.name = f"{member.case} {seed}"
        return found

    def _published(self, member: Member) -> hf.Encoder:
        if member in REAL:
            return photographed.published(member.weights)
        weights = self.reference / "encoders" / f"{member.weights}.pt"
        return hf.load_encoder(f"checkpoint:{weights}", arch=f"{rvcl.__name__}:{_network(member)}")

    def made(self, member: Member, seed: int) -> bool:
        """Return whether the member can be had without training it."""
        if member.copy:
            return self.made(find(member.start, member.dataset), seed)
        return bool(member.weights) or member.degenerate or self._place(member, seed) is not None

    def _place(self, member: Member, seed: int) -> Path | None:
        places = [self.folder / member.dataset / f"{member.name}-{seed}"]
        if self.trained and member.dataset == "mnist":
            places.append(self.trained / f"{member.name}-{seed}")
        return next((place for place in places if (place / "encoder.safetensors").exists()), None)

    def _trained(self, member: Member, seed: int) -> hf.Encoder:
        place = self._place(member, seed)
        if place:
            arch = f"{photographed.__name__}:{member.start}" if member in REAL else None
            return hf.load_encoder(f"trained:{place}", arch=arch)
        start = self.encoder(find(member.start, member.dataset), seed) if member.start else None
        out = self.folder / member.dataset / f"{member.name}-{seed}"
        if start and member in REAL:
            return photographed.hardened(start, member, seed, self.taught(member.dataset, slice(None)), out)
        epochs = TUNED_EPOCHS if start else EPOCHS
        common = CIFAR if member.dataset == "cifar10" else COMMON
        recipe = {**common, "epochs": epochs, **member.recipe, "seed": seed}
        images = self.taught(member.dataset, slice(None))
        return hf.train(recipe, images, start=start, limit=member.taught, out=out, progress=False)

    def taught(self, dataset: str, rows: slice) -> hf.Images:
        """Return labelled training images."""
        return self._images(dataset, 0, rows)

    def bank(self, dataset: str) -> hf.Images:
        """Return the labelled training images that probes learn from."""
        return self.taught(dataset, slice(0, 2000))

    def measured(self, dataset: str, count: int) -> hf.Images:
        """Return test images without labels, at even places."""
        pixels, _ = self._arrays(dataset, 1)
        return hf.Images(pixels[self.first : self.first + 2 * count : 2], name=f"{dataset}, even")

    def labelled(self, dataset: str, count: int) -> hf.Images:
        """Return other test images, with labels, at odd places."""
        return self._images(dataset, 1, slice(self.first + 1, self.first + 2 * count, 2))

    def _images(self, dataset: str, part: int, rows: slice) -> hf.Images:
        pixels, labels = self._arrays(dataset, part)
        name = FILES[dataset][part] if dataset in FILES else dataset
        return hf.Images(pixels[rows], labels=labels[rows], name=name)

    def _arrays(self, dataset: str, part: int) -> tuple[Tensor, Tensor]:
        """Return images and labels to train on (``part`` 0) or to measure on (1)."""
        if dataset == "photographs":
            return photographed.photographs(self.reference / "real" / "photos", part)
        name = FILES[dataset][part]
        return _idx(name) if dataset == "fashion" else _arrays(self.reference / "images" / f"{name}.npz")


def find(name: str, dataset: str) -> Member:
    """Return the member of this name."""
    return next(member for member in (*ZOO, *KEPT, *REAL) if (member.name, member.dataset) == (name, dataset))


def _network(member: Member) -> str:
    """Return the function of ``holdfast.encoders.rvcl`` that builds a published network."""
    architecture = next(name for name in ("base", "cnn-a", "cnn-b") if member.name.startswith(f"published-{name}"))
    return f"{'mnist' if member.dataset == 'mnist' else 'cifar'}_{architecture.replace('-', '_')}"


@cache
def _arrays(path: Path) -> tuple[Tensor, Tensor]:
    with np.load(path) as arrays:
        return torch.from_numpy(arrays["images"]), torch.from_numpy(arrays["labels"].astype(np.int64))


@cache
def _idx(name: str) -> tuple[Tensor, Tensor]:
    """Return images and labels of Fashion-MNIST, as the package brings them."""

    def read(kind: str, header: int) -> np.ndarray:
        with gzip.open(FASHION / f"{name}-{kind}-ubyte.gz") as file:
            return np.frombuffer(file.read(), np.uint8, offset=header)

    pixels, labels = read("images-idx3", 16).reshape(-1, 1, 28, 28), read("labels-idx1", 8)
    return torch.from_numpy(pixels.copy()), torch.from_numpy(labels.astype(np.int64))


@torch.no_grad()
def copied(encoder: hf.Encoder, copy: str) -> hf.Encoder:
    """Return a copy whose weights, layer by layer, are rounded to 4 bits or of which the smaller ones are removed."""
    module = deepcopy(encoder.module)
    for weight in (parameter for parameter in module.parameters() if parameter.ndim > 1):
        size = weight.abs()
        if copy in REMOVED:
            weight[size < size.quantile(REMOVED[copy])] = 0.0
        else:
            step = size.max() / 7
            weight.copy_((weight / step).round() * step)
    return hf.Encoder(module, encoder.name, encoder.domain)


def degenerate(name: str, domain: hf.Domain, seed: int, bank: hf.Images) -> hf.Encoder:
    """Return a trivial encoder: a measure under which it wins says nothing by itself.

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
