"""``holdfast check``: a gate opens only for a number that keeps it."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.cli.app import run
from holdfast.core.records import Failure
from tests.cli.stored import breakaway, failure, run_of
from tests.facts import says

ROBUST, WEAK = "digits-robust", "digits-random"


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def both() -> str:
    return run_of("both", [breakaway(ROBUST), breakaway(WEAK)], asked=[f"builtin:{ROBUST}", f"builtin:{WEAK}"])


def checked(capsys, *arguments: str) -> tuple[int, list[str], list[str]]:
    status = run(["check", *arguments])
    captured = capsys.readouterr()
    return status, captured.out.splitlines(), captured.err.splitlines()


def worst(encoder: str) -> float:
    return max(e.value for e in breakaway(encoder).estimates if e.quantity == "breakaway_risk")


def test_a_gate_that_all_keep_passes(both, capsys):
    status, lines, errors = checked(capsys, both, "--require", "breakaway_risk<=1")
    assert (status, errors) == (0, [])
    assert [line.split()[0] for line in lines] == ["passed", "passed"]


def test_a_strict_check_wants_the_whole_interval(both, capsys):
    (high,) = {max(e.high for e in breakaway(WEAK).estimates if e.quantity == "breakaway_risk")}
    gate = f"breakaway.breakaway_risk@encoder={WEAK}<={(worst(WEAK) + high) / 2}"
    assert checked(capsys, both, "--require", gate)[0] == 0
    assert checked(capsys, both, "--require", gate, "--strict")[0] == 1
    assert checked(capsys, both, "--require", f"breakaway.breakaway_risk<={high}", "--strict")[0] == 0


def test_a_run_that_ended_early_fails_unless_allowed(capsys):
    ended = run_of("ended", [breakaway(ROBUST).model_copy(update={"planned": 300})], asked=[f"builtin:{ROBUST}"])
    status, lines, _ = checked(capsys, ended, "--require", "breakaway_risk<=1")
    assert status == 1
    assert "60 of 300" in lines[0]
    assert checked(capsys, ended, "--require", "breakaway_risk<=1", "--allow-partial")[0] == 0


def test_an_evaluation_that_failed_is_not_answered_by_another(capsys, monkeypatch):
    """Breakaway failed, and query-only reports a quantity of the same name: the gate must say which one it means."""
    reporting = {"breakaway_risk": ["breakaway", "query-only"]}  # the whole catalogue takes seconds to load
    monkeypatch.setattr("holdfast.commands.check._catalogue", lambda: reporting)
    other = breakaway(ROBUST).model_copy(update={"evaluation": "query-only"})
    broken = run_of("broken", [other], [failure(ROBUST)], asked=[f"builtin:{ROBUST}"])
    assert checked(capsys, broken, "--require", "breakaway_risk<=1")[0] == 2
    assert checked(capsys, broken, "--require", "breakaway.breakaway_risk<=1")[0] == 1
    assert checked(capsys, broken, "--require", "query-only.breakaway_risk<=1")[0] == 0


def test_one_broken_gate_fails_and_is_named(both, capsys):
    bound = (worst(ROBUST) + worst(WEAK)) / 2
    assert worst(ROBUST) < bound < worst(WEAK), "vacuous fixture"
    broken = f"breakaway_risk<={bound}"
    status, lines, errors = checked(capsys, both, "--require", "breakaway_risk<=1", "--require", broken)
    assert status == 1
    assert errors == [f"holdfast: 1 of 2 gates failed: {broken}"]
    (failed,) = [line for line in lines if line.startswith("FAILED")]
    assert broken in failed
    assert f"{WEAK}: breakaway_risk is" in failed
    assert len(lines) == 4, "one line per gate and encoder"


def test_the_answers_are_written_as_markdown_failures_first(both, capsys):
    bound = (worst(ROBUST) + worst(WEAK)) / 2
    gates = ["--require", "breakaway_risk<=1", "--require", f"breakaway_risk<={bound}"]
    checked(capsys, both, *gates, "--markdown", "new/check.md")
    lines = Path("new/check.md").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "### Holdfast: 1 of 2 gates failed"
    assert "597 images of builtin:digits" in lines[2]
    found = [line.split(" | ")[0].strip("| ") for line in lines if line.startswith("| ") and "gate" not in line]
    assert found == ["---", "**FAILED**", "passed", "passed", "passed"]
    assert f"{WEAK}: breakaway\\_risk is" in next(line for line in lines if "FAILED" in line)
    checked(capsys, both, *gates[:2], "--markdown", "new/check.md")
    assert Path("new/check.md").read_text(encoding="utf-8").startswith("### Holdfast: 1 gate passed\n")


def test_a_turned_gate_warns_in_the_markdown_too(both, capsys):
    checked(capsys, both, "--require", "breakaway_risk>=0", "--markdown", "check.md")
    assert "\n- warning: gate" in Path("check.md").read_text(encoding="utf-8")


def test_several_runs_are_checked_together(capsys):
    one, two = run_of("one", [breakaway(ROBUST)]), run_of("two", [breakaway(WEAK)])
    bound = (worst(ROBUST) + worst(WEAK)) / 2
    assert checked(capsys, one, "--require", f"breakaway_risk<={bound}")[0] == 0
    assert checked(capsys, one, two, "--require", f"breakaway_risk<={bound}")[0] == 1


def test_an_encoder_that_failed_keeps_the_gate_shut(both, capsys):
    run_of(both, [], [failure("timm:vit", "out of memory")])
    status, lines, _ = checked(capsys, both, "--require", "breakaway_risk<=1")
    assert status == 1
    assert any(line.startswith("FAILED") and "timm:vit" in line and "out of memory" in line for line in lines)


def test_an_unfinished_run_keeps_the_gate_shut(capsys):
    finished = run_of("run", [breakaway(ROBUST)], asked=[f"builtin:{ROBUST}"])
    assert checked(capsys, finished, "--require", "breakaway_risk<=1")[0] == 0
    unfinished = run_of("run", [], asked=[f"builtin:{ROBUST}", f"builtin:{WEAK}"])
    status, lines, _ = checked(capsys, unfinished, "--require", "breakaway_risk<=1")
    assert status == 1
    assert any(f"builtin:{WEAK}: breakaway_risk was not measured" in line and "stopped" in line for line in lines)


def test_a_quantity_without_a_result_keeps_the_gate_shut(both, capsys):
    """Gates must not open on silence, and what is there under another name is no mistake."""
    spent = Failure(
        evaluation="impersonation",
        encoder=ROBUST,
        images=breakaway(ROBUST).images.name,
        error="BudgetSpentError",
        reason="not run: the budget was spent; run the same command again to continue",
    )
    run_of(both, [], [spent, failure(WEAK).model_copy(update={"evaluation": "overlap"})])
    status, lines, errors = checked(capsys, both, "--require", "impersonation_rate@8/255<=0.5")
    assert (status, len(lines), len(errors)) == (1, 2, 1)
    assert any(
        f"{ROBUST}: impersonation_rate was not measured" in line and says(line, "same command") for line in lines
    )
    (unasked,) = [line for line in lines if f"{WEAK}: impersonation_rate was not measured" in line]
    assert "it is broken" not in unasked, "another evaluation broke"
    assert says(unasked, "--only impersonation")
    nothing = run_of("nothing", [], [spent])
    (line,) = checked(capsys, nothing, "--require", "rankme>=5")[1]
    assert says(line, "rankme", "--only geometry")
    status, _, errors = checked(capsys, both, "--require", "impersonation_rates<=0.5")
    assert status == 2
    assert "Did you mean 'impersonation_rate'" in errors[0]
    assert says(errors[0], "impersonation", "overlap")


@pytest.mark.parametrize("bound", ["breakaway_risk<=1", f"breakaway_risk@encoder={WEAK}<=1"])
def test_another_run_does_not_finish_one_that_stopped(bound, capsys):
    stopped = run_of("stopped", [breakaway(ROBUST)], asked=[f"builtin:{ROBUST}", f"builtin:{WEAK}"])
    other = run_of("other", [breakaway(WEAK)], asked=[f"builtin:{WEAK}"])
    assert checked(capsys, other, "--require", bound)[0] == 0
    status, lines, _ = checked(capsys, stopped, other, "--require", bound)
    assert status == 1
    (failed,) = [line for line in lines if line.startswith("FAILED")]
    assert f"{WEAK}: breakaway_risk was not measured" in failed
    assert says(failed, "stopped")


@pytest.mark.parametrize(
    ("gate", "expected"),
    [
        ("breakaway_risk is small", "EVALUATION.]QUANTITY"),
        ("breakaway_rsik<=0.5", "Did you mean 'breakaway_risk'"),
        ("breakaway_risk<=small", "got 'small'"),
        ("breakaway_risk@8/255<=0.5", "Measured:"),
        ("breakaway_risk@divergance=l2<=0.5", "Did you mean 'divergence'"),
    ],
)
def test_a_mistyped_gate_is_a_mistake(both, gate, expected, capsys):
    status, lines, errors = checked(capsys, both, "--require", "breakaway_risk<=1", "--require", gate)
    assert (status, lines) == (2, [])
    assert len(errors) <= 2
    assert expected in "\n".join(errors)


def test_a_bound_that_no_share_meets_is_a_mistake(both, capsys):
    status, lines, errors = checked(capsys, both, "--require", "nearest_neighbour_accuracy>=90")
    assert (status, lines) == (2, [])
    assert "share between 0 and 1" in errors[0]


def test_one_encoder_can_be_gated_and_a_turned_gate_is_warned_about(both, capsys):
    status, lines, errors = checked(capsys, both, "--require", f"breakaway_risk@encoder={ROBUST}>=0")
    assert (status, len(lines)) == (0, 1)
    assert errors[0].startswith("holdfast: warning: gate")


def test_a_check_needs_a_gate_and_a_run(both, capsys):
    assert "Missing option '--require'" in checked(capsys, both)[2][0]
    assert "holds no run" in checked(capsys, "nowhere", "--require", "breakaway_risk<=1")[2][0]


@pytest.mark.parametrize("file", ["results/*.json", "run.json"])
def test_what_cannot_be_read_opens_no_gate(both, file, capsys):
    damaged = next(Path(both).glob(file))
    damaged.write_text("{")
    status, lines, errors = checked(capsys, both, "--require", "breakaway_risk<=1")
    assert (status, lines) == (2, [])
    assert str(damaged) in errors[0]
