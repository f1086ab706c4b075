"""The tables of the papers: results of a published protocol (``--suite``) in the paper's own rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import isfinite, isnan

from holdfast.core.records import Estimate, Result, grouped
from holdfast.report.comparison.comparable import baselines


@dataclass(frozen=True)
class Line:
    """One row of a paper's table: what the paper calls it, and which estimate it is."""

    name: str
    """May hold ``{negatives}``, which the setting of the run replaces."""
    evaluation: str
    quantity: str
    conditions: Mapping[str, str] = field(default_factory=dict)
    """Conditions of the estimate, by their names in results (a preset's name, if any)."""
    percent: bool = False

    def found(self, results: Sequence[Result]) -> Estimate | None:
        """Return the estimate of the first of ``results`` that has it."""
        for result in results:
            for estimate in result.estimates if result.evaluation == self.evaluation else ():
                if estimate.quantity == self.quantity and self.conditions.items() <= estimate.conditions.items():
                    return estimate
        return None

    def said(self, results: Sequence[Result]) -> str:
        """Return the name with the number of negatives that ``results`` were measured with."""
        negatives = {str(each.settings.get("negatives")) for each in results if each.evaluation == self.evaluation}
        return self.name.replace("{negatives}", "/".join(sorted(negatives)) or "?")

    def spelled(self, estimate: Estimate | None) -> str:
        """Return the number with its interval, as the paper writes such numbers."""
        if estimate is None:
            return "not measured"
        if isnan(estimate.value):
            return "undefined"
        ends = (estimate.value, estimate.low, estimate.high)
        value, low, high = (f"{100 * end:.2f}%" if self.percent else f"{end:.4g}" for end in ends)
        if not (isfinite(estimate.low) and isfinite(estimate.high)) or estimate.low == estimate.high:
            return value
        return f"{value} [{low}, {high}]"


def _rvcl(test: str, *robust: str) -> tuple[Line, ...]:
    accuracy = "instance accuracy, {} (table E.2), K = {{negatives}}"
    of_head = {"attack": "pgd at the probe", "probe": "linear:recipe=rvcl"}
    # Of the two attacks on pairs the paper's comes first; the steps in its name depend on the channels of the images.
    return (
        Line("ACR (figure 3), K = {negatives}", "certified-radius", "average_certified_radius"),
        Line("radius under PGD, K = {negatives}", "certified-radius", "average_attacked_radius"),
        Line("ACR_LE (figure 4)", "linear-radius", "average_linear_radius"),
        Line(accuracy.format("PGD"), "instance-accuracy", "robust_instance_accuracy", {"ball": test}, True),
        Line(accuracy.format("CROWN"), "instance-accuracy", "certified_instance_accuracy", {"ball": test}, True),
        Line("scale of the margins (theorem 5.2)", "margin-distribution", "margin_scale"),
        Line("linear accuracy", "probe-accuracy", "top1_accuracy", {"probe": "linear:recipe=rvcl"}, True),
        *(
            Line(f"robust test, {ball}", "robust-accuracy", "robust_accuracy", {"ball": ball, **of_head}, True)
            for ball in robust
        ),
    )


