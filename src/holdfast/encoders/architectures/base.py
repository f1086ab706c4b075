"""What all architectures are: settings that build an untrained network for given inputs.

Also here: the network of any encoder that a reference loads, to start a training or to hold trained weights.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, final

from torch import nn

from holdfast.core.discovery import named_classes
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import HoldfastError, OutOfRange
from holdfast.core.settings import TextSettings, fields_of, read
from holdfast.encoders.by_name import Options, load

LOADED = "encoder"
"""The architecture of whatever a reference loads."""


@dataclass(frozen=True)
class Architecture(TextSettings):
    """Settings that build an untrained network from pixels in [0, 1] to embeddings.

    Batch norms fold into convolutions once the network is in eval mode.
    """

    name: ClassVar[str]

    def __post_init__(self) -> None:
        for field in fields_of(type(self)):
            value: Any = getattr(self, field)
            if isinstance(value, int) and value < 1:
                raise OutOfRange(f"{self.name}: {field}", value, "at least 1")

    @classmethod
    def read(cls, text: str) -> Architecture:
        """Return the architecture that ``text`` spells.

        Example:
            >>> Architecture.read("base:features=64")
            Base(features=64)
            >>> str(Architecture.read("encoder:timm:resnet18?pretrained=false"))
            'encoder:timm:resnet18?pretrained=false'
        """
        name, _, reference = text.partition(":")
        if name == LOADED:  # a reference has colons, commas and settings of its own
            kind: Any = architectures()[LOADED]
            return kind(reference)
        return read(text, architectures(), "architecture")

    @abstractmethod
    def build(self, domain: Domain) -> nn.Module:
        """Build the untrained network, in training mode, for inputs of ``domain``.

        Returns:
            Network from (b, *domain.shape) to (b, d).

        Raises:
            HoldfastError: The architecture cannot take such inputs.
        """


def image_sizes(architecture: Architecture, domain: Domain, least: int = 1) -> tuple[int, int, int]:
    """Channels, height and width of the images of ``domain``.

    Raises:
        HoldfastError: The inputs are no images, or smaller.
    """
    if len(domain.shape) != 3 or min(domain.shape[1:]) < least:
        raise HoldfastError(
            f"architecture {architecture.name!r} takes images of shape (channels, height, width) with at least {least} "
            f"pixels a side, got {domain.shape}; choose another architecture or size"
        )
    channels, height, width = domain.shape
    return channels, height, width


def architectures() -> dict[str, type[Architecture]]:
    """Return every architecture by name."""
    import holdfast.encoders.architectures as home

    return named_classes(home, Architecture)


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
