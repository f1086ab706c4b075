"""``holdfast publish``: files on disk always, a proposal to the hub on request alone."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.cli.app import run
from tests.cli.stored import breakaway, run_of

hub = pytest.importorskip("huggingface_hub", minversion="1.4", reason="huggingface_hub 1.4 writes these files")
FILE = Path("model/.eval_results/holdfast-breakaway.yaml")
TO = ("--dataset", "someone/benchmark", "--out", "model")


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def pushed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What would have been sent to the hub."""
    sent: list[tuple[Any, ...]] = []

    class Hub:
        def create_commit(self, repo_id: str, operations: list[Any], **how: Any) -> SimpleNamespace:
            if repo_id == "nobody/nothing":
                raise hub.errors.HFValidationError("no such model\nmore")
            sent.append((repo_id, operations, how))
            return SimpleNamespace(pr_url="https://hub/someone/model/discussions/1")

    monkeypatch.setattr(hub, "HfApi", Hub)
    return sent


def test_files_are_written_and_nothing_is_pushed(pushed, capsys) -> None:
    folder = run_of("run", [breakaway("digits-robust")])
    assert run(["publish", folder, *TO, "--where", "attack=adaptive", "--where", "linf:0.1"]) == 0
    count = FILE.read_text(encoding="utf-8").count("task_id:")
    assert count > 1
    assert capsys.readouterr().out == f"{FILE}: {count} numbers\n"
    assert pushed == []


def test_on_request_the_same_files_are_proposed(pushed, capsys) -> None:
    folder = run_of("run", [breakaway("digits-robust"), breakaway("digits-random")])
    assert run(["publish", folder, *TO, "--encoder", "digits-robust", "--push", "someone/model"]) == 0
    ((model, (operation,), how),) = pushed
    assert (model, how["create_pr"]) == ("someone/model", True)
    assert (operation.path_in_repo, operation.path_or_fileobj) == (".eval_results/" + FILE.name, FILE.read_bytes())
    assert capsys.readouterr().out.endswith("Proposed: https://hub/someone/model/discussions/1\n")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["--push", "nobody/nothing"],
            "the files are written, but cannot be proposed to 'nobody/nothing' (no such model)",
        ),
        (["--only", "breakawya"], "Did you mean 'breakaway'"),
        (["--encoder", "other"], "'other'"),
    ],
)
def test_mistakes_are_answered_by_a_sentence(arguments, expected, pushed, capsys) -> None:
    folder = run_of("run", [breakaway("digits-robust")])
    assert run(["publish", folder, *TO, *arguments]) == 2
    assert expected in capsys.readouterr().err
    assert pushed == []
