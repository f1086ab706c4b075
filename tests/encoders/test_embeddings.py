"""Codes that were computed elsewhere: read from every kind of file, and measured as their encoder would be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import holdfast as hf
from holdfast.core.encoder import Domain
from holdfast.core.errors import HoldfastError, HoldfastWarning
from holdfast.core.images import Images
from holdfast.data.by_name import Selection
from holdfast.data.codes.codes import load, read_codes
from holdfast.geometry.evaluations.geometry import SpaceGeometry
from holdfast.measure.evaluation import answerable
from holdfast.run.catalog import evaluations
from tests import facts
from tests.facts import warned

ROWS, WIDTH = 60, 6
IDS = [f"s{row // 3}_{row}" for row in range(ROWS)]


@pytest.fixture(scope="module")
def codes():
    return np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype("f4")


@pytest.fixture
def files(tmp_path, codes):
    import pyarrow
    import pyarrow.parquet

    labels = ["ab"[row % 2] for row in range(ROWS)]
    np.save(tmp_path / "codes.npy", codes)
    np.savez(tmp_path / "codes.npz", codes=codes, ids=np.array(IDS), labels=np.array(labels))
    table = pyarrow.table({"embedding": list(codes), "id": IDS, "label": labels})
    pyarrow.parquet.write_table(table, tmp_path / "codes.parquet", row_group_size=7)
    (tmp_path / "ids.txt").write_text("\n".join(IDS))
    (tmp_path / "labels.txt").write_text("\n".join(labels))
    (tmp_path / "tags.csv").write_text("\n".join(f"{name},{row // 2 % 2}" for row, name in enumerate(IDS)))
    return tmp_path


def test_every_kind_of_file_holds_the_same_codes(files, codes):
    beside = {"ids": files / "ids.txt", "labels": files / "labels.txt"}
    read = [
        read_codes(files / "codes.npy", **beside),
        *(read_codes(files / f"codes.{end}") for end in ("npz", "parquet")),
    ]
    for stored in read:
        assert torch.equal(stored.of(["s3_9", "s0_1"]), torch.tensor(codes[[9, 1]]))
        assert (stored.ids, stored.classes, stored.labels is not None and stored.labels.tolist()[:3]) == (
            tuple(IDS),
            ("a", "b"),
            [0, 1, 0],
        )
    assert len({(stored.fingerprint, stored.images().fingerprint) for stored in read}) == 1
    assert read_codes(codes + 1, ids=IDS).fingerprint != read[0].fingerprint
    assert (
        read_codes(codes + 1, ids=IDS).images().fingerprint == read[0].images().fingerprint
    )  # so they can be compared


BAD = {
    "1 of 60 embeddings of embeddings hold NaN or infinity, row 7": lambda z: read_codes(
        np.where(np.arange(60)[:, None] == 7, np.nan, z)
    ),
    "distinct, got 'a' twice": lambda z: read_codes(z, ids=["a"] * 60),
    "60 embeddings but 2 ids": lambda z: read_codes(z, ids=["a", "b"]),
    "labels of embeddings are missing for row 3": lambda z: read_codes(z, labels=[0, 1, 2, None] * 15),
    "shape \\(n, d\\)": lambda z: read_codes(z[0]),
    "must be float16, float32, float64, got torch.int64": lambda z: read_codes(z.astype(int)),
    "no file 'nothing.npy'": lambda z: read_codes("nothing.npy"),
    "60 embeddings but 5 inputs": lambda z: read_codes(z, inputs=z[:5]),
    "ids are named 'nothing.txt', which is no file": lambda z: read_codes(z, ids="nothing.txt"),
    "has no embedding for 1 of 2 images, 'new'": lambda z: read_codes(z, ids=IDS).of([IDS[0], "new"]),
    "has no ids": lambda z: read_codes(z).of(["photo.png"]),
    "groups of embeddings are missing for row 0": lambda z: read_codes(z, groups=[""] * 60),
}


@pytest.mark.parametrize("said", BAD)
def test_bad_codes_are_refused_in_one_sentence(codes, said):
    with pytest.raises(HoldfastError, match=said) as refused:
        BAD[said](codes)
    assert "\n" not in str(refused.value)


def test_a_parquet_of_two_widths_is_refused(tmp_path):
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"embedding": [[1.0, 2.0], [1.0]]}), tmp_path / "codes.parquet")
    with pytest.raises(HoldfastError, match=r"codes\.parquet .*\b1, 2$"):
        read_codes(tmp_path / "codes.parquet")


def test_codes_alone_answer_what_looks_at_codes_alone(codes):
    def asked(embeddings):
        known = embeddings.images()
        return {name for name, kind in evaluations().items() if answerable(kind(), embeddings, known)}

    assert asked(hf.Embeddings(codes)) == {"geometry", "probe-accuracy", "sites"}
    assert asked(hf.Embeddings(codes, inputs=codes**2)) == {"geometry", "probe-accuracy", "sites", "spade"}
    encoder = hf.load_encoder("builtin:digits-random")
    assert all(answerable(kind(), encoder, Images(torch.rand(2, 1, 8, 8))) for kind in evaluations().values())


def test_probes_that_change_images_cannot_be_asked(codes):
    from holdfast.probes.base import Probe
    from holdfast.probes.evaluations.probe_accuracy import ProbeAccuracy

    embeddings = hf.Embeddings(codes)
    assert not answerable(
        ProbeAccuracy(probes=(Probe.read("knn"), Probe.read("noise"))), embeddings, embeddings.images()
    )


@pytest.mark.slow
def test_stored_codes_have_the_numbers_of_their_encoder(tmp_path):
    encoder = hf.load_encoder("builtin:digits-random")
    images = hf.load_images("builtin:digits", encoder, limit=80)
    stored = hf.Embeddings(encoder(images.pixels(range(80))).numpy(), ids=images.ids, name="stored")
    wanted = {"geometry": {"samples": 80}, "spade": {"samples": 80, "subsets": 0, "certify": False}}
    with warned(HoldfastWarning, "stored", "displacement"):
        run = hf.evaluate(
            [encoder, stored],
            images,
            only=["geometry", "spade", "displacement"],
            settings={**wanted, "displacement": {"samples": 2, "attacks": ["square:queries=2"], "balls": ["linf:0.1"]}},
            out=tmp_path,
        )
    assert not run.failures
    assert {result.evaluation for result in run if result.encoder.name == "stored"} == {"geometry", "spade"}
    for evaluation in wanted:
        own, other = run[evaluation, encoder.name], run[evaluation, "stored"]
        assert other.images.fingerprint == own.images.fingerprint  # paired in every table
        for a, b in zip(own.estimates, other.estimates, strict=True):
            np.testing.assert_allclose([b.value, b.low, b.high], [a.value, a.low, a.high], rtol=1e-5)


def test_a_reference_and_an_array_are_measured_alike(files, codes):
    beside = f"ids={files}/ids.txt&labels={files}/labels.txt&tags={files}/tags.csv&groups=prefix"
    reference = f"embeddings:{files}/codes.npy?{beside}"
    array = hf.Embeddings(
        codes,
        ids=IDS,
        labels=[row % 2 for row in range(ROWS)],
        tags=files / "tags.csv",
        groups=[name.partition("_")[0] for name in IDS],
        name="array",
    )
    with pytest.warns(HoldfastWarning, match="cannot answer"):
        run, again = hf.evaluate(reference), hf.evaluate(array)
    first, second = run["geometry"], again["geometry"]
    numbers = [[(e.quantity, e.value, e.low, e.high) for e in result.estimates] for result in (first, second)]
    np.testing.assert_equal(numbers[0], numbers[1])
    assert {"robustness_index", "tag_margin", "tag_led_share"} <= {estimate.quantity for estimate in first.estimates}


@pytest.mark.parametrize(
    ("given", "numbers", "classes"),
    [
        ([3, 1, 3], [3, 1, 3], ()),
        ([3.0, 1.0, 3.0], [3, 1, 3], ()),  # as pandas stores whole numbers once any was missing
        (["3.0", "1.0", "-2"], [3, 1, -2], ()),
        (["nan", "inf", "bread"], [2, 1, 0], ("bread", "inf", "nan")),
        (["1_0", "10", "2"], [1, 0, 2], ("10", "1_0", "2")),
        ([True, False, True], [1, 0, 1], ("False", "True")),
        ([2**60 + 1, 5, 5], [2**60 + 1, 5, 5], ()),
        ([2**64 - 1, 5, 5], [0, 1, 1], ("18446744073709551615", "5")),
    ],
)
def test_labels_are_whole_numbers_or_names(given, numbers, classes):
    stored = read_codes(np.eye(3), labels=given)
    assert stored.labels is not None
    assert (stored.labels.tolist(), stored.classes) == (numbers, classes)


MISSING = [float("nan"), np.float32("nan"), None, "", " "]
FRACTIONS = [0.5, float("inf"), -float("inf")]


@pytest.mark.parametrize("value", [*MISSING, *FRACTIONS])
def test_a_label_that_is_missing_or_no_class_is_refused(value):
    with pytest.raises(HoldfastError, match=r"labels .*row 1"):
        read_codes(np.eye(3), labels=[1.0, value, 2.0])


@pytest.mark.parametrize("value", [*MISSING, *FRACTIONS])
def test_numbers_in_text_are_no_names_where_one_is_missing(value, tmp_path):
    (tmp_path / "labels.txt").write_text(f"1.0\n{value}\n2.0\n")
    if value is None:
        return  # a word like others
    with pytest.raises(HoldfastError, match=r"labels .*row 1"):
        read_codes(np.eye(3), labels=tmp_path / "labels.txt")


@pytest.mark.parametrize("what", ["ids", "groups"])
def test_ids_and_groups_that_are_missing_are_no_names(what):
    given: dict[str, Any] = {what: [1.0, float("nan"), 2.0]}
    with pytest.raises(HoldfastError, match=rf"{what} .*row 1"):
        read_codes(np.eye(3), **given)


@pytest.mark.parametrize("value", [float("nan"), None, 0.5])
def test_a_column_of_labels_that_nobody_named_is_left_out_with_a_warning(value, tmp_path):
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table({"embedding": list(np.eye(3)), "label": [0.0, value, 1.0]})
    pyarrow.parquet.write_table(table, tmp_path / "codes.parquet")
    with pytest.warns(HoldfastWarning, match=r"label.*row 1"):
        assert read_codes(tmp_path / "codes.parquet").labels is None
    with pytest.raises(HoldfastError, match=r"label.*row 1"):
        read_codes(tmp_path / "codes.parquet", labels="label")


def test_labels_are_stated_once_for_all_codes_of_the_same_images(codes):
    first, second = (
        hf.Embeddings(codes, ids=IDS, labels=np.arange(ROWS) % 2, name="a"),
        hf.Embeddings(codes[::-1].copy(), ids=IDS[::-1], name="b"),
    )
    images = second.images(others=[first.stored])
    assert images.labels is not None
    assert images.labels.tolist() == [row % 2 for row in range(ROWS)][::-1]
    assert second.images(others=[read_codes(codes, labels=[0] * ROWS)]).labels is None  # of other ids


def test_a_bank_of_codes_teaches_probes(files, codes):
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 2, ROWS)
    apart = codes + 16 * np.eye(WIDTH)[labels]
    np.savez(files / "bank.npz", codes=apart.astype("f4"), labels=labels)
    measured = hf.Embeddings(apart.astype("f4") + 0.01, labels=labels, name="measured")
    run = hf.evaluate(measured, bank=f"embeddings:{files}/bank.npz", only="probe-accuracy")
    assert run["probe-accuracy"].estimate("top1_accuracy", probe="knn").value == 1


def test_other_verbs_name_what_is_missing(codes):
    for call in (lambda e: hf.doctor(e), lambda e: hf.attack(e, torch.rand(2, 6), hf.Linf(0.1))):
        with pytest.raises(HoldfastError, match="embeddings alone"):
            call(hf.Embeddings(codes))
    with pytest.raises(HoldfastError, match="cannot answer breakaway"):
        hf.evaluate(hf.Embeddings(codes), only="breakaway")


def test_a_bank_of_another_width_is_refused(files):
    with facts.refused(HoldfastError, "6 features", "embeddings", "encoder"):
        load(str(files / "codes.npy"), {}, Selection(Domain((9,))))


def test_one_class_is_no_contrast_to_a_tag(files, codes):
    from holdfast.geometry.sphere import Tags

    embeddings = hf.Embeddings(codes, ids=IDS, labels=[0] * ROWS)
    with facts.refused(HoldfastError, "all images"):
        SpaceGeometry(tags=Tags.read(str(files / "tags.csv")))(embeddings, embeddings.images())


def test_ids_of_another_number_are_refused_and_not_overlooked(tmp_path, codes):
    np.savez(tmp_path / "short.npz", codes=codes, ids=[f"image{row}" for row in range(len(codes) - 1)])
    with pytest.raises(HoldfastError, match=rf"short.npz holds {len(codes)} embeddings but {len(codes) - 1} ids"):
        hf.Embeddings(tmp_path / "short.npz")


def test_files_of_different_images_are_said_to_stand_apart(codes):
    one, other = (hf.Embeddings(codes, ids=[f"{name}{row}" for row in range(len(codes))], name=name) for name in "ab")
    with pytest.warns(HoldfastWarning, match=r"^a and b .*\b0 ids"):
        hf.evaluate([one, other], only="geometry")


def test_codes_of_images_are_found_by_id_wherever_they_stand():
    """Five rows of a file in another order than the images, and one of an image that is not asked for."""
    originals, order = Images(torch.rand(5, 1, 2, 2), [f"image {k}" for k in range(5)]), [3, 0, 4, 1, 2]
    rows = torch.arange(18.0).reshape(6, 3)
    stored = hf.Embeddings(rows[[*order, 5]], ids=[*(originals.ids[k] for k in order), "another"])
    assert torch.equal(stored.images(originals).pixels(range(5)), rows[:5])
    assert torch.equal(stored.stored.of(originals.ids), rows[:5])
