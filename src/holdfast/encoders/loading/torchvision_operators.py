"""Torchvision beside a build of torch that it was not compiled for.

Package indexes hold one build of torchvision, for CUDA. Beside a CPU build of torch its compiled operators do not load,
and its import stops at the first of them that its Python code describes; so do timm's and transformers', which import it.
Their networks use none of these operators: declaring what they take is enough. Calling one still fails, with torchvision's
own advice.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module

from torch.library import Library

DESCRIBED_AT_IMPORT = ("nms", "qnms")


@cache  # what a Library declares lasts as long as the object does
def declare_missing_operators() -> Library | None:
    """Declare the operators that importing torchvision needs, if it is installed and does not bring them itself."""
    try:
        import_module("torchvision")
    except ImportError:
        return None
    except RuntimeError as error:
        if "operator torchvision::" not in str(error):
            return None
        library = Library("torchvision", "DEF")
        for name in DESCRIBED_AT_IMPORT:
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return library
    return None


def operators_are_declared() -> bool:
    """Return whether this process declared them: others that read its networks have to do so before."""
    return declare_missing_operators.cache_info().currsize > 0 and declare_missing_operators() is not None
