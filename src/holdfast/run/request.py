"""From flags and TOML to a request, and from the request to evaluations.

Later entries override earlier ones: defaults of the evaluations (the papers'), suite, TOML file, flags. Keys of a TOML file
are the fields of the request; it has one table per evaluation, whose keys are the fields of the evaluation.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import BeforeValidator, Field, PlainSerializer, PlainValidator, ValidationError

from holdfast.attacks.black_box import SquareAttack
from holdfast.attacks.presets import attack_fields, attacks_in_balls
from holdfast.core.balls import Ball, balls_of, read_ball
from holdfast.core.errors import (
    HoldfastError,
    OutOfRange,
    UnknownName,
    check_given_once,
    check_known,
    check_no_blanks,
    explained,
    readable,
    warn,
)
from holdfast.core.options import (
    BatchSize,
    Budget,
    Cluster,
    Device,
    EvaluateOptions,
    Limit,
    Precision,
    Seed,
    Size,
    TrustRemoteCode,
    defaults,
)
from holdfast.core.records import Record
from holdfast.core.settings import convert, fields_of, listed, seconds, types_of
from holdfast.measure.evaluation import Evaluation, lacks_bank, plain, with_bank
from holdfast.run.catalog import SUITES, evaluations, left_out, suite_settings

Settings = Mapping[str, Mapping[str, Any]]
BLIND = SquareAttack()
"""The attack of a request for a black box."""


DEFAULTS = defaults(EvaluateOptions, "evaluate")


def _several(value: Any) -> Any:
    return () if value is None else (value,) if isinstance(value, str) else value


def _texts(settings: Settings) -> dict[str, dict[str, Any]]:
    return {name: {field: plain(value) for field, value in fields.items()} for name, fields in settings.items()}


class Request(Record):
    """Request of ``holdfast evaluate``. A field's name is its flag and its TOML key."""

    encoders: tuple[str, ...] = ()
    images: str | None = None
    bank: str | None = None
    suite: str = "quick"
    only: tuple[str, ...] = ()
    eps: tuple[str | float, ...] = ()
    ball: tuple[Annotated[Ball, PlainValidator(read_ball), PlainSerializer(str)], ...] = ()
    seed: Seed = DEFAULTS["seed"]
    attack_seed: int | None = None
    device: Device = DEFAULTS["device"]
    precision: Precision = DEFAULTS["precision"]
    batch_size: BatchSize = DEFAULTS["batch_size"]
    limit: Limit = Field(default=DEFAULTS["limit"], ge=1)
    bank_limit: int | None = Field(default=None, ge=1)
    budget: Annotated[Budget, BeforeValidator(lambda value: None if value is None else seconds(value))] = DEFAULTS[
        "budget"
    ]
    baselines: tuple[str, ...] = ()
    arch: Annotated[tuple[str, ...], BeforeValidator(_several)] = ()
    size: Size = Field(default=DEFAULTS["size"], ge=1)
    trust_remote_code: TrustRemoteCode = DEFAULTS["trust_remote_code"]
    black_box: bool = False
    cluster: Cluster = DEFAULTS["cluster"]
    workers: Annotated[int, Field(ge=1)] | Literal["auto"] | None = DEFAULTS["workers"]
    rehash: bool = False
    out: str | None = None
    log: Annotated[tuple[str, ...], BeforeValidator(_several)] = ()
    settings: Annotated[dict[str, dict[str, Any]], PlainSerializer(_texts)] = Field(default_factory=dict)

    @classmethod
    def of(cls, **keywords: Any) -> Request:
        """Return the request that keywords of ``holdfast.evaluate`` make.

        Raises:
            HoldfastError: a name, a value or a combination makes no sense.
        """
        try:
            request = cls(**keywords)
        except ValidationError as error:
            first = error.errors()[0]
            if isinstance(reason := first.get("ctx", {}).get("error"), HoldfastError):
                raise reason from error
            where = ".".join(map(str, first["loc"]))
            raise HoldfastError(f"{where}: {first['msg'].lower()}, got {first['input']!r}") from error
        _ = request.balls
        check_known("suite", request.suite, SUITES)
        return request

    @property
    def balls(self) -> list[Ball]:
        """Return the balls that attacks are asked for, of ``eps`` or else ``ball``."""
        return balls_of(self.eps, self.ball)


def keywords(flags: Mapping[str, Any], file: Path | None = None) -> dict[str, Any]:
    """Return the keywords of ``holdfast.evaluate`` from ``file``, overridden by ``flags``.

    Raises:
        HoldfastError: a key, a value or a combination makes no sense.
    """
    content = _read(file) if file else {}
    if "eps" in flags or "ball" in flags:
        content = {name: value for name, value in content.items() if name not in ("eps", "ball")}
    check_no_blanks(content)
    merged = {**content, **flags, "settings": _merged(content.get("settings", {}), flags.get("settings", {}))}
    for images in listed(merged.get("images")) or [None]:  # several data sets are several requests
        Request.of(**{**merged, "images": images})
    return merged


