from __future__ import annotations

import os
from pathlib import Path
from time import monotonic, sleep

import pytest

from holdfast.commands.clean import clean
from holdfast.commands.runs import inventory, runs
from holdfast.core.errors import HoldfastError
from holdfast.core.run_settings import RunSettings
from holdfast.measure.store import Store, key_of
from holdfast.run.engines import ranks
from holdfast.run.request import Request
from tests import tiny
from tests.facts import refused
from tests.filled import fill_table


def fill(folder: Path, *evaluations: tiny.Mean, seed: int = 0, name: str = "tiny") -> Store:
    store, images = Store(folder), tiny.images()
    store.request(Request(encoders=("tiny",)).model_dump_json())
    fill_table([tiny.encoder(name)], lambda _: images, evaluations, RunSettings(seed), store)
    return store


def removed(folder: Path) -> dict[str, int]:
    return {one.kind: len(one.files) for one in clean(folder)}


def test_a_finished_run_and_its_bytes(tmp_path):
    fill(tmp_path, tiny.Mean())
    found = inventory(tmp_path)
    assert (found.encoders, found.images, found.evaluations) == (("tiny",), ("tiny images (20)",), ("mean",))
    assert (found.finished, found.partial, found.not_measured, found.failed, found.unreadable) == (1, (), (), (), ())
    assert sum(found.bytes.values()) == sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    assert all(found.bytes[kind] for kind in ("results", "shards", "arrays", "cells", "other"))


def test_failed_cells_and_those_that_were_not_measured_are_told_apart(tmp_path):
    store = fill(tmp_path, tiny.Mean(broken=True))
    found = inventory(tmp_path)
    assert [(cell.evaluation, cell.encoder, cell.reason) for cell in found.failed] == [("mean", "tiny", "it is broken")]
    assert (found.finished, found.not_measured) == (0, ())
    store.clear_failure("mean", "tiny")
    assert [(cell.evaluation, cell.encoder) for cell in inventory(tmp_path).not_measured] == [("mean", "tiny")]


def test_a_run_of_an_earlier_version_names_encoders_without_a_trace(tmp_path):
    Store(tmp_path).request(Request(encoders=("timm:resnet50",), images="photos").model_dump_json())
    assert [cell.encoder for cell in inventory(tmp_path).not_measured] == ["timm:resnet50"]
    with refused(HoldfastError, "cells", "holdfast evaluate"):
        clean(tmp_path)


@pytest.mark.parametrize("kind", ["results", "cells", "fits", "shards", "arrays"])
def test_damaged_files_are_named(tmp_path, kind):
    store = fill(tmp_path, tiny.Mean())
    if kind == "fits":
        store.keep_learned(
            key_of(tiny.Seen(), tiny.encoder(), tiny.images(), RunSettings()), {"matrix": tiny.images().pixels([0])}
        )
    path = next(path for path in tmp_path.rglob("*") if path.is_file() and kind in path.parts)
    path.write_bytes(path.read_bytes()[:-3])
    assert inventory(tmp_path).unreadable == (str(path),)


def test_runs_below_a_folder_are_found(tmp_path):
    fill(tmp_path / "b", tiny.Mean())
    fill(tmp_path / "a", tiny.Mean())
    assert [one.folder for one in runs(tmp_path)] == [str(tmp_path / "a"), str(tmp_path / "b")]
    with pytest.raises(HoldfastError, match=r"holds no run \(no run.json\)"):
        runs(tmp_path / "a" / "results")


def test_what_finished_cells_were_made_from_is_removed(tmp_path):
    store = fill(tmp_path, tiny.Mean())
    results = store.results()
    assert removed(tmp_path) == {"shards": 3, "arrays": 1}
    clean(tmp_path, yes=True)
    assert removed(tmp_path) == {}
    assert Store(tmp_path).results() == results
    assert not list((tmp_path / "shards").iterdir())


def test_what_unfinished_cells_are_made_from_stays(tmp_path):
    fill(tmp_path, tiny.Mean(), name="done")
    kept = {path.parent.name for path in tmp_path.glob("shards/*/*")}
    fill(tmp_path, tiny.Mean(broken=True, pause=0.001), name="failed")
    (seen,) = {path.parent.name for path in tmp_path.glob("shards/seen-*/*")} - kept
    assert removed(tmp_path) == {"shards": 2, "failures": 1}, "the codes are of the same weights, and needed"
    clean(tmp_path, yes=True)
    assert seen in {path.parent.name for path in tmp_path.glob("shards/*/*")}


def test_what_an_outdated_cell_was_made_from_is_removed(tmp_path):
    fill(tmp_path, tiny.Mean(broken=True))
    before = {path.parent.name for path in tmp_path.glob("shards/*/*")}
    fill(tmp_path, tiny.Mean(broken=True), seed=1)
    clean(tmp_path, yes=True)
    assert before.isdisjoint(path.parent.name for path in tmp_path.glob("shards/*/*"))
    assert removed(tmp_path) == {}


def test_partial_files_are_removed_once_nobody_can_be_writing_them(tmp_path):
    fill(tmp_path, tiny.Mean())
    clean(tmp_path, yes=True)
    fresh, old, earlier = (tmp_path / name for name in (".x.json.12-0a1b2c3d", ".y.json.12-0a1b2c3d", ".77.npy"))
    for path in (fresh, old, earlier, tmp_path / ".gitignore"):
        path.write_bytes(b"half")
        os.utime(path, (0, 0))
    fresh.write_bytes(b"half")
    assert [one.files for one in clean(tmp_path)] == [(str(earlier), str(old))]
    assert inventory(tmp_path).bytes["partial"] == 12


def test_leases_of_the_dead_are_removed_and_those_of_the_living_stay(tmp_path, monkeypatch):
    fill(tmp_path, tiny.Mean())
    clean(tmp_path, yes=True)
    dead, held = (tmp_path / "leases" / name for name in ("mean-0a1b-2c3d", "mean-0a1b-4e5f"))
    held.parent.mkdir()
    for path in (dead, held):
        path.write_text("rank 1 on a node, process 7")
        os.utime(path, (0, 0))
    monkeypatch.setattr(ranks, "BEAT", 0.01)
    with ranks._renewed(held):
        until = monotonic() + 60
        while held.stat().st_mtime == 0 and monotonic() < until:
            sleep(0.01)
        assert inventory(tmp_path).bytes["leases"] == 2 * held.stat().st_size
        assert removed(tmp_path) == {"leases": 1}
        clean(tmp_path, yes=True)
        assert [*held.parent.iterdir()] == [held]
