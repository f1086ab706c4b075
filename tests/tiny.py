"""The smallest encoder, images and evaluation that a run can be made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import sleep as sleep  # which tests replace by a clock of their own
from typing import final

import torch
from torch import Tensor, nn

from holdfast.core.encoder import Domain, Encoder
from holdfast.core.images import Images
from holdfast.core.records import Claim, Findings, Series
from holdfast.core.run_settings import Observed
from holdfast.core.statistics.summaries import summarise
from holdfast.measure.evaluation import Evaluation
from holdfast.measure.observation import Observation
from holdfast.measure.population import Population

DOMAIN = Domain((1, 2, 2))


class Scaled(nn.Module):
    """``scale * x``, flattened: each row's code is exact whatever the batch."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(scale))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) * self.scale


def encoder(name: str = "tiny", scale: float = 2.0) -> Encoder:
    return Encoder(Scaled(scale), name, DOMAIN)


def images(count: int = 20) -> Images:
    pixels = torch.rand(count, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    return Images(pixels, [f"image{k}" for k in range(count)], name="tiny images")


@final
@dataclass(frozen=True)
class Seen(Observation):
    """Noisy sums of codes; writes the ids it looks at to ``log``."""

    log: str = ""
    pause: float = 0.0
    samples: int = 16
    name = "seen"
    version = 1

    def rows(self, population: Population) -> list[int]:
        return population.choose(self.samples)

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        sleep(self.pause)
        if self.log:
            with Path(self.log).open("a") as file:
                file.writelines(f"{population.images.ids[row]}\n" for row in rows)
        noise = population.run.noise([population.images.ids[row] for row in rows])
        return {"sum": population.codes[list(rows)].sum(1) + noise.uniform((1,))[:, 0]}


@final
@dataclass(frozen=True)
class Mean(Evaluation):
    """The mean of what is seen, times ``factor``; fails if told to."""

    factor: float = 1.0
    broken: bool = False
    log: str = ""
    pause: float = 0.0
    samples: int = 16
    name = "mean"
    version = 1
    partial = True
    title = "Mean"
    meaning = "A number. Nothing more."
    headline = ("mean",)

    def observation(self) -> Seen:
        return Seen(self.log, self.pause, self.samples)

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        if self.broken:
            raise RuntimeError("it is broken")
        values = tuple((observed["sum"] * self.factor).tolist())
        series = Series(quantity="mean", values=values, unit="1", claim=Claim.ESTIMATE, of="mean")
        return Findings(
            ids=tuple(population.images.ids[row] for row in rows),
            series=(series,),
            estimates=(summarise(series, "mean", "neither"),),
        )
