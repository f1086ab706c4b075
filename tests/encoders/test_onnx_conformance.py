"""ONNX's own cases for each operator: the import computes what the standard stores, or refuses the case by name."""

from __future__ import annotations

import pkgutil
import warnings
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch

from holdfast.core.errors import HoldfastError
from holdfast.encoders.onnx.graph import ATTRIBUTES, OPERATORS, OnnxModule, parse

onnx = pytest.importorskip("onnx")
node = pytest.importorskip("onnx.backend.test.case.node")
helper, numpy_helper, TensorProto = onnx.helper, onnx.numpy_helper, onnx.TensorProto

FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
FILES = {file.name for file in pkgutil.iter_modules(node.__path__)}
POOLS = {"averagepool", "lppool", "maxpool"}
"""Files whose cases take the standard's loops over windows seconds to compute."""


def cases(files: set[str]) -> Iterator[tuple[Any, list[Any], list[Any]]]:
    """Yield model, inputs and outputs of each case of ``files`` (and of those imported before) of numeric inputs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # overflows are some cases' point
        for file in sorted(files):
            import_module(f"{node.__name__}.{file}")
    for case in node._NodeTestCases:
        types = [value.type for value in case.model.graph.input]
        numbers = all(kind.WhichOneof("value") == "tensor_type" for kind in types)
        if types and numbers and TensorProto.STRING not in [kind.tensor_type.elem_type for kind in types]:
            for inputs, outputs in case.data_sets:
                yield case.model, inputs, outputs


def of_one_input(model: Any, inputs: list[Any]) -> tuple[Any, np.ndarray[Any, Any]]:
    """Return the model as one of float pixels, its other inputs constants, and the pixels."""
    model = onnx.ModelProto.FromString(model.SerializeToString())
    graph, values = model.graph, list(model.graph.input)
    types = [value.type.tensor_type.elem_type for value in values]
    first = next((place for place, kind in enumerate(types) if kind in FLOATS), 0)
    for place, (value, held) in enumerate(zip(values, inputs, strict=True)):
        proto = onnx.TensorProto()
        proto.CopyFrom(held if isinstance(held, onnx.TensorProto) else numpy_helper.from_array(np.asarray(held)))
        proto.name = value.name
        if place == first:
            pixels = numpy_helper.to_array(proto).astype(np.float32)
        else:
            graph.initializer.append(proto)
    del graph.input[:]
    name = values[first].name
    if types[first] not in FLOATS:  # pixels are floats, so that the graph begins with a cast
        graph.node.insert(0, helper.make_node("Cast", ["pixels"], [name], to=types[first]))
        name = "pixels"
    graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    return model, pixels


def same(found: np.ndarray[Any, Any], stored: Any) -> bool:
    """Return whether ``found`` is the stored output, of a type of the same kind, to the digits that the type holds."""
    stored = numpy_helper.to_array(stored) if isinstance(stored, onnx.TensorProto) else np.asarray(stored)
    kind = "f" if stored.dtype.kind == "V" else stored.dtype.kind  # numpy knows bfloat16 by no other kind
    digits = 1e-2 if kind == "f" and stored.dtype.itemsize < 4 else 1e-3
    alike = found.dtype.kind == kind or {found.dtype.kind, kind} == {"i", "u"}
    return alike and found.shape == stored.shape and np.allclose(
        found.astype(np.float64), stored.astype(np.float64), rtol=digits, atol=min(digits, 1e-5 * digits / 1e-3),
        equal_nan=True,
    )  # fmt: skip


def outcomes(files: set[str], expanded: bool) -> tuple[set[str], list[str]]:
    """Return the operators of which a case is equal, and the cases that are neither equal nor refused by name."""
    equal, wrong = set[str](), list[str]()
    for model, inputs, outputs in cases(files):
        if not expanded and model.graph.name.endswith("_expanded"):
            continue
        alone, pixels = of_one_input(model, inputs)
        operators = {each.op_type for each in model.graph.node}
        for value, stored in zip(alone.graph.output, outputs, strict=True):
            label = f"{model.graph.name}, {value.name}"
            try:
                found = OnnxModule(parse(alone, value.name, "case"))(torch.from_numpy(pixels)).numpy()
            except HoldfastError as error:
                if not any(name in str(error) for name in (*operators, "Cast", "element type", "0 inputs")):
                    wrong.append(f"{label}: {error}")
            except Exception as error:
                wrong.append(f"{label}: {type(error).__name__}, {error}")
            else:
                equal.update(operators)
                if not same(found, stored):
                    wrong.append(label)
    return equal, wrong


def test_each_case_of_a_known_operator_is_equal_or_refused_by_name():
    known = {operator.lower() for operator in OPERATORS}
    files = {file for file in FILES - POOLS if file.replace("_", "").removesuffix("op") in known}
    equal, wrong = outcomes(files, expanded=False)
    assert not wrong
    assert OPERATORS.keys() - equal <= {"AveragePool", "MaxPool"}, "operators without a case"


@pytest.mark.slow
def test_each_case_is_equal_or_refused_by_name():
    equal, wrong = outcomes(FILES, expanded=True)
    assert not wrong
    assert OPERATORS.keys() <= equal


def schemas() -> list[Any]:
    """Return every version of each operator of the table from operator set 13 on."""
    known = [schema for schema in onnx.defs.get_all_schemas_with_history() if not schema.domain]
    newest = {name: max(s.since_version for s in known if s.name == name and s.since_version <= 13) for name in
              {s.name for s in known if s.since_version <= 13}}  # fmt: skip
    return [s for s in known if s.name in OPERATORS and s.since_version >= newest.get(s.name, 0)]


def test_declared_attributes_are_those_of_the_standard():
    stated = {name: set[str]() for name in OPERATORS}
    for schema in schemas():
        stated[schema.name] |= set(schema.attributes)
    assert not [name for name in OPERATORS if not set(ATTRIBUTES.get(name, ())) <= stated[name]]
    assert ATTRIBUTES.keys() <= {*OPERATORS, "Constant"}


@pytest.mark.parametrize("operator", sorted(OPERATORS))
def test_an_unknown_attribute_is_refused_by_name(operator):
    graph = helper.make_graph(
        [helper.make_node(operator, ["x"], ["y"], sharpness=2)],
        "case",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
    )
    with pytest.raises(HoldfastError, match=f"{operator} .*sharpness"):
        parse(helper.make_model(graph), "y", "case")
