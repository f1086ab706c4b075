"""Index files of FAISS, which are read without it: FAISS itself writes them and says what they hold."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import torch

from holdfast.core.errors import HoldfastError, OutOfRange, Unreadable
from holdfast.data.codes import faiss_files
from holdfast.data.codes.codes import read_codes
from holdfast.data.codes.forms import Form

faiss = pytest.importorskip("faiss", reason="faiss-cpu is not installed")
faiss.omp_set_num_threads(1)  # its threads wait for one another where other work has the cores
ROWS, WIDTH = 400, 32


@pytest.fixture(scope="module")
def codes():
    return np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype("f4")


@pytest.fixture
def write(tmp_path):
    def to(index):
        faiss.write_index(index, str(tmp_path / "codes.faiss"))
        return tmp_path / "codes.faiss"

    return to


def trained(factory, codes):
    """An index of these vectors, whose centres are of little use after one step."""
    index = faiss.index_factory(WIDTH, factory)
    if hasattr(index, "pq"):
        index.pq.cp.niter = 1
    index.train(codes)
    return index


def held(path):
    """What FAISS reads, in the order of ids."""
    return faiss.read_index(str(path)).reconstruct_n(0, ROWS)


@pytest.mark.parametrize("metric", [faiss.METRIC_L2, faiss.METRIC_INNER_PRODUCT, faiss.METRIC_Lp, faiss.METRIC_L1])
def test_flat(codes, write, metric):
    index = faiss.IndexFlat(WIDTH, metric)
    index.add(codes)
    read = read_codes(write(index))
    assert read.positions
    assert np.array_equal(read.codes[:].numpy(), held(write(index)))
    assert np.array_equal(read.codes[torch.tensor([5, 2])].numpy(), codes[[5, 2]])


@pytest.mark.parametrize("lists", [1, 7, 300])
@pytest.mark.parametrize("ids", [None, np.random.default_rng(1).permutation(ROWS), np.arange(ROWS) * 3 + 5])
@pytest.mark.parametrize("direct", ["no", "array", "hash"])
def test_inverted_lists(codes, write, lists, ids, direct):
    index = faiss.IndexIVFFlat(faiss.IndexFlatL2(WIDTH), WIDTH, lists)
    index.cp.min_points_per_centroid = 1
    index.train(codes)
    if direct == "hash":
        index.set_direct_map_type(faiss.DirectMap.Hashtable)
    index.add(codes) if ids is None else index.add_with_ids(codes, ids)
    if direct == "array" and ids is None:
        index.make_direct_map()
    read = read_codes(write(index))
    stated = np.arange(ROWS) if ids is None else ids
    assert read.ids == tuple(map(str, sorted(stated)))
    assert read.positions == (sorted(stated) == list(range(ROWS)))
    assert np.array_equal(read.codes[:].numpy(), codes[np.argsort(stated)])
    assert read.fingerprint


@pytest.mark.parametrize("kind", [faiss.IndexIDMap, faiss.IndexIDMap2])
@pytest.mark.parametrize("inner", ["Flat", "IVF5,Flat", "PQ8"])
def test_id_maps(codes, write, kind, inner):
    base = trained(inner, codes)
    index = kind(base)
    ids = np.random.default_rng(2).permutation(ROWS) + 1000
    index.add_with_ids(codes, ids)
    read = read_codes(write(index))
    assert read.ids == tuple(map(str, sorted(ids)))
    expected = codes if "PQ" not in inner else base.reconstruct_n(0, ROWS)
    assert np.array_equal(read.codes[:].numpy(), expected[np.argsort(ids)])


def test_product_quantisation(codes, write):
    index = trained("PQ8", codes)
    index.add(codes)
    path = write(index)
    assert np.array_equal(read_codes(path).codes[:].numpy(), held(path))
    store = Form.read(f"pq:{path}").fitted(WIDTH, lambda _: [])
    ours, theirs = store.encode(torch.from_numpy(codes)).numpy(), index.pq.compute_codes(codes)
    # Rounding decides where two centres are equally near.
    apart = [np.square(codes - store.decode(torch.from_numpy(each)).numpy()).sum(1) for each in (ours, theirs)]
    np.testing.assert_allclose(apart[0], apart[1], rtol=1e-5)
    assert (ours != theirs).mean() < 1e-3
    np.save(path.with_suffix(".npy"), theirs)
    assert np.array_equal(read_codes(path.with_suffix(".npy"), stored=Form.read(f"pq:{path}")).codes[:], held(path))


def test_the_scalar_quantiser_is_ours_half_a_step_up(codes, tmp_path):
    quantiser = faiss.ScalarQuantizer(WIDTH, faiss.ScalarQuantizer.QT_8bit)
    quantiser.train(codes)
    theirs = quantiser.compute_codes(codes)
    low, extent = faiss.vector_to_array(quantiser.trained).reshape(2, WIDTH)
    np.testing.assert_allclose(low, codes.min(0), rtol=1e-5)
    # It cuts fractions off and adds half a step when it decodes.
    np.save(tmp_path / "ranges.npy", np.stack([low, low + extent]) + extent / 255 / 2)
    np.save(tmp_path / "codes.npy", theirs)
    read = read_codes(tmp_path / "codes.npy", stored=Form.read(f"uint8:ranges={tmp_path}/ranges.npy")).codes[:]
    np.testing.assert_allclose(read.numpy(), quantiser.decode(theirs), rtol=1e-5, atol=1e-6)
    np.save(tmp_path / "ends.npy", np.stack([low, low + extent]))
    ours = Form.read(f"uint8:ranges={tmp_path}/ends.npy").fitted(WIDTH, lambda _: []).encode(torch.from_numpy(codes))
    difference = ours.numpy().astype(int) - theirs
    assert set(np.unique(difference)) <= {0, 1}  # rounded against cut off


def test_hamming_distances_of_faiss(codes):
    packed = np.packbits(codes > 0, axis=1)
    index = faiss.IndexBinaryFlat(WIDTH)
    index.add(packed)
    distances, _ = index.search(packed[:20], ROWS)
    read = read_codes(packed, stored=Form.read("binary")).codes[:]
    ours = torch.cdist(read[:20].double(), read.double()).square().div(4).round().sort(1).values
    assert np.array_equal(ours.numpy(), distances)


@pytest.mark.parametrize(
    ("factory", "name"),
    [
        ("HNSW8", "IndexHNSWFlat"),
        ("SQ8", "IndexScalarQuantizer"),
        ("L2norm,Flat", "IndexPreTransform"),
        ("IVF4,PQ4", "IndexIVFPQ"),
        ("IVF4,SQ8", "IndexIVFScalarQuantizer"),
        ("PQ4x6", "6 bits"),
    ],
)
def test_other_classes_are_refused_by_name(codes, write, factory, name):
    index = trained(factory, codes)
    index.add(codes)
    with pytest.raises(OutOfRange) as caught:
        read_codes(write(index))
    assert name in str(caught.value)
    assert len(str(caught.value)) <= 240


@pytest.mark.parametrize("factory", ["Flat", "IVF9,Flat", "PQ8", "IDMap,Flat"])
def test_damaged_files_are_refused(codes, write, factory):
    index = trained(factory, codes)
    index.add_with_ids(codes, np.arange(ROWS)) if factory.startswith("IDMap") else index.add(codes)
    path = write(index)
    whole = path.read_bytes()
    for length in (1, 4, 20, 45, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(HoldfastError):
            faiss_files.read(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(Unreadable):
        faiss_files.read(path)
    for width, count in ((-1, 5), (1 << 30, 1 << 40), (WIDTH, ROWS + 1), (WIDTH + 1, ROWS), (0, ROWS), (WIDTH, -1)):
        path.write_bytes(whole[:4] + struct.pack("<iq", width, count) + whole[16:])
        with pytest.raises(HoldfastError):
            faiss_files.read(path)
    rng = np.random.default_rng(0)
    for _ in range(300):  # flipped bytes of the head raise our own error or change values only
        damaged = bytearray(whole)
        for place in rng.integers(0, 120, 3):
            damaged[place] = rng.integers(256)
        path.write_bytes(damaged)
        try:
            faiss_files.read(path)
        except HoldfastError:
            continue


def test_an_empty_index_is_refused(write):
    with pytest.raises(Unreadable):
        faiss_files.read(write(faiss.IndexFlatL2(WIDTH)))


def test_a_codebook_needs_no_vectors(codes, write):
    index = trained("PQ8", codes)
    empty = faiss_files.codebook(write(index))
    assert np.array_equal(empty, faiss.vector_to_array(index.pq.centroids).reshape(8, 256, WIDTH // 8))
    index.add(codes)
    assert np.array_equal(faiss_files.codebook(write(index)), empty)
