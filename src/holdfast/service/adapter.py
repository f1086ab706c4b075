"""Maps from the embeddings of an old encoder to the space of a new one, fitted, chosen and stored.

With centred old embeddings ``x`` of some images, and new ones ``y`` of the same images, ``mean`` their mean:

    orthogonal   s x R + mean,              R = U W^T from x^T y = U S W^T (Schönemann 1966), s = tr S / |x|^2
    low-rank     x B P + mean,              B by ridge regression, P the projection to the leading directions of x B
    residual     low-rank + relu(x H + h) C,  H and h drawn at random, C by ridge regression of what is left

Penalties and the rank are chosen by cross-validation on the images that the maps are fitted to. The setting and the kinds of
maps are those of Drift-Adapter (https://arxiv.org/abs/2509.23471), which maps new queries into the old space instead and
learns its residual network by gradient steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import torch
from jaxtyping import Float, Int
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from holdfast.core.errors import HoldfastError, check_not_blank
from holdfast.service.canary_file import Size, Text, check_finite, parsed, read, written

KINDS = ("orthogonal", "low-rank", "residual")
FOLDS = 5
PENALTIES = tuple(10.0**power for power in range(-6, 3))
"""Of ridge regression, as a share of the mean squared singular value."""
RANKS = (8, 32, 128)
"""Tried beside the full rank."""
HIDDEN = 512
"""Random features of the residual map, at most; no more than a quarter of the images."""
TENSORS = ("shift", "left", "right", "offset")
RESIDUAL = ("hidden", "bias", "out")


class Header(BaseModel):
    """What the file of a map states beside its arrays."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    kind: Literal["orthogonal", "low-rank", "residual"]
    old: Text
    """Name of the encoder whose embeddings are mapped."""
    new: Text
    """Name of the encoder whose space they are mapped to."""
    unit: bool
    """True if embeddings are brought to norm 1 first, and compared by cosine afterwards."""
    width: Size
    """Features of an old embedding."""
    images: Size
    """Images that the map was fitted to."""


@final
class MapModule(nn.Module):
    """The map as a network, from (n, d) to (n, e): ``((x - shift) left) right + offset``, and its residual."""

    def __init__(self, tensors: dict[str, Tensor], unit: bool) -> None:
        super().__init__()
        self.unit, self.residual = unit, "hidden" in tensors
        for name, values in tensors.items():
            self.register_buffer(name, values)

    def forward(self, embeddings: Float[Tensor, "n d"]) -> Float[Tensor, "n e"]:
        get = self.get_buffer
        if self.unit:
            embeddings = embeddings / torch.linalg.vector_norm(embeddings, dim=1, keepdim=True)
        x = embeddings - get("shift")
        mapped = x @ get("left") @ get("right") + get("offset")
        if self.residual:
            mapped = mapped + torch.relu(x @ get("hidden") + get("bias")) @ get("out")
        return mapped


@final
@dataclass(frozen=True, eq=False)
class Adapter:
    """Map from the embeddings of an old encoder to the space of a new one.

    Args:
        header: What is known of the map.
        module: The map as a network, for attacks through it.
    """

    header: Header
    module: MapModule

    def __call__(self, embeddings: object) -> Float[np.ndarray, "n e"]:
        """Return old ``embeddings``, an array of shape (n, d), in the space of the new encoder, shape (n, e), as float32.

        Raises:
            HoldfastError: the shape does not fit, or values are not finite, or zero where norms are divided by.
        """
        values = np.asarray(embeddings)
        if values.ndim != 2 or values.shape[1] != self.header.width or values.dtype.kind not in "fiu":
            raise HoldfastError(
                f"embeddings: this adapter maps numbers of shape (n, {self.header.width}), got {values.dtype} of shape "
                f"{values.shape}. Pass embeddings of {self.header.old}"
            )
        with torch.no_grad():
            mapped = self.module(torch.from_numpy(values.astype(np.float32))).numpy()
        if not np.isfinite(mapped).all():
            raise HoldfastError("embeddings: some are zero, infinite or NaN, so they cannot be mapped. Leave them out")
        return np.asarray(mapped, dtype=np.float32)

    def save(self, path: str | Path) -> Path:
        """Write the map to ``path``, a safetensors file, and return the path."""
        arrays = {name: values.numpy() for name, values in self.module.state_dict().items()}
        return written(path, arrays, "adapter", self.header)


