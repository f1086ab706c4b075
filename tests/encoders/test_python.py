"""Encoders that a function builds: named on the command line, never by a card."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import holdfast as hf
from holdfast.core.errors import HoldfastError
from holdfast.encoders import Options, load
from holdfast.encoders.trained import architecture_of
from tests.encoders import factories
from tests.facts import refused

PIXELS = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
HOME = "python:tests.encoders.factories"


def test_a_factory_in_the_working_directory_is_an_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine_in_a_script.py").write_text(
        "import holdfast as hf\n"
        "def digits():\n"
        "    module = hf.load_encoder('builtin:digits-robust').module\n"
        "    return hf.Encoder(module, 'whatever', hf.Domain((1, 8, 8)))\n"
    )
    monkeypatch.chdir(tmp_path)
    encoder = load("python:mine_in_a_script:digits")
    assert (encoder.name, encoder.source) == ("digits", "python:mine_in_a_script:digits")
    assert torch.equal(encoder(PIXELS), hf.load_encoder("builtin:digits-robust")(PIXELS))
    assert load("short=python:mine_in_a_script:digits").name == "short"


def test_a_module_states_its_inputs_or_the_reference_does() -> None:
    stated = load(f"{HOME}:stated")
    assert (stated.domain, stated.geometry) == (factories.STATED, factories.Stated.geometry)
    module, plain = load(f"{HOME}:plain?shape=1x8x8&mean=0.5&std=0.25"), load(f"{HOME}:plain?shape=1x8x8")
    assert torch.allclose(module(PIXELS), plain.module((PIXELS - 0.5) / 0.25), atol=1e-6)
    with refused(HoldfastError, "python:tests.encoders.factories:stated", "states", "inputs"):
        load(f"{HOME}:stated?shape=1x8x8")
    with refused(HoldfastError, "(1, 8, 8)", "got size=16", "shape"):
        load(f"{HOME}:stated", Options(size=16))
    with refused(HoldfastError, "?shape=3x224x224", "shape", "unknown"):
        load(f"{HOME}:plain")


def test_an_encoder_from_a_factory_keeps_its_text_tower() -> None:
    assert load(f"{HOME}:with_texts").texts is factories.TEXTS


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("python:json", "a factory has the form package.module:factory, got 'python:json'"),
        ("python:json:nothing_there", "check the spelling and the Python path"),
        ("python:no_such_module_anywhere:net", "check the spelling and the Python path"),
        ("python:json:__name__", "is str, expected a function without arguments"),
        ("python:builtins:dict", "returned dict; expected an nn.Module or an Encoder"),
    ],
)
def test_what_is_no_factory_is_refused_in_a_sentence(reference: str, message: str) -> None:
    with pytest.raises(HoldfastError, match=message):
        load(reference)


def test_no_card_names_code_to_run() -> None:
    """A folder from a stranger is data: what builds its module is said by who loads it, with --arch."""
    assert architecture_of(load(f"{HOME}:stated")) is None
