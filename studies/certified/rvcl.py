"""Certified robustness of contrastive encoders, as RVCL measures it: ``python -m studies.certified.rvcl TRAIN TEST``.

After Wang and Liu 2022, https://proceedings.mlr.press/v162/wang22q.html, with the parts (``--only``)

    strength    SimCLR and RoCL (SimCLR with an adversary on its loss) at several eps of training: average certified radius
                without labels and that of a linear head (figure 4 a), accuracy of a probe, clean and attacked (figure 4 c),
                certified and robust instance accuracy (tables 1 and E.2)
    negatives   the average certified radius over more and fewer negatives K (figure 7, right)
    dimension   the average certified radius of codes of more and fewer dimensions (figure 7, left)

Certified numbers are proved and can only be too low; attacked ones can only be too high. All eps are in units of pixels in
[0, 1]. The optimiser keeps its learning rate, and the attack of training steps 2.5 eps / steps, since the paper's 0.007
cannot cross its ball on MNIST.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import holdfast as hf
from holdfast import data
from studies import common
from studies.common import OPTIMISED, Found, Results, said, table

ARCHITECTURES = ("base", "cnn-a")
STRENGTHS = (0.0, 0.1, 0.2, 0.3)
NEGATIVES = (1, 5, 10, 20, 50)
DIMENSIONS = (25, 50, 100, 150, 250)
FEATURES = 100
"""Of the architectures of the paper."""
PROBE = "knn:k=20"
PGD = "pgd:steps=20,stride=0.125"
"""The paper's attack on accuracy."""
SEARCH: dict[str, Any] = {"attack": "adaptive:restarts=1,steps=25", "tolerance": 1e-3}
"""Of radii: an attack and a search that take a third of the time of the evaluations' own."""
K = 10
RADII = ("certified radius", "attacked radius")
HEADS = ("architecture", "eps of training")
QUICK = {
    "epochs": 5,
    "images": 1000,
    "measured": 300,
    "certified": 10,
    "batch": 128,
    "architectures": ["cnn-a"],
    "strengths": [0.0, 0.1, 0.3],
    "negatives": [1, 5, 10],
    "dimensions": [25, 250],
}


@dataclass(frozen=True)
class Case:
    """An encoder: its architecture, how wide its codes are, and the eps of its training, 0 for SimCLR."""

    architecture: str
    eps: float
    features: int = FEATURES

    def __str__(self) -> str:
        return f"{self.architecture}, {self.features} features, eps {self.eps:g}"

    def named(self, part: str) -> list[str]:
        """Return what its row in the table of a part begins with."""
        return [self.architecture, f"{self.eps:g}", *([str(self.features)] if part == "dimension" else [])]


@dataclass(frozen=True)
class Study:
    """Where everything is and how large it is."""

    taught: str
    tested: str
    out: Path
    size: int
    channels: int
    augmentation: str
    epochs: int
    images: int
    measured: int
    certified: int
    batch: int
    steps: int
    tested_eps: tuple[float, ...]

    @cached_property
    def bank(self) -> hf.Images:
        """Return the labelled images that the probe learns from."""
        return data.load(self.taught, hf.Domain((self.channels, self.size, self.size)), limit=self.images)

    def encoder(self, case: Case, seed: int) -> hf.Encoder:
        """Return the encoder of ``case``, trained now if it has not been yet."""
        folder = self.out / "encoders" / f"{common.plain(str(case))}-{seed}"
        if not (folder / "card.json").exists():
            recipe = {
                "objective": "simclr",
                "architecture": f"{case.architecture}:features={case.features}",
                "augmentation": self.augmentation,
                "adversary": f"loss:ball=linf:{case.eps},steps={self.steps}" if case.eps else "none",
                **OPTIMISED,
                "batch": self.batch,
                "epochs": self.epochs,
                "seed": seed,
            }
            place: dict[str, Any] = {"size": self.size, "channels": self.channels, "limit": self.images, "out": folder}
            hf.train(recipe, self.taught, progress=False, **place)
        return hf.load_encoder(f"trained:{folder}")

    def evaluate(self, encoder: hf.Encoder, settings: dict[str, dict[str, Any]], limit: int, **more: Any) -> Any:
        """Return what the evaluations named in ``settings`` find."""
        asked: dict[str, Any] = {"only": [*settings], "settings": settings, "suite": "standard", "limit": limit}
        return hf.evaluate(encoder, self.tested, progress=False, **asked, **more)

    def radius(self, encoder: hf.Encoder, negatives: int) -> Found:
        """Return the average certified and attacked radius over ``negatives`` other images of each image."""
        settings = {"certified-radius": {"samples": self.certified, "negatives": negatives, **SEARCH}}
        # One more image than negatives, so that each image has enough others.
        found = self.evaluate(encoder, settings, max(self.certified, negatives + 1))["certified-radius"]
        return {
            "certified radius": found.estimate("average_certified_radius").value,
            "attacked radius": found.estimate("average_attacked_radius").value,
        }


