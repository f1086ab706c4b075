"""``holdfast attack``: one attack on some images, and everything it found on disk."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.cluster import cluster_of
from holdfast.cli.evaluate import STOPPED
from holdfast.cli.flags import Arch, Budget, Cluster, Images, Seed, Size, TrustRemoteCode, Workers
from holdfast.cli.subject import ball_of, left_over, population_of, require_fit
from holdfast.core.errors import HoldfastError, did_you_mean

if TYPE_CHECKING:
    from holdfast.attacks.presets import Preset
    from holdfast.commands.attack_files import AttackRecord
    from holdfast.core.balls import Ball
    from holdfast.objectives.base import Objective

__all__ = ["STOPPED", "command"]

HOW = "How it is attacked"
COMPUTES = "How it is computed"


def command(
    encoder: Annotated[str, typer.Argument(help="source:name, as in timm:resnet50.")],
    images: Images[str],
    out: Annotated[Path, typer.Option(help="Folder for what the attack finds; running again continues it.")],
    preset: Annotated[
        str, typer.Option(help="An attack of the literature (holdfast list attacks).", rich_help_panel=HOW)
    ] = "adaptive",
    eps: Annotated[
        str | None,
        typer.Option(help="Radius of a linf ball instead of the preset's, as in 8/255.", rich_help_panel=HOW),
    ] = None,
    ball: Annotated[
        str | None, typer.Option(help="Any ball instead of the preset's, as in l2:0.5.", rich_help_panel=HOW)
    ] = None,
    attack: Annotated[
        str | None, typer.Option(help="Instead of the preset's, as in pgd:steps=40.", rich_help_panel=HOW)
    ] = None,
    objective: Annotated[
        str | None, typer.Option(help="Instead of the preset's, as in away or toward.", rich_help_panel=HOW)
    ] = None,
    divergence: Annotated[
        str | None, typer.Option(help="What the objective measures with, as in cosine.", rich_help_panel=HOW)
    ] = None,
    limit: Annotated[int, typer.Option(help="At most so many images, chosen by the seed.", min=1)] = 64,
    seed: Seed = 0,
    arch: Arch = None,
    size: Size = None,
    trust_remote_code: TrustRemoteCode[bool] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps.", rich_help_panel=COMPUTES)] = "cpu",
    precision: Annotated[
        str, typer.Option(help="float32, float64, bfloat16, float16.", rich_help_panel=COMPUTES)
    ] = "float32",
    batch_size: Annotated[int, typer.Option(help="At most so many images at a time.", rich_help_panel=COMPUTES)] = 256,
    budget: Budget = None,
    cluster: Cluster = None,
    workers: Workers = None,
) -> int:
    """Attack images: keep what they become, how far their codes move, and a check of both."""
    # Loaded here, because these need torch.
    from holdfast.commands.attack_files import export
    from holdfast.commands.attack_images import AdversarialImages, adversarial
    from holdfast.commands.output_folder import claim, require_free
    from holdfast.core.run_settings import RunSettings
    from holdfast.encoders import Options
    from holdfast.execution.engines.ranks import leads
    from holdfast.execution.progress import Shown
    from holdfast.execution.session import devices_of, engine
    from holdfast.execution.table import collect
    from holdfast.store.store import Store, key_of

    cluster = cluster_of(cluster, workers, out)
    chosen = _preset(preset, ball_of(eps, ball), attack, objective, divergence)
    run = RunSettings(seed, precision=precision, batch_size=batch_size, **devices_of(cluster, device, workers))
    started, began, where = datetime.now(UTC), monotonic(), engine(cluster, device, workers, out)
    require_free(out)
    population, store = population_of(encoder, Options(arch, size, trust_remote_code), images, run, limit), Store(out)
    chosen.ball.check(population.encoder.domain)
    wanted = AdversarialImages.of(chosen, population)
    claim(store, "attack", key_of(wanted, population.encoder, population.images, run))
    with Shown(quiet=not leads(where)) as shown:
        require_fit(population, "attacked", where)
        population, rows, observed = collect(wanted, population, store, where, shown, budget, began)
    if not leads(where):
        return 0
    if not rows:
        return left_over(shown, len(population.images))
    record = export(population, chosen, adversarial(population, wanted, rows, observed), store, started)
    print(f"{chosen.objective} by {chosen.attack} in {chosen.ball}: {_summary(record)}")
    print(f"Attacked images: {out / ('sheet.png' if record.moved[0].png else 'attack.safetensors')}")
    if not record.replay.passed:
        shown.say(f"the saved pixels do not pass their check: {record.replay}")
    return max(left_over(shown, record.missing), int(not record.replay.passed))


def _summary(record: AttackRecord) -> str:
    moved, cosine = (median(getattr(image, name) for image in record.moved) for name in ("l2", "cosine"))
    apart = record.clean_distance
    beside = f" ({moved / apart:.0%} of the distance of two clean codes)" if apart > 0 else ""
    return f"codes moved by {moved:.3g} in l2{beside} and {cosine:.3g} in cosine, at the median"


def _preset(name: str, ball: Ball | None, attack: str | None, objective: str | None, divergence: str | None) -> Preset:
    """Return the preset ``name`` with what is given instead of its own."""
    from holdfast.attacks.presets import PRESETS, read_attack
    from holdfast.core.settings import read
    from holdfast.execution.catalog import objectives

    if name not in PRESETS:
        raise HoldfastError(f"unknown preset {name!r}; {did_you_mean(name, list(PRESETS))}")
    base = PRESETS[name]
    sought = read(objective, objectives(), "objective") if objective else base.objective
    if divergence:
        sought = _measured_by(sought, divergence, objective)
    changed = any((ball, attack, objective, divergence))
    return replace(
        base,
        objective=sought,
        attack=read_attack(attack) if attack else base.attack,
        ball=ball or base.ball,
        source=f"{name} ({base.source}){', changed' if changed else ''}",
    )


def _measured_by(sought: Objective, divergence: str, objective: str | None) -> Objective:
    """Return ``sought`` with another divergence."""
    from holdfast.core.divergences import Divergence
    from holdfast.objectives.base import DivergenceObjective

    if "divergence=" in (objective or ""):
        raise HoldfastError(f"--divergence {divergence} and --objective {objective} contradict each other; give one")
    if not isinstance(sought, DivergenceObjective):
        raise HoldfastError(f"the objective {sought.name} takes no divergence; leave --divergence out")
    return replace(sought, divergence=Divergence.read(divergence))
