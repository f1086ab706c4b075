"""Everything there is, found rather than listed: to add an evaluation, an attack or an encoder source, add a file.

Packages outside the library add evaluations through the entry-point group ``holdfast.evaluations``.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from holdfast.attacks.base import Attack
from holdfast.attacks.presets import kinds
from holdfast.core.balls import BALLS
from holdfast.core.divergences import DIVERGENCES
from holdfast.core.errors import HoldfastError
from holdfast.objectives.base import Objective
from holdfast.probes.base import probes
from holdfast.protocol.evaluation import Evaluation
from holdfast.training.adversary import adversaries
from holdfast.training.learner import training_objectives
from holdfast.training.recipe import read_settings, recipes
from holdfast.transforms.base import transforms

GROUP = "holdfast.evaluations"


def evaluations() -> dict[str, type[Evaluation]]:
    """Return every evaluation by name, those of other installed packages included."""
    outside = []
    for point in entry_points(group=GROUP):
        try:
            kind = point.load()
        except Exception as error:
            raise HoldfastError(
                f"the evaluation {point.name!r} of an installed package does not load ({error}); "
                f"repair or uninstall the package that names {point.value!r}"
            ) from error
        if not (inspect.isclass(kind) and issubclass(kind, Evaluation)):
            raise HoldfastError(f"the entry point {point.name!r} must name an Evaluation class, got {kind!r}")
        outside.append(kind)
    return _by_name([*_classes(Evaluation, families()), *outside])


def families() -> list[str]:
    """Return the packages of evaluations, one for each family."""
    from holdfast import evaluations as home

    return [f"evaluations.{module.name}" for module in iter_modules(home.__path__) if module.ispkg]


def attacks() -> dict[str, type[Attack]]:
    """Return every attack by name."""
    return kinds()


def objectives() -> dict[str, type[Objective]]:
    """Return every objective by name."""
    return _by_name(_classes(Objective, ("objectives",)))


def everything() -> dict[str, dict[str, str]]:
    """Return the whole catalogue: for each kind, what each member's name means."""
    from holdfast import data, encoders
    from holdfast.attacks.presets import PRESETS
    from holdfast.bounds import METHODS
    from holdfast.encoders import builtin
    from holdfast.encoders.architectures.base import architectures
    from holdfast.execution.request.suites import SUITES

    return {
        "encoders": {name: summary(source) for name, source in sorted(encoders.sources().items())}
        | {f"builtin:{name}": builtin.card(name).objective for name in builtin.names()},
        "images": {name: summary(inspect.getmodule(load)) for name, load in sorted(data.loaders().items())},
        "evaluations": {name: summary(kind) for name, kind in evaluations().items()},
        "attacks": {name: summary(kind) for name, kind in attacks().items()},
        "presets": {
            name: f"{preset.objective} by {preset.attack} in {preset.ball} ({preset.source})"
            for name, preset in PRESETS.items()
        },
        "bounds": {name: summary(kind) for name, kind in METHODS.items()},
        "probes": {name: summary(kind) for name, kind in probes().items()},
        "transforms": {name: summary(kind) for name, kind in transforms().items()},
        "objectives": {name: summary(kind) for name, kind in objectives().items()},
        "balls": {name: summary(kind) for name, kind in BALLS.items()},
        "divergences": {name: summary(kind) for name, kind in DIVERGENCES.items()},
        "training": {name: summary(kind) for name, kind in training_objectives().items()},
        "adversaries": {name: summary(kind) for name, kind in adversaries().items()},
        "architectures": {name: summary(kind) for name, kind in architectures().items()},
        "recipes": {name: str(read_settings(name).get("objective")) for name in recipes()},
        "suites": {name: suite.meaning for name, suite in SUITES.items()},
    }


def summary(thing: object) -> str:
    """Return the first paragraph of what ``thing`` says about itself, on one line."""
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())


def modules(package: str) -> Iterator[ModuleType]:
    """Yield every module of ``holdfast.<package>`` in alphabetical order; none if there is no such package."""
    try:
        home = import_module(f"holdfast.{package}")
    except ModuleNotFoundError as error:
        if error.name != f"holdfast.{package}":
            raise
        return
    for module in sorted(iter_modules(home.__path__), key=lambda module: module.name):
        yield import_module(f"{home.__name__}.{module.name}")


def _classes(base: type, packages: Iterable[str]) -> Iterator[type[Any]]:
    for module in (module for package in packages for module in modules(package)):
        for kind in vars(module).values():
            local = inspect.isclass(kind) and kind.__module__ == module.__name__
            if local and issubclass(kind, base) and not inspect.isabstract(kind) and "name" in vars(kind):
                yield kind


def _by_name(kinds: Iterable[type[Any]]) -> dict[str, type[Any]]:
    named: dict[str, type[Any]] = {}
    for kind in kinds:
        name = str(vars(kind)["name"])
        if name in named and named[name] is not kind:
            raise HoldfastError(
                f"two classes are called {name!r}: {_home(named[name])} and {_home(kind)}; rename one of them"
            )
        named[name] = kind
    return dict(sorted(named.items()))


def _home(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