def strength(study: Study, case: Case, seed: int) -> Found:
    """Return radii, instance accuracies and the accuracy of a probe."""
    encoder = study.encoder(case, seed)
    found = dict(study.radius(encoder, K))
    balls = [f"linf:{eps}" for eps in study.tested_eps]
    own: dict[str, dict[str, Any]] = {
        "instance-accuracy": {"samples": study.certified, "negatives": K, "balls": balls},
        "linear-radius": {"samples": study.certified, **SEARCH},
    }
    run = study.evaluate(encoder, own, max(study.certified, K + 1), bank=study.bank)
    found["linear certified radius"] = run["linear-radius"].estimate("average_linear_radius").value
    attacked: dict[str, dict[str, Any]] = {
        "probe-accuracy": {"probes": PROBE},
        "robust-accuracy": {"probes": PROBE, "balls": balls, "attacks": PGD},
    }
    probed = study.evaluate(encoder, attacked, study.measured, bank=study.bank)
    found["accuracy"] = probed["probe-accuracy"].estimate("top1_accuracy", probe=PROBE).value
    for eps, ball in zip(study.tested_eps, balls, strict=True):
        found[f"certified, {eps:g}"] = lowest(run["instance-accuracy"], "certified_instance_accuracy", ball)
        found[f"robust, {eps:g}"] = lowest(run["instance-accuracy"], "robust_instance_accuracy", ball)
        found[f"attacked accuracy, {eps:g}"] = lowest(probed["robust-accuracy"], "robust_accuracy", ball)
    return found


def lowest(result: hf.Result, quantity: str, ball: str) -> float:
    """Return the least of what several attacks left, which all of them bound."""
    return min(one.value for one in result.estimates if one.quantity == quantity and one.conditions["ball"] == ball)


def negatives(study: Study, counts: Sequence[int], case: Case, seed: int) -> Found:
    """Return the average radii over each of several numbers of negatives."""
    encoder = study.encoder(case, seed)
    return {f"{name}, {k}": value for k in counts for name, value in study.radius(encoder, k).items()}


def dimension(study: Study, case: Case, seed: int) -> Found:
    """Return the average radii over ten negatives."""
    return study.radius(study.encoder(case, seed), K)


def cases(part: str, architectures: Sequence[str], strengths: Sequence[float], dimensions: Sequence[int]) -> list[Case]:
    """Return what is to be measured for a part of the study; the two on sensitivity look at one architecture."""
    if part == "strength":
        return [Case(name, eps) for name in architectures for eps in strengths]
    widths = dimensions if part == "dimension" else [FEATURES]
    return [Case(architectures[-1], eps, width) for eps in sensitive(strengths) for width in widths]


def sensitive(strengths: Sequence[float]) -> list[float]:
    """Return at which eps of training the sensitivity is looked at: the first two."""
    return [*strengths[:2]]