def _petrov() -> tuple[Line, ...]:
    def attack(steps: int) -> str:
        return "u-pgd" if steps == 50 else f"pgd:steps={steps},step=0.001,keep=last"

    lines = [
        Line(f"{said}top-{k} accuracy", "probe-accuracy", f"top{k}_accuracy", {"probe": probe}, True)
        for said, probe in (("", "linear:recipe=moco"), ("low-pass ", "low-pass:50.0,recipe=moco"))
        for k in (1, 5)
    ]
    for kind, evaluation, quantity in (
        ("targeted", "impersonation", "relative_quantile"),
        ("untargeted", "displacement", "universal_quantile"),
    ):
        short = "RQ" if kind == "targeted" else "UQ"
        measured = {f"l2 {short}": ("l2", quantity), f"linf {short}": ("linf", quantity)}
        measured["cosine similarity"] = ("cosine", "cosine_similarity")
        for eps, (said, (divergence, found)) in product(("0.05", "0.1"), measured.items()):
            for steps in (5, 10, 30, 50):
                of = attack(steps) if divergence == "l2" else f"{attack(steps)} at l2"
                given = {"ball": f"linf:{eps}", "attack": of, "divergence": divergence}
                name = f"{kind}, {said}, eps = {eps}, {steps} iterations"
                lines.append(Line(name, evaluation, found, given, found == quantity))
    risky = {"ball": "linf:0.05", "divergence": "l2"}
    breakaway, overlap = {**risky, "attack": attack(25)}, {**risky, "attack": attack(10)}
    at = {"ball": "linf:0.1", "divergence": "l2", "probe": "linear:recipe=moco"}
    rate = "impersonation", "impersonation_success_rate"
    return (
        *lines,
        Line("breakaway risk", "breakaway", "breakaway_risk", breakaway, True),
        Line("nearest neighbour accuracy", "breakaway", "nearest_neighbour_accuracy", breakaway, True),
        Line("overlap risk", "overlap", "overlap_risk", overlap, True),
        Line("median adversarial margin", "overlap", "adversarial_margin", overlap, True),
        Line("average certified radius", "randomized-smoothing", "average_certified_probe_radius"),
        Line("center smoothing, universal quantile", "center-smoothing", "certified_universal_quantile", {}, True),
        *(
            Line(f"impersonation rate, {steps} iterations", *rate, {**at, "attack": attack(steps)}, True)
            for steps in (5, 10, 30, 50)
        ),
    )


def _zhong() -> tuple[Line, ...]:
    shuffles = [f"{scope}-shuffle{patch}" for scope in ("global", "local") for patch in ("", ":patch=4")]
    lines = []
    for probe in ("knn", "linear"):
        lines.append(Line(f"Orig, {probe}", "corruption-test", "clean_accuracy", {"probe": probe}, True))
        for kind in ("gamma:0.2", "gamma:5.0", *shuffles):
            given = {"probe": probe, "corruption": kind}
            lines.append(Line(f"{kind}, {probe}", "corruption-test", "corrupted_accuracy", given, True))
        given = {"probe": probe, "corruption": "all"}
        lines.append(Line(f"average drop, {probe}", "corruption-test", "mean_relative_accuracy_drop", given, True))
    return (
        *lines,
        Line("uniformity", "geometry", "uniformity"),
        Line("uniformity within classes", "geometry", "uniformity_within_classes"),
        Line("distance within classes", "geometry", "distance_within_classes"),
        Line("distance between classes", "geometry", "distance_between_classes"),
        Line("alignment", "alignment", "alignment"),
        Line("overlap of Grad-CAM maps", "grad-cam", "map_overlap", {}, True),
    )


def _cheng() -> tuple[Line, ...]:
    drawn, of, near = ("10 random", "10 least by SPADE"), {"margin": "untargeted"}, {"ball": "linf:8/255"}
    clever = [
        Line(f"CLEVER {ball}, {samples} (table 9)", "clever", "clever_score", {**of, "ball": ball, "samples": samples})
        for ball in ("l2:5.0", "linf:0.5")
        for samples in ("10 by SPADE", *drawn)
    ]
    return (
        Line("SPADE score, k = 10", "spade", "spade_score", {"k": "10"}),
        Line("SPADE score, k = 20 (figure 3)", "spade", "spade_score", {"k": "20"}),
        Line("reverse score", "spade", "reverse_spade_score"),
        Line("hops, 100 highest edges (table 2)", "spade", "edge_hops", {"edges": "100 highest"}),
        Line("hops, 100 random edges (table 2)", "spade", "edge_hops", {"edges": "100 random"}),
        *clever,
        *(
            Line(f"GAIRAT weight, {samples} (A.11)", "clever", "gairat_weight", {**near, "samples": samples})
            for samples in drawn
        ),
    )


