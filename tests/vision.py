"""Make torchvision importable beside a torch build it was not compiled for (there is no CPU wheel of it everywhere).

Its Python code refers to two compiled operators at import. Declaring their schemas is enough, as nothing here runs them.
"""

from __future__ import annotations

import importlib

import torch

_DECLARED: list[torch.library.Library] = []


def declare_operators() -> None:
    """Declare the schemas that importing torchvision needs, unless it brings them itself. Call it as often as you like."""
    if _DECLARED:
        return
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _DECLARED.append(library)
        importlib.import_module("torchvision")
