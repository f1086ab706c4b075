"""``linear:weights.npy?shape=1x8x8``: codes are a stored matrix (d, inputs) times the flattened input."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from holdfast.extend import Domain, Encoder, Options, existing, sizes, split

SOURCE = "linear"


@dataclass(frozen=True)
class Settings:
    """Settings of a linear reference."""

    shape: str = "3x224x224"


def load(name: str, options: Options) -> Encoder:
    """Return the encoder whose matrix is in the file ``name``."""
    name, settings = split(name, Settings)
    matrix = torch.from_numpy(np.load(existing(name), allow_pickle=False)).float()
    layer = nn.Linear(matrix.shape[1], matrix.shape[0], bias=False)
    layer.weight.data.copy_(matrix)
    return Encoder(nn.Sequential(nn.Flatten(), layer), name, Domain(sizes(settings.shape)))
