"""What identifies a file of a run: everything that may change what it holds.

Neither batch size, device nor worker count does.
"""

from __future__ import annotations

import json
import re
from typing import Any

from holdfast.core.encoder import Encoder
from holdfast.core.files import checksum
from holdfast.core.images import Images
from holdfast.core.records import Record
from holdfast.core.run_settings import RunSettings
from holdfast.measure.evaluation import Evaluation, key_facts, parts, settings
from holdfast.measure.observation import Observation
from holdfast.measure.population import Fit


class Key(Record):
    """Everything that may change what a file holds; its digest names the file."""

    kind: str
    version: int
    settings: dict[str, Any]
    encoder: str
    images: str
    seed: int
    precision: str
    name: str = ""
    """The encoder's name: two names for the same weights share shards but are two columns of a table."""

    @property
    def digest(self) -> str:
        return checksum(json.dumps(self.model_dump(), sort_keys=True).encode())

    @property
    def stem(self) -> str:
        """A file name that a person can read and that is unique."""
        return "-".join(filter(None, (self.kind, plain(self.name), self.digest)))


def key_of(
    what: Evaluation | Observation | Fit[Any],
    encoder: Encoder,
    images: Images,
    run: RunSettings,
    bank: Images | None = None,
) -> Key:
    """Return what identifies ``what`` of this encoder on these images; an evaluation also by what it is made from."""
    observations = parts(what.observation()) if isinstance(what, Evaluation) else ()
    sources: dict[str, Any] = (
        {"observed": [key_of(part, encoder, images, run, bank).digest for part in observations]} if observations else {}
    )
    # What is learned follows from the settings, but for its version; results older than fits hold the first of each.
    learned = {} if isinstance(what, Fit) else {fit.name: fit.version for fit in what.fits() if fit.version > 1}
    sources |= {"learned": learned} if learned else {}
    fits = (what,) if isinstance(what, Fit) else what.fits()
    if any(fit.uses_texts for fit in fits):
        sources |= {"texts": encoder.texts.fingerprint if encoder.texts else "", "classes": list(images.classes or ())}
    return Key(
        kind=what.name,
        version=what.version,
        settings={**settings(what), **key_facts(what, images, run, bank), **sources},
        encoder=encoder.fingerprint,
        images=images.fingerprint,
        seed=run.seed,
        precision=run.precision,
        name=encoder.name if isinstance(what, Evaluation) else "",
    )


def plain(name: str) -> str:
    """Return ``name`` as a piece of a file name."""
    return re.sub(r"[^\w.]+", "_", name)[:60]
