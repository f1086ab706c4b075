"""The page of the study, ``docs/study.md``: every sentence follows from stored numbers."""

from __future__ import annotations

from pathlib import Path

from holdfast.core.files import write_whole
from studies import agreement_page, ledger

STORED = Path(__file__).parent / "stored"
OPENING = """\
# Which number to trust

A measure without labels is of use if it tells how robust a later, labelled use of the encoder will be. This page says for
which measures that was seen, in one study of many encoders. Each of its sentences follows from the numbers in
`studies/stored`; `python -m studies --page` writes it from these alone."""


def render(folder: Path) -> dict[str, str]:
    """Return the text of the page and of its figures by their paths below ``docs``, from the results in ``folder``."""
    lines, figures = agreement_page.render(folder / "zoo")
    claims = ledger.ledger_section(ledger.stored(folder / "claims"))
    return {"study.md": "\n".join([OPENING, *lines, "", *claims]) + "\n", **figures}


def write(folder: Path, out: Path) -> None:
    """Write the page and its figures below ``out`` from the results in ``folder``."""
    for path, text in render(folder).items():
        place = out / path
        place.parent.mkdir(parents=True, exist_ok=True)
        write_whole(place, text.encode())
