"""Images behind addresses: in memory, over HTTP, in stores that refuse or fall silent."""

from __future__ import annotations

import pickle
import tarfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import fsspec
import numpy as np
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem

from holdfast.core.encoder import Domain
from holdfast.core.errors import HoldfastError, HoldfastWarning
from holdfast.core.images import Images
from holdfast.data import load
from holdfast.data.reading import scan as encoded
from holdfast.data.reading import stores
from holdfast.data.reading.scan_cache import ScanCache
from holdfast.data.reading.stores import FileStore
from tests import facts
from tests.data.conftest import Painter

RGB = Domain((3, 8, 8))
DRAWN = np.random.default_rng(0).random((6, 3, 8, 8)).astype(np.float32)


SILENT: list[Exception] = []
"""What the flaky store raises next, last first."""


def _flaky_strip(kind: type, path: str) -> str:
    return str(MemoryFileSystem._strip_protocol(path.replace("flaky://", "memory://")))


def _flaky_cat(self: Any, path: str, start: int | None = None, end: int | None = None, **options: Any) -> Any:
    if SILENT:
        raise SILENT.pop()
    return MemoryFileSystem.cat_file(self, path, start, end, **options)


def _flaky_find(self: Any, path: str, **options: Any) -> Any:
    if "closed" in path:
        raise PermissionError("Access Denied")
    if "secret" in path:
        raise RuntimeError("Unable to locate credentials")
    return MemoryFileSystem.find(self, path, **options)


Flaky: Any = type(
    "Flaky",
    (MemoryFileSystem,),
    {
        "protocol": "flaky",
        "store": {},
        "pseudo_dirs": [""],
        "_strip_protocol": classmethod(_flaky_strip),
        "cat_file": _flaky_cat,
        "find": _flaky_find,
    },
)
"""Memory that does not answer for a while, or refuses."""


@pytest.fixture
def memory(paint: Painter, tmp_path: Path) -> Iterator[MemoryFileSystem]:
    """Four images in folders of memory, as files and in a tar, and an array of others."""
    fsspec.register_implementation("flaky", Flaky, clobber=True)
    for filesystem in (fsspec.filesystem("memory"), fsspec.filesystem("flaky")):
        for name in ("cat/1.png", "cat/2.png", "dog/1.png", "dog/2.png"):
            filesystem.pipe_file(f"/pets/{name}", paint(name).read_bytes())
        filesystem.pipe_file("/pets/.hidden/3.png", b"")
    filesystem = fsspec.filesystem("memory")
    with tarfile.open(tmp_path / "pets.tar", "w") as file:
        for path in sorted((tmp_path / "images").rglob("*.png")):
            file.add(path, str(path.relative_to(tmp_path / "images")))
    filesystem.put_file(tmp_path / "pets.tar", "/tars/pets.tar")
    np.save(tmp_path / "x.npy", DRAWN)
    np.savez(tmp_path / "x.npz", images=DRAWN, labels=np.arange(6))
    for name in ("x.npy", "x.npz"):
        filesystem.put_file(tmp_path / name, f"/arrays/{name}")
    yield filesystem
    MemoryFileSystem.store.clear()
    Flaky.store.clear()
    SILENT.clear()


