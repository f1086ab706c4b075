"""Images with their codes, as they are handed from process to process."""

from __future__ import annotations

import pickle

from holdfast.core.run_settings import RunSettings
from holdfast.protocol.population import Population
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
