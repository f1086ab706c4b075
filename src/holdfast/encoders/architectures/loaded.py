"""The network of any encoder that a reference loads, as the start of training or as the place of trained weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import nn

from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import HoldfastError
from holdfast.encoders.architectures.base import LOADED, Architecture
from holdfast.encoders.by_name import load
from holdfast.encoders.loading.reference import Options


@final
@dataclass(frozen=True)
class LoadedEncoder(Architecture):
    """Network of a referenced encoder with its weights: encoder:timm:resnet18?pretrained=false."""

    reference: str
    """Encoder to continue from, as `source:name`."""
    name = LOADED

    def __post_init__(self) -> None:
        if not self.reference:
            raise HoldfastError(
                "architecture 'encoder' needs a reference, as in encoder:timm:resnet18?pretrained=false"
            )

    def build(self, domain: Domain) -> nn.Module:
        return trainable(self.load(domain, Options()).module)

    def load_encoder(self, size: int | None = None) -> Encoder:
        """Return the encoder as its source has it, for inputs of another ``size`` if one is given."""
        return load(self.reference, Options(size=size))

    def load(self, domain: Domain, options: Options) -> Encoder:
        """Encoder for inputs of ``domain``.

        Args:
            domain: Shape and range of the inputs.
            options: Options of the caller.

        Raises:
            HoldfastError: The encoder does not accept such inputs.
        """
        encoder = load(self.reference, options)
        if encoder.domain != domain and len(domain.shape) == 3:
            encoder = load(self.reference, Options(options.arch, domain.shape[-1], options.trust_remote_code))
        if encoder.domain != domain:
            takes, wanted = (f"{each.shape} in [{each.low:g}, {each.high:g}]" for each in (encoder.domain, domain))
            raise HoldfastError(f"{self.reference} takes inputs of shape {takes}, got inputs of shape {wanted}")
        return encoder


def trainable(module: nn.Module) -> nn.Module:
    """Return ``module`` with gradients for all weights that can have them."""
    for weight in module.parameters():
        weight.requires_grad_(weight.is_floating_point())
    return module
