"""Finding the members of a kind: add a file, or name a class in an entry point; there is no list to edit.

Each kind lives in a package or module of Holdfast, with files at any depth; evaluations live in the ``evaluations`` of each
topic. Other installed packages name theirs in the entry-point group of the kind, such as ``holdfast.attacks``.

Also here: names that members of base classes had until version 0.3. Extensions may still define and read them in 0.4.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from inspect import isabstract, isclass
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Any, TypeVar, cast

from holdfast.core.errors import HoldfastError, explained

T = TypeVar("T")


def named_classes(home: ModuleType | tuple[ModuleType, ...], base: type[T], group: str = "") -> dict[str, type[T]]:
    """Classes below ``home``, or of other packages, that extend ``base`` and have a name.

    Args:
        group: Entry-point group of other packages; by default the name of ``home``.

    Raises:
        HoldfastError: Two classes have one name, an entry point cannot be loaded or is no such class, or a folder is no
            package.
    """
    homes = home if isinstance(home, tuple) else (home,)
    return dict(
        _classes(homes, group or homes[0].__name__, cast(Any, base))
    )  # mypy takes no abstract class for hashable


@cache
def sources(home: ModuleType) -> dict[str, ModuleType]:
    """Modules with ``SOURCE`` and ``load`` below ``home``, or of other packages, by source.

    What lies below such a module is its own affair.

    Raises:
        HoldfastError: two of them have the same source, another package names what cannot be loaded or is no such module, or
            a folder is no package.
    """
    modules = [module for module in _modules_below(home, "SOURCE") if hasattr(module, "SOURCE")]
    for point in entry_points(group=home.__name__):
        module = loaded(point)
        if not (
            isinstance(module, ModuleType) and hasattr(module, "SOURCE") and callable(getattr(module, "load", None))
        ):
            raise HoldfastError(
                f"the entry point {point.name!r} of {home.__name__} must name a module with SOURCE and load, got {module!r}"
            )
        modules.append(module)
    return _by_name([(module.SOURCE, module) for module in modules], "modules")


def loaded(point: EntryPoint) -> Any:
    """Return what an entry point names.

    Raises:
        HoldfastError: it cannot be loaded.
    """
    problem = f"{point.name!r}, which an installed package adds to {point.group}, does not load"
    with explained(problem, f"repair or uninstall the package that names {point.value!r}"):
        return point.load()


@cache
def _classes(homes: tuple[ModuleType, ...], group: str, base: type[Any]) -> dict[str, type[Any]]:
    classes = []
    for module in (module for home in homes for module in (home, *_modules_below(home))):
        members = vars(module).values()
        classes += [kind for kind in members if isclass(kind) and issubclass(kind, base) and _is_member(kind)]
    for point in entry_points(group=group):
        kind = loaded(point)
        if not (isclass(kind) and issubclass(kind, base) and _is_member(kind)):
            raise HoldfastError(
                f"the entry point {point.name!r} of {group} must name a class that extends "
                f"{base.__name__} and has a name, got {kind!r}"
            )
        classes.append(kind)
    return _by_name([(str(vars(kind)["name"]), kind) for kind in classes], "classes")


def _is_member(kind: type) -> bool:
    return "name" in vars(kind) and not isabstract(kind)


def _modules_below(home: ModuleType, stop: str = "") -> Iterator[ModuleType]:
    """Yield all modules below the package ``home``; of one that has ``stop``, that alone."""
    for folder in (folder for path in getattr(home, "__path__", ()) if (folder := Path(path)).is_dir()):
        for below in sorted(folder.iterdir()):
            if any(below.glob("*.py")) and not (below / "__init__.py").exists():
                raise HoldfastError(
                    f"{below} holds modules but no __init__.py, so that none is found; add an empty one"
                )
    for info in iter_modules(getattr(home, "__path__", ()), f"{home.__name__}."):
        if info.ispkg and info.name.endswith(".evaluations"):  # which are a kind of their own, and import far more
            continue
        module = import_module(info.name)
        yield module
        if info.ispkg and not (stop and hasattr(module, stop)):
            yield from _modules_below(module, stop)


def _by_name(members: list[tuple[str, T]], what: str) -> dict[str, T]:
    named: dict[str, T] = {}
    for name, member in members:
        if named.setdefault(name, member) is not member:
            raise HoldfastError(
                f"two {what} are called {name!r}: {_home(named[name])} and {_home(member)}; rename one of them"
            )
    return dict(sorted(named.items()))


def _home(member: Any) -> str:
    return f"{member.__module__}.{member.__qualname__}" if isclass(member) else str(member.__name__)


_SINCE = "was renamed {new} and goes in version 0.5"


class OldName:
    """Old name of a member of a class; reading it warns and gives the new one.

    Example:
        >>> class Drawing(OldNames):
        ...     colours = 3
        ...     colors = OldName("colours")
        >>> class Theirs(Drawing):
        ...     colors = 4
        >>> Theirs.colours
        4
    """

    def __init__(self, new: str) -> None:
        self.new, self.old = new, ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.old = name

    def __get__(self, instance: object, owner: type) -> Any:
        warn_of_old_name(f"{owner.__name__}.{self.old}", self.new)
        return getattr(owner if instance is None else instance, self.new)


class OldNames:
    """Base class whose subclasses may define members by their old names."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name, value in tuple(vars(cls).items()):
            inherited = next((vars(base)[name] for base in cls.__mro__[1:] if name in vars(base)), None)
            if isinstance(inherited, OldName):
                warn_of_old_name(f"{cls.__name__}.{name}", inherited.new)
                setattr(cls, inherited.new, value)
                delattr(cls, name)  # else reading the old name would not warn


def warn_of_old_name(old: str, new: str) -> None:
    """Warn that ``old`` is now called ``new``."""
    warnings.warn(f"{old} {_SINCE.format(new=new)}", DeprecationWarning, stacklevel=3)
