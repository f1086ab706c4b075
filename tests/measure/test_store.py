from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch

from holdfast.attacks.adaptive import AdaptiveAttack
from holdfast.attacks.evaluations.breakaway import Breakaway
from holdfast.core.divergences import L2Distance
from holdfast.core.records import Failure
from holdfast.core.run_settings import RunSettings
from holdfast.measure.store import Cell, Key, Store, StoreError, key_of, load
from tests import tiny
from tests.facts import refused

KEY = Key(kind="seen", version=1, settings={}, encoder="e", images="i", seed=0, precision="float32")
SEEN = {"sum": torch.tensor([1.0, 2.0, 3.0]), "half": torch.ones(3, 2, dtype=torch.bfloat16), "hit": torch.ones(3) > 0}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "run")


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) and a[name].dtype == b[name].dtype for name in a)


def shard_of(store: Store) -> Path:
    (shard,) = (store.folder / "shards").rglob("*.safetensors")
    return shard


def test_shards_come_back_row_by_row_in_the_order_asked(store):
    store.keep(KEY, ["a", "b", "c"], SEEN)
    store.keep(KEY, ["d"], {name: values[:1] for name, values in SEEN.items()})
    held, observed = store.observed(KEY, ["d", "c", "nobody", "a"])
    assert held == ["d", "c", "a"]
    assert same(observed, {name: values[[0, 2, 0]] for name, values in SEEN.items()})


def test_another_key_holds_nothing(store):
    store.keep(KEY, ["a", "b", "c"], SEEN)
    assert store.observed(KEY.model_copy(update={"seed": 1}), ["a"]) == ([], {})


def test_views_of_one_memory_are_kept(store):
    whole = torch.arange(6.0)
    store.keep(KEY, ["a", "b"], {"left": whole[:2], "right": whole[1:3], "across": whole.reshape(2, 3).T[:2]})
    assert torch.equal(store.observed(KEY, ["a", "b"])[1]["across"], torch.tensor([[0.0, 3.0], [1.0, 4.0]]))


