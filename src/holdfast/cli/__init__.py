"""The command line: one file per command."""

from __future__ import annotations

from holdfast.cli.app import main as main
from holdfast.cli.app import run as run
