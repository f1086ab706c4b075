"""The catalogue, and the laws that hold for everything in it."""

from __future__ import annotations

import json
import sys
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
from torch import nn

import holdfast.attacks.evaluations
from holdfast.core.balls import L2
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import HoldfastError, HoldfastWarning
from holdfast.measure.evaluation import Evaluation, settings
from holdfast.run import catalog
from holdfast.run.catalog import SUITES, suite_settings
from holdfast.run.plan import plan_for_large_encoders
from holdfast.run.request import Request, build, keywords, planned
from tests.facts import refused, warned
from tests.outside import CACHED, installed, looked_anew

MEASURE = """
from dataclasses import dataclass
from typing import final
from holdfast.measure.evaluation import Evaluation

@final
@dataclass(frozen=True)
class Novel(Evaluation):
    strength: int = 3
    name = "{name}"
    version = 1
    title = "Novel"
    meaning = "A new measure."
    headline = ("novel",)

    def observation(self): ...
    def conclude(self, population, rows, observed): ...
"""


def everywhere(kind: type[Evaluation]) -> list[Evaluation]:
    """The evaluation with its defaults, as each suite sets it, and with other balls."""
    made = [build(kind, suite.sizes(kind.sizes)) for suite in SUITES.values()]
    if "balls" in {field.name for field in fields(kind)}:
        made.append(build(kind, {**settings(made[0]), "balls": ["l2:0.25", L2(1.5)]}))
    return [kind(), *made]


@pytest.mark.parametrize("kind", catalog.evaluations().values(), ids=catalog.evaluations())
def test_lists_without_entries_are_refused(kind):
    lists = [field for field in fields(kind) if isinstance(field.default, tuple)]
    for field in lists:
        if field.default:
            with pytest.raises(HoldfastError, match=rf"{kind.name}.{field.name} needs at least one entry, got none"):
                build(kind, {field.name: []})
        else:
            build(kind, {field.name: []})


@pytest.mark.parametrize("kind", catalog.evaluations().values(), ids=catalog.evaluations())
def test_settings_survive_the_round_trip_through_text(kind):
    for evaluation in everywhere(kind):
        assert build(kind, json.loads(json.dumps(settings(evaluation)))) == evaluation
    assert len({json.dumps(settings(evaluation)) for evaluation in everywhere(kind)}) > 1, "vacuous settings"


@pytest.mark.parametrize("kind", catalog.evaluations().values(), ids=catalog.evaluations())
def test_settings_survive_the_round_trip_through_toml(kind, tmp_path):
    for evaluation in everywhere(kind)[:: len(everywhere(kind)) - 1]:
        # TOML has no null: a setting that is off is spelled none.
        values = {key: "none" if value is None else value for key, value in settings(evaluation).items()}
        lines = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
        text = "\n".join([f"[{kind.name}]", *lines])
        assert tomllib.loads(text)
        (tmp_path / "run.toml").write_text(text)
        bank = {"bank": "builtin:digits-train"} if kind.needs_bank else {}
        assert planned(Request.of(**keywords({"only": [kind.name], **bank}, tmp_path / "run.toml"))) == [evaluation]


@pytest.mark.parametrize("kind", catalog.evaluations().values(), ids=catalog.evaluations())
def test_every_evaluation_explains_itself(kind):
    assert catalog.summary(kind)
    assert kind.title
    assert kind.meaning.endswith(".")
    assert kind.headline


def test_everything_in_the_catalogue_has_a_meaning():
    for kind, members in catalog.everything().items():
        assert members, kind
        assert all(members.values()), kind


SIZES = json.loads(Path(__file__).with_name("suite_sizes.json").read_text())
"""What each suite sets, by suite and operations of the encoder: keys of stored results are made of it.

New evaluations need no line until results of them are in a release.
"""


@pytest.mark.parametrize("case", SIZES)
def test_suites_ask_of_every_evaluation_what_stored_results_were_made_with(case):
    suite, operations = case.split()
    sizes = suite_settings(suite, catalog.evaluations().values(), int(operations))
    assert {name: json.loads(json.dumps(sizes[name])) for name in SIZES[case]} == SIZES[case]


@pytest.mark.parametrize("suite", SUITES)
def test_sizes_are_settings_that_exist(suite):
    for operations in (0, 10**10):
        assert planned(Request(suite=suite), operations)


def test_quick_asks_less_of_large_encoders():
    full, less = ({one.name: settings(one) for one in planned(Request(), n)} for n in (10**6, 60 * 10**6))
    assert full == {one.name: settings(one) for one in planned(Request())}
    assert (less["overlap"]["samples"], less["masking"]["samples"], less["overlap"]["balls"]) == (20, 20, ["linf:0.05"])
    assert less["certified-radius"]["samples"] == 10
    asked = Request(eps=("8/255",), settings={"overlap": {"samples": 200}})
    given = {one.name: settings(one) for one in planned(asked, 10**12)}
    assert (given["overlap"]["samples"], given["overlap"]["balls"]) == (200, ["linf:8/255"])
    assert planned(Request(suite="standard"), 10**12) == planned(Request(suite="standard"))


