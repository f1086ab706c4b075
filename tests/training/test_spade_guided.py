"""SPADE-guided training: who gets which radius, and that nothing but the choice differs from the control."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from holdfast.core.balls import L2, Ball, Linf
from holdfast.core.encoder import Codes, Domain
from holdfast.core.errors import HoldfastError
from holdfast.core.images import Images
from holdfast.spectral.analysis import spade
from holdfast.training.adversaries.base import Adversary, OnLoss
from holdfast.training.adversaries.spade_guided import SpadeGuided, node_scores
from holdfast.training.feed import Feed
from holdfast.training.objectives.contrastive import SimCLR
from holdfast.training.objectives.teachers import Supervised
from tests.training.test_adversaries import DOMAIN, batch_of, learner_of

SMALL = SpadeGuided(Linf(0.1), low=0.02, share=0.3, k=3, r=2)


def feed_of(pixels: Tensor) -> Feed:
    images = Images(pixels)
    return Feed(images, Domain(tuple(pixels.shape[1:])), 6, 0, torch.device("cpu"))


def clouds(n: int = 40) -> tuple[Tensor, Tensor]:
    """Images in a plane, of which a few get codes far from those of their neighbours."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.rand(n, 1, 2, 2, generator=generator)
    codes = pixels.flatten(1).clone()
    codes[:5, 0] += 3.0
    return pixels, codes


def test_the_images_with_the_highest_scores_get_the_wide_ball() -> None:
    pixels, codes = clouds()
    prepared = SMALL.prepare(0, feed_of(pixels), lambda: codes, {})
    assert int(prepared["wide"].sum()) == 12
    scores, wide = prepared["scores"], prepared["wide"]
    assert scores[:5].mean() > 2 * scores[5:].mean(), "vacuous fixture"
    assert scores[wide].min() >= scores[~wide].max()


def test_scores_are_those_of_the_measurement() -> None:
    pixels, codes = clouds()
    codes = codes[:, :2]
    expected = spade(pixels, codes, 5, certify=False).node_scores(10)
    assert np.allclose(node_scores(pixels, codes, 5, 10, "none").numpy(), expected)


def test_the_control_differs_in_the_choice_alone() -> None:
    pixels, codes = clouds()
    feed, control = feed_of(pixels), replace(SMALL, scores="random")
    guided, drawn = (one.prepare(0, feed, lambda: codes, {})["wide"] for one in (SMALL, control))
    assert guided.sum() == drawn.sum()
    assert not torch.equal(guided, drawn)
    objective = SimCLR()
    learner, batch = learner_of(objective), batch_of(objective)
    same = {"wide": drawn[:6]}
    assert torch.equal(SMALL(learner, batch, DOMAIN, same), control(learner, batch, DOMAIN, same))


def test_the_control_follows_the_images_not_their_order() -> None:
    pixels = clouds()[0]
    ids = [str(row) for row in range(len(pixels))]
    control = replace(SMALL, scores="random")
    flipped = [Images(part, ids=names) for part, names in ((pixels, ids), (pixels.flip(0), ids[::-1]))]
    feeds = [Feed(images, Domain((1, 2, 2)), 6, 0, torch.device("cpu")) for images in flipped]
    one, other = (control.prepare(0, feed, never, {})["wide"] for feed in feeds)
    assert torch.equal(one, other.flip(0))


def never() -> Codes:
    raise AssertionError("no codes are needed")


@pytest.mark.parametrize("ball", [Linf(0.1), L2(0.4)], ids=str)
def test_each_image_stays_in_its_own_ball(ball: Ball) -> None:
    objective = SimCLR()
    learner, batch = learner_of(objective), batch_of(objective)
    wide = torch.tensor([True, False, False, True, False, True])
    guided = replace(SMALL, ball=ball)
    moved = guided(learner, batch, DOMAIN, {"wide": wide})
    sizes = ball.norm(moved - batch.views[0])
    assert (sizes[~wide] <= 0.02 + 1e-6).all()
    assert (sizes[wide] > 0.05).all()
    # Each as if the whole batch were attacked in its ball: the gain of a sample depends on its own code alone.
    for radius, members in ((ball, wide), (replace(ball, radius=0.02), ~wide)):
        alone = OnLoss(radius)(learner, batch, DOMAIN, {})
        assert torch.allclose(moved[members], alone[members], atol=1e-6)


def test_a_batch_of_one_kind_is_attacked_in_one_ball() -> None:
    objective = Supervised()
    learner, batch = learner_of(objective), batch_of(objective)
    for wide, radius in ((True, 0.1), (False, 0.02)):
        moved = SMALL(learner, batch, DOMAIN, {"wide": torch.full((6,), wide)})
        assert torch.equal(moved, OnLoss(Linf(radius))(learner, batch, DOMAIN, {}))


def test_scores_are_renewed_when_asked() -> None:
    pixels, codes = clouds()
    feed = feed_of(pixels)
    first = SMALL.prepare(0, feed, lambda: codes, {})
    assert SMALL.prepare(7, feed, never, first) is first
    renewed = replace(SMALL, every=2)
    assert renewed.prepare(3, feed, never, first) is first
    assert not torch.equal(renewed.prepare(4, feed, lambda: codes.flip(0), first)["scores"], first["scores"])


def test_scores_of_a_given_encoder() -> None:
    pixels = clouds()[0]
    given = replace(SMALL, encoder="baseline:pixels?shape=1x2x2")
    prepared = given.prepare(0, feed_of(pixels), never, {})
    assert torch.equal(prepared["scores"], node_scores(pixels, pixels.flatten(1), 3, 2, "mst"))


def test_too_few_images_are_told() -> None:
    pixels, codes = clouds(8)
    with pytest.raises(HoldfastError, match="need at least 9 samples"):
        SMALL.prepare(0, feed_of(pixels), lambda: codes, {})


def test_a_graph_in_pieces_is_joined_or_told() -> None:
    pixels, _ = clouds()
    codes = torch.cat([torch.randn(20, 2), torch.randn(20, 2) + 100])
    assert SMALL.prepare(0, feed_of(pixels), lambda: codes, {})["scores"].isfinite().all()
    with pytest.raises(HoldfastError, match="components"):
        replace(SMALL, repair="none").prepare(0, feed_of(pixels), lambda: codes, {})


def test_duplicates_have_one_score() -> None:
    pixels, codes = clouds()
    pixels, codes = torch.cat([pixels, pixels[:1]]), torch.cat([codes, codes[:1]])
    scores = SMALL.prepare(0, feed_of(pixels), lambda: codes, {})["scores"]
    assert scores[0] == scores[-1]


@pytest.mark.parametrize(
    "text",
    ["spade-guided", "spade-guided:ball=linf:0.4,low=0.2,share=0.75,scores=random,every=5,k=5", "spade-guided:k=20"],
)
def test_settings_survive_their_text(text: str) -> None:
    assert str(Adversary.read(text)) == text


@pytest.mark.parametrize(
    "text", ["low=0.5", "share=1", "scores=degree", "every=-1", "encoder=builtin:digits-plain,every=2"]
)
def test_settings_without_a_meaning_are_refused(text: str) -> None:
    with pytest.raises(HoldfastError, match="spade-guided"):
        Adversary.read(f"spade-guided:{text}")
