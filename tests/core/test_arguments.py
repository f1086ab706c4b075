"""What Python hands over in another form than expected is answered by one sentence that says what was expected."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import holdfast as hf
from holdfast.bounds import lower_bound
from holdfast.core.balls import L2, Linf
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import HoldfastError
from holdfast.core.images import Images
from holdfast.core.run_settings import RunSettings
from holdfast.encoders import Options, load

PIXELS = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
ROBUST = "builtin:digits-robust"


def loose(value: object) -> Any:
    """Return ``value``, of which no type checker knows loose(None)."""
    return value


KINDS: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "complex": (lambda x: x.to(torch.complex64), r"must be real numbers, got torch\.complex64"),
    "sparse": (lambda x: x.to_sparse(), "must be a dense tensor, got the layout sparse_coo"),
    "meta": (lambda x: x.to("meta"), "must be real numbers, got a tensor on device meta"),
    "numpy": (lambda x: x.numpy(), "must be a tensor, got ndarray"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_without_plain_numbers_are_no_images(kind: str, unchecked: None) -> None:
    change, said = KINDS[kind]
    with pytest.raises(HoldfastError, match=f"images {said}"):
        Images(change(PIXELS))
    with pytest.raises(HoldfastError, match=f"pixels {said}"):
        load(ROBUST)(change(PIXELS))
    if kind == "numpy":
        said = "images are a folder, a reference, Images or a tensor"
    for work in (hf.attack, hf.certify):
        with pytest.raises(HoldfastError, match=said):
            work(ROBUST, change(PIXELS), "linf:0.01", progress=False)
    with pytest.raises(HoldfastError, match=said):
        hf.evaluate(ROBUST, change(PIXELS), only="displacement", progress=False)


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_without_plain_numbers_are_no_specifications(kind: str, unchecked: None) -> None:
    change, _ = KINDS[kind]
    with pytest.raises(HoldfastError, match="specifications"):
        lower_bound(load(ROBUST), PIXELS[:1], change(torch.zeros(1, 2, 32)), Linf(0.01))


@pytest.mark.parametrize("kind", ["sparse", "meta"])
def test_tensors_without_plain_numbers_are_no_features(kind: str, unchecked: None) -> None:
    change, said = KINDS[kind]
    with pytest.raises(HoldfastError, match=f"inputs {said}"):
        hf.spade(change(PIXELS.flatten(1)), PIXELS.flatten(1))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: hf.load_encoder(loose(None)), "an encoder reference is text such as 'timm:resnet50', got None"),
        (lambda: hf.load_encoder(ROBUST, arch=loose(3)), "arch is text of the form package.module:factory, got 3"),
        (lambda: hf.load_encoder(ROBUST, size=loose("8")), "size must be a whole number, got '8'"),
        (lambda: Options(size=-1), "size must be at least 1, got -1"),
        (
            lambda: hf.load_images("builtin:digits", loose(None)),
            "loaded for an Encoder, got NoneType; load_encoder makes",
        ),
        (lambda: hf.load_images(loose(None), load(ROBUST)), "named by a folder, a file or a reference, got NoneType"),
        (lambda: hf.load_images("builtin:digits", load(ROBUST), limit=loose("9")), "limit must be a whole number"),
        (lambda: hf.load_images("builtin:digits", load(ROBUST), seed=loose("9")), "seed must be a whole number"),
        (
            lambda: Linf(loose("8/255")),
            r"must be a number such as 8 / 255, got '8/255'\. Ball\.read\('linf:8/255'\)",
        ),
        (lambda: L2(loose(None)), "the radius of a l2 ball must be a number such as 8 / 255, got None"),
        (lambda: Linf(True), "must be a number such as 8 / 255, got True"),
        (lambda: hf.compare(loose(3)), "runs are folders, or what evaluate returns, got 3"),
        (lambda: hf.compare([]), "no run was named"),
        (lambda: hf.check(loose(None), "a<=1"), "runs are folders, or what evaluate returns, got None"),
        (lambda: hf.check("run", loose(3)), "a gate is text of the form .* got 3"),
        (lambda: RunSettings(seed=loose("a")), "seed must be a whole number, got 'a'"),
        (lambda: RunSettings(attack_seed=loose(1.5)), r"attack_seed must be a whole number, got 1\.5"),
        (lambda: RunSettings(batch_size=loose(2.5)), r"batch_size must be a whole number, got 2\.5"),
        (lambda: RunSettings(device=loose(None)), "device.*None.*cpu"),
        (lambda: hf.attack(ROBUST, PIXELS, "linf:0.01", seed=loose("a")), "seed must be a whole number, got 'a'"),
        (lambda: hf.attack(ROBUST, PIXELS, loose(0.1)), r"a ball is needed or its text, as in .*, got 0\.1"),
        (lambda: hf.attack(ROBUST, PIXELS, "linf:0.01", attack=loose(3)), "attack must be an Attack"),
        (lambda: hf.attack(ROBUST, PIXELS, "linf:0.01", objective=loose(3)), "objective must be an Objective"),
        (
            lambda: hf.certify(ROBUST, PIXELS, "linf:0.01", limit=loose("a")),
            "limit must be a whole number, got 'a'",
        ),
        (lambda: hf.evaluate(ROBUST, PIXELS, settings=loose(3)), "settings have the form .* got 3"),
        (lambda: Images(loose(None)), "images must be a tensor, got NoneType"),
        (lambda: Images(torch.tensor(1.0)), r"images must be of shape \(n, \*pixels\), got \(\)"),
        (lambda: Images(PIXELS, labels=loose([0, 1, 2, 3])), "labels of images must be a tensor, got list"),
        (lambda: Images(PIXELS, labels=torch.rand(4)), r"one whole number per image, .* got torch\.float32"),
        (
            lambda: Images(PIXELS, labels=torch.zeros(4, 2, dtype=torch.int64)),
            r"one whole number per image, .*\(4, 2\)",
        ),
        (lambda: Images(PIXELS, ids=loose(range(4))), "ids must be text, got 0"),
    ],
)
def test_arguments_of_another_type_are_one_sentence(call: Callable[[], Any], said: str, unchecked: None) -> None:
    with pytest.raises(HoldfastError, match=said):
        call()


def test_numbers_of_other_libraries_are_numbers(unchecked: None) -> None:
    assert Linf(float(np.float32(0.5))) == Linf(loose(np.float32(0.5)))
    assert RunSettings(seed=loose(np.int64(3))).seed == 3
    labels = torch.arange(4, dtype=torch.uint8)
    assert Images(PIXELS, labels=labels).labels is labels
    with pytest.raises(HoldfastError, match=r"no run|holds no"):
        hf.compare(Path("nowhere"))


def flat() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 2)).eval()


class Weighted(nn.Module):
    """A product with a weight that is kept as a parameter, as a buffer or as neither."""

    def __init__(self, weight: Tensor, kept: str) -> None:
        super().__init__()
        if kept == "buffer":
            self.register_buffer("weight", weight)
        else:
            self.weight = nn.Parameter(weight) if kept == "parameter" else weight

    def forward(self, x: Tensor) -> Tensor:
        return (self.weight @ x.flatten(1).T).T


UNREADABLE: dict[str, Callable[[], nn.Module]] = {
    "compiled": lambda: loose(torch.compile(flat())),
    "exported with guards": lambda: torch.export.export(flat(), (torch.rand(1, 1, 2, 2),)).module(),
    "sparse": lambda: Weighted(torch.rand(2, 4).to_sparse(), "parameter"),
    "sparse by rows": lambda: Weighted(torch.rand(2, 4).to_sparse_csr(), "buffer"),
    "a sparse buffer": lambda: Weighted(torch.rand(2, 4).to_sparse(), "buffer"),
    "a sparse attribute": lambda: Weighted(torch.rand(2, 4).to_sparse(), "attribute"),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("kind", UNREADABLE)
def test_modules_that_hide_their_code_or_weights_are_refused(kind: str) -> None:
    with pytest.raises(HoldfastError, match=r"^mine: ") as refused:
        Encoder(UNREADABLE[kind](), "mine", Domain((1, 2, 2)))
    assert len(str(refused.value)) <= 240


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_bounds_refuse_torchscript_by_name() -> None:
    encoder = Encoder(nn.Sequential(nn.Identity(), torch.jit.script(flat())), "mine", Domain((1, 2, 2)))
    with pytest.raises(HoldfastError, match=r"^mine .*TorchScript"):
        lower_bound(encoder, torch.rand(1, 1, 2, 2), torch.eye(2, dtype=torch.float64)[None], Linf(0.01))


def test_an_exported_program_without_guards_is_bounded() -> None:
    module = torch.export.export(flat(), (torch.rand(1, 1, 2, 2),)).module(check_guards=False)
    encoder, x = Encoder(module, "exported", Domain((1, 2, 2))), torch.rand(1, 1, 2, 2)
    w = torch.eye(2, dtype=torch.float64)[None]
    bound = lower_bound(encoder, x, w, Linf(0.01))
    assert bool((bound[0] <= encoder(x)[0]).all())