def load_adapter(path: str | Path) -> Adapter:
    """Load a map that ``parity --adapter`` wrote.

    Args:
        path: The file, ending in .safetensors.

    Raises:
        HoldfastError: There is no such file, or it is damaged or holds no map.
    """
    check_not_blank("path", path)
    fix = "copy the file again, or write a new one with holdfast parity --adapter"
    header, arrays = parsed(str(path), read(Path(path)), "adapter", Header, _check, fix)
    return Adapter(header, MapModule({key: torch.from_numpy(values) for key, values in arrays.items()}, header.unit))


def _check(header: Header, arrays: dict[str, np.ndarray]) -> None:
    names = (*TENSORS, *(RESIDUAL if header.kind == "residual" else ()))
    if set(arrays) != set(names):
        raise ValueError("it holds other arrays than its kind of map has")
    check_finite(arrays)
    shapes = {name: arrays[name].shape for name in names}
    rank, width = shapes["left"][-1:], shapes["offset"]
    expected = {"shift": (header.width,), "left": (header.width, *rank), "right": (*rank, *width), "offset": width}
    if header.kind == "residual":
        bias = shapes["bias"]
        expected |= {"hidden": (header.width, *bias), "bias": bias, "out": (*bias, *width)}
    if shapes != expected or len(width) != 1:
        raise ValueError("the shapes of its arrays do not fit together")


def fitted(
    kind: str, old: Float[Tensor, "n d"], new: Float[Tensor, "n e"], names: tuple[str, str], unit: bool
) -> Adapter:
    """Fit one kind of map.

    Args:
        kind: One of ``KINDS``.
        old: Embeddings of images by the old encoder, in random order.
        new: Embeddings of the same images by the new encoder.
        unit: True if embeddings have norm 1.

    Example:
        >>> old = torch.randn(60, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        >>> turned = fitted("orthogonal", old, 3 * old.flip(1) + 1, ("old", "new"), unit=False)
        >>> bool(np.allclose(turned(old.numpy()), 3 * old.flip(1) + 1, atol=1e-5))
        True
    """
    shift, offset = old.mean(0), new.mean(0)
    x, y = old - shift, new - offset
    if kind == "orthogonal":
        left, singular, right = torch.linalg.svd(x.T @ y, full_matrices=False)
        tensors = {"left": left * (singular.sum() / x.square().sum()), "right": right}
    else:
        tensors = _low_rank(x, y)
    if kind == "residual":
        tensors |= _residual(x, y - x @ tensors["left"] @ tensors["right"])
        # The features are not centred; what their means add goes into the offset.
        features = torch.relu(x @ tensors["hidden"] + tensors["bias"])
        offset = offset - features.mean(0) @ tensors["out"]
    tensors |= {"shift": shift, "offset": offset}
    stored = {name: values.float().contiguous() for name, values in tensors.items()}
    header = Header.model_validate(
        {"kind": kind, "old": names[0], "new": names[1], "unit": unit, "width": old.shape[1], "images": len(old)}
    )
    return Adapter(header, MapModule(stored, unit))


def _low_rank(x: Float[Tensor, "n d"], y: Float[Tensor, "n e"]) -> dict[str, Tensor]:
    """Reduced-rank ridge regression, penalty and rank by cross-validation: the penalty at full rank, then the rank."""
    full = min(x.shape[1], y.shape[1])
    penalty = best(PENALTIES, x, y, lambda value, a, b: ridge(a, b, value))
    ranks = [rank for rank in RANKS if rank < full]
    rank = best([*ranks, full], x, y, lambda value, a, b: torch.mm(*reduced(a, b, penalty, value)))
    left, right = reduced(x, y, penalty, rank)
    return {"left": left, "right": right}


