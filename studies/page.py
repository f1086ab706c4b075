"""The page of the study, ``docs/study.md``, and what reports quote of it: every sentence follows from stored numbers."""

from __future__ import annotations

from pathlib import Path

from holdfast.core.files import write_whole
from studies.agreement import sections as agreement_page
from studies.agreement.judged import judged, quoted
from studies.agreement.opening import opening
from studies.certified import frontier_page
from studies.claims import ledger

STORED = Path(__file__).parent / "stored"
QUOTED = "src/holdfast/report/overview/study.json"
"""Read by the library, which knows nothing else of the study."""
TITLE = "# Which number to trust"
ORIGIN = """
A measure without labels is of use if it tells how robust a later, labelled use of the encoder will be. This page says for
which measures that was seen, in one study of many encoders. Each of its sentences follows from the numbers in
`studies/stored`; `python -m studies --page` writes it from these alone. Reports of this version of the library
[quote it](reading-the-report.md#how-far-to-trust-a-number): a table says of each measured number what was found of it."""


def render(folder: Path) -> dict[str, str]:
    """Return the page, its figures and what reports quote of it by their paths, from the results in ``folder``."""
    found = judged(folder)
    first, picture = opening(found)
    lines, figures = agreement_page.render(found)
    claims = ledger.ledger_section(ledger.stored(folder / "claims"))
    docs = {"study.md": "\n".join([TITLE, *first, ORIGIN, *lines, "", *claims]) + "\n", **picture, **figures}
    docs |= frontier_page.render(folder / "frontier")
    return {**{f"docs/{path}": text for path, text in docs.items()}, QUOTED: quoted(found)}


def write(folder: Path, out: Path) -> None:
    """Write all that follows from the results in ``folder`` below ``out``."""
    for path, text in render(folder).items():
        place = out / path
        place.parent.mkdir(parents=True, exist_ok=True)
        write_whole(place, text.encode())
