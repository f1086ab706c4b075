"""Catalogue of all kinds, as ``holdfast list`` shows it, and the suites of evaluations.

The published protocols by name: which evaluations, with which settings. ``report.papers`` has the columns.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from holdfast.attacks.base import Attack
from holdfast.attacks.presets import kinds
from holdfast.bounds.methods.base import methods
from holdfast.core.balls import BALLS
from holdfast.core.discovery import named_classes
from holdfast.core.divergences import DIVERGENCES
from holdfast.core.objective import Objective
from holdfast.measure.evaluation import Evaluation, Sizes
from holdfast.probes.base import probes
from holdfast.training.adversaries.base import adversaries
from holdfast.training.learner import training_objectives
from holdfast.training.recipe import read_settings, recipes
from holdfast.transforms.base import transforms

Settings = Mapping[str, Mapping[str, Any]]

RVCL = {
    "certified-radius": {},
    "linear-radius": {},
    "margin-distribution": {},
    "probe-accuracy": {"probes": ["linear:recipe=rvcl"]},
}
AT_RVCL = {"attacks": ["pgd"], "probes": ["linear:recipe=rvcl"]}
KO_PROBES = {"probes": ["linear", "synbench-robust"]}
CIFAR = 0.225 / 255
"""One step of a pixel in the units of the paper's normalised CIFAR-10 images, as a fraction of the range."""
SMALL, LARGEST = f"linf:{4 * CIFAR:.7f}", f"linf:{16 * CIFAR:.7f}"


def _steps(count: int) -> str:
    """Return the attack of Petrov and Kwiatkowska: fixed steps of .001 and the last iterate."""
    return f"pgd:steps={count},step=0.001,keep=last"


UPGD = tuple(_steps(count) for count in (5, 10, 30, 50))
OF_ONE_ATTACK = {"divergences": ["l2", "linf", "cosine"], "objective": "l2"}
"""Tables 5 to 7: three distances after one attack on l2."""

PROTOCOLS: dict[str, tuple[str, Settings]] = {
    "wang2022": (
        "RVCL on MNIST (Wang and Liu 2022): certified radii, instance accuracy, linear radii, margins",
        {
            **RVCL,
            "instance-accuracy": {"balls": ["linf:0.1"], "generate": "linf:0.3", "negatives": 1},
            "robust-accuracy": {"balls": ["linf:0.15", "linf:0.2"], **AT_RVCL},
        },
    ),
    "wang2022-cifar10": (
        "RVCL on CIFAR-10 (Wang and Liu 2022): the same with the radii of its colour images",
        {
            **RVCL,
            "instance-accuracy": {"balls": [SMALL], "generate": LARGEST, "negatives": 1},
            "robust-accuracy": {"balls": ["linf:8/255", "linf:16/255"], **AT_RVCL},
        },
    ),
    "ko2022": (
        "SynBench (Ko et al. 2022): the score of each budget, standard and robust linear probes, corruptions",
        {
            "synbench": {"mode": "published"},
            "probe-accuracy": KO_PROBES,
            "robust-accuracy": {"balls": ["l2:0.5"], "attacks": ["pgd:steps=10"], **KO_PROBES},
            "corruption-error": KO_PROBES,
        },
    ),
    "petrov2022": (
        "robustness without labels (Petrov and Kwiatkowska 2022): quantiles, risks, impersonation, smoothing",
        {
            "displacement": {"attacks": UPGD, **OF_ONE_ATTACK},
            "impersonation": {"attacks": UPGD, **OF_ONE_ATTACK, "probe": "linear:recipe=moco"},
            "breakaway": {"attacks": [_steps(25)], "balls": ["linf:0.05"], "divergences": ["l2"]},
            "overlap": {"attacks": [_steps(10)], "balls": ["linf:0.05"], "divergences": ["l2"]},
            "center-smoothing": {"divergences": ["l2"]},
            "randomized-smoothing": {"probes": ["noise:recipe=moco"]},
            "probe-accuracy": {"probes": ["linear:recipe=moco", "low-pass:50,recipe=moco"]},
        },
    ),
    "zhong2022": (
        "contrastive and supervised encoders (Zhong et al. 2022): accuracy lost to corruptions, the space, Grad-CAM",
        {"corruption-test": {"probes": ["knn", "linear"]}, "geometry": {}, "alignment": {}, "grad-cam": {}},
    ),
    "cheng2021": (
        "SPADE (Cheng et al. 2021): spectral scores, hops of the worst edges, CLEVER at worst, random and best images",
        {
            "spade": {"sweep": [5, 20], "planes": True},
            "clever": {"batches": 500, "draws": 1024, "rivals": 10, "random": 100, "guided": 10, "least": 10}
            | {"gairat": ["linf:8/255"]},
        },
    ),
}


