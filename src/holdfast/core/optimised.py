"""An encoder optimised for speed, and the number of its operations.

The optimised encoder is the same function of the pixels up to rounding.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from holdfast.core.copies import copied
from holdfast.core.encoder import Codes, Encoder, Pixels
from holdfast.core.images import random_images
from holdfast.core.noise import Noise
from holdfast.core.run_settings import without_tf32

_COUNTED: WeakKeyDictionary[Encoder, int] = WeakKeyDictionary()


def operations(encoder: Encoder) -> int:
    """Floating-point operations per embedding, of products and convolutions alone.

    Counted rather than timed, so that the same encoder always has the same number. What torch does not see counts as 0,
    and so does an encoder that fails: its examination says why.

    Example:
        >>> from torch import nn
        >>> from holdfast.core.encoder import Domain
        >>> operations(Encoder(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), "linear", Domain((1, 8, 8))))
        1280
    """
    if encoder in _COUNTED:
        return _COUNTED[encoder]
    weight = next(encoder.module.parameters(), torch.zeros(()))
    image = torch.full((1, *encoder.domain.shape), encoder.domain.low, device=weight.device, dtype=weight.dtype)
    counted = _Counting()
    with torch.no_grad(), counted, suppress(Exception):
        encoder.module(image)
    _COUNTED[encoder] = counted.operations
    return counted.operations


class _Counting(TorchDispatchMode):
    """Counts while it is entered; torch's own counter decomposes what it does not know, which takes seconds."""

    operations = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler, more than a second for every command

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if known := flop_registry.get(func.overloadpacket):
            self.operations += known(*args, **(kwargs or {}), out_val=out)
        return out


# In eval mode a batch norm is a line for each channel, ``y -> gamma (y - mean) / sqrt(var + eps) + beta``. Behind a
# convolution ``y = W * x + b`` the two are one convolution: with ``scale = gamma / sqrt(var + eps)`` that of the
# weights ``scale W`` and the offsets ``scale (b - mean) + beta``. And a convolution on a CPU is quicker where the
# channels of each pixel lie side by side in memory.
#
# How an encoder is arranged follows from its module, device and precision alone, never from the clock, so that every
# process and every start of a run rounds alike.

LARGE = 1 << 24
"""Operations an image up to which nothing is arranged: such networks gain nothing by it, and their numbers stay."""
DEVICES = ("cpu", "cuda")
TOGETHER = 4
"""How many images an arranged encoder encodes at a time on a CPU."""
TRIALS = 3
"""How many images of noise an arrangement is tried on."""

aten = torch.ops.aten
NORMS = (aten.native_batch_norm, aten.cudnn_batch_norm, aten.miopen_batch_norm)
TRANSPOSED = 6
"""Where the arguments of a convolution say that it is transposed."""

_ARRANGED: WeakKeyDictionary[Encoder, Encoder | None] = WeakKeyDictionary()
"""None where the encoder itself is meant, which it would keep alive."""


def optimised(encoder: Encoder) -> Encoder:
    """The encoder optimised for speed, or itself if that gains nothing or fails."""
    if encoder not in _ARRANGED:
        _ARRANGED[encoder] = _arranged(encoder)
    return _ARRANGED[encoder] or encoder


@torch.no_grad()
def codes_of(encoder: Encoder, pixels: Pixels) -> Codes:
    """Embeddings without gradients, by the optimised encoder.

    On a CPU a large encoder gets few images at a time: activations of many would not fit into the C library's blocks.
    """
    quick = optimised(encoder)
    if quick is encoder or pixels.device.type != "cpu":
        return quick.forward(pixels)
    return torch.cat([quick.forward(part) for part in pixels.split(TOGETHER)])


def optimisation(encoder: Encoder) -> str:
    """Return how ``encoder`` is arranged, in words."""
    module = optimised(encoder).module
    if module is encoder.module:
        return "as it was built"
    inner = module.module if isinstance(module, ChannelsLast) else module
    count = _norms(encoder.module) - _norms(inner)
    folded = [f"{count} batch norms folded into convolutions"] if count else []
    return ", ".join([*folded, *["channels last"][: inner is not module]])


def _norms(module: nn.Module) -> int:
    return sum(_is_norm(part) for part in module.modules())


def _arranged(encoder: Encoder) -> Encoder | None:
    anchor = next(encoder.module.parameters(), None)
    if anchor is None or anchor.device.type not in DEVICES or anchor.dtype != torch.float32:
        return None
    if operations(encoder) <= LARGE:
        return None
    with suppress(Exception), without_tf32():  # whatever a stranger's module raises, it is left as it is
        watch = watched(encoder.module, _noise(encoder, anchor)[:1])
        folded = fold(encoder.module, watch)
        if anchor.device.type == "cpu" and len(encoder.domain.shape) == 3 and len(watch.convolutions) > 1:
            with suppress(RuntimeError):  # a view that this layout does not allow
                last = ChannelsLast(folded)
                if _agrees(last, encoder, anchor):
                    return _with_module(encoder, last)
        if folded is not encoder.module and _agrees(folded, encoder, anchor):
            return _with_module(encoder, folded)
    return None


