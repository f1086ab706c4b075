"""The same training by Holdfast and by parts of lightly: ``python -m studies.objectives.against_lightly TRAIN TEST``.

SimCLR and MoCo v2 with CNN-A on the same images, views, order, optimiser and number of epochs: once by ``hf.train``, once in
a plain loop around lightly's losses and momentum update (lightly >= 1.6). Both are measured by nearest neighbours alike.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import holdfast as hf
from holdfast.core.images import Images
from holdfast.core.noise import Noise
from holdfast.encoders.architectures.base import Architecture
from holdfast.encoders.loading.inputs import declare_missing_operators
from holdfast.training.feed import Feed
from holdfast.training.learner import mlp
from holdfast.transforms.base import Transform
from studies.objectives.training_small import COMMON

DOMAIN = hf.Domain((1, 28, 28))
OURS = {"simclr": "simclr:temperature=0.5", "moco-v2": "moco-v2:temperature=0.2,momentum=0.99,queue=4096"}
Loss = Callable[[Tensor, Tensor], Tensor]


def simclr(encoder: nn.Module) -> tuple[nn.Module, Loss, Callable[[], None]]:
    """Return what is trained, the loss of two views, and what follows a step."""
    from lightly.loss import NTXentLoss

    model = nn.Sequential(encoder, mlp((100, 300, 100)))
    criterion = NTXentLoss(temperature=0.5)
    return model, lambda one, two: criterion(model(one), model(two)), lambda: None


def moco(encoder: nn.Module) -> tuple[nn.Module, Loss, Callable[[], None]]:
    """Return what is trained, the loss of two views, and what follows a step."""
    from lightly.loss import NTXentLoss
    from lightly.models.utils import deactivate_requires_grad, update_momentum

    model = nn.Sequential(encoder, mlp((100, 100, 128)))
    follower = copy.deepcopy(model)
    deactivate_requires_grad(follower)
    criterion = NTXentLoss(temperature=0.2, memory_bank_size=(4096, 128))

    def loss(one: Tensor, two: Tensor) -> Tensor:
        with torch.no_grad():
            keys = follower(two)
        value: Tensor = criterion(model(one), keys)
        return value

    return model, loss, lambda: update_momentum(model, follower, m=0.99)


THEIRS: dict[str, Callable[[nn.Module], tuple[nn.Module, Loss, Callable[[], None]]]] = {
    "simclr": simclr,
    "moco-v2": moco,
}


def by_lightly(name: str, images: Images, epochs: int, seed: int) -> hf.Encoder:
    """Return the encoder that lightly's parts make."""
    torch.manual_seed(seed)
    encoder = Architecture.read(COMMON["architecture"]).build(DOMAIN)
    model, loss, after = THEIRS[name](encoder)
    feed, view = (
        Feed(images, DOMAIN, COMMON["batch"], seed, torch.device("cpu")),
        Transform.read(COMMON["augmentation"]),
    )
    optimiser = torch.optim.Adam(model.parameters(), 1e-3)
    for epoch in range(epochs):
        noise: Noise = feed.noise.fork("epoch", epoch)
        for rows, pixels in feed.epoch(epoch):
            one, two = (view(pixels, noise[rows].fork("view", place)) for place in (0, 1))
            value = loss(one, two)
            optimiser.zero_grad()
            value.backward()
            optimiser.step()
            after()
    return hf.Encoder(encoder.eval(), f"{name}, lightly", DOMAIN)


def accuracy(encoder: hf.Encoder, tested: str, bank: Images, count: int) -> float:
    """Return the share of ``count`` images whose 20 nearest of the bank vote for their class."""
    run = hf.evaluate(
        encoder,
        tested,
        bank=bank,
        only="probe-accuracy",
        settings={"probe-accuracy": {"probes": "knn:k=20"}},
        limit=count,
    )
    return run["probe-accuracy"].estimate("top1_accuracy").value


def main() -> None:
    """Train both ways and print the accuracies."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train")
    parser.add_argument("test")
    parser.add_argument("--out", type=Path, default=Path("runs/against-lightly"))
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--measured", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=1)
    given = parser.parse_args()
    declare_missing_operators()
    some = hf.Encoder(nn.Flatten(), "pixels", DOMAIN)
    for seed in range(given.seeds):
        images = hf.load_images(given.train, some, limit=given.images, seed=seed)
        for name, objective in OURS.items():
            recipe: dict[str, Any] = {**COMMON, "objective": objective, "epochs": given.epochs, "seed": seed}
            ours = hf.train(recipe, images, out=given.out / f"{name}-{seed}")
            theirs = by_lightly(name, images, given.epochs, seed)
            found = [accuracy(encoder, given.test, images, given.measured) for encoder in (ours, theirs)]
            print(f"| {name} | {seed} | {found[0]:.4f} | {found[1]:.4f} |", flush=True)


if __name__ == "__main__":
    main()
