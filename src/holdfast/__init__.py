"""Holdfast: measure, certify and improve the robustness of representation encoders without labels.

Names are loaded when first used, so that ``holdfast --help`` does not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from holdfast.attacks.adaptive import AdaptiveAttack as AdaptiveAttack
    from holdfast.attacks.base import Attack as Attack
    from holdfast.attacks.gradient import GradientAttack as GradientAttack
    from holdfast.attacks.square import SquareAttack as SquareAttack
    from holdfast.core.balls import L1 as L1
    from holdfast.core.balls import L2 as L2
    from holdfast.core.balls import Ball as Ball
    from holdfast.core.balls import Linf as Linf
    from holdfast.core.divergences import Cosine as Cosine
    from holdfast.core.divergences import Divergence as Divergence
    from holdfast.core.divergences import GaussianKL as GaussianKL
    from holdfast.core.divergences import L1Distance as L1Distance
    from holdfast.core.divergences import L2Distance as L2Distance
    from holdfast.core.divergences import LinfDistance as LinfDistance
    from holdfast.core.divergences import Rank as Rank
    from holdfast.core.divergences import SoftmaxKL as SoftmaxKL
    from holdfast.core.divergences import UnitL2 as UnitL2
    from holdfast.core.divergences import Wasserstein as Wasserstein
    from holdfast.core.divergences import Whitened as Whitened
    from holdfast.core.encoder import Domain as Domain
    from holdfast.core.encoder import Encoder as Encoder
    from holdfast.core.errors import BudgetSpentError as BudgetSpentError
    from holdfast.core.errors import HoldfastError as HoldfastError
    from holdfast.core.errors import HoldfastWarning as HoldfastWarning
    from holdfast.core.images import Images as Images
    from holdfast.core.records import Result as Result
    from holdfast.core.run import Run as Run
    from holdfast.evaluations.attacked.breakaway import Breakaway as Breakaway
    from holdfast.evaluations.attacked.displacement import Displacement as Displacement
    from holdfast.evaluations.attacked.impersonation import Impersonation as Impersonation
    from holdfast.evaluations.attacked.masking import Masking as Masking
    from holdfast.evaluations.attacked.overlap import Overlap as Overlap
    from holdfast.evaluations.certified.accuracy import InstanceAccuracy as InstanceAccuracy
    from holdfast.evaluations.certified.breakaway import CertifiedBreakaway as CertifiedBreakaway
    from holdfast.evaluations.certified.displacement import CertifiedDisplacement as CertifiedDisplacement
    from holdfast.evaluations.certified.linear import LinearRadius as LinearRadius
    from holdfast.evaluations.certified.margins import MarginDistribution as MarginDistribution
    from holdfast.evaluations.certified.overlap import CertifiedOverlap as CertifiedOverlap
    from holdfast.evaluations.certified.radius import CertifiedRadius as CertifiedRadius
    from holdfast.evaluations.corrupted.common_corruptions import CommonCorruptions as CommonCorruptions
    from holdfast.evaluations.corrupted.common_perturbations import CommonPerturbations as CommonPerturbations
    from holdfast.evaluations.corrupted.corruption_error import CorruptionError as CorruptionError
    from holdfast.evaluations.corrupted.corruption_test import CorruptionTest as CorruptionTest
    from holdfast.evaluations.geometry.alignment import Alignment as Alignment
    from holdfast.evaluations.geometry.gradcam import GradCam as GradCam
    from holdfast.evaluations.geometry.space import SpaceGeometry as SpaceGeometry
    from holdfast.evaluations.probed.accuracy import ProbeAccuracy as ProbeAccuracy
    from holdfast.evaluations.probed.robustness import RobustAccuracy as RobustAccuracy
    from holdfast.evaluations.smoothed.center_smoothing import CenterSmoothing as CenterSmoothing
    from holdfast.evaluations.smoothed.randomized_smoothing import RandomizedSmoothing as RandomizedSmoothing
    from holdfast.evaluations.smoothed.retrieval import SmoothedRetrieval as SmoothedRetrieval
    from holdfast.evaluations.spectral.analysis import spade as spade
    from holdfast.evaluations.spectral.clever import Clever as Clever
    from holdfast.evaluations.spectral.spade import Spectral as Spectral
    from holdfast.evaluations.synthetic.synbench import SynBench as SynBench
    from holdfast.execution.api import attack as attack
    from holdfast.execution.api import certify as certify
    from holdfast.execution.api import check as check
    from holdfast.execution.api import compare as compare
    from holdfast.execution.api import evaluate as evaluate
    from holdfast.execution.api import load_encoder as load_encoder
    from holdfast.execution.api import load_images as load_images
    from holdfast.execution.corruption import corrupt as corrupt
    from holdfast.execution.evaluated import EvaluatedRun as EvaluatedRun
    from holdfast.execution.harden import Hardened as Hardened
    from holdfast.execution.harden import harden as harden
    from holdfast.execution.training import train as train
    from holdfast.protocol.evaluation import Evaluation as Evaluation
    from holdfast.training.recipe import Recipe as Recipe
    from holdfast.transforms.base import Transform as Transform
    from holdfast.transforms.base import transformed as transformed

_HOMES = {
    "AdaptiveAttack": "attacks.adaptive",
    "Alignment": "evaluations.geometry.alignment",
    "Attack": "attacks.base",
    "Ball": "core.balls",
    "Breakaway": "evaluations.attacked.breakaway",
    "CenterSmoothing": "evaluations.smoothed.center_smoothing",
    "CertifiedBreakaway": "evaluations.certified.breakaway",
    "CertifiedDisplacement": "evaluations.certified.displacement",
    "CertifiedOverlap": "evaluations.certified.overlap",
    "CertifiedRadius": "evaluations.certified.radius",
    "Clever": "evaluations.spectral.clever",
    "CommonCorruptions": "evaluations.corrupted.common_corruptions",
    "CommonPerturbations": "evaluations.corrupted.common_perturbations",
    "CorruptionError": "evaluations.corrupted.corruption_error",
    "CorruptionTest": "evaluations.corrupted.corruption_test",
    "Cosine": "core.divergences",
    "Displacement": "evaluations.attacked.displacement",
    "Divergence": "core.divergences",
    "Domain": "core.encoder",
    "Encoder": "core.encoder",
    "EvaluatedRun": "execution.evaluated",
    "Evaluation": "protocol.evaluation",
    "GaussianKL": "core.divergences",
    "GradCam": "evaluations.geometry.gradcam",
    "GradientAttack": "attacks.gradient",
    "Hardened": "execution.harden",
    "BudgetSpentError": "core.errors",
    "HoldfastError": "core.errors",
    "HoldfastWarning": "core.errors",
    "Images": "core.images",
    "Impersonation": "evaluations.attacked.impersonation",
    "InstanceAccuracy": "evaluations.certified.accuracy",
    "L1": "core.balls",
    "L1Distance": "core.divergences",
    "L2": "core.balls",
    "L2Distance": "core.divergences",
    "LinearRadius": "evaluations.certified.linear",
    "Linf": "core.balls",
    "LinfDistance": "core.divergences",
    "MarginDistribution": "evaluations.certified.margins",
    "Masking": "evaluations.attacked.masking",
    "Overlap": "evaluations.attacked.overlap",
    "ProbeAccuracy": "evaluations.probed.accuracy",
    "RandomizedSmoothing": "evaluations.smoothed.randomized_smoothing",
    "Rank": "core.divergences",
    "Recipe": "training.recipe",
    "Result": "core.records",
    "RobustAccuracy": "evaluations.probed.robustness",
    "Run": "core.run",
    "SmoothedRetrieval": "evaluations.smoothed.retrieval",
    "SoftmaxKL": "core.divergences",
    "SpaceGeometry": "evaluations.geometry.space",
    "Spectral": "evaluations.spectral.spade",
    "SquareAttack": "attacks.square",
    "SynBench": "evaluations.synthetic.synbench",
    "Transform": "transforms.base",
    "UnitL2": "core.divergences",
    "Wasserstein": "core.divergences",
    "Whitened": "core.divergences",
    "attack": "execution.api",
    "certify": "execution.api",
    "check": "execution.api",
    "compare": "execution.api",
    "corrupt": "execution.corruption",
    "evaluate": "execution.api",
    "harden": "execution.harden",
    "load_encoder": "execution.api",
    "load_images": "execution.api",
    "spade": "evaluations.spectral.analysis",
    "train": "execution.training",
    "transformed": "transforms.base",
}
__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    return getattr(import_module(f"holdfast.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
