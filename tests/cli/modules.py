"""What ``--arch`` builds in the tests of bad input: encoders of (1, 8, 8), some of which misbehave."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.core.encoder import Domain


class Net(nn.Sequential):
    domain = Domain((1, 8, 8))


class Detached(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.detach()


class Training(nn.Sequential):
    """Ignores ``eval``, as modules do that override it."""

    domain = Domain((1, 8, 8))

    def train(self, mode: bool = True) -> Training:
        super().train(True)
        return self


def linear() -> nn.Module:
    return Net(nn.Flatten(), nn.Linear(64, 5))


def stepped() -> nn.Module:
    return Net(nn.Flatten(), nn.Linear(64, 5), Detached())


def norm() -> nn.Sequential:
    return Net(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 5)).train()


def training() -> nn.Module:
    return Training(*norm())


def matrix() -> nn.Module:
    return Net(nn.Linear(8, 5))


class Answer(nn.Sequential):
    """Returns what ``change`` makes of its codes."""

    domain = Domain((1, 8, 8))

    def __init__(self, change: Callable[[Tensor], object]) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 5))
        self.change = change

    def forward(self, x: Tensor) -> Any:
        return self.change(super().forward(x))


def integers() -> nn.Module:
    return Answer(torch.Tensor.long)


def truths() -> nn.Module:
    return Answer(lambda codes: codes > 0)


def complexes() -> nn.Module:
    return Answer(lambda codes: codes.to(torch.complex64))


def nothing() -> nn.Module:
    return Answer(lambda codes: codes[:, :0])


def sparse() -> nn.Module:
    return Answer(torch.Tensor.to_sparse)


def exits() -> nn.Module:
    return Answer(lambda codes: sys.exit(0))


class Halving(nn.Sequential):
    """Changes its input in place."""

    domain = Domain((1, 8, 8))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.mul_(0.5))


def halving() -> nn.Module:
    return Halving(nn.Flatten(), nn.Linear(64, 5))


def weights(build: nn.Module, **changed: float) -> dict[str, Tensor]:
    """Return the state of a module, with all entries of the tensors named in ``changed`` set to one value."""
    torch.manual_seed(0)
    state = {name: torch.randn_like(v) if v.is_floating_point() else v for name, v in build.state_dict().items()}
    state |= {name: v.abs() + 0.5 for name, v in state.items() if name.endswith("running_var")}
    return state | {name: torch.full_like(state[name], value) for name, value in changed.items()}


class Sorted(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sort(dim=1).values


def sorted_pixels() -> nn.Module:
    """Uses an operation that has no bounds."""
    return Net(nn.Flatten(), Sorted(), nn.Linear(64, 5))


def wide() -> nn.Module:
    return Net(nn.Flatten(), nn.Linear(64, 60_000), nn.ReLU(), nn.Linear(60_000, 2))


def flat(*shape: int) -> nn.Module:
    """Return a small network of inputs of ``shape``, the same each time."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(shape).numel(), 6)).eval()


def four_bands() -> nn.Module:
    return flat(4, 4, 4)


def thirteen_bands() -> nn.Module:
    return flat(13, 4, 4)


def video() -> nn.Module:
    return flat(3, 2, 4, 4)
