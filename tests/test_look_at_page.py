"""The browser check finds what is wrong with a page."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.report.contents import Contents
from holdfast.report.page.page import render
from tests.report.synthetic import breakaway

SCRIPT = Path(__file__).parents[1] / "scripts" / "look_at_page.py"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed"),
]


def look(page: Path, content: str) -> tuple[int, str]:
    page.write_text(content)
    done = subprocess.run([sys.executable, SCRIPT, page], capture_output=True, text=True, timeout=400, check=False)
    return done.returncode, done.stdout


def test_a_report_is_sound(tmp_path: Path) -> None:
    status, said = look(tmp_path / "report.html", render(Contents([breakaway("digits-robust")], [])))
    assert (status, said) == (0, "report.html is sound at 390 and 1280 pixels\n")


@pytest.mark.parametrize(
    ("planted", "sentence"),
    [
        ("<script>throw new Error('planted')</script>", "console:"),
        ("<div style='width:900px'>wide</div>", "390 px: the page is "),
        ("<img src='http://127.0.0.1:9/planted.png'>", "planted.png"),
    ],
    ids=["error", "overflow", "foreign"],
)
def test_what_is_planted_is_found(tmp_path: Path, planted: str, sentence: str) -> None:
    status, said = look(tmp_path / "page.html", f"<!DOCTYPE html><body>{planted}</body>")
    assert status == 1
    assert sentence in said
