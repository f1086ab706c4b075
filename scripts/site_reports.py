"""Reports in the documentation, each made from the records of a run: of ``docs/reports/NAME.tar.xz`` ``reports/NAME.html``.

    python scripts/site_reports.py runs/real docs/reports/real-encoder.tar.xz

packs a run: what was asked for, its results and its failures, as the run's folder holds them. Neither the shards nor
pictures of images go along. Unpacked it is a run again, which ``holdfast compare`` reads.
"""

from __future__ import annotations

import io
import json
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from holdfast.commands.runs import read
from holdfast.core.files import sealed, unsealed
from holdfast.core.records import Result
from holdfast.measure.store import REQUEST
from holdfast.report.comparison.comparable import with_relative_errors
from holdfast.report.contents import Contents
from holdfast.report.page.page import render

FOLDER = "reports"
ENDING = ".tar.xz"


def pack(run: Path, archive: Path) -> None:
    """Write the records of ``run`` into ``archive``; equal records give equal bytes."""
    with tarfile.open(archive, "w:xz", preset=9) as file:
        for name, content in records(run):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))


def records(run: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the name and content of each file of ``run`` that a report is made from, without pictures."""
    yield REQUEST, (run / REQUEST).read_bytes()
    for path in sorted(run.glob("failures/*.json")):
        yield f"failures/{path.name}", path.read_bytes()
    for path in sorted(run.glob("results/*.json")):
        result = Result.model_validate_json(unsealed(path.read_bytes()))
        findings = result.findings.model_copy(update={"pictures": ()})
        yield (
            f"results/{path.name}",
            sealed(result.model_copy(update={"findings": findings}).model_dump_json().encode()),
        )


def page(archive: Path) -> str:
    """Return the report of the run in ``archive``.

    Raises:
        HoldfastError: a record is damaged, or of a version of holdfast whose records are others.
    """
    with TemporaryDirectory() as folder:
        with tarfile.open(archive) as file:
            file.extractall(folder, filter="data")
        results, failures = read([Path(folder)])
        asked = json.loads(Path(folder, REQUEST).read_bytes())
    return render(Contents(with_relative_errors(results), failures), [asked["out"]])


def on_files(files: Any, config: Any) -> Any:
    """Give mkdocs the page of each run."""
    from mkdocs.structure.files import File

    for archive in sorted(Path(config.docs_dir, FOLDER).glob(f"*{ENDING}")):
        name = archive.name.removesuffix(ENDING)
        files.append(File.generated(config, f"{FOLDER}/{name}.html", content=page(archive)))
    return files


if __name__ == "__main__":
    pack(*map(Path, sys.argv[1:]))
