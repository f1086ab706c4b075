"""How often intervals hold the truth, and how often encoders of equal truth are told apart.

``python -m benchmarks.statistics.coverage --processes 16 --replications 500``

Images are drawn anew for each replication from a known law, independent uniform pixels, and measured by the evaluations
themselves at the sizes of suite ``quick``. One population is fragile: every image carries some risk. In the other a cliff
in the encoder lets a few images, about one in a hundred, be carried past half of the others, and no other image past any.
The two encoders compared differ by a permutation of the pixels, which the law of the images does not notice.

The truth is that of all replications together: the mean of an unbiased number, the median of all values. Numbers that finite
samples bias are known from all images together, or from one run with many more samples.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import isnan
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.attacks.black_box import SquareAttack
from holdfast.attacks.evaluations.displacement import effective_rank
from holdfast.attacks.gradient import GradientAttack
from holdfast.core.balls import Linf
from holdfast.core.divergences import Cosine, Divergence, L2Distance
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.images import Images
from holdfast.core.records import Estimate, Result
from holdfast.core.run_settings import Observed, RunSettings
from holdfast.measure.evaluation import Evaluation
from holdfast.measure.population import Population
from holdfast.report.comparison.compare import compare
from holdfast.run.catalog import evaluations
from holdfast.synthetic.evaluations.synbench import SynBench

PIXELS, FEATURES = 16, 8
ATTACK = GradientAttack(steps=3, stride=0.5)
DIVERGENCES: dict[str, Divergence] = {"l2": L2Distance(), "cosine": Cosine()}
TOO_FEW = "too few"
"""What the method of a median says of five values and fewer: their range is no interval of 95%."""
LEAST, MOST, WRONG = 0.92, 0.99, 0.05
"""Within which an interval of 95% should cover, and how often equal encoders may be told apart."""
MANY = 16_384
"""Samples of the run that stands for unlimited ones."""
POOL = 2000
"""Images of the population from which stretches are drawn."""
STRETCHED = (
    "certified-radius",
    "instance-accuracy",
    "certified-breakaway",
    "certified-overlap",
    "certified-displacement",
)
"""Evaluations that observe of each image what it and those that follow it decide."""
PAIRED = ("certified-overlap",)
"""Those among them whose anchors are every second image, so that no two share one."""
APART = ("spade", "clever")
"""Numbers of a graph or of draws, whose intervals are tested beside them."""

Key = tuple[str, str, str]
"""Evaluation, quantity and conditions."""


@dataclass(frozen=True)
class Law:
    """Where images and encoder come from."""

    radii: tuple[float, float]
    cliff: float = 0.0
    """How steep the encoder is beyond the edge."""
    edge: float = 0.812

    def images(self, count: int, replication: int) -> Images:
        """Return fresh images, labelled by their brightness."""
        drawn = torch.rand(count, 1, 4, 4, generator=torch.Generator().manual_seed(replication)) * 0.6 + 0.2
        labels = (drawn.flatten(1).mean(1) > 0.5).long()
        return Images(drawn, [f"{replication}-{k}" for k in range(count)], labels)

    def encoder(self, turned: bool) -> Encoder:
        """Return the encoder, or its twin that sees the pixels in reverse."""
        first, second = nn.Linear(PIXELS, PIXELS + 1), nn.Linear(PIXELS + 1, FEATURES, bias=False)
        with torch.no_grad():
            first.weight.copy_(torch.cat([torch.eye(PIXELS), torch.eye(PIXELS)[:1]]))
            first.bias.copy_(torch.cat([torch.zeros(PIXELS), torch.tensor([-self.edge])]))
            mixed = torch.randn(FEATURES, PIXELS, generator=torch.Generator().manual_seed(1)) / PIXELS**0.5
            second.weight.copy_(torch.cat([mixed, self.cliff * torch.eye(FEATURES)[:, :1]], 1))
            if turned:
                first.weight.copy_(first.weight.flip(1))
        module = nn.Sequential(nn.Flatten(), first, nn.ReLU(), second).eval()
        return Encoder(module, "turned" if turned else "straight", Domain((1, 4, 4)))


LAWS = {"fragile": Law((0.08, 0.15)), "robust": Law((0.01, 0.02), cliff=500.0)}


@dataclass
class Tally:
    """What all replications of one law found."""

    ends: dict[Key, list[Estimate]] = field(default_factory=lambda: defaultdict(list))
    values: dict[Key, list[tuple[float, ...]]] = field(default_factory=lambda: defaultdict(list))
    codes: list[Tensor] = field(default_factory=list)
    outcomes: dict[Key, list[bool]] = field(default_factory=lambda: defaultdict(list))

    def add(self, results: Sequence[Result]) -> None:
        """Add the results of both encoders on one draw of images."""
        for result in results:
            for estimate in result.estimates:
                self.ends[key(result.evaluation, estimate)].append(estimate)
                self.values[key(result.evaluation, estimate)].append(_values(result, estimate))
        for contest in compare(results).contests:
            where = contest.evaluation, contest.quantity, _said(contest.conditions)
            self.outcomes[where] += [pair.difference.outcome != "tied" for pair in contest.pairs]


def measured(law: Law, only: Sequence[str]) -> list[Evaluation]:
    """Return the evaluations, small enough to be run hundreds of times: sizes of suite ``quick``, weak attacks."""
    settings: dict[str, Any] = {
        "balls": tuple(Linf(radius) for radius in law.radii),
        "attacks": (ATTACK,),
        "attack": ATTACK,
        "pairwise": ATTACK,
        "blind": SquareAttack(queries=10),
        "divergences": tuple(DIVERGENCES.values()),
    }
    found = []
    for name, kind in evaluations().items():
        if name in APART or (only and name not in only):
            continue
        small = {**kind.sizes.quick, **settings}
        found.append(kind(**{key: value for key, value in small.items() if key in kind.__dataclass_fields__}))
    return found


def replicate(law_name: str, count: int, only: Sequence[str], replication: int) -> tuple[list[Result], Tensor]:
    """Return the results of both encoders on one draw of images, and the codes of the first encoder."""
    torch.set_num_threads(1)
    law = LAWS[law_name]
    images, twins = law.images(count, replication), [law.encoder(turned) for turned in (False, True)]
    results = [
        evaluation(encoder, images, RunSettings(seed=replication)).model_copy(update={"title": ""})
        for evaluation in measured(law, only)
        for encoder in twins
    ]
    return [bare(result) for result in results], twins[0](images.pixels(range(count)))


def bare(result: Result) -> Result:
    """Return ``result`` without its pictures and curves, which no interval needs."""
    return result.model_copy(update={"findings": result.findings.model_copy(update={"pictures": (), "curves": ()})})


def tallied(law: str, count: int, only: Sequence[str], replications: int, processes: int) -> Tally:
    """Return everything that ``replications`` draws of ``count`` images found."""
    tally, work = Tally(), partial(replicate, law, count, only)
    with get_context("spawn").Pool(processes) if processes > 1 else _Here() as pool:
        for results, codes in pool.imap_unordered(work, range(replications)):
            tally.codes.append(codes)
            tally.add(results)
    return tally


def tallied_in_stretches(law_name: str, count: int, only: Sequence[str], replications: int) -> Tally:
    """Return what certified evaluations say of random stretches of a large population, which is observed once.

    What they observe of an image depends on it and on those that follow it in the run's random order, its negatives. So a
    stretch of that order is a draw of anchors like any other, and its negatives are drawn with it.
    """
    law = LAWS[law_name]
    images, tally = law.images(POOL, 0), Tally()
    anchored = [evaluation for evaluation in measured(law, only) if evaluation.name in STRETCHED]
    twins = [law.encoder(turned) for turned in (False, True)]
    seen = [Seen.of(evaluation, Population(twin, images, RunSettings())) for evaluation in anchored for twin in twins]
    rng = np.random.default_rng(0)
    for _ in range(replications):
        start = int(rng.integers(POOL - 2 * count))
        tally.add([one.stretch(start, count) for one in seen])
    return tally


@dataclass(frozen=True)
class Seen:
    """What an evaluation observed of every image of a population, and what it says of any of them."""

    evaluation: Evaluation
    population: Population
    observed: Observed
    like: Result

    @classmethod
    def of(cls, evaluation: Evaluation, population: Population) -> Seen:
        observation = evaluation.observation()
        observed = population.run.batches(range(len(population.images)), partial(observation.observe, population))
        few = population.choose(2)
        like = evaluation.result(population, few, {name: values[few] for name, values in observed.items()})
        return cls(evaluation, population, observed, bare(like))

    def stretch(self, start: int, count: int) -> Result:
        """Return the result of ``count`` images from ``start`` on in the run's order."""
        step = 2 if self.evaluation.name in PAIRED else 1
        return self.at(sorted(self.population.random_order[start : start + step * count : step].tolist()))

    def at(self, rows: Sequence[int]) -> Result:
        """Return the result of the images at ``rows``."""
        seen = {name: values[list(rows)] for name, values in self.observed.items()}
        findings = self.evaluation.conclude(self.population, rows, seen)
        return bare(self.like.model_copy(update={"findings": findings}))


