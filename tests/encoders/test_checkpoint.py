"""Checkpoints: whole ones load, and everything else is refused in one sentence."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file, save_model

from holdfast.core.encoder import Encoder
from holdfast.core.errors import Conflict, HoldfastError
from holdfast.core.geometry import Geometry
from holdfast.encoders import Options, load
from tests.encoders import factories
from tests.facts import refused

SHAPE = "?shape=1x8x8"
PIXELS = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def arch(name: str = "plain") -> Options:
    return Options(arch=f"tests.encoders.factories:{name}")


@pytest.fixture
def module():
    module = factories.plain()
    module(torch.rand(9, 1, 8, 8))  # moves the running statistics of the batch norm
    return module.eval()


@pytest.fixture
def file(module, tmp_path) -> Path:
    path = tmp_path / "weights.safetensors"
    save_file(module.state_dict(), path)
    return path


def save(content: Any, tmp_path: Path) -> Path:
    torch.save(content, tmp_path / "weights.pt")
    return tmp_path / "weights.pt"


def prefixed(module, prefix: str) -> dict[str, torch.Tensor]:
    return {prefix + name: value for name, value in module.state_dict().items()}


def test_codes_are_the_modules_own(module, file, tmp_path):
    other = save(module.state_dict(), tmp_path)
    for path in (file, other):
        assert torch.equal(load(f"checkpoint:{path}{SHAPE}", arch())(PIXELS), module(PIXELS))


def test_loading_twice_gives_equal_fingerprints(file, tmp_path):
    reference = f"checkpoint:{file}{SHAPE}"
    assert load(reference, arch()).fingerprint == load(reference, arch()).fingerprint
    weights = save({"1.weight": torch.ones(5, 64), "1.bias": torch.ones(5)}, tmp_path)
    first, second = (load(f"checkpoint:{weights}{SHAPE}", arch("hidden_randomness")) for _ in range(2))
    assert torch.equal(first.module.get_buffer("draw"), second.module.get_buffer("draw"))


def test_normalisation_goes_inside(module, file):
    encoder = load(f"checkpoint:{file}{SHAPE}&mean=0.5&std=0.25", arch())
    assert torch.allclose(encoder(PIXELS), module((PIXELS - 0.5) / 0.25), atol=1e-6)


def test_module_may_state_its_inputs(module, file):
    encoder = load(f"checkpoint:{file}", arch("stated"))
    assert (encoder.domain, encoder.geometry) == (factories.STATED, factories.Stated.geometry)
    assert torch.equal(encoder(PIXELS), module(PIXELS))
    with refused(HoldfastError, "states", "inputs"):
        load(f"checkpoint:{file}{SHAPE}", arch("stated"))


def test_factory_may_return_an_encoder(module, file):
    encoder = load(f"checkpoint:{file}", arch("encoder"))
    assert torch.allclose(encoder(PIXELS), module((PIXELS - 0.5) / 0.25), atol=1e-6)
    assert encoder.geometry == Geometry(9, (8, 8))
    assert encoder.name == "weights.safetensors"
    assert encoder.source.endswith("--arch tests.encoders.factories:encoder")


@pytest.mark.parametrize("prefix", ["module.", "model.", "module.encoder_q."])
def test_common_prefix_goes(module, tmp_path, prefix):
    path = save(prefixed(module, prefix), tmp_path)
    assert torch.equal(load(f"checkpoint:{path}{SHAPE}", arch())(PIXELS), module(PIXELS))


def test_prefix_stays_unless_all_names_have_it(module, tmp_path):
    path = save({**prefixed(module, "encoder."), "head.weight": torch.zeros(2, 5)}, tmp_path)
    with pytest.raises(HoldfastError, match=r"missing 8 .*unexpected 10 "):
        load(f"checkpoint:{path}{SHAPE}", arch())
    chosen = load(f"checkpoint:{path}{SHAPE}&prefix=encoder.", arch())
    assert torch.equal(chosen(PIXELS), module(PIXELS))


def test_heads_are_dropped_when_asked(module, tmp_path):
    path = save({**module.state_dict(), "fc.weight": torch.zeros(2, 5)}, tmp_path)
    with pytest.raises(HoldfastError, match=r"missing none, unexpected 1 \(fc\.weight\)"):
        load(f"checkpoint:{path}{SHAPE}", arch())
    assert torch.equal(load(f"checkpoint:{path}{SHAPE}&drop=fc.", arch())(PIXELS), module(PIXELS))
    with pytest.raises(HoldfastError, match="no tensor left"):
        load(f"checkpoint:{path}{SHAPE}&prefix=nothing.", arch())


def test_weights_of_the_module_inside_a_wrapper_fit_the_wrapper(module, file):
    encoder = load(f"checkpoint:{file}{SHAPE}", arch("wrapped"))
    assert torch.equal(encoder(PIXELS), module(PIXELS))


@pytest.mark.parametrize(
    "extra",
    [
        {"net.head.weight": torch.zeros(2, 5)},
        {"head.weight": torch.zeros(2, 5), "head.bias": torch.zeros(2)},
        {"teacher.0.weight": torch.zeros(2)},
        {"net.queue.a": torch.zeros(1), "net.queue.b.c": torch.zeros(1), "mean": torch.zeros(1)},
    ],
)
def test_the_hint_works_when_followed(module, tmp_path, extra):
    path = save({**prefixed(module, "net."), **extra}, tmp_path)
    with refused(HoldfastError, "8", "prefix=net", "settings") as refusal:
        load(f"checkpoint:{path}{SHAPE}", arch())
    settings = str(refusal.value).rpartition("add the settings ")[2].partition(" ")[0]
    assert torch.equal(load(f"checkpoint:{path}{SHAPE}&{settings}", arch())(PIXELS), module(PIXELS))


def test_no_hint_is_given_where_no_choice_fits(module, tmp_path):
    path = save({"0.weight": torch.zeros(4, 1, 3, 3)}, tmp_path)
    with pytest.raises(HoldfastError, match=r"missing 7 .*unexpected none; change --arch"):
        load(f"checkpoint:{path}{SHAPE}", arch())


def test_state_dict_inside_of_a_training_checkpoint_is_found(module, tmp_path):
    content: dict[str, Any] = {"epoch": 3, "state_dict": module.state_dict(), "optimizer": {"lr": 0.1}}
    path = save(content, tmp_path)
    assert torch.equal(load(f"checkpoint:{path}{SHAPE}", arch())(PIXELS), module(PIXELS))
    path = save({**content, "ema": prefixed(module, "x.")}, tmp_path)
    with pytest.raises(HoldfastError, match=r"2 state dicts.*key=state_dict.*key=ema"):
        load(f"checkpoint:{path}{SHAPE}", arch())
    assert torch.equal(load(f"checkpoint:{path}{SHAPE}&key=ema", arch())(PIXELS), module(PIXELS))


@pytest.mark.parametrize("wrapper", ["_orig_mod.", "module.", "_checkpoint_wrapped_module.", "module._orig_mod."])
def test_what_wrappers_insert_into_names_goes(module, tmp_path, wrapper):
    state = {
        f"{wrapper if 'bias' in name else ''}{name.replace('.', f'.{wrapper}', 1)}": value
        for name, value in module.state_dict().items()
    }
    path = save(state, tmp_path)
    assert torch.equal(load(f"checkpoint:{path}{SHAPE}", arch())(PIXELS), module(PIXELS))
    assert torch.equal(load(f"checkpoint:{path}{SHAPE}", arch("wrapped"))(PIXELS), module(PIXELS))


def test_names_that_wrappers_make_equal_are_not_guessed(module, tmp_path):
    state = module.state_dict()
    path = save({**state, "module.0.weight": state["0.weight"] + 1}, tmp_path)
    with pytest.raises(HoldfastError, match=r"unexpected 1 \(module\.0\.weight\)"):
        load(f"checkpoint:{path}{SHAPE}", arch())


def test_nested_dictionaries_are_searched_and_chosen_by_path(module, tmp_path):
    optimizer = {"state": {0: {"step": torch.ones(1), "exp_avg": torch.ones(3)}}, "param_groups": [{"lr": 0.1}]}
    content: dict[str, Any] = {"model": {"nets": {"student": module.state_dict()}}, "optimizer": optimizer, "epoch": 3}
    path = save(content, tmp_path)
    assert torch.equal(load(f"checkpoint:{path}{SHAPE}", arch())(PIXELS), module(PIXELS))
    content["model"]["nets"]["teacher"] = {name: value + 1 for name, value in module.state_dict().items()}
    path = save(content, tmp_path)
    with pytest.raises(
        HoldfastError, match=r"9 tensors in key=model\.nets\.student, 9 tensors in key=model\.nets\.teacher"
    ):
        load(f"checkpoint:{path}{SHAPE}", arch())
    assert torch.equal(load(f"checkpoint:{path}{SHAPE}&key=model.nets.student", arch())(PIXELS), module(PIXELS))


def test_numbers_and_text_among_tensors_do_not_hide_them(module, tmp_path):
    path = save({**module.state_dict(), "epoch": 3, "arch": "plain", "best": None}, tmp_path)
    assert torch.equal(load(f"checkpoint:{path}{SHAPE}", arch())(PIXELS), module(PIXELS))


def test_counters_of_batch_norms_may_be_missing_or_left_over(module, tmp_path):
    state = module.state_dict()
    path = save({name: value for name, value in state.items() if "num_batches" not in name}, tmp_path)
    assert torch.equal(load(f"checkpoint:{path}{SHAPE}", arch())(PIXELS), module(PIXELS))
    path = save({**state, "4.num_batches_tracked": torch.tensor(1)}, tmp_path)
    assert torch.equal(load(f"checkpoint:{path}{SHAPE}", arch())(PIXELS), module(PIXELS))


def test_tied_weights_are_stored_once(tmp_path):
    network = factories.tied()
    with torch.no_grad():
        next(network.parameters()).normal_(generator=torch.Generator().manual_seed(1))
    path = tmp_path / "tied.safetensors"
    save_model(network, str(path))
    assert len(load_file(path)) == 1, "vacuous fixture"
    assert torch.equal(load(f"checkpoint:{path}{SHAPE}", arch("tied"))(PIXELS), network(PIXELS))


@pytest.mark.parametrize("ending", ["safetensors", "bin"])
def test_shards_are_read_by_their_index(module, tmp_path, ending):
    state = list(module.state_dict().items())
    halves = {f"model-{k + 1}-of-2.{ending}": dict(part) for k, part in enumerate((state[:4], state[4:]))}
    for name, part in halves.items():
        (save_file if ending == "safetensors" else torch.save)(part, tmp_path / name)
    index = tmp_path / f"model.{ending}.index.json"
    places = {key: name for name, part in halves.items() for key in part}
    index.write_text(json.dumps({"metadata": {}, "weight_map": places}))
    assert torch.equal(load(f"checkpoint:{index}{SHAPE}", arch())(PIXELS), module(PIXELS))
    index.write_text(json.dumps({"weight_map": {**places, "lost": f"model-1-of-2.{ending}"}}))
    with pytest.raises(HoldfastError, match="'lost'"):
        load(f"checkpoint:{index}{SHAPE}", arch())
    for wrong in ("{}", "[]", "{", json.dumps({"weight_map": {"a": "../model.safetensors"}})):
        index.write_text(wrong)
        with pytest.raises(HoldfastError, match="index"):
            load(f"checkpoint:{index}{SHAPE}", arch())
    index.write_text(json.dumps({"weight_map": places}))
    (tmp_path / f"model-2-of-2.{ending}").unlink()
    with pytest.raises(HoldfastError, match="model-2-of-2"):
        load(f"checkpoint:{index}{SHAPE}", arch())


def test_two_heads_inside_an_encoder_are_named_in_the_hint(module, tmp_path):
    heads = {"0.projector.weight": torch.zeros(2), "4.head.weight": torch.zeros(2), "4.head.bias": torch.zeros(2)}
    path = save({**module.state_dict(), **heads}, tmp_path)
    with pytest.raises(HoldfastError, match=r"drop=0\.projector\.&drop=4\.head\.") as refusal:
        load(f"checkpoint:{path}{SHAPE}", arch())
    settings = str(refusal.value).rpartition("add the settings ")[2].partition(" ")[0]
    assert torch.equal(load(f"checkpoint:{path}{SHAPE}&{settings}", arch())(PIXELS), module(PIXELS))


def test_a_file_that_does_not_fit_lists_what_it_holds(tmp_path):
    path = save({"encoder.a": torch.zeros(1), "encoder.b": torch.zeros(1), "head.w": torch.zeros(1)}, tmp_path)
    with pytest.raises(HoldfastError, match=r"2 encoder\. \(prefix=encoder\.\), 1 head\. \(prefix=head\.\)"):
        load(f"checkpoint:{path}{SHAPE}", arch())


def test_torchscript_archives_are_named_as_such(module, tmp_path):
    path = tmp_path / "scripted.pt"
    torch.jit.script(module.eval()).save(str(path))
    with pytest.raises(HoldfastError, match="TorchScript"):
        load(f"checkpoint:{path}{SHAPE}", arch())


def test_whole_modules_are_named_as_such(module, tmp_path):
    path = tmp_path / "module.pt"
    torch.save(module, path)
    with pytest.raises(HoldfastError, match=r"torch\.nn.*state dict"):
        load(f"checkpoint:{path}{SHAPE}", arch())


def test_wrong_shapes_are_named(module, tmp_path):
    path = save({**module.state_dict(), "4.weight": torch.zeros(7, 144)}, tmp_path)
    with pytest.raises(HoldfastError, match=r"4\.weight has shape \(7, 144\), the module wants \(5, 144\)"):
        load(f"checkpoint:{path}{SHAPE}", arch())


class Malicious:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("zipped", [True, False])
def test_pickle_that_would_run_code_is_refused_and_does_not_run(tmp_path, zipped):
    witness = tmp_path / "ran"
    path = tmp_path / "weights.pt"
    if zipped:
        torch.save({"weight": Malicious(witness)}, path)
    else:
        path.write_bytes(pickle.dumps({"weight": Malicious(witness)}, protocol=2))
    with refused(HoldfastError, "run code"):
        load(f"checkpoint:{path}{SHAPE}", arch())
    assert not witness.exists()
    pickle.loads(pickle.dumps(Malicious(witness)))
    assert witness.exists(), "vacuous fixture"


def test_objects_beside_tensors_are_named(module, tmp_path):
    path = save({"state_dict": module.state_dict(), "args": SimpleNamespace(lr=1)}, tmp_path)
    with pytest.raises(HoldfastError, match=r"SimpleNamespace.*safetensors\.torch\.save_file"):
        load(f"checkpoint:{path}{SHAPE}", arch())


@pytest.mark.parametrize("kept", [0.5, 0.99])
def test_truncated_files_are_refused(module, file, tmp_path, kept):
    for path in (file, save(module.state_dict(), tmp_path)):
        content = path.read_bytes()
        path.write_bytes(content[: int(len(content) * kept)])
        with pytest.raises(HoldfastError, match="truncated"):
            load(f"checkpoint:{path}{SHAPE}", arch())


def test_compressed_checkpoints_are_refused_unread(tmp_path):
    whole, bomb = save({"weight": torch.zeros(10**6)}, tmp_path), tmp_path / "bomb.pt"
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as copy:
        for record in source.namelist():
            copy.writestr(record, source.read(record))
    with refused(HoldfastError, "bomb.pt'", "4,00", "unpack"):
        load(f"checkpoint:{bomb}{SHAPE}", arch())


def test_text_is_no_checkpoint(tmp_path):
    path = tmp_path / "weights.pt"
    path.write_text("these are no weights")
    with refused(HoldfastError, "whole checkpoint"):
        load(f"checkpoint:{path}{SHAPE}", arch())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (None, "--arch package.module:factory"),
        ("plain", "has the form package.module:factory"),
        ("tests.encoders.nowhere:plain", "No module named"),
        ("tests.encoders.factories:plane", "no attribute 'plane'"),
        ("tests.encoders.factories:number", "returned int"),
        ("tests.encoders.factories:broken", "KeyError: 'width'"),
        ("tests.encoders.factories:not_callable", "expected a function"),
    ],
)
def test_wrong_factories_say_what_to_do(file, name, said):
    with pytest.raises(HoldfastError, match=said):
        load(f"checkpoint:{file}{SHAPE}", Options(arch=name))


def test_factory_beside_the_working_directory_is_found(module, file, tmp_path, monkeypatch):
    (tmp_path / "my_architecture.py").write_text("from tests.encoders.factories import plain\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    encoder = load(f"checkpoint:{file}{SHAPE}", Options(arch="my_architecture:plain"))
    assert isinstance(encoder, Encoder)
    assert torch.equal(encoder(PIXELS), module(PIXELS))


def test_shape_and_normalisation_must_be_said_whole(file):
    with pytest.raises(HoldfastError, match="state it"):
        load(f"checkpoint:{file}", arch())
    with refused(Conflict, "mean", "std"):
        load(f"checkpoint:{file}{SHAPE}&mean=0.5", arch())


MISTAKEN = {
    "module.domain = (1, 8, 8)": "stated by a Domain, as in Domain((3, 224, 224)), got (1, 8, 8)",
    "module.domain = Domain(64)": "domain shape must be positive sizes such as (3, 224, 224), got 64",
    "module.domain = Domain([1, 8, 8])": "domain shape must be positive sizes such as (3, 224, 224), got [1, 8, 8]",
    "module.domain = Domain((1.5, 8))": "domain shape must be positive sizes such as (3, 224, 224), got (1.5, 8)",
    "module.domain = Domain((64,), '0', '1')": "domain needs numbers low < high, got ['0', '1']",
    "module.domain, module.geometry = STATED, (8, 8)": "must be a Geometry or None, got (8, 8)",
    "Geometry(8, 8)": "as in Geometry(256, (224, 224)), got 8 and 8",
    "Geometry(8, (8, 8), 'cubic')": "'cubic'",
}


@pytest.mark.parametrize(("line", "said"), MISTAKEN.items())
def test_inputs_stated_in_another_form_say_so(file, tmp_path, monkeypatch, unchecked, line, said):
    names = "from tests.encoders.factories import STATED, Domain, Geometry, plain\n"
    build = f"def build():\n    module = plain()\n    {line}\n    return module\n"
    (tmp_path / "mistaken.py").write_text(names + build)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "mistaken", raising=False)
    with pytest.raises(HoldfastError, match=re.escape(said)):
        load(f"checkpoint:{file}", Options(arch="mistaken:build"))


def test_a_factory_whose_module_fails_is_one_sentence(file, tmp_path, monkeypatch):
    (tmp_path / "broken_architecture.py").write_text("raise RuntimeError('operator sea::weed does not exist')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(HoldfastError, match=r"cannot be imported .RuntimeError: operator sea::weed"):
        load(f"checkpoint:{file}{SHAPE}", Options(arch="broken_architecture:plain"))


@pytest.mark.slow
def test_a_fresh_process_builds_what_imports_torchvision(tmp_path):
    pytest.importorskip("timm")
    save_file(torch.nn.Linear(4, 2).state_dict(), tmp_path / "weights.safetensors")
    (tmp_path / "mine.py").write_text("import timm, torch\ndef encoder():\n    return torch.nn.Linear(4, 2)\n")
    doctor = [sys.executable, "-m", "holdfast", "doctor", "checkpoint:weights.safetensors?shape=4", "--arch"]
    done = subprocess.run([*doctor, "mine:encoder"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_what_holds_no_weights_is_called_so(tmp_path):
    (tmp_path / "mine.py").write_text("def encoder():\n    pass\n")
    with pytest.raises(HoldfastError, match=r"mine\.py' is no checkpoint"):
        load(f"checkpoint:{tmp_path / 'mine.py'}{SHAPE}", arch())
    save_file({}, tmp_path / "empty.safetensors")
    with pytest.raises(HoldfastError, match=r"empty\.safetensors' holds no weights"):
        load(f"checkpoint:{tmp_path / 'empty.safetensors'}{SHAPE}", arch())
