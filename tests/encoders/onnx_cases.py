"""One or more small cases per ONNX operator: inputs after the first, attributes, and the operator set they need."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """``operator(x, *constants)`` where ``x`` are random numbers of ``shape`` in [low, high]."""

    operator: str
    constants: tuple[Array | None, ...] = ()
    attributes: dict[str, Any] = field(default_factory=dict)
    shape: tuple[int, ...] = (2, 4, 6, 6)
    low: float = -2.0
    high: float = 2.0
    outputs: int = 1
    opset: int = 20
    before: str | None = None
    """An operator applied to ``x`` first, to bring it to another type."""

    def __str__(self) -> str:
        return f"{self.operator}-{'-'.join(f'{key}={value}' for key, value in self.attributes.items())}-{self.opset}"


def floats(*shape: int, low: float = -1.0, high: float = 1.0) -> Array:
    return np.random.default_rng(len(shape) + sum(shape)).uniform(low, high, shape).astype(np.float32)


def ints(*values: int) -> Array:
    return np.array(values, dtype=np.int64)


def scalar(value: float) -> Array:
    return np.array(value, dtype=np.float32)


def case(operator: str, *constants: Array | None, **said: Any) -> Case:
    own = {key: said.pop(key) for key in ("shape", "low", "high", "outputs", "opset", "before") if key in said}
    return Case(operator, constants, said, **own)


SPATIAL = {"kernel_shape": [3, 3]}
UNARY = "Abs Ceil Cos Erf Exp Floor Gelu HardSigmoid HardSwish Identity LeakyRelu LogSoftmax Mish Neg Relu Round Selu"
UNARY += " Sigmoid Sign Sin Softmax Softplus Softsign Tanh Celu Elu ThresholdedRelu Shape Size Transpose Dropout IsNaN"
UNARY += (
    " GlobalAveragePool GlobalMaxPool Flatten ReduceL1 ReduceL2 ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum"
)
UNARY += " ReduceSumSquare Squeeze LpNormalization"
BINARY = "Add Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean Min Mul Sub Sum PRelu"

CASES = [
    *(case(name) for name in UNARY.split()),
    *(case(name, floats(4, 1, 1, low=0.5)) for name in BINARY.split()),
    case("Log", low=0.1),
    case("Sqrt", low=0.1),
    case("Reciprocal", low=0.1),
    case("Pow", floats(1) + 2.5, low=0.1),
    case("Pow", floats(1) * 0 + 2),
    case("Mod", floats(1) + 2, fmod=1),
    case("Mod", ints(3), before="Cast"),
    case("Div", ints(3), before="Cast"),
    case("Max", floats(4, 1, 1), floats(1, 6)),
    case("Gelu", approximate="tanh"),
    case("Celu", alpha=0.5),
    case("Elu", alpha=0.5),
    case("Selu", alpha=1.2, gamma=0.9),
    case("LeakyRelu", alpha=0.3),
    case("HardSigmoid", alpha=0.3, beta=0.4),
    case("ThresholdedRelu", alpha=0.4),
    case("Softmax", axis=1),
    case("LogSoftmax", axis=1),
    case("LpNormalization", axis=1, p=1),
    case("Clip", scalar(-0.5), scalar(0.5)),
    case("Clip", None, scalar(0.5)),
    case("Cast", to=7),
    case("Cast", to=9),
    case("Cast", to=1),
    case("CastLike", floats(1)),
    case("Not", before="bool"),
    case("And", np.array([True, False] * 3), before="bool"),
    case("Or", np.array([True, False] * 3), before="bool"),
    case("Where", floats(6), floats(6, 1), before="bool"),
    case("MatMul", floats(6, 5)),
    case("Gemm", floats(5, 3), floats(3), shape=(2, 5), alpha=0.5, beta=2.0),
    case("Gemm", floats(3, 5), shape=(5, 2), transA=1, transB=1),
    case("Einsum", floats(6, 3), equation="bchw,wd->bchd"),
    case("Conv", floats(6, 4, 3, 3), floats(6), pads=[1, 1, 1, 1], strides=[2, 2]),
    case("Conv", floats(8, 1, 3, 3), group=4, dilations=[2, 2], pads=[1, 2, 0, 1]),
    case("Conv", floats(2, 4, 3, 3), auto_pad="SAME_UPPER", strides=[2, 2]),
    case("Conv", floats(2, 4, 2, 2), auto_pad="SAME_LOWER"),
    case("Conv", floats(2, 4, 3, 3), auto_pad="VALID"),
    case("Conv", floats(2, 4, 3), shape=(2, 4, 9)),
    case("ConvTranspose", floats(4, 3, 3, 3), floats(3), strides=[2, 2], pads=[1, 1, 1, 1], output_padding=[1, 1]),
    case("MaxPool", **SPATIAL, strides=[2, 2], pads=[1, 1, 1, 1], ceil_mode=1),
    case("MaxPool", **SPATIAL, strides=[2, 2], pads=[0, 0, 1, 1]),
    case("MaxPool", **SPATIAL, dilations=[2, 2]),
    case("AveragePool", **SPATIAL, strides=[2, 2], pads=[1, 1, 1, 1]),
    case("AveragePool", **SPATIAL, pads=[1, 1, 1, 1], count_include_pad=1),
    case("AveragePool", **SPATIAL, pads=[0, 0, 1, 1]),
    case("AveragePool", **SPATIAL, pads=[0, 1, 1, 0], count_include_pad=1),
    case("AveragePool", **SPATIAL, strides=[2, 2], pads=[0, 1, 1, 2], ceil_mode=1),
    case("AveragePool", **SPATIAL, strides=[2, 2], pads=[2, 2, 2, 2], count_include_pad=1),
    case("MaxPool", **SPATIAL, strides=[2, 2], pads=[0, 1, 1, 2], ceil_mode=1),
    case("MaxPool", **SPATIAL, strides=[2, 2], pads=[2, 2, 2, 2]),
    case("BatchNormalization", floats(4), floats(4), floats(4), floats(4, low=0.5), epsilon=1e-3),
    case("InstanceNormalization", floats(4), floats(4)),
    case("LayerNormalization", floats(6), floats(6)),
    case("LayerNormalization", floats(4, 6, 6), axis=1),
    case("GroupNormalization", floats(4), floats(4), num_groups=2, opset=21),
    case("LRN", size=3, alpha=0.1),
    case("Concat", floats(2, 1, 6, 6), floats(2, 2, 6, 6), axis=1),
    case("ConstantOfShape", shape=(3,), before="Shape"),
    case("DepthToSpace", blocksize=2),
    case("DepthToSpace", blocksize=2, mode="CRD"),
    case("SpaceToDepth", blocksize=2),
    case("Expand", ints(2, 4, 6, 6), shape=(4, 1, 6)),
    case("Flatten", axis=2),
    case("Flatten", axis=-1),
    case("Gather", np.array([[0, -1], [2, 1]]), axis=1),
    case("Gather", np.array(1), axis=2),
    case("GatherElements", np.array([[[[0, -1]]]]), axis=3, shape=(1, 1, 1, 6)),
    case("Pad", ints(0, 0, 1, 2, 0, 0, 0, 1)),
    case("Pad", ints(0, 1, 0, 0, 0, 0, 0, 0), scalar(3)),
    case("Pad", ints(0, 0, 1, 2, 0, 0, 0, 1), mode="reflect"),
    case("Pad", ints(0, 0, 1, 2, 0, 0, 0, 1), mode="edge"),
    case("Pad", ints(1, 2), None, ints(-1)),
    case("Range", np.array(12), np.array(2), before="Size", shape=(1, 3)),
    case("ReduceMean", ints(2, 3), keepdims=0),
    case("ReduceMean", axes=[2, 3], keepdims=0, opset=17),
    case("ReduceSum", ints(1), keepdims=1),
    *(case(name, ints(), noop_with_empty_axes=1) for name in ("ReduceSum", "ReduceMean", "ReduceMax")),
    case("ReduceSum", ints(), noop_with_empty_axes=0),
    case("ReduceSum", noop_with_empty_axes=1),
    case("ReduceProd", ints(1, -1), keepdims=0),
    case("Reshape", ints(0, 2, -1)),
    case(
        "Resize",
        None,
        np.array([1, 1, 2, 2], np.float32),
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    ),
    case("Resize", None, None, ints(2, 4, 9, 12), mode="linear"),
    case(
        "Resize",
        None,
        np.array([1, 1, 1.5, 2], np.float32),
        mode="linear",
        coordinate_transformation_mode="align_corners",
    ),
    case("Resize", None, None, ints(2, 4, 9, 12), mode="cubic"),
    *(
        case("Resize", None, None, ints(2, 4, *size), mode=mode, coordinate_transformation_mode="pytorch_half_pixel")
        for mode in ("linear", "cubic")
        for size in ((1, 1), (1, 4), (9, 1))
    ),
    case(
        "Resize",
        None,
        np.array([1, 1, 0.7, 0.2], np.float32),
        mode="linear",
        coordinate_transformation_mode="pytorch_half_pixel",
    ),
    case("Shape", start=1, end=3),
    case("Slice", ints(1, 0), ints(3, 99), ints(1, 3), ints(1, 2)),
    case("Slice", ints(-1), ints(-(2**62)), ints(2), ints(-2)),
    case("Slice", ints(1, 1), ints(2, 3)),
    case("Split", axis=1, num_outputs=2, outputs=2),
    case("Split", ints(1, 3), axis=1, outputs=2),
    case("Split", axis=1, outputs=2, opset=13),
    case("Squeeze", ints(1), shape=(2, 1, 3)),
    case("Tile", ints(1, 2, 1, 3)),
    case("Transpose", perm=[0, 2, 3, 1]),
    case("Unsqueeze", ints(0, -1)),
]
