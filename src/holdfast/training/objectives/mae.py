"""Masked autoencoders: most patches of an image are hidden and are predicted from the others.

With the patches ``x_1 ... x_n`` of an image, each scaled to mean 0 and variance 1, and the hidden ones ``H``:

    loss = mean_{i in H} |decoder(encoder(x without H))_i - x_i|^2 / pixels of a patch

He et al. 2022, https://arxiv.org/abs/2111.06377, section 3. There the encoder gets the tokens of visible patches alone
(masked=tokens), which needs an encoder of patches. For any other encoder, hidden patches get the middle of the pixel
range and the decoder, a perceptron, sees only the embedding (masked=pixels). This is a departure, similar to SimMIM (Xie
et al. 2022, https://arxiv.org/abs/2111.09886), whose encoder sees masked patches too and whose decoder is one layer. With
an adversary, the encoder gets the attacked view and predicts the clean one.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt, prod
from typing import Any, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import unfold

from holdfast.core.encoder import Domain, Normalised, Pixels
from holdfast.core.errors import HoldfastError, OutOfRange, UnknownName
from holdfast.core.noise import Noise
from holdfast.core.objective import ObjectiveFunction
from holdfast.core.settings import check_positive
from holdfast.encoders.architectures.vit import DEVIATION, Block
from holdfast.training.learner import Batch, Learner, OfRows, Setting, TrainingObjective, mlp

Patches = Float[Tensor, "b n p"]
Order = Int[Tensor, "b n"]
EPS = 1e-6
"""Added to the variance of a patch, as in the authors' program."""


@final
@dataclass(frozen=True)
class MAE(TrainingObjective):
    """Squared error of predicted hidden patches, from one view.

    Crops and flips are the only augmentation of the paper.
    """

    ratio: float = 0.75
    """Fraction of patches that are hidden."""
    masked: str = "auto"
    """What is hidden: `tokens` (published), `pixels` (any encoder), or `auto`."""
    patch: int = 4
    """Pixels per side of a patch where pixels are masked; tokens have the encoder's own."""
    normalised: bool = True
    """True to bring patches to mean 0 and variance 1 before they are compared."""
    decoder_width: int = 128
    """Width of the decoder's tokens, 512 in the paper; of its hidden layer if pixels are masked."""
    decoder_depth: int = 2
    """Blocks of the decoder of tokens; 8 in the paper."""
    decoder_heads: int = 4
    """Attention heads of the decoder; 16 in the paper."""
    name = "mae"
    views = 1

    def __post_init__(self) -> None:
        if self.masked not in ("auto", "tokens", "pixels"):
            raise UnknownName("mae: masked", self.masked, ["auto", "tokens", "pixels"])
        if not 0 < self.ratio < 1:
            raise OutOfRange("mae: ratio", self.ratio, "between 0 and 1")
        check_positive(self, "patch", "decoder_width", "decoder_depth", "decoder_heads")
        if self.decoder_width % self.decoder_heads:
            raise HoldfastError(f"mae: {self.decoder_heads} heads cannot share a width of {self.decoder_width}")

    def learner(self, encoder: nn.Module, setting: Setting) -> Learner:
        tokens = _has_tokens(encoder)
        if self.masked == "tokens" and not tokens:
            raise HoldfastError(
                "mae with masked=tokens needs an encoder that has embed (pixels to one token per patch) and encode (some "
                "tokens to as many), such as small-vit; choose that architecture, or masked=pixels"
            )
        if tokens and self.masked != "pixels":
            return MAELearner(encoder, TokenDecoder(encoder, self, setting.domain), self)
        return MAELearner(encoder, PixelDecoder(self, setting), self)


