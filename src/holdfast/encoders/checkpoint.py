"""``checkpoint:weights.safetensors`` with ``--arch package.module:factory``: your own module, your own weights.

Weights are safetensors, or a state dict that ``torch.load(weights_only=True)`` accepts; there is no unsafe fallback. The
factory takes no arguments and returns an ``nn.Module`` (which may state ``domain: Domain`` and then normalises itself) or
an ``Encoder``. Every weight of the module must be in the file and every weight of the file in the module.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.core.encoder import Encoder
from holdfast.core.errors import HoldfastError, existing
from holdfast.encoders.by_name import Options, split
from holdfast.encoders.loading.inputs import InputSettings, build, encoder_from, inside
from holdfast.encoders.loading.weights import WeightSettings, fit, read_weights

SOURCE = "checkpoint"
TAKES_ARCH = True


@dataclass(frozen=True)
class Settings(InputSettings, WeightSettings):
    """Settings of a checkpoint reference: inputs, and which tensors of the file to take."""


def load(name: str, options: Options) -> Encoder:
    """Module that ``options.arch`` builds, with the weights of a file."""
    name, settings = split(name, Settings)
    path = existing(name)
    if options.arch is None:
        raise HoldfastError(f"{name!r} holds weights alone; say what they belong to: --arch package.module:factory")
    flag = f"--arch {options.arch}"
    built = build(options.arch, flag)
    module = inside(built.module) if isinstance(built, Encoder) else built
    weights = fit(read_weights(path, settings), module, name)
    module.load_state_dict(weights)
    return encoder_from(built, name, flag, settings, options.size)