@pytest.mark.parametrize("damage", [lambda c: c[: len(c) // 2], lambda c: c[:-1] + bytes([c[-1] ^ 1]), lambda c: b""])
def test_damaged_shards_count_as_never_computed(store, damage):
    store.keep(KEY, ["a", "b", "c"], SEEN)
    shard_of(store).write_bytes(damage(shard_of(store).read_bytes()))
    assert store.observed(KEY, ["a"]) == ([], {})
    store.keep(KEY, ["a", "b", "c"], SEEN)
    assert same(store.observed(KEY, ["a", "b", "c"])[1], SEEN)


def test_damaged_results_count_as_never_computed(store):
    evaluation, encoder, images = tiny.Mean(), tiny.encoder(), tiny.images()
    key, result = key_of(evaluation, encoder, images, RunSettings()), evaluation(encoder, images)
    store.finish(key, result)
    assert store.result(key) == result
    (path,) = (store.folder / "results").iterdir()
    path.write_bytes(path.read_bytes()[:-5])
    assert store.result(key) is None
    assert store.results() == []


def test_a_cell_is_finished_with_all_of_its_samples_and_not_before(store):
    evaluation, encoder, images = tiny.Mean(), tiny.encoder(), tiny.images()
    key, result = key_of(evaluation, encoder, images, RunSettings()), evaluation(encoder, images)
    cell = Cell(evaluation=evaluation.name, encoder=encoder.name, result=key.stem, made_from=())
    assert not store.holds(cell), "nothing is there"
    store.finish(key, result.model_copy(update={"planned": 16, "seen": 5}))
    assert not store.holds(cell), "a budget ended before"
    store.finish(key, result)
    assert store.holds(cell)
    (path,) = (store.folder / "results").iterdir()
    path.write_bytes(path.read_bytes()[:-5])
    assert not store.holds(cell), "damaged"


@pytest.mark.parametrize("last", ["first", "second"])
def test_a_cell_is_computed_the_way_it_was_asked_for_last(store, last):
    """Names of files follow their content, so whichever comes first by name, the date decides."""
    ways = {name: Cell(evaluation="mean", encoder="e", result=name, made_from=()) for name in ("first", "second")}
    paths = dict[str, Path]()
    for name, cell in ways.items():
        known = set((store.folder / "cells").glob("*"))
        store.expect([cell])
        (paths[name],) = set((store.folder / "cells").glob("*")) - known
    for name, path in paths.items():
        os.utime(path, (1000 + (name == last), 1000 + (name == last)))
    assert store.cells() == [ways[last]]


def test_a_result_replaces_that_of_an_older_observation(store, monkeypatch):
    evaluation, encoder, images = tiny.Mean(), tiny.encoder(), tiny.images()
    result = evaluation(encoder, images)
    before = key_of(evaluation, encoder, images, RunSettings())
    store.finish(before, result)
    other = evaluation(encoder, images, RunSettings(seed=1))
    store.finish(key_of(evaluation, encoder, images, RunSettings(seed=1)), other)
    monkeypatch.setattr(tiny.Seen, "version", 2)
    store.finish(key_of(evaluation, encoder, images, RunSettings()), result)
    assert store.result(before) is None
    assert len(store.results()) == 2


def digest(
    factor: float = 1.0,
    name: str = "tiny",
    scale: float = 2.0,
    count: int = 20,
    seed: int = 0,
    precision: str = "float32",
    batch_size: int = 256,
    attack_seed: int | None = None,
) -> str:
    run = RunSettings(seed, "cpu", precision, batch_size, attack_seed)
    return key_of(tiny.Mean(factor), tiny.encoder(name, scale), tiny.images(count), run).digest


@pytest.mark.parametrize(
    "other",
    [
        digest(factor=2.0),
        digest(name="other"),
        digest(scale=3.0),
        digest(count=19),
        digest(seed=1),
        digest(attack_seed=1),
        digest(precision="float64"),
        key_of(tiny.Seen(), tiny.encoder(), tiny.images(), RunSettings()).digest,
    ],
)
def test_whatever_may_change_a_number_changes_the_key(other):
    assert other != digest()


def test_batch_size_is_not_part_of_a_key():
    assert digest(batch_size=3) == digest()


def test_names_of_encoders_do_not_separate_shards():
    assert key_of(tiny.Seen(), tiny.encoder("a"), tiny.images(), RunSettings()) == key_of(
        tiny.Seen(), tiny.encoder("b"), tiny.images(), RunSettings()
    )


def test_versions_are_part_of_a_key(monkeypatch):
    before = digest()
    monkeypatch.setattr(tiny.Mean, "version", 2)
    assert digest() != before


@pytest.mark.parametrize("kind", [AdaptiveAttack, L2Distance])
def test_versions_of_what_an_evaluation_is_set_to_use_are_part_of_its_key(kind, monkeypatch):
    breakaway = Breakaway(attacks=(AdaptiveAttack(),), divergences=(L2Distance(),))
    before = key_of(breakaway, tiny.encoder(), tiny.images(), RunSettings())
    version = kind.version
    monkeypatch.setattr(kind, "version", version + 1)
    after = key_of(breakaway, tiny.encoder(), tiny.images(), RunSettings())
    assert after.digest != before.digest
    monkeypatch.setattr(kind, "version", version)
    assert key_of(breakaway, tiny.encoder(), tiny.images(), RunSettings()) == before


def test_failures_are_kept_until_tried_again(store):
    failure = Failure(evaluation="mean", encoder="a/b c", images="i", error="E", reason="r")
    store.fail(failure)
    store.fail(failure.model_copy(update={"encoder": "a_b_c"}))
    assert len(store.failures()) == 2
    store.clear_failure("mean", "a/b c")
    assert [kept.encoder for kept in store.failures()] == ["a_b_c"]


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match=r"cannot write .*run.json: Not a directory; .* another --out"):
        Store(tmp_path / "file" / "run").request("{}")


def test_a_full_disk_loses_nothing_written_before(store, monkeypatch):
    store.keep(KEY, ["a", "b", "c"], SEEN)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with refused(StoreError, "space", "device"):
        store.keep(KEY, ["d"], {name: values[:1] for name, values in SEEN.items()})
    assert same(store.observed(KEY, ["a", "b", "c", "d"])[1], SEEN)
    assert not list(store.folder.rglob(".*")), "a partial file was left behind"


def test_loading_a_folder_without_a_run_says_so(tmp_path):
    with pytest.raises(ValueError, match=r"holds no run \(no run.json\)"):
        load(tmp_path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int16], ids=str)
def test_an_array_is_what_the_shards_hold_row_by_row(tmp_path, dtype):
    store, ids, values = Store(tmp_path), [f"i{k}" for k in range(7)], (100 * torch.randn(7, 3)).to(dtype)
    for rows in ([4, 0], [1, 2, 6], [6, 5]):
        store.keep(KEY, [ids[row] for row in rows], {"codes": values[rows]})
        assert store.array(KEY, "codes", ids) is None
    store.keep(KEY, [ids[3], "another"], {"codes": values[[3, 3]]})
    found = store.array(KEY, "codes", ids)
    assert found is not None
    assert found.dtype == dtype
    assert torch.equal(found, values)
    (path,) = tmp_path.glob("arrays/*/*")
    written = path.stat().st_mtime_ns
    again = store.array(KEY, "codes", ids)
    assert again is not None
    assert torch.equal(again, values)
    assert path.stat().st_mtime_ns == written
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    again = store.array(KEY, "codes", ids)
    assert again is not None
    assert torch.equal(again, values)
