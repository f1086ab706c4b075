"""Vision transformers (Dosovitskiy et al. 2021, https://arxiv.org/abs/2010.11929), small ones for small images.

Patches become tokens by one linear map, learned positions are added, and each block computes
``x <- x + attention(norm(x))``, ``x <- x + mlp(norm(x))``. The embedding is the mean of the last tokens, or a class token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from holdfast.core.encoder import Codes, Domain, Pixels
from holdfast.core.errors import HoldfastError, check_known
from holdfast.encoders.architectures.base import Architecture, image_sizes
from holdfast.encoders.wrappers import PATCH, POOLINGS, pool

Tokens = Float[Tensor, "b t d"]
DEVIATION = 0.02
"""Of the weights before training."""


@final
@dataclass(frozen=True)
class SmallViT(Architecture):
    """A vision transformer of width features; pooling is mean or cls."""

    patch: int = 4
    """Pixels per side of a patch."""
    width: int = 128
    """Dimension of the tokens."""
    depth: int = 4
    """Number of blocks."""
    heads: int = 4
    """Attention heads per block."""
    pooling: str = "mean"
    """`mean` over tokens, or `cls`."""
    name = "small-vit"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_known("pool", self.pooling, POOLINGS)
        if self.width % self.heads:
            raise HoldfastError(f"architecture {self.name!r}: {self.heads} heads cannot share a width of {self.width}")

    def build(self, domain: Domain) -> nn.Module:
        channels, height, breadth = image_sizes(self, domain)
        if height % self.patch or breadth % self.patch:
            raise HoldfastError(
                f"architecture {self.name!r} cuts images into patches of {self.patch} pixels, got {height} x {breadth}; "
                "choose a patch that divides both sides"
            )
        embed = Patches(channels, self.patch, self.width, (height // self.patch) * (breadth // self.patch))
        return VisionTransformer(embed, self.depth, self.heads, self.pooling)


class Patches(nn.Module):
    """Images to one token per patch, row by row, each with the position it stands at."""

    def __init__(self, channels: int, patch: int, width: int, count: int) -> None:
        super().__init__()
        self.width = width
        self.project = nn.Conv2d(channels, width, patch, stride=patch)
        self.positions = nn.Parameter(torch.empty(count, width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the positions again."""
        nn.init.trunc_normal_(self.positions, std=DEVIATION)

    def forward(self, pixels: Pixels) -> Tokens:
        return self.project(pixels).flatten(2).transpose(1, 2) + self.positions


class VisionTransformer(nn.Module):
    """Blocks on the tokens of ``embed``, and one vector of what they become."""

    def __init__(self, embed: Patches, depth: int, heads: int, pooling: str) -> None:
        super().__init__()
        self.embed, self.pooling = embed, pooling
        self.first = nn.Parameter(torch.empty(1, embed.width)) if pooling == "cls" else None
        self.blocks = nn.Sequential(*(Block(embed.width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(embed.width)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the class token again."""
        if self.first is not None:
            nn.init.trunc_normal_(self.first, std=DEVIATION)

    def extra_repr(self) -> str:
        return self.pooling

    def forward(self, pixels: Pixels) -> Codes:
        return pool(self.encode(self.embed(pixels)), self.pooling)

    def encode(self, tokens: Tokens) -> Float[Tensor, "b all d"]:
        """Tokens after all blocks, for all patches or some; the class token, if any, is first."""
        if self.first is not None:
            tokens = torch.cat([self.first.expand(len(tokens), 1, -1), tokens], dim=1)
        return self.norm(self.blocks(tokens))


class PatchTokens(nn.Module):
    """Last patch tokens of a vision transformer: dense embeddings."""

    def __init__(self, network: VisionTransformer) -> None:
        super().__init__()
        self.network = network
        self.train(network.training)

    def forward(self, pixels: Pixels) -> Tokens:
        tokens = self.network.encode(self.network.embed(pixels))
        return pool(tokens, PATCH, prefix=int(self.network.first is not None))


class Block(nn.Module):
    """Attention and a perceptron, each on normalised tokens and with a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tokens) -> Tokens:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))

    def attention(self, x: Tokens) -> Tokens:
        """Return ``softmax(q k^T / sqrt(d)) v`` of each head, mixed by one linear map."""
        query, key, value = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=2)
        )
        return self.out(scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))
