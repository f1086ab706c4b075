"""What callers of the two public functions may get wrong."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from holdfast.bounds import Interval, certified_radius, lower_bound
from holdfast.core.balls import Linf
from holdfast.core.errors import HoldfastError
from tests.bounds.test_operations import context


@pytest.mark.parametrize("tolerance", [0.0, -1.0, float("nan")])
def test_a_tolerance_that_never_ends_is_refused(tolerance: float) -> None:
    encoder, x, specifications = context("linear")
    with pytest.raises(HoldfastError, match="tolerance must be"):
        certified_radius(encoder, x, specifications, Linf(0.1), tolerance=tolerance)


def test_methods_have_a_text_form() -> None:
    encoder, x, specifications = context("linear")
    with pytest.raises(HoldfastError, match="did you mean 'alpha'"):
        lower_bound(encoder, x, specifications, Linf(0.1), "alhpa")
    spelled, made = (lower_bound(encoder, x, specifications, Linf(0.1), method) for method in ("interval", Interval()))
    assert torch.equal(spelled, made)


REFUSED = {
    "lower_bound(encoder.module, x, specifications, Linf(0.1))": "wrap the module in one",
    "lower_bound(encoder, x, specifications, 0.1)": "a ball is needed, as in Linf",
    "certified_radius(encoder, x, specifications[0], Linf(0.1))": "specifications must have shape",
}


def test_what_is_no_encoder_or_ball_is_refused() -> None:
    """In a process of its own, without the type checks that tests run under."""
    program = (
        "import sys, torch; from holdfast.core.balls import Linf; from holdfast.bounds import *; "
        "from holdfast.core.errors import HoldfastError; from holdfast.encoders import load\n"
        "encoder = load('builtin:digits-random'); x = torch.rand(1, 1, 8, 8); "
        "specifications = torch.randn(1, 1, 32).double()\n"
        "for call in sys.argv[1:]:\n"
        "    try: eval(call)\n"
        "    except HoldfastError as error: print(str(error).partition('\\n')[0])\n"
    )
    done = subprocess.run([sys.executable, "-c", program, *REFUSED], capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert len(lines) == len(REFUSED), done.stderr
    for line, said in zip(lines, REFUSED.values(), strict=True):
        assert said in line
