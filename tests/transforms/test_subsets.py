"""Long tails, uniform subsets and replaced data sets."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from holdfast.core.errors import HoldfastError
from holdfast.core.images import Images
from holdfast.transforms.subsets import long_tail, long_tail_counts, subset_of, substituted, uniform_subset
from tests.facts import refused


def labelled(count: int, classes: int) -> Images:
    return Images(torch.zeros(count, 1, 2, 2), labels=torch.arange(count) % classes)


def test_the_profile_is_the_published_one():
    counts = long_tail_counts(1000, most=1280, least=5)
    assert (counts[0], counts[-1], sum(counts)) == (1280, 5, 116_079)
    assert sum(count > 100 for count in counts) == 388
    assert sum(20 <= count <= 100 for count in counts) == 469
    assert sum(count < 20 for count in counts) == 143
    assert list(counts) == sorted(counts, reverse=True)
    assert long_tail_counts(1, most=7, least=2) == (7,)


def test_a_long_tail_holds_what_it_counts():
    images = labelled(2000, 10)
    tail = long_tail(images, most=150, least=3, seed=1)
    held = Counter(tail.images.labels.tolist() if tail.images.labels is not None else [])
    assert held == dict(zip(tail.classes, tail.counts, strict=True))
    assert tail.classes != tuple(range(10))
    assert tail.classes != long_tail(images, most=150, least=3, seed=2).classes
    assert tail.shots()["many"] == tuple(label for label in tail.classes if held[label] > 100)
    assert sorted(sum(tail.shots().values(), ())) == list(range(10))


def test_what_is_chosen_does_not_depend_on_order():
    images = labelled(300, 3)
    turned = images[range(299, -1, -1)]
    for one, other in (
        (long_tail(images, 50, 5).images, long_tail(turned, 50, 5).images),
        (uniform_subset(images, 100), uniform_subset(turned, 100)),
    ):
        assert one.ids == other.ids[::-1]


def test_uniform_subsets_round_down():
    subset = uniform_subset(labelled(300, 3), 100)
    assert subset.labels is not None
    assert Counter(subset.labels.tolist()) == {0: 33, 1: 33, 2: 33}
    assert subset.ids != uniform_subset(labelled(300, 3), 100, seed=1).ids


def test_substitutes_have_equal_classes():
    images, others = labelled(30, 3), labelled(30, 3)
    assert substituted(images, others) is others
    named = [
        Images(torch.zeros(2, 1, 2, 2), labels=torch.tensor([0, 1]), classes=names)
        for names in (["a", "b"], ["a", "c"])
    ]
    with pytest.raises(HoldfastError, match="called otherwise"):
        substituted(*named)
    with pytest.raises(HoldfastError, match="class 0 has 15 images instead of 10"):
        substituted(images, labelled(30, 2))


def test_bad_input():
    with pytest.raises(HoldfastError, match="no labels"):
        long_tail(Images(torch.zeros(3, 1, 2, 2)), 2, 1)
    with pytest.raises(HoldfastError, match="has 10 images where"):
        long_tail(labelled(30, 3), 11, 1)
    with pytest.raises(HoldfastError, match="1 <= least <= most"):
        long_tail(labelled(30, 3), 2, 3)
    with refused(HoldfastError, "3 classes"):
        uniform_subset(labelled(30, 3), 2)


def test_cifar10_lt_has_the_published_counts():
    counts = long_tail_counts(10, most=5000, least=50, profile="exponential")
    assert counts == (5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50)


def test_classes_without_enough_images_get_a_later_rank():
    """ImageNet has classes of 732 images, and the most frequent of ImageNet-LT has 1,280."""
    labels = torch.arange(60) % 3
    plenty = Images(torch.zeros(60, 1, 2, 2), labels=labels)
    first = long_tail(plenty, 20, 2).classes[0]
    short = plenty[[row for row in range(60) if labels[row] != first or row < 30]]
    tail = long_tail(short, 20, 2)
    assert tail.counts == long_tail(plenty, 20, 2).counts
    assert tail.classes.index(first) > 0


def unused(reference: str) -> Images:
    raise AssertionError(reference)


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("long-tail:most=50,least=5", sorted(long_tail_counts(3, 50, 5))),
        ("long-tail:50,5,profile=exponential", [5, 15, 50]),
        ("uniform:total=100", [33, 33, 33]),
        ("classes:count=2", [100, 100]),
    ],
)
def test_subsets_are_spelled(text: str, held: list[int]):
    images = labelled(300, 3)
    subset = subset_of(images, text, 0, unused)
    assert subset.labels is not None
    assert sorted(Counter(subset.labels.tolist()).values()) == held
    assert subset.ids == subset_of(images, text, 0, unused).ids != subset_of(images, text, 1, unused).ids
    assert subset.name != images.name


def test_generated_images_take_the_places_of_others():
    real = labelled(300, 3)[range(90)]
    generated = Images(torch.ones(300, 1, 2, 2), labels=torch.arange(300) // 100)
    stand_in = subset_of(
        generated, "like:some:photos?labels=folders,x=1", 0, {"some:photos?labels=folders,x=1": real}.__getitem__
    )
    assert stand_in.labels is not None
    assert real.labels is not None
    assert Counter(stand_in.labels.tolist()) == Counter(real.labels.tolist()) == {0: 30, 1: 30, 2: 30}
    with pytest.raises(HoldfastError, match="class 2"):
        subset_of(generated[range(200)], "like:x", 0, lambda reference: real)


@pytest.mark.parametrize(
    "text", ["long-tail", "tail:most=5", "uniform:total=2", "classes:count=4", "long-tail:9,3,profile=linear"]
)
def test_subsets_that_there_are_not(text: str):
    with pytest.raises(HoldfastError):
        subset_of(labelled(300, 3), text, 0, unused)
