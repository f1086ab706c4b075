"""A few label-free metrics of an encoder during training, without any effect on the training.

A copy in eval mode is measured, with its own weights, modes and gradients. The states of the random number generators of
Python, numpy and torch are restored, so training continues bit for bit as without the monitor; a test checks this.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isnan
from time import monotonic
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import nn

from holdfast.commands.evaluated_run import worst
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import HoldfastError, HoldfastWarning, OutOfRange
from holdfast.core.points.neighbours import nearest_neighbours
from holdfast.core.points.points import points
from holdfast.core.records import Claim, Estimate
from holdfast.core.run_settings import RunSettings
from holdfast.core.settings import names_of
from holdfast.core.statistics.summaries import series_of, summarise
from holdfast.measure.bank import apart
from holdfast.measure.population import Population
from holdfast.run.inputs import NamedImages, reference_or_images, select
from holdfast.run.request import Request, planned

ONLY = ("attack-radius", "geometry")
WITH_BANK = "probe-accuracy"
SMALL: dict[str, dict[str, Any]] = {
    "attack-radius": {
        "samples": 64,
        "attack": "adaptive:restarts=1,steps=5",
        "events": ["retrieval"],
    },
    "probe-accuracy": {"probes": ["knn"]},
}
"""Default settings: one search for each of 64 images."""
NEIGHBOURS = 10
KEPT = "neighbours_kept"
PREFIX = "holdfast/"
Near = Int[np.ndarray, "n k"]


class Monitor:
    """Measures an encoder now and then while it trains: calling it returns estimates by quantity.

    By default: the median attack radius of 64 images, RankMe, uniformity, and the fraction of each image's ten nearest
    neighbours that it had when last measured (none the first time). With labelled images and a labelled ``bank`` also the
    accuracy of nearest neighbours.

    Args:
        images: unlabelled, as for ``holdfast.evaluate``: a tensor (n, *pixels) in [0, 1], Images, a folder or a reference.
        bank: other images, labelled as ``images`` are then, that neighbours are looked up in.
        shape: of the inputs, as in (3, 224, 224); needed where ``images`` is a folder or a reference.
        mean, std: of the normalisation that training applies to its images before the encoder sees them.
        only: names of evaluations; ``("attack-radius", "geometry")`` by default.
        settings: of evaluations by name, as in ``{"attack-radius": {"samples": 32}}``.
        limit: largest number of images, chosen by ``seed``.
        every: epochs from one measurement to the next, at least.
        share: of the time since ``start`` that measurements may take; whatever comes too early is left out (inf: nothing).
        seed: decides what is random in the measurement, the same every time.

    Raises:
        HoldfastError: an argument makes no sense, or the images are no inputs of this shape.

    Example:
        >>> monitor = Monitor(torch.rand(30, 1, 8, 8), only="geometry")
        >>> sorted(monitor(nn.Sequential(nn.Flatten(), nn.Linear(64, 8))))
        ['hub_skewness', 'rankme', 'uniformity']
    """

    def __init__(
        self,
        images: NamedImages,
        *,
        bank: NamedImages | None = None,
        shape: Sequence[int] | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        only: str | Sequence[str] = (),
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        limit: int | None = None,
        every: int = 1,
        share: float = 0.05,
        seed: int = 0,
    ) -> None:
        if not (isinstance(every, int) and every >= 1):
            raise OutOfRange("every", every, "a whole number of epochs, at least 1")
        if not share > 0:
            raise HoldfastError(f"share is that of the time measurements may take, above 0, got {share!r}")
        pictures, others = reference_or_images(images), None if bank is None else reference_or_images(bank)
        if shape is None:
            if isinstance(pictures, str):
                form = "as in shape=(3, 224, 224)"
                raise HoldfastError(f"the images of {pictures} need the shape of the encoder's inputs, {form}")
            shape = pictures.pixels([0]).shape[1:]
        self.domain = Domain(tuple(shape))
        self.images = select(pictures, self.domain, limit=limit, seed=seed)
        self.bank = None if others is None else apart(select(others, self.domain), self.images)
        self.mean, self.std, self.seed = mean, std, seed
        names = tuple(names_of(only, "only")) or (*ONLY, *([WITH_BANK] if bank is not None else ()))
        small, given = {name: values for name, values in SMALL.items() if name in names}, settings or {}
        chosen = {name: {**small.get(name, {}), **given.get(name, {})} for name in {**small, **given}}
        self.plan = planned(Request.of(only=names, settings=chosen, bank=None if bank is None else "at hand"))
        self.every, self.share = every, share
        self._near: Near | None = None
        self._began = monotonic()
        self._spent = self._last = 0.0

    def __call__(self, module: nn.Module) -> dict[str, Estimate]:
        """Return the estimates of ``module``, which maps (b, *shape) to embeddings (b, d), as it is now.

        Raises:
            HoldfastError: it cannot be measured, because its embeddings are not finite, say.
        """
        began = monotonic()
        try:
            with _untouched(module):
                return dict(self._measured(module))
        finally:
            self._last = monotonic() - began
            self._spent += self._last

    def start(self, module: nn.Module) -> dict[str, Estimate]:
        """Return the estimates before training, and begin to count time: what cannot be measured is known at once."""
        estimates = self(module)
        self._began, self._spent = monotonic(), 0.0
        return estimates

    def due(self, epoch: int) -> bool:
        """Return whether to measure after this epoch."""
        return epoch % self.every == 0 and self._spent + self._last <= self.share * (monotonic() - self._began)

    def after(self, epoch: int, module: nn.Module) -> dict[str, Estimate]:
        """Return the estimates after this epoch, none if it is not measured.

        If the encoder cannot be measured, for example because embeddings are not finite, this warns and training goes on.
        """
        if not self.due(epoch):
            return {}
        try:
            return self(module)
        except HoldfastError as error:
            warnings.warn(f"nothing was measured after epoch {epoch}: {error}", HoldfastWarning, stacklevel=2)
            return {}

    def _measured(self, module: nn.Module) -> Iterator[tuple[str, Estimate]]:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".* was in training mode", category=HoldfastWarning)
            encoder = Encoder(module, "in training", self.domain, mean=self.mean, std=self.std)
        weight = next(module.parameters(), None)
        run = RunSettings(seed=self.seed, device=str(weight.device) if weight is not None else "cpu")
        bank = None if self.bank is None else Population(encoder, self.bank, run)
        population = Population(encoder, self.images, run, bank=bank)
        if not torch.isfinite(population.codes).all():
            raise HoldfastError(
                "its embeddings are NaN or infinite; lower the learning rate, or look at its last images"
            )
        for evaluation in self.plan:
            result = evaluation.measured(population, illustrated=False)
            for quantity in result.headline:
                if (estimate := worst(result.model_copy(update={"headline": (quantity,)}))) is not None:
                    yield quantity, estimate
        k = min(NEIGHBOURS, len(self.images) - 1)
        near = nearest_neighbours(points(population.codes), k).index
        if self._near is not None:
            shares = (self._near[:, :, None] == near[:, None, :]).any(2).mean(1)
            of, conditions = "nearest neighbours that were nearest when last measured", {"k": str(k)}
            values = torch.from_numpy(shares)
            series = series_of(KEPT, conditions, values, "fraction of neighbours", Claim.ESTIMATE, of, "")
            yield KEPT, summarise(series, "mean", "higher")
        self._near = near


def scalars(estimates: Mapping[str, Estimate]) -> dict[str, float]:
    """Return numbers as loggers take them: ``holdfast/rankme`` and the ends of its interval, where it has one.

    Example:
        >>> monitor = Monitor(torch.rand(30, 1, 8, 8), only="geometry")
        >>> sorted(scalars(monitor(nn.Flatten())))[1:4]
        ['holdfast/rankme', 'holdfast/rankme.high', 'holdfast/rankme.low']
    """
    return {
        f"{PREFIX}{quantity}{end}": number
        for quantity, estimate in estimates.items()
        for end, number in (("", estimate.value), (".low", estimate.low), (".high", estimate.high))
        if not isnan(number)
    }


@contextmanager
def _untouched(module: nn.Module) -> Iterator[None]:
    """Give a place in which embeddings have gradients in full precision, and that leaves every generator as it was."""
    devices = sorted({weight.device for weight in module.parameters() if weight.device.type == "cuda"}, key=str)
    python, arrays = random.getstate(), np.random.get_state()
    try:
        with (
            torch.random.fork_rng(devices=devices),
            torch.inference_mode(False),
            torch.enable_grad(),
            torch.autocast(devices[0].type if devices else "cpu", enabled=False),
        ):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)
