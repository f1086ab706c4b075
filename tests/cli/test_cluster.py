"""Where a command computes: Slurm jobs of itself give what one process gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.cli import cluster
from holdfast.cli.app import application, run
from holdfast.cli.cluster import JobsRequestedError, Rank, Slurm, cluster_of
from tests.facts import says

EVALUATE = ["evaluate", "builtin:digits-random", "--images", "builtin:digits", "--limit", "6", "--only", "displacement"]
COMMANDS = application().commands
CHEAP = ["--set", "displacement.attacks=pgd:steps=2", "--eps", "0.1"]


def test_slurm_jobs_are_asked_for_in_one_text() -> None:
    with pytest.raises(JobsRequestedError) as asked:
        cluster_of("slurm:ranks=16,partition=gpu,timeout=240,gpus=1", None, Path("out"))
    assert asked.value.slurm == Slurm(ranks=16, timeout=240, gpus=1, partition="gpu")
    assert asked.value.folder == Path("out/.slurm")
    assert asked.value.slurm.parameters()["slurm_partition"] == "gpu"
    assert cluster_of("auto", None, Path()) == "auto"


def test_a_machine_without_slurm_says_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("submitit", reason="submitit is not installed: pip install submitit")
    assert run([*EVALUATE, "--out", str(tmp_path / "out"), "--cluster", "slurm"]) == 2
    assert capsys.readouterr().err.startswith("holdfast: there is no Slurm on this machine (")


def test_a_preempted_job_is_submitted_again_as_it_is() -> None:
    pytest.importorskip("submitit", reason="submitit is not installed: pip install submitit")
    again = Rank().checkpoint(["evaluate"], 1, 2)
    assert isinstance(again.function, Rank)
    assert again.args == (["evaluate"], 1, 2)


@pytest.mark.slow
def test_jobs_give_the_table_of_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("submitit", reason="submitit is not installed: pip install submitit")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cluster, "EXECUTOR", "local")
    for out, more in (("alone", []), ("jobs", ["--cluster", "slurm:ranks=2"])):
        assert run([*EVALUATE, *CHEAP, "--out", out, *more]) == 0
        assert capsys.readouterr().out.splitlines()[-1] == f"Report: {Path(out) / 'report.html'}"
    assert Path("jobs/table.csv").read_bytes() == Path("alone/table.csv").read_bytes()


@pytest.mark.parametrize("command", ["attack", "certify", "corrupt", "harden"])
def test_every_command_that_measures_takes_the_same_two_flags(command: str) -> None:
    for flag in ("cluster", "workers"):
        asked, known = ({part.name: part for part in COMMANDS[name].params}[flag] for name in (command, "evaluate"))
        for said in ("opts", "help", "metavar", "rich_help_panel"):
            assert vars(asked)[said] == vars(known)[said]


def test_hardening_is_not_several_jobs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments = ["harden", "builtin:digits-random", "--images", "builtin:digits", "--out", str(tmp_path / "out")]
    assert run([*arguments, "--cluster", "slurm:ranks=2"]) == 2
    assert says(capsys.readouterr().err, "trains", "process")
    assert run([*arguments, "--workers", "2", "--device", "cuda:1"]) == 2
    assert says(capsys.readouterr().err, "--workers", "CPUs", "processes")
    assert not (tmp_path / "out").exists()
