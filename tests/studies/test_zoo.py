"""The zoo, what is read off evaluations of it, and what is concluded: on numbers made up for the purpose."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from studies.agreement import collected, conclusions, measures, references
from studies.agreement.collected import Found, read
from studies.agreement.conclusions import ALL, Resampled, among, choices, concluded
from studies.agreement.measures import BASELINES, CLEAN, HEADLINES, RADIUS, SCALE
from studies.agreement.members import DOMAINS, ZOO, Member
from studies.agreement.rankings import Interval
from studies.agreement.references import PRIMARY, PROBES, REFERENCES, areas
from studies.agreement.verdicts import deceived, tied, verdict
from studies.agreement.zoo import Zoo, degenerate, find, principal_components

import holdfast as hf
from holdfast.core.records import Claim, Series
from studies import __main__, page
from tests.facts import says


def test_no_two_members_have_one_name() -> None:
    cases = [member.case for member in ZOO]
    assert len(set(cases)) == len(cases)
    for member in ZOO:
        assert bool(member.weights) + bool(member.recipe) + member.degenerate == 1, member
        assert not member.start or find(member.start, member.dataset).recipe


def test_published_strengths_are_in_pixels() -> None:
    assert find("published-cnn-a-0.3", "mnist").eps == 0.3
    assert find("published-base-0.00388", "cifar10").eps == pytest.approx(1 / 255, rel=0.02)


@pytest.mark.parametrize("name", ["pixels", "pca", "random", "random-2", "collapsed"])
def test_degenerate_encoders_are_what_they_say(name: str) -> None:
    images = hf.Images(torch.rand(40, 1, 28, 28, generator=torch.Generator().manual_seed(0)))
    encoder = degenerate(name, DOMAINS["mnist"], 0, images)
    codes = encoder(images.pixels(range(40)))
    spread = torch.pdist(codes).median() / codes.norm(dim=1).median()
    assert (spread < 0.01) == (name == "collapsed")


def test_principal_components_keep_what_images_differ_in() -> None:
    images = hf.Images(torch.rand(30, 1, 4, 4, generator=torch.Generator().manual_seed(0)))
    pixels = images.pixels(range(30)).flatten(1)
    codes = principal_components(images)(pixels)
    assert torch.allclose(torch.pdist(codes), torch.pdist(pixels), atol=1e-4)
    assert codes.mean(0).abs().max() < 1e-5


def test_what_is_trained_is_made_before_what_must_be(tmp_path: Path) -> None:
    zoo = Zoo(tmp_path, tmp_path / "own", tmp_path / "small")
    (tmp_path / "small" / "simclr-1").mkdir(parents=True)
    (tmp_path / "small" / "simclr-1" / "encoder.safetensors").touch()
    planned = [(member.case, seed) for member, seed in __main__.planned(zoo, ZOO, 2, train=False)]
    assert ("mnist simclr", 1) in planned
    assert ("mnist simclr", 0) not in planned
    assert all(seed == 0 or case == "mnist simclr" for case, seed in planned), "published weights have no seed"
    assert len([*__main__.planned(zoo, ZOO, 2, train=True)]) > len(planned)


def test_durations_are_read() -> None:
    assert __main__.seconds("10h") == 36_000
    with pytest.raises(Exception, match="10h"):
        __main__.seconds("soon")


@pytest.mark.slow
def test_numbers_are_found_in_what_evaluations_say(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every headline and reference is read from real results, at a small size."""
    generator = torch.Generator().manual_seed(0)
    pixels, labels = torch.rand(80, 1, 28, 28, generator=generator), torch.arange(80) % 4
    monkeypatch.setattr(Zoo, "_arrays", lambda self, dataset, part: (pixels, labels))
    monkeypatch.setattr(measures, "IMAGES", 40)
    monkeypatch.setattr(references, "IMAGES", 12)
    monkeypatch.setattr(measures, "ATTACKED", 6)
    monkeypatch.setattr(measures, "ATTACK", "adaptive:restarts=1,steps=2")
    monkeypatch.setattr(references, "ATTACK", "adaptive:restarts=1,steps=2")
    found = collected.found(Zoo(tmp_path, tmp_path), find("random", "mnist"), 0, tmp_path / "measured")
    for name in (*(h.name for h in HEADLINES), *(r.name for r in REFERENCES), CLEAN, SCALE):
        assert np.isfinite(found[name]), name
    numbers = {name: value for name, value in found.items() if isinstance(value, float)}
    assert numbers[PRIMARY] <= numbers[CLEAN]
    for headline in HEADLINES:
        if headline.series:
            parts = np.array(found[f"{headline.name}: images"])
            assert measures.REDUCED[headline.statistic](parts) == pytest.approx(found[headline.name], rel=1e-3)


