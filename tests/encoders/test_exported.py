"""Exported programs: the same codes and gradients as the module; read when trusted, and even then nothing else runs."""

from __future__ import annotations

import io
import json
import pickle
import warnings
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from holdfast.bounds.network.tracing import trace
from holdfast.cli.app import run
from holdfast.core.encoder import Encoder
from holdfast.core.errors import HoldfastError, HoldfastWarning
from holdfast.encoders import Options, load
from holdfast.encoders.baseline import random_init
from holdfast.encoders.exported.program import PROGRAM, UnlistedError
from holdfast.run import checkup as doctor
from tests.encoders import factories
from tests.encoders.test_checkpoint import Malicious
from tests.facts import refused, warned

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
    encoder = load(f"exported:{file}?trust=yes")
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
    encoder = load(f"exported:{export(module, tmp_path / 'e.pt2', pixels, dynamic)}?trust=yes")
    assert torch.allclose(trace(encoder, torch.float32)(PIXELS), module(PIXELS), atol=1e-5)


def test_loading_twice_gives_equal_fingerprints_and_other_graphs_another(file, tmp_path):
    assert load(f"exported:{file}?trust=yes").fingerprint == load(f"exported:{file}?trust=yes").fingerprint
    tanh, relu = (nn.Sequential(nn.Flatten(), part) for part in (nn.Tanh(), nn.ReLU()))
    first, second = (
        load(f"exported:{export(part, tmp_path / name)}?trust=yes") for part, name in ((tanh, "a"), (relu, "b"))
    )
    assert first.fingerprint != second.fingerprint


def test_doctor_finds_it_healthy(file):
    checks = doctor.essential_checks(load(f"exported:{file}?trust=yes"))
    assert {check.status for check in checks} == {"ok"}
    assert "1 aten.conv2d.default" in checks[-1].sentence


def test_normalisation_goes_inside(module, file):
    encoder = load(f"exported:{file}?trust=yes&mean=0.5&std=0.25")
    assert torch.allclose(encoder(PIXELS), module((PIXELS - 0.5) / 0.25), atol=1e-6)


def test_colour_without_normalisation_warns(tmp_path):
    file = export(nn.Flatten(), tmp_path / "colour.pt2", torch.rand(2, 3, 4, 4))
    with warned(HoldfastWarning, "nothing", "normalisation"):
        load(f"exported:{file}?trust=yes")


def test_program_for_one_image_runs_image_by_image(module, tmp_path):
    file = export(module, tmp_path / "one.pt2", PIXELS[:1], None)
    assert torch.allclose(load(f"exported:{file}?trust=yes")(PIXELS), module(PIXELS), atol=1e-6)


def test_program_for_another_fixed_batch_is_refused(module, tmp_path):
    file = export(module, tmp_path / "three.pt2", PIXELS, None)
    with refused(HoldfastError, "3 images", "dynamic_shapes", "exactly"):
        load(f"exported:{file}?trust=yes")


