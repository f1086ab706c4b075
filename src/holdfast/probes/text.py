"""The text probe: zero-shot classification, by the encoder's own text tower instead of a bank.

    score_c(x) = scale * cos(f(x), w_c),    w_c the mean of the unit codes of all prompts of class c

Radford et al. 2021, https://arxiv.org/abs/2103.00020, section 3.1, which takes the mean of several prompts in code space.
``scale`` is the model's own, so that scores are its logits, up to an offset that all classes share.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from holdfast.core.encoder import Codes
from holdfast.core.errors import HoldfastError
from holdfast.core.run_settings import Observed
from holdfast.core.texts import TextTower
from holdfast.probes.base import FittedProbe, Probe, class_names
from holdfast.probes.neighbours import unit
from holdfast.probes.prompts import by_class, content
from holdfast.protocol.population import Population


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class TextScores(FittedProbe):
    """Codes compared with those of texts, in float64."""

    texts: Float[Tensor, "c d"]
    """Unit codes, one for each class."""
    scale: float

    def scores(self, codes: Codes) -> Float[Tensor, "b c"]:
        return self.scale * unit(codes.double()) @ self.texts.T

    def logits(self, codes: Codes) -> Float[Tensor, "b c"]:
        return self.scores(codes)


@final
@dataclass(frozen=True)
class TextProbe(Probe):
    """Prompts of a file, by the text tower of the encoder: zero-shot, without a bank."""

    prompts: str
    digest: str = ""
    """Of what the file says, which is part of every key."""
    name = "text"
    example = "prompts.txt"
    version = 1
    uses_bank = False
    uses_texts = True

    def __post_init__(self) -> None:
        digest = content(self.prompts)[1]
        if self.digest not in ("", digest):
            raise HoldfastError(
                f"the prompts in {self.prompts!r} have digest {digest} and no longer {self.digest}; leave the digest out, "
                "or restore the file"
            )
        object.__setattr__(self, "digest", digest)

    def learn(self, population: Population) -> Observed:
        tower, (prompts, _) = text_tower(population), content(self.prompts)
        numbers = numbers_of_classes(population)
        names, shown = (class_names(population, which) for which in (numbers, population.labels.unique()))
        texts_of = by_class(prompts, names, shown, self.prompts)
        codes = unit(tower.encode([text for texts in texts_of.values() for text in texts]).double())
        if codes.shape[1] != (features := population.codes.shape[1]):
            raise HoldfastError(
                f"{population.encoder.name} has {features} features of an image and {codes.shape[1]} of a text; load it as "
                "it compares the two"
            )
        means = torch.stack([part.mean(0) for part in codes.split([len(texts) for texts in texts_of.values()])])
        known = dict(zip(names, numbers.tolist(), strict=True))
        others = count(1 + int(numbers.max()))
        classes = [known[name] if name in known else next(others) for name in texts_of]
        return {
            "texts": unit(means),
            "classes": torch.tensor(classes),
            "scale": torch.tensor(tower.model.scale, dtype=torch.float64),
            "unshown": torch.tensor([name not in known for name in texts_of]),
        }

    def restore(self, population: Population, learned: Observed) -> TextScores:
        device, unshown = population.run.device, int(learned["unshown"].sum())
        others = f"{self} names {unshown} classes that the images do not have; they are answers like the others."
        return TextScores(
            encoder=population.encoder,
            classes=learned["classes"].to(device),
            caution=others if unshown else "",
            texts=learned["texts"].to(device),
            scale=float(learned["scale"]),
        )


def numbers_of_classes(population: Population) -> Int[Tensor, "c"]:
    """Return the labels that images may have: one for each class that they name, else those that there are."""
    named = population.images.classes
    return torch.arange(len(named)) if named else population.labels.unique().cpu()


def text_tower(population: Population) -> TextTower:
    """Return what encodes texts beside the images of ``population``.

    Raises:
        HoldfastError: the encoder has no such tower.
    """
    if population.encoder.texts is None:
        raise HoldfastError(
            f"{population.encoder.name} has no text tower beside its codes; the models of open_clip have one, and CLIP and "
            "SigLIP of hf with ?pool=projected"
        )
    return population.encoder.texts
