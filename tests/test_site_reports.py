"""The reports of the documentation's site: made from records alone, which must be those of this version."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from holdfast.commands.runs import read
from holdfast.core.errors import HoldfastError
from holdfast.core.files import sealed
from holdfast.core.records import Picture, Result
from holdfast.report.contents import Contents
from holdfast.report.page.page import render
from tests.facts import refused
from tests.pages import DOCS, ROOT
from tests.report.synthetic import breakaway

SITE = runpy.run_path(str(ROOT / "scripts" / "site_reports.py"))
ARCHIVES = sorted((DOCS / "reports").glob("*.tar.xz"))
every_archive = pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name)


def stored_run(folder: Path, text: str) -> Path:
    """A run of one record, ``text``, and what was asked for."""
    (folder / "results").mkdir(parents=True)
    (folder / "run.json").write_bytes(sealed(b'{"out": "runs/photos"}'))
    (folder / "results" / "breakaway.json").write_bytes(sealed(text.encode()))
    return folder


def with_pictures(*pictures: Picture) -> Result:
    result = breakaway("digits-robust")
    return result.model_copy(update={"findings": result.findings.model_copy(update={"pictures": pictures})})


PICTURED = with_pictures(Picture(caption="someone's photograph", labels=("clean",), pngs=("aGVsbG8=",)))


def test_a_packed_run_has_the_report_of_the_run_without_its_pictures(tmp_path: Path) -> None:
    run = stored_run(tmp_path / "run", PICTURED.model_dump_json())
    for name in ("a", "b"):
        SITE["pack"](run, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    page = SITE["page"](tmp_path / "a")
    assert page == render(Contents([with_pictures()], []), ["runs/photos"])
    assert "photograph" not in page


def test_records_of_another_version_make_no_page(tmp_path: Path) -> None:
    text = PICTURED.model_dump_json().replace('"quantity"', '"measure"', 1)
    run = stored_run(tmp_path / "run", text)
    archive = tmp_path / "packed"
    with SITE["tarfile"].open(archive, "w:xz") as file:
        file.add(run, ".")
    with refused(HoldfastError, "damaged", "holdfast"):
        SITE["page"](archive)
    with pytest.raises(ValueError, match="measure"):
        SITE["pack"](run, archive)


@every_archive
def test_the_stored_runs_are_small_and_hold_no_picture(archive: Path, tmp_path: Path) -> None:
    assert archive.stat().st_size < 1_000_000
    with SITE["tarfile"].open(archive) as file:
        file.extractall(tmp_path, filter="data")
    results, _ = read([tmp_path])
    assert results
    assert not any(result.findings.pictures for result in results)


@pytest.mark.slow
@every_archive
def test_the_stored_runs_make_a_page(archive: Path) -> None:
    page = SITE["page"](archive)
    assert "First screen" in page
    assert 'src="data:image/png' not in page