def _residual(x: Float[Tensor, "n d"], left: Float[Tensor, "n e"]) -> dict[str, Tensor]:
    """Ridge regression of what a linear map has ``left`` on random features."""
    width = max(1, min(HIDDEN, len(x) // 4))
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(x.shape[1], width, generator=generator, dtype=x.dtype)
    hidden /= (x @ hidden).std().clamp_min(torch.finfo(x.dtype).tiny)  # features of the order of 1
    bias = torch.randn(width, generator=generator, dtype=x.dtype)
    features = torch.relu(x @ hidden + bias)
    features = features - features.mean(0)
    penalty = best(PENALTIES, features, left, lambda value, a, b: ridge(a, b, value))
    return {"hidden": hidden, "bias": bias, "out": ridge(features, left, penalty)}


def ridge(x: Float[Tensor, "n d"], y: Float[Tensor, "n e"], penalty: float) -> Float[Tensor, "d e"]:
    """Weights of the ridge regression of centred ``y`` on centred ``x``.

    Args:
        penalty: Penalty, as a share of the mean squared singular value of ``x``.
    """
    small = len(x) < x.shape[1]  # the Gram matrix is the smaller one
    gram = x @ x.T if small else x.T @ x
    weight = penalty * x.square().sum() / len(gram) + torch.finfo(x.dtype).tiny
    gram = gram + weight * torch.eye(len(gram), dtype=x.dtype)
    return x.T @ torch.linalg.solve(gram, y) if small else torch.linalg.solve(gram, x.T @ y)


def reduced(x: Float[Tensor, "n d"], y: Float[Tensor, "n e"], penalty: float, rank: int) -> tuple[Tensor, Tensor]:
    """Ridge weights projected to the leading directions of their predictions, as two factors.

    Args:
        x: Centred inputs, shape (n, d).
        y: Centred outputs, shape (n, e).
    """
    weights = ridge(x, y, penalty)
    if len(x) < y.shape[1]:  # the predictions of few images span few directions, beyond which the weights are zero
        directions = torch.linalg.svd(x @ weights, full_matrices=False).Vh[:rank].T
        return weights @ directions, directions.T
    directions = torch.linalg.eigh(weights.T @ (x.T @ x) @ weights).eigenvectors[:, -rank:]
    return weights @ directions, directions.T


def best(
    values: Sequence[Any],
    x: Float[Tensor, "n d"],
    y: Float[Tensor, "n e"],
    weights: Callable[[Any, Tensor, Tensor], Tensor],
) -> Any:
    """Return the value whose weights leave least of held-out ``y``, by cross-validation in ``FOLDS`` parts."""
    fold = torch.arange(len(x)) % FOLDS
    losses = []
    for value in values:
        loss = 0.0
        for part in range(FOLDS):
            train, test = fold != part, fold == part
            loss += float((y[test] - x[test] @ weights(value, x[train], y[train])).square().sum())
        losses.append(loss)
    return values[int(np.argmin(losses))]


def parts(
    order: Int[Tensor, "n"], groups: Sequence[str] = ()
) -> tuple[Int[Tensor, "f"], Int[Tensor, "c"], Int[Tensor, "t"]]:
    """Split images into those that maps are fitted to (half), chosen by and reported on (a quarter each).

    Args:
        order: All rows in random order.
        groups: Group of each row; groups stay together.

    Example:
        >>> parts(torch.arange(8))
        (tensor([0, 1, 2, 3]), tensor([4, 5]), tensor([6, 7]))
    """
    rows = order.tolist()
    if groups:
        first: dict[str, int] = {}
        for place, row in enumerate(rows):
            first.setdefault(groups[row], place)
        rows.sort(key=lambda row: first[groups[row]])
    cuts = []
    for share in (0.5, 0.75):
        cut = int(share * len(rows))
        while groups and 0 < cut < len(rows) and groups[rows[cut]] == groups[rows[cut - 1]]:
            cut += 1
        cuts.append(cut)
    fit, choose, test = np.split(np.array(rows, dtype=np.int64), cuts)
    return torch.from_numpy(fit), torch.from_numpy(choose), torch.from_numpy(test)
