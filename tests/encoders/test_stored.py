"""Encoders whose embeddings are read back from a store, from Python and by reference, and what parity says of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import holdfast as hf
from holdfast.core.encoder import Normalised
from holdfast.core.errors import Conflict, HoldfastError, HoldfastWarning, OutOfRange
from holdfast.data.codes.forms import Form

NAME = "builtin:digits-contrastive"
INT8 = "int8:calibration=builtin:digits-train"


@pytest.fixture(scope="module")
def network():
    return hf.load_encoder(NAME)


@pytest.fixture(scope="module")
def images(network):
    return hf.load_images("builtin:digits", network, limit=80)


@pytest.mark.parametrize("form", ["float32:first=8", "float16", INT8, "uint8:scale=0.1,zero=128", "binary"])
def test_a_reference_reads_embeddings_back(network, images, form):
    pixels = images.pixels(range(20)).requires_grad_()
    encoder = hf.load_encoder(f"{NAME}?stored={form}")
    codes = network(pixels.detach()).numpy()
    read = encoder(pixels)
    if form == INT8:
        sample = network(hf.load_images("builtin:digits-train", network, limit=256).pixels(range(256))).numpy()
        low, step = sample.min(0), (sample.max(0) - sample.min(0)) / 255
        expected = low + step * np.clip(np.rint((codes - low) / step), 0, 255)
    else:
        expected = {
            "float32:first=8": lambda z: z[:, :8],
            "float16": lambda z: z.astype("f2"),
            "uint8:scale=0.1,zero=128": lambda z: 0.1 * (np.clip(np.rint(z / np.float32(0.1)) + 128, 0, 255) - 128),
            "binary": lambda z: np.where(z > 0, 1, -1),
        }[form](codes)
    np.testing.assert_allclose(read.detach().numpy(), expected, rtol=1e-4, atol=1e-4)
    assert encoder.fingerprint != network.fingerprint
    assert encoder.stored_from == network.fingerprint
    assert encoder.name == f"digits-contrastive as {Form.read(form).words}"
    assert bool(encoder.caution) == (form in (INT8, "uint8:scale=0.1,zero=128", "binary"))
    # Straight through: the gradient is that of the network.
    width = read.shape[1]
    (mine,) = torch.autograd.grad(read.sum(), pixels)
    other = pixels.detach().requires_grad_()
    (theirs,) = torch.autograd.grad(network(other)[:, :width].sum(), other)
    torch.testing.assert_close(mine, theirs)


def test_other_settings_and_names_stay(network):
    encoder = hf.load_encoder("pixels=baseline:pixels?shape=1x8x8&stored=binary")
    assert encoder.name == "pixels"
    assert encoder.domain.shape == (1, 8, 8)
    again = hf.stored(network, "int8", calibration=np.stack([np.full(32, -3.0), np.full(32, 3.0)]).astype("f4"))
    levels = (again(torch.rand(4, 1, 8, 8)) + 3) * 255 / 6
    torch.testing.assert_close(levels, levels.round(), rtol=0, atol=1e-3)
    with pytest.raises(OutOfRange):
        hf.stored(network, "binary:first=12")
    with pytest.raises(Conflict):
        hf.load_encoder(f"{NAME}?stored=binary&stored=float16")
    with pytest.raises(OutOfRange):
        hf.load_encoder(f"{NAME}?stored=int8")
    for calibration in (np.zeros((4, 5), "f4"), np.full((4, 32), np.nan, "f4")):
        with pytest.raises(OutOfRange):
            hf.stored(network, "int8", calibration=calibration)
    normalised = hf.Encoder(torch.nn.Flatten(), "n", hf.Domain((1, 2, 4)), mean=0.5, std=0.25)
    outermost = hf.stored(normalised, "float16").module
    assert isinstance(outermost, Normalised)
    assert float(outermost.mean) == 0.5


def test_no_bound_takes_a_store_for_the_identity(images):
    for form in (INT8, "binary", "float16"):
        encoder = hf.load_encoder(f"builtin:digits-certified?stored={form}")
        with pytest.warns(HoldfastWarning):
            run = hf.evaluate(encoder, images[:12], only="certified-radius")
        assert not run.results
        assert "cannot be bounded" in run.failures[0].reason


def test_parity_says_what_a_store_costs(images, tmp_path):
    forms = ["?stored=float16", f"?stored={INT8}", "?stored=binary", "?stored=float32:first=8"]
    answer = hf.parity(NAME, forms, images, k=5)
    named = [f"digits-contrastive as {form}" for form in ("float16", "int8", "binary", "float32 first 8")]
    assert list(answer.verdicts) == named
    kept = [answer[name].estimate("neighbours_kept").value for name in named]
    assert kept[0] > kept[1] > kept[2]
    assert kept[1] > 0.95
    assert answer.verdicts[named[2]] == "another space"
    # No preprocessing is looked for where the weights are the same.
    assert len(answer[named[2]].findings.verdicts) == 1

    encoder = hf.load_encoder(NAME)
    codes = encoder(images.pixels(range(len(images)))).numpy()
    signs = np.where(codes > 0, 1, -1)
    least, most = _shared(codes, signs, 5)
    assert least <= kept[2] <= most

    np.savez(tmp_path / "codes.npz", codes=codes, ids=np.array(images.ids))
    of_file = hf.parity(tmp_path / "codes.npz", [*forms[:1], "?stored=int8", *forms[2:]], k=5)
    assert of_file["codes.npz as binary"].estimate("neighbours_kept").value == pytest.approx(kept[2])
    packed = np.packbits(codes > 0, axis=1)
    np.savez(tmp_path / "bits.npz", codes=packed, ids=np.array(images.ids))
    of_bits = hf.parity(tmp_path / "codes.npz", f"{tmp_path}/bits.npz?stored=binary", k=5)
    assert of_bits["bits.npz as binary"].estimate("neighbours_kept").value == pytest.approx(kept[2])
    with pytest.raises(HoldfastError):
        hf.parity(forms[0], NAME, images)


def _shared(codes, signs, k):
    """Least and largest fraction of the ``k`` nearest by cosine that are nearest by signs, however ties are broken."""
    unit = codes / np.linalg.norm(codes, axis=1, keepdims=True)
    away, hamming = -unit @ unit.T, (signs[:, None] != signs[None]).sum(2)
    least, most = [], []
    for row in range(len(codes)):
        others = np.delete(np.arange(len(codes)), row)
        nearest = set(others[np.argsort(away[row, others])[:k]].tolist())
        end = np.sort(hamming[row, others])[k - 1]
        inside, tied = ({int(i) for i in others if hit(hamming[row, i], end)} for hit in (np.less, np.equal))
        room, sure = k - len(inside), len(inside & nearest)
        least.append(sure + max(0, room - len(tied - nearest)))
        most.append(sure + min(room, len(tied & nearest)))
    return np.mean(least) / k, np.mean(most) / k


@pytest.mark.parametrize("form", ["binary", INT8])
def test_attacks_are_judged_on_the_stored_vectors(network, images, form):
    encoder = hf.load_encoder(f"{NAME}?stored={form}")
    ball = hf.Linf(0.15)
    attacked = hf.attack(encoder, images[:12], ball, attack=hf.GradientAttack(steps=20), progress=False)
    levels = encoder(attacked.attacked)
    torch.testing.assert_close(attacked.codes, levels)
    moved = hf.L2Distance()(attacked.codes, attacked.clean_codes)
    rng = torch.Generator().manual_seed(0)
    clean = images.pixels(range(12))
    tried = [
        hf.L2Distance()(
            encoder((clean + 0.15 * torch.sign(torch.randn(clean.shape, generator=rng))).clamp(0, 1)), encoder(clean)
        )
        for _ in range(20)
    ]
    assert (moved > torch.stack(tried).amax(0)).float().mean() > 0.8  # the search is better than random corners
