"""ONNX files of many kinds: element types, old operator sets, weights beside the file, graphs without a batch axis."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from holdfast.bounds.network.tracing import trace
from holdfast.core.errors import HoldfastError
from holdfast.encoders import load
from holdfast.encoders.onnx.files import read_model
from holdfast.encoders.onnx.graph import OnnxModule, parse
from tests.encoders import factories

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
from tests.encoders.test_onnx import gradient, run  # noqa: E402

helper, numpy_helper, TensorProto = onnx.helper, onnx.numpy_helper, onnx.TensorProto

INPUTS = {"float": TensorProto.FLOAT, "uint8": TensorProto.UINT8, "int32": TensorProto.INT32, "bool": TensorProto.BOOL}


def network(
    tmp_path: Path, nodes: list[Any], shape: Any, constants: Any = (), kind: str = "float", **said: Any
) -> Path:
    """Write a graph from ``x`` of ``shape`` to ``y``; ``opset``, ``rank`` of the output and ``external`` data are said."""
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * said.get("rank", 2))
    x = helper.make_tensor_value_info("x", INPUTS[kind], shape)
    model = helper.make_model(
        helper.make_graph(nodes, "g", [x], [y], list(constants)),
        opset_imports=[helper.make_opsetid("", said.get("opset", 17))],
        ir_version=8,
    )
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=said.get("external", False), size_threshold=0, location="weights.bin")
    return path


MATRIX = np.random.default_rng(0).normal(size=(12, 5)).astype(np.float32)
HEAD = [helper.make_node("Flatten", ["f"], ["v"]), helper.make_node("MatMul", ["v", "w"], ["y"])]


def weights(kind: int = TensorProto.FLOAT) -> Any:
    if kind == TensorProto.FLOAT:
        return numpy_helper.from_array(MATRIX, "w")
    return helper.make_tensor("w", kind, MATRIX.shape, MATRIX.flatten().tolist())


def test_uint8_pixels_are_levels(tmp_path):
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[0, 2, 3, 1]),
        helper.make_node("Cast", ["t"], ["f"], to=TensorProto.FLOAT),
        *HEAD,
    ]
    file = network(tmp_path, nodes, ["b", 3, 2, 2], [weights()], "uint8")
    encoder, levels = load(f"onnx:{file}"), torch.randint(0, 256, (4, 3, 2, 2), dtype=torch.uint8)
    assert encoder.caution == ""
    (expected,) = run(file, levels)
    assert np.allclose(encoder(levels / 255).numpy(), expected, atol=1e-3)
    assert gradient(encoder.forward, levels / 255).abs().min() > 0
    with pytest.raises(HoldfastError, match="uint8"):
        load(f"onnx:{file}?mean=0.5&std=0.5")


@pytest.mark.parametrize("operator", ["Mul", "Div", "Max"])
def test_arithmetic_in_uint8_is_refused_by_name(operator, tmp_path):
    half = helper.make_tensor("half", TensorProto.UINT8, [1], [128])
    nodes = [
        helper.make_node(operator, ["x", "half"], ["m"]),
        helper.make_node("Cast", ["m"], ["f"], to=TensorProto.FLOAT),
        *HEAD,
    ]
    with pytest.raises(HoldfastError, match=operator):
        load(f"onnx:{network(tmp_path, nodes, ['b', 3, 2, 2], [half, weights()], 'uint8')}")


def test_a_cast_of_levels_to_integers_is_refused(tmp_path):
    casts = [helper.make_node("Cast", [a], [b], to=to) for a, b, to in (("x", "i", 6), ("i", "f", 1))]
    with pytest.raises(HoldfastError, match="Cast"):
        load(f"onnx:{network(tmp_path, [*casts, *HEAD], ['b', 3, 2, 2], [weights()], 'uint8')}")


@pytest.mark.parametrize("kind", ["int32", "bool"])
def test_other_types_of_inputs_are_refused_by_name(kind, tmp_path):
    nodes = [helper.make_node("Cast", ["x"], ["f"], to=TensorProto.FLOAT), *HEAD]
    with pytest.raises(HoldfastError, match=kind.upper()):
        load(f"onnx:{network(tmp_path, nodes, ['b', 3, 2, 2], [weights()], kind)}")


def test_bfloat16_weights_are_read(tmp_path):
    nodes = [helper.make_node("Flatten", ["x"], ["v"]), helper.make_node("CastLike", ["v", "w"], ["c"])]
    nodes += [helper.make_node("MatMul", ["c", "w"], ["m"]), helper.make_node("Cast", ["m"], ["y"], to=1)]
    encoder = load(f"onnx:{network(tmp_path, nodes, ['b', 1, 3, 4], [weights(TensorProto.BFLOAT16)])}")
    pixels, rounded = torch.rand(2, 1, 3, 4), torch.from_numpy(MATRIX).bfloat16().float()
    assert torch.allclose(encoder(pixels), pixels.flatten(1) @ rounded, atol=1e-6)
    assert not torch.equal(rounded, torch.from_numpy(MATRIX)), "vacuous fixture"


def test_weights_of_few_bits_are_refused_by_name(tmp_path):
    small = helper.make_tensor("w", TensorProto.FLOAT8E4M3FN, MATRIX.shape, MATRIX.flatten().tolist())
    nodes = [helper.make_node("Flatten", ["x"], ["v"]), helper.make_node("Cast", ["w"], ["u"], to=1)]
    nodes += [helper.make_node("MatMul", ["v", "u"], ["y"])]
    with pytest.raises(HoldfastError, match="FLOAT8E4M3FN"):
        load(f"onnx:{network(tmp_path, nodes, ['b', 1, 3, 4], [small], opset=19)}")


def test_weights_beside_the_file_are_read_though_no_message_holds_the_model(tmp_path, monkeypatch):
    nodes = [helper.make_node("Flatten", ["x"], ["v"]), helper.make_node("MatMul", ["v", "w"], ["y"])]
    file = network(tmp_path, nodes, ["b", 1, 3, 4], [weights()], external=True)
    assert (tmp_path / "weights.bin").stat().st_size == MATRIX.nbytes
    check = onnx.checker.check_model

    def limited(model: Any, *args: Any) -> None:  # as protobuf does of more than 2 GiB
        if not isinstance(model, str):
            raise ValueError("the message exceeds the maximum size")
        check(model, *args)

    monkeypatch.setattr(onnx.checker, "check_model", limited)
    pixels = torch.rand(2, 1, 3, 4)
    assert torch.allclose(load(f"onnx:{file}")(pixels), pixels.flatten(1) @ torch.from_numpy(MATRIX), atol=1e-6)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(HoldfastError):
        load(f"onnx:{file}")


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("opset", [9, 10])
def test_old_resizing_is_converted(mode, opset, tmp_path):
    scales = numpy_helper.from_array(np.array([1, 1, 2, 3], np.float32), "s")
    nodes = [helper.make_node("Upsample" if opset == 9 else "Resize", ["x", "s"], ["r"], mode=mode)]
    nodes += [helper.make_node("Flatten", ["r"], ["y"])]
    file, pixels = network(tmp_path, nodes, [2, 3, 4, 4], [scales], opset=opset), torch.rand(2, 3, 4, 4)
    module = OnnxModule(parse(read_model(file, "old"), "y", "old"))
    if mode == "linear":  # torch has asymmetric coordinates for nearest alone
        with pytest.raises(HoldfastError, match="asymmetric"):
            module(pixels)
    else:
        assert np.allclose(module(pixels).numpy(), run(file, pixels)[0], atol=1e-6)


SCALE = numpy_helper.from_array(np.linspace(0.5, 1.5, 4, dtype=np.float32), "s")
BEFORE_13 = [
    ("Softmax", {}),
    ("Softmax", {"axis": 2}),
    ("LogSoftmax", {"axis": 0}),
    ("ReduceSum", {}),
    ("ReduceMean", {"axes": [1, 3], "keepdims": 0}),
    ("Slice", {"starts": [1, 0], "ends": [3, 9], "axes": [1, 2]}),
    ("Pad", {"pads": [0, 0, 1, 2, 0, 0, 0, 1], "value": 0.5}),
    ("Pad", {"pads": [0, 0, 1, 2, 0, 0, 0, 1], "mode": "reflect"}),
    ("Clip", {"max": 0.5}),
    ("DepthToSpace", {"blocksize": 2}),
    ("MaxPool", {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ("AveragePool", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    ("Dropout", {"ratio": 0.5}),
    ("Flatten", {"axis": 2}),
    ("BatchNormalization", {"epsilon": 1e-3}),
    ("Split", {"axis": 1, "split": [1, 3]}),
]


@pytest.mark.parametrize("opset", [7, 9])
@pytest.mark.parametrize(("operator", "attributes"), BEFORE_13, ids=str)
def test_conversion_keeps_what_an_operator_computes(operator, attributes, opset, tmp_path):
    more = ["s"] * 4 if operator == "BatchNormalization" else []
    outputs = ["y", "z"] if operator == "Split" else ["y"]
    nodes = [helper.make_node(operator, ["x", *more], outputs, **attributes)]
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", (2, 4, 6, 6)), ("y", None))
    ]
    model = helper.make_model(
        helper.make_graph(nodes, "g", values[:1], values[1:], [SCALE] if more else []),
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=8,
    )
    onnx.save(onnx.shape_inference.infer_shapes(model), tmp_path / "old.onnx")
    x = torch.randn(2, 4, 6, 6)
    found = OnnxModule(parse(read_model(tmp_path / "old.onnx", "old"), "y", "old"))(x)
    assert np.allclose(found.numpy(), run(str(tmp_path / "old.onnx"), x)[0], atol=1e-5)


def old_nodes(opset: int) -> list[Any]:
    """Return nodes whose operators were written otherwise before operator set 13, at ``opset``."""
    clip = {"min": 0.1, "max": 0.8} if opset < 11 else {}
    return [
        helper.make_node("Clip", ["x"] if clip else ["x", "low", "high"], ["c"], **clip),
        helper.make_node("Unsqueeze", ["c"], ["u"], axes=[1]),
        helper.make_node("Squeeze", ["u"], ["s"], axes=[1]),
        helper.make_node("Softmax", ["s"], ["p"], axis=1),  # over all axes from the first on
        helper.make_node("ReduceSum", ["p"], ["f"], axes=[2], keepdims=1),
        helper.make_node("Flatten", ["f"], ["y"]),
    ]


@pytest.mark.parametrize("opset", [8, 9, 10, 11, 12])
@pytest.mark.parametrize("external", [False, True])
def test_old_operator_sets_are_converted(opset, external, tmp_path):
    ends = [helper.make_tensor(name, TensorProto.FLOAT, [], [value]) for name, value in (("low", 0.1), ("high", 0.8))]
    file = network(
        tmp_path, old_nodes(opset), ["b", 3, 2, 2], ends if opset > 10 else (), opset=opset, external=external
    )
    pixels = torch.rand(4, 3, 2, 2)
    assert np.allclose(load(f"onnx:{file}?mean=0&std=1")(pixels).numpy(), run(file, pixels)[0], atol=1e-6)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("opset", [9, 11])
def test_exports_of_old_operator_sets_equal_the_original(opset, tmp_path):
    module, file = factories.plain().eval(), tmp_path / "old.onnx"
    torch.onnx.export(
        module, (torch.rand(1, 1, 8, 8),), str(file), dynamo=False, opset_version=opset, input_names=["x"]
    )
    pixels = torch.rand(3, 1, 8, 8)
    assert torch.allclose(load(f"onnx:{file}")(pixels), module(pixels), atol=1e-5)


def test_a_graph_of_vectors_without_a_batch_axis(tmp_path):
    file = network(tmp_path, [helper.make_node("MatMul", ["x", "w"], ["y"])], [12], [weights()], rank=1)
    encoder, pixels = load(f"onnx:{file}"), torch.rand(3, 12)
    assert encoder.domain.shape == (12,)
    assert torch.allclose(encoder(pixels), pixels @ torch.from_numpy(MATRIX), atol=1e-6)
    graph = trace(encoder)(pixels.double())
    assert torch.allclose(graph, encoder.to("cpu", torch.float64).forward(pixels.double()))


@pytest.mark.parametrize(("batch", "features"), [("b", 1), (1, 1), (1, 5)])
def test_outputs_of_one_axis_are_embeddings(batch, features, tmp_path):
    part = helper.make_tensor("w", TensorProto.FLOAT, [12, features], MATRIX[:, :features].flatten().tolist())
    size = helper.make_tensor("size", TensorProto.INT64, [1], [-1])
    nodes = [helper.make_node("Flatten", ["x"], ["v"]), helper.make_node("MatMul", ["v", "w"], ["m"])]
    nodes += [helper.make_node("Reshape", ["m", "size"], ["y"])]
    encoder, pixels = load(f"onnx:{network(tmp_path, nodes, [batch, 12], [part, size], rank=1)}"), torch.rand(3, 12)
    assert torch.allclose(encoder(pixels), pixels @ torch.from_numpy(MATRIX[:, :features]), atol=1e-6)


def test_sparse_weights_are_refused_by_name(tmp_path):
    path = network(tmp_path, [helper.make_node("MatMul", ["x", "w"], ["y"])], ["b", 12])
    model = onnx.load(path)
    values, places = (helper.make_tensor("w", k, [1], [1]) for k in (TensorProto.FLOAT, TensorProto.INT64))
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [12, 5]))
    with pytest.raises(HoldfastError, match="'w'"):
        parse(model, "y", "case")


def test_a_compressed_graph_is_read(tmp_path):
    nodes = [helper.make_node("Flatten", ["x"], ["v"]), helper.make_node("MatMul", ["v", "w"], ["y"])]
    file = network(tmp_path, nodes, ["b", 1, 3, 4], [weights()])
    packed = tmp_path / "packed.onnx.gz"
    packed.write_bytes(gzip.compress(file.read_bytes()))
    pixels = torch.rand(2, 1, 3, 4)
    assert torch.equal(load(f"onnx:{packed}")(pixels), load(f"onnx:{file}")(pixels))
