"""The names that extensions need: base classes, records and helpers, as docs/extending.md uses them.

They stay here when the modules that define them move. Each is loaded when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from holdfast.core.discovery import warn_of_old_name

if TYPE_CHECKING:
    from holdfast.attacks.adaptive import AdaptiveAttack as AdaptiveAttack
    from holdfast.attacks.attacked_codes import Case as Case
    from holdfast.attacks.attacked_codes import Untargeted as Untargeted
    from holdfast.attacks.base import GRADIENT as GRADIENT
    from holdfast.attacks.base import Attack as Attack
    from holdfast.attacks.base import Gain as Gain
    from holdfast.attacks.base import better as better
    from holdfast.core.balls import Ball as Ball
    from holdfast.core.balls import Linf as Linf
    from holdfast.core.divergences import L2Distance as L2Distance
    from holdfast.core.encoder import Codes as Codes
    from holdfast.core.encoder import Domain as Domain
    from holdfast.core.encoder import Encoder as Encoder
    from holdfast.core.encoder import Pixels as Pixels
    from holdfast.core.errors import HoldfastError as HoldfastError
    from holdfast.core.images import Images as Images
    from holdfast.core.noise import Noise as Noise
    from holdfast.core.objective import AttackContext as AttackContext
    from holdfast.core.objective import Objective as Objective
    from holdfast.core.objective import ObjectiveFunction as ObjectiveFunction
    from holdfast.core.points.counting import nearest_rows as nearest_rows
    from holdfast.core.records import Claim as Claim
    from holdfast.core.records import Findings as Findings
    from holdfast.core.records import Question as Question
    from holdfast.core.run_settings import Observed as Observed
    from holdfast.core.run_settings import RunSettings as RunSettings
    from holdfast.core.settings import check_not_negative as check_not_negative
    from holdfast.core.settings import convert as convert
    from holdfast.core.statistics import summarise as summarise
    from holdfast.core.statistics.summaries import series_of as series_of
    from holdfast.data.base import Selection as Selection
    from holdfast.data.base import check_settings as check_settings
    from holdfast.encoders.architectures.base import Architecture as Architecture
    from holdfast.encoders.loading.inputs import sizes as sizes
    from holdfast.encoders.loading.reference import Options as Options
    from holdfast.encoders.loading.reference import existing as existing
    from holdfast.encoders.loading.reference import split as split
    from holdfast.measure.evaluation import Evaluation as Evaluation
    from holdfast.measure.evaluation import Sizes as Sizes
    from holdfast.measure.observation import Observation as Observation
    from holdfast.measure.observation import population_warnings as population_warnings
    from holdfast.measure.population import Fit as Fit
    from holdfast.measure.population import LooksAt as LooksAt
    from holdfast.measure.population import Population as Population
    from holdfast.probes.base import FittedProbe as FittedProbe
    from holdfast.probes.base import Probe as Probe
    from holdfast.probes.base import taught as taught
    from holdfast.training.learner import Batch as Batch
    from holdfast.training.learner import Learner as Learner
    from holdfast.training.learner import Setting as Setting
    from holdfast.training.learner import TrainingObjective as TrainingObjective
    from holdfast.training.learner import check_two_images as check_two_images
    from holdfast.training.processes import gathered as gathered
    from holdfast.transforms.base import ImagePixels as ImagePixels
    from holdfast.transforms.base import Transform as Transform

_HOMES = {
    "AdaptiveAttack": "attacks.adaptive",
    "Architecture": "encoders.architectures.base",
    "Attack": "attacks.base",
    "AttackContext": "core.objective",
    "Ball": "core.balls",
    "Batch": "training.learner",
    "Case": "attacks.attacked_codes",
    "Claim": "core.records",
    "Codes": "core.encoder",
    "Domain": "core.encoder",
    "Encoder": "core.encoder",
    "Evaluation": "measure.evaluation",
    "Findings": "core.records",
    "Fit": "measure.population",
    "FittedProbe": "probes.base",
    "GRADIENT": "attacks.base",
    "Gain": "attacks.base",
    "HoldfastError": "core.errors",
    "ImagePixels": "transforms.base",
    "Images": "core.images",
    "L2Distance": "core.divergences",
    "Learner": "training.learner",
    "Linf": "core.balls",
    "LooksAt": "measure.population",
    "Noise": "core.noise",
    "Objective": "core.objective",
    "ObjectiveFunction": "core.objective",
    "Observation": "measure.observation",
    "Observed": "core.run_settings",
    "Options": "encoders.loading.reference",
    "Pixels": "core.encoder",
    "Population": "measure.population",
    "Probe": "probes.base",
    "Question": "core.records",
    "RunSettings": "core.run_settings",
    "Selection": "data.base",
    "Setting": "training.learner",
    "Sizes": "measure.evaluation",
    "TrainingObjective": "training.learner",
    "Transform": "transforms.base",
    "Untargeted": "attacks.attacked_codes",
    "better": "attacks.base",
    "check_not_negative": "core.settings",
    "check_settings": "data.base",
    "check_two_images": "training.learner",
    "convert": "core.settings",
    "existing": "encoders.loading.reference",
    "gathered": "training.processes",
    "nearest_rows": "core.points.counting",
    "population_warnings": "measure.observation",
    "series_of": "core.statistics.summaries",
    "sizes": "encoders.loading.inputs",
    "split": "encoders.loading.reference",
    "summarise": "core.statistics",
    "taught": "probes.base",
}
__all__ = sorted(_HOMES)


_OLD = {
    "require_not_negative": "check_not_negative",
    "require_two_images": "check_two_images",
}


def __getattr__(name: str) -> Any:
    if name in _OLD:
        warn_of_old_name(f"holdfast.extend.{name}", _OLD[name])
        name = _OLD[name]
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"holdfast.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