def planned(request: Request, operations: int = 0) -> list[Evaluation]:
    """Return the evaluations of ``request`` with their settings, for encoders with up to ``operations`` per image."""
    known = evaluations()
    check_given_once("only", request.only)
    check_known("evaluation", (*request.only, *request.settings), known)
    every = [name for name in known if not known[name].by_name]
    names = request.only or list(SUITES[request.suite].settings) or every
    kinds = [known[name] for name in names if not (request.black_box and known[name].needs_gradients)]
    if blocked := [name for name in request.only if known[name] not in kinds]:
        raise HoldfastError(f"{', '.join(blocked)} need the encoder's gradients; leave them out with --black-box")
    kinds = [kind for kind in kinds if request.only or not left_out(request.suite, kind, operations)]
    balls = request.balls
    check_given_once("eps or ball", balls)
    with_balls = [kind for kind in kinds if attacks_in_balls(kind)]
    if balls and not with_balls:
        advice = next((f"; use --set {k.name}.balls={balls[0]}" for k in kinds if "balls" in fields_of(k)), "")
        raise HoldfastError(f"eps and ball change nothing: {', '.join(request.only)} attack in no ball{advice}")
    over = {kind.name: {"balls": balls} for kind in with_balls} if balls else {}
    blind = {kind.name: dict.fromkeys(attack_fields(kind), BLIND) for kind in kinds} if request.black_box else {}
    sizes = suite_settings(request.suite, kinds, operations)
    chosen = _merged(_merged(_merged(sizes, over), blind), request.settings)
    plan = [build(kind, chosen.get(kind.name, {})) for kind in kinds]
    lacking = [] if request.bank else [evaluation.name for evaluation in plan if lacks_bank(evaluation)]
    if request.only and lacking:
        raise HoldfastError(f"there is no bank of images for {', '.join(lacking)} to learn from; name it with --bank")
    plan = [evaluation for evaluation in plan if evaluation.name not in lacking]
    for name in set(request.settings) - {evaluation.name for evaluation in plan}:
        warn(f"[{name}] changes nothing, because {name} is not run")
    for evaluation in plan:
        if isinstance(count := getattr(evaluation, "samples", None), int) and count < 1:
            raise OutOfRange(f"{evaluation.name}: samples", count, "at least 1 image")
    if request.bank and not any(map(with_bank, plan)):
        raise HoldfastError(f"a bank changes nothing: {', '.join(names)} use none; leave --bank out")
    return plan


def requested_balls(plan: Sequence[Evaluation]) -> set[Ball]:
    """Return the balls that the user named; a default ball that is too wide fails only its own cell."""
    balls: set[Ball] = set()
    for evaluation in plan:
        if attacks_in_balls(kind := type(evaluation)):
            balls |= {*vars(evaluation)["balls"]} - {*cast(tuple[Ball, ...], fields_of(kind)["balls"].default)}
    return balls


def build(kind: type[Evaluation], values: Mapping[str, Any]) -> Evaluation:
    """Return the evaluation of this ``kind`` whose settings are ``values``: texts, or what JSON and TOML hold.

    Example:
        >>> from holdfast.attacks.evaluations.displacement import Displacement
        >>> build(Displacement, {"sampels": 5})
        Traceback (most recent call last):
        holdfast.core.errors.UnknownName: ... Did you mean 'samples'? Known: ...
    """
    known = fields_of(kind)
    check_known(f"settings of {kind.name}", values, known)
    types = types_of(kind)
    return kind(**{name: convert(value, types[name], f"{kind.name}.{name}") for name, value in values.items()})


def _merged(below: Settings, above: Settings) -> dict[str, dict[str, Any]]:
    """Return settings by evaluation and field; ``above`` wins."""
    return {name: {**below.get(name, {}), **above.get(name, {})} for name in {**below, **above}}


def _read(file: Path) -> dict[str, Any]:
    with readable(f"--config {file}", "", OSError):
        text = file.read_bytes()
    with explained(f"--config {file} is not valid TOML", "correct it", ValueError, RecursionError):
        content = tomllib.loads(text.decode())
    known = [name for name in Request.model_fields if name != "settings"]
    tables = evaluations()
    for key, value in content.items():
        if key not in (tables if isinstance(value, dict) else known):
            raise UnknownName(f"keys of {file}", key, [*known, *tables])
    return {
        **{key: value for key, value in content.items() if not isinstance(value, dict)},
        "settings": {key: value for key, value in content.items() if isinstance(value, dict)},
    }