class _Here:
    """A pool of this process."""

    imap_unordered = staticmethod(map)

    def __enter__(self) -> _Here:
        return self

    def __exit__(self, *_: object) -> None:
        return None


def key(evaluation: str, estimate: Estimate) -> Key:
    """Return what the same number of another replication shares."""
    return evaluation, estimate.quantity, _said(estimate.conditions)


def _said(conditions: dict[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(conditions.items()))


def _values(result: Result, estimate: Estimate) -> tuple[float, ...]:
    """Return what a median is of, or the displacements that universal quantiles rest on."""
    wanted = {"universal_quantile": "displacement"}.get(estimate.quantity, estimate.series)
    if estimate.statistic != "median" and wanted != "displacement":
        return ()
    matching = (s.values for s in result.series if s.quantity == wanted and s.conditions == estimate.conditions)
    return next(matching, ())


def truth(where: Key, tally: Tally, scores: dict[Key, float]) -> float:
    """Return what the interval of the number at ``where`` should hold."""
    _, quantity, said = where
    if where in scores:
        return scores[where]
    if quantity == "effective_rank":
        return effective_rank(torch.cat(tally.codes))
    pooled = np.concatenate(tally.values[where])
    if quantity == "universal_quantile":
        codes = torch.cat(tally.codes).double()
        codes = codes[torch.randperm(len(codes), generator=torch.Generator().manual_seed(0))]
        divergence = next(found for name, found in DIVERGENCES.items() if f"divergence={name}" in said)
        apart = torch.cat(
            [divergence(codes, codes.roll(step, 0)) for step in range(1, 1 + max(10, 10**6 // len(codes)))]
        )
        return float((apart <= np.nanmedian(pooled)).double().mean())
    if len(pooled):
        return float(np.nanmedian(pooled))
    return float(np.nanmean([estimate.value for estimate in tally.ends[where]]))


def unlimited(law: str, only: Sequence[str]) -> dict[Key, float]:
    """Return the extrapolated scores of a run with many more samples, which their intervals speak of."""
    for evaluation in measured(LAWS[law], only):
        if isinstance(evaluation, SynBench):
            result = replace(evaluation, samples=MANY)(LAWS[law].encoder(False), LAWS[law].images(2, 0))
            return {key("synbench", e): e.value for e in result.estimates if "_extrapolated" in e.quantity}
    return {}


@dataclass(frozen=True)
class Row:
    """How often the intervals of one quantity cover, over all its conditions, and what equal encoders were told."""

    law: str
    images: int
    evaluation: str
    quantity: str
    covered: float
    lowest: float
    width: float
    excess: float
    """How many times wider than two standard deviations of the number itself, over the replications, on either side."""
    wrong: float
    replications: int
    bare: bool
    """Whether the number says that it has no interval."""


def rows(law: str, count: int, tally: Tally, scores: dict[Key, float], replications: int) -> Iterator[Row]:
    """Yield a row for each quantity that has intervals."""
    quantities: dict[tuple[str, str], list[Key]] = defaultdict(list)
    for where, found in tally.ends.items():
        if not all(e.method.startswith("counted") or isnan(e.value) for e in found):
            quantities[where[:2]].append(where)
    for (evaluation, quantity), keys in quantities.items():
        covered, widths, excesses = [], [], []
        for where in keys:
            aim = truth(where, tally, scores)
            ends = [e for e in tally.ends[where] if not isnan(e.low + e.high) and TOO_FEW not in e.method]
            slack = 1e-9 * abs(aim)  # a mean of replications may round away from values that are all equal
            if ends:
                covered.append(float(np.mean([e.low - slack <= aim <= e.high + slack for e in ends])))
            widths += [e.high - e.low for e in ends]
            spread = float(np.std([e.value for e in ends])) if ends else 0.0
            if spread > slack:
                excesses.append(float(np.mean([e.high - e.low for e in ends])) / (4 * spread))
        wrong = [told for where in keys for told in tally.outcomes.get(where, [])]
        yield Row(
            law,
            count,
            evaluation,
            quantity,
            covered=float(np.mean(covered)) if covered else np.nan,
            lowest=min(covered, default=np.nan),
            width=float(np.mean(widths)) if widths else np.nan,
            excess=float(np.mean(excesses)) if excesses else np.nan,
            wrong=float(np.mean(wrong)) if wrong else np.nan,
            replications=replications,
            bare=not covered,
        )


def simulated(
    replications: int,
    processes: int,
    laws: Sequence[str],
    counts: Sequence[int],
    only: Sequence[str] = (),
    stretches: bool = False,
) -> list[Row]:
    """Return the table; with ``stretches``, of certified evaluations alone, ``counts`` being their anchors."""
    found: list[Row] = []
    for law in laws:
        scores = {} if stretches else unlimited(law, only)
        for count in counts:
            if stretches:
                tally = tallied_in_stretches(law, count, only, replications)
            else:
                tally = tallied(law, count, only, replications, processes)
            found += rows(law, count, tally, scores, replications)
    return found


def chance(share: float, replications: int) -> float:
    """Return three standard errors of ``share``."""
    return 3 * float((share * (1 - share) / replications) ** 0.5)


HEAD = """| population | images | evaluation | quantity | covered | lowest | width | told apart |
|---|---|---|---|---|---|---|---|"""


def line(row: Row) -> str:
    """Return ``row`` as a line of the table, marked where it misses what is promised by more than chance."""
    mark = " **low**" if row.covered < LEAST - chance(LEAST, row.replications) else ""
    late = " **often**" if row.wrong > WRONG + chance(WRONG, row.replications) else ""
    wrong = "" if isnan(row.wrong) else f"{row.wrong:.3f}{late}"
    numbers = "no interval | |" if row.bare else f"{row.covered:.3f}{mark} | {row.lowest:.3f} | {row.width:.2g}"
    return f"| {row.law} | {row.images} | `{row.evaluation}` | `{row.quantity}` | {numbers} | {wrong} |"


def main() -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--replications", type=int, default=100)
    parser.add_argument("--images", type=int, nargs="+", default=[300])
    parser.add_argument("--laws", nargs="+", default=list(LAWS), choices=list(LAWS))
    parser.add_argument("--only", nargs="+", default=[], help="evaluations")
    parser.add_argument(
        "--stretches", action="store_true", help="certified evaluations; --images says how many anchors"
    )
    given = parser.parse_args()
    print(HEAD)
    for row in simulated(given.replications, given.processes, given.laws, given.images, given.only, given.stretches):
        print(line(row), flush=True)


if __name__ == "__main__":
    main()
