"""Several data sets in one evaluation: a run for each, their mean and ranks, and one folder that other commands read."""

from __future__ import annotations

import csv
import json
from math import isnan, sqrt
from pathlib import Path
from typing import Any

import pytest
import torch

import holdfast as hf
from holdfast.cli.app import run
from holdfast.core.errors import HoldfastError
from holdfast.core.records import Claim, Estimate
from holdfast.report.sets import mean, ranks
from tests.samples import digits

ENCODERS = ["builtin:digits-supervised", "builtin:digits-random"]
FEW: dict[str, Any] = {"only": "geometry", "limit": 30}
FLAGS = ["--only", "geometry", "--limit", "30"]
SETS = ["builtin:digits", "builtin:digits-train"]
NAMED = [part for name in SETS for part in ("--images", name)]
NAMES = ["digits", "digits_train"]


def lines_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "sets.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> hf.EvaluatedRun:
    out = tmp_path_factory.mktemp("sets") / "both"
    return hf.evaluate(ENCODERS, SETS, baselines="pixels", out=out, **FEW)


def test_each_data_set_has_the_run_that_it_has_alone(together: hf.EvaluatedRun, tmp_path: Path) -> None:
    assert list(together.data_sets) == NAMES
    alone = hf.evaluate(ENCODERS, SETS[1], baselines="pixels", out=tmp_path / "alone", **FEW)
    inner = together.data_sets["digits_train"]
    assert [r.estimates for r in inner.results] == [r.estimates for r in alone.results]

    def files(folder: Path) -> set[str]:
        return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}

    assert (
        files(inner.folder)
        == files(alone.folder)
        == files(hf.evaluate(ENCODERS, [SETS[1]], baselines="pixels", out=tmp_path / "one", **FEW).folder)
    )
    assert not alone.data_sets
    assert len(together.results) == 2 * len(alone.results)


def test_the_mean_weighs_data_sets_alike_and_baselines_have_no_rank(together: hf.EvaluatedRun) -> None:
    lines = [each for each in lines_of(together.folder) if each["quantity"] == "uniformity"]
    assert [each["data_set"] for each in lines] == [*[NAMES[0]] * 3, *[NAMES[1]] * 3, *[""] * 3]
    for encoder in ("digits-supervised", "digits-random", "pixels"):
        first, second, middle = (each for each in lines if each["encoder"] == encoder)
        values = [float(each["value"]) for each in (first, second, middle)]
        assert values[2] == pytest.approx((values[0] + values[1]) / 2)
        below = [float(each["value"]) - float(each["low"]) for each in (first, second, middle)]
        assert below[2] == pytest.approx(sqrt(below[0] ** 2 + below[1] ** 2) / 2)
        assert {each["rank"] for each in (first, second, middle)} <= ({""} if encoder == "pixels" else {"1.0", "2.0"})
    assert "mean of 2" in (together.folder / "sets.md").read_text()
    assert 'id="sets"' in (together.folder / "report.html").read_text()
    assert not (together.data_sets["digits"].folder / "sets.csv").exists()


def test_ranks_share_places_and_a_mean_of_something_undefined_is_undefined() -> None:
    def estimate(value: float, better: str = "lower") -> Estimate:
        return Estimate.model_validate(
            {"quantity": "q", "conditions": {}, "value": value, "low": value, "high": value, "n": 3, "method": "",
             "unit": "", "claim": Claim.ESTIMATE, "of": "", "better": better, "reason": "none" if value != value else None}
        )  # fmt: skip

    cells = {name: estimate(value) for name, value in {"a": 0.2, "b": 0.1, "c": 0.2}.items()}
    assert ranks(cells) == {"a": 2.5, "b": 1.0, "c": 2.5}
    assert ranks({name: estimate(e.value, "higher") for name, e in cells.items()}) == {"a": 1.5, "b": 3.0, "c": 1.5}
    assert ranks({**cells, "d": estimate(float("nan"))}) == {} == ranks({"a": estimate(0.1)})
    undefined = mean([estimate(0.2), estimate(float("nan"))])
    assert isnan(undefined.value)
    assert undefined.reason == "none"
    infinite = mean([estimate(0.2), estimate(float("inf"))])
    assert infinite.value == float("inf")
    assert isnan(infinite.low)


def test_a_bar_in_a_name_breaks_no_markdown(tmp_path: Path) -> None:
    pictures = [hf.Images(digits(20, start).pixels(range(20)), name=name) for start, name in ((0, "a"), (99, "b"))]
    encoder = hf.load_encoder(ENCODERS[0])
    encoder.name = "one|two"
    both = hf.evaluate(encoder, pictures, out=tmp_path / "out", **FEW)
    rows = [row for row in (both.folder / "sets.md").read_text().splitlines() if row.startswith("|")]
    assert {row.replace(r"\|", "").count("|") for row in rows} == {4}


