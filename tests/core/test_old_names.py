"""Old names of members and of what extensions import: each works, with one warning that says the new name."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

import holdfast.extend
from holdfast.core.run_settings import RunSettings
from holdfast.data.by_name import Selection
from holdfast.extend import Attack, Domain, Observation, Population, Transform
from holdfast.measure.population import Fit
from tests import tiny

READ = {"shuffled": "random_order", "places": "order_of", "originals": "first_copies"}
ASKED = {"couples": "disjoint_pairs", "others": "random_others"}
OVERRIDDEN = [
    (Attack, "forwards"),
    (Attack, "blind"),
    (Observation, "forwards"),
    (Fit, "forwards"),
    (Transform, "rungs"),
]


@pytest.fixture
def population() -> Population:
    return Population(tiny.encoder(), tiny.images(), RunSettings(0))


@pytest.mark.parametrize(("old", "new"), READ.items())
def test_a_population_gives_rows_by_old_names(population: Population, old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=new):
        assert torch.equal(getattr(population, old), getattr(population, new))


@pytest.mark.parametrize(("old", "new"), ASKED.items())
def test_a_population_answers_by_old_names(population: Population, old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=new):
        assert getattr(population, old) == getattr(population, new)


@pytest.mark.parametrize(("base", "old"), OVERRIDDEN)
def test_a_subclass_may_define_a_member_by_its_old_name(base: type, old: str) -> None:
    new = vars(base)[old].new
    with pytest.warns(DeprecationWarning, match=new):
        kind: type = dataclass(frozen=True)(type("Theirs", (base,), {old: 7}))
    assert getattr(kind, new) == 7
    with pytest.warns(DeprecationWarning, match=new):
        assert getattr(kind, old) == 7


def test_a_selection_gives_its_cache_by_the_old_name() -> None:
    selection = Selection(Domain((1,)))
    with pytest.warns(DeprecationWarning, match="scan_cache"):
        assert selection.remembered is selection.scan_cache


@pytest.mark.parametrize(("old", "new"), vars(holdfast.extend)["_OLD"].items())
def test_extensions_import_by_old_names(old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=new):
        assert getattr(holdfast.extend, old) is getattr(holdfast.extend, new)
