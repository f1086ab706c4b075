"""Images, by reference: one file per source."""

from __future__ import annotations

from holdfast.data.by_name import kind as kind
from holdfast.data.by_name import load as load
from holdfast.data.by_name import loaders as loaders
