"""Arrays of embeddings as points: neighbours, exact counts and moments of whole populations."""

from __future__ import annotations

from holdfast.core.points.points import Points as Points
from holdfast.core.points.points import distinct as distinct
from holdfast.core.points.points import points as points
