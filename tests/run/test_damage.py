"""A stored record is read back as it was written, or it is named as damaged; never as something else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch

import holdfast as hf
from holdfast.commands.runs import read, unfinished
from holdfast.core.errors import HoldfastError, HoldfastWarning, Unreadable
from holdfast.core.records import Failure
from holdfast.core.run_settings import RunSettings
from holdfast.measure.packs import ShardFolder
from holdfast.measure.store import Store
from holdfast.run.run import claim
from tests import tiny
from tests.facts import refused, says
from tests.filled import fill_table
from tests.measure.test_store import KEY

EVERY = 7
"""Of so many bytes one is flipped; no field of a record is shorter with its name."""


@pytest.fixture
def run(tmp_path: Path) -> Store:
    store = Store(tmp_path / "run")
    store.request('{"images": "photos", "encoders": ["timm:resnet50"]}')
    fill_table([tiny.encoder()], lambda _: tiny.images(), [tiny.Mean()], RunSettings(), store)
    store.fail(Failure(evaluation="broken", encoder="tiny", images="tiny images", error="Error", reason="it broke"))
    return store


def flips(path: Path) -> Iterator[int]:
    """Flip one bit after the other of the file ``path``, only one at a time."""
    content = path.read_bytes()
    for place in range(0, len(content), EVERY):
        flipped = bytearray(content)
        flipped[place] ^= 1 << place % 8
        path.write_bytes(flipped)
        yield place
    path.write_bytes(content)


@pytest.mark.parametrize("kind", ["results", "failures", "cells"])
def test_any_flipped_byte_of_a_record_makes_it_count_as_never_computed_and_is_named(run: Store, kind: str):
    (path,) = (run.folder / kind).iterdir()
    kinds: dict[str, Callable[[], Sequence[object]]] = {
        "results": run.results,
        "failures": run.failures,
        "cells": run.cells,
    }
    records = kinds[kind]
    whole = records()
    assert len(whole) == 1
    assert run.damaged() == []
    for place in flips(path):
        assert records() == [], place
        assert run.damaged() == [path], place
        with refused(Unreadable, path.name):
            read([run.folder])
    assert records() == whole
    assert run.damaged() == []


def test_any_flipped_byte_of_what_was_asked_for_is_noticed(run: Store):
    assert [failure.encoder for failure in unfinished(run.folder, [], [])] == ["timm:resnet50"]
    for _ in flips(run.folder / "run.json"):
        with refused(Unreadable, "run.json"):
            unfinished(run.folder, [], [])


def test_any_flipped_byte_of_the_request_of_a_folder_is_noticed(tmp_path: Path):
    store = Store(tmp_path)
    claim(store, "attack", KEY)
    store.write_file("attack.json", b"{}")
    claim(store, "attack", KEY)
    for _ in flips(tmp_path / "request.json"):
        with pytest.raises(HoldfastError, match=r"request\.json is damaged"):
            claim(store, "attack", KEY)


def test_any_flipped_byte_of_the_index_of_a_pack_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("holdfast.measure.packs.LOOSE", 2)
    store = Store(tmp_path)
    store.keep(KEY, ["a1", "a2"], {"sum": torch.tensor([1.0, 2.0])})
    store.keep(KEY, ["a3"], {"sum": torch.tensor([3.0])})
    (index,) = tmp_path.rglob("*.index")
    wanted = ["a1", "a2", "a3", "a4", "c1"]
    whole = Store(tmp_path).observed(KEY, wanted)
    assert whole[0] == wanted[:3]
    for place in flips(index):
        held, observed = Store(tmp_path).observed(KEY, wanted)
        assert held == whole[0], place
        assert torch.equal(observed["sum"], whole[1]["sum"]), place
    assert ShardFolder(index.parent).damaged() == []


@pytest.mark.slow
def test_a_repeated_evaluation_names_what_is_damaged_once_and_mends_it(tmp_path: Path):
    def measured() -> None:
        hf.evaluate("builtin:digits-robust", "builtin:digits", only=["geometry", "alignment"], limit=20, out=folder)

    folder = tmp_path / "run"
    measured()
    paths, whole = sorted((folder / "results").iterdir()), Store(folder).results()
    for path in paths:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    with pytest.warns(HoldfastWarning) as warned:
        measured()
    named = [str(one.message) for one in warned if "cannot be read" in str(one.message)]
    assert len(paths) == 2
    assert len(named) == 1
    assert all(path.name in named[0] for path in paths)
    assert says(named[0], "never computed")
    assert Store(folder).damaged() == []
    assert [result.findings for result in Store(folder).results()] == [result.findings for result in whole]