FAMILY = (
    "simclr",
    "simclr",
    "moco",
    "moco",
    "moco",
    "byol",
    "byol",
    "masked",
    "masked",
    "supervised",
    "supervised",
    "mae",
)


def made_up(agreeing: bool = True, lazy: bool = False) -> Found:
    """Return numbers of 12 encoders: every measure follows the reference, or none does; and of a degenerate one."""
    random, count = np.random.default_rng(0), len(FAMILY)
    robust = np.linspace(0.1, 0.6, count)[random.permutation(count)]
    members = [Member(f"encoder-{k}", "mnist", family, recipe={"a": 1}) for k, family in enumerate(FAMILY)]
    values: dict[str, Any] = {reference.name: robust for reference in REFERENCES}
    values |= {
        RADIUS: np.zeros(count),
        CLEAN: random.permutation(np.linspace(0.8, 0.9, count)),
        SCALE: random.permutation(count) * 1.0,
    }
    for headline in HEADLINES:
        values[headline.name] = headline.sign * (robust if agreeing else random.normal(size=count))
    if lazy:
        members.append(Member("pixels", "mnist", "degenerate", degenerate=True))
        values = {name: np.append(one, one.max() + 1) for name, one in values.items()}
        values[PRIMARY] = np.append(robust, 0.0)
    # Images agree with their mean up to a little noise.
    series = {
        name: tuple(one + random.normal(0, 1e-3, (1, 8)) for one in values[name])
        for name in (PRIMARY, "overlap", "hubness")
    }
    return Found(tuple(members), (1,) * len(members), values, series)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conclusions, "REPLICATES", 40)
    monkeypatch.setattr(conclusions, "SHUFFLES", 60)


@pytest.mark.usefixtures("quick")
def test_a_measure_that_follows_the_reference_is_recommended_and_noise_is_not() -> None:
    good = concluded(Resampled.of(made_up()))["RankMe", PRIMARY]
    assert good.tau == 1
    held, equal = [Interval(-0.2, 0.6, -0.3, 0.7), Interval(0.1, 0.9, 0.05, 0.95)], Interval(0.1, 0.9, 0.05, 0.95)
    assert verdict(good, held, equal).kind in {"use", "some"}
    assert any("neither among undefended" in doubt for doubt in verdict(good, held[:1], equal).reasons)
    unsure = Interval(0.01, 0.9, -0.01, 0.95)
    assert any(says(doubt, "equal data set") for doubt in verdict(good, held, unsure).reasons)
    assert verdict(replace(good, over_both=unsure), held, equal).kind == "none", "the lower one of two grades"
    passed = replace(good, given={ALL: (0.5, equal)}, families=(0.2, 0.6), adjusted=0.01)
    assert verdict(passed, held, equal).kind == "use"
    assert verdict(replace(passed, given={ALL: (0.5, unsure)}), held, equal).kind == "some"
    noise = [
        verdict(one, held, equal).kind
        for (_, name), one in concluded(Resampled.of(made_up(agreeing=False))).items()
        if name == PRIMARY
    ]
    assert "use" not in noise
    assert noise.count("none") >= 8
    assert verdict(replace(good, over_both=Interval(-0.5, -0.1, -0.6, -0.05)), held, equal).kind == "against"
    assert verdict(replace(good, tau=nan), held, equal).kind == "not judged"
    assert verdict(replace(good, ceiling=0.0), held, equal).kind == "not judged"
    assert verdict(replace(good, families=(-0.1, 0.5)), held, equal).reasons


