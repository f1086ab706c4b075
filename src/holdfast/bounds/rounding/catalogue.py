"""By how much each operation, as it is executed, may differ from the same operation of real numbers on the same operands.

Every operation that can be bounded is here: it is exact, it has a rule, or it is refused by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import torch

from holdfast.bounds.network.graph import Graph, Step
from holdfast.bounds.network.tracing import CASTS
from holdfast.bounds.relaxations.rules import Box
from holdfast.bounds.rounding import functions, sums
from holdfast.bounds.rounding.formats import NAMES, Format
from holdfast.bounds.rounding.steps import Execution, Rule, Values
from holdfast.core.errors import HoldfastError

EXACT = frozenset(
    (
        *(
            "view",
            "_unsafe_view",
            "reshape",
            "flatten",
            "unflatten",
            "squeeze",
            "unsqueeze",
            "permute",
            "transpose",
            "t",
        ),
        *("expand", "repeat", "tile", "repeat_interleave", "select", "slice", "narrow", "index_select", "flip", "roll"),
        *("pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "im2col", "upsample_nearest1d", "upsample_nearest2d"),
        *("alias", "clone", "contiguous", "detach", "lift_fresh_copy", "split", "split_with_sizes", "chunk", "unbind"),
        *("index", "gather", "dropout", "cat", "stack", "isnan", "neg", "relu", "abs", "amax"),
        *("max_pool1d", "max_pool2d", "max_pool3d", "max_pool2d_with_indices", "_assert_tensor_metadata"),
        *("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d"),
    )
)
"""Operations that round nothing: what they return is among what they are given."""
ROUNDING: dict[str, Rule] = {
    "linear": sums.sum_of(sums.inner(1)),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), sums.sum_of(sums.kernel)),
    **{f"conv_transpose{axes}d": sums.sum_of(sums.kernel_of_transposed) for axes in (1, 2, 3)},
    **dict.fromkeys(("matmul", "mm", "bmm", "mv", "dot"), sums.sum_of(sums.inner(0))),
    **dict.fromkeys(("addmm", "baddbmm"), sums.sum_of(sums.inner(1))),
    **dict.fromkeys(("sum", "mean"), sums.sum_of(sums.entries_of)),
    **{f"avg_pool{axes}d": sums.sum_of(sums.pooled(axes)) for axes in (1, 2, 3)},
    **{f"adaptive_avg_pool{axes}d": sums.sum_of(sums.pooled_adaptively(axes)) for axes in (1, 2, 3)},
    **dict.fromkeys(("add", "sub", "rsub"), sums.add),
    **dict.fromkeys(("mul", "div"), sums.scaled),
    **dict.fromkeys(("pad", "constant_pad_nd", "where", "clamp", "clip", "maximum", "minimum"), sums.limits),
    **dict.fromkeys(("clamp_min", "clamp_max", "hardtanh", "relu6"), sums.limits),
    **dict.fromkeys(("batch_norm", "_native_batch_norm_legit_no_training"), sums.batch_norm),
    **dict.fromkeys(functions.ULPS, functions.function),
    **dict.fromkeys(("softmax", "_softmax"), functions.softmax),
    "linalg_vector_norm": functions.norm,
    "layer_norm": functions.layer_norm,
    "group_norm": functions.group_norm,
    "instance_norm": functions.instance_norm,
    **dict.fromkeys(("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d"), functions.interpolated),
}
UNKNOWN = {
    "scaled_dot_product_attention": "its kernels differ in what they round",
    "_upsample_bilinear2d_aa": "its weights are computed as it runs",
}
"""Operations that can be bounded in real arithmetic alone, and why."""
NARROW = {
    **{f"conv_transpose{axes}d": "parts that overlap may be added in half precision" for axes in (1, 2, 3)},
    "adaptive_avg_pool3d": "it may sum in half precision",
    **dict.fromkeys(("upsample_linear1d", "upsample_trilinear3d"), "it may round between its axes"),
    "instance_norm": "its mean and deviation may be stored in half precision",
}
"""Operations of which kernels keep intermediate values in half precision where that is the type, and why none is bounded."""


NORMS = frozenset(("batch_norm", "_native_batch_norm_legit_no_training", "layer_norm", "group_norm"))
"""They compute in the wider of the types that they are given."""
HALF = (torch.float16, torch.bfloat16)


def rounds(name: str, owner: str, place: str, sources: Sequence[torch.dtype], dtype: torch.dtype) -> bool:
    """Return whether an operation may round.

    Raises:
        HoldfastError: nobody knows by how much.
    """
    if name in EXACT:
        return False
    if name in CASTS:
        return any(
            torch.finfo(source).eps < torch.finfo(dtype).eps or torch.finfo(source).max > torch.finfo(dtype).max
            for source in sources
        )
    wider = any(
        torch.finfo(s).eps < torch.finfo(dtype).eps or torch.finfo(s).max > torch.finfo(dtype).max for s in sources
    )
    reason = UNKNOWN.get(name, "nothing is known of it")
    if wider and name not in NORMS:
        reason = f"its operands are converted to {NAMES[dtype]} first"
    elif dtype in HALF and name in NARROW:
        reason = NARROW[name]
    elif name in ROUNDING:
        return True
    raise HoldfastError(
        f"{owner} uses the operation {name!r} ({place}), whose rounding has no bound here ({reason}); certify it in real "
        "arithmetic, in float32, or by noisy copies (method smoothing)"
    )


def local_error(graph: Graph, step: Step, boxes: Sequence[Box], sums: Format) -> Values:
    """Return how far each entry of what ``step`` computes may be from the same operation of real numbers.

    Infinite where rounding may lose everything, or a value may exceed the largest of its type.
    """
    if step.name in CASTS:
        return Execution(graph, step, boxes, sums).rounded(0.0)
    error = ROUNDING[step.name](Execution(graph, step, boxes, sums))
    return torch.where(error.isnan(), inf, error)
