"""What an operator of the ONNX import is told beside its input tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.core.errors import HoldfastError

Setting = NDArray[Any] | Tensor
"""An input that says how an operator computes; a tensor only where it depends on the pixels."""


@dataclass(frozen=True)
class Call:
    """A node's attributes, how many outputs it has, and the precision and device that the pixels came in."""

    operator: str
    attributes: Mapping[str, Any]
    outputs: int
    dtype: torch.dtype
    device: torch.device

    def get(self, name: str, default: Any) -> Any:
        """Return an attribute or its default."""
        return self.attributes.get(name, default)

    def integers(self, name: str, setting: Setting | None) -> list[int] | None:
        """Return integers that are an input in recent operator sets and an attribute in older ones."""
        return setting.flatten().tolist() if setting is not None else self.attributes.get(name)

    def refuse(self, what: str) -> HoldfastError:
        """Return the error for a variant of the operator that is not imported."""
        return HoldfastError(f"the ONNX operator {self.operator} with {what} is not supported; export without it")
