"""SynBench: how much of the separability of a known Gaussian mixture an encoder keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from math import inf, isfinite
from typing import final

import numpy as np
import torch
from torch import Tensor

from holdfast.core.errors import HoldfastError, OutOfRange, UnknownName, check_whole
from holdfast.core.records import Curve, Findings, Question
from holdfast.core.run_settings import Observed
from holdfast.measure.evaluation import LATER, Evaluation, Sizes
from holdfast.measure.observation import Joint, Observation, line_of
from holdfast.measure.population import Population
from holdfast.synthetic.mixture import DIRECTIONS, NORMS, check_budgets
from holdfast.synthetic.score import (
    BUDGETS,
    ENCODINGS,
    FEWEST,
    MODES,
    SAMPLES,
    SCALES,
    THRESHOLDS,
    Allowed,
    RuleAccuracies,
    allowed,
    expected_above,
    expected_bound,
    features,
    score,
)
from holdfast.synthetic.synbench_findings import ScoringInputs, estimates, estimates_at, size_curves, synbench_warnings

POINTS = 101
FINE = tuple(k / 20 for k in range(1, 101))
"""Scales between which the reference of unequal priors is drawn."""
TELLING = 0.55
"""Accuracies below which the bound, of the few inputs that are right by luck, is mostly noise."""


def curves(
    inputs: ScoringInputs, scales: Sequence[float], bound_at: Callable[[Tensor, int], Tensor], sweep: bool
) -> tuple[Curve, ...]:
    """Return curves of each budget's rules, with the limits of the mixture itself.

    That is the expected bound above each accuracy from the lowest threshold on, where the fraction of the area under the
    reference is the score; the accuracy and the distance to the boundary at each scale; and the bound at each accuracy.
    With ``sweep`` also the mean score of a quarter, a half and all of the samples.
    """
    parts = [list(_of_budget(inputs, k, scales, bound_at)) for k in range(len(inputs.budgets))]
    if sweep:
        each = score(inputs.observed["right"], inputs.bounds, inputs.best, inputs.thresholds, inputs.mode).mean(0)
        means = torch.stack([each[2], each[:2].mean(0), each[-1]])
        for k, part in enumerate(parts):
            case, counts = {"budget": f"{inputs.budgets[k]:g}"}, (inputs.n // 4, inputs.n // 2, inputs.n)
            part.append(
                line_of("mean_synbench_score", case, "samples per set", "score", counts, means[:, k], [1.0] * 3)
            )
    return tuple(curve for kind in zip(*parts, strict=True) for curve in kind if curve.x)


def _of_budget(
    inputs: ScoringInputs, k: int, scales: Sequence[float], bound_at: Callable[[Tensor, int], Tensor]
) -> Iterator[Curve]:
    accuracy = inputs.observed["right"][:, -1, k]
    bound = inputs.observed["bound"][:, -1, k] / accuracy.clamp_min(1e-9)
    best, most = (values[:, min(k, values.shape[1] - 1)] for values in inputs.best)
    case = {"budget": f"{inputs.budgets[k]:g}"}
    demanded = torch.linspace(min(inputs.thresholds), 1, POINTS, dtype=torch.float64)
    above, of_best = (expected_above(*pair, demanded) for pair in ((accuracy, bound), (best, most)))
    yield line_of("expected_bound", case, "accuracy demanded", "expected bound", demanded, above, of_best, shaded=True)
    yield line_of("accuracy", case, "scale", "accuracy", scales, accuracy, best)
    order = accuracy.argsort()
    order = order[accuracy[order] > TELLING]
    told = accuracy[order]
    yield line_of("bound", case, "accuracy", "bound where right", told, bound[order], bound_at(told, k))
    label = "distance to the boundary where right, in units of the embeddings"
    yield line_of("distance", case, "scale", label, scales, bound * inputs.observed["margin"][:, k])


# SynBench: how much of the separability of a known Gaussian mixture an encoder keeps, with no data at all.
#
# Ko, Chen, Mohapatra, Das and Daniel 2022, https://arxiv.org/abs/2210.02989. The numbers are defined in ``score``,
# the rules they rest on in ``mixture``. Departures: exact areas (``mode`` gives the published sum), an exact solver,
# the expected bound averaged over all correct samples (the authors' program averages the means of batches of 256,
# which moves a score by less than 0.0001), and every score with its interval and with the bias of finite samples
# estimated.


@final
@dataclass(frozen=True)
class SynBench(Evaluation):
    """Separability of synthetic Gaussian classes that the embeddings keep; reads no images."""

    scales: tuple[float, ...] = SCALES
    """Grid of the class separation `s`; the score depends on its end."""
    thresholds: tuple[float, ...] = THRESHOLDS
    """Accuracies above which area counts."""
    budgets: tuple[float, ...] = BUDGETS
    """Budgets of the robust rules, as fractions of the distance to the boundary."""
    samples: int | str = SAMPLES
    """Inputs in each of the two sets of each scale; `auto` takes 20 per feature."""
    encodings: int = ENCODINGS
    """Limit on all inputs together; a warning says if it cuts `samples`."""
    direction: str = "ones"
    """Direction of the class mean: `ones` (published), `smooth` or `signs`."""
    mode: str = "exact"
    """`exact` for the exact area, `published` for the sum over 100 points."""
    prior: float = 0.5
    """Probability of the class +1."""
    offset: float = 0.0
    """Shift of both classes, in widths of the encoder's input range."""
    spectrum: float = 0.0
    """Colour of the noise: 0 is white (published), about 2 is that of photographs."""
    norm: str = "l2"
    """Norm of the budgets: `l2` or `linf`."""
    sweep: bool = False
    """Whether the mean score with a quarter and a half of the samples is added."""
    input_sizes: tuple[int, ...] = field(default=(), metadata=LATER)
    """Other heights and widths of the inputs in pixels, with a mean score at each."""
    sizes = Sizes(
        quick={"scales": [4 * k / 10 for k in range(1, 13)], "samples": 1024},
        full={"samples": "auto"},
        large={"samples": 256},
        heavy={"samples": 64},
    )
    name = "synbench"
    version = 3
    title = "SynBench: synthetic classes"
    meaning = (
        "Two Gaussian classes are fed to the encoder, which then needs no images; the score compares the accuracy and "
        "the margin of the best robust linear rule on its embeddings with what the classes themselves allow: 1 keeps "
        "all, 0 nothing. It depends strongly on the direction in which the classes differ and on the grid of scales, "
        "which the settings record, and it does not see robustness to attacks."
    )
    headline = ("mean_synbench_score_extrapolated", "mean_synbench_score")
    words = (("synbench", "SynBench"),)
    questions = (
        Question(
            place=120,
            text="What does synthetic data say?",
            quantities=headline,  # where there are both, the former
            meaning="share kept of what two classes of noise allow",
            select="first",
        ),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.scales) < 2 or min(self.scales) <= 0:
            raise OutOfRange("synbench.scales", self.scales, "two or more positive numbers")
        for threshold in self.thresholds:
            if not 0.5 < threshold < 1:
                raise HoldfastError(f"synbench thresholds are accuracies between 0.5 and 1, got {threshold:g}")
        check_budgets(self.budgets)
        for value, known in ((self.direction, DIRECTIONS), (self.mode, MODES), (self.norm, NORMS)):
            if value not in known:
                raise UnknownName("synbench", value, known)
        if not max(self.prior, 1 - self.prior) < min(self.thresholds):
            raise HoldfastError(
                f"synbench thresholds must exceed the accuracy that the class alone gives, got {min(self.thresholds):g} "
                f"with prior={self.prior:g}"
            )
        if not (isfinite(self.offset) and 0 <= self.spectrum < inf):
            raise HoldfastError(
                f"synbench needs a finite offset and a spectrum of 0 or more, got {self.offset:g} and {self.spectrum:g}"
            )
        if self.norm == "linf" and self.spectrum:
            raise HoldfastError("synbench knows the rules of norm=linf for white noise alone; leave spectrum at 0")
        for size in self.input_sizes:
            check_whole(size, "synbench.input_sizes")
            if size < 1:
                raise OutOfRange("synbench.input_sizes", size, "at least 1 pixel")
        if self.samples != "auto" and not (isinstance(self.samples, int) and self.samples >= FEWEST):
            raise HoldfastError(f"synbench takes samples of {FEWEST} or more per set, or auto, got {self.samples!r}")
        fewest = 2 * FEWEST * len(self.scales)
        if self.encodings < fewest:
            raise OutOfRange(
                "synbench.encodings",
                self.encodings,
                f"at least {fewest} for {len(self.scales)} scales",
                fix="allow more, or give fewer scales",
            )

    def observation(self) -> Observation:
        own = self.rules()
        if not self.input_sizes:
            return own
        return Joint((own, *(replace(own, size=size, sweep=False) for size in self.input_sizes)))

    def rules(self) -> RuleAccuracies:
        """Return the observation at the encoder's own input size."""
        names = [each.name for each in fields(RuleAccuracies) if each.name != "size"]
        return RuleAccuracies(**{name: getattr(self, name) for name in names})

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        observed = {name: values.double().cpu() for name, values in observed.items()}
        probe, d, joint = self.rules(), features(population), self.observation()
        parts: list[tuple[RuleAccuracies, Observed]] = [(probe, observed)]
        if isinstance(joint, Joint):
            parts = [(part, joint.of(part, observed)) for part in joint.parts if isinstance(part, RuleAccuracies)]

        def best(scales: Sequence[float], of: RuleAccuracies = probe) -> Allowed:
            return allowed(scales, of.mixture(population), self.budgets, self.norm)

        def bound_at(accuracy: Tensor, k: int) -> Tensor:
            """Return the bound that the mixture allows at an accuracy; interpolated with unequal priors."""
            if self.prior == 0.5:
                return expected_bound(accuracy)
            x, y = (values[:, k].numpy() for values in best(FINE))
            return torch.from_numpy(np.interp(accuracy.numpy(), x, y))

        inputs, *resized = (
            ScoringInputs(seen, best(self.scales, part), self.budgets, self.thresholds, self.mode, probe.drawn(d), d)
            for part, seen in parts
        )
        by_size = dict(zip(self.input_sizes, resized, strict=True))
        own = population.encoder.domain.shape
        if self.input_sizes and own[-1] == own[-2]:
            by_size = {own[-1]: inputs} | by_size
        resized_numbers = [each for size in self.input_sizes for each in estimates_at(size, by_size[size])]
        by_size_curves = size_curves(by_size) if self.input_sizes else ()
        return Findings(
            ids=(),  # no number belongs to one image
            estimates=(*estimates(inputs), *resized_numbers),
            curves=(*curves(inputs, self.scales, bound_at, self.sweep), *by_size_curves),
            warnings=synbench_warnings(inputs, self.encodings if inputs.n < probe.wanted(d) else None),
        )
