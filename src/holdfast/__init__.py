"""Holdfast: measure, certify and improve the robustness of representation encoders without labels.

Names are loaded when first used, so that ``holdfast --help`` does not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from holdfast.core.balls import L1 as L1
    from holdfast.core.balls import L2 as L2
    from holdfast.core.balls import Ball as Ball
    from holdfast.core.balls import Linf as Linf
    from holdfast.core.encoder import Domain as Domain
    from holdfast.core.encoder import Encoder as Encoder
    from holdfast.core.images import Images as Images
    from holdfast.core.records import Result as Result
    from holdfast.core.run import Run as Run
    from holdfast.evaluations.spectral.analysis import spade as spade
    from holdfast.protocol.evaluation import Evaluation as Evaluation

_HOMES = {
    "Ball": "core.balls",
    "Domain": "core.encoder",
    "Encoder": "core.encoder",
    "Evaluation": "protocol.evaluation",
    "Images": "core.images",
    "L1": "core.balls",
    "L2": "core.balls",
    "Linf": "core.balls",
    "Result": "core.records",
    "Run": "core.run",
    "spade": "evaluations.spectral.analysis",
}
__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    return getattr(import_module(f"holdfast.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