def evaluations() -> dict[str, type[Evaluation]]:
    """Return every evaluation by name."""
    folders = sorted(Path(__file__).parents[1].glob("*/evaluations"))
    topics = tuple(import_module(f"holdfast.{folder.parent.name}.evaluations") for folder in folders)
    return named_classes(topics, Evaluation, "holdfast.evaluations")


def attacks() -> dict[str, type[Attack]]:
    """Return every attack by name."""
    return kinds()


def objectives() -> dict[str, type[Objective]]:
    """Return every objective by name."""
    from holdfast.attacks import objectives as home

    return named_classes(home, Objective, "holdfast.objectives")


def everything() -> dict[str, dict[str, str]]:
    """Return the whole catalogue: for each kind, what each member's name means."""
    from holdfast.attacks.presets import PRESETS
    from holdfast.data import by_name as data
    from holdfast.encoders import builtin
    from holdfast.encoders import by_name as encoders
    from holdfast.encoders.architectures.base import architectures

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
    """Return the first paragraph of the docstring of ``thing``, on one line."""
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())


@dataclass(frozen=True)
class Suite:
    """Purpose of a suite, and its replacements for the evaluations' defaults."""

    meaning: str
    sizes: Callable[[Sizes], Mapping[str, Any]] = lambda sizes: {}
    """Function that picks one of an evaluation's sizes."""
    settings: Settings = field(default_factory=dict)
    """Evaluations of a published protocol with their settings; empty: all evaluations."""


SUITES = {
    "quick": Suite("published and adaptive attacks on few images: minutes, wide intervals", lambda sizes: sizes.quick),
    "standard": Suite("every evaluation with its own defaults: published and adaptive attacks on 1,000 images"),
    "full": Suite(
        "more images, restarts, a score-only attack and scale-free divergences: the numbers to publish",
        lambda sizes: sizes.full,
    ),
    **{name: Suite(meaning, settings=settings) for name, (meaning, settings) in PROTOCOLS.items()},
}
LARGE = 1_000_000
"""Operations per image above which quick reduces the settings on a CPU."""
REACH = 12_000_000
"""Operations per image at which quick gives full counts; twice as many operations get half of them."""
HEAVY = 100_000_000
"""Operations per image above which quick plans ``FORWARDS`` forward passes per evaluation, on average."""
FORWARDS = 780
"""Forward passes of one image that an evaluation of quick asks of a heavy encoder, on average; a gradient counts as three.

Clean embeddings and fits of probes grow with the number of images and come on top. With the 34 built-in evaluations
these are 11 minutes of processor time at 25 ms. An added evaluation brings its own allowance, so no other must shrink.
"""
COUNTS = ("samples", "random")
LEAST = 8


def suite_settings(suite: str, kinds: Collection[type[Evaluation]], operations: int = 0) -> Settings:
    """Return the settings of ``suite`` by evaluation and field; evaluations without an entry keep their defaults.

    The sizes of quick depend on the encoder's ``operations`` per image.

    Example:
        >>> from holdfast.attacks.evaluations.overlap import Overlap
        >>> sizes = (suite_settings("quick", [Overlap], n) for n in (0, 12_000_000, 60_000_000, 10**10))
        >>> [of["overlap"]["samples"] for of in sizes]
        [100, 100, 20, 30]
    """
    chosen = SUITES[suite]
    settings = {kind.name: {**chosen.sizes(kind.sizes), **chosen.settings.get(kind.name, {})} for kind in kinds}
    for kind in kinds if suite == "quick" and operations > LARGE else ():
        counts = {  # in proportion to what the encoder allows
            name: max(LEAST, round(value * share(operations)))
            for name, value in kind.sizes.quick.items()
            if name in COUNTS and isinstance(value, int)
        }
        settings[kind.name] |= {**counts, **kind.sizes.large, **(kind.sizes.heavy if operations >= HEAVY else {})}
    return {name: fields for name, fields in settings.items() if fields}


def left_out(suite: str, kind: type[Evaluation], operations: int) -> bool:
    """Return whether ``suite`` skips this ``kind`` for an encoder with this number of ``operations`` per image."""
    return suite == "quick" and operations > LARGE and kind.sizes.small_only


def most_forwards() -> int:
    """Return the forward passes that quick asks of a heavy encoder at most: ``FORWARDS`` for each of its evaluations."""
    return FORWARDS * sum(not left_out("quick", kind, HEAVY) for kind in evaluations().values())


def share(operations: int) -> float:
    """Return the fraction of its counts that quick asks of a large encoder."""
    return min(1.0, REACH / operations)
