"""Shards of what is bounded are small where bounds take much memory, and results do not depend on them."""

from __future__ import annotations

import torch

import holdfast as hf
from holdfast.core.images import Images
from holdfast.encoders.rvcl import mnist_cnn_a
from holdfast.evaluations.certified.pairs import bounding_inputs
from holdfast.protocol.population import Population


def test_images_of_large_networks_come_in_small_shards() -> None:
    small = Population(hf.load_encoder("builtin:digits-robust"), Images(torch.rand(3, 1, 8, 8)), hf.Run())
    large = Population(mnist_cnn_a(), Images(torch.rand(3, 1, 28, 28)), hf.Run())
    assert bounding_inputs(small, 50_000) == 1
    assert 30 <= bounding_inputs(large, 50_000) <= 60, "some six images at a time, of 334 MB each"
    assert bounding_inputs(large, 10) == 1, "which whoever bounds it refuses"
