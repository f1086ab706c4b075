"""Everyday edits instead of an attack: each image is trained on under the worst of a family of edits.

    x^ = t*(x),   t* = argmax over edits t of the loss of t(x)

Robustness over a family of benign edits: Liu et al. 2026, https://arxiv.org/abs/2604.14973. ``tried`` draws as many edits
for each image and step, and takes the worst of these: 1 is an edit at random.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from holdfast.core.balls import Linf
from holdfast.core.encoder import Domain, Encoder, Pixels
from holdfast.core.errors import Conflict, HoldfastError
from holdfast.core.noise import Noise
from holdfast.core.objective import ObjectiveFunction
from holdfast.core.settings import check_positive
from holdfast.training.adversaries.base import Adversary, Prepared, gain_of, in_training, untouched
from holdfast.training.learner import Batch, Learner, OfRows
from holdfast.transforms.base import Transform
from holdfast.transforms.severity import EDITS, edits_named

SEPARATOR, COMMA = ";", "&"
"""Between names, and for commas within a name: commas end a setting of the adversary."""


@final
@dataclass(frozen=True)
class Edits(Adversary):
    """Train on each image under the worst of a family of everyday edits, without an attack."""

    edits: str = SEPARATOR.join(EDITS)
    """Families of edits, in all severities, or single transforms as in `gamma:0.5`; `;` between them, `&` for commas."""
    tried: int | None = None
    """Edits drawn for each image and step, of which the worst counts; 1: one at random; none: all."""
    name = "edits"

    def __post_init__(self) -> None:
        check_positive(self, "tried")
        if (self.ball, self.steps, self.step) != (Linf(8 / 255), 7, None):
            raise Conflict(self.name, "ball, steps or step", "edits and tried alone")
        if not self.names:
            raise HoldfastError("edits: no edit is named. Expected families, as in edits=jpeg;blur. Name one.")
        assert self.family

    @classmethod
    def of(cls, names: Sequence[str]) -> Edits:
        """Adversary with these families and single transforms."""
        return cls(edits=SEPARATOR.join(names).replace(",", COMMA))

    @property
    def names(self) -> tuple[str, ...]:
        """Families and single transforms to choose from."""
        parts = self.edits.replace(COMMA, ",").split(SEPARATOR)
        return tuple(filter(None, map(str.strip, parts)))

    @property
    def family(self) -> tuple[Transform, ...]:
        """Edits to choose from.

        Example:
            >>> [str(edit) for edit in Edits(edits="gamma:0.5;rotation").family][:3]
            ['gamma:0.5', 'rotation:1.0', 'rotation:2.0']
        """
        return edits_named(self.name, self.names)

    def climbed(self, learner: Learner, batch: Batch) -> tuple[nn.Module, ObjectiveFunction]:
        network, gain = learner.loss_under_attack(batch)
        if isinstance(network, OfRows):
            network = network.among(torch.arange(len(batch.rows), device=batch.rows.device))
        return network, gain

    @torch.no_grad()
    def __call__(self, learner: Learner, batch: Batch, domain: Domain, prepared: Prepared) -> Pixels:
        if (domain.low, domain.high) != (0, 1):
            raise HoldfastError(
                f"edits change pixels in [0, 1], but the encoder takes [{domain.low:g}, {domain.high:g}]; put the scaling "
                "into the encoder"
            )
        clean, noise = batch.views[0], batch.noise.fork("edits")
        chosen = self.drawn(noise)
        with untouched(learner):
            network, gain = self.climbed(learner, batch)
            return worst(self.family, chosen, in_training(network, domain), gain, clean, noise)

    def drawn(self, noise: Noise) -> Int[Tensor, "b t"]:
        """Places of the edits to try on each image, in random order."""
        count = len(self.family)
        return noise.fork("choice").uniform((count,), torch.float64).argsort(1)[:, : self.tried or count]


def worst(
    family: tuple[Transform, ...],
    chosen: Int[Tensor, "b t"],
    encoder: Encoder,
    gain: ObjectiveFunction,
    clean: Pixels,
    noise: Noise,
) -> Pixels:
    """Images under the edit with the largest gain among those chosen for each; of equal ones, the first of the family.

    Args:
        chosen: Places of the edits to try on each image, shape (b, t).
        gain: Gain of each image as a function of all embeddings.
        clean: Images, shape (b, *pixels).
    """
    edited, most = clean.clone(), torch.full(clean.shape[:1], -torch.inf, device=clean.device)
    for place, edit in enumerate(family):
        rows = (chosen == place).any(1).nonzero()[:, 0].to(clean.device)
        if not len(rows):
            continue
        tried = edit(clean[rows], noise[rows.cpu()])
        if chosen.shape[1] == 1:  # nothing to compare
            edited[rows] = tried
            continue
        reached: Float[Tensor, "r"] = gain_of(rows, gain, encoder, clean)(encoder.forward(tried)).float()
        better = reached > most[rows]  # never where it is nan
        edited[rows[better]], most[rows[better]] = tried[better], reached[better]
    return edited
