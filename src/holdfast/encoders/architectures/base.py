"""What every architecture is: settings that build an untrained network for given inputs."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from holdfast.core.discovery import named_classes
from holdfast.core.encoder import Domain
from holdfast.core.errors import HoldfastError, OutOfRange
from holdfast.core.settings import TextSettings, fields_of, read

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

    Args:
        architecture: Architecture, for the error.
        domain: Shape and range of the inputs.
        least: Smallest number of pixels per side.

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