def test_the_command_line_takes_images_twice(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["evaluate", *ENCODERS, *NAMED, *FLAGS]) == 0
    folder = Path("runs/digits+digits_train-quick")
    assert json.loads((folder / "sets.json").read_text()) == NAMES
    assert "mean of 2" in capsys.readouterr().out
    assert run(["evaluate", *ENCODERS, *NAMED, *FLAGS]) == 0  # again, from what is kept

    capsys.readouterr()
    assert run(["compare", str(folder), "--format", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert len({result["images"]["fingerprint"] for result in shown["results"]}) == 2

    for place in (folder, Path("runs")):
        capsys.readouterr()
        assert run(["runs", str(place), "--json"]) == 0
        assert [Path(each["folder"]).name for each in json.loads(capsys.readouterr().out)] == NAMES
    assert run(["clean", str(folder), "--yes"]) == 0
    assert not list(folder.glob("*/shards/*"))
    assert list(folder.glob("*/results/*"))


def test_a_threshold_holds_only_if_every_data_set_keeps_it(together: hf.EvaluatedRun) -> None:
    values = [each["geometry", "digits-random"].estimate("uniformity").value for each in together.data_sets.values()]
    for bound, passed in ((min(values) - 0.01, True), (sum(values) / 2, False)):
        (answer,) = hf.check(together, f"geometry.uniformity@encoder=digits-random>={bound}")
        assert answer.passed is passed


def test_toml_names_a_list(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(f'images = {SETS}\nencoders = ["{ENCODERS[1]}"]\nonly = ["geometry"]\nlimit = 20\n')
    assert run(["evaluate", "--config", str(file), "--out", str(tmp_path / "out")]) == 0
    assert json.loads((tmp_path / "out/sets.json").read_text()) == NAMES


def test_a_spent_budget_loses_nothing_and_the_same_call_goes_on(tmp_path: Path, capsys: Any) -> None:
    out = ["--out", str(tmp_path / "out")]
    assert run(["evaluate", *ENCODERS, *NAMED, *FLAGS, *out, "--budget", "0.001"]) == 1
    kept = {path: path.read_bytes() for path in (tmp_path / "out").rglob("results/*")}
    capsys.readouterr()
    assert run(["runs", str(tmp_path / "out"), "--json"]) == 0
    states = json.loads(capsys.readouterr().out)
    assert [len(each["not_measured"]) + each["finished"] for each in states] == [2, 2]
    assert run(["evaluate", *ENCODERS, *NAMED, *FLAGS, *out]) == 0
    assert all(path.read_bytes() == content for path, content in kept.items())
    assert {row["data_set"] for row in lines_of(tmp_path / "out")} == {*NAMES, ""}


def test_a_budget_is_divided_over_the_data_sets(monkeypatch: Any) -> None:
    from holdfast.commands import evaluate as command

    budgets = []

    def noted(_: Any, __: Any, ___: Any, asked: Any) -> hf.EvaluatedRun:
        budgets.append(asked["budget"])
        return hf.EvaluatedRun((), (), Path(asked["out"]))

    monkeypatch.setattr(command, "_measured", noted)
    hf.evaluate(ENCODERS, [*SETS, "photos/"], budget=90)
    assert budgets == [pytest.approx(30, abs=1), pytest.approx(45, abs=1), pytest.approx(90, abs=1)]


@pytest.mark.parametrize(
    ("images", "named"),
    [
        ([], "empty"),
        (["builtin:digits", "builtin:digits"], "builtin:digits"),
        (["tests", "./tests/"], "tests"),
        ([torch.rand(4, 1, 8, 8), torch.rand(4, 1, 8, 8)], "name"),
        (["builtin:digits", 3], "int"),
        (["builtin:digits", ["builtin:digits-train"]], "list"),
    ],
)
def test_data_sets_that_cannot_be_told_apart_are_refused(images: list[Any], named: str, unchecked: None) -> None:
    with pytest.raises(HoldfastError, match=named):
        hf.evaluate(ENCODERS, images, **FEW)


def test_commands_of_one_data_set_refuse_several(tmp_path: Path, unchecked: None) -> None:
    images: Any = SETS
    with pytest.raises(HoldfastError, match="list"):
        hf.threshold(ENCODERS[0], images)
    for name in ("attack", "certify", "threshold"):
        assert run([name, ENCODERS[0], *NAMED, "--out", str(tmp_path / name)]) == 2
        assert not (tmp_path / name).exists()


def test_folders_of_one_and_of_several_are_kept_apart(together: hf.EvaluatedRun, tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match="several"):
        hf.evaluate(ENCODERS, SETS[0], out=together.folder, **FEW)
    with pytest.raises(HoldfastError, match="one data set"):
        hf.evaluate(ENCODERS, SETS, out=together.data_sets["digits"].folder, **FEW)
    with pytest.raises(HoldfastError, match="nowhere"):  # nothing began: the folder is free
        hf.evaluate(ENCODERS, ["nowhere/", *SETS], out=tmp_path / "free", **FEW)
    hf.evaluate(ENCODERS[1], SETS[0], out=tmp_path / "free", **FEW)


def test_a_run_that_stopped_between_data_sets_says_so(tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match="nowhere"):
        hf.evaluate(ENCODERS[1], [SETS[0], "nowhere/"], out=tmp_path, **FEW)
    with pytest.raises(HoldfastError, match="nowhere"):
        hf.compare(tmp_path)
    assert [Path(each.folder).name for each in hf.runs(tmp_path)] == ["digits"]
    hf.clean(tmp_path, yes=True)
    assert not list(tmp_path.glob("*/shards/*"))
