"""The ONNX import: every operator against onnxruntime, whole networks against torch, gradients included."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from holdfast.bounds import lower_bound
from holdfast.bounds.network.tracing import trace
from holdfast.core.balls import Linf
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import HoldfastError, HoldfastWarning
from holdfast.encoders import Options, load
from holdfast.encoders.baseline import random_init
from holdfast.encoders.loading.inputs import declare_missing_operators
from holdfast.encoders.onnx.graph import OPERATORS, OnnxModule, parse
from holdfast.run import checkup as doctor
from tests.encoders import factories
from tests.encoders.onnx_cases import CASES, Case
from tests.facts import says, warned

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")
helper, numpy_helper, TensorProto = onnx.helper, onnx.numpy_helper, onnx.TensorProto

# The exporters warn of each other and of themselves; what they write is what is tested.
pytestmark = [
    pytest.mark.filterwarnings(f"ignore::{kind}")
    for kind in ("DeprecationWarning", "FutureWarning", "torch.jit.TracerWarning")
]
PREPARATIONS: dict[str, Any] = {
    "Cast": ("Cast", {"to": TensorProto.INT64}),
    "bool": ("Cast", {"to": TensorProto.BOOL}),
    "Shape": ("Shape", {}),
    "Size": ("Size", {}),
}


def model_of(case: Case) -> Any:
    """Return the model of one node, or of two where the input must first become of another type."""
    nodes, first = [], "x"
    if case.before:
        operator, attributes = PREPARATIONS[case.before]
        nodes, first = [helper.make_node(operator, ["x"], ["prepared"], **attributes)], "prepared"
    names = [f"c{place}" if value is not None else "" for place, value in enumerate(case.constants)]
    inputs = [first, *names]
    outputs = [f"y{place}" for place in range(case.outputs)]
    nodes.append(helper.make_node(case.operator, inputs, outputs, **case.attributes))
    graph = helper.make_graph(
        nodes,
        "case",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, case.shape)],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [
            numpy_helper.from_array(np.asarray(value), f"c{i}")
            for i, value in enumerate(case.constants)
            if value is not None
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", case.opset)], ir_version=10)
    return onnx.shape_inference.infer_shapes(model)


def run(model: Any, x: torch.Tensor) -> list[Any]:
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    content = model if isinstance(model, (str, Path)) else model.SerializeToString()
    session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: x.numpy()})


def test_every_operator_has_a_case():
    assert {case.operator for case in CASES} == set(OPERATORS)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_operator_agrees_with_onnxruntime(case):
    model = model_of(case)
    x = case.low + (case.high - case.low) * torch.rand(case.shape)
    for output, expected in zip(model.graph.output, run(model, x), strict=True):
        found = OnnxModule(parse(model, output.name, "case"))(x)
        assert found.shape == expected.shape
        assert np.allclose(found.numpy(), expected, rtol=1e-5, atol=1e-5, equal_nan=True)
        double = OnnxModule(parse(model, output.name, "case")).double()(x.double())
        assert np.allclose(double.numpy(), expected, rtol=1e-4, atol=1e-4), "float64"


def export(module: nn.Module, path: Path, shape: tuple[int, ...], dynamo: bool = True, dynamic: bool = True) -> Path:
    pixels = torch.rand(2 if dynamic else 1, *shape)
    said: dict[str, Any] = {"dynamo": dynamo, "verbose": False, "input_names": ["x"], "external_data": False}
    if dynamic:
        said |= {"dynamic_shapes": ({0: torch.export.Dim("b")},)} if dynamo else {"dynamic_axes": {"x": {0: "b"}}}
    torch.onnx.export(module.eval(), (pixels,), str(path), **said)
    return path


@pytest.fixture(scope="module")
def module() -> nn.Module:
    module = factories.plain()
    module(torch.rand(9, 1, 8, 8))
    return module.eval()


@pytest.fixture(scope="module")
def file(module, tmp_path_factory) -> Path:
    return export(module, tmp_path_factory.mktemp("onnx") / "encoder.onnx", (1, 8, 8), dynamo=False)


def gradient(function, pixels: torch.Tensor) -> torch.Tensor:
    """Return the slope of a fixed weighting of the codes (of layer-normalised ones, the sum of squares has none)."""
    pixels = pixels.clone().requires_grad_()
    codes = function(pixels)
    (found,) = torch.autograd.grad((codes * torch.arange(codes.shape[1]).cos()).sum(), pixels)
    return found


def assert_same(encoder, module: nn.Module, file: Path) -> None:
    """Codes equal those of torch and onnxruntime; gradients equal those of torch."""
    pixels = torch.rand(3, *encoder.domain.shape)
    assert torch.allclose(encoder(pixels), module(pixels), atol=1e-4)
    assert np.allclose(encoder(pixels).numpy(), run(str(file), pixels)[0], atol=1e-4)
    ours, theirs = gradient(encoder.forward, pixels), gradient(module, pixels)
    assert theirs.abs().max() > 0, "vacuous fixture"
    assert torch.allclose(ours, theirs, rtol=1e-3, atol=1e-4 * float(theirs.abs().max()))


def test_small_network_equals_the_original(module, file):
    assert_same(load(f"onnx:{file}"), module, file)


FEWER_BLOCKS: dict[str, dict[str, Any]] = {
    "vit_tiny_patch16_224": {"img_size": 32, "depth": 2},
    "convnext_atto": {"depths": (1, 1, 2, 1)},
    "mixer_s32_224": {"img_size": 64},
    # With and without shifted windows, and a merging of patches between.
    "swin_tiny_patch4_window7_224": {"img_size": 56, "depths": (2, 2), "embed_dim": 32, "num_heads": (2, 4)},
}
"""Blocks repeat what an exporter writes."""


@pytest.mark.filterwarnings("ignore::holdfast.core.errors.HoldfastWarning")
@pytest.mark.parametrize(
    ("name", "size", "dynamo"),
    [
        ("resnet18", 64, False),
        pytest.param("vit_tiny_patch16_224", 32, False, marks=pytest.mark.slow),
        pytest.param("convnext_atto", 32, False, marks=pytest.mark.slow),
        pytest.param("resnet18", 64, True, marks=pytest.mark.slow),
        pytest.param("vit_tiny_patch16_224", 32, True, marks=pytest.mark.slow),
        pytest.param("convnext_atto", 32, True, marks=pytest.mark.slow),
        pytest.param("efficientnet_b0", 64, False, marks=pytest.mark.slow),
        pytest.param("mobilenetv3_small_100", 64, True, marks=pytest.mark.slow),
        pytest.param("swin_tiny_patch4_window7_224", 56, True, marks=pytest.mark.slow),
        pytest.param("mixer_s32_224", 64, True, marks=pytest.mark.slow),
    ],
)
def test_exported_networks_equal_the_originals(name, size, dynamo, tmp_path):
    declare_missing_operators()
    timm = pytest.importorskip("timm")
    module = timm.create_model(name, num_classes=0, **FEWER_BLOCKS.get(name, {})).eval().requires_grad_(False)
    file = export(module, tmp_path / f"{name}.onnx", (3, size, size), dynamo)
    assert_same(load(f"onnx:{file}"), module, file)


@pytest.mark.slow
def test_dynamo_export_equals_the_original(module, tmp_path):
    file = export(module, tmp_path / "dynamo.onnx", (1, 8, 8), dynamo=True)
    assert_same(load(f"onnx:{file}"), module, file)


def certified_codes(reference: str, shape: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what the traced graph and what the encoder computes of three images, in float64."""
    encoder, pixels = load(reference), torch.rand(3, *shape, dtype=torch.float64)
    return trace(encoder)(pixels), encoder.to("cpu", torch.float64).forward(pixels)