def test_the_largest_encoder_decides_for_all_and_it_is_said():
    small = Encoder(nn.Flatten(), "pixels", Domain((1, 40, 40)))
    large = Encoder(nn.Sequential(nn.Flatten(), nn.Linear(1600, 7500)), "large", Domain((1, 40, 40)))
    with warned(HoldfastWarning, "24 million", "50%", "operations"):
        (overlap,) = plan_for_large_encoders(Request(only=("overlap",)), [small, large])
    assert settings(overlap)["samples"] == 50
    assert plan_for_large_encoders(Request(only=("overlap",)), [small]) == []
    assert plan_for_large_encoders(Request(only=("overlap",), device="cuda"), [large]) == []


def test_what_asks_a_large_encoder_for_no_less_is_no_warning():
    large = Encoder(nn.Sequential(nn.Flatten(), nn.Linear(1600, 7500)), "large", Domain((1, 40, 40)))
    assert plan_for_large_encoders(Request(only=("drift",), bank="others"), [large]) == []


@pytest.fixture
def novel(tmp_path, monkeypatch):
    """Add one file to the measures, in the folder of its family or in one below that."""

    def add(name: str, folder: str = "") -> None:
        assert name == "breakaway" or name not in catalog.evaluations(), "there without its file"
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "__init__.py").write_text("")
        (tmp_path / folder / "novel.py").write_text(MEASURE.format(name=name))
        monkeypatch.setattr(
            holdfast.attacks.evaluations, "__path__", [*holdfast.attacks.evaluations.__path__, str(tmp_path)]
        )
        for cached in CACHED:
            cached.cache_clear()

    with looked_anew():
        yield add
    for name in ("novel", "deeper", "deeper.novel"):
        sys.modules.pop(f"holdfast.attacks.evaluations.{name}", None)


@pytest.mark.parametrize("folder", ["", "deeper"])
def test_one_new_file_is_enough_for_a_measure(novel, folder):
    novel("novel", folder)
    assert "novel" in catalog.evaluations()
    assert catalog.everything()["evaluations"].keys() >= {"novel"}
    (made,) = planned(Request(only=("novel",), settings={"novel": {"strength": "5"}}))
    assert settings(made) == {"strength": 5}


def test_a_folder_that_python_does_not_look_into_is_named(novel, tmp_path):
    novel("novel", "deeper")
    (tmp_path / "deeper" / "__init__.py").unlink()
    with refused(HoldfastError, "deeper", "__init__.py"):
        catalog.evaluations()


HOME = "holdfast.evaluations"
SETTINGS = """
from holdfast import Attack, Ball, Divergence, L2Distance, Linf
from holdfast.bounds import Crown, Method
from typing import Optional
"""
FIELDS = """
    balls: tuple[Ball, ...] = (Linf(0.1),)
    attack: Attack = Attack.read("pgd")
    divergence: Divergence = L2Distance()
    method: Method = Crown()
    most: Optional[float] = None
    start: Ball | None = None
"""


@pytest.mark.parametrize("postponed", ["", "from __future__ import annotations\n"], ids=["types", "texts"])
def test_settings_of_other_packages_are_read_however_they_are_annotated(postponed, tmp_path):
    code = postponed + SETTINGS + MEASURE.format(name="novel").replace("    strength: int = 3\n", FIELDS)
    with installed(tmp_path, "elsewhere", {"novel": code}, {HOME: {"novel": "elsewhere.novel:Novel"}}):
        values = {
            "balls": ["l2:0.5"], "attack": "pgd:steps=3", "divergence": "cosine", "method": "alpha",
            "most": "8/255", "start": "linf:8/255",
        }  # fmt: skip
        (made,) = planned(Request(only=("novel",), settings={"novel": values}))
        assert settings(made) == {**values, "most": 8 / 255}
        assert type(made)(**values | {"most": 8 / 255}) == made
        (blind,) = planned(Request(only=("novel",), black_box=True, eps=("8/255",)))
        assert (str(vars(blind)["attack"]), settings(blind)["balls"]) == ("square", ["linf:8/255"])


def test_two_evaluations_of_one_name_are_refused(novel):
    novel("breakaway")
    with refused(HoldfastError, "'breakaway'", "Novel"):
        catalog.evaluations()


