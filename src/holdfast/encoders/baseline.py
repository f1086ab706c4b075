"""Baselines for comparison: the pixels themselves, and the same network with random weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from holdfast.core.copies import copied
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import HoldfastError, UnknownName
from holdfast.encoders.by_name import Options, split
from holdfast.encoders.loading.inputs import sizes
from holdfast.encoders.wrappers import seeded

SOURCE = "baseline"


@dataclass(frozen=True)
class Settings:
    """Settings of ``baseline:pixels``."""

    shape: str = "3x224x224"
    """Shape of the inputs, as in ``3x224x224``."""
    low: float = 0.0
    """Smallest value of an input."""
    high: float = 1.0
    """Largest value of an input."""


def load(name: str, options: Options) -> Encoder:
    """Trivial encoder ``pixels``: the flattened input, as in ``baseline:pixels?shape=1x8x8``."""
    name, settings = split(name, Settings)
    if name == "random":
        raise HoldfastError("the random baseline needs the encoder it imitates: random_init(encoder, seed) in Python")
    if name != "pixels":
        raise UnknownName("baseline", name, ["pixels", "random"])
    shape = sizes(settings.shape)
    if options.size and len(shape) == 3:
        shape = (shape[0], options.size, options.size)
    return raw_pixels(Domain(shape, settings.low, settings.high))


def is_baseline(encoder: Encoder) -> bool:
    """Return whether ``encoder`` is here only to put the numbers of others into proportion."""
    return encoder.source.startswith(f"{SOURCE}:")


def raw_pixels(domain: Domain) -> Encoder:
    """Encoder whose embeddings are the flattened inputs.

    Example:
        >>> import torch
        >>> raw_pixels(Domain((1, 2, 2)))(torch.full((1, 1, 2, 2), 0.5))
        tensor([[0.5000, 0.5000, 0.5000, 0.5000]])
    """
    spelled = "x".join(map(str, domain.shape))
    limits = "" if (domain.low, domain.high) == (0, 1) else f"&low={domain.low:g}&high={domain.high:g}"
    source = f"baseline:pixels?shape={spelled}{limits}"
    return Encoder(nn.Flatten(), "pixels", domain, source=source, pooling="none, pixels are flattened")


def random_init(encoder: Encoder, seed: int = 0) -> Encoder:
    """Copy of ``encoder`` with random weights, by the ``reset_parameters`` of each module.

    A module without that method, as the graph of an ONNX file, gets the entries of each of its tensors in random order.

    Raises:
        HoldfastError: The encoder has no weights.
    """
    if not encoder.parameters:
        raise HoldfastError(f"{encoder.name} has no weights to draw again; leave its random baseline out")
    module = seeded(lambda: _reset(copied(encoder.module).cpu()), seed)
    name, source = f"{encoder.name} (random weights)", f"baseline:random of {encoder.source}, seed {seed}"
    kept: dict[str, Any] = {"geometry": encoder.geometry, "pooling": encoder.pooling}
    return Encoder(module, name, encoder.domain, source=source, **kept)


def _reset(module: nn.Module) -> nn.Module:
    for part in module.modules():
        # nn.MultiheadAttention spells it with an underscore.
        reset = getattr(part, "reset_parameters", None) or getattr(part, "_reset_parameters", None)
        if callable(reset):
            reset()
            continue
        for weight in part.parameters(recurse=False):
            # Nothing says how they were drawn once. Their own values have the right scale, and variances stay positive.
            # ``data`` gets other memory, because a graph may keep a constant of the same memory as a setting.
            order = torch.randperm(weight.numel())
            weight.data = weight.data.flatten()[order].view_as(weight)
    return module
