from __future__ import annotations

import json
import multiprocessing
import os
import time
from pathlib import Path

import pytest
import torch

from holdfast.core.files import write_whole
from holdfast.measure import packs
from holdfast.measure.packs import HEAD, ShardFolder
from holdfast.measure.store import Key, Store

KEY = Key(kind="seen", version=1, settings={}, encoder="e", images="i", seed=0, precision="float32")
MANY = packs.LOOSE + 6


def value(number: int) -> torch.Tensor:
    return torch.tensor([[float(number), -float(number)]])


def fill(store: Store, numbers: range) -> None:
    for number in numbers:
        store.keep(KEY, [f"i{number}"], {"value": value(number)})


def all_there(store: Store, numbers: range) -> bool:
    held, observed = store.observed(KEY, [f"i{number}" for number in numbers])
    expected = torch.cat([value(number) for number in numbers])
    return len(held) == len(numbers) == len(store.kept_ids(KEY)) and torch.equal(observed["value"], expected)


def files(folder: Path, pattern: str = "*") -> list[Path]:
    return sorted(folder.glob(f"shards/*/{pattern}"))


def files_read(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return a list that every file read as a whole from now on is added to."""
    read, real = list[Path](), Path.read_bytes

    def reading(path: Path) -> bytes:
        read.append(path)
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", reading)
    return read


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "run")
    fill(store, range(MANY))
    return store


def test_many_shards_become_one_file(store):
    assert len(files(store.folder, "*.pack")) == 1
    assert len(files(store.folder, "*.safetensors")) == MANY - packs.LOOSE
    assert all_there(store, range(MANY))
    assert all_there(Store(store.folder), range(MANY))


def test_many_small_packs_become_one(tmp_path, monkeypatch):
    monkeypatch.setattr(packs, "LOOSE", 4)
    store = Store(tmp_path)
    fill(store, range(4 * packs.SMALL))
    assert [path.suffix for path in files(tmp_path)] == [".index", ".pack"]
    assert all_there(Store(tmp_path), range(4 * packs.SMALL))


def test_full_packs_are_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(packs, "LOOSE", 4)
    monkeypatch.setattr(packs, "SMALL", 2)
    monkeypatch.setattr(packs, "FULL", 400)
    store = Store(tmp_path)
    fill(store, range(16))
    written = {path: path.stat().st_mtime_ns for path in files(tmp_path, "*.pack")}
    assert len(written) > 3
    fill(store, range(16, 32))
    assert all(path.stat().st_mtime_ns == before for path, before in written.items())
    assert all_there(store, range(32))


def test_damage_costs_the_shard_it_lies_in(store):
    (pack,) = files(store.folder, "*.pack")
    whole = pack.read_bytes()
    length = HEAD.unpack_from(whole)[1] + HEAD.size
    for place in (HEAD.size + length // 2, 3, 10, 20, 5 * length + 12):  # in a shard, a mark, a length, a checksum
        damaged = bytearray(whole)
        damaged[place] ^= 255
        pack.write_bytes(damaged)
        assert len(store.kept_ids(KEY)) == MANY - 1
        assert len(store.observed(KEY, [f"i{number}" for number in range(MANY)])[0]) == MANY - 1
    pack.write_bytes(whole[: 10 * length + 5])
    assert len(store.kept_ids(KEY)) == 10 + MANY - packs.LOOSE
    pack.write_bytes(whole)
    assert all_there(store, range(MANY))


def test_damage_that_shows_in_no_date_is_found_when_it_is_read(store):
    (pack,) = files(store.folder, "*.pack")
    status, damaged = pack.stat(), bytearray(pack.read_bytes())
    damaged[-1] ^= 1
    pack.write_bytes(damaged)
    os.utime(pack, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert len(store.observed(KEY, [f"i{number}" for number in range(MANY)])[0]) == MANY - 1
    assert len(Store(store.folder).kept_ids(KEY)) == MANY - 1, "it is computed again"


@pytest.mark.parametrize("content", [b"", b"[]", b"[[1, 2], [[3]]]", None])
def test_an_index_may_be_thrown_away(store, content):
    (index,) = files(store.folder, "*.index")
    before = index.read_bytes()
    if content is None:
        index.unlink()
    else:
        index.write_bytes(content)
    assert all_there(Store(store.folder), range(MANY))
    assert index.read_bytes() == before


def test_ids_of_packs_are_known_without_reading_them(store, monkeypatch):
    read = files_read(monkeypatch)
    assert len(Store(store.folder).kept_ids(KEY)) == MANY
    assert not [path for path in read if path.suffix == ".pack"]


def test_asked_again_only_new_files_are_read(store, monkeypatch):
    store.kept_ids(KEY)
    Store(store.folder).keep(KEY, ["another"], {"value": value(0)})
    read = files_read(monkeypatch)
    assert "another" in store.kept_ids(KEY)
    assert len(read) == 1


def test_shards_packed_while_they_are_read_are_not_missed(tmp_path, monkeypatch):
    monkeypatch.setattr(packs, "LOOSE", 1000)
    fill(Store(tmp_path), range(70))
    monkeypatch.setattr(packs, "LOOSE", 4)
    reader, other = ShardFolder(next(tmp_path.glob("shards/*"))), ShardFolder(next(tmp_path.glob("shards/*")))
    wanted = {f"i{number}" for number in range(70)}
    seen = []
    for ids, _ in reader.shards(wanted):
        seen += ids
        other.pack()
    assert sorted(seen) == sorted(wanted)


def test_a_pack_that_cannot_be_written_loses_nothing(tmp_path, monkeypatch):
    real = write_whole

    def full(path: Path, content: bytes) -> None:
        if path.suffix == ".pack":
            raise OSError(28, "No space left on device")
        real(path, content)

    monkeypatch.setattr(packs, "write_whole", full)
    fill(Store(tmp_path), range(MANY))
    assert len(files(tmp_path, "*.safetensors")) == MANY
    assert all_there(Store(tmp_path), range(MANY))


def writer(folder: Path, first: int, end: int) -> multiprocessing.process.BaseProcess:
    """Forked, so that it need not load torch again."""
    process = multiprocessing.get_context("fork").Process(target=writing, args=(folder, first, end))
    process.start()
    return process


def writing(folder: Path, first: int, end: int) -> None:
    packs.LOOSE, packs.SMALL = 4, 2
    fill(Store(folder), range(first, end))


@pytest.mark.slow
def test_two_processes_write_and_pack_one_observation(tmp_path):
    processes = [writer(tmp_path, 0, 120), writer(tmp_path, 80, 200)]
    store, most = Store(tmp_path), 0
    while any(process.is_alive() for process in processes):
        now = len(store.kept_ids(KEY))
        assert now >= most, "what was there is not found any more"
        most = now
    assert [process.exitcode for process in processes] == [0, 0]
    assert all_there(store, range(200))
    assert len(files(tmp_path)) < 40


@pytest.mark.slow
def test_a_killed_writer_leaves_everything_it_said_was_kept(tmp_path):
    for attempt in range(5):
        folder = tmp_path / str(attempt)
        process = writer(folder, 0, 100_000)
        store = Store(folder)
        while len(store.kept_ids(KEY)) < 5 + 7 * attempt:
            time.sleep(0.01)
        known = store.kept_ids(KEY)
        process.kill()
        process.join()
        later = Store(folder)
        assert later.kept_ids(KEY) >= known
        assert all_there(later, range(len(later.kept_ids(KEY)))), "shards were written in this order"
        assert json.dumps(sorted(later.kept_ids(KEY)))
