"""How often the intervals of SPADE and CLEVER cover, and how often two encoders of equal truth are told apart.

Images are drawn afresh for every replication, by a generator that is symmetric under swapping the two halves of an image.
So an encoder and the same encoder of swapped images have exactly the same expected number, though they differ on every
image: any verdict between them is wrong. The truth that an interval must cover is the expected number at that size, the
mean over all replications. Both are done for a robust encoder, a linear map, and a steep random network.

``python3 -m benchmarks.statistics.coverage_spectral --processes 16 --replications 500`` prints the tables as Markdown.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from math import isfinite, sqrt
from multiprocessing import get_context

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from holdfast.core.balls import Ball
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.images import Images
from holdfast.core.records import Claim, Estimate, Findings, Result, Series
from holdfast.core.run_settings import RunSettings
from holdfast.core.statistics.differences import paired
from holdfast.core.statistics.summaries import Better, summarise
from holdfast.report.comparison.compare import compare
from holdfast.spectral.analysis import TOP, riemannian, scored
from holdfast.spectral.eigen import SCORES, spectrum
from holdfast.spectral.evaluations.clever import Clever
from holdfast.spectral.evaluations.spade import Spectral
from holdfast.spectral.graph_pair import checked, draw
from holdfast.spectral.resistance import one_thread
from holdfast.spectral.spade_findings import assembled
from holdfast.spectral.stability import Subsets, subsets

SIDE, LATENT, CLUSTERS, FEATURES = 8, 6, 5, 16
DOMAIN = Domain((1, SIDE, SIDE))
NOMINAL = 0.95
POOL = 500
"""Images whose CLEVER scores are computed once, and drawn again."""
QUICK = Clever.sizes.quick
LEADING = ("spade_score", "riemannian_distance", "eigenvalue_gap")
"""What follows from the largest eigenvalues alone."""


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(count: int, seed: int) -> Images:
    """Return images near a manifold of few dimensions, in clusters; half of them have their halves swapped."""
    fixed, fresh = generator(0), generator(seed)
    centres, mixing = torch.randn(CLUSTERS, LATENT, generator=fixed), torch.randn(LATENT, SIDE**2, generator=fixed)
    latent = centres[torch.randint(CLUSTERS, (count,), generator=fresh)] + torch.randn(count, LATENT, generator=fresh)
    pixels = torch.sigmoid(latent @ mixing / 2).reshape(count, *DOMAIN.shape)
    swapped = torch.rand(count, generator=fresh) < 0.5
    return Images(torch.where(swapped[:, None, None, None], swap(pixels), pixels), name="simulated")


def swap(pixels: Tensor) -> Tensor:
    """Return the images with their upper and lower halves swapped."""
    return pixels.roll(SIDE // 2, dims=2)


class Swapped(nn.Module):
    """Another module, of swapped images."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, pixels: Tensor) -> Tensor:
        return self.module(swap(pixels))