@pytest.mark.usefixtures("quick")
def test_baselines_are_judged_beside_measures() -> None:
    found = made_up()
    agreements = concluded(Resampled.of(found))
    assert {name for name, _ in agreements} == {one.name for one in (*BASELINES, *HEADLINES)}
    assert CLEAN in agreements[CLEAN, PRIMARY].given
    alone, given = agreements["overlap", PRIMARY].given[RADIUS], agreements["overlap", PRIMARY].over_both
    assert alone[0] == agreements["overlap", PRIMARY].tau, "a radius that all share explains nothing"
    assert alone[1].low == pytest.approx(given.low)
    assert set(among(Resampled.of(found), found.recipe)) == {one.name for one in (*BASELINES, *HEADLINES)}


def test_a_measure_that_a_degenerate_encoder_wins_is_known() -> None:
    found = made_up(lazy=True)
    up = next(headline for headline in HEADLINES if headline.sign > 0)
    down = next(headline for headline in HEADLINES if headline.sign < 0)
    assert [one.case for one in deceived(found, up)] == ["mnist pixels"]
    assert deceived(found, down) == []
    assert tied(found, up) == 0


@pytest.mark.usefixtures("quick")
def test_choosing_by_a_measure_that_follows_the_reference_costs_nothing() -> None:
    by = {choice.by: choice for choice in choices(made_up())}
    assert by["RankMe"].lost == {"mnist": 0}
    assert by["RankMe"].wins == 1
    assert by["random"].mean > by["RankMe"].mean
    assert by["random"].wins < 0.2


def test_an_image_that_fell_stays_fallen() -> None:
    ladder = (0.1, 0.2, 0.4)
    found = areas(few_series(ladder), ladder)
    assert found[CLEAN].tolist() == [1.0, 1.0]
    # The first image falls at 0.2 (at the code), and never again counts; the second stands everywhere.
    assert found["robust area, linear"].tolist() == pytest.approx([0.15 / 0.4, 1.0])


def few_series(ladder: tuple[float, ...]) -> list[Series]:
    """Return what robust-accuracy says of two images, as far as it is read."""

    def made(quantity: str, first: float, **conditions: str) -> Series:
        return Series(
            quantity=quantity, conditions=conditions, values=(first, 1.0), unit="", claim=Claim.ESTIMATE, of="nothing"
        )

    series = []
    for probe in PROBES:
        series.append(made("classified_right", 1.0, probe=probe))
        for eps, aim in product(ladder, ("probe", "code")):
            attack = f"{measures.ATTACK} at the {aim}"
            fallen = eps == 0.2 and aim == "code"
            series.append(made("robust", 0.0 if fallen else 1.0, probe=probe, ball=f"linf:{eps:.6g}", attack=attack))
    return series


@pytest.mark.slow
def test_the_page_is_what_the_stored_numbers_say() -> None:
    root = Path(__file__).parents[2]
    for path, text in page.render(page.STORED).items():
        assert (root / path).read_text() == text, f"{path}: run python -m studies --page"


def test_stored_results_are_small_and_of_these_settings() -> None:
    found = read(page.STORED / "zoo")
    assert len(found.members) >= 24
    assert sum(path.stat().st_size for path in (page.STORED / "zoo").rglob("*")) < 2_500_000
    assert {len(parts) for parts in found.series.values()} == {len(found.members)}
