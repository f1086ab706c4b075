"""Small modules that turn the output of a source into one vector per image."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, fx, nn

from holdfast.core.encoder import Dense, Domain
from holdfast.core.errors import HoldfastError, OutOfRange, check_known, explained
from holdfast.core.geometry import sizes

T = TypeVar("T")
POOLINGS = ("cls", "mean")
PATCH = "patch"
"""Not pooled: every token that stands for a place in the image."""


def pool(hidden: Float[Tensor, "b ..."], how: str, prefix: int = 0) -> Float[Tensor, "b ..."]:
    """Return one vector per image from tokens (b, t, d) or feature maps (b, d, *positions), or their tokens.

    Args:
        hidden: what the network returned.
        how: ``cls`` (the first token), ``mean`` (over positions) or ``patch`` (all of these: (b, places, d)).
        prefix: leading tokens that stand for no place in the image; mean and patch leave them out.

    Example:
        >>> pool(torch.tensor([[[9.0], [1.0], [3.0]]]), "mean", prefix=1)
        tensor([[2.]])
        >>> pool(torch.tensor([[[9.0], [1.0], [3.0]]]), "patch", prefix=1)
        tensor([[[1.],
                 [3.]]])
    """
    if how == PATCH:
        return hidden.flatten(2).transpose(1, 2) if hidden.ndim > 3 else hidden[:, prefix:]
    if hidden.ndim < 3:
        return hidden
    if hidden.ndim > 3:
        if how != "mean":
            raise HoldfastError(f"feature maps of shape {tuple(hidden.shape)} have no {how} token; use pool=mean")
        return hidden.flatten(2).mean(2)
    return hidden[:, 0] if how == "cls" else hidden[:, prefix:].mean(1)


def check_tokens(tokens: str | None, how: str | None) -> None:
    """Raise unless ``tokens`` is None or ``patch``, and then no one asks for a pooled code as well."""
    if tokens not in (None, PATCH):
        raise OutOfRange("tokens", tokens, PATCH, fix="for one vector per image use pool")
    if tokens and how:
        raise HoldfastError(f"tokens={tokens} keeps every patch and pool={how} makes one vector of them; leave one out")


def dense(module: nn.Module, domain: Domain, name: str) -> Dense:
    """Return ``module``, from normalised inputs to tokens (b, t, d), as one of dense codes; its tokens are counted on one.

    Raises:
        HoldfastError: it does not return tokens.
    """
    with torch.no_grad():
        tokens = module(torch.zeros(1, *domain.shape))
    if tokens.ndim != 3 or not tokens.shape[1]:
        raise HoldfastError(
            f"{name} has no patch tokens: its last layer gives {tuple(tokens.shape)} of one image; leave out tokens={PATCH}"
        )
    return Dense(module, tokens.shape[1])


def check_result(module: nn.Module, name: str, domain: Domain, tokens: str | None) -> None:
    """Raise unless ``module`` makes one vector, or tokens, of one image and nothing else."""
    problem = f"{name!r} cannot be run on an image of {sizes(domain.shape)} alone"  # it wants texts, or another size
    with explained(problem, "wrap its vision part yourself: python:package.module:factory"), torch.no_grad():
        codes = module(torch.zeros(1, *domain.shape))
    if not tokens and codes.ndim != 2:
        raise HoldfastError(
            f"{name!r} makes {sizes(codes.shape[1:])} numbers of an image, not one vector; choose another pool"
        )


class Pooled(nn.Module):
    """A module followed by ``pool``."""

    def __init__(self, module: nn.Module, how: str) -> None:
        super().__init__()
        check_known("pool", how, POOLINGS)
        self.module, self.how = module, how

    def extra_repr(self) -> str:
        return self.how

    def forward(self, x: Tensor) -> Tensor:
        return pool(self.module(x), self.how)


class Rearranged(nn.Module):
    """A module that takes channels in the opposite order (``bgr``), or after height and width (``nhwc``)."""

    def __init__(self, module: nn.Module, channels: str, layout: str) -> None:
        super().__init__()
        self.module, self.channels, self.layout = module, channels, layout
        self.train(module.training)

    def extra_repr(self) -> str:
        return f"{self.channels}, {self.layout}"

    def forward(self, x: Float[Tensor, "b c h w"]) -> Tensor:
        if self.channels == "bgr":
            x = x.flip(1)
        return self.module(x.permute(0, 2, 3, 1) if self.layout == "nhwc" else x)


class Around(nn.Module):
    """A module around another one."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


class PerImage(Around):
    """A module that was exported for batches of one, run image by image."""

    one_by_one: ClassVar[bool] = True
    """Read where batches of many sizes would be tried."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([_rows(self.module(image)) for image in x.split(1)])


def _rows(codes: Tensor) -> Tensor:
    """Return the embedding of one image with a batch axis, which a module exported for one image may leave out."""
    return codes.reshape(1, -1) if codes.ndim < 2 else codes


class Traced(nn.Module):
    """An exported graph, which has neither training nor evaluation mode and refuses to be asked for one."""

    def __init__(self, graph: nn.Module) -> None:
        super().__init__()
        for part in graph.modules():
            part.training = False
        self.graph = graph

    def train(self, mode: bool = True) -> Traced:
        self.training = mode
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Traced:
        """Move the graph with its tensors: an exported one names the device of each tensor that it makes."""
        super()._apply(fn, recurse)
        place = next((value.device for value in (*self.parameters(), *self.buffers())), None)
        for part in self.modules() if place else ():
            if isinstance(part, fx.GraphModule) and _moved(part.graph, place):
                part.recompile()
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.graph(x)


def _moved(graph: fx.Graph, place: torch.device | None) -> bool:
    """Let the operations of ``graph`` make their tensors at ``place``; return whether there are any that did not."""
    elsewhere = [node for node in graph.nodes if node.kwargs.get("device") not in (None, place)]
    for node in elsewhere:
        node.update_kwarg("device", place)
    return bool(elsewhere)


def for_batches(module: nn.Module, batch: int | None, name: str, advice: str) -> nn.Module:
    """Return ``module``, exported for batches of ``batch`` images (None: any number), as one that takes any number."""
    if batch not in (None, 1):
        raise HoldfastError(f"{name!r} was exported for batches of exactly {batch} images; {advice}")
    return PerImage(module) if batch == 1 else module


def seeded(build: Callable[[], T], seed: int) -> T:
    """Return what ``build`` makes when torch's generator starts at ``seed``; the generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()
