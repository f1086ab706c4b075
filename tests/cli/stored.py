"""Runs on disk, made of records rather than by computing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from holdfast.core.records import Failure, Result
from holdfast.measure.store import Key, Store
from holdfast.run.request import Request
from tests.report import synthetic


def run_of(
    folder: str | Path, results: Sequence[Result], failures: Sequence[Failure] = (), asked: Sequence[str] = ()
) -> str:
    """Write a run that was asked to measure the encoders ``asked`` and return its folder."""
    store = Store(Path(folder))
    store.request(Request(encoders=tuple(asked)).model_dump_json())
    for result in results:
        key = Key(
            kind=result.evaluation,
            version=result.version,
            settings=result.settings,
            encoder=result.encoder.fingerprint,
            images=result.images.fingerprint,
            seed=0,
            precision="float32",
            name=result.encoder.name,
        )
        store.finish(key, result)
    for failure in failures:
        store.fail(failure)
    return str(folder)


def breakaway(encoder: str, seed: int = 0, fingerprint: str = "") -> Result:
    """Return breakaway of ``encoder`` under a protocol with this ``seed``, for other weights if told so."""
    settings = {"balls": list(synthetic.BALLS), "samples": 60, "seed": seed, "precision": "float32"}
    result = synthetic.breakaway(encoder, 60, settings=settings)
    return renamed(result, encoder, fingerprint) if fingerprint else result


def renamed(result: Result, name: str, fingerprint: str) -> Result:
    """Return the same numbers of another encoder."""
    info = result.encoder.model_copy(update={"name": name, "fingerprint": fingerprint})
    return result.model_copy(update={"encoder": info})


def failure(encoder: str, reason: str = "it is broken") -> Failure:
    return Failure(evaluation="breakaway", encoder=encoder, images="digits", error="RuntimeError", reason=reason)