def _ko() -> tuple[Line, ...]:
    scores = [
        Line(f"SynBench score, eps = {eps}, a_t = {a}", "synbench", "synbench_score", {"budget": eps, "threshold": a})
        for a in ("0.7", "0.8", "0.9")
        for eps in ("0", "0.2", "0.4", "0.6", "0.8")
    ]
    probes = {"linear": "linear probing", "synbench-robust": "robust linear probing"}
    of_probes: tuple[tuple[str, str, str, dict[str, str]], ...] = (
        ("accuracy", "probe-accuracy", "top1_accuracy", {}),
        ("corruption error", "corruption-error", "mean_corruption_error", {}),
        ("attack success rate", "robust-accuracy", "attack_success_rate", {"attack": "pgd:steps=10 at the probe"}),
    )
    return (
        *scores,
        Line("argmax eps, a_t = 0.7", "synbench", "suggested_budget", {"threshold": "0.7"}),
        *(
            Line(f"{what}, {said}", evaluation, quantity, {"probe": probe, **at}, True)
            for what, evaluation, quantity, at in of_probes
            for probe, said in probes.items()
        ),
    )


TABLES: dict[str, tuple[Line, ...]] = {
    "wang2022": _rvcl("linf:0.1", "linf:0.15", "linf:0.2"),
    "wang2022-cifar10": _rvcl("linf:0.0035294", "linf:8/255", "linf:16/255"),
    "ko2022": _ko(),
    "petrov2022": _petrov(),
    "zhong2022": _zhong(),
    "cheng2021": _cheng(),
}
"""The rows of each protocol's table, by the name of its suite."""


def paper_table(results: Sequence[Result], suite: str) -> str:
    """Return the paper's table as Markdown, a row for each of its numbers and a column for each encoder.

    Rows that no encoder has a number for are named in a last line. It is empty for suites that are no paper's.
    """
    if suite not in TABLES:
        return ""
    by_encoder = grouped((result.encoder.name, result) for result in results)
    rows, missing = [], []
    for line in TABLES[suite]:
        found = [line.found(mine) for mine in by_encoder.values()]
        if any(estimate is not None for estimate in found):
            rows.append([line.said(results), *map(line.spelled, found)])
        else:
            missing.append(line.said(results))
    if not rows:
        return ""
    lines = _markdown([suite, *by_encoder], rows)
    if missing:
        lines += ["", f"Not measured: {'; '.join(missing)}."]
    if suite == "ko2022":
        trivial = baselines(results)
        lines += _agreement([mine for name, mine in by_encoder.items() if name not in trivial])
    return "\n".join(lines) + "\n"


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    table = [[cell.replace("|", r"\|") for cell in row] for row in (header, *rows)]  # a bar would begin another cell
    widths = [max(len(row[place]) for row in table) for place in range(len(header))]

    def spelled(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"

    first, *rest = map(spelled, table)
    return [first, "|" + "|".join("-" * (width + 2) for width in widths) + "|", *rest]


LEAST = 4
"""Encoders from which on a correlation has an interval."""


def _agreement(encoders: Sequence[Sequence[Result]]) -> list[str]:
    """Return the table of correlations, over encoders, of each SynBench score with the accuracy of each probe.

    ``encoders`` are the results of each encoder. There is no table for fewer than four.
    """
    from scipy.stats import kendalltau, pearsonr

    scores = [line for line in TABLES["ko2022"] if line.quantity == "synbench_score"]
    probes = [line for line in TABLES["ko2022"] if line.quantity == "top1_accuracy"]
    rows = []
    for score in scores:
        for probe in probes:
            found = [(score.found(mine), probe.found(mine)) for mine in encoders]
            pairs = [(x.value, y.value) for x, y in found if x is not None and y is not None]
            pairs = [pair for pair in pairs if all(map(isfinite, pair))]
            if len(pairs) < LEAST:
                continue
            x, y = zip(*pairs, strict=True)
            if len({*x}) == 1 or len({*y}) == 1:
                linear, order = "undefined", "undefined"
            else:
                pearson = pearsonr(x, y)
                low, high = pearson.confidence_interval()
                linear = f"{pearson.statistic:.2f} [{low:.2f}, {high:.2f}]"
                order = f"{kendalltau(x, y).statistic:.2f}"
            rows.append([score.name, probe.name, linear, order, str(len(pairs))])
    header = ["score", "probe", "Pearson's r", "Kendall's tau", "encoders"]
    return ["", *_markdown(header, rows)] if rows else []
