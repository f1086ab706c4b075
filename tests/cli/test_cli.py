from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
import warnings
from pathlib import Path

import pytest

from holdfast.cli.app import run
from holdfast.cli.list import command
from holdfast.core.errors import HoldfastWarning
from holdfast.measure.store import load
from holdfast.run.catalog import SUITES, evaluations, everything, suite_settings
from holdfast.run.progress import Shown, remaining
from tests.cli.processes import listening
from tests.facts import says
from tests.outside import installed
from tests.pages import ROOT

PLAIN = ["evaluate", "builtin:digits-random", "--only", "overlap", "--limit", "40", "--set", "overlap.samples=8"]
QUICK = [*PLAIN, "--set", "overlap.attacks=pgd:steps=2"]
PROCESS = [sys.executable, "-m", "holdfast"]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def said(capsys) -> list[str]:
    return capsys.readouterr().err.splitlines()


def test_a_run_says_what_it_does_and_ends_by_naming_its_report(capsys, monkeypatch):
    monkeypatch.setattr("holdfast.run.progress.QUIET_SECONDS", 0.0)
    assert run([*QUICK, "--out", "run"]) == 0
    captured = capsys.readouterr()
    printed = captured.out.splitlines()
    assert printed[-1] == f"Report: {Path('run') / 'report.html'}"
    assert len(printed) <= 15
    assert "8" in next(line for line in printed if "standard" in line)
    assert "warning" not in captured.err
    shown = [line for line in captured.err.splitlines() if "%  " in line and ": " in line]
    assert {re.split(r"[ ,]", line.split(": ")[1])[0] for line in shown} == {"codes", "radii", "overlap"}
    assert Path("run/report.html").stat().st_size > 1000
    (result,), failures = load(Path("run"))
    assert failures == []
    assert result.settings["samples"] == 8
    assert json.loads(Path("run/run.json").read_text())["limit"] == 40


def test_running_again_changes_no_result():
    """In the folder that has a name when none is given."""
    run(QUICK)
    assert Path("runs/digits-quick/report.html").exists()
    before = load(Path("runs/digits-quick"))
    run([*QUICK, "--batch-size", "3"])
    assert load(Path("runs/digits-quick")) == before
    run([*QUICK, "--seed", "1"])
    assert len(load(Path("runs/digits-quick"))[0]) == 2, "another seed is another result"


def test_baselines_stand_beside_the_encoder():
    assert run([*QUICK, "--baselines", "pixels,random", "--out", "run"]) == 0
    results, _ = load(Path("run"))
    assert {result.encoder.name for result in results} == {
        "digits-random",
        "digits-random (random weights)",
        "pixels",
    }


def test_one_architecture_has_one_random_baseline():
    both = [*QUICK[:2], "builtin:digits-supervised", *QUICK[2:]]
    assert run([*both, "--baselines", "random", "--out", "run"]) == 0
    results, _ = load(Path("run"))
    assert {result.encoder.name for result in results} == {
        "digits-random",
        "digits-supervised",
        "digits-random and digits-supervised (random weights)",
    }


def test_encoders_can_be_given_short_names(capsys):
    Path("run.toml").write_text('encoders = ["left=builtin:digits-random", "right=builtin:digits-supervised"]')
    assert run(["evaluate", "--config", "run.toml", *QUICK[2:], "--out", "run"]) == 0
    results, _ = load(Path("run"))
    assert {result.encoder.name: result.encoder.source for result in results} == {
        "left": "builtin:digits-random",
        "right": "builtin:digits-supervised",
    }
    capsys.readouterr()
    assert run(["check", "run", "--require", "overlap_risk@encoder=left<=1"]) == 0, "nobody is missing"


