"""Classes that are found by looking, not listed: to add one, add a file."""

from __future__ import annotations

from importlib import import_module
from inspect import isabstract, isclass
from pkgutil import walk_packages
from types import ModuleType
from typing import TypeVar

from holdfast.core.errors import HoldfastError

T = TypeVar("T")


def named_classes(home: ModuleType, base: type[T]) -> dict[str, type[T]]:
    """Return each class of a ``base`` that has a ``name`` of its own, in the modules of the package ``home`` and below it.

    Raises:
        HoldfastError: two of them have the same name.
    """
    classes: dict[str, type[T]] = {}
    for module in walk_packages(home.__path__, f"{home.__name__}."):
        for kind in vars(import_module(module.name)).values():
            if not (isclass(kind) and issubclass(kind, base) and "name" in vars(kind) and not isabstract(kind)):
                continue
            name = str(vars(kind)["name"])
            if classes.setdefault(name, kind) is not kind:
                raise HoldfastError(f"two classes of {home.__name__} are called {name!r}; rename one of them")
    return dict(sorted(classes.items()))