def test_shapes_must_fit_the_graph(file, tmp_path):
    with pytest.raises(HoldfastError, match=r"cannot take \(1, 9, 9\)"):
        load(f"exported:{file}?trust=yes", Options(size=9))
    with pytest.raises(HoldfastError, match=r"cannot take \(3, 8\)"):
        load(f"exported:{file}?trust=yes&shape=3x8")
    free = {0: torch.export.Dim("b"), 2: torch.export.Dim("h", min=4), 3: torch.export.Dim("w", min=4)}
    pooling = nn.Sequential(nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    flexible = export(pooling, tmp_path / "free.pt2", PIXELS, (free,))
    with pytest.raises(HoldfastError, match="state it"):
        load(f"exported:{flexible}?trust=yes")
    encoder = load(f"exported:{flexible}?trust=yes&shape=1x12x10")
    assert encoder(torch.rand(2, 1, 12, 10)).shape == (2, 4)


def test_several_inputs_are_refused(tmp_path):
    file = tmp_path / "two.pt2"
    torch.export.save(torch.export.export(Two(), (PIXELS, PIXELS)), file)
    with pytest.raises(HoldfastError, match="takes 2 inputs"):
        load(f"exported:{file}?trust=yes")


class Two(nn.Module):
    def forward(self, x, y):
        return (x + y).flatten(1)


def test_weights_of_a_graph_are_drawn_anew(file):
    encoder = load(f"exported:{file}?trust=yes")
    fresh = random_init(encoder)
    assert fresh.fingerprint != encoder.fingerprint
    assert not torch.equal(fresh(PIXELS), encoder(PIXELS))


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
    encoder: Encoder = load(f"exported:{rewrite(file, tmp_path / 'copy.pt2', same, {})}?trust=yes")
    assert torch.equal(encoder(PIXELS), module(PIXELS))


def test_nothing_is_read_of_a_file_that_is_not_trusted(file, monkeypatch, capsys):
    monkeypatch.setattr(torch.export, "load", None)
    for reference in (f"exported:{file}", f"exported:{file}?trust=no"):
        with pytest.raises(HoldfastError, match=r"can run code.*encoder\.pt2\?trust=yes.*ONNX.*safetensors.*no trust"):
            load(reference)
    assert run(["doctor", f"exported:{file}"]) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert f"write exported:{file}?trust=yes" in sentence


@dataclass(frozen=True)
class Forgery:
    """What an attacker changes in an archive: its two documents (as JSON) and the records beside them."""

    program: Callable[[dict[str, Any]], None] = lambda program: None
    weights: Callable[[dict[str, Any]], None] = lambda weights: None
    records: dict[str, bytes] = field(default_factory=dict)

    def applied(self, file: Path, target: Path) -> Path:
        def change(name: str, content: bytes) -> bytes:
            for ending, edit in {"models/model.json": self.program, "weights_config.json": self.weights}.items():
                if name.endswith(ending):
                    document = json.loads(content)
                    edit(document)
                    return json.dumps(document).encode()
            return next((new for ending, new in self.records.items() if name.endswith(ending)), content)

        with zipfile.ZipFile(file) as archive:
            added = {end: new for end, new in self.records.items() if not any(map(endswith(end), archive.namelist()))}
        return rewrite(file, target, change, added)


def endswith(ending: str) -> Callable[[str], bool]:
    return lambda name: name.endswith(ending)


def first_tensor(program: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the shapes of the values in the graph and the name of the first node's output."""
    graph = program["graph_module"]["graph"]
    return graph["tensor_values"], graph["nodes"][0]["outputs"][0]["as_tensor"]["name"]


def sized(expression: str) -> Forgery:
    """Return the forgery whose graph holds a value of the size ``expression``."""

    def edit(program: dict[str, Any]) -> None:
        values, name = first_tensor(program)
        values[name]["sizes"][0] = {"as_expr": {"expr_str": expression, "hint": None}}

    return Forgery(program=edit)


def value_called_metadata(expression: str) -> Forgery:
    def edit(program: dict[str, Any]) -> None:
        name = first_tensor(program)[1]
        renamed = json.loads(json.dumps(program).replace(f'"{name}"', '"metadata"'))
        renamed["graph_module"]["graph"]["tensor_values"]["metadata"]["sizes"][0] = {
            "as_expr": {"expr_str": expression}
        }
        program.clear()
        program.update(renamed)

    return Forgery(program=edit)


def weight(name: str, **entry: Any) -> Callable[[dict[str, Any]], None]:
    def edit(weights: dict[str, Any]) -> None:
        weights["config"][name] = {**next(iter(weights["config"].values())), **entry}

    return edit


def operator(target: str) -> Forgery:
    return Forgery(program=lambda program: program["graph_module"]["graph"]["nodes"][0].update(target=target))


def input_called(name: str) -> Forgery:
    def edit(program: dict[str, Any]) -> None:
        renamed = json.loads(json.dumps(program).replace('"input"', json.dumps(name)))
        program.clear()
        program.update(renamed)

    return Forgery(program=edit)


def forgeries(witness: Path) -> dict[str, Forgery]:
    """Return every way known to us by which an archive could run code when it is read or used."""
    run_code = f"open({str(witness)!r}, 'w')"
    pickled = pickle.dumps(Malicious(witness))
    return {
        "opaque object": Forgery(records={"data/constants/opaque_obj_0": pickled}),
        "legacy weights": Forgery(records={"data/weights/model.pt": saved({"x": Malicious(witness)})}),
        "pickled weight": Forgery(
            weights=weight("0.weight", use_pickle=True), records={"weights/weight_0": saved(Malicious(witness))}
        ),
        "pickled weight called metadata": Forgery(
            weights=weight("metadata", use_pickle=True, path_name="weight_99"),
            records={"data/weights/weight_99": saved(Malicious(witness))},
        ),
        "size of a value called metadata": value_called_metadata(run_code),
        "call": sized(run_code),
        "text read by sympy": sized(f"S({run_code!r})"),
        "text among numbers": sized(f"Max({run_code!r}, 3)"),
        "text that vanishes": sized(f"Mul(S({run_code!r}), 0) + Symbol('s77')"),
        "integer of text": sized(f"Integer(S({run_code!r}))"),
        "symbol of code": sized(f"Symbol({run_code!r})"),
        "attribute": sized("Integer.__class__"),
        "power that never ends": sized("9**9**9"),
        "power of formulas": sized("Pow(Integer(9), Pow(Integer(9), Integer(9)))"),
        "powers of powers": sized("Pow(Pow(Pow(Integer(9), Integer(8)), Integer(8)), Integer(8))"),
        "wide number": sized("9" * 50),
        "input whose name is code": input_called(f"input={run_code}"),
        "function instead of an operator": operator("torch.os.system"),
        "operator on files": operator("torch.ops.aten.from_file.default"),
        "imported type": Forgery(program=lambda program: program.update(x="__enum__")),
        "nesting that imports": Forgery(
            program=lambda program: program["graph_module"]["module_call_graph"][0]["signature"].update(
                in_spec=json.dumps([1, {"type": "collections.namedtuple", "context": "os", "children_spec": []}])
            )
        ),
    }


@pytest.mark.parametrize("attempt", forgeries(Path()))
def test_forged_archives_are_refused_though_trusted_and_do_not_run(file, tmp_path, attempt):
    witness = tmp_path / "ran"
    forged = forgeries(witness)[attempt].applied(file, tmp_path / "forged.pt2")
    with pytest.raises(HoldfastError, match=r"refused.*run code"):
        load(f"exported:{forged}?trust=yes")(PIXELS)
    assert not witness.exists()


def test_every_entry_that_is_not_on_the_list_is_refused(file):
    """No object of the graph's document takes an entry of a new name, wherever it stands."""
    with zipfile.ZipFile(file) as archive:
        record = next(name for name in archive.namelist() if name.endswith("models/model.json"))
        document = json.loads(archive.read(record))
    places = [place for place in objects(document) if "metadata" not in place]
    assert len(places) > 100, "vacuous fixture"
    for place in places:
        changed = json.loads(json.dumps(document))
        part = changed
        for key in place:
            part = part[key]
        part["unheard of"] = {"expr_str": "open(1)"}
        with pytest.raises(UnlistedError):
            PROGRAM(changed, "")


def objects(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path to every object inside ``value``."""
    if isinstance(value, dict):
        yield place
    for key, part in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from objects(part, (*place, key))


def test_stack_traces_guards_samples_and_notes_never_reach_torch(file, tmp_path, monkeypatch):
    archives = []
    read = torch.export.load

    def kept(archive):
        archives.append(archive.getvalue())
        return read(archive)

    monkeypatch.setattr(torch.export, "load", kept)
    noted = rewrite(file, tmp_path / "noted.pt2", same, {"extra/note.txt": b"a note"})
    load(f"exported:{noted}?trust=yes")
    with zipfile.ZipFile(io.BytesIO(archives[0])) as archive:
        contents = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    assert contents["extra/note.txt"] == contents["data/sample_inputs/model.pt"] == b""
    assert b"stack_trace" not in contents["models/model.json"]
    assert len(contents["data/weights/weight_0"]) == 144


@pytest.mark.parametrize("target", ["torch.ops.aten.nothing_of_that_name.default", "torch.ops.mine.op.default"])
def test_operators_that_this_torch_lacks_are_named(file, tmp_path, target):
    forged = operator(target).applied(file, tmp_path / "unknown.pt2")
    with pytest.raises(HoldfastError, match=rf"nodes\[0\]\.target names the operator '{target}', which torch .* lacks"):
        load(f"exported:{forged}?trust=yes")


class Resized(nn.Module):
    """Operators that take words, formulas of sizes, and a part without gradients."""

    def forward(self, x):
        with torch.no_grad():
            scale = x.mean(dim=(1, 2, 3), keepdim=True)
        x = nn.functional.gelu(nn.functional.pad(x - scale, (1, 1, 1, 1), mode="reflect"), approximate="tanh")
        x = nn.functional.interpolate(x, scale_factor=2.0, mode="bilinear")
        halved = torch.div(x, 2.0, rounding_mode="floor")
        return torch.einsum("bchw,bchw->bc", x, halved).reshape(x.shape[0], -1)


def test_formulas_and_words_that_torch_writes_are_on_the_list(tmp_path):
    free = {0: torch.export.Dim("b"), 2: torch.export.Dim("h", min=4), 3: torch.export.Dim("w", min=4)}
    file = export(Resized(), tmp_path / "resized.pt2", PIXELS, (free,))
    encoder = load(f"exported:{file}?trust=yes&shape=1x8x8")
    assert torch.allclose(encoder(PIXELS), Resized()(PIXELS), atol=1e-6)


def test_guards_of_the_archive_do_not_run(file, tmp_path):
    witness = tmp_path / "ran"
    guard = json.dumps([f"open({str(witness)!r}, 'w')"]).encode()
    forged = rewrite(
        file,
        tmp_path / "guard.pt2",
        lambda name, content: content.replace(b'"guards_code": []', b'"guards_code": ' + guard),
        {},
    )
    load(f"exported:{forged}?trust=yes")(PIXELS)
    assert not witness.exists()


@pytest.mark.parametrize("kept", [0.3, 0.99])
def test_truncated_archives_are_refused(file, tmp_path, kept):
    path = tmp_path / "cut.pt2"
    path.write_bytes(file.read_bytes()[: int(file.stat().st_size * kept)])
    with pytest.raises(HoldfastError, match="truncated"):
        load(f"exported:{path}?trust=yes")


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
    with refused(HoldfastError, "run code", "two records"):
        load(f"exported:{forged}?trust=yes")
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
    assert torch.equal(load(f"exported:{path}?trust=yes")(PIXELS), module(PIXELS))
    assert not witness.exists()


def test_compiled_programs_are_refused(file, tmp_path):
    forged = rewrite(file, tmp_path / "compiled.pt2", same, {"data/aotinductor/model/../../x.json": b"{}"})
    with pytest.raises(HoldfastError, match="unexpected record"):
        load(f"exported:{forged}?trust=yes")


def test_archives_that_unpack_to_more_than_they_hold_are_refused_unread(file, tmp_path):
    bomb = tmp_path / "bomb.pt2"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data/weights/weight_0", bytes(10**7))
    with refused(HoldfastError, "10,000,000", "without", "compression"):
        load(f"exported:{bomb}?trust=yes")
    nested = rewrite(file, tmp_path / "nested.pt2", same, {"data/weights/model.pt": bomb.read_bytes()})
    with pytest.raises(HoldfastError, match=r"record data/weights/model\.pt holds .* would unpack to 10,000,000"):
        load(f"exported:{nested}?trust=yes")


class Places(nn.Module):
    """Adds to each value its place, which it makes itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.flatten(1) + torch.arange(64, dtype=torch.float32) / 64)


def test_what_a_program_makes_itself_moves_with_it(tmp_path):
    """The device of its tensors stands in the file; on another one they would meet none of their kind."""
    encoder = load(f"exported:{export(Places(), tmp_path / 'places.pt2')}?trust=yes")
    before = encoder(PIXELS)
    moved = encoder.to("meta", torch.float32)
    assert moved.forward(PIXELS.to("meta")).device.type == "meta"
    torch.testing.assert_close(encoder(PIXELS), before)
    assert encoder.to("cpu", torch.float64).forward(PIXELS.double()).dtype == torch.float64