def conclude(
    results: Results, planned: Mapping[str, Sequence[Case]], tested: Sequence[float], counts: Sequence[int], seeds: int
) -> Iterator[str]:
    """Yield the tables of the parts of which anything was found: means over seeds, each with Student's 95% interval."""

    def rows(part: str, quantities: Sequence[str]) -> list[list[str]]:
        found = {case: [results.values(f"{part}: {case}", one, seeds) for one in quantities] for case in planned[part]}
        return [[*case.named(part), *map(said, values)] for case, values in found.items()]

    if results.has("strength"):
        accuracies = [f"attacked accuracy, {eps:g}" for eps in tested]
        shown = [*RADII, "linear certified radius", "accuracy", *accuracies]
        yield from table(
            f"Radii over {K} negatives, and accuracy of {PROBE}", [*HEADS, *shown], rows("strength", shown)
        )
        shown = [f"{kind}, {eps:g}" for eps in tested for kind in ("certified", "robust")]
        yield from table("Instance accuracy, proved and attacked", [*HEADS, *shown], rows("strength", shown))
    if results.has("negatives"):
        for kind in RADII:
            heads = [*HEADS, *(f"K = {k}" for k in counts)]
            shown = [f"{kind}, {k}" for k in counts]
            yield from table(f"Average {kind} over K negatives", heads, rows("negatives", shown))
    if results.has("dimension"):
        heads = [*HEADS, "features", *RADII]
        yield from table(f"Average radii over {K} negatives by width of the codes", heads, rows("dimension", RADII))


def main(given: Sequence[str] | None = None) -> None:
    """Train, certify and print the tables."""
    made = common.sized(common.parser(__doc__, "runs/rvcl"))
    made.add_argument("--augmentation", help="by default rvcl-mnist-view of gray images, else rvcl-cifar-view")
    made.add_argument("--architectures", nargs="*", default=[*ARCHITECTURES], help="the last one is varied")
    made.add_argument("--strengths", nargs="*", type=float, default=[*STRENGTHS], help="eps of training; 0 is SimCLR")
    made.add_argument("--tested", nargs="*", type=float, default=[0.05, 0.1], help="eps at which pairs are tested")
    made.add_argument("--negatives", nargs="*", type=int, default=[*NEGATIVES])
    made.add_argument("--dimensions", nargs="*", type=int, default=[*DIMENSIONS])
    made.add_argument("--certified", type=int, default=100, help="images of TEST with certificates")
    made.add_argument("--steps", type=int, default=10, help="of the attack in training")
    parts = ("strength", "negatives", "dimension")
    made.add_argument("--only", nargs="*", default=[*parts], choices=parts, help="parts to run; all are concluded")
    asked = common.read(made, QUICK, given)
    view = asked.augmentation or ("rvcl-mnist-view" if asked.channels == 1 else "rvcl-cifar-view")
    same = ("out", "size", "channels", "epochs", "images", "measured", "certified", "batch", "steps")
    study = Study(
        taught=asked.train,
        tested=asked.test,
        augmentation=view,
        tested_eps=tuple(asked.tested),
        **{name: getattr(asked, name) for name in same},
    )
    work: dict[str, Callable[[Case, int], Found]] = {
        "strength": partial(strength, study),
        "negatives": partial(negatives, study, asked.negatives),
        "dimension": partial(dimension, study),
    }
    results = Results(study.out, {**asdict(study), "out": None, "negatives": asked.negatives})
    planned = {part: cases(part, asked.architectures, asked.strengths, asked.dimensions) for part in parts}
    results.run({part: work[part] for part in asked.only}, planned, asked.seeds)
    lines = [*conclude(results, planned, asked.tested, asked.negatives, asked.seeds)]
    lines += results.missing(planned, asked.seeds)
    common.publish(lines, study.out)


if __name__ == "__main__":
    main()
