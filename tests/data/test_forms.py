"""How vectors are stored: each form against numpy's own formulas, packed bits, and FAISS."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from holdfast.core.errors import Conflict, HoldfastError, OutOfRange, UnknownName
from holdfast.data.codes.codes import read_codes
from holdfast.data.codes.forms import FORMS, Form

ROWS, WIDTH = 200, 32


@pytest.fixture(scope="module")
def codes():
    return np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype("f4")


@pytest.fixture
def ranges(tmp_path, codes):
    """The ends of the first half of the rows, so that others saturate, and one feature without a range."""
    ends = np.stack([codes[:100].min(0), codes[:100].max(0)])
    ends[:, 3] = 0.25
    np.save(tmp_path / "ranges.npy", ends)
    return tmp_path / "ranges.npy", ends


def unused(name):
    raise AssertionError("nothing is fitted")


def kept(text, width=WIDTH):
    return Form.read(text).fitted(width, unused)


@pytest.mark.parametrize(("kind", "low", "high"), [("int8", -128, 127), ("uint8", 0, 255)])
@pytest.mark.parametrize(("scale", "zero"), [(0.01, 0), (0.5, 3), (0.25, 100)])
def test_a_scale_rounds_half_to_even_and_saturates(codes, kind, low, high, scale, zero):
    codes = np.concatenate([codes, np.arange(-WIDTH, 0)[None] / 8, np.full((1, WIDTH), 1e9, "f4")]).astype("f4")
    store = kept(f"{kind}:scale={scale},zero={zero}")
    expected = np.clip(np.rint(codes / np.float32(scale)) + zero, low, high).astype(kind)
    assert np.array_equal(store.encode(torch.from_numpy(codes)).numpy(), expected)
    read = np.float32(scale) * (expected.astype("f4") - zero)
    np.testing.assert_allclose(store(torch.from_numpy(codes)).numpy(), read, rtol=1e-6, atol=1e-6)
    assert {low, high} & set(expected.flatten().tolist())  # something was saturated


def test_halves_go_to_the_even_level():
    z = torch.tensor([[0.5, 1.5, 2.5, -0.5, -1.5, 3.5, 126.5, 127.5]])
    assert kept("int8:scale=1", 8).encode(z).tolist() == [[0, 2, 2, 0, -2, 4, 126, 127]]


@pytest.mark.parametrize(("kind", "lowest"), [("int8", -128), ("uint8", 0)])
def test_ranges_put_256_levels_on_each_feature(codes, ranges, kind, lowest):
    path, (low, high) = ranges
    store = kept(f"{kind}:ranges={path}")
    step = (high.astype("f8") - low) / 255
    with np.errstate(divide="ignore", invalid="ignore"):
        level = np.clip(np.rint((codes - low) / step.astype("f4")), 0, 255)
    level[:, 3] = 0
    assert np.array_equal(store.encode(torch.from_numpy(codes)).numpy(), (level + lowest).astype(kind))
    read = store(torch.from_numpy(codes)).numpy()
    np.testing.assert_allclose(read, low + step * level, rtol=1e-5, atol=1e-6)
    inside = (codes >= low) & (codes <= high)
    assert (np.abs(read - codes) <= step / 2 * (1 + 1e-4) + 1e-6)[inside].all()
    assert (read[:, 3] == 0.25).all()


def test_calibration_takes_all_rows(codes, tmp_path):
    np.save(tmp_path / "codes.npy", codes)
    own, named = (
        read_codes(codes, stored=Form.read(f"int8{text}")) for text in ("", f":calibration={tmp_path}/codes.npy")
    )
    np.save(tmp_path / "ends.npy", np.stack([codes.min(0), codes.max(0)]))
    stated = read_codes(codes, stored=Form.read(f"int8:ranges={tmp_path}/ends.npy"))
    assert own.fingerprint == named.fingerprint == stated.fingerprint
    signs = read_codes(codes, stored=Form.read(f"binary:calibration={tmp_path}/codes.npy")).codes[:]
    assert np.array_equal(signs.numpy() > 0, codes > codes.mean(0, dtype="f8").astype("f4"))


def test_bits_are_packed_as_numpy_does_and_compare_by_hamming_distance(codes):
    packed = np.packbits(codes > 0, axis=1)
    assert np.array_equal(kept("binary").encode(torch.from_numpy(codes)).numpy(), packed)
    read = read_codes(packed, stored=Form.read("binary")).codes[:]
    hamming = np.unpackbits(packed[:, None] ^ packed[None], axis=2).sum(2)
    assert np.array_equal(torch.cdist(read.double(), read.double()).square().round().numpy(), 4 * hamming)
    cosine = 1 - (read @ read.T).numpy() / WIDTH
    np.testing.assert_allclose(cosine, 2 * hamming / WIDTH, atol=1e-6)
    assert np.array_equal(read.numpy(), np.where(codes > 0, 1, -1))
    signed = (packed.astype("i2") - 128).astype("i1")  # as sentence-transformers packs them
    assert torch.equal(read_codes(signed, stored=Form.read("binary")).codes[:], read)


@pytest.mark.parametrize(
    "text", ["float32:first=5", "float16", "float16:first=5", "int8:scale=0.03", "binary:first=16"]
)
def test_a_stored_encoder_has_the_values_of_the_store_and_the_gradient_of_the_network(codes, text):
    store = kept(text)
    z = torch.from_numpy(codes).requires_grad_()
    out = store(z)
    assert torch.equal(out, store.decode(store.encode(z.detach()[:, : store.width])))
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(0))
    (gradient,) = torch.autograd.grad((out * weights).sum(), z)
    assert torch.equal(gradient[:, : store.width], weights)
    assert not gradient[:, store.width :].any()
    if text == "float16":
        assert np.array_equal(out.detach().numpy(), codes.astype("f2").astype("f4"))
    assert store.bytes == np.asarray(store.encode(z.detach()[:1, : store.width])).nbytes


@pytest.mark.parametrize("text", ["int8:scale=1", "binary", "float16"])
def test_nan_is_not_hidden(text):
    z = torch.zeros(2, 8)
    z[1, 2] = torch.nan
    out = kept(text, 8)(z)
    assert out[0].isfinite().all()
    assert out[1, 2].isnan()


def test_products_take_the_nearest_centre_of_each_part(codes, tmp_path):
    centres = np.random.default_rng(1).normal(size=(8, 16, 4)).astype("f4")
    np.save(tmp_path / "codebook.npy", centres)
    store = kept(f"pq:{tmp_path}/codebook.npy")
    parts = codes.reshape(ROWS, 8, 1, 4).astype("f8")
    nearest = np.square(parts - centres).sum(3).argmin(2)
    assert np.array_equal(store.encode(torch.from_numpy(codes)).numpy(), nearest)
    read = read_codes(nearest.astype("u1"), stored=Form.read(f"pq:{tmp_path}/codebook.npy")).codes[:]
    assert np.array_equal(read.numpy(), centres[np.arange(8), nearest].reshape(ROWS, WIDTH))
    with pytest.raises(OutOfRange, match="code"):
        read_codes(nearest.astype("u1") + 10, stored=Form.read(f"pq:{tmp_path}/codebook.npy"))


def test_integers_of_a_file_are_what_their_numbers_become(codes, ranges, tmp_path):
    path, _ = ranges
    for form, text in (("int8", f"int8:ranges={path}"), ("uint8", "uint8:scale=0.02,zero=128"), ("binary", "binary")):
        stored = kept(text).encode(torch.from_numpy(codes)).numpy()
        np.save(tmp_path / f"{form}.npy", stored)
        integers = read_codes(tmp_path / f"{form}.npy", stored=Form.read(text))
        numbers = read_codes(codes, stored=Form.read(text))
        assert stored.dtype == ("int8" if form == "int8" else "uint8")
        assert integers.fingerprint == numbers.fingerprint
        first = text + (",first=16" if ":" in text else ":first=16")
        cut = read_codes(tmp_path / f"{form}.npy", stored=Form.read(first)).codes[:]
        assert torch.equal(cut, numbers.codes[:][:, :16])


def test_columns_of_bytes_in_parquet(codes, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    levels = kept("int8:scale=0.03").encode(torch.from_numpy(codes)).numpy()
    ids = [f"i{row}" for row in range(ROWS)]
    table = pyarrow.table({"embedding": pyarrow.array(list(levels), pyarrow.list_(pyarrow.int8())), "id": ids})
    parquet.write_table(table, tmp_path / "codes.parquet", row_group_size=33)
    read = read_codes(tmp_path / "codes.parquet", stored=Form.read("int8:scale=0.03"))
    assert read.ids[7] == "i7"
    np.testing.assert_allclose(read.codes[:].numpy(), levels.astype("f4") * np.float32(0.03), rtol=1e-6)
    with pytest.raises(OutOfRange, match="int8"):
        read_codes(tmp_path / "codes.parquet")


def test_a_lance_column(codes, tmp_path):
    lance = pytest.importorskip("lance", reason="pylance is not installed")
    pyarrow = pytest.importorskip("pyarrow")
    vectors = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(codes.flatten()), WIDTH)
    table = pyarrow.table({"vector": vectors, "id": [f"i{row}" for row in range(ROWS)], "label": [0, 1] * 100})
    lance.write_dataset(table, str(tmp_path / "codes.lance"), max_rows_per_file=70)
    read = read_codes(tmp_path / "codes.lance")
    assert np.array_equal(read.codes[torch.arange(ROWS)].numpy(), codes)
    assert read.ids[-1] == f"i{ROWS - 1}"
    assert read.labels is not None
    assert read.labels.tolist() == [0, 1] * 100
    with pytest.raises(UnknownName):
        read_codes(tmp_path / "codes.lance", "other")
    (tmp_path / "empty.lance").mkdir()
    with pytest.raises(HoldfastError, match="Lance"):
        read_codes(tmp_path / "empty.lance")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("int8:scale=0", OutOfRange),
        ("int8:scale=-1", OutOfRange),
        ("int8:scale=nan", HoldfastError),
        ("int8:zero=3", Conflict),
        ("int8:scale=1,zero=200", OutOfRange),
        ("uint8:scale=1,zero=-1", OutOfRange),
        ("int8:scale=1,calibration=x.npy", Conflict),
        ("int4:scale=1", UnknownName),
        ("int8:steps=1", UnknownName),
        ("binary:threshold=1,calibration=x.npy", Conflict),
        ("pq", HoldfastError),
        ("float32:first=33", OutOfRange),
        ("float32:first=0", OutOfRange),
        ("binary:first=30", OutOfRange),
        ("pq:none.npy", HoldfastError),
        ("int8:ranges=none.npy", HoldfastError),
    ],
)
def test_settings_that_do_not_fit(text, kind):
    with pytest.raises(kind) as caught:
        kept(text)
    assert len(str(caught.value)) <= 240


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (np.stack([np.ones(WIDTH), np.zeros(WIDTH)]), "1 to 0"),
        (np.stack([np.zeros(WIDTH), np.full(WIDTH, np.nan)]), "NaN"),
        (np.zeros((2, 5)), "(2, 5)"),
        (np.zeros((2, WIDTH), "i4"), "int32"),
    ],
)
def test_ranges_that_are_none(tmp_path, values, said):
    np.save(tmp_path / "ranges.npy", values)
    with pytest.raises(OutOfRange) as caught:
        kept(f"int8:ranges={tmp_path}/ranges.npy")
    assert said in str(caught.value)


def test_rows_that_do_not_fit(codes, tmp_path):
    np.save(tmp_path / "codebook.npy", np.zeros((5, 16, 4), "f4"))
    for rows, text in (
        (codes.astype("i1"), "uint8:scale=1"),
        (codes.astype("i1"), "int8"),
        (codes.astype("i4"), "int8:scale=1"),
        (codes.astype("u1"), "float16"),
        (codes, f"pq:{tmp_path}/codebook.npy"),
        (np.where(np.arange(WIDTH) == 2, np.nan, codes), "int8:scale=1"),
        (np.zeros((0, 8), "u1"), "binary"),
    ):
        with pytest.raises(HoldfastError) as caught:
            read_codes(rows, stored=Form.read(text))
        assert len(str(caught.value)) <= 240, caught.value
    with pytest.raises(OutOfRange):
        read_codes(codes.astype("i1"))


def test_the_text_of_a_form_is_read_back():
    for text in ("float16", "int8:scale=0.03,zero=5", "binary:threshold=0.5,first=8", "uint8:ranges=a.npy", "pq:c.npy"):
        assert str(Form.read(text)) == text
    assert set(FORMS) == {"float32", "float16", "int8", "uint8", "binary", "pq"}
