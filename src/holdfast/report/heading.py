"""What a report is headed with: the question that all of its results answer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from holdfast.core.records import ImagesInfo, Result
from holdfast.report.text import listed

USUAL = "Robustness of {encoders} on {images}"


def heading(results: Sequence[Result], encoders: str) -> str:
    """Return the heading of ``results``, of which there are some, on ``encoders``: their own if they share one."""
    headings = {result.heading for result in results}
    if "" in headings:
        form = USUAL
    elif len(headings) == 1:
        (form,) = headings
    else:
        form = USUAL.replace("Robustness", listed(list(dict.fromkeys(result.title for result in results))))
    names = {
        "encoders": encoders,
        "images": _names(result.images for result in results),
        "bank": _names(result.bank for result in results if result.bank),
    }
    return re.sub(r"\{(\w+)\}", lambda place: names.get(place[1], place[0]), form)


def _names(sets: Iterable[ImagesInfo]) -> str:
    return listed(list(dict.fromkeys(images.name for images in sets)) or ["none"])
