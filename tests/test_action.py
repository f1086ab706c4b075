"""The GitHub Action: its shell runs here, with programs that stand in for ``gh`` and for ``holdfast``."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.cli.app import application
from holdfast.report.gate import parse
from tests.facts import says
from tests.pages import DOCS, ROOT, blocks, rows, section

ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
STEPS: dict[str, dict[str, Any]] = {step["name"]: step for step in ACTION["runs"]["steps"]}
COMMANDS = application().commands
RECORDER = (
    f"#!{sys.executable} -ISE\n"
    + """
import json, os, sys
with open("calls.jsonl", "a") as file:
    file.write(json.dumps([os.path.basename(sys.argv[0]), *sys.argv[1:]]) + "\\n")
"""
)
MEASURED = {
    "ENCODERS": "timm:resnet10t?pretrained=false mine=hf:a/b",
    "IMAGES": "my photos",
    "GATES": "breakaway_risk@8/255<=0.05\n\n  nearest_neighbour_accuracy >= 0.9\n",
    "JUDGED": "--strict",
    "CANARY": "",
    "SUITE": "quick",
    "ARGUMENTS": "--eps 8/255 --limit 20",
    "RUN": "runs/holdfast",
}
COMMENTED = {
    "COMMENTS": "repos/someone/project/issues/7/comments",
    "MARK": "<!-- holdfast check holdfast -->",
    "RUN": "runs/holdfast",
}


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def stand_in(program: str, body: str) -> None:
    """Let ``program`` record how it was called, then do ``body`` (Python)."""
    file = Path("bin") / program
    file.parent.mkdir(exist_ok=True)
    file.write_text(RECORDER + body)
    file.chmod(0o755)


def run(step: str, given: dict[str, str]) -> tuple[subprocess.CompletedProcess[str], list[list[str]]]:
    """Run the shell of a step as GitHub does, and return how it ended and which programs it called."""
    here = {**os.environ, "PATH": f"{Path.cwd() / 'bin'}:{os.environ['PATH']}", **given}
    here |= {"GITHUB_STEP_SUMMARY": "summary.md", "GITHUB_OUTPUT": "output"}
    shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", STEPS[step]["run"]]
    done = subprocess.run(shell, env=here, capture_output=True, text=True, check=False)
    calls = Path("calls.jsonl").read_text().splitlines() if Path("calls.jsonl").exists() else []
    return done, [json.loads(call) for call in calls]


def test_every_step_runs_or_uses_something_and_names_inputs_that_exist() -> None:
    assert ACTION["runs"]["using"] == "composite"
    for name, step in STEPS.items():
        assert ("uses" in step) != ("run" in step), name
        assert "uses" in step or step["shell"] == "bash", name
        # What people give reaches the shell as variables alone, so that nothing of it is run.
        assert "inputs." not in step.get("run", ""), name
    used = set(re.findall(r"inputs\.(\w+)", (ROOT / "action.yml").read_text()))
    assert used == set(ACTION["inputs"])


@pytest.mark.parametrize("first", [0, 1])
def test_it_calls_commands_that_exist_with_flags_that_exist(first: int) -> None:
    """And an evaluation that left something without a result (status 1) is judged by the gates."""
    table = "if sys.argv[1] == 'check': open(sys.argv[-1], 'w').write('### table')\n"
    stand_in("holdfast", table + f"sys.exit({first} if sys.argv[1] == 'evaluate' else 1)\n")
    done, calls = run("Measure and check", MEASURED)
    assert done.returncode == 0, done.stderr
    for _, command, *arguments in calls:
        options = {option for parameter in COMMANDS[command].params for option in parameter.opts}
        assert {word for word in arguments if word.startswith("--")} <= options
    evaluate, check = calls
    assert evaluate[2:6] == ["timm:resnet10t?pretrained=false", "mine=hf:a/b", "--images", "my photos"]
    assert evaluate[-4:] == ["--eps", "8/255", "--limit", "20"]
    gates = ["--require", "breakaway_risk@8/255<=0.05", "--require", "nearest_neighbour_accuracy >= 0.9"]
    assert check[2:8] == ["runs/holdfast", *gates, "--strict"]
    assert Path("output").read_text() == "status=1\n"
    assert Path("summary.md").read_text() == "### table"


def test_a_mistake_is_answered_by_its_sentence_and_not_by_the_last_table() -> None:
    stand_in("holdfast", "print('holdfast: there is no suite fast', file=sys.stderr)\nsys.exit(2)\n")
    Path("runs/holdfast").mkdir(parents=True)
    Path("runs/holdfast/check.md").write_text("### an earlier table")
    done, calls = run("Measure and check", MEASURED)
    assert done.returncode == 0, done.stderr
    assert [call[1] for call in calls] == ["evaluate"]
    assert Path("output").read_text() == "status=2\n"
    said = Path("summary.md").read_text()
    assert "### Holdfast: no answer" in said
    assert says(said, "suite fast")
    assert "earlier" not in said


@pytest.mark.parametrize("status", [0, 1, 2])
def test_an_encoder_that_is_not_that_of_the_canary_is_not_measured(status: int) -> None:
    stand_in("holdfast", f"sys.exit({status} if sys.argv[1] == 'canary' else 0)\n")
    done, calls = run("Measure and check", {**MEASURED, "ENCODERS": "timm:resnet50", "CANARY": "kept.safetensors"})
    assert done.returncode == 0, done.stderr
    assert calls[0][1:] == ["canary", "check", "kept.safetensors", "timm:resnet50"]
    assert [call[1] for call in calls[1:]] == ([] if status else ["evaluate", "check"])
    assert Path("output").read_text() == f"status={status}\n"


@pytest.mark.parametrize(
    ("found", "method", "address"), [("", "POST", "7/comments"), ("31\n32\n", "PATCH", "comments/31")]
)
def test_a_pull_request_has_one_comment(found: str, method: str, address: str) -> None:
    stand_in("gh", f"print({found!r} if '--paginate' in sys.argv else '', end='')\n")
    Path("runs/holdfast").mkdir(parents=True)
    Path("runs/holdfast/check.md").write_text("### Holdfast: 1 of 2 gates failed\n")
    done, (_, written) = run("Comment on the pull request", COMMENTED)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert written[written.index("--method") + 1] == method
    assert f"repos/someone/project/issues/{address}" in written
    (body,) = [word.removeprefix("body=@") for word in written if word.startswith("body=@")]
    assert Path(body).read_text() == f"{COMMENTED['MARK']}\n### Holdfast: 1 of 2 gates failed\n"


def test_without_permission_to_comment_the_job_goes_on() -> None:
    stand_in("gh", "sys.exit(1)\n")
    Path("runs/holdfast").mkdir(parents=True)
    Path("runs/holdfast/check.md").touch()
    done, _ = run("Comment on the pull request", COMMENTED)
    assert done.returncode == 0
    assert done.stdout.startswith("::notice::")


def test_the_workflow_in_the_documentation_gives_what_the_action_takes() -> None:
    (code,) = blocks(DOCS / "installing.md", "yaml")
    (job,) = yaml.safe_load(code)["jobs"].values()
    (given,) = [step["with"] for step in job["steps"] if "holdfast" in step["uses"]]
    required = {name for name, taken in ACTION["inputs"].items() if taken.get("required")}
    assert required <= set(given) <= set(ACTION["inputs"])
    assert job["permissions"]["pull-requests"] == "write"
    assert all(parse(gate) for gate in given["gates"].splitlines())
    assert set(rows(section(DOCS / "installing.md", "In continuous integration"))) == set(ACTION["inputs"])


@pytest.mark.parametrize(("extras", "asked"), [("", "."), ("vision,clip", ".[vision,clip]")])
def test_it_installs_with_the_extras_that_are_asked_for(extras: str, asked: str, tmp_path: Path) -> None:
    stand_in("python", "")
    done, calls = run("Install", {"GITHUB_ACTION_PATH": str(tmp_path), "EXTRAS": extras})
    assert done.returncode == 0, done.stderr
    assert [call[-1] for call in calls][1:] == [asked]
