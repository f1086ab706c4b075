"""Evaluation-result files: what the hub's own parser reads back is what was measured, with everything that qualifies it."""

from __future__ import annotations

from math import inf, nan

import pytest

from holdfast.core.errors import HoldfastError
from holdfast.core.records import Result, Warned
from holdfast.report.comparison.tables import interval
from holdfast.report.elsewhere import FOLDER, files, of_encoder, yaml
from tests.facts import says
from tests.report.synthetic import breakaway, displacement, everything, warned

hub = pytest.importorskip("huggingface_hub", minversion="1.4", reason="huggingface_hub 1.4 writes these files")
parser = pytest.importorskip("yaml", reason="PyYAML reads these files")


def with_findings(result: Result, **changed: object) -> Result:
    return result.model_copy(update={"findings": result.findings.model_copy(update=changed)})


def test_numbers_survive_the_round_trip_with_all_that_qualifies_them() -> None:
    result = breakaway("digits-robust")
    result = result.model_copy(update={"provenance": {"holdfast": "0.1.0", "started": "2026-01-02T03:04:05+00:00"}})
    ((path, entries),) = files([result], "someone/benchmark").items()
    assert path == f"{FOLDER}/holdfast-breakaway.yaml"
    assert hub.parse_eval_result_entries(parser.safe_load(yaml(entries))) == entries
    expected = [e for e in result.estimates if e.quantity in result.headline]
    assert [entry.value for entry in entries] == [e.value for e in expected]
    assert len({entry.task_id for entry in entries}) == len(entries) > 4
    for entry, e in zip(entries, expected, strict=True):
        assert (entry.dataset_id, entry.date) == ("someone/benchmark", "2026-01-02T03:04:05+00:00")
        qualified = [f"{e.claim} of {e.of}", f"95% interval {interval(e)}", e.method, f"n = {e.n}"]
        qualified += [f"{key}={value}" for key, value in e.conditions.items()]
        qualified += [f"{key}=" for key in result.settings]
        qualified += [f"version {result.version}", "holdfast 0.1.0", result.encoder.fingerprint]
        qualified += [result.images.fingerprint]
        assert all(said in str(entry.notes) for said in qualified), entry.notes


def test_conditions_make_tasks_that_need_no_quotes() -> None:
    (entries,) = files([breakaway("digits-robust")], "a/b").values()
    assert entries[0].task_id.startswith("breakaway-")
    assert all(set(entry.task_id) <= set("abcdefghijklmnopqrstuvwxyz0123456789-_.") for entry in entries)


@pytest.mark.parametrize("value", [nan, inf])
def test_what_is_no_finite_number_is_left_out(value: float) -> None:
    result = displacement("digits-robust")
    undefined = tuple(e.model_copy(update={"value": value}) for e in result.estimates)
    assert files([result], "a/b")
    assert files([with_findings(result, estimates=undefined)], "a/b") == {}


def test_warnings_are_published_with_the_numbers() -> None:
    warned = with_findings(breakaway("digits-robust"), warnings=("Two images are equal.",))
    (entries,) = files([warned], "a/b").values()
    assert all(says(str(entry.notes), "Two images are") for entry in entries)


def test_partial_results_say_so() -> None:
    (entries,) = files([breakaway("digits-robust", n=60, planned=300)], "a/b").values()
    assert all(says(str(entry.notes), "60 of 300", "Partial", "samples") for entry in entries)


def test_one_encoder_is_chosen() -> None:
    results = everything()[0]
    with pytest.raises(HoldfastError, match="of one encoder, the run of 4"):
        of_encoder(results, None)
    with pytest.raises(HoldfastError, match="Did you mean 'digits-robust'"):
        of_encoder(results, "digits-robsut")
    assert {result.encoder.name for result in of_encoder(results, "digits-robust")} == {"digits-robust"}
    assert of_encoder([breakaway("one")], None) == [breakaway("one")]


def test_what_would_mislead_is_refused() -> None:
    good = breakaway("digits-robust")
    with pytest.raises(HoldfastError, match="has collapsed"):
        of_encoder([warned(good, Warned("One embedding.", "collapsed"))], None)
    again = good.model_copy(update={"settings": {**good.settings, "seed": 1}})
    with pytest.raises(HoldfastError, match=r"two protocols \(.*seed"):
        of_encoder([good, again], None)
