"""A pytest plug-in: ``pytest -p holdfast.integrations.pytest_canary --canary FILE`` gives tests ``holdfast_canary``."""

from __future__ import annotations

import pytest

from holdfast.service.canary import Canary


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--canary``."""
    parser.addoption("--canary", metavar="FILE", help="Check encoders against this canary.")


@pytest.fixture(scope="session")
def holdfast_canary(request: pytest.FixtureRequest) -> Canary:
    """Return the canary that ``--canary`` names; skip without it."""
    path = request.config.getoption("--canary")
    if path is None:
        pytest.skip("no canary; name one with --canary FILE")
    return Canary.load(path)
