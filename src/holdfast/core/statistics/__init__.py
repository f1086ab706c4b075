"""From one value per sample to numbers with intervals."""

from __future__ import annotations

from holdfast.core.statistics.summaries import Scale as Scale
from holdfast.core.statistics.summaries import chained_median as chained_median
from holdfast.core.statistics.summaries import is_share as is_share
from holdfast.core.statistics.summaries import limits_of as limits_of
from holdfast.core.statistics.summaries import over_references as over_references
from holdfast.core.statistics.summaries import over_scale as over_scale
from holdfast.core.statistics.summaries import summarise as summarise
