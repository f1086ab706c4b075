"""Proofs in the folder of a run: they hold as they are, and no longer once anything in the folder was changed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import holdfast as hf
from holdfast.bounds.proofs.proof import PlainNetwork, Proof, Step
from holdfast.bounds.proofs.proof_files import packed, unpacked
from holdfast.cli.app import run as command
from holdfast.core.encoder import Domain
from tests.cli.modules import linear, weights
from tests.facts import refused, says
from tests.samples import digits

ENCODER, IMAGES = "builtin:digits-contrastive", "builtin:digits"
QUICK: dict[str, Any] = {"attack": "pgd:steps=3", "negatives": 3, "limit": 5, "eps": "8/255"}


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run with proofs, which tests copy."""
    folder = tmp_path_factory.mktemp("certify") / "out"
    hf.certify(ENCODER, IMAGES, **QUICK, method="alpha:steps=5,inner=3", proofs=True, out=folder)
    return folder


@pytest.fixture
def folder(run, tmp_path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "copy"))


def index(folder: Path) -> Any:
    return json.loads((folder / "proofs/index.json").read_text())


def rewrite(folder: Path, name: str, change: Callable[[dict[str, Any]], object], seal: bool = True) -> None:
    """Change the arrays of the proof of the image ``name``, and its checksum as well if it is to be sealed again."""
    known = index(folder)
    entry = known["images"][name]
    arrays = unpacked((folder / entry["file"]).read_bytes())
    change(arrays)
    content = packed(arrays)
    (folder / entry["file"]).write_bytes(content)
    if seal:
        entry["sha256"] = sha256(content).hexdigest()
        (folder / "proofs/index.json").write_text(json.dumps(known))


def first(folder: Path) -> str:
    return next(iter(index(folder)["images"]))


def verdict(folder: Path, name: str) -> tuple[bool, str]:
    (result,) = [each for each in hf.recheck(folder) if each.id == name]
    return result.holds, result.reason


def test_every_certificate_holds_and_is_of_the_encoder_and_the_images(run):
    results = hf.recheck(run, ENCODER, IMAGES)
    assert len(results) == 5
    assert all(result.holds and result.bound > 0 and not result.unchecked for result in results)
    alone = hf.recheck(run)
    assert {result.unchecked for result in alone} == {("network", "pixels", "negatives")}
    assert tuple(replace(result, unchecked=()) for result in alone) == results
    record = json.loads((run / "certify.json").read_text())
    for result, certificate in zip(results, record["certificates"], strict=True):
        assert result.bound <= certificate["bound"] + 1e-9 or result.bound == pytest.approx(
            certificate["bound"], rel=0.1
        )


def test_a_changed_file_is_not_looked_into(folder):
    name = first(folder)
    rewrite(folder, name, lambda arrays: arrays.update(eps=arrays["eps"] / 2), seal=False)
    assert verdict(folder, name) == (False, "its file is not the one that was written")


def slopes(value: float) -> Callable[[dict[str, Any]], None]:
    def change(arrays: dict[str, Any]) -> None:
        for name, values in arrays.items():
            if name.startswith(("slopes.", "leaves.slopes.")) or (".slopes." in name and name.endswith(".data")):
                arrays[name] = np.full_like(values, value)

    return change


def without_leaf(arrays: dict[str, Any]) -> None:
    for name in arrays:
        if name.startswith("leaves."):
            arrays[name] = arrays[name][1:]


def renamed(arrays: dict[str, Any]) -> None:
    meta = json.loads(str(arrays["meta"]))
    arrays["meta"] = np.array(json.dumps({**meta, "anchor": "digits/0"}))


def edit_record(folder: Path, change: Callable[[Any], object]) -> None:
    record = json.loads((folder / "certify.json").read_text())
    change(record)
    (folder / "certify.json").write_text(json.dumps(record))


