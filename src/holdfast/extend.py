"""The names that extensions need: base classes, records and helpers, as docs/extending.md uses them.

They stay here when the modules that define them move. Each is loaded when first used; ``extend.pyi`` lists them.
"""

from __future__ import annotations

from typing import Any

import lazy_loader

from holdfast.core.discovery import warn_of_old_name

_OLD = {
    "require_not_negative": "check_not_negative",
    "require_two_images": "check_two_images",
}
_loaded, __dir__, __all__ = lazy_loader.attach_stub("holdfast", __file__)


def __getattr__(name: str) -> Any:
    if name in _OLD:
        warn_of_old_name(f"holdfast.extend.{name}", _OLD[name])
        name = _OLD[name]
    return _loaded(name)
