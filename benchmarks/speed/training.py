"""Training against its floor: forward and backward of the same views, and for adversaries also their input gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.measure import arguments, ratio
from holdfast.commands.train import fabric_of
from holdfast.core.encoder import Domain
from holdfast.core.images import Images
from holdfast.training.adversaries.base import untouched
from holdfast.training.loop import Training
from holdfast.training.recipe import Recipe

STEPS, ATTACK = 4, 5
COMMON: dict[str, Any] = {"batch": 64, "epochs": 10_000, "schedule": "constant", "optimiser": "sgd"}
CASES: dict[str, dict[str, Any]] = {
    "supervised": {"objective": "supervised"},
    "simclr, no augmentation": {"objective": "simclr"},
    "simclr": {"objective": "simclr", "augmentation": "moco-cifar-view"},
    "moco-v2": {"objective": "moco-v2:queue=1024", "augmentation": "moco-cifar-view"},
    "byol": {"objective": "byol", "augmentation": "moco-cifar-view"},
    "simclr, loss": {"objective": "simclr", "adversary": f"loss:ball=linf:8/255,steps={ATTACK}"},
    "supervised, loss": {"objective": "supervised", "adversary": f"loss:ball=linf:8/255,steps={ATTACK}"},
}


def training(recipe: Recipe, images: Images, domain: Domain, device: str) -> Training:
    """Return a training that keeps nothing on disk."""
    torch.manual_seed(0)
    module = recipe.architecture.build(domain)
    fabric = fabric_of(device, "float32")
    return Training(recipe, module, domain, images, None, fabric, None, {}, lambda doing, share: None, _nothing, None)


def _nothing(module: nn.Module, curve: list[dict[str, float]]) -> None:
    """Keep nothing."""


def step_of(one: Training) -> Callable[[], None]:
    """Return what takes so many steps as the loop does, order, pixels, views and adversary included."""

    def work() -> None:
        one.learner.train()
        noise = one.feed.noise.fork("epoch", 0)
        for place, (rows, pixels) in enumerate(one.feed.epoch(0)):
            if place == STEPS:
                return
            one._train_step(rows, pixels, noise[rows])

    return work


def floor_of(one: Training, views: int, copies: int, attacked: int) -> Callable[[], None]:
    """Return as many forwards and backwards of the encoder, forwards of its copies, and gradients of its input."""
    encoder, batch = one.learner.encoder, one.recipe.batch
    pixels = torch.rand(batch, *one.domain.shape, device=one.fabric.device)

    def gradient(x: Tensor) -> None:
        x = x.requires_grad_()
        torch.autograd.grad(encoder(x).sum(), x)

    def work() -> None:
        for _ in range(STEPS):
            with untouched(one.learner):
                for _ in range(attacked):
                    gradient(pixels.clone())
            one.optimiser.zero_grad()
            encoder(torch.cat([pixels] * views)).square().mean().backward()
            one.optimiser.step()
            with torch.no_grad():
                for _ in range(copies):
                    encoder(pixels)

    return work


def main() -> None:
    """Print the cost of a step of each case as a ratio to its floor."""
    given = arguments(__doc__ or "", {"--images": "images in memory (default 512)"})
    domain = Domain((3, 32, 32))
    count = int(given.images or 512)
    images = Images(torch.randint(0, 256, (count, *domain.shape), dtype=torch.uint8), labels=torch.arange(count) % 10)
    for name, settings in CASES.items():
        recipe = Recipe.of({"architecture": "small-resnet", **COMMON, **settings})
        one = training(recipe, images, domain, given.device)
        adversarial = recipe.adversary is not None
        # MoCo v2 encodes its second view by the copy alone; RoCL has a third view.
        views = 1 if recipe.objective.name == "moco-v2" else recipe.objective.views
        views += adversarial and recipe.objective.name == "simclr"
        copies = {"moco-v2": 1, "byol": 2}.get(recipe.objective.name, 0)
        relative, ours, theirs = ratio(
            step_of(one), floor_of(one, views, copies, ATTACK * adversarial), given.device, given.repeats
        )
        each = 1e3 / STEPS
        print(f"{name:24s} {relative:.3f} x ({each * ours:.1f} ms a step, floor {each * theirs:.1f} ms)", flush=True)


if __name__ == "__main__":
    main()
