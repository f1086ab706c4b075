"""Holdfast: measure, certify and improve the robustness of representation encoders without labels.

Names are loaded when first used, so that ``holdfast --help`` does not wait for torch. ``__init__.pyi`` lists them.
"""

from __future__ import annotations

import lazy_loader

from holdfast import _moved
from holdfast.core import version

__version__ = version.VERSION
_moved.install()
__getattr__, __dir__, _names = lazy_loader.attach_stub(__name__, __file__)
__all__ = [*_names, "__version__"]
