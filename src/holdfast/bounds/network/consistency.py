"""Checks that a module is the function of its traced graph.

Tracing runs a module once and records its operations, which freezes random draws, counters and branches. A proof about the
graph would then be false for the module. So the module is called again, traced again and compared with its graph on many
kinds of images. These calls may miss rare effects, but effects leave a trace in state. The state of the module and of the
global random generators is therefore compared before and after a call.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from holdfast.bounds.network.network_graph import Graph
from holdfast.core.encoder import Codes, Domain, Encoder, Pixels
from holdfast.core.errors import CannotBound, HoldfastError
from holdfast.core.fingerprint import attributes, behaviour, content, shared_hooks
from holdfast.core.noise import Noise

IMAGES = 12
WORK = 2**26  # entries of nodes that the comparison may cost, beyond those of one image
WIDEST = 10.0  # images stay this near zero where the domain has no end

State = dict[str, list[str]]
"""Text that describes each attribute, weight and buffer, and the code of each part of a module, by its place."""


def probes(domain: Domain, dtype: torch.dtype, device: torch.device) -> Pixels:
    """Return seeded images of many brightnesses and contrasts; every fourth lies in a corner of the domain."""
    noise = Noise.of(0, [f"probe {row}" for row in range(IMAGES)], device)
    low, high = (min(max(end, -WIDEST), WIDEST) for end in (domain.low, domain.high))
    darkest, brightest = noise.fork("ends").uniform((2,), dtype).unbind(1)
    share = noise.uniform(domain.shape, dtype)
    axes = (-1,) + (1,) * len(domain.shape)
    share = darkest.reshape(axes) + (brightest - darkest).reshape(axes) * share
    share[::4] = share[::4].round()
    return domain.clip(low + (high - low) * share)


def call(encoder: Encoder, pixels: Pixels) -> Codes:
    """Return the module's embeddings of a copy of ``pixels``, or say in one sentence how it fails."""
    try:
        with torch.no_grad():
            return encoder.forward(pixels.clone())
    except HoldfastError:
        raise
    except Exception as error:  # whatever a stranger's module raises is what the reader must hear
        reason = str(error).strip().partition("\n")[0]
        raise CannotBound(
            encoder.name,
            f"it fails on {len(pixels)} images of shape {tuple(pixels.shape[1:])} in {str(pixels.dtype)[6:]} "
            f"({type(error).__name__}: {reason})",
        ) from error


def check_repeatable(encoder: Encoder, pixels: Pixels, codes: Codes, allowed: float) -> None:
    """Raise unless the module, called again and image by image, returns ``codes`` and is left as it was."""
    first = call(encoder, pixels[:1])  # what a module keeps of its last call is the same after the next one
    before, drawn = state(encoder.module), _generators()
    again = call(encoder, pixels[:1])
    if drawn != _generators():
        raise CannotBound(encoder.name, "it draws random numbers at each call", fix="switch the randomness off")
    changed = [place for place, value in state(encoder.module).items() if before.get(place) != value]
    if changed:
        raise CannotBound(encoder.name, f"each call changes its own {changed[0]!r}", fix="keep no state in forward")
    alone = torch.cat([again, *(call(encoder, image) for image in pixels[1:].split(1))])
    for left, right, when in ((first, again, "when it is called again"), (alone, codes, "alone and among others")):
        unequal = unlike(left, right, slack(codes, allowed))
        if unequal.any():
            raise CannotBound(
                encoder.name,
                f"it returns different embeddings for the same image {when} ({int(unequal.sum())} of {len(unequal)} images)",
                fix="remove randomness, counters and batch statistics from its forward",
            )


def check_graph(encoder: Encoder, graph: Graph, pixels: Pixels, codes: Codes, allowed: float) -> None:
    """Raise unless ``graph`` computes the module's ``codes`` of ``pixels``."""
    sizes = [prod(node.shape) for node in graph.nodes]
    count = max(1, min(len(pixels), WORK // sum(sizes)))
    together = max(1, WORK // 8 // max(sizes))
    with torch.no_grad():
        bounded = torch.cat([graph(some) for some in pixels[:count].split(together)])
    unequal = unlike(bounded, codes[:count], slack(codes, allowed))
    if unequal.any():
        raise CannotBound(
            encoder.name,
            f"its traced graph gives other embeddings for {int(unequal.sum())} of {count} images",
            fix="let its forward depend on no values, on no tracing and on no uninitialised memory",
        )


def slack(codes: Codes, allowed: float) -> Float[Tensor, "d"]:
    """Return the allowed difference of each feature: the fraction ``allowed`` of its size in all embeddings."""
    size = codes.abs().nan_to_num(0, 0).amax(0)
    return allowed * (size + 0.01 * size.max())


def unlike(others: Codes, codes: Codes, slack: Float[Tensor, "d"]) -> Bool[Tensor, "b"]:
    """Return which embeddings differ by more than ``slack`` in some feature."""
    close = (others - codes).abs() <= slack
    return ~(close | (others == codes) | (others.isnan() & codes.isnan())).all(1)


def same_program(first: Any, second: Any) -> bool:
    """Return whether two exported programs are equal, with the same constants."""
    if first.graph_module.code != second.graph_module.code or first.constants.keys() != second.constants.keys():
        return False
    pairs = ((value, second.constants[key]) for key, value in first.constants.items())
    return all(_equal(left, right) for left, right in pairs if isinstance(left, Tensor))


def _equal(left: Tensor, right: Tensor) -> bool:
    return left.shape == right.shape and left.dtype == right.dtype and list(content(left)) == list(content(right))


def state(module: nn.Module) -> State:
    """Return text that describes what a module holds and does; without what no two looks describe alike."""
    first, second = (dict(_described(module)) for _ in range(2))
    return {place: value for place, value in first.items() if second.get(place) == value}


def _described(module: nn.Module) -> Iterator[tuple[str, list[str]]]:
    parts = frozenset(id(part) for part in module.modules())
    for name, part in module.named_modules():
        traced = isinstance(part, torch.fx.GraphModule)
        own = {} if traced else attributes(part)
        kept = {key: value for key, value in own.items() if key not in ("_modules", "_parameters", "_buffers")}
        for key, value in {**kept, **part._parameters, **part._buffers}.items():
            yield f"{name}.{key}".removeprefix("."), list(content(value, parts))
        if not traced:
            yield f"{name}.forward".removeprefix("."), list(behaviour(part, parts))
    yield "hooks of all modules", shared_hooks(parts)


def _generators() -> list[str]:
    """Return the state of the shared random generators, except Python's own, which runtime type checkers draw from."""
    return list(content([np.random.get_state(legacy=False), torch.random.get_rng_state()]))
