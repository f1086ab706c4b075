"""SupCon: supervised contrastive learning; views of images of one class are alike, and unlike those of other classes.

With unit projections ``z`` of all views, temperature ``T``, and ``P(i)`` the other views of the class of view ``i``:

    loss = mean_i mean_{p in P(i)} -log( exp(z_i.z_p / T) / sum_{a != i} exp(z_i.z_a / T) )

Khosla et al. 2020, https://arxiv.org/abs/2004.11362, equation 2 (L_out). With an adversary the attacked views are a third
view of each image.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import log_softmax, normalize

from holdfast.core.settings import require_not_negative, require_positive
from holdfast.objectives.base import ObjectiveFunction
from holdfast.training.components.heads import mlp
from holdfast.training.gathering import gathered, own_rows
from holdfast.training.learner import Batch, Learner, Setting, TrainingObjective, require_two_images


def sup_con(logits: Float[Tensor, "b n"], alike: Bool[Tensor, "b n"]) -> Float[Tensor, "b"]:
    """Return each anchor's loss from its logits with all other views and from which of these are of its class."""
    return -log_softmax(logits, dim=1).where(alike, 0).sum(dim=1) / alike.sum(dim=1)


@final
@dataclass(frozen=True)
class SupCon(TrainingObjective):
    """Contrastive learning of the classes of the labels, by two views."""

    temperature: float = 0.1
    hidden: int = 0
    """Width of the projection's hidden layer; 0 is that of the codes."""
    projection: int = 128
    """Width of the projection."""
    name = "supcon"
    needs_labels = True

    def __post_init__(self) -> None:
        require_positive(self, "temperature", "projection")
        require_not_negative(self, "hidden")

    def learner(self, encoder: nn.Module, setting: Setting) -> Learner:
        require_two_images(self, setting)
        head = mlp((setting.width, self.hidden or setting.width, self.projection))
        return SupConLearner(encoder, head, self.temperature)


@final
class SupConLearner(Learner):
    """An encoder with a projection."""

    def __init__(self, encoder: nn.Module, head: nn.Module, temperature: float) -> None:
        super().__init__(encoder)
        self.head, self.temperature = head, temperature

    def forward(self, batch: Batch) -> Float[Tensor, ""]:
        views = (*batch.views[:2], *(() if batch.attacked is None else (batch.attacked,)))
        parts = normalize(self.head(self.encoder(torch.cat(views))), dim=1).chunk(len(views))
        everybody = torch.cat([gathered(part) for part in parts])
        alike = self.alike(batch).repeat(1, len(views))
        rows, count = own_rows(len(batch.rows), everybody.device), len(everybody) // len(views)
        losses = []
        for place, part in enumerate(parts):
            itself = (rows + place * count)[:, None]
            logits = (part @ everybody.T / self.temperature).scatter(1, itself, -torch.inf)
            losses.append(sup_con(logits, alike.scatter(1, itself, False)))
        return torch.cat(losses).mean()

    def alike(self, batch: Batch) -> Bool[Tensor, "b n"]:
        """Return which images of the whole batch have the class of each image of this process."""
        assert batch.labels is not None
        return batch.labels[:, None] == gathered(batch.labels)

    def loss_under_attack(self, batch: Batch) -> tuple[nn.Module, ObjectiveFunction]:
        network, alike = nn.Sequential(self.encoder, self.head), self.alike(batch)
        with torch.no_grad():
            others = gathered(normalize(network(batch.views[1]), dim=1))
        return network, lambda codes: sup_con(normalize(codes, dim=1) @ others.T / self.temperature, alike)
