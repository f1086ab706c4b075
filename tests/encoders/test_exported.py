"""Exported programs: the same codes and gradients as the module, and nothing in the file gets to run."""

from __future__ import annotations

import io
import json
import pickle
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from holdfast.bounds.network.tracing import trace
from holdfast.core.encoder import Encoder
from holdfast.core.errors import HoldfastError, HoldfastWarning
from holdfast.encoders import Options, load
from holdfast.encoders.baseline import random_init
from holdfast.execution import doctor
from tests.encoders import factories
from tests.encoders.test_checkpoint import Malicious

PIXELS = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
BATCH = ({0: torch.export.Dim("b")},)


def export(module: nn.Module, path: Path, example: torch.Tensor = PIXELS, dynamic=BATCH) -> Path:
    torch.export.save(torch.export.export(module.eval(), (example,), dynamic_shapes=dynamic), path)
    return path


@pytest.fixture(scope="module")
def module() -> nn.Module:
    return factories.plain().eval()


@pytest.fixture(scope="module")
def file(module, tmp_path_factory) -> Path:
    return export(module, tmp_path_factory.mktemp("exported") / "encoder.pt2")


def test_codes_and_gradients_are_the_modules_own(module, file):
    encoder = load(f"exported:{file}")
    assert encoder.domain.shape == (1, 8, 8)
    ours, theirs = PIXELS.clone().requires_grad_(), PIXELS.clone().requires_grad_()
    assert torch.equal(encoder(ours), module(theirs))
    encoder(ours).square().sum().backward()
    module(theirs).square().sum().backward()
    assert ours.grad is not None
    assert theirs.grad is not None
    assert torch.equal(ours.grad, theirs.grad)


@pytest.mark.parametrize("dynamic", [BATCH, None])
def test_programs_can_be_certified(module, tmp_path, dynamic):
    pixels = PIXELS if dynamic else PIXELS[:1]
    encoder = load(f"exported:{export(module, tmp_path / 'e.pt2', pixels, dynamic)}")
    assert torch.allclose(trace(encoder, torch.float32)(PIXELS), module(PIXELS), atol=1e-5)


def test_loading_twice_gives_equal_fingerprints_and_other_graphs_another(file, tmp_path):
    assert load(f"exported:{file}").fingerprint == load(f"exported:{file}").fingerprint
    tanh, relu = (nn.Sequential(nn.Flatten(), part) for part in (nn.Tanh(), nn.ReLU()))
    first, second = (load(f"exported:{export(part, tmp_path / name)}") for part, name in ((tanh, "a"), (relu, "b")))
    assert first.fingerprint != second.fingerprint


def test_doctor_finds_it_healthy(file):
    checks = doctor.examine(load(f"exported:{file}"))
    assert {check.status for check in checks} == {"ok"}
    assert "1 aten.conv2d.default" in checks[-1].sentence


def test_normalisation_goes_inside(module, file):
    encoder = load(f"exported:{file}?mean=0.5&std=0.25")
    assert torch.allclose(encoder(PIXELS), module((PIXELS - 0.5) / 0.25), atol=1e-6)


def test_colour_without_normalisation_warns(tmp_path):
    file = export(nn.Flatten(), tmp_path / "colour.pt2", torch.rand(2, 3, 4, 4))
    with pytest.warns(HoldfastWarning, match="says nothing of normalisation"):
        load(f"exported:{file}")


def test_program_for_one_image_runs_image_by_image(module, tmp_path):
    file = export(module, tmp_path / "one.pt2", PIXELS[:1], None)
    assert torch.allclose(load(f"exported:{file}")(PIXELS), module(PIXELS), atol=1e-6)


def test_program_for_another_fixed_batch_is_refused(module, tmp_path):
    file = export(module, tmp_path / "three.pt2", PIXELS, None)
    with pytest.raises(HoldfastError, match="exactly 3 images; export it with dynamic_shapes"):
        load(f"exported:{file}")