@pytest.mark.parametrize(
    ("group", "value", "said"),
    [
        (HOME, "elsewhere.nowhere:Novel", "'mine', which .* adds to holdfast.evaluations, does not load .*nowhere"),
        (HOME, "elsewhere.novel:final", "holdfast.evaluations must name a class that extends Evaluation and has a name"),
        (HOME, "elsewhere.novel:Evaluation", "must name a class that extends Evaluation and has a name"),
        ("holdfast.attacks", "elsewhere.novel:Novel", "must name a class that extends Attack"),
        ("holdfast.data", "elsewhere.novel", "must name a module with SOURCE and load"),
    ],
)  # fmt: skip
def test_a_broken_entry_point_is_named(tmp_path, group, value, said):
    modules = {"novel": MEASURE.format(name="novel")}
    with installed(tmp_path, "elsewhere", modules, {group: {"mine": value}}), pytest.raises(HoldfastError, match=said):
        catalog.everything()


def test_later_settings_win(tmp_path: Path):
    file = tmp_path / "run.toml"
    file.write_text('suite = "standard"\nseed = 7\neps = ["8/255"]\n[breakaway]\nsamples = 11\nrivals = 3\n')
    asked = Request.of(**keywords({"suite": "quick", "settings": {"breakaway": {"samples": "12"}}}, file))
    (breakaway, overlap) = planned(asked.model_copy(update={"only": ("breakaway", "overlap")}))
    assert (asked.suite, asked.seed) == ("quick", 7)
    assert settings(breakaway).items() >= {"samples": 12, "rivals": 3, "balls": ["linf:8/255"]}.items()
    assert settings(overlap)["samples"] == type(overlap).sizes.quick["samples"]


def test_balls_of_the_flags_replace_those_of_the_file(tmp_path):
    (tmp_path / "run.toml").write_text('ball = ["l2:1.0"]\n[overlap]\nsamples = 5')
    (overlap,) = planned(Request.of(**keywords({"eps": ["0.5"], "only": ["overlap"]}, tmp_path / "run.toml")))
    assert settings(overlap)["balls"] == ["linf:0.5"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sed = 1", r"Did you mean 'seed'"),
        ("[breakway]", r"Did you mean 'breakaway'"),
        ("[breakaway]\nsampels = 1", r"Did you mean 'samples'"),
        ('[breakaway]\nsamples = "many"', r"breakaway.samples: expected int, got 'many'"),
        ("[breakaway]\nsamples = [1, 2]", r"breakaway.samples: expected one int, got \[1, 2\]"),
        ('[breakaway]\nballs = ["l3:1"]', r"'l3'"),
        ('seed = "x"', r"seed: input should be a valid integer.*got 'x'"),
        ("seed = ", r"is not valid TOML"),
        ("settings = 3", r"'settings'"),
        ("budget = 0", r"budget must be a positive number"),
        ("eps = [0.1]\nball = ['l2:1']", r"eps and ball"),
        ("eps = [-0.1]", r"radius of a linf ball must be positive"),
    ],
)
def test_mistakes_in_a_file_are_named(tmp_path, text, said):
    (tmp_path / "run.toml").write_text(text)
    with pytest.raises(HoldfastError, match=said):
        planned(Request.of(**keywords({}, tmp_path / "run.toml")))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(HoldfastError, match=r"--config .*No such file"):
        keywords({}, tmp_path / "none.toml")


def test_radii_belong_to_attacks(tmp_path):
    plan = {evaluation.name: evaluation for evaluation in planned(Request(eps=("8/255",)))}
    clever = catalog.evaluations()["clever"]
    assert settings(plan["overlap"])["balls"] == settings(plan["masking"])["balls"] == ["linf:8/255"]
    assert settings(plan["clever"])["balls"] == list(clever.sizes.quick["balls"]), (
        "where gradients are sampled, no attack"
    )
    with refused(HoldfastError, "--set", "clever.balls=linf:8/255", "nothing"):
        planned(Request(eps=("8/255",), only=("clever",)))


def test_settings_of_what_does_not_run_are_named(tmp_path):
    (tmp_path / "run.toml").write_text("[overlap]\nsamples = 5\n[breakaway]\nsamples = 3")
    with warned(HoldfastWarning, "overlap", "changes"):
        planned(Request.of(**keywords({"only": ["breakaway"]}, tmp_path / "run.toml")))


def test_a_source_that_takes_arch_says_so_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new adapter is one file: whether ``--arch`` belongs to it is read there."""
    from holdfast.encoders.by_name import Options, references, sources

    asked = ("onnx:a.onnx", "checkpoint:b.pt"), ("mine:encoder",), Options()
    assert [options.arch for _, options in references(*asked)] == [None, "mine:encoder"]
    monkeypatch.setattr(sources()["onnx"], "TAKES_ARCH", True, raising=False)
    assert [options.arch for _, options in references(*asked)] == ["mine:encoder", "mine:encoder"]