def edit_network(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Change the arrays of the network and seal its file again."""

    def forge(folder: Path) -> None:
        arrays = unpacked((folder / "proofs/network.npz").read_bytes())
        change(arrays)
        content = packed(arrays)
        (folder / "proofs/network.npz").write_bytes(content)
        known = index(folder) | {"network": sha256(content).hexdigest()}
        (folder / "proofs/index.json").write_text(json.dumps(known))

    return forge


def twice_the_embedding(arrays: dict[str, Any]) -> None:
    """Which changes no sign of ``W f``."""
    last = len(json.loads(str(arrays["steps"]))) - 1
    for name in arrays:
        if name.startswith(f"{last}.") and name.endswith((".data", ".offset")):
            arrays[name] = arrays[name] * 2


def edit_metas(folder: Path, change: Callable[[Any], object]) -> None:
    def edited(arrays: dict[str, Any]) -> None:
        meta = json.loads(str(arrays["meta"]))
        change(meta)
        arrays["meta"] = np.array(json.dumps(meta))

    for name in index(folder)["images"]:
        rewrite(folder, name, edited)


def rename(folder: Path) -> None:
    """Call all images otherwise in all files, and leave out nothing but hashes."""

    def other(name: str) -> str:
        return name.replace("digits", "photos")

    edit_metas(
        folder, lambda meta: meta.update(anchor=other(meta["anchor"]), negatives=list(map(other, meta["negatives"])))
    )
    known = index(folder)
    known["images"] = {other(name): entry for name, entry in known["images"].items()}
    (folder / "proofs/index.json").write_text(json.dumps(known))

    def change(record: Any) -> None:
        for each in record["certificates"]:
            each["id"], each["negative"] = other(each["id"]), other(each["negative"])

    edit_record(folder, change)


def shifted(arrays: dict[str, Any]) -> None:
    """The same in the image and in its negatives, so that no bound changes much."""
    arrays["anchor"], arrays["negatives"] = (np.clip(arrays[n] + 1e-13, 0, 1) for n in ("anchor", "negatives"))


def shift(folder: Path) -> None:
    for name in index(folder)["images"]:
        rewrite(folder, name, shifted)


def of_the_record(*path: str, value: str = "0") -> Callable[[Path], None]:
    def change(record: Any) -> None:
        for key in path[:-1]:
            record = record[key]
        record[path[-1]] = value

    return lambda folder: edit_record(folder, change)


FORGERIES: dict[str, Callable[[Path], None]] = {
    "weights": edit_network(twice_the_embedding),
    "range": edit_network(lambda arrays: arrays.update(range=np.array([-1e-13, 1.0]))),
    "names": rename,
    "pixels": shift,
    "encoder": of_the_record("encoder", "fingerprint"),
    "encoder's name": of_the_record("encoder", "name"),
    "images": of_the_record("images", "fingerprint"),
    "images' name": of_the_record("images", "name"),
    "seed": of_the_record("settings", "seed", value="1"),
    "method": of_the_record("settings", "method", value="crown"),
    "hash of the network": of_the_record("network"),
    "no hash of the network": of_the_record("network", value=""),
    "no hashes in proofs": lambda folder: edit_metas(folder, lambda meta: meta.pop("subject")),
    "other run in proofs": lambda folder: edit_metas(
        folder, lambda meta: meta["subject"]["run"].update({"encoder.fingerprint": "0"})
    ),
}


@pytest.mark.parametrize("what", FORGERIES)
def test_a_folder_whose_files_disagree_is_rejected_without_the_encoder(folder: Path, what: str) -> None:
    FORGERIES[what](folder)
    results = hf.recheck(folder)
    assert len(results) == 5
    assert not any(result.holds for result in results)


def test_folders_without_hashes_hold_with_a_warning(folder: Path) -> None:
    edit_metas(folder, lambda meta: meta.pop("subject"))

    def without(record: Any) -> None:
        del record["network"]
        for each in record["certificates"]:
            del each["pixels"]

    edit_record(folder, without)
    with pytest.warns(hf.HoldfastWarning, match="5 of 5"):
        results = hf.recheck(folder)
    assert all(result.holds and "hashes" in result.unchecked for result in results)


def test_a_subject_that_is_none_is_damage(folder: Path) -> None:
    edit_metas(folder, lambda meta: meta.update(subject=[1]))
    assert not any(result.holds for result in hf.recheck(folder))


def with_fewer_negatives(arrays: dict[str, Any]) -> None:
    meta = json.loads(str(arrays["meta"]))
    arrays["meta"] = np.array(json.dumps({**meta, "negatives": meta["negatives"][:-1]}))


def by_integers(arrays: dict[str, Any]) -> None:
    name = next(name for name in arrays if name.startswith("leaves.slopes."))
    arrays[name] = arrays[name].astype(np.int8)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (slopes(1.5), "lower slope outside of [0, 1]"),
        (without_leaf, "do not cover the ball"),
        (lambda arrays: arrays.update(eps=arrays["eps"] * 2), "it is for radius"),
        (lambda arrays: arrays.update(anchor=arrays["negatives"][0]), "is not"),
        (renamed, "it is about 'digits/0'"),
        (with_fewer_negatives, "it is about 2 negatives, not the 3"),
        (lambda arrays: arrays.pop("anchor"), "a proof is damaged"),
        (by_integers, "is of int8, not of float64"),
    ],
    ids=["slope", "subdomain", "radius", "anchor", "name", "negatives", "part", "integers"],
)
def test_what_was_tampered_with_and_sealed_again_is_rejected(folder, change, expected):
    name = first(folder)
    rewrite(folder, name, change)
    holds, reason = verdict(folder, name)
    assert not holds
    assert expected in reason
    assert all(result.holds for result in hf.recheck(folder) if result.id != name)


def test_a_larger_radius_in_record_and_proof_is_rejected(folder):
    record = json.loads((folder / "certify.json").read_text())
    record["settings"]["ball"] = "linf:0.25"
    (folder / "certify.json").write_text(json.dumps(record))
    for name in index(folder)["images"]:
        rewrite(folder, name, lambda arrays: arrays.update(eps=np.array(0.25)))
    results = hf.recheck(folder)
    assert results
    assert not any(result.holds for result in results)


def test_swapped_proofs_are_rejected(folder):
    known = index(folder)
    one, two = list(known["images"])[:2]
    known["images"][one], known["images"][two] = known["images"][two], known["images"][one]
    (folder / "proofs/index.json").write_text(json.dumps(known))
    for name in (one, two):
        holds, reason = verdict(folder, name)
        assert not holds
        assert "it is about" in reason


@pytest.mark.slow
def test_pixels_of_other_images_are_known_by_the_images(folder):
    name = first(folder)
    rewrite(folder, name, lambda arrays: arrays.update(anchor=np.clip(arrays["anchor"] + 1e-6, 0, 1)))
    results = {result.id: result for result in hf.recheck(folder, ENCODER, IMAGES)}
    assert says(results[name].reason, "pixels", "names")


@pytest.mark.slow
def test_another_network_is_refused(folder):
    with refused(hf.HoldfastError, "not the encoder"):
        hf.recheck(folder, "builtin:digits-robust", IMAGES)
    with refused(hf.HoldfastError, "both the encoder"):
        hf.recheck(folder, ENCODER)
    network = unpacked((folder / "proofs/network.npz").read_bytes())
    network["1.0.data"] = network["1.0.data"] * 1.5
    content = packed(network)
    (folder / "proofs/network.npz").write_bytes(content)
    with refused(hf.HoldfastError, "not the file"):
        hf.recheck(folder)
    (folder / "proofs/index.json").write_text(json.dumps({**index(folder), "network": sha256(content).hexdigest()}))
    with refused(hf.HoldfastError, "something else"):
        hf.recheck(folder, ENCODER, IMAGES)


@pytest.mark.slow
def test_the_command_says_what_holds(folder, capsys):
    assert command(["certify", "--recheck", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "5 of 5 certificates hold" in out
    assert "Not checked" in out
    rewrite(folder, first(folder), slopes(-1.0))
    assert command(["certify", ENCODER, "--images", IMAGES, "--recheck", str(folder)]) == 1
    out = capsys.readouterr().out
    assert f"{first(folder)}: REJECTED (it has a lower slope outside of [0, 1]" in out
    assert f"4 of 5 certificates hold, of {ENCODER} on {IMAGES}" in out
    assert "Not checked" not in out
    assert command(["certify", "--recheck", "nowhere"]) == 2


def test_an_encoder_that_needs_an_architecture_is_checked_again(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    torch.save(weights(linear()), "linear.pt")
    named = ["checkpoint:linear.pt", "--images", IMAGES, "--arch", "tests.cli.modules:linear"]
    settings = ["--attack", "pgd:steps=3", "--negatives", "3", "--limit", "5", "--eps", "1e-4"]
    assert command(["certify", *named, *settings, "--proofs", "--out", "o"]) == 0
    capsys.readouterr()
    assert command(["certify", *named, "--recheck", "o"]) == 0
    out = capsys.readouterr().out
    assert "certificates hold, of checkpoint:linear.pt" in out
    assert "0 of 0" not in out


def test_what_says_how_to_load_needs_an_encoder(run):
    with refused(hf.HoldfastError, "load an encoder"):
        hf.recheck(run, size=8)
    with pytest.raises(hf.HoldfastError, match=r"size.*digits-contrastive"):
        hf.recheck(run, hf.load_encoder(ENCODER), IMAGES, size=8)


@pytest.mark.parametrize("name", ["certify.json", "proofs/index.json"])
@pytest.mark.parametrize("content", [b"{", b"\xff", b"{}", b"[1]", b"null", b'{"images": {"digits/1": {"file": "x"}}}'])
def test_a_damaged_list_is_said_as_such(folder, name, content, capsys):
    (folder / name).write_bytes(content)
    assert command(["certify", "--recheck", str(folder)]) == 2
    said = capsys.readouterr().err
    assert str(folder / name) in said
    assert "--proofs" in said


@pytest.mark.parametrize(
    ("instead", "flags", "idle"),
    [
        ("--recheck", ["--eps", "8/255", "--seed", "1"], "--eps, --seed"),
        ("--recheck", ["--out", "o"], "--out"),
        ("--recheck", ["--vnnlib", "instances.csv"], "--recheck"),
        ("--vnnlib", [ENCODER, "--limit", "60"], "ENCODER, --limit"),
        ("--vnnlib", ["--proofs", "--size", "8"], "--size, --proofs"),
    ],
)
def test_flags_that_would_change_nothing_are_refused_by_name(instead, flags, idle, capsys):
    assert command(["certify", instead, "nowhere", *flags]) == 2
    assert f"{idle} would" in capsys.readouterr().err


def swap_network(folder: Path, change: Callable[[PlainNetwork], PlainNetwork]) -> None:
    """Put another network into the folder, sealed."""
    network = change(PlainNetwork.of_arrays(unpacked((folder / "proofs/network.npz").read_bytes())))
    content = packed(network.arrays())
    (folder / "proofs/network.npz").write_bytes(content)
    known = index(folder) | {"network": sha256(content).hexdigest()}
    (folder / "proofs/index.json").write_text(json.dumps(known))


def with_a_unit_that_never_fires(network: PlainNetwork) -> PlainNetwork:
    """Two more steps, whose unit adds to the code where all pixels are large, in none of the images."""
    from scipy.sparse import csr_array

    *steps, last = network.steps
    k, pixels, size = len(steps), network.steps[0].size, last.size
    unit = Step((0,), 1, (csr_array(np.ones((1, pixels))),), np.array([-0.99 * pixels]))
    joined = replace(last, inputs=(*last.inputs, k + 1), matrices=(*last.matrices, csr_array(np.full((size, 1), 1e6))))
    return PlainNetwork((*steps, unit, Step((k,), 1), joined), network.low, network.high)


def of_nan(network: PlainNetwork) -> PlainNetwork:
    """Finite weights, whose codes are nan."""
    from scipy.sparse import csr_array

    pixels, size = network.steps[0].size, network.steps[-1].size
    large = Step((0,), pixels, (csr_array(np.eye(pixels) * 1e308),))
    cancelled = csr_array(np.tile([[1e308, -1e308]], (size, pixels // 2)))
    return PlainNetwork((network.steps[0], large, Step((1,), size, (cancelled,))), network.low, network.high)


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [with_a_unit_that_never_fires, of_nan, lambda network: PlainNetwork(network.steps, network.low, 0.9999)],
    ids=["unit", "nan", "range"],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_network_that_differs_where_no_image_shows_it_is_refused(folder, change):
    swap_network(folder, change)
    with refused(hf.HoldfastError, "something else"):
        hf.recheck(folder, ENCODER, IMAGES)


@pytest.mark.slow
def test_other_negatives_than_the_seed_draws_are_known_by_the_images(folder):
    images = hf.load_images(IMAGES, hf.load_encoder(ENCODER))
    name = first(folder)
    record = json.loads((folder / "certify.json").read_text())
    weakest = next(each["negative"] for each in record["certificates"] if each["id"] == name)

    def swapped(arrays: dict[str, Any], to: str) -> None:
        meta = json.loads(str(arrays["meta"]))
        place = next(k for k, negative in enumerate(meta["negatives"]) if negative != weakest)
        meta["negatives"][place] = to
        arrays["meta"], arrays["negatives"] = np.array(json.dumps(meta)), arrays["negatives"].copy()
        arrays["negatives"][place] = images.pixels([images.ids.index(to)]).double().flatten().numpy()
        # Whoever knows how writes the hashes as well: only the images tell then.
        meta["subject"]["pixels"] = Proof.of_arrays(arrays).hashed_pixels()
        arrays["meta"] = np.array(json.dumps(meta))
        edit_record(folder, partial(sealed, pixels=meta["subject"]["pixels"]))

    def sealed(record: Any, pixels: str) -> None:
        next(each for each in record["certificates"] if each["id"] == name)["pixels"] = pixels

    original = (folder / index(folder)["images"][name]["file"]).read_bytes()
    drawn = json.loads(str(unpacked(original)["meta"]))["negatives"]
    for other in images.ids[:40]:
        if other in (name, *drawn):
            continue
        (folder / index(folder)["images"][name]["file"]).write_bytes(original)
        rewrite(folder, name, partial(swapped, to=other))
        if verdict(folder, name)[0]:
            break
    else:
        pytest.fail("vacuous: no other negative has such a proof")
    results = {result.id: result for result in hf.recheck(folder, ENCODER, IMAGES)}
    assert says(results[name].reason, "negatives", "draws")
    assert all(result.holds for result in results.values() if result.id != name)


@pytest.mark.slow
def test_runs_of_another_seed_and_precision_hold(tmp_path):
    settings = {**QUICK, "limit": 2, "method": "crown", "seed": 3, "precision": "float64"}
    hf.certify(ENCODER, IMAGES, **settings, proofs=True, out=tmp_path / "o")
    results = hf.recheck(tmp_path / "o", ENCODER, IMAGES)
    assert results
    assert all(result.holds for result in results)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"eps": None, "ball": "l2:0.5"}, "kept of certificates in linf balls, not in l2:0.5"),
        ({"out": None}, "proofs are files; name a folder as out"),
        ({"eps": None, "ball": "l2:0.1", "method": "smoothing:sigma=0.25"}, "rest on chance and have no proof"),
        ({"arithmetic": "executed"}, "queries and proofs are of real arithmetic"),
        ({"precision": "bfloat16"}, "queries and proofs are of real arithmetic"),
        ({"method": "exact"}, "methods interval, crown, alpha and branch, not of exact"),
    ],
)
def test_what_has_no_proof_is_refused_by_name(tmp_path, settings, expected):
    with pytest.raises(hf.HoldfastError, match=expected):
        hf.certify(ENCODER, IMAGES, **{**QUICK, "proofs": True, "out": tmp_path / "o", **settings})


def test_operations_without_proofs_are_refused_before_anything_is_computed(tmp_path):
    torch.manual_seed(0)
    smooth = hf.Encoder(nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.Sigmoid()).eval(), "smooth", Domain((1, 8, 8)))
    with pytest.raises(hf.HoldfastError, match="affine operations and ReLUs, not of 'sigmoid'"):
        hf.certify(smooth, IMAGES, **QUICK, proofs=True, out=tmp_path / "o")
    assert not (tmp_path / "o" / "certify.json").exists()


def test_certificates_of_images_in_groups_are_checked_with_their_groups(tmp_path):
    images = digits(8)
    grouped, others = (
        hf.Images(images.pixels(range(8)), images.ids, name="pairs", groups=list(groups))
        for groups in ("aabbbbcc", "abababab")
    )
    hf.certify(ENCODER, grouped, **QUICK | {"negatives": 9}, proofs=True, out=tmp_path)
    record = json.loads((tmp_path / "certify.json").read_text())
    assert record["settings"]["negatives"] == "4"
    for results in (hf.recheck(tmp_path, ENCODER, grouped), hf.recheck(tmp_path)):
        assert results
        assert all(result.holds for result in results)
    for wrong in (others, hf.Images(images.pixels(range(8)), images.ids, name="pairs")):
        with pytest.raises(hf.HoldfastError, match="groups"):
            hf.recheck(tmp_path, ENCODER, wrong)


def test_certificates_without_groups_are_checked_without(tmp_path):
    images = digits(8)
    plain = hf.Images(images.pixels(range(8)), images.ids, name="pairs")
    hf.certify(ENCODER, plain, **QUICK, proofs=True, out=tmp_path)
    assert "groups" not in json.loads((tmp_path / "certify.json").read_text())["settings"]
    grouped = hf.Images(images.pixels(range(8)), images.ids, name="pairs", groups=list("aabbbbcc"))
    results = hf.recheck(tmp_path, ENCODER, grouped)
    assert results
    assert all(result.holds for result in results)
