"""Everything there is, kind by kind, as ``holdfast list`` shows it; ``core.discovery`` finds the members."""

from __future__ import annotations

import inspect

from holdfast.attacks.base import Attack
from holdfast.attacks.presets import kinds
from holdfast.bounds.methods.base import methods
from holdfast.core.balls import BALLS
from holdfast.core.discovery import named_classes
from holdfast.core.divergences import DIVERGENCES
from holdfast.objectives.base import Objective
from holdfast.probes.base import probes
from holdfast.protocol.evaluation import Evaluation
from holdfast.training.adversary import adversaries
from holdfast.training.learner import training_objectives
from holdfast.training.recipe import read_settings, recipes
from holdfast.transforms.base import transforms


def evaluations() -> dict[str, type[Evaluation]]:
    """Return every evaluation by name."""
    from holdfast import evaluations as home

    return named_classes(home, Evaluation)


def attacks() -> dict[str, type[Attack]]:
    """Return every attack by name."""
    return kinds()


def objectives() -> dict[str, type[Objective]]:
    """Return every objective by name."""
    from holdfast import objectives as home

    return named_classes(home, Objective)


def everything() -> dict[str, dict[str, str]]:
    """Return the whole catalogue: for each kind, what each member's name means."""
    from holdfast import data, encoders
    from holdfast.attacks.presets import PRESETS
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
        "bounds": {name: summary(kind) for name, kind in methods().items()},
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