def test_checkpoints_have_an_architecture_each(capsys):
    from safetensors.torch import save_file

    from tests.cli import modules

    save_file(modules.weights(modules.linear()), "a.safetensors")
    save_file(modules.weights(modules.stepped()), "b.safetensors")
    given = ["a=checkpoint:a.safetensors", "builtin:digits-random", "b=checkpoint:b.safetensors"]
    archs = ["--arch", "tests.cli.modules:linear", "--arch", "tests.cli.modules:stepped"]
    rest = [*PLAIN[2:], "--images", "builtin:digits", "--set", "overlap.attacks=square:queries=3", "--out", "run"]
    assert run(["evaluate", *given, *archs, *rest]) == 0
    assert {result.encoder.source for result in load(Path("run"))[0]} == {
        "checkpoint:a.safetensors --arch tests.cli.modules:linear",
        "builtin:digits-random",
        "checkpoint:b.safetensors --arch tests.cli.modules:stepped",
    }
    capsys.readouterr()
    assert run(["check", "run", "--require", "overlap_risk<=1"]) == 0
    assert run(["evaluate", *given[:2], *archs, *rest]) == 2
    assert says(capsys.readouterr().err, "1 checkpoints", "2", "--arch")
    assert run([*QUICK, *archs[:2], "--out", "other"]) == 2
    assert "--arch tests.cli.modules:linear changes nothing" in capsys.readouterr().err


@pytest.mark.slow
def test_a_black_box_takes_one_flag(capsys):
    from safetensors.torch import save_file

    from tests.cli import modules

    save_file(modules.weights(modules.stepped()), "b.safetensors")
    given = [
        "evaluate",
        "checkpoint:b.safetensors",
        "--arch",
        "tests.cli.modules:stepped",
        "--images",
        "builtin:digits",
    ]
    rest = ["--only", "displacement", "--limit", "8", "--eps", "0.1", "--set", "displacement.samples=2"]
    rest += ["--set", "displacement.divergences=l2", "--out", "run"]
    assert run([*given, *rest]) == 1
    assert "--black-box" in capsys.readouterr().err
    assert run([*given, *rest, "--black-box"]) == 0
    (result,) = load(Path("run"))[0]
    assert result.settings["attacks"] == ["square"]
    assert run([*given, "--only", "masking", "--black-box"]) == 2
    assert says(capsys.readouterr().err, "masking", "gradients")


