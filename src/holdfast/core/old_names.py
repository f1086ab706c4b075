"""Names that members of base classes had until version 0.3: in 0.4 extensions may still define and read them."""

from __future__ import annotations

import warnings
from typing import Any

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
