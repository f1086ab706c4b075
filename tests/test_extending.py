"""One new file is enough: those that the documentation shows are put in place, found and run."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch

from holdfast import Embeddings, HoldfastError, data, encoders, train
from holdfast.attacks.attacked_codes import Untargeted
from holdfast.attacks.presets import read_attack
from holdfast.cli.app import run
from holdfast.cli.terminal import show_result
from holdfast.core.balls import Linf
from holdfast.core.divergences import L2Distance
from holdfast.core.objective import AttackContext
from holdfast.core.records import Claim, Curve, Findings, Result
from holdfast.core.run_settings import Observed, RunSettings
from holdfast.core.statistics.summaries import series_of, summarise
from holdfast.encoders.architectures.base import Architecture
from holdfast.measure.evaluation import Evaluation, answerable, settings
from holdfast.measure.observation import Observation
from holdfast.measure.population import Population
from holdfast.report import elsewhere as hub
from holdfast.report import write
from holdfast.report.contents import Contents
from holdfast.report.page.page import render
from holdfast.report.text import name_of
from holdfast.run import catalog
from holdfast.run.request import Request, build, planned
from holdfast.transforms.base import Transform, transformed, transforms
from tests.facts import refused
from tests.outside import installed, looked_anew
from tests.pages import DOCS, ROOT
from tests.samples import DIGITS, builtin, digits

PAGE = (DOCS / "extending.md").read_text()
EXAMPLES = ROOT / "examples" / "extending"
FILES = [
    (path.parent.relative_to(EXAMPLES).as_posix().replace("/", "."), path.stem, path.read_text())
    for path in sorted(EXAMPLES.rglob("*.py"))
]
SHOWN = re.findall(r"^`src/holdfast/([\w/]+)\.py`:\n\n```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every file of ``examples/extending``, put where it belongs."""
    for package, name, code in FILES:
        home = import_module(f"holdfast.{package}")
        (tmp_path / package).mkdir(exist_ok=True)
        (tmp_path / package / f"{name}.py").write_text(code)
        monkeypatch.setattr(home, "__path__", [*home.__path__, str(tmp_path / package)])
    with looked_anew():
        yield
    for package, name, _ in FILES:
        sys.modules.pop(f"holdfast.{package}.{name}", None)
        vars(import_module(f"holdfast.{package}")).pop(name, None)


def test_one_file_is_enough(dropped: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = catalog.everything()
    assert "neighbours-kept" in found["evaluations"]
    assert "grow" in found["objectives"]
    assert "guess" in found["attacks"]
    assert "posterise" in found["transforms"]
    assert "linear" in found["encoders"]
    assert "noise" in found["images"]
    assert "perceptron" in found["architectures"]
    assert "nearest-mean" in found["probes"]
    assert "align-uniform" in found["training"]
    assert str(read_attack("guess:tries=3")) == "guess:tries=3"
    np.save(tmp_path / "weights.npy", np.ones((5, 64), dtype=np.float32))
    encoder = encoders.load(f"linear:{tmp_path}/weights.npy?shape=1x8x8")
    images = data.load("noise:4", encoder.domain)
    assert encoder(images.pixels([0, 1])).shape == (2, 5)


NEW = {
    "evaluations": ["neighbours-kept", "jacobian-norm"],
    "objectives": ["grow"],
    "attacks": ["guess"],
    "transforms": ["posterise"],
    "encoders": ["linear"],
    "images": ["noise"],
    "architectures": ["perceptron"],
    "probes": ["nearest-mean"],
    "training": ["align-uniform"],
}
"""What the page adds of each kind."""


def test_it_stands_in_the_printed_list(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]):
    def listed(kind: str) -> str:
        assert run(["list", kind]) == 0
        return capsys.readouterr().out

    for kind, names in NEW.items():
        assert not any(f"  {name} " in listed(kind) for name in names), "there without its file"
    request.getfixturevalue("dropped")
    everything = catalog.everything()
    for kind, names in NEW.items():
        lines = listed(kind).splitlines()
        for name in names:
            (line,) = [line for line in lines if line.startswith(f"  {name} ")]
            assert line.split(maxsplit=1)[1] == everything[kind][name].replace("``", "`")