def weights(rows: int, seed: int) -> Tensor:
    """Return nearly symmetric weights, so that an encoder and its twin see almost the same."""
    own = torch.randn(rows, *DOMAIN.shape, generator=generator(seed))
    return (own + 0.8 * own.roll(SIDE // 2, dims=2)).flatten(1) / SIDE


def module(kind: str) -> nn.Module:
    """Return the ``linear`` (robust) or ``network`` (steep) encoder."""
    first = nn.Linear(SIDE**2, FEATURES if kind == "linear" else 4 * FEATURES)
    with torch.no_grad():
        first.weight.copy_(weights(len(first.weight), 1) * (1 if kind == "linear" else 8))
        first.bias.copy_(-first.weight.sum(1) / 2)  # so that grey is in the middle
    if kind == "linear":
        return nn.Sequential(nn.Flatten(), first).eval()
    second = nn.Linear(4 * FEATURES, FEATURES, bias=False)
    with torch.no_grad():
        second.weight.copy_(torch.randn(second.weight.shape, generator=generator(2)))
    return nn.Sequential(nn.Flatten(), first, nn.Tanh(), second).eval()


def encoders(kind: str) -> tuple[Encoder, Encoder]:
    """Return an encoder and its twin of equal truth."""
    return Encoder(module(kind), kind, DOMAIN), Encoder(Swapped(module(kind)), f"{kind} twin", DOMAIN)


@dataclass(frozen=True)
class Case:
    """An evaluation at a size, and which share of the replications it gets: large ones take long."""

    evaluation: str
    size: int
    share: float

    def result(self, encoder: Encoder, shown: Images, seed: int) -> Result:
        """Return what the evaluation says in suite ``quick``."""
        if self.evaluation == "clever":
            return Clever(**{**QUICK, "random": self.size, "guided": 0})(encoder, shown, RunSettings(seed=seed))
        return (spade_result if self.evaluation == "spade" else eigenvalue_result)(encoder, shown, seed)


CASES = (
    Case("spade", 400, 1.0),
    Case("spade", 1000, 0.5),
    Case("spade", 2000, 0.15),
    Case("clever", 50, 0.6),
    Case("clever", 100, 0.2),
)
EIGENVALUES = tuple(Case("eigenvalues", case.size, 1.0) for case in CASES if case.evaluation == "spade")


def spade_result(encoder: Encoder, shown: Images, seed: int) -> Result:
    """Return the result of SPADE with its default settings, without baselines and groups, which have no such interval."""
    asked = Spectral()
    pixels = shown.pixels(range(len(shown)))
    with torch.no_grad():
        x, y = checked(pixels, encoder.forward(pixels))
    found = scored(draw(x, y, asked.k, asked.graph, asked.repair, seed), seed)
    spread = subsets(x, y, asked.k, asked.graph, asked.subsets, seed, asked.repair)
    return as_spade(assembled(shown.ids, found, spread, {}, {}, {}), encoder, shown)


def eigenvalue_result(encoder: Encoder, shown: Images, seed: int) -> Result:
    """Return the numbers of the largest eigenvalues alone, as ``spade_result`` says them, for a fraction of its time."""
    asked, n = Spectral(), len(shown)
    pixels = shown.pixels(range(n))
    with torch.no_grad():
        x, y = checked(pixels, encoder.forward(pixels))

    def numbers(rows: Int[np.ndarray, "m"] | None) -> dict[str, float]:
        parts = (x, y) if rows is None else (x.subset(rows), y.subset(rows))
        graphs = draw(*parts, asked.k, asked.graph, asked.repair, seed)
        if graphs.split is not None:
            return dict.fromkeys(LEADING, np.inf)
        values = spectrum(graphs.inputs, graphs.outputs, TOP, SCORES, seed).values
        return dict(zip(LEADING, (float(values[0]), riemannian(values), float(values[0] / values[1])), strict=True))

    rng = np.random.default_rng(seed)
    halves = [numbers(np.sort(rng.choice(n, n // 2, replace=False))) for _ in range(asked.subsets)]
    spread = Subsets(n, n // 2, {name: np.array([half[name] for half in halves]) for name in LEADING})
    estimates = [
        Estimate(
            quantity=name, value=value, low=low, high=high, n=n, method=spread.method, unit="", claim=Claim.ESTIMATE,
            of=name, better="lower", statistic="whole",
        )
        for name, value in numbers(None).items()
        for low, high in (spread.interval(name, value),)
    ]  # fmt: skip
    return as_spade(Findings(ids=tuple(shown.ids), series=(), estimates=tuple(estimates)), encoder, shown)


def as_spade(findings: Findings, encoder: Encoder, shown: Images) -> Result:
    """Return ``findings`` with what a comparison asks for, that of a result which costs next to nothing."""
    like, asked = Clever(random=1, guided=0, batches=1, draws=1)(encoder, shown, RunSettings()), Spectral()
    changes = {"evaluation": asked.name, "version": asked.version, "headline": asked.headline, "findings": findings}
    return like.model_copy(update=changes)


@dataclass(frozen=True)
class Number:
    """One printed number of one replication."""

    name: str
    value: float
    low: float
    high: float
    method: str


@dataclass(frozen=True)
class Replication:
    """The numbers of both kinds of encoder on one population, and the verdicts between each and its twin."""

    numbers: dict[str, list[Number]]
    verdicts: dict[str, dict[str, bool]]
    """By kind and name of the number: whether the comparison told the twins apart."""


def name_of(estimate: Estimate) -> str:
    """Return what a number is called in the table."""
    given = [v for k, v in estimate.conditions.items() if k not in ("n", "k")]
    return " ".join([estimate.quantity, *given])


def replicate(case: Case, seed: int) -> Replication:
    """Return the numbers of one fresh population."""
    torch.set_num_threads(1)
    shown = images(4 * case.size if case.evaluation == "clever" else case.size, 1000 + seed)
    numbers: dict[str, list[Number]] = {}
    verdicts: dict[str, dict[str, bool]] = {}
    for kind in ("linear", "network"):
        with one_thread():
            own, twin = (case.result(encoder, shown, seed) for encoder in encoders(kind))
        numbers[kind] = [
            Number(name_of(e), e.value, e.low, e.high, e.method) for e in own.estimates if e.confidence == NOMINAL
        ]
        verdicts[kind] = {
            " ".join([c.quantity, *(v for k, v in c.conditions.items() if k not in ("n", "k"))]): p.difference.outcome
            != "tied"
            for c in compare([own, twin]).contests
            for p in c.pairs
        }
    return Replication(numbers, verdicts)


@dataclass(frozen=True)
class Row:
    """How one number did over all replications."""

    case: Case
    kind: str
    name: str
    truth: float
    covered: int
    intervals: int
    without: int
    """Replications without an interval."""
    method: str
    wrong: int
    compared: int


def clever_again(kind: str, count: int, size: int) -> list[Replication]:
    """Return ``count`` replications of CLEVER on ``size`` images, drawn from a large population that is scored once.

    An image's scores depend on it and on its rivals alone, whom other images share as little as in a run.
    """
    shown = images(POOL, 0)
    whole = Clever(**{**QUICK, "random": POOL, "guided": 0})
    with one_thread():
        own, twin = (whole(encoder, shown, RunSettings()).series for encoder in encoders(kind))
    rng = np.random.default_rng(0)
    return [_drawn(kind, own, twin, rng.choice(POOL, size, replace=False)) for _ in range(count)]


def _drawn(kind: str, own: Sequence[Series], twin: Sequence[Series], chosen: Int[np.ndarray, "n"]) -> Replication:
    """Return the numbers of the images ``chosen``, as CLEVER summarises their scores."""
    numbers: list[Number] = []
    verdicts: dict[str, bool] = {}
    for part, other in zip(own, twin, strict=True):
        values, others = np.array(part.values), np.array(other.values)
        better: Better = "higher" if part.quantity == "clever_score" else "neither"
        if better == "higher":
            others = others * np.nanmean(values) / np.nanmean(others)  # equal in truth, not only as equal as the draw
        left, right = (_with(part, some[chosen]) for some in (values, others))
        radius = Ball.read(part.conditions["ball"]).radius
        most = radius if better == "higher" and radius in left.values else None
        found = summarise(left, "mean", better, most=most)
        numbers.append(Number(name_of(found), found.value, found.low, found.high, found.method))
        verdicts[name_of(found)] = paired(left, right, "mean", better).outcome != "tied"
    return Replication({kind: numbers}, {kind: verdicts})


def _with(series: Series, values: Float[np.ndarray, "n"]) -> Series:
    return series.model_copy(update={"values": tuple(values.tolist()), "reasons": {}})


def rows(case: Case, found: Sequence[Replication]) -> list[Row]:
    """Return one row for each kind of encoder and number."""
    made = []
    for kind in found[0].numbers:
        by_name: dict[str, list[Number]] = defaultdict(list)
        for replication in found:
            for number in replication.numbers[kind]:
                by_name[number.name].append(number)
        for name, numbers in by_name.items():
            truth = float(np.mean([n.value for n in numbers if isfinite(n.value)] or [np.nan]))
            known = [n for n in numbers if isfinite(n.low + n.high)]
            apart = [r.verdicts[kind][name] for r in found if name in r.verdicts[kind]]
            covered = sum(n.low <= truth <= n.high for n in known)
            method = next((n.method for n in numbers if not isfinite(n.low + n.high)), numbers[0].method)
            missing = len(numbers) - len(known)
            made.append(Row(case, kind, name, truth, covered, len(known), missing, method, sum(apart), len(apart)))
    return made


def simulate(cases: Iterable[Case], replications: int, processes: int = 1) -> list[Row]:
    """Return the rows of ``cases``, each with its share of the replications."""
    made = []
    with get_context("spawn").Pool(processes) if processes > 1 else nullcontext() as pool:
        for case in cases:
            count = max(2, round(case.share * replications))
            one = partial(replicate, case)
            found = pool.map(one, range(count), chunksize=1) if pool else [one(seed) for seed in range(count)]
            made += rows(case, found)
    return made


def allowed(rate: float, count: int) -> float:
    """Return three standard errors of a share around ``rate``."""
    return 3 * sqrt(rate * (1 - rate) / max(count, 1))


def table(found: Iterable[Row]) -> str:
    """Return the rows as Markdown."""
    lines = [
        "| evaluation | samples | encoder | number | truth | coverage | intervals | wrong verdicts |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in found:
        coverage = f"{row.covered / row.intervals:.3f}" if row.intervals else row.method
        wrong = f"{row.wrong / row.compared:.3f} of {row.compared}" if row.compared else "not compared"
        lines.append(
            f"| {row.case.evaluation} | {row.case.size:,} | {row.kind} | {row.name} | {row.truth:.4g} | {coverage} "
            f"| {row.intervals} of {row.intervals + row.without} | {wrong} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Print coverage and wrong verdicts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replications", type=int, default=500)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--only", choices=("spade", "clever"))
    parser.add_argument("--sizes", type=int, nargs="*", help="only cases of these sizes")
    parser.add_argument("--eigenvalues", action="store_true", help="only what follows from SPADE's largest eigenvalues")
    parser.add_argument("--again", action="store_true", help="CLEVER alone, drawn from images scored once")
    given = parser.parse_args()
    if given.again:
        sizes = given.sizes or [QUICK["random"]]
        shown = [
            row
            for kind in ("linear", "network")
            for size in sizes
            for row in rows(Case("clever", size, 1.0), clever_again(kind, given.replications, size))
        ]
        print(table(shown))
        return
    began = time.perf_counter()
    cases = [
        case
        for case in (EIGENVALUES if given.eigenvalues else CASES)
        if given.only in (None, case.evaluation) and (not given.sizes or case.size in given.sizes)
    ]
    print(table(simulate(cases, given.replications, given.processes)))
    print(f"\n{given.replications} replications (fewer of large sizes), {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
