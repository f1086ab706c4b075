"""How often intervals hold the truth of a population that is measured once, and from which runs are drawn again and again.

``python -m benchmarks.statistics.coverage_draws --replications 200``

For evaluations whose values an image has by itself: given the encoder, and what was learned from a bank. The population is
the images at hand, each as likely as the others in every place of a run, so its truth is known: what the evaluation says of
all of them. Images come in pairs, each with its mirror image, and so do encoders: the twin of an encoder sees the mirror
image, so both have the same truth, though they differ on every image, and any verdict between them is wrong.

The fragile encoder is a steep random network; the robust one hardly notices most changes. Geometry depends on the
images together: its runs are fresh images of the same law, its truth the mean over them. With ``--fresh`` so are those of
every evaluation, given the bank.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.statistics.coverage import ATTACK, HEAD, Key, Row, Seen, Tally, bare, key, line, rows
from holdfast.core.balls import Linf
from holdfast.core.divergences import Cosine, L2Distance
from holdfast.core.encoder import Dense, Domain, Encoder
from holdfast.core.images import Images
from holdfast.core.run_settings import RunSettings
from holdfast.measure.evaluation import Evaluation
from holdfast.measure.population import Population
from holdfast.probes.neighbours import Knn
from holdfast.run.catalog import evaluations
from holdfast.transforms.base import Transform

SIDE, LATENT, CLASSES, CHANNELS, FEATURES = 8, 6, 5, 4, 16
POOL, FEW, BANK = 2000, 300, 200
"""Images of the population, of the population of evaluations that are slow, and of the bank."""
SLOW = ("center-smoothing", "smoothed-retrieval", "randomized-smoothing", "linear-radius")
DRAWN = (
    "alignment", "center-smoothing", "common-corruptions", "common-perturbations", "corruption-error", "corruption-test",
    "grad-cam", "linear-radius", "patch-retrieval", "probe-accuracy", "randomized-smoothing", "robust-accuracy",
    "smoothed-retrieval",
)  # fmt: skip
"""Evaluations whose values an image has by itself."""
DENSE, TOKENS, FARTHER = ("patch-retrieval",), 16, 4
"""Evaluations of patches, which get an encoder with so many tokens and are attacked in a ball so many times as large: few
are lost in smaller ones, and bounds that allow for losses not seen cover more than they promise."""
STRETCHED = ("smoothed-retrieval",)
"""Evaluations that compare an image with those that follow it in the run's order, which are drawn with it."""
FRESH = ("geometry",)
"""Evaluations of all images together."""
MOST = 1000
"""Images of a run, at most: more only bring intervals nearer to what large samples promise."""


