"""What claims are measured on: published encoders, encoders trained alike, and images.

``reference`` is the folder that the environment variable HOLDFAST_REFERENCE names, with ``images``, in ``encoders`` the
published weights of RVCL, and in ``verification`` and ``spade`` numbers on these that independent programs made. ``trained``
is a folder of ``studies.objectives.training_small``, with one encoder for each arm and seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

import holdfast as hf
from holdfast.measure.population import Population


@dataclass(frozen=True)
class Published:
    """Weights of RVCL: 500 epochs of contrastive training against attacks of size ``eps``."""

    images: str
    factory: str
    eps: float
    """In the authors' units: pixels of MNIST, normalised ones of CIFAR-10."""


PUBLISHED = {
    "mnist_base": Published("mnist", "mnist_base", 0.0),
    "mnist_base_adv1": Published("mnist", "mnist_base", 0.1),
    "mnist_cnn_4layer_a": Published("mnist", "mnist_cnn_a", 0.0),
    "mnist_cnn_4layer_a_adv1": Published("mnist", "mnist_cnn_a", 0.1),
    "mnist_cnn_4layer_a_adv3": Published("mnist", "mnist_cnn_a", 0.3),
    "cifar10_base_adv4": Published("cifar", "cifar_base", 4.4 / 255),
    "cifar10_cnn_4layer_b": Published("cifar", "cifar_cnn_b", 0.0),
    "cifar10_cnn_4layer_b_adv8": Published("cifar", "cifar_cnn_b", 8.8 / 255),
}
MNIST = tuple(name for name, one in PUBLISHED.items() if one.images == "mnist")
STEPS = (
    ("mnist_base", "mnist_base_adv1"),
    ("mnist_cnn_4layer_a", "mnist_cnn_4layer_a_adv1"),
    ("mnist_cnn_4layer_a_adv1", "mnist_cnn_4layer_a_adv3"),
)
"""Published encoders of one architecture, each with the next that was trained against larger attacks."""
TESTED = {"mnist": "mnist_test", "cifar": "cifar10_jpeg_test3k"}
TAUGHT = {"mnist": "mnist_train", "cifar": "cifar10_jpeg_train12k"}
ARMS = (
    "supervised",
    "supervised-uniform",
    "supcon",
    "simclr",
    "moco-v2",
    "moco-v3",
    "byol",
    "simsiam",
    "barlow-twins",
    "vicreg",
    "swav",
    "deepcluster-v2",
    "dino",
    "mae",
)
"""Of ``studies.objectives.training_small``, without those trained against attacks."""


class LackingError(hf.HoldfastError):
    """A claim cannot be measured because something that it is measured on is not there."""


@dataclass
class Material:
    """Where everything is, and the encoders that were used so far, by name."""

    reference: Path | None = None
    trained: Path | None = None
    work: Path = Path("runs/claims")
    """Where evaluations keep what they observed, so that a claim that was interrupted goes on."""
    used: dict[str, str] = field(default_factory=dict)
    """Fingerprints of the encoders."""

    def published(self, name: str) -> hf.Encoder:
        """Return a published encoder."""
        file = self.folder() / "encoders" / f"{name}.pt"
        arch = f"holdfast.encoders.rvcl:{PUBLISHED[name].factory}"
        return self.noted(hf.load_encoder(f"{name}=checkpoint:{file}", arch=arch))

    def head(self, name: str) -> tuple[Float[Tensor, "c d"], Float[Tensor, "c"]]:
        """Return the published linear head of an encoder, in float64: matrix and offset."""
        state = torch.load(self.folder() / "encoders" / f"{name}__lineval.pt", weights_only=True)
        weight, bias = list(state.values())[-2:]
        return weight.double(), bias.double()

    def arm(self, name: str, seed: int) -> hf.Encoder:
        """Return an encoder trained by ``studies.objectives.training_small``."""
        return self.noted(hf.load_encoder(f"{name}-{seed}=trained:{self.trainings() / f'{name}-{seed}'}"))

    def seeds(self, *arms: str) -> list[int]:
        """Return the seeds with which all ``arms`` were trained.

        Raises:
            LackingError: there is none.
        """
        folder = self.trainings()
        found = [seed for seed in range(20) if all((folder / f"{arm}-{seed}" / "card.json").exists() for arm in arms)]
        if not found:
            raise LackingError(f"no seed has all of {', '.join(arms)} in {folder}")
        return found

    def images(self, encoder: hf.Encoder, count: int, taught: bool = False) -> hf.Images:
        """Return ``count`` labelled test images that fit an encoder, or ``taught`` ones."""
        name = (TAUGHT if taught else TESTED)["mnist" if encoder.domain.shape[0] == 1 else "cifar"]
        file = self.folder() / "images" / f"{name}.npz"
        return hf.load_images(f"{file}?images=images&labels=labels", encoder, limit=count)

    def population(self, encoder: hf.Encoder, count: int, bank: int = 0) -> Population:
        """Return test images and, if asked for, as many training images as a bank."""
        run, images = hf.RunSettings(), self.images(encoder, count)
        taught = Population(encoder, self.images(encoder, bank, taught=True), run) if bank else None
        return Population(encoder, images, run, bank=taught)

    def evaluate(
        self, encoder: hf.Encoder, count: int, settings: Mapping[str, Mapping[str, Any]], bank: int = 0
    ) -> hf.EvaluatedRun:
        """Return what evaluations with these settings find of an encoder."""
        return hf.evaluate(
            encoder,
            self.images(encoder, count),
            bank=self.images(encoder, bank, taught=True) if bank else None,
            only=[*settings],
            settings=settings,
            suite="standard",
            out=self.work / f"{encoder.name}-{encoder.fingerprint}",
            progress=False,
        )

    def arrays(self, file: str) -> Mapping[str, np.ndarray]:
        """Return the arrays of a file of the reference folder: numbers that independent programs made.

        Raises:
            LackingError: there is no such file.
        """
        path = self.folder() / file
        if not path.exists():
            raise LackingError(f"{path} is not there")
        found: Mapping[str, np.ndarray] = np.load(path)
        return found

    def folder(self) -> Path:
        """Return the reference folder."""
        if self.reference is None:
            raise LackingError("the folder of published encoders and images is not named; set HOLDFAST_REFERENCE")
        return self.reference

    def trainings(self) -> Path:
        """Return the folder of trained encoders."""
        if self.trained is None:
            raise LackingError("the folder of trained encoders is not named; give --trained")
        return self.trained

    def noted(self, encoder: hf.Encoder) -> hf.Encoder:
        """Return ``encoder``, whose fingerprint is kept."""
        self.used[encoder.name] = encoder.fingerprint
        return encoder
