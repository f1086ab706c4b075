"""The study of certified contrastive encoders: its tables by hand, and the command as a whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from studies.certified import rvcl
from studies.certified.rvcl import Case, cases, conclude, main
from studies.common import Results


def test_sensitivity_varies_one_architecture() -> None:
    named = (["base", "cnn-a"], [0.0, 0.1, 0.2], [25, 250])
    assert len(cases("strength", *named)) == 6
    assert cases("negatives", *named) == [Case("cnn-a", 0.0), Case("cnn-a", 0.1)]
    assert {(case.eps, case.features) for case in cases("dimension", *named)} == {
        (eps, width) for eps in (0.0, 0.1) for width in (25, 250)
    }


def test_tables_name_what_is_proved_and_what_is_attacked(tmp_path: Path) -> None:
    results, planned = (
        Results(tmp_path, {}),
        {name: [Case("base", 0.1)] for name in ("strength", "negatives", "dimension")},
    )
    found = {"certified radius": 0.02, "attacked radius": 0.05, "certified, 0.1": 0.25, "robust, 0.1": 0.75}
    results.run({"strength": lambda case, seed: found}, planned, 2)
    lines = [*conclude(results, planned, [0.1], [1, 5], 2)]
    assert "| base | 0.1 | 0.020 ± 0.000 | 0.050 ± 0.000 | missing | missing | missing |" in lines
    assert "| base | 0.1 | 0.250 ± 0.000 | 0.750 ± 0.000 |" in lines
    assert not [line for line in lines if "K = 5" in line], "parts that were not run have no table"


@pytest.mark.slow
def test_the_study_runs_from_end_to_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rvcl, "K", 3)
    size = "--seeds 1 --epochs 1 --images 100 --measured 20 --certified 2 --batch 50 --size 8 --steps 2"
    named = "--architectures base --augmentation digits-view --strengths 0 0.1 --negatives 1 2 --dimensions 10 --tested 0.05"
    main(["builtin:digits-train", "builtin:digits", "--out", str(tmp_path), *size.split(), *named.split()])
    out = capsys.readouterr().out
    rows = [line.split(" | ") for line in out.splitlines() if line.startswith("| base")]
    assert [row[1] for row in rows] == ["0", "0.1"] * 5
    assert "missing" not in out
    assert out.endswith("Nothing.\n")
    for path in (tmp_path / "results").glob("strength*.json"):
        found = json.loads(path.read_text())
        assert 0 < found["certified radius"] <= found["attacked radius"]
        assert found["certified, 0.05"] <= found["robust, 0.05"]
