"""Clusters and probes under sites: where only class or only site shows, and what repairs restore."""

from __future__ import annotations

from math import isnan
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.random import default_rng

import holdfast as hf
from holdfast.cli.app import run
from holdfast.core.errors import HoldfastError, UnknownName
from holdfast.core.images import Images
from holdfast.geometry.sphere import Tags
from holdfast.service.evaluations.sites import (
    STRENGTHS,
    Cells,
    Sites,
    accuracies_of,
    cells_of,
    counts_of,
    halves,
    performance_drop,
    rand_indices,
)
from tests.samples import linear

COUNT = 240


def sample(class_size: float, site_size: float, width: int = 8) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Embeddings of two classes at two sites; each adds its size along a direction of its own."""
    labels, sites = np.arange(COUNT) % 2, np.arange(COUNT) // 2 % 2
    codes = default_rng(0).normal(0, 0.1, (COUNT, width))
    codes[:, 0] += class_size * (2 * labels - 1)
    codes[:, 1] += site_size * (2 * sites - 1)
    return codes, labels, sites


def cells(labels: np.ndarray, sites: np.ndarray) -> Cells:
    (only,) = cells_of(labels, sites)
    return only


def test_clusters_tell_what_is_larger() -> None:
    for sizes, expected in (((1.0, 0.0), (1, 0)), ((0.0, 1.0), (0, 1))):
        codes, labels, sites = sample(*sizes)
        found = rand_indices(codes, cells(labels, sites), 5, 2, 0)
        assert found == pytest.approx(expected, abs=0.05)


@pytest.mark.parametrize("strength", STRENGTHS)
def test_counts_have_the_stated_cramers_v(strength: float) -> None:
    often, rarely = counts_of(40, strength)
    assert often + rarely == 40
    table = np.array([[often, rarely], [rarely, often]])
    expected = table.sum(0) * table.sum(1)[:, None] / table.sum()
    chi = ((table - expected) ** 2 / expected).sum()
    assert np.sqrt(chi / table.sum()) == pytest.approx(strength)


def test_a_probe_loses_where_the_site_is_louder_than_the_class() -> None:
    quiet, labels, sites = sample(1.0, 0.0)
    units = np.arange(COUNT).astype(str)
    assert accuracies_of(quiet, cells(labels, sites), units, 0) == pytest.approx([1] * len(STRENGTHS))
    loud, _, _ = sample(0.1, 1.0)
    found = accuracies_of(loud, cells(labels, sites), units, 0)
    assert found[0] > 0.75
    assert found[-1] < 0.6, "class and site are one in training"


def test_the_drop_is_minus_the_average_performance_drop_of_the_authors() -> None:
    """Their program divides by the first split, averages over splits and subtracts one, for each repetition."""
    accuracies = default_rng(2).uniform(0.5, 1, (6, len(STRENGTHS)))
    theirs = np.mean([np.mean([value / row[0] for value in row[1:]]) - 1 for row in accuracies])
    assert performance_drop(accuracies) == pytest.approx(-theirs)


def test_groups_stay_together() -> None:
    units = np.repeat(np.arange(60), 4).astype(str)
    sites = np.repeat(np.arange(60) % 3 % 2, 4)
    learning = halves(units, sites, 0)
    assert [learning[sites == site].mean() for site in (0, 1)] == [0.5, 0.5]
    assert all(len(set(learning[units == unit])) == 1 for unit in np.unique(units))
    assert (halves(units, sites, 1) != learning).any()


def images(tmp_path: Path) -> tuple[Images, str]:
    """Images whose pixels are the embeddings, whose site is louder than their class, and a file of sites."""
    codes, labels, sites = sample(0.1, 0.4)
    pixels = torch.from_numpy((codes + 1) / 2).float().clamp(0, 1)
    ids = [f"image-{k}" for k in range(COUNT)]
    file = tmp_path / "sites.csv"
    file.write_text("".join(f"{name},site {site}\n" for name, site in zip(ids, sites, strict=True)))
    return Images(pixels, ids=ids, labels=torch.from_numpy(labels), name="made"), str(file)


def test_repairs_raise_the_clustering_score_and_the_accuracy_under_correlation(tmp_path: Path) -> None:
    made, file = images(tmp_path)
    weight = torch.cat([torch.eye(8), -torch.eye(8)])
    evaluation = Sites(tags=Tags.read(file), repeats=2, clusters=4)
    result = evaluation(linear(weight, (8,)), made)
    again = evaluation(linear(weight, (8,)), made)
    assert result.estimates == again.estimates

    def value(quantity: str, repair: str) -> float:
        return result.estimate(quantity, repair=repair).value

    assert value("clustering_score", "none") < -0.5
    for repair in ("centre", "whiten", "combat"):
        assert value("site_rand_index", repair) < 0.2
        assert value("clustering_score", repair) > value("clustering_score", "none") + 0.4
    gap = value("class_rand_index", "none") - value("site_rand_index", "none")
    assert gap == pytest.approx(value("clustering_score", "none"))

    def at(strength: str, repair: str) -> float:
        return result.estimate("site_probe_accuracy", repair=repair, cramers_v=strength).value

    assert at("1", "none") < 0.6 < at("0", "none"), "class and site are one in training"
    assert at("1", "centre") > at("1", "none") + 0.1


def test_what_cannot_be_measured_is_refused(tmp_path: Path) -> None:
    made, file = images(tmp_path)
    encoder = linear(torch.eye(8), (8,))
    with pytest.raises(HoldfastError, match=r"sites\.tags"):
        Sites()(encoder, made)
    with pytest.raises(UnknownName):
        Sites(tags=Tags.read(file), repairs=("scale",))
    one = Images(made.pixels(range(COUNT), "cpu", torch.float32, encoder.domain), made.ids, labels=torch.arange(COUNT))
    found = Sites(tags=Tags.read(file))(encoder, one).estimates
    assert all(isnan(each.value) for each in found)
    assert all(each.reason for each in found)
    assert hf.Sites is Sites


def test_the_map_that_the_command_writes_is_the_one_that_it_measures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    count = 80
    codes, labels, sites = (values[:count] for values in sample(0.1, 0.4))
    ids = [f"image-{k}" for k in range(count)]
    stored, tags, file = tmp_path / "codes.npz", tmp_path / "sites.csv", tmp_path / "map.safetensors"
    np.savez(stored, codes=codes, ids=ids, labels=labels)
    tags.write_text("".join(f"{name},site {site}\n" for name, site in zip(ids, sites, strict=True)))
    flags = ["--tags", str(tags), "--repair", "centre", "--map", str(file), "--out", str(tmp_path / "run")]
    assert run(["sites", f"embeddings:{stored}", *flags]) == 0
    assert str(file) in capsys.readouterr().out
    found = hf.load_site_map(file)
    assert (found.header.kind, found.header.unit, found.header.images) == ("centre", True, count // 2)
    assert found.header.sites == ("site 0", "site 1")
    names = [f"site {site}" for site in sites]
    learning = halves(np.array(ids), sites, 0)
    unit = codes / np.linalg.norm(codes, axis=1, keepdims=True)
    mapped = found(codes * 7, names)  # any length: the map divides by it
    for site in (0, 1):
        assert mapped[learning & (sites == site)].mean(0) == pytest.approx(unit[learning].mean(0), abs=1e-5)
    repaired = hf.sites(f"embeddings:{stored}", tags=tags, repair="centre")
    assert repaired.map(codes, names) == pytest.approx(found(codes, names), abs=1e-6)
    score = {e.conditions["repair"]: e.value for e in repaired.result.estimates if e.quantity == "clustering_score"}
    assert score["centre"] > score["none"] + 0.4


def test_the_command_refuses_other_files_and_repairs(tmp_path: Path) -> None:
    made, file = images(tmp_path)
    encoder = linear(torch.eye(8), (8,))
    unwritten = tmp_path / "map.safetensors"
    with pytest.raises(HoldfastError, match="no map"):  # ten classes of two images at each site: none has enough
        hf.sites(
            encoder,
            Images(made.pixels(range(40)), ids=made.ids[:40], labels=torch.arange(40) // 4),
            tags=file,
            map=unwritten,
        )
    assert not unwritten.exists()
    with pytest.raises(HoldfastError, match=r"safetensors"):
        hf.sites(encoder, made, tags=file, map=tmp_path / "map.npz")
    with pytest.raises(UnknownName):
        hf.sites(encoder, made, tags=file, repair="scale")
