"""Where the modules of versions 0.2 and 0.3 are now: their old names work, with one warning each, until version 0.5."""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_TABLE = """
attacks.adaptive: attacks.together
attacks.adversarial: commands.attack.observation commands.attack.record
attacks.attack_files: attacks.files commands.attack.files
attacks.attacked_codes: evaluations.attacked.observations evaluations.attacked.pictures evaluations.attacked.sizes
attacks.attacked_radii: evaluations.attacked.events evaluations.attacked.searched attacks.events
attacks.black_box: attacks.decisions attacks.nes attacks.square
attacks.evaluations.attack_radius: evaluations.attacked.attack_radius
attacks.evaluations.breakaway: evaluations.attacked.breakaway
attacks.evaluations.displacement: evaluations.attacked.displacement evaluations.attacked.effective_rank
attacks.evaluations.harm_kept: evaluations.attacked.harm_kept
attacks.evaluations.impersonation: evaluations.attacked.impersonation
attacks.evaluations.masking: evaluations.attacked.masking
attacks.evaluations.overlap: evaluations.attacked.overlap
attacks.evaluations.query_only: evaluations.attacked.query_only
attacks.evaluations.transfer: evaluations.attacked.transfer
attacks.evaluations.universal: evaluations.attacked.universal evaluations.attacked.universal_perturbation
attacks.objectives.contrast: objectives.contrast
attacks.objectives.simple: objectives.away objectives.crossing objectives.misclassification objectives.toward
attacks.objectives.simple: objectives.views
attacks.pair_attacks: attacks.pairs attacks.two_images attacks.unit_ball
attacks.presets: attacks.aims
attacks.radius_search: attacks.radius attacks.minimum_norm
bounds.bound_findings: evaluations.certified.brackets evaluations.certified.findings evaluations.certified.sizes
bounds.bound_findings: evaluations.certified.witness bounds.findings
bounds.certificates: commands.certify.counterexamples commands.certify.files commands.certify.observation
bounds.certificates: commands.certify.record
bounds.certified_pairs: evaluations.certified.pairwise.negatives evaluations.certified.pairwise.pair_attack
bounds.certified_pairs: evaluations.certified.pairwise.pairs bounds.pairs
bounds.certified_search: bounds.radii.bisection bounds.radii.bracketing bounds.radii.search bounds.radius
bounds.evaluations.certified_breakaway: evaluations.certified.certified_breakaway
bounds.evaluations.certified_displacement: evaluations.certified.certified_displacement
bounds.evaluations.certified_overlap: evaluations.certified.certified_overlap
bounds.evaluations.certified_radius: evaluations.certified.certified_radius
bounds.evaluations.instance_accuracy: evaluations.certified.instance_accuracy
bounds.evaluations.linear_radius: evaluations.certified.linear_head evaluations.certified.linear_radius
bounds.evaluations.margin_distribution: evaluations.certified.margin_distribution evaluations.certified.tail_fits
bounds.evaluations.margin_distribution: evaluations.certified.theorems
bounds.methods.alpha: bounds.methods.sdp_crown
bounds.methods.branch: bounds.subdomains.receptive_fields
bounds.methods.branch_and_bound: bounds.subdomains.branch_and_bound
bounds.methods.exact: bounds.methods.mixed_integer bounds.methods.silence
bounds.methods.lagrangian: bounds.methods.multiplier_ascent
bounds.methods.lipschitz: bounds.methods.enclosing_balls
bounds.methods.semidefinite: bounds.methods.ball_multipliers
bounds.network.network_graph: bounds.network.affine bounds.network.graph
bounds.network.operations: bounds.network.casting
bounds.network.tracing: bounds.network.calls
bounds.outputs: evaluations.certified.outputs.bisector_hyperplanes evaluations.certified.outputs.linear_bounds
bounds.outputs: evaluations.certified.outputs.output_bounds
bounds.pair_bounds: evaluations.certified.certification evaluations.certified.pairwise.pair_bounds
bounds.pair_bounds: evaluations.certified.pairwise.radius_bounds
bounds.problem: commands.certify.problem
bounds.proofs.making: bounds.proofs.lowering
bounds.proofs.proof: bounds.proofs.float64 bounds.proofs.network
bounds.proofs.proof_files: commands.certify.proofs bounds.proofs.files
bounds.queries: commands.certify.queries commands.certify.vnnlib
bounds.relaxations: bounds.relaxations.averages bounds.relaxations.ball_offset bounds.relaxations.curves
bounds.relaxations: bounds.relaxations.rules
bounds.rounding.errors: bounds.rounding.catalogue bounds.rounding.functions bounds.rounding.sums
bounds.rounding.executed: bounds.rounding.executed_encoder
bounds.rounding.formats: bounds.rounding.steps
bounds.verify: commands.certify.instances
cli.terminal: cli.helping cli.terminal.console cli.terminal.one_result cli.terminal.output cli.terminal.parsing
cli.terminal: cli.warned
commands.canary: commands.canary_make
commands.certify: commands.certify.smoothing commands.certify_by_copies
commands.harden: commands.harden.budget
commands.parity: commands.parity.conclusion commands.parity_conclusion
commands.parity_preprocessing: commands.parity.files commands.parity.preprocessing
commands.parity_sides: commands.parity.radii commands.parity.sides
commands.parity_trials: commands.parity.trials
commands.recheck: commands.certify.recheck
commands.runs: commands.inventory commands.stored_runs
commands.train: commands.train.folder commands.train.inputs commands.train_folder
core.checks: core.arguments
core.discovery: core.old_names
core.fingerprint: core.fingerprint.named_code
core.objective: objectives.base
core.optimised: core.arrangement core.operations
core.pictures: report.figures.sheet
core.points.points: core.points.enclosing_balls
core.run_settings: core.whole_float32
core.settings: core.clock core.stopwatch
core.statistics.groups: core.statistics.clusters core.statistics.unseen
core.statistics.intervals: core.statistics.weibull
core.statistics.quantiles: core.statistics.quantile_influence core.statistics.radii
core.statistics.summaries: core.statistics.series
core.syntax: core.fingerprint.syntax
core.text_tower: core.texts
corruptions.corrupted_codes: evaluations.corrupted.accuracies evaluations.corrupted.kinds
corruptions.corrupted_codes: evaluations.corrupted.observations evaluations.corrupted.retrieval
corruptions.edit_findings: corruptions.findings evaluations.corrupted.findings evaluations.corrupted.pictures
corruptions.edits: evaluations.corrupted.edits evaluations.corrupted.enclosing
corruptions.evaluations.common_corruptions: evaluations.corrupted.common_corruptions
corruptions.evaluations.common_perturbations: evaluations.corrupted.common_perturbations
corruptions.evaluations.corruption_error: evaluations.corrupted.corruption_error
corruptions.evaluations.under_corruption: evaluations.corrupted.corruption_test
corruptions.transformed_files: corruptions.files commands.corrupt.files
data.by_name: data.reading.groups
data.by_name: data.base
data.huggingface: data.huggingface.streamed
data.parquet: data.reading.columns
data.reading.decode: data.reading.content
data.reading.scan: data.reading.encoded data.reading.survey
data.reading.scan_cache: data.reading.remembered
data.reading.stores: data.reading.endings
data.remote: data.remote.stored_arrays
encoders.architectures.base: encoders.architectures.loaded
encoders.architectures.plain: encoders.architectures.digits encoders.architectures.rvcl
encoders.by_name: encoders.loading.reference
encoders.exported.program: encoders.exported.archive encoders.exported.expressions encoders.exported.rules
encoders.huggingface.files: encoders.huggingface.images encoders.huggingface.texts
encoders.loading.inputs: encoders.loading.torchvision_operators encoders.loading.factory
encoders.loading.library_transform: encoders.loading.stated
encoders.loading.weights: encoders.loading.weight_files encoders.loading.zipped
encoders.onnx.files: encoders.onnx.inputs
encoders.onnx.graph: encoders.onnx.attributes encoders.onnx.operators
encoders.onnx.layers: encoders.onnx.call encoders.onnx.shapes
geometry.classes: evaluations.geometry.classes evaluations.geometry.hubs evaluations.geometry.margins
geometry.evaluations.alignment: evaluations.geometry.alignment
geometry.evaluations.geometry: evaluations.geometry.geometry
geometry.evaluations.grad_cam: evaluations.geometry.grad_cam
geometry.evaluations.patch_retrieval: evaluations.dense.patch_retrieval evaluations.dense.observations geometry.patches
geometry.spectrum: evaluations.geometry.spectrum
geometry.sphere: evaluations.geometry.fluctuation evaluations.geometry.pairs evaluations.geometry.sphere
geometry.sphere: evaluations.geometry.tags evaluations.geometry.warnings
geometry.views: evaluations.geometry.activation_maps evaluations.geometry.observations
measure.bank: protocol.bank
measure.evaluation: measure.applicable protocol.applicable protocol.evaluation protocol.sizes
measure.observation: measure.findings protocol.curves protocol.names protocol.observation protocol.warnings
measure.packs: store.mapped store.packs
measure.population: protocol.fits protocol.population
measure.store: measure.keys store.keys store.provenance store.store
probes.base: probes.chance
probes.evaluations.probe_accuracy: evaluations.probed.probe_accuracy
probes.evaluations.probe_radius: evaluations.probed.probe_radius
probes.evaluations.robust_accuracy: evaluations.probed.robust_accuracy
probes.linear: probes.noise probes.robust probes.synbench_robust probes.hardened
probes.own_encoder: probes.filtered probes.fine_tuned probes.robust_ssl
probes.probed_codes: evaluations.probed.findings evaluations.probed.observations
probes.text: probes.prompts
report.comparison.comparable: report.comparison.protocol report.comparison.relative
report.comparison.compare: report.comparison.jointly
report.comparison.tables: report.comparison.differences
report.contents: report.heading report.run_state report.select
report.elsewhere: commands.log report.hub report.tracked
report.files: report.overview.recorded
report.figures.plots: report.figures.charts
report.figures.svg: report.figures.axis
report.overview.alerts: report.overview.saturation
report.overview.tally: report.overview.asked report.overview.scorecard
report.page.page: report.page.blocks
run.catalog: execution.request.catalog execution.request.suites run.protocols
run.checkup: execution.examination run.examination
run.computing: execution.computing execution.computing.fitting execution.computing.one_observation
run.computing: execution.computing.subject
run.conclusions: execution.table.cells execution.table.conclusions
run.engines.base: execution.engines.base execution.engines.local
run.engines.processes: execution.engines.automatic execution.engines.processes
run.engines.ranks: execution.engines.ranks
run.engines.ray: execution.engines.ray
run.engines.requested: execution.engines.requested
run.forecast: execution.computing.cost execution.computing.deadline
run.health_checks: execution.examination.inputs execution.examination.questions run.examination_checks
run.inputs: execution.request.loading
run.plan: execution.computing.tuning execution.request.plan run.tuning
run.progress: execution.computing.progress
run.radii: execution.request.informative_radii
run.request: execution.request
run.run: commands.observing commands.output_folder execution.session run.folder run.session
run.scheduler: execution.table.interim execution.table.rounds execution.table.steps run.rounds run.steps
run.shards: execution.computing.shards execution.computing.turns
run.table: execution.table execution.table.duration execution.table.preparation
service.canary: service.canary_images
service.canary_file: service.canary_url
service.drift_findings: evaluations.deployed.comparison evaluations.deployed.moved evaluations.deployed.new_images
service.edited_codes: evaluations.deployed.closest_edit evaluations.deployed.observations service.closest_edit
service.energy: service.permutations twosample.classifier twosample.directions twosample.energy twosample.linearised
service.energy: twosample.permutations twosample.taken_away
service.evaluations.drift: evaluations.deployed.drift
service.evaluations.threshold: evaluations.deployed.threshold
service.false_matches: evaluations.deployed.false_matches evaluations.deployed.pairs
service.parity: evaluations.parity.findings evaluations.parity.verdict
service.parity_maps: evaluations.parity.maps evaluations.parity.retrieval
service.two_sets: twosample.betting twosample.support evaluations.deployed.two_sets service.conformal
smoothing.copies: evaluations.smoothed.copies evaluations.smoothed.stopping evaluations.smoothed.votes
smoothing.evaluations.center_smoothing: evaluations.smoothed.center_smoothing
smoothing.evaluations.feature_smoothing: evaluations.smoothed.feature_smoothing
smoothing.evaluations.randomized_smoothing: evaluations.smoothed.randomized_smoothing
smoothing.evaluations.smoothed_retrieval: evaluations.smoothed.smoothed_retrieval
smoothing.index: evaluations.smoothed.center evaluations.smoothed.index
smoothing.noisy_codes: evaluations.smoothed.betting evaluations.smoothed.observations evaluations.smoothed.unit_codes
smoothing.noisy_codes: smoothing.unit_codes
smoothing.plan: evaluations.smoothed.base evaluations.smoothed.findings evaluations.smoothed.plan
smoothing.plan: evaluations.smoothed.sizes smoothing.shared
spectral.analysis: spectral.scores
spectral.arrays: evaluations.spectral.features
spectral.eigen: spectral.lanczos spectral.lobpcg
spectral.evaluations.clever: evaluations.clever.clever evaluations.clever.observations
spectral.evaluations.clever: evaluations.clever.reverse_weibull
spectral.evaluations.spade: evaluations.spectral.embedding evaluations.spectral.observations evaluations.spectral.spade
spectral.graph: spectral.components spectral.graphs.approximate spectral.neighbours
spectral.graph_pair: spectral.graphs spectral.graphs.base spectral.graphs.cknn spectral.graphs.knn spectral.graphs.pca
spectral.graph_pair: spectral.graphs.sparsified
spectral.resistance: spectral.hops spectral.solve
spectral.spade_findings: evaluations.spectral.findings evaluations.spectral.samples evaluations.spectral.warnings
spectral.spade_findings: spectral.comparisons
spectral.stability: spectral.tensors
synthetic.evaluations.synbench: evaluations.synthetic.curves evaluations.synthetic.synbench
synthetic.mixture: synthetic.bayes synthetic.linf synthetic.moments synthetic.rules
synthetic.score: synthetic.reference synthetic.suggestion synthetic.accuracies
synthetic.synbench_findings: evaluations.synthetic.findings evaluations.synthetic.uncertainty
synthetic.synbench_findings: evaluations.synthetic.warnings
training.adversaries.base: training.adversaries.loss training.adversaries.noise training.adversaries.targeted
training.adversaries.base: training.adversaries.untargeted training.adversary training.adversaries.attacks
training.feed: training.loop.feed training.native
training.hardening: commands.harden.recipe training.agreement training.harden_recipe
training.health: training.loop.checkpoints training.loop.health training.loop.interruption training.page
training.learner: training.components.heads
training.loop: training.loop.beginning training.loop.training
training.objectives.clustering: training.components.prototypes training.objectives.deepcluster_v2
training.objectives.clustering: training.objectives.swav
training.objectives.contrastive: training.components.info_nce training.objectives.moco_v2 training.objectives.moco_v3
training.objectives.contrastive: training.objectives.simclr training.objectives.supcon
training.objectives.decorrelation: training.objectives.barlow_twins training.objectives.vicreg
training.objectives.siamese: training.components.siamese training.objectives.byol training.objectives.simsiam
training.objectives.teachers: training.objectives.distillation training.objectives.supervised
training.processes: training.gathering
training.recipe: training.loop.views
transforms.augmentations.colour: transforms.augmentations.chance transforms.augmentations.color_jitter
transforms.augmentations.colour: transforms.augmentations.gaussian_blur transforms.augmentations.grayscale
transforms.augmentations.colour: transforms.augmentations.luma transforms.augmentations.solarize
transforms.augmentations.cropping: transforms.augmentations.horizontal_flip transforms.augmentations.random_affine
transforms.augmentations.cropping: transforms.augmentations.random_crop transforms.augmentations.random_resized_crop
transforms.everyday: transforms.blur transforms.brightness transforms.contrast transforms.crop transforms.gamma
transforms.everyday: transforms.hue_saturation transforms.jpeg transforms.noise transforms.resize transforms.rotation
transforms.filters: transforms.sampling transforms.smoothing
transforms.imagenet_c.noise_and_blur: transforms.imagenet_c.blur transforms.imagenet_c.glass_blur
transforms.imagenet_c.noise_and_blur: transforms.imagenet_c.motion_blur transforms.imagenet_c.noise
transforms.imagenet_c.noise_and_blur: transforms.imagenet_c.zoom_blur
transforms.imagenet_c.weather_and_digital: transforms.imagenet_c.colour transforms.imagenet_c.edges
transforms.imagenet_c.weather_and_digital: transforms.imagenet_c.elastic transforms.imagenet_c.jpeg
transforms.imagenet_c.weather_and_digital: transforms.imagenet_c.pixelate transforms.imagenet_c.fog
transforms.imagenet_c.weather_and_digital: transforms.imagenet_c.frost transforms.imagenet_c.plasma
transforms.imagenet_c.weather_and_digital: transforms.imagenet_c.snow transforms.imagenet_c.spatter
transforms.imagenet_c.weather_and_digital: transforms.imagenet_c.digital transforms.imagenet_c.weather
transforms.severity: transforms.imagenet_c.severity transforms.ladders transforms.imagenet_c.base
"""
"""New modules, each with the old ones whose names it has."""
_FOLDERS = """
bounds.radii bounds.subdomains evaluations evaluations.attacked evaluations.certified
evaluations.certified.outputs evaluations.certified.pairwise evaluations.clever evaluations.corrupted
evaluations.dense evaluations.deployed evaluations.geometry evaluations.parity evaluations.probed
evaluations.smoothed evaluations.spectral evaluations.synthetic execution execution.engines objectives protocol
store training.components twosample
"""
"""Packages that are gone and held no names of their own."""
RENAMED = {
    "bounds.radii.bisection": {"GROWTH": "BISECTION_GROWTH"},
    "bounds.relaxations.ball_offset": {"BISECTIONS": "OFFSET_BISECTIONS"},
    "data.remote.stored_arrays": {"load": "load_stored"},
    "evaluations.clever.reverse_weibull": {"SAME": "SAME_NORMS"},
    "evaluations.geometry.margins": {"BLOCK": "MARGIN_BLOCK"},
    "objectives.misclassification": {"margin": "margin_of_logits"},
    "training.objectives.barlow_twins": {"EPS": "BARLOW_EPS"},
}
"""What a few old modules defined under names that the new one gives to something else."""

