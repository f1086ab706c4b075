"""Maps to a new space: fitted as other programs fit them, chosen on held-out images, stored and checked."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load as arrays_of
from safetensors.numpy import save
from scipy.linalg import orthogonal_procrustes
from sklearn.linear_model import Ridge
from torch import Tensor, nn

import holdfast as hf
from holdfast.core.errors import HoldfastError
from holdfast.service.adapter import KINDS, Adapter, best, fitted, parts, reduced, ridge
from tests.samples import builtin


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_orthogonal_map_is_that_of_scipy() -> None:
    old, new = normal(50, 6) + 2, normal(50, 6, seed=1) - 1
    x, y = (values - values.mean(0) for values in (old, new))
    turn, singular = orthogonal_procrustes(x.numpy(), y.numpy())
    expected = x.numpy() @ turn * (singular / float(x.square().sum())) + new.mean(0).numpy()
    assert np.allclose(fitted("orthogonal", old, new, ("a", "b"), unit=False)(old.numpy()), expected, atol=1e-5)


@pytest.mark.parametrize("n", [30, 8], ids=["tall", "wide"])
def test_ridge_is_that_of_scikit_learn(n: int) -> None:
    x, y = normal(n, 12), normal(n, 3, seed=1)
    alpha = 0.1 * float(x.square().sum()) / min(n, 12)
    expected = Ridge(alpha=alpha, fit_intercept=False).fit(x.numpy(), y.numpy()).coef_.T
    assert np.allclose(ridge(x, y, 0.1), expected, atol=1e-10)
    # No map of that rank fits better: the reduced weights predict the leading part of what the full ones predict.
    left, right = reduced(x, y, 0.1, 2)
    values, directions = np.linalg.svd(x.numpy() @ expected)[1:]
    gap = np.square(x.numpy() @ (expected - (left @ right).numpy())).sum()
    assert gap == pytest.approx(np.square(values[2:]).sum())
    assert np.allclose(np.abs(right.numpy() @ directions.T)[:, 2], 0, atol=1e-8)


def test_cross_validation_takes_what_predicts_held_out_rows() -> None:
    x = normal(60, 40)
    signal, noise = x @ normal(40, 2, seed=1), normal(60, 2, seed=2)
    choose = lambda y: best([1e-9, 100.0], x, y, lambda value, a, b: ridge(a, b, value))  # noqa: E731
    assert choose(signal) == 1e-9
    assert choose(noise) == 100.0


def test_each_kind_of_map_has_its_use() -> None:
    old, weights = normal(900, 12), normal(12, 12, seed=1)
    turn = torch.linalg.qr(weights).Q
    for exact, winner in (
        (old @ turn, "orthogonal"),
        (old @ weights + 1, "low-rank"),
        (torch.relu(old @ weights), "residual"),
    ):
        new, left = exact + 0.05 * normal(900, 12, seed=3), {}
        for kind in KINDS:
            mapped = fitted(kind, old[:600], new[:600], ("a", "b"), unit=False)(old[600:].numpy())
            left[kind] = float((torch.from_numpy(mapped) - new[600:]).square().mean())
        assert left[winner] < 1.02 * min(left.values())
        simpler = KINDS[: KINDS.index(winner)]
        assert all(left[winner] < 0.9 * left[kind] for kind in simpler), left


@pytest.mark.parametrize("kind", KINDS)
def test_a_map_is_stored_and_loaded(kind: str, tmp_path: Path) -> None:
    old, new = normal(80, 6), normal(80, 4, seed=1)
    made = fitted(kind, old, new, ("a", "b"), unit=True)
    again = hf.load_adapter(made.save(tmp_path / "map.safetensors"))
    assert again.header == made.header
    mapped = again(old.numpy())
    assert mapped.shape == (80, 4)
    assert np.array_equal(mapped, made(old.numpy()))
    assert np.allclose(mapped, again((5 * old).numpy()), atol=1e-5), (
        "norms count, although embeddings are compared by cosine"
    )
    for wrong in (old.numpy()[0], old.numpy()[:, :5], np.array([["a"] * 6]), 0 * old.numpy(), np.nan * old.numpy()):
        with pytest.raises(HoldfastError, match="embeddings"):
            again(wrong)


def test_what_is_no_map_is_refused(tmp_path: Path) -> None:
    path = fitted("residual", normal(80, 6), normal(80, 4, seed=1), ("a", "b"), unit=False).save(
        tmp_path / "map.safetensors"
    )
    content = path.read_bytes()
    arrays, header = (
        arrays_of(content),
        json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"],
    )
    stated = json.loads(header["adapter"])
    damaged = [content[:-1], content[:5], b"", b"\xff" * 100]
    damaged += [
        save({**arrays, "left": arrays["left"][:, :1]}, header),
        save({**arrays, "more": arrays["left"]}, header),
    ]
    damaged += [save({**arrays, "bias": arrays["bias"].astype(np.float64)}, header), save(arrays)]
    damaged += [save({**arrays, "bias": arrays["bias"] * np.nan}, header)]
    for change in ({"kind": "orthogonal"}, {"width": 5}, {"format": 2}, {"old": "\x1b[2J"}, {"more": 1}):
        damaged.append(save(arrays, {"adapter": json.dumps({**stated, **change})}))
    for bytes_ in damaged:
        path.write_bytes(bytes_)
        with pytest.raises(HoldfastError) as found:
            hf.load_adapter(path)
        assert str(path) in str(found.value)
        assert str(found.value).isprintable()
    with pytest.raises(HoldfastError):
        hf.load_adapter(tmp_path / "none.safetensors")


def test_groups_stay_together() -> None:
    groups = [str(k // 3) for k in range(30)]
    found = parts(torch.randperm(30, generator=torch.Generator().manual_seed(0)), groups)
    names = [{groups[row] for row in part.tolist()} for part in found]
    assert sorted(row for part in found for row in part.tolist()) == list(range(30))
    assert not names[0] & names[1] | names[1] & names[2] | names[0] & names[2]
    assert all(names)


class Turned(nn.Module):
    """A module whose embeddings are turned."""

    def __init__(self, module: nn.Module, turn: Tensor) -> None:
        super().__init__()
        self.module, self.turn = module, nn.Buffer(turn)

    def forward(self, x: Tensor) -> Tensor:
        turned: Tensor = self.module(x) @ self.turn
        return turned


@dataclass
class Made:
    answer: hf.Parity
    adapter: Adapter
    old: hf.Encoder
    new: hf.Encoder


@pytest.fixture(scope="module")
def turned(tmp_path_factory: pytest.TempPathFactory) -> Made:
    old = builtin()
    width = old(torch.zeros(1, *old.domain.shape)).shape[1]
    turn = torch.linalg.qr(normal(width, width)).Q.float()
    new = hf.Encoder(Turned(old.module, turn), "turned", old.domain, caution="")
    path = tmp_path_factory.mktemp("adapter") / "map.safetensors"
    answer = hf.parity(old, new, "builtin:digits", k=5, limit=200, radii=4, adapter=path)
    return Made(answer, hf.load_adapter(path), old, new)


def test_a_turned_space_is_reached_by_the_map(turned: Made) -> None:
    result = turned.answer["turned"]
    kept = {each.conditions["map"]: each for each in result.estimates if each.quantity == "adapter_neighbours_kept"}
    assert kept.keys() == {"none", *KINDS}
    assert kept["orthogonal"].value > 0.99 > 0.5 > kept["none"].value
    assert all(each.low <= each.value <= each.high for each in kept.values())
    assert turned.adapter.header.kind == "orthogonal"
    pixels = hf.load_images("builtin:digits", turned.old, limit=20).pixels(range(20))
    old, new = (encoder(pixels) for encoder in (turned.old, turned.new))
    mapped = torch.from_numpy(turned.adapter(old.numpy()))
    assert float(torch.cosine_similarity(mapped, new).min()) > 0.999
    assert float(torch.cosine_similarity(old, new).min()) < 0.9, "vacuous"


def test_attacks_go_through_the_map(turned: Made) -> None:
    moved = turned.answer["turned"].estimate("adapter_attack_radius_change")
    radius = next(each for each in turned.answer.results if each.evaluation == "attack-radius").estimate(
        "attack_radius"
    )
    assert abs(moved.value) < 0.2 * radius.value, "turning moves no neighbour, so no radius"


def test_the_verdict_says_when_to_encode_again(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    many: dict[str, Any] = {"bank": "builtin:digits-train", "limit": 500}
    for other, status in (("builtin:digits-random", "refuted"), ("float16", "no violation found")):
        answer = hf.parity("builtin:digits-contrastive", other, "builtin:digits", k=3, adapter=path, **many)
        verdict = answer.results[0].findings.verdicts[-1]
        assert verdict.status == status
        kept = {
            each.conditions["map"]: each.value
            for each in answer.results[0].estimates
            if each.quantity == "adapter_neighbours_kept"
        }
        if other == "float16":
            assert kept["none"] >= max(kept.values()), "vacuous"
            assert verdict.witness["map"] == "none"
            assert not path.exists(), "no map is needed, so none is written"
        else:
            assert kept[verdict.witness["map"]] > kept["none"]
            assert path.exists()
            path.unlink()


def test_no_map_is_written_that_loses_to_the_old_index(tmp_path: Path) -> None:
    """Noise that no map takes away: the old index is not enough, and every map that is fitted makes it worse."""
    old, path = normal(400, 40), tmp_path / "a.safetensors"
    np.savez(tmp_path / "old.npz", codes=old.numpy())
    np.savez(tmp_path / "new.npz", codes=(old + 0.3 * normal(400, 40, seed=1)).numpy())
    answer = hf.parity(tmp_path / "old.npz", tmp_path / "new.npz", k=5, adapter=path)
    verdict = answer.results[0].findings.verdicts[-1]
    assert (verdict.status, verdict.witness["map"]) == ("refuted", "none")
    assert not path.exists()


def test_what_makes_no_map_is_refused(tmp_path: Path) -> None:
    old, path = "builtin:digits-contrastive", tmp_path / "a.safetensors"
    with pytest.raises(HoldfastError, match="adapter"):
        hf.parity(old, ["float16", "builtin:digits-random"], "builtin:digits", adapter=path)
    with pytest.raises(HoldfastError, match="adapter"):
        hf.parity(old, "float16", "builtin:digits", adapter=tmp_path / "a.npz")
    few = hf.parity(old, "float16", "builtin:digits", k=10, limit=30, adapter=path)
    assert "adapter" in few.failures[0].reason
    assert not path.exists()
