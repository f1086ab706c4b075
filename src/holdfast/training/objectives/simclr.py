"""SimCLR: the views of an image are alike, and unlike the views of all other images of the batch.

With unit projections ``z`` of the ``V n`` views of ``n`` images, temperature ``T`` and the other views ``P(i)`` of view
``i``'s image:

    loss = mean_i sum_{p in P(i)} -log( exp(z_i.z_p / T) / sum_{k != i} exp(z_i.z_k / T) )       (NT-Xent)

Chen et al. 2020, https://arxiv.org/abs/2002.05709, equation 1, for two views. With an adversary that climbs the loss it is
RoCL (Kim, Tack and Hwang 2020, https://arxiv.org/abs/2006.07589): that sum over both views and the attacked one, all
``3 n`` in one denominator, and 1/256 of NT-Xent between attacked and second view, as in its authors' program
(https://github.com/Kim-Minseon/RoCL). Two departures from the program: gradients pass through both sides of a product,
where there the side that an anchor is compared with is held still; and its attack has the other attacked images among the
negatives, where this one is of each image alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import nll_loss, normalize

from holdfast.core.encoder import Codes
from holdfast.core.settings import require_not_negative, require_positive
from holdfast.objectives.base import ObjectiveFunction
from holdfast.training.components.heads import mlp
from holdfast.training.components.info_nce import info_nce
from holdfast.training.gathering import gathered, own_rows
from holdfast.training.learner import Batch, Learner, Setting, TrainingObjective, require_two_images

EXTRA = 1 / 256
"""RoCL's weight of the additional term between the attacked view and the second one."""


def nt_xent(views: Sequence[Codes], temperature: float) -> Float[Tensor, ""]:
    """Return NT-Xent among views of the same images, shape (b, d) each: this process's anchors, all negatives."""
    units = [normalize(view, dim=1) for view in views]
    everybody = torch.cat([gathered(view) for view in units])
    rows, count = own_rows(len(units[0]), units[0].device), len(everybody) // len(units)
    losses = []
    for place, view in enumerate(units):
        logits = view @ everybody.T / temperature
        logits = logits.scatter(1, (rows + place * count)[:, None], -torch.inf)
        chances = logits.log_softmax(dim=1)
        losses += [nll_loss(chances, rows + other * count) for other in range(len(units)) if other != place]
    return torch.stack(losses).sum() / len(units)


@final
@dataclass(frozen=True)
class SimCLR(TrainingObjective):
    """NT-Xent between the projections of two views; with an adversary on the loss, RoCL."""

    temperature: float = 0.5
    hidden: int = 0
    """Width of the projection's hidden layer; 0 is that of the codes and 200 more, as in RoCL."""
    projection: int = 0
    """Width of the projection; 0 is that of the codes."""
    head: bool = True
    """Whether there is a projection; without one the loss is of the codes themselves, as certified training needs it."""
    name = "simclr"

    def __post_init__(self) -> None:
        require_positive(self, "temperature")
        require_not_negative(self, "hidden", "projection")

    def learner(self, encoder: nn.Module, setting: Setting) -> Learner:
        require_two_images(self, setting)
        hidden, out = self.hidden or setting.width + 200, self.projection or setting.width
        head = mlp((setting.width, hidden, out)) if self.head else nn.Identity()
        return SimCLRLearner(encoder, head, self.temperature)


@final
class SimCLRLearner(Learner):
    """An encoder with a projection."""

    def __init__(self, encoder: nn.Module, head: nn.Module, temperature: float) -> None:
        super().__init__(encoder)
        self.head, self.temperature = head, temperature

    def forward(self, batch: Batch) -> Float[Tensor, ""]:
        moved = () if batch.attacked is None else (batch.attacked,)
        views = (*batch.views[:2], *moved)
        # One pass, so that batch norm sees one batch.
        parts = self.head(self.encoder(torch.cat(views))).chunk(len(views))
        loss = nt_xent(parts, self.temperature)
        return loss + EXTRA * nt_xent((parts[2], parts[1]), self.temperature) if moved else loss

    def loss_under_attack(self, batch: Batch) -> tuple[nn.Module, ObjectiveFunction]:
        network = nn.Sequential(self.encoder, self.head)
        with torch.no_grad():
            return network, info_nce(network(batch.views[1]), self.temperature)
