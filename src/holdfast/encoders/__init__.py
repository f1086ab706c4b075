"""Encoders, by reference: one file or folder per source."""

from __future__ import annotations

from holdfast.encoders.by_name import Adapter as Adapter
from holdfast.encoders.by_name import Options as Options
from holdfast.encoders.by_name import load as load
from holdfast.encoders.by_name import sources as sources
