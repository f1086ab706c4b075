"""The attributes that the import knows of each operator; a node with another one is refused."""

from __future__ import annotations

from collections.abc import Mapping

WINDOW = ("auto_pad", "dilations", "kernel_shape", "pads", "strides")
REDUCTION = ("keepdims", "noop_with_empty_axes")

ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
    "AveragePool": (*WINDOW, "ceil_mode", "count_include_pad"),
    "BatchNormalization": ("epsilon", "momentum", "training_mode"),
    "Cast": ("round_mode", "saturate", "to"),
    "CastLike": ("round_mode", "saturate"),
    "Celu": ("alpha",),
    "Concat": ("axis",),
    "Constant": ("value", "value_float", "value_floats", "value_int", "value_ints"),
    "ConstantOfShape": ("value",),
    "Conv": (*WINDOW, "group"),
    "ConvTranspose": (*WINDOW, "group", "output_padding", "output_shape"),
    "DepthToSpace": ("blocksize", "mode"),
    "Dropout": ("seed",),
    "Einsum": ("equation",),
    "Elu": ("alpha",),
    "Flatten": ("axis",),
    "Gather": ("axis",),
    "GatherElements": ("axis",),
    "Gelu": ("approximate",),
    "Gemm": ("alpha", "beta", "transA", "transB"),
    "GroupNormalization": ("epsilon", "num_groups", "stash_type"),
    "HardSigmoid": ("alpha", "beta"),
    "InstanceNormalization": ("epsilon",),
    "LRN": ("alpha", "beta", "bias", "size"),
    "LayerNormalization": ("axis", "epsilon", "stash_type"),
    "LeakyRelu": ("alpha",),
    "LogSoftmax": ("axis",),
    "LpNormalization": ("axis", "p"),
    "MaxPool": (*WINDOW, "ceil_mode", "storage_order"),
    "Mod": ("fmod",),
    "Pad": ("mode",),
    "Range": ("stash_type",),
    **{f"Reduce{name}": (*REDUCTION, "axes") for name in ("L1", "L2", "Max", "Mean", "Min", "Prod", "SumSquare")},
    "ReduceSum": REDUCTION,
    "Reshape": ("allowzero",),
    "Resize": (
        *("antialias", "axes", "coordinate_transformation_mode", "cubic_coeff_a", "exclude_outside"),
        *("extrapolation_value", "keep_aspect_ratio_policy", "mode", "nearest_mode"),
    ),
    "Selu": ("alpha", "gamma"),
    "Shape": ("end", "start"),
    "Softmax": ("axis",),
    "SpaceToDepth": ("blocksize", "mode"),
    "Split": ("axis", "num_outputs"),
    "ThresholdedRelu": ("alpha",),
    "Transpose": ("perm",),
}
"""Operators that are not listed have none. Those that change no result of the variants imported here are listed and not
read: ``seed``, ``momentum``, ``saturate``, ``round_mode``, ``stash_type``, ``storage_order``, ``extrapolation_value``."""