class Reshaped(nn.Module):
    """Sizes that follow from those of the input, as forward methods write them, and a mask that keeps every token."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.token, self.out = nn.Conv2d(1, 6, 2, 2), nn.Parameter(torch.rand(1, 1, 6)), nn.Linear(6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.conv(x))
        tokens = y.reshape(y.shape[0], y.shape[1], -1).permute(0, 2, 1)
        tokens = torch.cat([self.token.expand(x.shape[0], -1, -1), tokens], 1)
        mask = (torch.arange(17) >= 0).expand(17, 17)
        heads = tokens[:, None]
        tokens = tokens + nn.functional.scaled_dot_product_attention(heads, heads, heads, mask)[:, 0]
        return self.out(tokens[:, 0])


@pytest.mark.slow
@pytest.mark.parametrize("dynamo", [True, False])
@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("kind", [Reshaped, factories.plain])
def test_what_any_exporter_writes_can_be_certified(kind, dynamo, dynamic, tmp_path):
    file = export(kind().eval(), tmp_path / "e.onnx", (1, 8, 8), dynamo, dynamic)
    graph, codes = certified_codes(f"onnx:{file}", (1, 8, 8))
    assert codes.abs().max() > 0
    assert torch.allclose(graph, codes, rtol=1e-9, atol=1e-9)


def test_doctor_finds_it_healthy_and_fingerprints_are_stable(file):
    checks = doctor.loading_checks(lambda: load(f"onnx:{file}?mean=0.5&std=0.5"))
    assert {check.status for check in checks} == {"ok"}
    assert "1 Conv" in next(check.sentence for check in checks if check.name == "layers")


def test_weights_are_drawn_anew_for_a_random_baseline(file):
    encoder = load(f"onnx:{file}")
    drawn, other = random_init(encoder, 1), random_init(encoder, 2)
    pixels = torch.rand(3, 1, 8, 8)
    assert drawn.domain == encoder.domain
    assert drawn(pixels).isfinite().all()
    assert len({each.fingerprint for each in (encoder, drawn, other)}) == 3
    assert not torch.allclose(drawn(pixels), encoder(pixels), rtol=0.1)
    assert 0.1 < drawn(pixels).norm() / encoder(pixels).norm() < 10, "the scale stays"


def test_fingerprint_sees_the_graph(tmp_path):
    tanh, relu = (nn.Sequential(nn.Flatten(), part) for part in (nn.Tanh(), nn.ReLU()))
    files = [export(part, tmp_path / f"{name}.onnx", (1, 8, 8), False) for part, name in ((tanh, "a"), (relu, "b"))]
    first, second = (load(f"onnx:{file}").fingerprint for file in files)
    assert first != second


def test_inner_value_and_pooling_leave_a_head_out(module, file):
    graph = onnx.load(file).graph
    features = next(node.output[0] for node in graph.node if node.op_type == "Relu")
    encoder = load(f"onnx:{file}?output={features}&pool=mean")
    pixels = torch.rand(2, 1, 8, 8)
    assert torch.allclose(encoder(pixels), module[:3](pixels).mean((2, 3)), atol=1e-5)
    assert encoder.inputs["pooling"] == "mean"
    assert encoder.parameters < load(f"onnx:{file}").parameters, "the head's weights must not be kept"
    with pytest.raises(HoldfastError, match="unknown name 'nothing'"):
        load(f"onnx:{file}?output=nothing")
    with pytest.raises(HoldfastError, match="no cls token"):
        load(f"onnx:{file}?output={features}&pool=cls")(pixels)


def test_graph_for_one_image_runs_image_by_image(module, tmp_path):
    file = export(module, tmp_path / "one.onnx", (1, 8, 8), dynamo=False, dynamic=False)
    pixels = torch.rand(3, 1, 8, 8)
    assert torch.allclose(load(f"onnx:{file}")(pixels), module(pixels), atol=1e-5)


def test_colour_without_normalisation_warns_unless_it_is_said(tmp_path):
    file = export(nn.Flatten(), tmp_path / "colour.onnx", (3, 4, 4), dynamo=False)
    with warned(HoldfastWarning, "nothing", "normalisation"):
        unsure = load(f"onnx:{file}")
    assert says(unsure.caution, "nothing", "normalisation")
    assert unsure.inputs["normalisation"] == "not stated"
    pixels = torch.rand(2, 3, 4, 4)
    stated = load(f"onnx:{file}?mean=0&std=1")
    assert torch.equal(stated(pixels), pixels.flatten(1))
    assert not stated.caution


def write(tmp_path: Path, nodes: list[Any], inputs=("x",), outputs=("y",), opset: int = 17, batch: Any = "b") -> Path:
    values = [
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, [batch, 8]) for n in names] for names in (inputs, outputs)
    ]
    model = helper.make_model(
        helper.make_graph(nodes, "g", *values), opset_imports=[helper.make_opsetid("", opset)], ir_version=8
    )
    onnx.save(model, tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def test_unknown_operators_are_refused_by_name_with_what_is_supported(tmp_path):
    file = write(tmp_path, [helper.make_node("Hardmax", ["x"], ["z"]), helper.make_node("Det", ["z"], ["y"])])
    with pytest.raises(HoldfastError, match=r"cannot be imported: Det, Hardmax; supported: Abs, Add, .*, Conv, "):
        load(f"onnx:{file}")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"inputs": ("x", "z"), "nodes": [helper.make_node("Add", ["x", "z"], ["y"])]}, "needs 2 inputs"),
        (
            {
                "outputs": ("y", "y2"),
                "nodes": [helper.make_node(n, ["x"], [o]) for n, o in (("Abs", "y"), ("Exp", "y2"))],
            },
            r"choose one: \?output=y\|y2",
        ),
        ({"opset": 6}, "operator set 6"),
        (
            {
                "opset": 8,
                "nodes": [
                    helper.make_node("Constant", [], ["s"], value=numpy_helper.from_array(np.ones(8, np.float32))),
                    helper.make_node("BatchNormalization", ["x", "s", "s", "s", "s"], ["y"], spatial=0),
                ],
            },
            "operator set 8",
        ),
        ({"batch": 5}, "exactly 5 images"),
    ],
)
def test_unusable_graphs_say_what_to_do(change, said, tmp_path):
    with pytest.raises(HoldfastError, match=said):
        load(f"onnx:{write(tmp_path, **{'nodes': [helper.make_node('Abs', ['x'], ['y'])], **change})}")


@pytest.mark.parametrize(
    ("operator", "attributes", "outputs"),
    [
        ("MaxPool", {"kernel_shape": [2, 2]}, 2),
        ("AveragePool", {"kernel_shape": [2, 2], "dilations": [2, 2]}, 1),
    ],
)
def test_variants_that_are_not_imported_are_refused(operator, attributes, outputs):
    model = model_of(Case(operator, (), attributes, outputs=outputs))
    with pytest.raises(HoldfastError, match=f"ONNX operator {operator} with .* is not supported"):
        OnnxModule(parse(model, f"y{outputs - 1}", "case"))(torch.rand(2, 4, 6, 6))


def test_resizing_that_torch_does_not_know_is_refused():
    doubled, channels, uneven = (np.array([1, *scales], np.float32) for scales in ((1, 2, 2), (2, 1, 1), (1, 0.7, 1)))
    for scales, attributes in (
        (doubled, {"mode": "nearest"}),
        (doubled, {"mode": "linear", "antialias": 1}),
        (doubled, {"mode": "cubic", "cubic_coeff_a": -0.5}),
        (channels, {"mode": "linear"}),
        (uneven, {"mode": "linear", "coordinate_transformation_mode": "align_corners"}),
    ):
        with pytest.raises(HoldfastError, match="ONNX operator Resize with"):
            OnnxModule(parse(model_of(Case("Resize", (None, scales), attributes)), "y0", "case"))(
                torch.rand(2, 4, 6, 6)
            )


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_response_normalisation_reads_the_window_of_the_standard(size):
    """Onnxruntime refuses even sizes; channel c reads from c - floor((size - 1) / 2) to c + ceil((size - 1) / 2)."""
    model, x = model_of(Case("LRN", (), {"size": size, "alpha": 0.5, "beta": 0.6, "bias": 1.2})), torch.rand(2, 4, 6, 6)
    found = OnnxModule(parse(model, "y0", "case"))(x)
    for c in range(4):
        first, last = max(0, c - (size - 1) // 2), min(3, c + -(-(size - 1) // 2))
        total = x[:, first : last + 1].square().sum(1)
        assert torch.allclose(found[:, c], x[:, c] / (1.2 + 0.5 / size * total) ** 0.6, atol=1e-6)


@pytest.mark.parametrize("name", ["L1", "L2", "SumSquare", "Sum", "Mean", "Max", "Min", "Prod"])
@pytest.mark.parametrize("axes", [(), (np.array([], np.int64),)])
def test_a_reduction_over_no_axes_keeps_every_entry(name, axes):
    """Each entry is reduced alone (the standard; onnxruntime leaves out the squares)."""
    model, x = model_of(Case(f"Reduce{name}", axes, {"noop_with_empty_axes": 1})), torch.randn(2, 3, 4)
    expected = {"L1": x.abs(), "L2": x.abs(), "SumSquare": x.square()}.get(name, x)
    assert torch.allclose(OnnxModule(parse(model, "y0", "case"))(x), expected)


def test_damaged_files_are_refused(file, tmp_path):
    path = tmp_path / "cut.onnx"
    path.write_bytes(file.read_bytes()[:-200])
    with pytest.raises(HoldfastError, match="not a whole ONNX model"):
        load(f"onnx:{path}")
    path.write_text("no model at all")
    with pytest.raises(HoldfastError, match="not a whole ONNX model"):
        load(f"onnx:{path}")


def test_size_must_fit_the_graph(file):
    with pytest.raises(HoldfastError, match=r"cannot take \(1, 9, 9\)"):
        load(f"onnx:{file}", Options(size=9))


@pytest.mark.parametrize("shape", [(1,), (2, 1, 1), (2, 3, 3)])
def test_a_parametric_relu_can_be_bounded(shape: tuple[int, ...]) -> None:
    nodes = [helper.make_node("PRelu", ["x", "slope"], ["y"]), helper.make_node("Flatten", ["y"], ["z"])]
    slope = numpy_helper.from_array(
        np.linspace(-0.5, 1.5, int(np.prod(shape)), dtype=np.float32).reshape(shape), "slope"
    )
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("x", "z")]
    model = helper.make_model(helper.make_graph(nodes, "case", ends[:1], ends[1:], [slope]), ir_version=10)
    encoder = Encoder(OnnxModule(parse(model, "z", "case")), "prelu", Domain((2, 3, 3), -1.0, 1.0))
    x, weights = torch.zeros(1, 2, 3, 3), torch.randn(1, 4, 18, dtype=torch.float64)
    least = (weights[0] @ encoder(torch.rand(2000, 2, 3, 3) - 0.5).double().T).amin(1)
    found = lower_bound(encoder, x, weights, Linf(0.5), "alpha:steps=5")[0]
    assert (found <= least).all()
    assert found.isfinite().all()
    assert [node.name for node in trace(encoder).nodes].count("relu") == 1
