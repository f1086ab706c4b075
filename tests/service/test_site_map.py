"""Maps that take the site out of embeddings: against a slow ComBat, by what they leave, and as files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.random import default_rng

import holdfast as hf
from holdfast.core.errors import HoldfastError, UnknownName, Unreadable
from holdfast.service.site_map import KINDS, fit_site_map

SITES = ["a"] * 30 + ["b"] * 20 + ["c"] * 25


def embeddings(width: int = 6) -> np.ndarray:
    """Embeddings of three sites that differ in mean and in scale."""
    draws = default_rng(0)
    parts = [draws.normal(k, 1 + k, (count, width)) @ draws.normal(0, 1, (width, width)) for k, count in _counts()]
    return np.concatenate(parts)


def _counts() -> list[tuple[int, int]]:
    return [(k, SITES.count(site)) for k, site in enumerate("abc")]


def slow_combat(values: np.ndarray, sites: list[str]) -> np.ndarray:
    """Parametric empirical Bayes from the paper's equations, one site, feature and image at a time."""
    n, width = values.shape
    result = np.empty_like(values)
    alpha = [sum(values[:, g]) / n for g in range(width)]
    own = {s: [i for i in range(n) if sites[i] == s] for s in sorted(set(sites))}
    sigma = []
    for g in range(width):
        residuals = [values[i, g] - np.mean([values[j, g] for j in rows]) for rows in own.values() for i in rows]
        sigma.append(np.sqrt(sum(r * r for r in residuals) / n))
    for rows in own.values():
        z = np.array([[(values[i, g] - alpha[g]) / sigma[g] for g in range(width)] for i in rows])
        hats = [float(np.mean(z[:, g])) for g in range(width)]
        variances = [float(np.var(z[:, g], ddof=1)) for g in range(width)]
        bar, tau2 = np.mean(hats), np.var(hats, ddof=1)
        v, s2 = np.mean(variances), np.var(variances, ddof=1)
        shape, rate = (v * v + 2 * s2) / s2, (v**3 + v * s2) / s2
        for g in range(width):
            gamma, delta2 = np.float64(hats[g]), np.float64(variances[g])
            for _ in range(2000):
                gamma = (len(rows) * tau2 * hats[g] + delta2 * bar) / (len(rows) * tau2 + delta2)
                delta2 = (rate + sum((x - gamma) ** 2 for x in z[:, g]) / 2) / (len(rows) / 2 + shape - 1)
            for place, i in enumerate(rows):
                result[i, g] = sigma[g] / np.sqrt(delta2) * (z[place, g] - gamma) + alpha[g]
    return result


def test_combat_is_that_of_the_paper() -> None:
    values = embeddings()
    assert fit_site_map(values, SITES, "combat")(values, SITES) == pytest.approx(slow_combat(values, SITES), abs=1e-4)


def test_combat_is_that_of_an_independent_package() -> None:
    combat = pytest.importorskip("neuroCombat", reason="neuroCombat is not installed")
    pandas = pytest.importorskip("pandas")
    values = embeddings(12)
    theirs = combat.neuroCombat(values.T, pandas.DataFrame({"site": SITES}), "site")["data"].T
    ours = fit_site_map(values, SITES, "combat")(values, SITES)
    assert np.abs(ours - theirs).max() < 1e-3 * values.std()  # it stops at a relative change of 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_sites_can_no_longer_be_told_by_their_means(kind: str) -> None:
    values, member = embeddings(), np.array(SITES)
    mapped = fit_site_map(values, SITES, kind)(values, SITES)

    def gap(codes: np.ndarray) -> float:
        means = np.stack([codes[member == site].mean(0) for site in "abc"])
        return float(means.std(0).max() / codes.std())

    assert gap(values) > 0.3
    assert gap(mapped) < (0.15 if kind == "combat" else 1e-5)
    assert mapped.mean(0) == pytest.approx(values.mean(0), abs=0.2)


def test_whitening_makes_the_covariances_of_sites_alike() -> None:
    values, member = embeddings(3), np.array(SITES)
    mapped = fit_site_map(values, SITES, "whiten")(values, SITES)

    def apart(codes: np.ndarray) -> float:
        each = [np.cov(codes[member == site].T, bias=True) for site in "abc"]
        return float(max(np.abs(one - other).max() for one in each for other in each) / np.abs(each[0]).max())

    assert apart(mapped) < apart(values) / 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_map_reads_as_it_was_written_and_refuses_new_sites(kind: str, tmp_path: Path) -> None:
    values = embeddings()
    made = hf.fit_site_map(values, SITES, kind)
    again = hf.load_site_map(made.save(tmp_path / "map.safetensors"))
    assert again.header == made.header
    assert np.array_equal(again(values, SITES), made(values, SITES))
    assert np.array_equal(again(values[::-1], SITES[::-1]), made(values, SITES)[::-1])
    with pytest.raises(UnknownName) as raised:
        again(values[:1], ["d"])
    assert raised.value.got == "d"
    with pytest.raises(HoldfastError, match="shape"):
        again(values[:, :3], SITES)


def test_what_is_no_map_is_refused(tmp_path: Path) -> None:
    values, path = embeddings(), tmp_path / "map.safetensors"
    content = fit_site_map(values, SITES, "centre").save(path).read_bytes()
    for damaged in (content[:40], content.replace(b"site_map", b"bite_map"), content.replace(b"centre", b"whiten")):
        path.write_bytes(damaged)
        with pytest.raises(Unreadable):
            hf.load_site_map(path)
    with pytest.raises(UnknownName):
        fit_site_map(values, SITES, "scale")
    with pytest.raises(HoldfastError, match="two sites"):
        fit_site_map(values, ["a"] * len(values))
    with pytest.raises(HoldfastError, match="two sites"):
        fit_site_map(values, ["z", *SITES[1:]])
