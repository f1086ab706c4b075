"""The page about transforms names them all, with their settings and severities."""

from __future__ import annotations

from dataclasses import fields

import pytest

from holdfast.transforms.base import Transform, transforms
from tests.pages import DOCS, rows, section

TITLES = ["Whole data sets corrupted alike", "Everyday edits", "Common corruptions", "Augmentations", "Views"]
TABLES = {title: rows(section(DOCS / "transforms.md", title)) for title in TITLES}


def test_every_transform_is_in_one_table():
    assert sorted(name for table in TABLES.values() for name in table) == sorted(transforms())


@pytest.mark.parametrize("name", TABLES["Everyday edits"])
def test_severities_are_documented(name: str):
    said = ["none" if value is None else f"{value:g}" for value in transforms()[name].severities]
    assert TABLES["Everyday edits"][name][0] == ", ".join(said)


@pytest.mark.parametrize("name", [*TABLES["Augmentations"], *TABLES["Views"]])
def test_settings_and_their_defaults_are_documented(name: str):
    said = (TABLES["Augmentations"] | TABLES["Views"])[name][0]
    read = Transform.read(f"{name}:{said.replace(', ', ',')}")
    assert read == Transform.read(name)
    assert said.count("=") == len(fields(read))


@pytest.mark.parametrize("name", TABLES["Whole data sets corrupted alike"])
def test_settings_are_documented(name: str):
    said = TABLES["Whole data sets corrupted alike"][name][0].split(", ")
    assert [setting.partition("=")[0] for setting in said] == [field.name for field in fields(transforms()[name])]