class TokenDecoder(nn.Module):
    """Transformer that predicts all patches from the tokens of visible ones."""

    def __init__(self, encoder: nn.Module, settings: MAE, domain: Domain) -> None:
        super().__init__()
        channels, height, breadth = domain.shape
        anchor = next(encoder.parameters())
        with torch.no_grad():
            tokens = _embedded(encoder, torch.zeros(1, *domain.shape, device=anchor.device, dtype=anchor.dtype))
        count, width = tokens.shape[1:]
        self.count = count
        self.patch, self.keep = isqrt(height * breadth // count), _kept(count, settings.ratio)
        if height // self.patch * (breadth // self.patch) != count or height % self.patch or breadth % self.patch:
            raise HoldfastError(
                f"mae needs one token per square patch, and the encoder makes {count} of {height} x {breadth} pixels; use "
                "masked=pixels"
            )
        self.narrow = nn.Linear(width, settings.decoder_width)
        self.hidden = nn.Parameter(DEVIATION * torch.randn(settings.decoder_width))
        self.positions = nn.Parameter(DEVIATION * torch.randn(count, settings.decoder_width))
        self.blocks = nn.Sequential(
            *(Block(settings.decoder_width, settings.decoder_heads) for _ in range(settings.decoder_depth))
        )
        self.norm = nn.LayerNorm(settings.decoder_width)
        self.predict = nn.Linear(settings.decoder_width, channels * self.patch**2)

    def forward(self, encoder: nn.Module, pixels: Pixels, order: Order) -> Patches:
        tokens = _embedded(encoder, pixels)
        visible = order[:, : self.keep, None]
        whole: Any = _inner(encoder)
        encoded = self.narrow(whole.encode(tokens.gather(1, visible.expand(-1, -1, tokens.shape[2]))))
        # A class token, if there is one, stands first and has no place among the patches.
        first, shown = encoded[:, : -self.keep], encoded[:, -self.keep :]
        blank = self.hidden.to(shown).expand(len(shown), order.shape[1], -1)
        filled = blank.scatter(1, visible.expand_as(shown), shown)
        decoded = self.blocks(torch.cat([first, filled + self.positions], dim=1))
        return self.predict(self.norm(decoded))[:, first.shape[1] :]


class PixelDecoder(nn.Module):
    """Network that predicts all patches from the embedding of a partly painted image."""

    def __init__(self, settings: MAE, setting: Setting) -> None:
        super().__init__()
        domain, self.patch = setting.domain, settings.patch
        if len(domain.shape) != 3 or domain.shape[1] % self.patch or domain.shape[2] % self.patch:
            raise HoldfastError(
                f"mae cuts images into patches of {self.patch} pixels a side, got inputs of shape {domain.shape}; choose a "
                "patch that divides both sides"
            )
        self.grid = domain.shape[1] // self.patch, domain.shape[2] // self.patch
        self.count = prod(self.grid)
        self.keep = _kept(self.count, settings.ratio)
        self.paint = (domain.low + domain.high) / 2
        self.predict = mlp((setting.width, settings.decoder_width, prod(domain.shape)))

    def forward(self, encoder: nn.Module, pixels: Pixels, order: Order) -> Patches:
        hidden = hidden_patches(order, self.keep).unflatten(1, (1, *self.grid))
        covered = hidden.repeat_interleave(self.patch, dim=2).repeat_interleave(self.patch, dim=3)
        codes = encoder(pixels.masked_fill(covered, self.paint))
        return self.predict(codes).unflatten(1, (self.count, -1))


@final
class MAELearner(Learner):
    """An encoder with a decoder."""

    def __init__(self, encoder: nn.Module, decoder: TokenDecoder | PixelDecoder, settings: MAE) -> None:
        super().__init__(encoder)
        self.decoder, self.settings = decoder, settings

    def forward(self, batch: Batch) -> Float[Tensor, ""]:
        order = self.order(batch.noise)
        view = batch.views[0] if batch.attacked is None else batch.attacked
        return self.losses(self.decoder(self.encoder, view, order), batch.views[0], order).mean()

    def order(self, noise: Noise) -> Order:
        """Return a random order of each image's patches; the first ones stay visible."""
        return noise.fork("mask").uniform((self.decoder.count,)).argsort(dim=1)

    def losses(self, predicted: Patches, pixels: Pixels, order: Order) -> Float[Tensor, "b"]:
        """Mean squared error of each image over its hidden patches.

        Args:
            predicted: Predicted patches, shape (b, n, values).
            order: Order of the patches of each image, shape (b, n); the first are visible.
        """
        target = unfold(pixels, self.decoder.patch, stride=self.decoder.patch).transpose(1, 2)
        if self.settings.normalised:
            variance, mean = torch.var_mean(target, dim=2, keepdim=True)
            target = (target - mean) / (variance + EPS).sqrt()
        errors = (predicted - target).square().mean(dim=2)
        hidden = hidden_patches(order, self.decoder.keep)
        return (errors * hidden).sum(dim=1) / hidden.sum(dim=1)

    def loss_under_attack(self, batch: Batch) -> tuple[nn.Module, ObjectiveFunction]:
        order = self.order(batch.noise)

        def loss(predicted: Float[Tensor, "b d"]) -> Float[Tensor, "b"]:
            return self.losses(predicted.unflatten(1, (self.decoder.count, -1)), batch.views[0], order)

        return Prediction(self.encoder, self.decoder, order), loss


class Prediction(OfRows):
    """Network from pixels to predicted patches, for a fixed choice of hidden patches."""

    def __init__(self, encoder: nn.Module, decoder: nn.Module, order: Order) -> None:
        super().__init__()
        self.encoder, self.decoder, self.order = encoder, decoder, order

    def among(self, rows: Int[Tensor, "r"]) -> Prediction:
        return Prediction(self.encoder, self.decoder, self.order[rows])

    def forward(self, pixels: Pixels) -> Float[Tensor, "b d"]:
        return self.decoder(self.encoder, pixels, self.order).flatten(1)


def hidden_patches(order: Order, keep: int) -> Bool[Tensor, "b n"]:
    """Mask of the hidden patches.

    Args:
        order: Order of the patches of each image, shape (b, n).
        keep: Patches that stay visible, the first of each order.

    Example:
        >>> hidden_patches(torch.tensor([[2, 0, 1]]), keep=1)
        tensor([[ True,  True, False]])
    """
    return torch.ones_like(order, dtype=torch.bool).scatter(1, order[:, :keep], False)


def _kept(count: int, ratio: float) -> int:
    """Return the number of patches that stay visible: at least one, and not all."""
    keep = max(1, int(count * (1 - ratio)))
    if keep >= count:
        raise OutOfRange("mae: patches per image", count, "at least 2", fix="choose smaller patches")
    return keep


def _inner(encoder: nn.Module) -> nn.Module:
    return encoder.module if isinstance(encoder, Normalised) else encoder


def _has_tokens(encoder: nn.Module) -> bool:
    inner = _inner(encoder)
    return callable(getattr(inner, "embed", None)) and callable(getattr(inner, "encode", None))


def _embedded(encoder: nn.Module, pixels: Pixels) -> Float[Tensor, "b n d"]:
    """Return one token per patch, after the encoder's own normalisation."""
    inner: Any = _inner(encoder)
    return inner.embed((pixels - encoder.mean) / encoder.std if isinstance(encoder, Normalised) else pixels)
