"""One thread, one seed, shapes checked at run time."""

from __future__ import annotations

from tests import shapes

# The jaxtyping annotations of the library are checked while tests run; users do not pay for it.
shapes.install("holdfast")

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import jaxtyping
import pytest
import torch

torch.set_num_threads(1)
# One test runs on each core already: workers that commands start by themselves would share it. Some tests ask for workers.
os.environ.setdefault("LOKY_MAX_CPU_COUNT", "1")
# The same examples every time, and no limit on one example's time: shared machines stall.
hypothesis.settings.register_profile("holdfast", derandomize=True, deadline=None, max_examples=50)
hypothesis.settings.load_profile("holdfast")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="cpu", help="device of the tests that take one: cpu or cuda")


@pytest.fixture
def device(request: pytest.FixtureRequest) -> str:
    return str(request.config.getoption("--device"))


def pytest_configure(config: pytest.Config) -> None:
    # Fast tests check the same functions, and checks are a fifth of the time.
    if config.getoption("markexpr") == "slow":
        jaxtyping.config.update("jaxtyping_disable", True)
        shapes.wanted = False


def pytest_collection_finish() -> None:
    gc.freeze()  # what importing and collecting made stays: looking through it again took a tenth of the time


@pytest.fixture
def unchecked() -> Iterator[None]:
    """No types are checked, as where users call: for what the library itself says of values of other types."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


@pytest.fixture(autouse=True)
def _seed(request: pytest.FixtureRequest) -> None:
    # torch.manual_seed notes a traceback for each kind of device that it might meet.
    torch.default_generator.manual_seed(0)
    if request.config.getoption("--device") != "cpu":
        torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _gradients_stay_on() -> Iterator[None]:
    yield
    on = torch.is_grad_enabled()
    torch.set_grad_enabled(True)  # the tests that follow are not to fail for this one
    assert on, "gradients are off after this test"


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Let SIGINT interrupt, also where these tests run in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def reference() -> Path:
    """The folder of independently computed numbers, real encoders and real images."""
    folder = os.environ.get("HOLDFAST_REFERENCE")
    if not folder:
        pytest.skip("HOLDFAST_REFERENCE is not set: no reference numbers to compare with")
    return Path(folder)