def test_shapes_must_fit_the_graph(file, tmp_path):
    with pytest.raises(HoldfastError, match=r"cannot take \(1, 9, 9\)"):
        load(f"exported:{file}", Options(size=9))
    with pytest.raises(HoldfastError, match=r"cannot take \(3, 8\)"):
        load(f"exported:{file}?shape=3x8")
    free = {0: torch.export.Dim("b"), 2: torch.export.Dim("h", min=4), 3: torch.export.Dim("w", min=4)}
    pooling = nn.Sequential(nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    flexible = export(pooling, tmp_path / "free.pt2", PIXELS, (free,))
    with pytest.raises(HoldfastError, match="state it"):
        load(f"exported:{flexible}")
    encoder = load(f"exported:{flexible}?shape=1x12x10")
    assert encoder(torch.rand(2, 1, 12, 10)).shape == (2, 4)


def test_several_inputs_are_refused(tmp_path):
    file = tmp_path / "two.pt2"
    torch.export.save(torch.export.export(Two(), (PIXELS, PIXELS)), file)
    with pytest.raises(HoldfastError, match="takes 2 inputs"):
        load(f"exported:{file}")


class Two(nn.Module):
    def forward(self, x, y):
        return (x + y).flatten(1)


def test_weights_of_a_graph_cannot_be_drawn_anew(file):
    with pytest.raises(HoldfastError, match="no reset_parameters"):
        random_init(load(f"exported:{file}"))


def rewrite(file: Path, target: Path, change: Callable[[str, bytes], bytes], extra: dict[str, bytes]) -> Path:
    """Copy the archive with records changed and added."""
    with zipfile.ZipFile(file) as source, zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as copy:
        root = source.namelist()[0].partition("/")[0]
        for name in source.namelist():
            copy.writestr(name, change(name, source.read(name)))
        for name, content in extra.items():
            copy.writestr(f"{root}/{name}", content)
    return target


def same(name: str, content: bytes) -> bytes:
    return content


def saved(content: object) -> bytes:
    stream = io.BytesIO()
    torch.save(content, stream)
    return stream.getvalue()


def test_copied_archive_still_loads(file, module, tmp_path):
    encoder: Encoder = load(f"exported:{rewrite(file, tmp_path / 'copy.pt2', same, {})}")
    assert torch.equal(encoder(PIXELS), module(PIXELS))


def test_objects_in_the_archive_are_refused_and_do_not_run(file, tmp_path):
    witness = tmp_path / "ran"
    attempts = {
        "opaque object": (same, {"data/constants/opaque_obj_0": pickle.dumps(Malicious(witness))}),
        "legacy weights": (same, {"data/weights/model.pt": saved({"x": Malicious(witness)})}),
        "sample inputs": (
            lambda name, content: saved(Malicious(witness)) if "sample_inputs" in name else content,
            {},
        ),
        "pickled weight": (lambda name, content: content.replace(b'"use_pickle": false', b'"use_pickle": true'), {}),
        "imported type": (lambda name, content: content.replace(b'"guards_code": []', b'"x": "__enum__"'), {}),
        "evaluated shape": (
            lambda name, content: content.replace(b'"expr_str": "', b'"expr_str": "open(1) or ').replace(
                b'"guards_code": []', json.dumps({"expr_str": "open('x', 'w')"})[1:-1].encode()
            ),
            {},
        ),
    }
    for attempt, (change, extra) in attempts.items():
        forged = rewrite(file, tmp_path / f"{attempt}.pt2", change, extra)
        with pytest.raises(HoldfastError, match="could run code"):
            load(f"exported:{forged}")
        assert not witness.exists(), attempt


def test_guards_of_the_archive_do_not_run(file, tmp_path):
    witness = tmp_path / "ran"
    guard = json.dumps([f"open({str(witness)!r}, 'w')"]).encode()
    forged = rewrite(
        file,
        tmp_path / "guard.pt2",
        lambda name, content: content.replace(b'"guards_code": []', b'"guards_code": ' + guard),
        {},
    )
    load(f"exported:{forged}")(PIXELS)
    assert not witness.exists()


@pytest.mark.parametrize("kept", [0.3, 0.99])
def test_truncated_archives_are_refused(file, tmp_path, kept):
    path = tmp_path / "cut.pt2"
    path.write_bytes(file.read_bytes()[: int(file.stat().st_size * kept)])
    with pytest.raises(HoldfastError, match="truncated"):
        load(f"exported:{path}")


def inserted(file: Path, target: Path, name: str, content: bytes, last: bool) -> Path:
    """Copy the archive with one more record called ``name``, before or after all others."""
    with zipfile.ZipFile(file) as source, zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as copy:
        root = source.namelist()[0].partition("/")[0]
        held = [(record, source.read(record)) for record in source.namelist()]
        added = (f"{root}/{name}", content)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the very duplicates
            for record, value in [*held, added] if last else [added, *held]:
                copy.writestr(record, value)
    return target


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("name", ["data/sample_inputs/model.pt", "data/weights/WEIGHT_0", "Models/model.json"])
def test_records_that_torch_takes_for_one_are_refused(file, tmp_path, name, last):
    forged = inserted(file, tmp_path / "two.pt2", name, saved(Malicious(tmp_path / "ran")), last)
    with pytest.raises(HoldfastError, match=r"could run code \(two records are called"):
        load(f"exported:{forged}")
    assert not (tmp_path / "ran").exists()


def test_torch_reads_what_was_checked_even_if_the_file_changes_meanwhile(file, module, tmp_path, monkeypatch):
    path = tmp_path / "swapped.pt2"
    path.write_bytes(file.read_bytes())
    witness = tmp_path / "ran"
    read = torch.export.load

    def swap(archive):
        rewrite(file, path, lambda name, content: saved(Malicious(witness)) if "sample" in name else content, {})
        return read(archive)

    monkeypatch.setattr(torch.export, "load", swap)
    assert torch.equal(load(f"exported:{path}")(PIXELS), module(PIXELS))
    assert not witness.exists()


def test_compiled_programs_are_refused(file, tmp_path):
    forged = rewrite(file, tmp_path / "compiled.pt2", same, {"data/aotinductor/model/../../x.json": b"{}"})
    with pytest.raises(HoldfastError, match="unexpected record"):
        load(f"exported:{forged}")


def test_archives_that_unpack_to_more_than_they_hold_are_refused_unread(file, tmp_path):
    bomb = tmp_path / "bomb.pt2"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data/weights/weight_0", bytes(10**7))
    with pytest.raises(HoldfastError, match=r"would unpack to 10,000,000, while torch saves without compression"):
        load(f"exported:{bomb}")
    nested = rewrite(file, tmp_path / "nested.pt2", same, {"serialized_x.pt": bomb.read_bytes()})
    with pytest.raises(HoldfastError, match=r"record serialized_x\.pt holds .* would unpack to 10,000,000"):
        load(f"exported:{nested}")
