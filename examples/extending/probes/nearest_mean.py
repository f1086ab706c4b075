"""The nearest mean: the class whose mean code in the bank is nearest (Mensink et al. 2013, section 3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.extend import Codes, FittedProbe, Observed, Population, Probe, taught


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Means(FittedProbe):
    """The mean code of each class."""

    means: Float[Tensor, "c d"]

    def scores(self, codes: Codes) -> Float[Tensor, "b c"]:
        return -torch.cdist(codes.to(self.means.dtype), self.means)

    def logits(self, codes: Codes) -> Float[Tensor, "b c"]:
        return self.scores(codes)


@final
@dataclass(frozen=True)
class NearestMean(Probe):
    """The class with the nearest mean code."""

    name = "nearest-mean"
    version = 1

    def learn(self, population: Population) -> Observed:
        bank = population.bank
        labels = taught(bank)
        classes = labels.unique()
        return {"classes": classes, "means": torch.stack([bank.codes[labels == one].mean(0) for one in classes])}

    def restore(self, population: Population, learned: Observed) -> Means:
        device = population.run.device
        return Means(
            encoder=population.encoder, classes=learned["classes"].to(device), means=learned["means"].to(device)
        )