@final
class ChannelsLast(nn.Module):
    """``module`` in channels-last memory layout."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = copied(module)
        for weight in self.module.parameters():
            if weight.ndim == 4:
                weight.data = weight.data.contiguous(memory_format=torch.channels_last)

    def forward(self, x: Pixels) -> Codes:
        return self.module(x.contiguous(memory_format=torch.channels_last))


def fold(module: nn.Module, watch: Watching) -> nn.Module:
    """Frozen copy of ``module`` with batch norms folded into the convolutions before them.

    Args:
        module: Network in eval mode.

    Returns:
        The copy; the module itself if no batch norm can be folded.

    Example:
        >>> network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU()).eval().requires_grad_(False)
        >>> fold(network, watched(network, torch.zeros(1, 1, 4, 4)))[1]
        Identity()
    """
    pairs = _pairs(module, watch)
    if not pairs:
        return module
    folded = copied(module)
    for convolution, norm in pairs:
        _fold_into(folded.get_submodule(convolution), folded.get_submodule(norm))
        # What a batch norm does beside its line: in timm it may hold the activation that follows.
        (above, _, name), part = norm.rpartition("."), folded.get_submodule(norm)
        rest = nn.Sequential(*part.children()) if _holds_activation(part) else nn.Identity()
        folded.get_submodule(above)._modules[name] = rest
    return folded


@torch.no_grad()
def _fold_into(convolution: Any, norm: Any) -> None:
    """Make ``convolution`` what it was together with ``norm``; in float64, to round once."""
    wide = {"dtype": torch.float64}
    mean = norm.running_mean.to(**wide)
    gamma = torch.ones_like(mean) if norm.weight is None else norm.weight.to(**wide)
    beta = torch.zeros_like(mean) if norm.bias is None else norm.bias.to(**wide)
    offset = torch.zeros_like(mean) if convolution.bias is None else convolution.bias.to(**wide)
    scale = gamma / (norm.running_var.to(**wide) + norm.eps).sqrt()
    weight = convolution.weight
    scaled = scale.reshape(-1, *(1,) * (weight.ndim - 1)) * weight.to(**wide)
    convolution.weight = nn.Parameter(scaled.to(weight.dtype), requires_grad=False)
    convolution.bias = nn.Parameter((scale * (offset - mean) + beta).to(weight.dtype), requires_grad=False)


def _holds_activation(norm: nn.Module) -> bool:
    parts = dict(norm.named_children())
    return type(norm).__name__ == "BatchNormAct2d" and list(parts) == ["drop", "act"]


def _pairs(module: nn.Module, watch: Watching) -> list[tuple[str, str]]:
    """Return the names of convolutions and batch norms that can be folded.

    That is where the convolution's weights are used once, and so is what it returns: by the batch norm.
    """
    owners = Counter(id(value) for part in module.modules() for value in _values(part))
    parts = {id(value): (name, part) for name, part in module.named_modules() for value in _values(part)}
    pairs = []
    for convolved, mean in watch.norms:
        weight = watch.convolutions.get(convolved, 0)
        if any(watch.uses[value] != 1 for value in (convolved, weight, mean)):
            continue
        if owners[weight] != 1 or owners[mean] != 1:
            continue
        (convolution, its_part), (norm, norm_part) = parts[weight], parts[mean]
        convolves = isinstance(its_part, nn.Conv1d | nn.Conv2d | nn.Conv3d) and not _hooked(its_part)
        if convolves and _is_norm(norm_part):
            pairs.append((convolution, norm))
    return pairs


def watched(module: nn.Module, pixels: Pixels) -> Watching:
    """Record of one call of ``module``."""
    watch = Watching()
    with torch.no_grad(), watch:
        module(pixels)
    return watch


def _values(part: nn.Module) -> list[Tensor]:
    tensors = (*part._parameters.values(), *part._buffers.values())
    return [value for value in tensors if value is not None]


def _is_norm(part: nn.Module) -> bool:
    """Return whether a batch norm does no more than its line, or what else it does is known."""
    plain = isinstance(part, _BatchNorm) and type(part).forward is _BatchNorm.forward
    return (plain or _holds_activation(part)) and not _hooked(part)


def _hooked(part: nn.Module) -> bool:
    return bool(part._forward_hooks or part._forward_pre_hooks or part._backward_hooks)


@final
class Watching(TorchDispatchMode):
    """Record of convolutions, batch norms and the uses of each tensor, while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.uses = Counter[int]()
        self.convolutions = dict[int, int]()  # the weight of the convolution that returned a tensor
        self.norms = list[tuple[int, int]]()  # the input of each batch norm, and its running mean
        self.alive = list[Any]()  # so that no identity is given twice

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler, more than a second

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.alive.append((args, kwargs, out))
        self.uses.update({id(value) for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)})
        if func.overloadpacket is aten.convolution and not args[TRANSPOSED]:
            self.convolutions[id(out)] = id(args[1])
        if func.overloadpacket in NORMS:
            self.norms.append((id(args[0]), id(args[3])))
        return out


def _agrees(module: nn.Module, encoder: Encoder, anchor: Tensor) -> bool:
    """Return whether ``module`` gives the codes of ``encoder`` up to rounding, and gradients, in batches and alone."""
    pixels = _noise(encoder, anchor)
    with torch.no_grad():
        codes = encoder.forward(pixels)
    again = module(inputs := pixels.clone().requires_grad_())
    if again.requires_grad:
        torch.autograd.grad(again.square().sum(), inputs)
    with torch.no_grad():
        alone = module(pixels[:1])
    rounding = torch.finfo(codes.dtype).eps ** 0.5 * float(codes.abs().max())
    return all(
        other.dtype == codes.dtype and float((other - codes[: len(other)]).abs().max()) <= rounding
        for other in (again.detach(), alone)
    )


def _noise(encoder: Encoder, anchor: Tensor) -> Pixels:
    noise = Noise.of(0, [f"arrangement {k}" for k in range(TRIALS)], str(anchor.device))
    return random_images(encoder.domain, noise, anchor.dtype)


def _with_module(encoder: Encoder, module: nn.Module) -> Encoder:
    """Return ``encoder`` with the same function in another form, known by the fingerprint of the original."""
    other = copy.copy(encoder)
    other.__dict__["fingerprint"] = encoder.fingerprint
    other.module = module.eval().requires_grad_(False)
    return other