@dataclass(frozen=True)
class Law:
    """Where images and encoder come from, and how much images are changed."""

    apart: float
    """How far the centres of classes are."""
    steepness: float
    """Of the encoder: where small, it is nearly linear."""
    radius: float
    noise: float
    kinds: tuple[str, ...]
    severities: tuple[int, ...]
    edits: tuple[str, ...]

    def images(self, count: int, seed: int) -> Images:
        """Return ``count`` images around the centres of classes, every second the mirror image of the one before it."""
        fixed, fresh = torch.Generator().manual_seed(0), torch.Generator().manual_seed(seed)
        centres, mixing = torch.randn(CLASSES, LATENT, generator=fixed), torch.randn(LATENT, SIDE**2, generator=fixed)
        labels = torch.randint(CLASSES, (count // 2,), generator=fresh)
        latent = self.apart * centres[labels] + 0.6 * torch.randn(count // 2, LATENT, generator=fresh)
        pixels = torch.sigmoid(latent @ mixing / 2).reshape(-1, 1, SIDE, SIDE)
        both = torch.stack([pixels, pixels.flip(-1)], 1).flatten(0, 1)
        return Images(both, [f"{seed}-{k}" for k in range(len(both))], labels.repeat_interleave(2), "simulated")

    def independent(self, count: int, seed: int) -> Images:
        """Return images of which no two belong together: one of each pair, the mirror image or the other."""
        both, fresh = self.images(2 * count, seed), torch.Generator().manual_seed(seed)
        return both[(2 * torch.arange(count) + torch.randint(2, (count,), generator=fresh)).tolist()]

    def encoder(self, mirrored: bool, dense: bool = False) -> Encoder:
        """Return the encoder, or its twin, which sees the mirror image of each image; ``dense``: of tokens."""
        fixed = torch.Generator().manual_seed(1)
        first, last = nn.Conv2d(1, CHANNELS, 3, padding=1), nn.Linear(CHANNELS * SIDE**2, FEATURES)
        assert first.bias is not None
        with torch.no_grad():
            first.weight.copy_(self.steepness * torch.randn(first.weight.shape, generator=fixed))
            first.bias.copy_(-first.weight.sum((1, 2, 3)) / 2)  # so that grey is in the middle
            last.weight.copy_(torch.randn(last.weight.shape, generator=fixed) / SIDE)
            last.bias.zero_()
            if mirrored:
                first.weight.copy_(first.weight.flip(-1))
                last.weight.copy_(last.weight.unflatten(1, (CHANNELS, SIDE, SIDE)).flip(-1).flatten(1))
        module: nn.Module = nn.Sequential(first, nn.Tanh(), nn.Flatten(), last).eval()
        if dense:  # the last layer for each patch of two by two alone
            patches = nn.Unfold(2, stride=2)
            rows = Rows(nn.Sequential(first, nn.Tanh(), patches), last.weight[:, : 4 * CHANNELS].contiguous())
            module = Dense(rows.eval(), TOKENS)
        return Encoder(module, "mirrored" if mirrored else "straight", Domain((1, SIDE, SIDE)))


class Rows(nn.Module):
    """Tokens (b, t, e): the columns that ``columns`` returns, each times ``weight``."""

    def __init__(self, columns: nn.Module, weight: Tensor) -> None:
        super().__init__()
        self.columns, self.weight = columns, nn.Parameter(weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.columns(x).transpose(1, 2) @ self.weight.T


LAWS = {
    "fragile": Law(
        1.0, 3.0, 0.02, 0.25, ("gaussian-noise-c", "contrast-c"), (1, 3), ("noise:0.1", "noise:0.3", "contrast:0.5")
    ),
    "robust": Law(2.0, 0.3, 0.01, 0.05, ("gaussian-noise-c",), (1, 2), ("noise:0.02", "noise:0.05", "contrast:0.9")),
}


def measured(law: Law, name: str) -> Evaluation:
    """Return an evaluation that costs little: one probe and divergence, weak attacks, few changes."""
    edits = tuple(map(Transform.read, law.edits))
    given: dict[str, Any] = {
        "balls": (Linf(law.radius * (FARTHER if name in DENSE else 1)),), "attacks": (ATTACK,), "attack": ATTACK,
        "divergences": (L2Distance() if name in SLOW else Cosine(),), "probes": (Knn(),), "reference": 300,
        "kinds": law.kinds, "severities": law.severities, "corruptions": edits[::2], "permutations": 1, "views": edits,
        "edits": ("noise",), "chained": 1, "clusters": 1, "change": edits[0],
        "sigma": law.noise, "selection": 100, "copies": 200, "others": 60, "slack": 0.2, "radii": (law.noise / 2,),
        "tolerance": 0.01, "rivals": 1,
    }  # fmt: skip
    kind = evaluations()[name]
    fitting = {field: value for field, value in given.items() if field in kind.__dataclass_fields__}
    return kind(**{**fitting, "samples": POOL})


def sizes(name: str, most: int = MOST) -> list[int]:
    """Return how many images the suites look at, ``quick`` and standard; 200 first where both look at very many."""
    kind = evaluations()[name]
    default = vars(kind())["samples"]
    quick = kind.sizes.quick.get("samples", default)
    return sorted({min(count, most) for count in ((200, most) if quick > most else (quick, default))})


def wholes(law: Law, name: str) -> list[Seen]:
    """Return what an evaluation sees of all images of the population, by the encoder of a law and by its twin."""
    images = law.images(FEW if name in SLOW else POOL, 1)
    own, twin = (
        Population(
            one,
            images,
            RunSettings(),
            bank=None if name in STRETCHED else Population(one, law.images(BANK, 2), RunSettings()),
        )
        for one in (law.encoder(mirrored, name in DENSE) for mirrored in (False, True))
    )
    seen = Seen.of(measured(law, name), own)
    if name in STRETCHED:
        return [seen, Seen.of(seen.evaluation, twin)]
    # With its noise mirrored as well, the twin sees of each image what its encoder sees of the mirror image: exactly
    # the same truth, where fresh noise would leave a difference that a run of half the population's size finds.
    mirrored = torch.arange(len(images)) ^ 1
    observed = {name: values[mirrored] for name, values in seen.observed.items()}
    return [seen, Seen(seen.evaluation, twin, observed, seen.like.model_copy(update={"encoder": twin.encoder_info}))]


def from_population(seen: Sequence[Seen], count: int, replications: int) -> tuple[Tally, dict[Key, float]]:
    """Return what draws of ``count`` images say, and what all images do."""
    tally, images = Tally(), len(seen[0].population.images)
    stretched, rng = seen[0].evaluation.name in STRETCHED, np.random.default_rng(count)
    for _ in range(replications):
        if stretched:
            start = int(rng.integers(images - count))
            tally.add([one.stretch(start, count) for one in seen])
        else:
            chosen = sorted(rng.integers(images, size=count).tolist())
            tally.add([one.at(chosen) for one in seen])
    every = [one.at(range(images)) for one in seen]
    truths: dict[Key, list[float]] = {}
    for result in every:
        for estimate in result.estimates:
            truths.setdefault(key(result.evaluation, estimate), []).append(estimate.value)
    return tally, {where: float(np.mean(values)) for where, values in truths.items()}


def of_fresh_images(law: Law, name: str, count: int, replications: int) -> tuple[Tally, dict[Key, float]]:
    """Return what runs of ``count`` fresh images say, and of numbers that are known from very many images what those do."""
    tally, twins = Tally(), [law.encoder(mirrored, name in DENSE) for mirrored in (False, True)]
    evaluation = measured(law, name)
    bank = law.images(BANK, 2)
    for replication in range(replications):
        images = law.independent(count, 10 + replication)
        tally.add([bare(evaluation(twin, images, bank=bank)) for twin in twins])
    if name not in FRESH:
        return tally, {}
    many = evaluation(twins[0], law.independent(8 * MOST, 1))
    return tally, {key(name, one): one.value for one in many.estimates if one.quantity == "rankme"}


def simulated(
    laws: Sequence[str], names: Sequence[str], replications: int, most: int = MOST, fresh: bool = False
) -> Iterator[Row]:
    """Yield the table; with ``fresh``, of fresh images for every run."""
    for name in names:
        for law in laws:
            of_fresh = partial(of_fresh_images, LAWS[law], name)
            drawing = of_fresh if fresh or name in FRESH else partial(from_population, wholes(LAWS[law], name))
            for count in sizes(name, most):
                yield from rows(law, count, *drawing(count, replications), replications)


def main() -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replications", type=int, default=200)
    parser.add_argument("--laws", nargs="+", default=list(LAWS), choices=list(LAWS))
    parser.add_argument("--only", nargs="+", default=[*DRAWN, *FRESH], help="evaluations", choices=[*DRAWN, *FRESH])
    parser.add_argument("--most", type=int, default=MOST, help="images of a run, at most")
    parser.add_argument("--fresh", action="store_true", help="fresh images for every run, measured anew")
    given = parser.parse_args()
    print(HEAD)
    for row in simulated(given.laws, given.only, given.replications, given.most, given.fresh):
        print(line(row), flush=True)


if __name__ == "__main__":
    main()
