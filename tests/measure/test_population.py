"""Images with their codes, as they are handed from process to process."""

from __future__ import annotations

import pickle

import pytest
import torch

from holdfast.core.errors import HoldfastError
from holdfast.core.images import Images
from holdfast.core.run_settings import RunSettings
from holdfast.measure.population import Population
from tests import tiny
from tests.samples import builtin, digits


def test_a_worker_places_a_population_once_for_all_its_shards() -> None:
    population = Population(builtin(), digits(4), RunSettings(workers="cpu"))
    working = population.at_work()
    assert working is population.at_work()
    assert working.run.workers is None
    sent = pickle.loads(pickle.dumps(population))
    assert "_working" not in vars(sent), "each worker places it anew"
    assert sent.at_work().codes.shape == population.codes.shape
    assert working.at_work() is working


def population(groups: list[str] | None, seed: int = 0) -> Population:
    count = 12 if groups is None else len(groups)
    return Population(builtin(), Images(torch.zeros(count, 1, 28, 28), groups=groups), RunSettings(seed=seed))


GROUPINGS = [list("abcdefghijkl"), list("aabbccddeeff"), list("aaaaaaaaabbc"), list("ab"), list("aaab")]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("groups", GROUPINGS, ids="".join)
def test_others_are_the_next_images_of_other_groups(groups: list[str], seed: int) -> None:
    grouped = population(groups, seed)
    order, rows = grouped.random_order.tolist(), list(range(len(groups)))
    for count in (1, 3, 100):
        for row, found in zip(rows, grouped.random_others(rows, count).tolist(), strict=True):
            place = order.index(row)
            following = [k for k in (*order[place + 1 :], *order[:place]) if groups[k] != groups[row]]
            assert found == following[: min(count, grouped.fewest_others)]
    assert grouped.partners.tolist() == grouped.random_others(rows, 1)[:, 0].tolist()
    couples = grouped.disjoint_pairs(100)
    taken = [*couples, *grouped.partners[couples].tolist()]
    assert couples
    assert len(taken) == len(set(taken)), "no image is in two pairs"


def test_groups_of_one_image_each_are_no_groups() -> None:
    alone, grouped = population(None), population(list("abcdefghijkl"))
    assert torch.equal(alone.partners, grouped.partners)
    assert torch.equal(alone.random_others(range(12), 5), grouped.random_others(range(12), 5))
    assert alone.disjoint_pairs(4) == grouped.disjoint_pairs(4)
    assert (alone.kin([0]), alone.groups) == (None, None)


def test_one_group_has_no_others() -> None:
    for wanted in ("partners", "groups", "fewest_others"):
        with pytest.raises(HoldfastError, match="'a'"):
            getattr(population(["a"] * 3), wanted)


def test_workers_are_not_handed_what_each_makes_itself() -> None:
    people = Population(tiny.encoder(), tiny.images(), RunSettings())
    made = {"double": people.double, "optimised": people.optimised}
    assert made.keys() <= vars(people).keys()
    assert not made.keys() & people.__getstate__().keys()