def test_a_failing_encoder_fails_alone_and_the_status_says_so(capsys):
    Path("made.py").write_text(
        "import torch\ndef collapsed():\n    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3))\n"
        "    return net\n"
    )
    import torch
    from safetensors.torch import save_file

    save_file({"1.weight": torch.zeros(3, 64), "1.bias": torch.ones(3)}, "zeros.safetensors")
    sys.path.insert(0, ".")
    try:
        status = run(
            [
                *QUICK,
                "checkpoint:zeros.safetensors?shape=1x8x8",
                *("--arch", "made:collapsed", "--images", "builtin:digits", "--out", "run"),
            ]
        )
    finally:
        sys.path.remove(".")
    captured = capsys.readouterr()
    assert status == 1
    assert "failed: overlap of zeros.safetensors" in captured.err
    assert says(captured.err, "same embedding")
    assert "cells: 1 finished, 1 failed" in captured.err
    assert captured.out.splitlines()[-1].startswith("Report: ")
    assert len(load(Path("run"))[0]) == 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["evalute"], "No such command 'evalute'"),
        (["evaluate", "--frobnicate"], "No such option: --frobnicate"),
        (["evaluate", "--limit", "many"], "Invalid value for '--limit'"),
        (["evaluate", "--limit", "0"], "Invalid value for '--limit': Input should be greater than or equal to 1"),
        (["evaluate", "--eps", "8/255", "--ball", "l2:1"], "eps and ball"),
        (["evaluate", "--eps", "eight"], "eps: expected float such as 0.05 or 8/255, got 'eight'"),
        (["evaluate", "--eps", "8"], "the linf:8.0 ball holds every input in [0, 1]"),
        (["evaluate", "--ball", "l2:40"], "the l2:40.0 ball holds every input in [0, 1]"),
        (["evaluate", "--eps", "-1"], "radius of a linf ball must be positive and finite"),
        (["evaluate", "--ball", "l3:1"], "Did you mean"),
        (["evaluate", "--suite", "quik"], "Did you mean 'quick'"),
        (["evaluate", "--only", "breakway"], "Did you mean 'breakaway'"),
        (["evaluate", "--set", "breakaway=3"], "evaluation.setting=value"),
        (["evaluate", "--set", "breakaway.sampels=3"], "Did you mean 'samples'"),
        (["evaluate", "--only", "overlap", "--set", "breakaway.samples=3"], "--only excludes breakaway"),
        (["evaluate", "=builtin:digits-robust"], "a short name stands before ="),
        (["evaluate", "builtin:digits-robst"], "Did you mean 'digits-robust'"),
        (["evaluate", "tim:resnet50", "--images", "."], "Did you mean 'timm'"),
        (["evaluate", "timm:resnet50"], "name a folder of them with --images"),
        (["evaluate", "--images", "photos"], "name one, as in timm:resnet50"),
        (["evaluate", "builtin:digits-random", "--images", "nowhere"], "no file or folder 'nowhere'"),
        (["evaluate", "--baselines", "pixel"], "Did you mean 'pixels'"),
        (["evaluate", "--device", "cudda"], "'cudda'"),
        (["evaluate", "--precision", "float8"], "'float8'"),
        (["evaluate", "--config", "none.toml"], "--config none.toml"),
        (["evaluate", "builtin:digits-random", "builtin:digits-random"], "two encoders are called"),
        (["list", "evaluatoins"], "Did you mean 'evaluations'"),
        (["doctor", "builtin:digits-robst"], "Did you mean 'digits-robust'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_are_one_sentence(arguments, expected, capsys):
    assert run(arguments) == 2
    (sentence,) = said(capsys)
    assert sentence.startswith("holdfast: ")
    assert expected in sentence
    assert not list(Path().rglob("results")), "something was computed first"


def test_an_unwritable_folder_is_one_sentence(capsys):
    Path("file").write_text("in the way")
    assert run([*QUICK, "--out", "file/run"]) == 2
    assert "cannot write file/run/run.json: Not a directory" in said(capsys)[-1]


def test_debug_shows_the_traceback(capsys):
    assert run(["list", "evaluatoins", "--debug"]) == 2
    assert any("Traceback" in line for line in said(capsys))


def test_a_defect_is_called_one(capsys, monkeypatch):
    monkeypatch.setattr("holdfast.run.catalog.everything", lambda: 1 / 0)
    assert run(["list"]) == 2
    assert said(capsys) == [
        "holdfast: ZeroDivisionError: division by zero; this is a defect of holdfast, --debug shows where"
    ]


def test_warnings_are_said_once_and_those_of_libraries_are_not_ours(capsys, monkeypatch):
    def warn():
        warnings.warn("look here", HoldfastWarning, stacklevel=1)
        warnings.warn("look here", HoldfastWarning, stacklevel=2)
        warnings.warn("old spelling", FutureWarning, stacklevel=1)
        warnings.warn("overflow", RuntimeWarning, stacklevel=1)
        return {}

    monkeypatch.setattr("holdfast.run.catalog.everything", warn)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert run(["list"]) == 0
        assert said(capsys) == ["holdfast: warning: look here", "RuntimeWarning: overflow"]
        assert run(["list", "--debug"]) == 0
        assert "FutureWarning: old spelling" in said(capsys)


def test_a_spent_budget_says_how_to_continue(capsys):
    assert run([*QUICK, "--out", "run", "--budget", "0.000001"]) == 1
    assert says(capsys.readouterr().err, "same command")
    assert run([*QUICK, "--out", "run"]) == 0
    assert load(Path("run"))[1] == []


def test_an_interrupt_stops_cleanly_and_the_same_command_continues():
    slow = [*PLAIN, "--set", "overlap.attacks=adaptive:steps=100,restarts=10", "--batch-size", "1", "--out", "run"]
    process = listening(slow, Path("said"))
    limit = time.monotonic() + 60
    while process.is_alive() and not list(Path("run").glob("shards/targeted-*/*.safetensors")):
        assert time.monotonic() < limit
        time.sleep(0.02)
    os.kill(process.pid or 0, signal.SIGINT)
    process.join(60)
    assert process.exitcode == 130
    error = Path("said").read_text().splitlines()
    assert says(error[-1], "stopped", "continues")
    assert not any("Traceback" in line for line in error)
    assert list(Path("run").glob("shards/targeted-*/*.safetensors"))


def test_help_does_not_wait_for_torch():
    code = (
        "import sys; from holdfast.cli.app import run\n"
        "heavy = {'torch', 'numpy', 'scipy', 'sklearn', 'matplotlib', 'jinja2'}\n"
        "for command in ([], *([name] for name in sys.argv[1:])):\n"
        "    status = run([*command, '--help'])\n"
        "    loaded = heavy & set(sys.modules)\n"
        "    if status or loaded: sys.exit(f'{command}: status {status}, loaded {loaded}')\n"
    )
    commands = ["evaluate", "compare", "check", "attack", "doctor", "list"]
    done = subprocess.run([sys.executable, "-c", code, *commands], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Usage") == 1 + len(commands)


def test_version(capsys):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"{project['version']}\n"


def test_list_shows_everything(capsys):
    assert run(["list"]) == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("timm", "breakaway", "adaptive", "linf", "quick", "builtin:digits-robust"))
    assert run(["list", "divergences"]) == 0
    assert "breakaway" not in capsys.readouterr().out


def test_every_kind_can_be_listed_and_the_help_names_them(capsys):
    assert command.__doc__
    for kind in everything():
        assert run(["list", kind]) == 0
        assert kind in command.__doc__
    assert "``" not in capsys.readouterr().out


def test_suites_are_listed_with_every_setting_they_change(capsys):
    assert run(["list", "suites"]) == 0
    shown = capsys.readouterr().out
    clever = "    clever: balls = l2:5.0, linf:0.5; batches = 100; draws = 3; rivals = 1; random = 30; samples = 2000\n"
    assert clever in shown
    for suite in SUITES:
        for evaluation, changed in suite_settings(suite, evaluations().values()).items():
            assert f"    {evaluation}: " in shown
            assert all(f" {name} = " in shown for name in changed)


def test_doctor_examines(capsys):
    assert run(["doctor", "builtin:digits-random", "--images", "builtin:digits"]) == 0
    assert says(capsys.readouterr().out, "loads", "twice")


def test_lines_that_go_into_a_file_end_where_their_words_do(capsys):
    assert run(["doctor", "builtin:digits-random"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 10
    assert lines == [line.rstrip() for line in lines]


def test_progress_is_plain_lines_away_from_a_terminal(capsys):
    with Shown() as shown:
        shown("encoder: codes, 0 of 9", 0.0)
        shown("encoder: codes, 9 of 9", 0.5)
    assert said(capsys) == ["  0%  encoder: codes, 0 of 9"]


def test_a_long_silence_at_the_beginning_is_called_loading(capsys, monkeypatch):
    monkeypatch.setattr("holdfast.run.progress.QUIET_SECONDS", 0.05)
    with Shown() as shown:
        shown.waiting.join(10)
    assert said(capsys) == ["  0%  loading"]
    with Shown() as shown:
        shown.say("at once")
        shown.waiting.join(10)
    assert said(capsys) == ["at once"]


def test_time_left_is_proportional():
    assert remaining(10.0, 0.1, 0.9) == "1 min 30 s left"


def test_nothing_at_all_shows_the_help_and_no_second_sentence(capsys):
    assert run([]) == 2
    captured = capsys.readouterr()
    assert "Usage: holdfast" in captured.out
    assert captured.err == ""


def test_the_shell_can_complete_commands(capsys):
    assert run(["--help"]) == 0
    assert "--install-completion" in capsys.readouterr().out
    shell = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    script = subprocess.run(
        [*PROCESS, "--show-completion", "bash"], env=shell, capture_output=True, text=True, check=True
    )
    assert "_HOLDFAST_COMPLETE=complete_bash" in script.stdout
    typed = {**os.environ, "_HOLDFAST_COMPLETE": "complete_bash", "COMP_WORDS": "holdfast ev", "COMP_CWORD": "1"}
    offered = subprocess.run(PROCESS, env=typed, capture_output=True, text=True, check=True)
    assert offered.stdout.split() == ["evaluate"]


@pytest.mark.parametrize(
    ("name", "code", "expected"),
    [
        (
            "evaluate",
            "def command(): ...",
            "is called 'evaluate' as holdfast's own command or another package's; rename",
        ),
        (
            "novel",
            "",
            "the entry point 'novel' of holdfast.cli must name a module with a function command, got <module",
        ),
        (
            "novel",
            "import nothing_of_that_name",
            "'novel', which an installed package adds to holdfast.cli, does not load",
        ),
    ],
)
def test_commands_of_other_packages_that_cannot_be_added_are_named(name, code, expected, tmp_path, capsys):
    with installed(tmp_path, "elsewhere", {"flags": code}, {"holdfast.cli": {name: "elsewhere.flags"}}):
        assert run(["--help"]) == 2
        assert expected in capsys.readouterr().err
