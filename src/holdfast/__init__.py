"""Holdfast: measure, certify and improve the robustness of representation encoders without labels.

Names are loaded when first used, so that ``holdfast --help`` does not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from holdfast import _moved
from holdfast.core import version

__version__ = version.VERSION
_moved.install()

if TYPE_CHECKING:
    from holdfast.attacks.adaptive import AdaptiveAttack as AdaptiveAttack
    from holdfast.attacks.autoattack import APGD as APGD
    from holdfast.attacks.autoattack import FAB as FAB
    from holdfast.attacks.autoattack import AutoAttack as AutoAttack
    from holdfast.attacks.base import Attack as Attack
    from holdfast.attacks.black_box import NaturalEvolution as NaturalEvolution
    from holdfast.attacks.black_box import SquareAttack as SquareAttack
    from holdfast.attacks.evaluations.attack_radius import AttackRadius as AttackRadius
    from holdfast.attacks.evaluations.backdoor import Backdoor as Backdoor
    from holdfast.attacks.evaluations.breakaway import Breakaway as Breakaway
    from holdfast.attacks.evaluations.displacement import Displacement as Displacement
    from holdfast.attacks.evaluations.impersonation import Impersonation as Impersonation
    from holdfast.attacks.evaluations.masking import Masking as Masking
    from holdfast.attacks.evaluations.overlap import Overlap as Overlap
    from holdfast.attacks.evaluations.query_only import QueryOnly as QueryOnly
    from holdfast.attacks.evaluations.transfer import Transfer as Transfer
    from holdfast.attacks.evaluations.universal import UniversalRisk as UniversalRisk
    from holdfast.attacks.gradient import GradientAttack as GradientAttack
    from holdfast.bounds.evaluations.certified_attack_radius import CertifiedAttackRadius as CertifiedAttackRadius
    from holdfast.bounds.evaluations.certified_breakaway import CertifiedBreakaway as CertifiedBreakaway
    from holdfast.bounds.evaluations.certified_displacement import CertifiedDisplacement as CertifiedDisplacement
    from holdfast.bounds.evaluations.certified_overlap import CertifiedOverlap as CertifiedOverlap
    from holdfast.bounds.evaluations.certified_radius import CertifiedRadius as CertifiedRadius
    from holdfast.bounds.evaluations.instance_accuracy import InstanceAccuracy as InstanceAccuracy
    from holdfast.bounds.evaluations.linear_radius import LinearRadius as LinearRadius
    from holdfast.bounds.evaluations.margin_distribution import MarginDistribution as MarginDistribution
    from holdfast.bounds.verify import verify as verify
    from holdfast.commands.attack import attack as attack
    from holdfast.commands.canary import canary as canary
    from holdfast.commands.certify import certify as certify
    from holdfast.commands.check import check as check
    from holdfast.commands.check import require as require
    from holdfast.commands.clean import clean as clean
    from holdfast.commands.compare import compare as compare
    from holdfast.commands.corrupt import corrupt as corrupt
    from holdfast.commands.doctor import doctor as doctor
    from holdfast.commands.drift import drift as drift
    from holdfast.commands.evaluate import evaluate as evaluate
    from holdfast.commands.evaluated_run import EvaluatedRun as EvaluatedRun
    from holdfast.commands.harden import Hardened as Hardened
    from holdfast.commands.harden import harden as harden
    from holdfast.commands.inputs import load_encoder as load_encoder
    from holdfast.commands.inputs import load_images as load_images
    from holdfast.commands.parity import Parity as Parity
    from holdfast.commands.parity import parity as parity
    from holdfast.commands.publish import publish as publish
    from holdfast.commands.recheck import recheck as recheck
    from holdfast.commands.runs import runs as runs
    from holdfast.commands.spade import spade as spade
    from holdfast.commands.threshold import threshold as threshold
    from holdfast.commands.train import train as train
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
    from holdfast.core.divergences import Tokens as Tokens
    from holdfast.core.divergences import UnitL2 as UnitL2
    from holdfast.core.divergences import Wasserstein as Wasserstein
    from holdfast.core.divergences import Whitened as Whitened
    from holdfast.core.encoder import Dense as Dense
    from holdfast.core.encoder import Domain as Domain
    from holdfast.core.encoder import Encoder as Encoder
    from holdfast.core.errors import AgreementLostError as AgreementLostError
    from holdfast.core.errors import BudgetSpentError as BudgetSpentError
    from holdfast.core.errors import HoldfastError as HoldfastError
    from holdfast.core.errors import HoldfastWarning as HoldfastWarning
    from holdfast.core.geometry import Geometry as Geometry
    from holdfast.core.images import Images as Images
    from holdfast.core.records import Result as Result
    from holdfast.core.run_settings import RunSettings as RunSettings
    from holdfast.core.text_tower import TextModel as TextModel
    from holdfast.core.text_tower import TextTower as TextTower
    from holdfast.corruptions.evaluations.common_corruptions import CommonCorruptions as CommonCorruptions
    from holdfast.corruptions.evaluations.common_perturbations import CommonPerturbations as CommonPerturbations
    from holdfast.corruptions.evaluations.corruption_error import CorruptionError as CorruptionError
    from holdfast.corruptions.evaluations.under_corruption import CorruptionTest as CorruptionTest
    from holdfast.encoders.embeddings import Embeddings as Embeddings
    from holdfast.encoders.stored import stored as stored
    from holdfast.geometry.evaluations.alignment import Alignment as Alignment
    from holdfast.geometry.evaluations.geometry import SpaceGeometry as SpaceGeometry
    from holdfast.geometry.evaluations.grad_cam import GradCam as GradCam
    from holdfast.geometry.evaluations.patch_retrieval import PatchRetrieval as PatchRetrieval
    from holdfast.measure.evaluation import Evaluation as Evaluation
    from holdfast.probes.evaluations.probe_accuracy import ProbeAccuracy as ProbeAccuracy
    from holdfast.probes.evaluations.probe_radius import ProbeRadius as ProbeRadius
    from holdfast.probes.evaluations.robust_accuracy import RobustAccuracy as RobustAccuracy
    from holdfast.probes.text import TextProbe as TextProbe
    from holdfast.service.adapter import Adapter as Adapter
    from holdfast.service.adapter import load_adapter as load_adapter
    from holdfast.service.canary import Canary as Canary
    from holdfast.service.canary import CanaryCheck as CanaryCheck
    from holdfast.service.evaluations.drift import Drift as Drift
    from holdfast.service.evaluations.sites import Sites as Sites
    from holdfast.service.evaluations.threshold import Threshold as Threshold
    from holdfast.service.site_map import SiteMap as SiteMap
    from holdfast.service.site_map import fit_site_map as fit_site_map
    from holdfast.service.site_map import load_site_map as load_site_map
    from holdfast.smoothing.evaluations.center_smoothing import CenterSmoothing as CenterSmoothing
    from holdfast.smoothing.evaluations.feature_smoothing import FeatureSmoothing as FeatureSmoothing
    from holdfast.smoothing.evaluations.randomized_smoothing import RandomizedSmoothing as RandomizedSmoothing
    from holdfast.smoothing.evaluations.smoothed_retrieval import SmoothedRetrieval as SmoothedRetrieval
    from holdfast.spectral.evaluations.clever import Clever as Clever
    from holdfast.spectral.evaluations.spade import Spectral as Spectral
    from holdfast.synthetic.evaluations.synbench import SynBench as SynBench
    from holdfast.training.recipe import Recipe as Recipe
    from holdfast.transforms.base import Transform as Transform
    from holdfast.transforms.base import transformed as transformed

_HOMES = {
    "APGD": "attacks.autoattack",
    "Adapter": "service.adapter",
    "AdaptiveAttack": "attacks.adaptive",
    "AgreementLostError": "core.errors",
    "Alignment": "geometry.evaluations.alignment",
    "Attack": "attacks.base",
    "AttackRadius": "attacks.evaluations.attack_radius",
    "AutoAttack": "attacks.autoattack",
    "Backdoor": "attacks.evaluations.backdoor",
    "Ball": "core.balls",
    "Breakaway": "attacks.evaluations.breakaway",
    "BudgetSpentError": "core.errors",
    "Canary": "service.canary",
    "CanaryCheck": "service.canary",
    "CenterSmoothing": "smoothing.evaluations.center_smoothing",
    "CertifiedAttackRadius": "bounds.evaluations.certified_attack_radius",
    "CertifiedBreakaway": "bounds.evaluations.certified_breakaway",
    "CertifiedDisplacement": "bounds.evaluations.certified_displacement",
    "CertifiedOverlap": "bounds.evaluations.certified_overlap",
    "CertifiedRadius": "bounds.evaluations.certified_radius",
    "Clever": "spectral.evaluations.clever",
    "CommonCorruptions": "corruptions.evaluations.common_corruptions",
    "CommonPerturbations": "corruptions.evaluations.common_perturbations",
    "CorruptionError": "corruptions.evaluations.corruption_error",
    "CorruptionTest": "corruptions.evaluations.under_corruption",
    "Cosine": "core.divergences",
    "Dense": "core.encoder",
    "Displacement": "attacks.evaluations.displacement",
    "Divergence": "core.divergences",
    "Domain": "core.encoder",
    "Drift": "service.evaluations.drift",
    "Embeddings": "encoders.embeddings",
    "Encoder": "core.encoder",
    "EvaluatedRun": "commands.evaluated_run",
    "Evaluation": "measure.evaluation",
    "FAB": "attacks.autoattack",
    "FeatureSmoothing": "smoothing.evaluations.feature_smoothing",
    "GaussianKL": "core.divergences",
    "Geometry": "core.geometry",
    "GradCam": "geometry.evaluations.grad_cam",
    "GradientAttack": "attacks.gradient",
    "Hardened": "commands.harden",
    "HoldfastError": "core.errors",
    "HoldfastWarning": "core.errors",
    "Images": "core.images",
    "Impersonation": "attacks.evaluations.impersonation",
    "InstanceAccuracy": "bounds.evaluations.instance_accuracy",
    "L1": "core.balls",
    "L1Distance": "core.divergences",
    "L2": "core.balls",
    "L2Distance": "core.divergences",
    "LinearRadius": "bounds.evaluations.linear_radius",
    "Linf": "core.balls",
    "LinfDistance": "core.divergences",
    "MarginDistribution": "bounds.evaluations.margin_distribution",
    "Masking": "attacks.evaluations.masking",
    "NaturalEvolution": "attacks.black_box",
    "Overlap": "attacks.evaluations.overlap",
    "Parity": "commands.parity",
    "PatchRetrieval": "geometry.evaluations.patch_retrieval",
    "ProbeAccuracy": "probes.evaluations.probe_accuracy",
    "ProbeRadius": "probes.evaluations.probe_radius",
    "QueryOnly": "attacks.evaluations.query_only",
    "RandomizedSmoothing": "smoothing.evaluations.randomized_smoothing",
    "Rank": "core.divergences",
    "Recipe": "training.recipe",
    "Result": "core.records",
    "RobustAccuracy": "probes.evaluations.robust_accuracy",
    "RunSettings": "core.run_settings",
    "SiteMap": "service.site_map",
    "Sites": "service.evaluations.sites",
    "SmoothedRetrieval": "smoothing.evaluations.smoothed_retrieval",
    "SoftmaxKL": "core.divergences",
    "SpaceGeometry": "geometry.evaluations.geometry",
    "Spectral": "spectral.evaluations.spade",
    "SquareAttack": "attacks.black_box",
    "SynBench": "synthetic.evaluations.synbench",
    "TextModel": "core.text_tower",
    "TextProbe": "probes.text",
    "TextTower": "core.text_tower",
    "Threshold": "service.evaluations.threshold",
    "Tokens": "core.divergences",
    "Transfer": "attacks.evaluations.transfer",
    "Transform": "transforms.base",
    "UnitL2": "core.divergences",
    "UniversalRisk": "attacks.evaluations.universal",
    "Wasserstein": "core.divergences",
    "Whitened": "core.divergences",
    "attack": "commands.attack",
    "canary": "commands.canary",
    "certify": "commands.certify",
    "check": "commands.check",
    "clean": "commands.clean",
    "compare": "commands.compare",
    "corrupt": "commands.corrupt",
    "doctor": "commands.doctor",
    "drift": "commands.drift",
    "evaluate": "commands.evaluate",
    "fit_site_map": "service.site_map",
    "harden": "commands.harden",
    "load_adapter": "service.adapter",
    "load_encoder": "commands.inputs",
    "load_images": "commands.inputs",
    "load_site_map": "service.site_map",
    "parity": "commands.parity",
    "publish": "commands.publish",
    "recheck": "commands.recheck",
    "require": "commands.check",
    "runs": "commands.runs",
    "spade": "commands.spade",
    "stored": "encoders.stored",
    "threshold": "commands.threshold",
    "train": "commands.train",
    "transformed": "transforms.base",
    "verify": "bounds.verify",
}
__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    return getattr(import_module(f"holdfast.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
