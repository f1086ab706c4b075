"""Codes and the outputs of inner layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from holdfast.core.encoder import Encoder
from holdfast.core.errors import HoldfastError, did_you_mean
from holdfast.core.run_settings import Observed
from holdfast.protocol.fits import LooksAt
from holdfast.protocol.observation import Observation
from holdfast.protocol.population import Population

OUTPUT = "output"


@final
@dataclass(frozen=True)
class Layers(Observation):
    """The code of up to ``samples`` randomly chosen images and the flattened outputs of the named ``layers``."""

    samples: int = 10_000
    layers: tuple[str, ...] = ()
    name = "layers"
    version = 1

    def looks_at(self) -> LooksAt:
        return "encoder" if self.layers else "codes"

    def rows(self, population: Population) -> list[int]:
        for layer in self.layers:
            find(population.encoder, layer)  # a wrong name costs no computing
        return population.choose(self.samples)

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        if not self.layers:
            return {OUTPUT: population.codes[list(rows)]}
        return represented(population.encoder, population.pixels(rows), self.layers)


def represented(encoder: Encoder, pixels: Tensor, layers: Sequence[str]) -> Observed:
    """Return the codes of ``pixels`` under ``output`` and what each layer returned on the way, shape (b, features)."""
    outputs: Observed = {}

    def keep(name: str) -> Any:
        def hook(module: nn.Module, taken: Any, output: Any) -> None:
            first = output[0] if isinstance(output, (tuple, list)) else output
            if not isinstance(first, Tensor) or len(first) != len(pixels):
                raise HoldfastError(f"layer {name!r} does not return one tensor row per image; choose another layer")
            outputs[name] = first.flatten(1).detach()

        return hook

    hooks = [find(encoder, name).register_forward_hook(keep(name)) for name in layers]
    try:
        with torch.no_grad():
            outputs[OUTPUT] = encoder.forward(pixels)
    finally:
        for hook in hooks:
            hook.remove()
    return outputs


def find(encoder: Encoder, name: str) -> nn.Module:
    """Return the part of ``encoder`` that is called ``name`` or, if only one is, whose name ends in it."""
    parts = dict(encoder.module.named_modules())
    ending = [part for part in parts if part == name or part.endswith(f".{name}")]
    if name in parts or len(ending) == 1:
        return parts[name if name in parts else ending[0]]
    known = [part for part in parts if part]
    raise HoldfastError(f"{encoder.name} has no layer {name!r}; {did_you_mean(name, known)}")
