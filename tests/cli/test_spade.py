"""``holdfast spade``: arrays in, numbers and a report out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from holdfast.cli.app import run
from holdfast.core.records import Result
from holdfast.spectral.analysis import spade
from tests.facts import says
from tests.spectral.graphs import folded


@pytest.fixture
def arrays(tmp_path: Path) -> Path:
    x, y = folded(120)
    np.save(tmp_path / "x.npy", x.reshape(120, 1, 2))
    np.savez(tmp_path / "y.npz", y)
    np.save(tmp_path / "labels.npy", np.arange(120) % 2)
    return tmp_path


def command(folder: Path, *more: str) -> int:
    return run(["spade", "--inputs", str(folder / "x.npy"), "--outputs", str(folder / "y.npz"), *more])


def test_numbers_are_printed_and_kept(arrays, capsys):
    out = arrays / "out"
    assert command(arrays, "--k", "5", "--subsets", "2", "--out", str(out)) == 0
    printed = capsys.readouterr().out
    found = spade(*folded(120), k=5)
    assert f"{found.score:#.3g}" in printed
    assert "certified" in printed
    assert f"Report: {out / 'report.html'}" in printed
    kept = np.load(out / "scores.npz")
    assert kept["eigenvalues"] == pytest.approx(found.eigenvalues)
    assert np.array_equal(kept["pairs"], found.pairs())
    assert kept["node_score_10"] == pytest.approx(found.node_scores(10))
    assert kept["edge_score_all"] == pytest.approx(found.edge_scores_all)
    assert Result.__name__ in (out / "schema.json").read_text()
    page = (out / "report.html").read_text()
    assert "Spectral stretch" in page


def test_labels_give_scores_by_label(arrays, capsys):
    assert command(arrays, "--labels", str(arrays / "labels.npy"), "--subsets", "0") == 0
    printed = capsys.readouterr().out
    assert printed.index("label 0") < printed.index("label 1")
    assert "no interval" in printed
    assert says(" ".join(printed.split()), "none was asked")


def test_labels_keep_their_order_whatever_their_size(arrays, capsys):
    np.save(arrays / "labels.npy", np.minimum(np.arange(120) // 20, 2))
    assert command(arrays, "--labels", str(arrays / "labels.npy"), "--subsets", "0") == 0
    printed = capsys.readouterr().out
    assert printed.index("label 0") < printed.index("label 1") < printed.index("label 2")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--k", "50"), "k = 50 neighbours need"),
        (("--k", "0"), "k must be a whole number of neighbours, at least 1, got 0"),
        (("--labels", "floats.npy"), "labels must be one integer per sample, shape (120,), got float64 of"),
        (("--labels", "names.npy"), "labels must be one integer per sample, shape (120,), got <U1 of"),
        (("--graph", "knm"), "Did you mean 'knn'"),
        (("--repair", "ridge"), "'ridge'"),
        (("--labels", "x.npy"), "labels must be one integer per sample"),
        (("--labels", "none.npy"), "an array from"),
        (("--labels", "pickle.npy"), "an array from"),
        (("--labels", "two.npz"), "holds 2 arrays (a, b)"),
        (("--out", "x.npy"), "cannot write"),
    ],
)
def test_mistakes_are_named_in_one_sentence(arrays, capsys, monkeypatch, more, said):
    np.save(arrays / "pickle.npy", np.array([{"a": 1}], dtype=object))
    np.save(arrays / "floats.npy", np.zeros(120))
    np.save(arrays / "names.npy", np.array(["a", "b"] * 60))
    np.savez(arrays / "two.npz", a=np.zeros(120), b=np.zeros(120))
    monkeypatch.chdir(arrays)
    assert command(arrays, "--subsets", "0", *more) == 2
    assert said in capsys.readouterr().err
