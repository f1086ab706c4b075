"""Encoders with published weights and real images, from the folder that HOLDFAST_REFERENCE names."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.core.encoder import Encoder
from holdfast.encoders import Options, load

ARCHITECTURES = {
    "mnist_base": "mnist_base",
    "mnist_cnn_4layer_a": "mnist_cnn_a",
    "mnist_cnn_4layer_a_adv3": "mnist_cnn_a",
    "cifar10_base_adv4": "cifar_base",
    "cifar10_cnn_4layer_b": "cifar_cnn_b",
}
"""The function of holdfast.encoders.rvcl that makes each network."""


def folder() -> Path | None:
    """Return the folder, None if there is none."""
    root = os.environ.get("HOLDFAST_REFERENCE")
    return Path(root) if root else None


def encoder(root: Path, weights: str) -> Encoder:
    """Return the encoder with the weights of this name."""
    arch = f"holdfast.encoders.rvcl:{ARCHITECTURES[weights]}"
    return load(f"checkpoint:{root / 'encoders' / weights}.pt", Options(arch=arch))


def images(root: Path, colours: int, count: int | None = None) -> Float[Tensor, "n c h w"]:
    """Return the first test images of MNIST (one colour) or CIFAR-10 (three), all by default."""
    name = "mnist_test" if colours == 1 else "cifar10_raw200"
    return torch.tensor(np.load(root / "images" / f"{name}.npz")["images"][:count]).float() / 255
