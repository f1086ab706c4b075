"""What may happen to a run's folder while commands work in it: another command, a full disk, a drive that is gone."""

from __future__ import annotations

import multiprocessing
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.cli.app import run
from holdfast.commands.evaluated_run import write_report
from holdfast.core.run_settings import RunSettings
from holdfast.measure.store import Store, StoreError
from holdfast.run.request import Request
from tests import tiny
from tests.facts import refused
from tests.filled import fill_table


def fill(
    folder: Path, *evaluations: tiny.Mean, progress: Callable[[str, float, float], object] | None = None
) -> list[object]:
    store, images = Store(folder), tiny.images()
    store.request(Request(encoders=("tiny",)).model_dump_json())
    results, failures = fill_table(
        [tiny.encoder()], lambda _: images, evaluations, RunSettings(batch_size=2), store, progress=progress
    )
    assert not failures
    return [(result.settings, result.findings) for result in results]


@pytest.fixture
def drive(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of 400 kB."""
    folder = tmp_path / "drive"
    folder.mkdir()
    if not mount("-t", "tmpfs", "-o", "size=400k", "tmpfs", str(folder)):
        pytest.skip("mounting a file system needs more rights")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=False, capture_output=True)


def mount(*arguments: str) -> bool:
    return not subprocess.run(["mount", *arguments], check=False, capture_output=True).returncode


def test_a_full_disk_ends_the_run_and_loses_nothing(drive):
    ballast = drive / "ballast"
    ballast.write_bytes(bytes(340_000))
    many = [tiny.Mean(pause=1e-6 * k) for k in range(1, 20)]
    with refused(StoreError, "space", "device"):
        fill(drive / "run", *many)
    kept = [path for path in (drive / "run").rglob("*.*") if path.is_file()]
    assert len(kept) > 5, "vacuous: full from the start"
    ballast.unlink()
    assert len(fill(drive / "run", *many[:5])) == 5
    assert all(path.is_file() for path in kept)


def test_a_folder_that_may_not_be_written_to_can_be_read(drive, tmp_path, capsys):
    folder = drive / "run"
    fill(folder, tiny.Mean())
    assert mount("-o", "remount,ro", str(drive))
    with pytest.raises(StoreError, match=r"cannot write .*run.json: Read-only file system; .* another --out"):
        Store(folder).request("{}")
    page = write_report(Store(folder), tmp_path / "elsewhere")
    assert "tiny" in page.read_text()
    assert run(["runs", str(folder)]) == 0
    assert "1 finished" in capsys.readouterr().out
    assert run(["clean", str(folder), "--yes"]) == 2
    assert "cannot delete" in capsys.readouterr().err


@pytest.mark.parametrize("how", ["removed", "unmounted"])
def test_a_folder_that_vanishes_in_mid_run_ends_it_with_one_sentence(drive, how):
    folder = drive / "run"

    def vanish(doing: str, *_: float) -> None:
        if "mean" in doing and folder.exists():
            if how == "removed":
                shutil.rmtree(folder)
            else:
                subprocess.run(["umount", "-l", str(drive)], check=True)

    with refused(StoreError, "--out", "choose", "another"):
        fill(folder, tiny.Mean(), progress=vanish)
    assert not folder.exists(), "a piece of the run was written where the drive used to be"


@pytest.mark.slow
def test_two_commands_may_work_in_one_folder_at_once(tmp_path):
    fork = multiprocessing.get_context("fork")
    means = [(tiny.Mean(pause=0.02), tiny.Mean(pause=0.02, factor=factor)) for factor in (2.0, 3.0)]
    commands = [fork.Process(target=fill, args=(tmp_path / "run", *both)) for both in means]
    for command in commands:
        command.start()
    for command in commands:
        command.join(120)
        assert command.exitcode == 0
    store = Store(tmp_path / "run")
    expected = fill(tmp_path / "alone", *(tiny.Mean(pause=0.02, factor=factor) for factor in (1.0, 2.0, 3.0)))
    found = [(result.settings, result.findings) for result in store.results()]
    assert sorted(map(str, found)) == sorted(map(str, expected))
    assert not store.failures()
    assert not [path for path in (tmp_path / "run").rglob(".*") if path.is_file()]