class Server(SimpleHTTPRequestHandler):
    """Serves files, and parts of them unless they are asked for below /whole/."""

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        if "Range" not in self.headers or self.path.startswith("/whole/"):
            super().do_GET()
            return
        first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        content = Path(self.translate_path(self.path)).read_bytes()
        part = content[first : last + 1]
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{first + len(part) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The address of the files of this test."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Server, directory=str(tmp_path))) as http:
        Thread(target=http.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()


def _same(found: Images, wanted: Images) -> bool:
    return found.digests == wanted.digests and torch.equal(found.pixels([2, 0, 3]), wanted.pixels([2, 0, 3]))


def _recorded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the paths of the files that are read from now on."""
    read: list[str] = []
    whole = stores.StoredFile.read

    def recorded(file: stores.StoredFile, start: int = 0, end: int | None = None) -> bytes:
        read.append(file.path)
        return whole(file, start, end)

    monkeypatch.setattr(stores.StoredFile, "read", recorded)
    return read


def test_a_folder_in_a_store_gives_what_the_same_folder_here_does(memory: MemoryFileSystem, tmp_path: Path) -> None:
    here = load(f"{tmp_path}/images?labels=folders", RGB)
    there = load("memory://pets?labels=folders", RGB)
    assert there.ids == here.ids
    assert _same(there, here)
    assert torch.equal(pickle.loads(pickle.dumps(there.source)).read([1]), here.source.read([1]))
    assert here.labels is not None
    assert there.labels is not None
    assert there.labels.tolist() == here.labels.tolist()
    assert load(f"file://{tmp_path}/images", RGB).fingerprint == here.fingerprint
    assert _same(load("memory://tars/pets.tar", RGB), here)
    assert load("wds:memory://tars", RGB).ids[0] == "pets/cat/1"


def test_arrays_in_a_store_are_those_here(memory: MemoryFileSystem, tmp_path: Path) -> None:
    here, there = load(f"{tmp_path}/x.npy", RGB), load("memory://arrays/x.npy", RGB)
    assert there.fingerprint == here.fingerprint
    assert np.array_equal(there.pixels([4, 5, 1]), DRAWN[[4, 5, 1]])
    archive = load("memory://arrays/x.npz", RGB, limit=2)
    assert archive.fingerprint == load(f"{tmp_path}/x.npz", RGB, limit=2).fingerprint
    assert (archive.name, archive.labels is None) == ("memory://arrays/x.npz", False)
    memory.pipe_file("/arrays/cut.npy", (tmp_path / "x.npy").read_bytes()[:-4])
    with facts.refused(HoldfastError, "arrays/cut.npy", "5", "truncated"):
        load("memory://arrays/cut.npy", RGB)
    memory.pipe_file("/arrays/text.npz", b"text")
    with facts.refused(HoldfastError, "memory://arrays/text.npz", "numpy"):
        load("memory://arrays/text.npz", RGB)
    with pytest.raises(HoldfastError, match=r"no file 'memory:///?arrays/none\.npy'; check the path"):
        load("memory://arrays/none.npy", RGB)


def test_unchanged_objects_are_not_read_again(
    memory: MemoryFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = tmp_path / "files.index"
    first = [
        load(name, RGB, scan_cache=ScanCache.at(index)).fingerprint
        for name in ("memory://pets", "memory://tars/pets.tar")
    ]
    read = _recorded(monkeypatch)
    again = [
        load(name, RGB, scan_cache=ScanCache.at(index)).fingerprint
        for name in ("memory://pets", "memory://tars/pets.tar")
    ]
    assert again == first
    assert read == []
    memory.pipe_file("/pets/cat/1.png", (tmp_path / "images" / "dog" / "1.png").read_bytes())
    assert load("memory://pets", RGB, scan_cache=ScanCache.at(index)).fingerprint != first[0]
    assert read == ["/pets/cat/1.png"]


def test_of_many_distant_images_only_the_chosen_are_read(
    memory: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoded, "THOROUGH", 2)
    read = _recorded(monkeypatch)
    images = load("memory://pets", RGB, limit=1)
    _ = images.fingerprint
    assert read == [f"/pets/{images.ids[0]}"]


def test_a_web_server_is_a_store_too(paint: Painter, server: str, tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    for name in ("cat/1.png", "2.png", "3.png", "4.png"):
        paint(name)
    np.save(tmp_path / "x.npy", DRAWN)
    here = load(f"{tmp_path}/images", RGB)
    there = load(f"{server}/images", RGB, scan_cache=ScanCache.at(tmp_path / "files.index"))
    assert there.ids == here.ids
    assert _same(there, here)
    assert len(ScanCache.at(tmp_path / "files.index").known) == 4
    assert np.array_equal(load(f"{server}/x.npy", RGB).pixels([3, 1]), DRAWN[[3, 1]])
    (tmp_path / "whole").mkdir()
    np.save(tmp_path / "whole" / "x.npy", DRAWN)
    with facts.refused(HoldfastError, "x.npy", "asked", "server"):
        load(f"{server}/whole/x.npy", RGB)
    with facts.refused(HoldfastError, "folder", "nothing"):
        load(f"{server}/none", RGB)


def test_silence_is_waited_out_and_refusals_are_not(memory: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr(stores, "sleep", waited.append)
    SILENT.extend([TimeoutError("no answer"), ConnectionResetError("reset")])
    assert len(load("flaky://pets", RGB)) == 4
    assert len(waited) == 2
    waited.clear()
    SILENT.extend([TimeoutError("no answer")] * 20)
    said = r"flaky:///?pets/.*png cannot be read after 4 attempts \(no answer\); check it and the connection and run"
    with pytest.raises(HoldfastError, match=said):
        load("flaky://pets", RGB)
    SILENT.clear()
    waited.clear()
    for name, reason in {"closed": "Access Denied", "secret": "Unable to locate credentials"}.items():
        with pytest.raises(
            HoldfastError, match=rf"flaky:///?{name} may not be read \({reason}\); log in as the store's"
        ):
            load(f"flaky://{name}", RGB)
    assert waited == []


def test_a_damaged_object_is_skipped(memory: MemoryFileSystem) -> None:
    memory.pipe_file("/pets/cat/1.png", b"no image")
    memory.pipe_file("/pets/cat/2.png", b"")
    with pytest.warns(HoldfastWarning, match=r"2 of 4 .*cat/1.png \(not an image.*, cat/2.png \(zero bytes\)"):
        assert load("memory://pets", RGB, max_unreadable=0.5).ids == ("dog/1.png", "dog/2.png")


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("memory://nowhere", "no folder 'memory:///?nowhere', or nothing in it; check bucket and path"),
        ("memory://arrays", r"memory://arrays holds no images; .*\.jpg"),
        ("s4://bucket/pets", r"'s4://bucket/pets' cannot be opened \(Protocol not known: s4\); check its beginning"),
        ("memory://pets?label=folders", "Did you mean 'labels'"),
        ("memory://tars/none.tar", r"no file 'memory:///?tars/none\.tar'; check the path"),
    ],
)
def test_bad_addresses_say_what_to_do(memory: MemoryFileSystem, reference: str, said: str) -> None:
    with pytest.raises(HoldfastError, match=said):
        load(reference, RGB)


def test_files_that_are_not_read_are_counted_by_ending(memory: MemoryFileSystem) -> None:
    memory.pipe_file("/pets/cat/extra.heic", b"whatever")
    with pytest.warns(HoldfastWarning, match=r"\b1 images .*1 \.heic\)"):
        load("memory://pets", RGB)


def test_a_missing_package_is_one_sentence() -> None:
    fsspec.register_implementation(
        "far", "far_away.FarFileSystem", errtxt="Install far_away to reach far", clobber=True
    )
    with facts.refused(HoldfastError, "far_away", "holdfast-encoders[remote", "Install"):
        load("far://bucket/pets", RGB)


def test_a_cache_in_front_of_a_store_is_no_local_path(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 256, (3, 3, 8, 8), dtype=np.uint8)
    with fsspec.open("memory://cached/x.npy", "wb") as file:
        np.save(file, values)
    store, _ = FileStore.at("filecache::memory://cached/x.npy")
    assert not store.local


def test_an_address_with_a_password_is_refused_before_it_is_written_anywhere() -> None:
    with facts.refused(HoldfastError, "address", "password") as refused:
        FileStore.at("https://user:secret@example.org/x.npy")
    assert "secret" not in str(refused.value)
