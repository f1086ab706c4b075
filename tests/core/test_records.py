"""Records survive the trip through JSON, and their published schema describes what is written."""

from __future__ import annotations

import json
from math import inf, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from holdfast.core.errors import HoldfastError
from holdfast.core.records import (
    Claim,
    Curve,
    EncoderInfo,
    Estimate,
    Failure,
    Findings,
    ImagesInfo,
    Picture,
    Record,
    Result,
    Series,
    Verdict,
)
from tests.facts import refused

NUMBERS = (0.0, -1.5, 0.1, 1e-300, nan, inf, -inf)


def series(values: tuple[float, ...] = NUMBERS) -> Series:
    return Series(
        quantity="risk", values=values, unit="share", claim=Claim.LOWER, of="worst-case risk", reasons={4: "no pair"}
    )


def estimate(quantity: str = "risk", value: float = 0.1, **conditions: str) -> Estimate:
    return Estimate(
        quantity=quantity, conditions=conditions, value=value, low=-inf, high=nan, n=3, method="by hand", unit="share",
        claim=Claim.UPPER, of="risk", better="lower",
    )  # fmt: skip


def result(**changes: Any) -> Result:
    findings = Findings(
        ids=tuple(f"image {k} é" for k in range(len(NUMBERS))),
        series=(series(),),
        estimates=(estimate(ball="linf:0.1"), estimate(ball="linf:0.2", value=nan)),
        curves=(Curve(quantity="risk", x_label="radius", y_label="risk", x=(0, 1), y=NUMBERS, low=(nan,)),),
        verdicts=(Verdict(question="masked?", status="unknown", reason="no gradient", witness={"slope": "0"}),),
        pictures=(Picture(caption="worst", labels=("clean",), pngs=("aGk=",)),),
        warnings=("COLLAPSED",),
    )
    fields: dict[str, Any] = {
        "evaluation": "breakaway", "version": 3, "title": "Breakaway", "meaning": "Two sentences. Here.",
        "headline": ("risk",), "findings": findings, "settings": {"balls": ["linf:0.1"], "seed": 0, "restarts": None},
        "encoder": EncoderInfo(name="net", source="python", fingerprint="ab", parameters=5, features=2),
        "images": ImagesInfo(name="digits", fingerprint="cd", count=7),
    }  # fmt: skip
    return Result(**(fields | changes))


def test_json_round_trip_keeps_nan_and_infinities():
    text = result().model_dump_json()
    again = Result.model_validate_json(text)
    assert again.model_dump_json() == text
    assert [repr(value) for value in again.series[0].values] == [repr(value) for value in NUMBERS]
    assert repr(again.estimates[1].value) == "nan"
    assert (again.estimates[0].low, again.series[0].claim, again.series[0].reasons) == (
        -inf,
        Claim.LOWER,
        {4: "no pair"},
    )
    assert again.findings.ids[0] == "image 0 é"


@given(st.floats())
def test_every_float_survives(value: float):
    text = series((value,)).model_dump_json()
    assert repr(Series.model_validate_json(text).values[0]) == repr(value)


def refuse(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")


def test_what_is_written_is_strict_json():
    written = json.loads(result().model_dump_json(), parse_constant=refuse)
    assert written["findings"]["series"][0]["values"][4:] == [None, "Infinity", "-Infinity"]
    assert written["schema_version"] == 1
    with pytest.raises(AssertionError, match="NaN"):
        json.loads("[NaN]", parse_constant=refuse)


@pytest.mark.parametrize("record", [Result, Failure])
def test_the_schema_names_and_closes_every_record(record: type[Record]):
    schema = record.model_json_schema(mode="serialization")
    assert set(schema["properties"]) == set(record.model_fields)
    for part in (schema, *(part for part in schema.get("$defs", {}).values() if part["type"] == "object")):
        assert part["additionalProperties"] is False


def test_the_schema_admits_what_is_written_for_numbers():
    values = Series.model_json_schema()["properties"]["values"]["items"]
    assert values == {"anyOf": [{"type": "number"}, {"type": "null"}, {"enum": ["Infinity", "-Infinity"]}]}


def test_unknown_fields_and_claims_are_refused():
    with refused(ValidationError, "Extra inputs"):
        result(colour="red")
    with refused(ValidationError, "Extra inputs"):
        Series.model_validate({**series().model_dump(), "mean": 0.5})
    with pytest.raises(ValidationError, match="'lower bound', 'upper bound' or 'estimate'"):
        Series.model_validate({**series().model_dump(), "claim": "proof"})
    with pytest.raises(ValidationError, match="'proved', 'refuted', 'no violation found' or 'unknown'"):
        Verdict.model_validate({"question": "?", "status": "maybe", "reason": ""})


def test_records_are_frozen():
    with pytest.raises(ValidationError, match="frozen"):
        result().version = 4


def test_an_estimate_is_found_by_quantity_and_conditions():
    found = result()
    assert found.estimate("risk", ball="linf:0.1") is found.estimates[0]
    with pytest.raises(HoldfastError, match=r"2 estimates fit risk {}; there are: risk {'ball': 'linf:0.1'}; risk"):
        found.estimate("risk")
    with pytest.raises(HoldfastError, match="0 estimates fit margin"):
        found.estimate("margin", ball="linf:0.1")


@given(st.dictionaries(st.text(), st.one_of(st.integers(), st.booleans(), st.text(), st.none(), st.floats(-9, 9))))
def test_settings_survive(settings: dict[str, Any]):
    again = Result.model_validate_json(result(settings=settings).model_dump_json())
    assert again.settings == settings