MOVED = {old: new for row in _TABLE.split("\n") for new, _, olds in [row.partition(":")] for old in olds.split()}
FOLDERS = frozenset(_FOLDERS.split())


class Moved(MetaPathFinder, Loader):
    """Finds modules under their old names, after every other finder."""

    def find_spec(self, fullname: str, path: object = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return how to load what was called ``fullname``, None if nothing was."""
        old = fullname.removeprefix("holdfast.")
        known = fullname.startswith("holdfast.") and (old in MOVED or old in FOLDERS)
        return ModuleSpec(fullname, self, is_package=True) if known else None

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave it to Python to make the module."""

    def exec_module(self, module: ModuleType) -> None:
        """Give ``module`` the names of the one that has taken its place."""
        old = module.__name__.removeprefix("holdfast.")
        if old not in MOVED:
            return
        new = f"holdfast.{MOVED[old]}"
        warnings.warn(
            f"{module.__name__} has moved to {new}. Import from there, or from holdfast or holdfast.extend.",
            DeprecationWarning,
            stacklevel=2,
        )
        names = {name: value for name, value in vars(import_module(new)).items() if not name.startswith("__")}
        vars(module).update(names, **{name: names[now] for name, now in RENAMED.get(old, {}).items()})


def install() -> None:
    """Let Python find old names from now on."""
    if not any(isinstance(finder, Moved) for finder in sys.meta_path):
        sys.meta_path.append(Moved())
