"""What the agreement study measures without labels: one headline number of each family of measures.

Quantities, settings and images were fixed before any result was looked at. The settings are a fraction of the library's
defaults, for two cores serve the whole zoo; what that costs in precision, the intervals show.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

import holdfast as hf
from holdfast.core.records import Result, Series
from studies.agreement.members import Member
from studies.agreement.zoo import Zoo

IMAGES, ATTACKED, FEW = 500, 150, 40
"""Test images, those of them that are attacked, and those that smoothing and gradients are sampled at."""
ATTACK = "adaptive:restarts=1,steps=10"
LADDERS = {
    "mnist": (0.02, 0.05, 0.1, 0.2, 0.3, 0.4),
    "cifar10": tuple(k / 255 for k in (1, 2, 4, 8, 16, 32)),
    "fashion": (0.01, 0.02, 0.05, 0.1, 0.2, 0.3),
    "photographs": tuple(k / 255 for k in (0.1, 0.2, 0.4, 0.8, 1.6, 3.2)),
}
RUNGS = 6
BALLS = {"mnist": 0.1, "cifar10": 4 / 255, "fashion": 0.05, "photographs": 0.5 / 255}
CERTIFIED = {
    "method": "crown",
    "samples": 6,
    "negatives": 1,
    "tolerance": 1e-2,
    "attack": "adaptive:restarts=1,steps=10",
}
SMOOTHED = {
    "samples": 20,
    "selection": 100,
    "copies": 1000,
    "others": 300,
    "divergences": ["l2"],
    "slack": 0.2,
    "attack": "adaptive:restarts=1,steps=1",
}
Values = Float[np.ndarray, "*b n"]
Reduced = Float[np.ndarray, "*b"]
Reduce = Callable[[Values], Reduced]
"""Of images, the last axis, to one number."""


def mean(values: Values) -> Reduced:
    """Return the mean of the defined values, nan if there are none."""
    known = ~np.isnan(values)
    count = known.sum(-1)
    return np.divide(np.where(known, values, 0.0).sum(-1), count, out=np.full(count.shape, np.nan), where=count > 0)


def median(values: Values) -> Reduced:
    """Return the median of the defined values."""
    return (np.nanmedian if np.isnan(values).any() else np.median)(values, axis=-1)


def median_rung(values: Values) -> Reduced:
    """Return where on the ladder half of the images have fallen, in rungs, linear between rungs.

    ``values`` are the rungs that each image survived, of ``RUNGS``. Where more than half survive all of them, the share
    beyond one half is added, so that there is no ceiling.

    Example:
        >>> print(median_rung(np.array([[0.0, 1.0, 1.0, 2.0], [0.0, 0.0, 0.0, 0.0]])))
        [1.5 0.5]
    """
    known = np.maximum(1, (~np.isnan(values)).sum(axis=-1))
    alive = np.stack([(values >= rung).sum(axis=-1) / known for rung in range(1, RUNGS + 1)], axis=-1)
    alive = np.concatenate([np.ones((*alive.shape[:-1], 1)), alive], axis=-1)
    after = np.where((alive <= 0.5).any(axis=-1), (alive <= 0.5).argmax(axis=-1), RUNGS)
    high, low = (np.take_along_axis(alive, (after - k)[..., None], axis=-1)[..., 0] for k in (1, 0))
    between = after - 1 + (high - 0.5) / np.maximum(high - low, 1e-12)
    return np.where(low <= 0.5, between, RUNGS + low - 0.5)


REDUCED: Mapping[str, Reduce] = {"mean": mean, "median": median, "median rung": median_rung}


PAGES = {
    "breakaway": "attacked.md#breakaway",
    "displacement": "attacked.md#displacement",
    "overlap": "attacked.md#overlap",
    "certified-radius": "certified.md#certified-radius",
    "center-smoothing": "smoothing.md",
    "spade": "space.md#spectral-stretch-spade",
    "synbench": "space.md#synbench",
    "clever": "space.md#local-lipschitz-estimates-clever",
    "common-perturbations": "everyday.md",
    "common-corruptions": "everyday.md",
    "geometry": "space.md#geometry",
}
"""Section of the documentation on each evaluation, in ``docs/evaluations``."""


@dataclass(frozen=True)
class Headline:
    """One number of a measure; ``sign`` is -1 where a small one is said to be robust."""

    name: str
    evaluation: str
    quantity: str
    sign: int
    series: str = ""
    """What is known of each image, "" where no part of the number belongs to one."""
    statistic: str = "mean"
    says: str = ""

    @property
    def page(self) -> str:
        """Return the section of the documentation on it."""
        return PAGES[self.evaluation]


HEADLINES = (
    Headline("attack radius", "breakaway", "", 1, "nearest_neighbour_kept", "median rung",
             "median radius at which an attack makes another image the nearest"),
    Headline("universal quantile", "displacement", "universal_quantile", -1, "universal_quantile", "median",
             "fraction of pairs no farther apart than an attack moves the embedding"),
    Headline("overlap", "overlap", "adversarial_margin", 1, "adversarial_margin", "median",
             "margin left between two images attacked towards each other"),
    Headline("certified radius", "certified-radius", "average_certified_radius", 1, "certified_radius", "mean",
             "proved radius within which an image matches no other image (CROWN)"),
    Headline("center smoothing", "center-smoothing", "certified_universal_quantile", -1, "certified_universal_quantile",
             "median", "fraction of pairs within the certified displacement of the smoothed embedding"),
    Headline("SPADE", "spade", "riemannian_distance", -1, says="Riemannian distance of the graphs of inputs and embeddings"),
    Headline("SynBench", "synbench", "synbench_score", 1, says="separability of synthetic classes, eps 0, threshold 0.8"),
    Headline("CLEVER", "clever", "clever_score", 1, "clever_score", "mean",
             "distance to three other images, by sampled gradients"),
    Headline("divergence radius", "common-perturbations", "", -1, "divergence_radius", "mean",
             "radius of the ball around the embeddings of one image under edits"),
    Headline("corruption retrieval", "common-corruptions", "corruptions_survived", 1, "corruptions_survived", "mean",
             "fraction of corruptions after which an image keeps its own match"),
    Headline("uniformity", "geometry", "uniformity", 1, "uniformity_influence", "mean",
             "how evenly clean embeddings cover the sphere"),
    Headline("RankMe", "geometry", "rankme", 1, says="effective dimensions of clean embeddings"),
    Headline("hubness", "geometry", "hub_skewness", -1, "hub_skewness_influence", "mean",
             "skewness of how often each image is a neighbour"),
)  # fmt: skip
"""One for each family. ``sign * value`` is larger where the measure says more robust."""
RADIUS, CLEAN, SCALE = "training radius", "clean accuracy", "median distance"
BASELINES = (
    Headline(RADIUS, "", "", 1, says="ε of the attacks in its recipe, 0 without adversarial training"),
    Headline(CLEAN, "", "", 1, says="accuracy of both probes on clean images; needs labels"),
    Headline(SCALE, "", "", 1, says="median distance of two clean embeddings; needs neither labels nor attacks"),
)
"""What is known without any measure of robustness: a measure is worth what it says beyond these."""
JUDGED = (*BASELINES, *HEADLINES)
REAL: dict[str, dict[str, Any]] = {
    "breakaway": {"samples": 40},
    "displacement": {"samples": 40},
    "overlap": {"samples": 40},
    "center-smoothing": {"samples": 10, "copies": 300, "others": 143, "sigma": 0.1, "radii": [0.05]},
    "spade": {"samples": 144},
    "clever": {"random": 10},
    "common-perturbations": {"samples": 10},
    "common-corruptions": {"samples": 40},
}
"""What is smaller for networks of a hundred times the work, of which nothing is proved in a time that many are given."""
KINDS = ("gaussian-noise-c", "defocus-blur-c", "fog-c", "contrast-c", "jpeg-compression-c")
EDITS = ("jpeg", "brightness", "contrast", "blur", "noise", "rotation", "crop")


def settings(dataset: str) -> dict[str, dict[str, Any]]:
    """Return the settings of each evaluation for a data set."""
    ball, ladder = [f"linf:{BALLS[dataset]:.6g}"], [f"linf:{eps:.6g}" for eps in LADDERS[dataset]]
    attacked = {"attacks": [ATTACK], "divergences": ["l2"], "samples": ATTACKED}
    usual: dict[str, dict[str, Any]] = {
        "breakaway": {**attacked, "balls": ladder, "pairwise": ATTACK},
        "displacement": {**attacked, "balls": ball},
        "overlap": {**attacked, "balls": ball},
        "certified-radius": CERTIFIED,
        "center-smoothing": SMOOTHED,
        "spade": {"samples": 250, "certify": False, "subsets": 0},
        "synbench": {"samples": 256, "thresholds": [0.8], "budgets": [0.0]},
        "clever": {"balls": ["linf:0.5"], "batches": 10, "draws": 16, "random": 15, "guided": 0},
        "common-perturbations": {"edits": EDITS, "chained": 1, "samples": 25},
        "common-corruptions": {"kinds": KINDS, "severities": [3], "samples": ATTACKED},
        "geometry": {},
    }
    if dataset != "photographs":
        return usual
    return {name: {**given, **REAL.get(name, {})} for name, given in usual.items() if name != "certified-radius"}


def measured(zoo: Zoo, member: Member, encoder: hf.Encoder, out: Path) -> tuple[dict[str, float], dict[str, Values]]:
    """Return each headline number of an encoder, nan where there is none, and what is known of it image by image."""
    chosen = settings(member.dataset)
    run = hf.evaluate(
        encoder,
        zoo.measured(member.dataset, IMAGES),
        only=list(chosen),
        settings=chosen,
        suite="standard",
        seed=0,
        out=out,
        progress=False,
    )
    values: dict[str, float] = {}
    series: dict[str, Values] = {}
    for headline in HEADLINES:
        result = next((one for one in run.results if one.evaluation == headline.evaluation), None)
        values[headline.name], parts = (nan, None) if result is None else number(headline, result, member.dataset)
        if parts is not None:
            series[headline.name] = parts
    values[SCALE] = median_distance(zoo, member, encoder)
    return values, series


def number(headline: Headline, result: Result, dataset: str) -> tuple[float, Values | None]:
    """Return one headline number and, where it is made of them, the values of the images."""
    if not headline.series:
        return own(result, headline.quantity), None
    if headline.name == "attack radius":
        parts = rungs(result, dataset)
    elif headline.name == "divergence radius":
        families = [s.values for s in result.findings.series if s.quantity == headline.series]
        parts = np.array(families, dtype=float).mean(axis=0)
    elif headline.name == "CLEVER":
        parts = one(result.findings.series, headline.series, margin="untargeted")
    else:
        parts = one(result.findings.series, headline.series)
    if headline.name == "center smoothing":
        parts = np.nan_to_num(parts, nan=1.0)  # where it abstains, nothing less than everything is proved
    return float(REDUCED[headline.statistic](parts)), parts


def own(result: Result, quantity: str) -> float:
    """Return an estimate of the encoder itself, not of the baselines that stand beside it."""
    found = [one.value for one in result.estimates if one.quantity == quantity and "outputs" not in one.conditions]
    if len(found) != 1:
        raise hf.HoldfastError(f"{len(found)} estimates of {result.encoder.name} are called {quantity}, expected one")
    return found[0]


def rungs(result: Result, dataset: str) -> Values:
    """Return how many rungs of the ladder each image survives: no attack made another image the nearest, there or before."""
    alive, survived = 1.0, 0.0
    for eps in LADDERS[dataset]:
        kept = [
            np.array(s.values, dtype=float)
            for s in result.findings.series
            if s.quantity == "nearest_neighbour_kept" and s.conditions["ball"] == f"linf:{eps:.6g}"
        ]
        alive = np.minimum(alive, np.min(kept, axis=0))
        survived = survived + alive
    return np.asarray(survived)


def median_distance(zoo: Zoo, member: Member, encoder: hf.Encoder) -> float:
    """Return the median distance of two clean codes, the scale that radii and margins may merely repeat."""
    images = zoo.measured(member.dataset, IMAGES)
    with torch.no_grad():
        codes = encoder(images.pixels(range(len(images))))
    return float(torch.pdist(codes.double()).median())


def one(series: Sequence[Series], quantity: str, **conditions: str) -> Values:
    """Return the values of the one series of ``quantity`` under ``conditions``, in the order of the images."""
    found = [s for s in series if s.quantity == quantity and conditions.items() <= s.conditions.items()]
    if len(found) != 1:
        offered = sorted({f"{s.quantity} {s.conditions}" for s in series})
        raise hf.HoldfastError(f"{len(found)} series fit {quantity} {conditions}; there are: {'; '.join(offered)}")
    return np.array(found[0].values, dtype=float)
