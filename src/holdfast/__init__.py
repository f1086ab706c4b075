"""Holdfast: measure, certify and improve the robustness of representation encoders without labels.

Names are loaded when first used, so that ``holdfast --help`` does not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from holdfast.core import version

__version__ = version.VERSION

if TYPE_CHECKING:
    from holdfast.attacks.adaptive import AdaptiveAttack as AdaptiveAttack
    from holdfast.attacks.base import Attack as Attack
    from holdfast.attacks.gradient import GradientAttack as GradientAttack
    from holdfast.attacks.nes import NaturalEvolution as NaturalEvolution
    from holdfast.attacks.square import SquareAttack as SquareAttack
    from holdfast.commands.attack import attack as attack
    from holdfast.commands.certify import certify as certify
    from holdfast.commands.certify.instances import verify as verify
    from holdfast.commands.certify.recheck import recheck as recheck
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
    from holdfast.core.texts import TextModel as TextModel
    from holdfast.core.texts import TextTower as TextTower
    from holdfast.encoders.embeddings import Embeddings as Embeddings
    from holdfast.evaluations.attacked.attack_radius import AttackRadius as AttackRadius
    from holdfast.evaluations.attacked.breakaway import Breakaway as Breakaway
    from holdfast.evaluations.attacked.displacement import Displacement as Displacement
    from holdfast.evaluations.attacked.impersonation import Impersonation as Impersonation
    from holdfast.evaluations.attacked.masking import Masking as Masking
    from holdfast.evaluations.attacked.overlap import Overlap as Overlap
    from holdfast.evaluations.attacked.query_only import QueryOnly as QueryOnly
    from holdfast.evaluations.attacked.transfer import Transfer as Transfer
    from holdfast.evaluations.attacked.universal import UniversalRisk as UniversalRisk
    from holdfast.evaluations.certified.certified_breakaway import CertifiedBreakaway as CertifiedBreakaway
    from holdfast.evaluations.certified.certified_displacement import CertifiedDisplacement as CertifiedDisplacement
    from holdfast.evaluations.certified.certified_overlap import CertifiedOverlap as CertifiedOverlap
    from holdfast.evaluations.certified.certified_radius import CertifiedRadius as CertifiedRadius
    from holdfast.evaluations.certified.instance_accuracy import InstanceAccuracy as InstanceAccuracy
    from holdfast.evaluations.certified.linear_radius import LinearRadius as LinearRadius
    from holdfast.evaluations.certified.margin_distribution import MarginDistribution as MarginDistribution
    from holdfast.evaluations.clever.clever import Clever as Clever
    from holdfast.evaluations.corrupted.common_corruptions import CommonCorruptions as CommonCorruptions
    from holdfast.evaluations.corrupted.common_perturbations import CommonPerturbations as CommonPerturbations
    from holdfast.evaluations.corrupted.corruption_error import CorruptionError as CorruptionError
    from holdfast.evaluations.corrupted.corruption_test import CorruptionTest as CorruptionTest
    from holdfast.evaluations.dense.patch_retrieval import PatchRetrieval as PatchRetrieval
    from holdfast.evaluations.deployed.drift import Drift as Drift
    from holdfast.evaluations.deployed.threshold import Threshold as Threshold
    from holdfast.evaluations.geometry.alignment import Alignment as Alignment
    from holdfast.evaluations.geometry.geometry import SpaceGeometry as SpaceGeometry
    from holdfast.evaluations.geometry.grad_cam import GradCam as GradCam
    from holdfast.evaluations.probed.probe_accuracy import ProbeAccuracy as ProbeAccuracy
    from holdfast.evaluations.probed.probe_radius import ProbeRadius as ProbeRadius
    from holdfast.evaluations.probed.robust_accuracy import RobustAccuracy as RobustAccuracy
    from holdfast.evaluations.smoothed.center_smoothing import CenterSmoothing as CenterSmoothing
    from holdfast.evaluations.smoothed.feature_smoothing import FeatureSmoothing as FeatureSmoothing
    from holdfast.evaluations.smoothed.randomized_smoothing import RandomizedSmoothing as RandomizedSmoothing
    from holdfast.evaluations.smoothed.smoothed_retrieval import SmoothedRetrieval as SmoothedRetrieval
    from holdfast.evaluations.spectral.spade import Spectral as Spectral
    from holdfast.evaluations.synthetic.synbench import SynBench as SynBench
    from holdfast.probes.text import TextProbe as TextProbe
    from holdfast.protocol.evaluation import Evaluation as Evaluation
    from holdfast.training.recipe import Recipe as Recipe
    from holdfast.transforms.base import Transform as Transform
    from holdfast.transforms.base import transformed as transformed

_HOMES = {
    "AdaptiveAttack": "attacks.adaptive",
    "AgreementLostError": "core.errors",
    "Alignment": "evaluations.geometry.alignment",
    "Attack": "attacks.base",
    "AttackRadius": "evaluations.attacked.attack_radius",
    "Ball": "core.balls",
    "Breakaway": "evaluations.attacked.breakaway",
    "BudgetSpentError": "core.errors",
    "CenterSmoothing": "evaluations.smoothed.center_smoothing",
    "CertifiedBreakaway": "evaluations.certified.certified_breakaway",
    "CertifiedDisplacement": "evaluations.certified.certified_displacement",
    "CertifiedOverlap": "evaluations.certified.certified_overlap",
    "CertifiedRadius": "evaluations.certified.certified_radius",
    "Clever": "evaluations.clever.clever",
    "CommonCorruptions": "evaluations.corrupted.common_corruptions",
    "CommonPerturbations": "evaluations.corrupted.common_perturbations",
    "CorruptionError": "evaluations.corrupted.corruption_error",
    "CorruptionTest": "evaluations.corrupted.corruption_test",
    "Cosine": "core.divergences",
    "Dense": "core.encoder",
    "Displacement": "evaluations.attacked.displacement",
    "Divergence": "core.divergences",
    "Domain": "core.encoder",
    "Drift": "evaluations.deployed.drift",
    "Embeddings": "encoders.embeddings",
    "Encoder": "core.encoder",
    "EvaluatedRun": "commands.evaluated_run",
    "Evaluation": "protocol.evaluation",
    "FeatureSmoothing": "evaluations.smoothed.feature_smoothing",
    "GaussianKL": "core.divergences",
    "Geometry": "core.geometry",
    "GradCam": "evaluations.geometry.grad_cam",
    "GradientAttack": "attacks.gradient",
    "Hardened": "commands.harden",
    "HoldfastError": "core.errors",
    "HoldfastWarning": "core.errors",
    "Images": "core.images",
    "Impersonation": "evaluations.attacked.impersonation",
    "InstanceAccuracy": "evaluations.certified.instance_accuracy",
    "L1": "core.balls",
    "L1Distance": "core.divergences",
    "L2": "core.balls",
    "L2Distance": "core.divergences",
    "LinearRadius": "evaluations.certified.linear_radius",
    "Linf": "core.balls",
    "LinfDistance": "core.divergences",
    "MarginDistribution": "evaluations.certified.margin_distribution",
    "Masking": "evaluations.attacked.masking",
    "NaturalEvolution": "attacks.nes",
    "Overlap": "evaluations.attacked.overlap",
    "Parity": "commands.parity",
    "PatchRetrieval": "evaluations.dense.patch_retrieval",
    "ProbeAccuracy": "evaluations.probed.probe_accuracy",
    "ProbeRadius": "evaluations.probed.probe_radius",
    "QueryOnly": "evaluations.attacked.query_only",
    "RandomizedSmoothing": "evaluations.smoothed.randomized_smoothing",
    "Rank": "core.divergences",
    "Recipe": "training.recipe",
    "Result": "core.records",
    "RobustAccuracy": "evaluations.probed.robust_accuracy",
    "RunSettings": "core.run_settings",
    "SmoothedRetrieval": "evaluations.smoothed.smoothed_retrieval",
    "SoftmaxKL": "core.divergences",
    "SpaceGeometry": "evaluations.geometry.geometry",
    "Spectral": "evaluations.spectral.spade",
    "SquareAttack": "attacks.square",
    "SynBench": "evaluations.synthetic.synbench",
    "TextModel": "core.texts",
    "TextProbe": "probes.text",
    "TextTower": "core.texts",
    "Threshold": "evaluations.deployed.threshold",
    "Tokens": "core.divergences",
    "Transfer": "evaluations.attacked.transfer",
    "Transform": "transforms.base",
    "UnitL2": "core.divergences",
    "UniversalRisk": "evaluations.attacked.universal",
    "Wasserstein": "core.divergences",
    "Whitened": "core.divergences",
    "attack": "commands.attack",
    "certify": "commands.certify",
    "check": "commands.check",
    "clean": "commands.clean",
    "compare": "commands.compare",
    "corrupt": "commands.corrupt",
    "doctor": "commands.doctor",
    "drift": "commands.drift",
    "evaluate": "commands.evaluate",
    "harden": "commands.harden",
    "load_encoder": "commands.inputs",
    "load_images": "commands.inputs",
    "parity": "commands.parity",
    "publish": "commands.publish",
    "recheck": "commands.certify.recheck",
    "require": "commands.check",
    "runs": "commands.runs",
    "spade": "commands.spade",
    "threshold": "commands.threshold",
    "train": "commands.train",
    "transformed": "transforms.base",
    "verify": "commands.certify.instances",
}
__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    return getattr(import_module(f"holdfast.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
