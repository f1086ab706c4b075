"""Masked autoencoders against slow, obvious versions, with tokens left out and with pixels painted over."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from holdfast.core.encoder import Domain, Normalised
from holdfast.core.errors import HoldfastError
from holdfast.encoders.architectures.vit import SmallViT
from holdfast.training.learner import Batch, Setting
from holdfast.training.objectives.mae import MAE, MAELearner, PixelDecoder, TokenDecoder
from tests.training.objectives import batches

DOMAIN = Domain((1, 4, 4))


def transformer(pooling: str = "cls") -> nn.Module:
    torch.manual_seed(5)
    vit = SmallViT(patch=2, width=8, depth=2, heads=2, pooling=pooling).build(DOMAIN)
    return Normalised(vit, [0.3], [0.5], 3).double()


def made(encoder: nn.Module, settings: MAE) -> MAELearner:
    learner = settings.learner(encoder, Setting(DOMAIN, 8, batches.SAMPLES, 0, 8)).double()
    assert isinstance(learner, MAELearner)
    return learner


def patches(image: Tensor, side: int = 2) -> list[Tensor]:
    """The pixels of each patch, row by row."""
    rows = range(0, image.shape[1], side)
    return [image[:, y : y + side, x : x + side].flatten() for y in rows for x in rows]


def error(predicted: Tensor, patch: Tensor) -> Tensor:
    target = (patch - patch.mean()) / (patch.var() + 1e-6).sqrt()
    return ((predicted - target) ** 2).sum() / len(patch)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_the_loss_with_tokens_is_the_obvious_one(pooling: str) -> None:
    encoder, batch = transformer(pooling), batches.batch(views=1)
    learner = made(encoder, MAE(ratio=0.5, decoder_width=6, decoder_depth=1, decoder_heads=2))
    decoder = learner.decoder
    assert isinstance(decoder, TokenDecoder)
    vit: Any = encoder.module
    terms = []
    for image, order in zip(batch.views[0], learner.order(batch.noise).tolist(), strict=True):
        visible, hidden = order[:2], order[2:]
        tokens = vit.embed((image[None] - 0.3) / 0.5)[0]
        encoded = vit.encode(torch.stack([tokens[place] for place in visible])[None])[0]
        extra = len(encoded) - len(visible)
        assert extra == (pooling == "cls")
        line = [decoder.narrow(token) for token in encoded[:extra]]
        for place in range(4):
            known = place in visible
            token = decoder.narrow(encoded[extra + visible.index(place)]) if known else decoder.hidden
            line.append(token + decoder.positions[place])
        decoded = decoder.predict(decoder.norm(decoder.blocks(torch.stack(line)[None])))[0, extra:]
        terms += [error(decoded[place], patches(image)[place]) for place in hidden]
    assert len(terms) == 16
    weights = [*learner.parameters()]
    batches.same_with_gradients(learner(batch), torch.stack(terms).mean(), *weights)


def test_the_loss_with_pixels_is_the_obvious_one() -> None:
    encoder, batch = batches.encoder(), batches.batch(views=1)
    setting = Setting(Domain((1, 4, 4)), batches.WIDTH, batches.SAMPLES, 0, 8)
    learner = MAE(ratio=0.7, patch=2, decoder_width=5, decoder_heads=1).learner(encoder, setting).double()
    assert isinstance(learner, MAELearner)
    decoder = learner.decoder
    assert isinstance(decoder, PixelDecoder)
    terms = []
    for image, order in zip(batch.views[0], learner.order(batch.noise).tolist(), strict=True):
        painted = image.clone()
        for place in order[1:]:
            y, x = 2 * (place // 2), 2 * (place % 2)
            painted[:, y : y + 2, x : x + 2] = 0.5
        predicted = decoder.predict(encoder(painted[None]))[0].reshape(4, 4)
        terms += [error(predicted[place], patches(image)[place]) for place in order[1:]]
    assert len(terms) == 24
    batches.same_with_gradients(learner(batch), torch.stack(terms).mean(), *learner.parameters())


@pytest.mark.parametrize("masked", ["tokens", "pixels"])
def test_hidden_pixels_are_not_seen(masked: str) -> None:
    learner = made(transformer(), MAE(ratio=0.5, masked=masked, patch=2))
    pixels = batches.batch(views=1).views[0]
    order = torch.tensor([[2, 1, 0, 3]]).expand(8, -1)
    here = learner.decoder(learner.encoder, pixels, order)
    hidden, visible = pixels.clone(), pixels.clone()
    hidden[:, :, :2, :2] = torch.rand(2, 2)
    visible[:, :, 2:, :2] = torch.rand(2, 2)
    torch.testing.assert_close(learner.decoder(learner.encoder, hidden, order), here)
    assert not torch.allclose(learner.decoder(learner.encoder, visible, order), here)


@pytest.mark.parametrize("masked", ["tokens", "pixels"])
def test_the_clean_view_is_predicted_from_the_attacked_one(masked: str) -> None:
    learner = made(transformer(), MAE(ratio=0.5, masked=masked, patch=2))
    batch = batches.batch(views=1, attacked=True)
    assert batch.attacked is not None
    network, loss = learner.loss_under_attack(batch)
    torch.testing.assert_close(learner(batch), loss(network(batch.attacked)).mean())
    plain = Batch(batch.rows, batch.pixels, batch.views, None, batch.noise)
    torch.testing.assert_close(learner(plain), loss(network(batch.views[0])).mean())


def test_masks_differ_between_images_and_epochs() -> None:
    learner, batch = made(transformer(), MAE()), batches.batch(views=1)
    first, second = (learner.order(batch.noise.fork("epoch", epoch)) for epoch in (0, 1))
    assert len(first.unique(dim=0)) > 1
    assert not torch.equal(first, second)


def test_what_cannot_be_masked_is_refused() -> None:
    setting = Setting(Domain((1, 6, 6)), 4, batches.SAMPLES, 0, 8)
    with pytest.raises(HoldfastError, match="needs an encoder that has embed"):
        MAE(masked="tokens").learner(batches.encoder(), setting)
    with pytest.raises(HoldfastError, match="choose a patch that divides both sides"):
        MAE(patch=4).learner(batches.encoder(), setting)
    with pytest.raises(HoldfastError, match=r"masked.*auto, pixels, tokens"):
        MAE(masked="boxes")