def test_another_package_adds_members_of_every_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the entry points that the page shows, and in the same words on the command line."""
    (shown,) = re.findall(r"^## From another package$.*?^```toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    points = tomllib.loads(shown)["project"]["entry-points"]
    modules = {
        f"cli_{name}" if folder == "cli" else name: code.replace("holdfast.commands", "your_package")
        for folder, name, code in FILES
    }
    named = {value.partition(":")[0] for group in points.values() for value in group.values()} | {
        "your_package.lengths"
    }
    assert named == {f"your_package.{name}" for name in modules}, "the page leaves one of its files out"
    before = catalog.everything()
    with installed(tmp_path / "site", "your_package", modules, points):
        after = catalog.everything()
        np.save(tmp_path / "weights.npy", np.ones((5, 64), dtype=np.float32))
        encoder, where = f"linear:{tmp_path}/weights.npy?shape=1x8x8", ["--eps", "0.2", "--out", str(tmp_path / "run")]
        asked = ["--objective", "grow", "--attack", "guess:tries=3", "--images", "noise:4"]
        assert run(["attack", encoder, *asked, *where]) == 0
        assert run(["--help"]) == 0
        assert re.search(r"lengths\s+Say how long the codes of images are", capsys.readouterr().out)
        assert run(["lengths", encoder, "--images", "noise:7"]) == 0
        assert capsys.readouterr().out.endswith("over 7 images\n")
    for kind, names in NEW.items():
        assert after[kind].keys() - before[kind].keys() == set(names)
    assert "guess" in (tmp_path / "run" / "attack.json").read_text()
    assert catalog.everything() == before


def test_suites_take_its_sizes(dropped: None, capsys: pytest.CaptureFixture[str]) -> None:
    def samples(suite: str, operations: int = 0) -> object:
        (measure,) = planned(Request(suite=suite, only=("neighbours-kept",)), operations)
        return settings(measure)["samples"]

    assert [samples(suite) for suite in ("quick", "standard", "full")] == [300, 1000, 10_000]
    assert samples("quick", 24_000_000) == 150
    assert run(["list", "suites"]) == 0
    assert "    neighbours-kept: samples = 300\n" in capsys.readouterr().out


def test_reports_ask_its_question(dropped: None) -> None:
    values = {"neighbours-kept": {"k": 3, "samples": 8, "attack": "guess:tries=5", "ball": "linf:0.2"}}
    (measure,) = planned(Request(only=("neighbours-kept",), settings=values))
    results = [measure(encoders.load(f"builtin:digits-{name}"), digits(20)) for name in ("random", "robust")]
    (screen,) = Contents(results, []).first_screens
    (row,) = screen.rows
    assert (row.kind.evaluation, row.kind.group) == ("neighbours-kept", "Attacked")
    assert measure.questions[0].first_screen
    assert [cell.values for cell in row.cells] == [(result.estimates[0].value,) for result in results]
    page = render(Contents(results, []))
    for words in (row.title, measure.title):
        assert words in page


class Grown(Evaluation):
    """A measure of another package, with names of its own for its quantity and for what its attack goes for."""

    name = "grown"
    version = 1
    title = "Growth of codes"
    heading = "Growth of {encoders} on {images} {here}"
    meaning = "The length of codes. Longer is more."
    headline = ("xz_length",)
    words = (("xz", "XZ"),)
    aims = (("growth", "the longest code"),)

    def observation(self) -> Observation:
        return Untargeted(Linf(0.1), (read_attack("u-pgd"),), L2Distance(), 5)

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        lengths, where = population.codes.norm(dim=1), {"attack": "guess at growth"}
        series = series_of("xz_length", where, lengths, "length", Claim.LOWER, "the length of codes", "")
        curve = Curve(quantity="xz_length", x_label="xz", y_label="length", x=(0.0, 1.0), y=(0.0, 1.0))
        ids = tuple(population.images.ids)
        return Findings(ids=ids, series=(series,), estimates=(summarise(series, "mean", "higher"),), curves=(curve,))


def test_its_names_stand_in_every_form(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    population = Population(builtin(), digits(5), RunSettings())
    result = Result.model_validate_json(Grown().result(population, range(5), {}).model_dump_json())
    named = [*map(name_of, result.series), *map(name_of, result.estimates), *map(name_of, result.findings.curves)]
    assert named == ["XZ length"] * 3
    write([result], [], tmp_path)
    show_result(result)
    forms = [
        *((tmp_path / form).read_text() for form in ("report.html", "table.md", "table.tex")),
        capsys.readouterr().out,
    ]
    for form in forms:
        assert "XZ length" in form
        assert "objective: the longest code" in form
        assert "xz length" not in form
    assert f"<h1>Growth of digits-contrastive on {result.images.name} {{here}}</h1>" in forms[0]
    assert hub.notes(result, result.estimates[0]).startswith("XZ length (length)")
    monkeypatch.setattr(Grown, "words", ())
    (spelled,) = Grown().result(population, range(5), {}).estimates
    assert name_of(spelled) == "xz length", "vacuous: it is called so without its words"


def test_the_new_command_runs_and_the_help_names_it(dropped: None, capsys: pytest.CaptureFixture[str]) -> None:
    lengths = import_module("holdfast.commands.lengths").lengths
    assert run(["--help"]) == 0
    assert re.search(r"lengths\s+Say how long the codes of images are", capsys.readouterr().out)
    assert run(["lengths", "--help"]) == 0
    assert "--images" in capsys.readouterr().out
    assert run(["lengths", "builtin:digits-random", "--images", "noise:7"]) == 0
    median = lengths("builtin:digits-random", "noise:7").median()
    assert capsys.readouterr().out == f"median {median:.3g} over 7 images\n"


def test_the_new_architecture_is_built(dropped: None) -> None:
    module = Architecture.read("perceptron:width=9").build(DIGITS)
    assert module(digits(3).pixels([0, 1, 2])).shape == (3, 64)


def test_the_new_measure_runs(dropped: None) -> None:
    asked = {"neighbours-kept": {"k": 3, "samples": 8, "attack": "guess:tries=5", "ball": "linf:0.2"}}
    (measure,) = planned(Request.of(only=["neighbours-kept"], settings=asked))
    result = measure(builtin(), digits(20))
    (kept,) = result.estimates
    assert (kept.quantity, kept.n, kept.better) == ("neighbours_kept", 8, "higher")
    assert 0 < kept.value < 1
    harmless = build(catalog.evaluations()["neighbours-kept"], {**asked["neighbours-kept"], "ball": "linf:1e-6"})
    assert harmless(builtin(), digits(20)).estimates[0].value == 1, "nothing moved, yet neighbours were lost"
    assert measure(builtin(), digits(20)) == result


def test_the_new_observation_sees_each_row_by_itself(dropped: None, tmp_path: Path) -> None:
    np.save(tmp_path / "weights.npy", np.arange(12 * 64, dtype=np.float32).reshape(12, 64) / 1000)
    encoder, images = encoders.load(f"linear:{tmp_path}/weights.npy?shape=1x8x8"), digits(6)
    (measure,) = planned(Request.of(only=["jacobian-norm"], settings={"jacobian-norm": {"directions": 400}}))
    (norm,) = measure(encoder, images).estimates
    exact = np.linalg.norm(np.load(tmp_path / "weights.npy"))
    assert norm.value == pytest.approx(exact, rel=0.05), "the Jacobian of a matrix is that matrix"
    assert norm.n == 6
    observation, population = measure.observation(), Population(encoder, images, RunSettings())
    assert (observation.forward_passes(population), observation.looks_at()) == (1200, "encoder")
    whole, alone = (observation.observe(population, rows)["squares"] for rows in (range(6), [4]))
    assert torch.allclose(whole[4:5], alone, rtol=1e-4)
    assert not torch.allclose(whole[3:4], alone, rtol=1e-4), "vacuous: all rows are alike"
    assert not answerable(measure, Embeddings(np.ones((6, 5), dtype=np.float32)), images)


def test_the_page_shows_files_as_they_are_and_names_the_others() -> None:
    assert len(SHOWN) == 2
    for path, code in SHOWN:
        assert code == (EXAMPLES / f"{path}.py").read_text()
    for path in EXAMPLES.rglob("*.py"):
        assert path.relative_to(EXAMPLES).as_posix() in PAGE


def test_the_new_objective_and_attack_do_what_they_say(dropped: None) -> None:
    grow, guess = catalog.objectives()["grow"], catalog.attacks()["guess"]
    encoder, images = builtin(), digits(4)
    noise = RunSettings().noise(images.ids)
    context = AttackContext(encoder, images.pixels(range(4)), noise)
    attacked = guess()(encoder, context.pixels, grow()(context), Linf(0.1), noise)
    longer = encoder(attacked).norm(dim=1) / context.codes.norm(dim=1)
    assert longer.min() >= 1
    assert longer.max() > 1.01


def test_the_new_transform_does_what_it_says(dropped: None) -> None:
    few = transformed(digits(4), Transform.read("posterise:4 + jpeg:none"))
    assert len(few.pixels(range(4)).unique()) == 4
    assert len(transforms()["posterise"].family()) == 6


@pytest.mark.slow
def test_the_new_probe_answers(dropped: None) -> None:
    measure = build(catalog.evaluations()["probe-accuracy"], {"probes": "nearest-mean"})
    result = measure(builtin(), data.load("builtin:digits", DIGITS), bank=data.load("builtin:digits-train", DIGITS))
    assert result.estimate("top1_accuracy", probe="nearest-mean").value > 0.5


def test_the_new_training_objective_trains(dropped: None) -> None:
    recipe = {
        "objective": "align-uniform",
        "architecture": "digits",
        "augmentation": "digits-view",
        "batch": 20,
        "epochs": 2,
    }
    encoder = train(recipe, digits(100), progress=False)
    assert encoder(digits(3).pixels([0, 1, 2])).shape == (3, 32)
    with refused(HoldfastError, "single", "samples"):
        train({**recipe, "adversary": "loss:ball=linf:0.1,steps=1"}, digits(100), progress=False)
