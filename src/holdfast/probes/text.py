"""The text probe: zero-shot classification by the encoder's own text tower, with prompts from a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from holdfast.core.encoder import Codes
from holdfast.core.errors import HoldfastError, Unreadable, did_you_mean
from holdfast.core.files import checksum
from holdfast.core.run_settings import Observed
from holdfast.core.text_tower import TextTower
from holdfast.measure.population import Population
from holdfast.probes.base import FittedProbe, Probe, class_names
from holdfast.probes.neighbours import unit

# Files of prompts: what is said of the images of each class.
#
# One prompt a line: ``cat: a photo of a cat`` for the class of that name, ``a photo of a {}`` for every class, with
# its name in place of the braces. Empty lines and what follows a ``#`` at the beginning of a line are left out.

BRACES = "{}"
NAMED = 5


def content(path: str) -> tuple[list[str], str]:
    """Return the prompts in a file, one for each line, and a digest of them.

    Raises:
        HoldfastError: there is no such file, it cannot be read, has no prompts, has one twice, or one of no class.
    """
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise HoldfastError(
            f"there is no file of prompts {path!r}; check the path (relative to {Path.cwd()})"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise Unreadable(f"the prompts in {path!r}", error, fix="name a text file in UTF-8") from error
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), start=1)]
    lines = [(number, line) for number, line in lines if line and not line.startswith("#")]
    if not lines:
        raise HoldfastError(
            f"{path!r} has no prompts; write one on each line, as in 'cat: a photo of a cat' or 'a photo of a {BRACES}'"
        )
    first: dict[str, int] = {}
    for number, line in lines:
        if line in first:
            raise HoldfastError(f"{path!r} has {line!r} twice, on lines {first[line]} and {number}; keep one")
        first[line] = number
        if BRACES not in line and not all(part.strip() for part in (line.partition(":")[::2])):
            raise HoldfastError(
                f"line {number} of {path!r}, {line!r}, is said of no class; write 'cat: {line.strip(' :')}', or {BRACES} "
                "where the name of each class belongs"
            )
    prompts = [line for _, line in lines]
    return prompts, checksum("\n".join(prompts).encode())[:8]


def by_class(prompts: Sequence[str], names: Sequence[str], shown: Sequence[str], path: str) -> dict[str, list[str]]:
    """Prompts of each class, with the classes of the images first.

    Args:
        shown: Classes that occur among the images.

    Raises:
        HoldfastError: A class that occurs has no prompt, or two names differ in capitals alone.

    Example:
        >>> by_class(["a photo of a {}", "Cat: my pet", "fox: a fox"], ["cat", "dog"], ["cat"], "prompts.txt")
        {'cat': ['my pet', 'a photo of a cat'], 'dog': ['a photo of a dog'], 'fox': ['a fox', 'a photo of a fox']}
    """
    spelled = {name.strip().casefold(): name for name in names}
    if len(spelled) < len(names):
        raise HoldfastError(f"two classes of the images are equal except for capitals ({', '.join(names)}); rename one")
    texts_of: dict[str, list[str]] = {name: [] for name in names}
    for prompt in prompts:
        if BRACES not in prompt:
            name, _, text = (part.strip() for part in prompt.partition(":"))
            texts_of.setdefault(spelled.setdefault(name.casefold(), name), []).append(text)
    for name, texts in texts_of.items():
        texts += [prompt.replace(BRACES, name) for prompt in prompts if BRACES in prompt]
    spoken_of = {name: texts for name, texts in texts_of.items() if texts}
    if silent := [name for name in shown if name not in spoken_of]:
        listed = ", ".join(silent[:NAMED]) + (f" and {len(silent) - NAMED} more" if len(silent) > NAMED else "")
        raise HoldfastError(
            f"no prompt of {path!r} names {len(silent)} of the labels ({listed}); add lines such as "
            f"'{silent[0]}: a photo of ...', or one with {BRACES} for all. {did_you_mean(silent[0], list(spoken_of))}"
        )
    return spoken_of


# The text probe: zero-shot classification, by the encoder's own text tower instead of a bank.
#
#     score_c(x) = scale * cos(f(x), w_c),    w_c the mean of the unit codes of all prompts of class c
#
# Radford et al. 2021, https://arxiv.org/abs/2103.00020, section 3.1, which takes the mean of several prompts in code
# space. ``scale`` is the model's own, so that scores are its logits, up to an offset that all classes share.


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class TextScores(FittedProbe):
    """Comparison of embeddings with those of texts, in float64."""

    texts: Float[Tensor, "c d"]
    """Unit text embeddings, one per class, shape (c, d)."""
    scale: float
    """Factor from cosine similarities to logits."""

    def scores(self, codes: Codes) -> Float[Tensor, "b c"]:
        return self.scale * unit(codes.double()) @ self.texts.T


@final
@dataclass(frozen=True)
class TextProbe(Probe):
    """Zero-shot classifier: prompts from a file, embedded by the encoder's text tower."""

    prompts: str
    """File of prompts, one per line."""
    digest: str = ""
    """Hash of the prompts, part of every cache key; filled in when the file is read."""
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
    """Labels that images may have: one per named class, else those that occur."""
    named = population.images.classes
    return torch.arange(len(named)) if named else population.labels.unique().cpu()


def text_tower(population: Population) -> TextTower:
    """Return what encodes texts beside the images of ``population``.

    Raises:
        HoldfastError: the encoder has no such tower.
    """
    if population.encoder.texts is None:
        raise HoldfastError(
            f"{population.encoder.name} has no text tower beside its embeddings; the models of open_clip have one, and "
            "CLIP and SigLIP of hf with ?pool=projected"
        )
    return population.encoder.texts
