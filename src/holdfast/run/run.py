"""Run of a command: its settings, folder, engine, budget and display."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any, NamedTuple

from holdfast.core.encoder import Encoder
from holdfast.core.errors import BudgetSpentError, HoldfastError, explained, warn
from holdfast.core.files import sealed, unsealed
from holdfast.core.options import RunOptions, defaults
from holdfast.core.records import Failure, Result
from holdfast.core.run_settings import Observed, RunSettings
from holdfast.core.settings import budget_start, seconds
from holdfast.data.reading.scan_cache import FILE, ScanCache
from holdfast.measure.observation import Observation
from holdfast.measure.population import Population
from holdfast.measure.store import Key, Store, key_of, some
from holdfast.run.computing import Computing
from holdfast.run.engines.base import Engine, Local
from holdfast.run.engines.processes import Automatic, Processes
from holdfast.run.engines.ranks import LEASES, Ranks, is_main
from holdfast.run.engines.requested import check_cluster, devices_of, engine_of, left_to_threads
from holdfast.run.forecast import Deadline, Forecast, seconds_per_forward
from holdfast.run.inputs import NOTHING, Inputs, Loaded, NamedEncoder, NamedImages, load_encoder, loading_of, select
from holdfast.run.plan import adapt_plan, sharing_attacks
from holdfast.run.progress import Display, shown
from holdfast.run.radii import in_informative_balls
from holdfast.run.request import Request, planned
from holdfast.run.scheduler import WriteReport
from holdfast.run.shards import CleanCodes
from holdfast.run.table import beside, check_distinct_names, fill_table, unfit

DEFAULTS = defaults(RunOptions, "evaluate")
MANY = 10
"""Cells of a new run that take so long that workers are started at once."""
REQUEST = "request.json"
UNFINISHED = {REQUEST, "shards", "arrays", LEASES}
"""Files of a request before its result; shards name their observation themselves."""
DONE = {"attack": "attacked", "certify": "certified"}
"""Participle of each command in messages."""


class Seen(NamedTuple):
    """Stored rows of an observation."""

    population: Population
    """The images, with their clean embeddings if these were asked for."""
    rows: list[int]
    """Rows that were observed by the end of the budget."""
    observed: Observed
    """Observed tensors of ``rows``."""


@dataclass(frozen=True)
class Run:
    """The one place that decides where a command computes, until when, and who is shown how far it is."""

    settings: RunSettings
    store: Store
    engine: Engine = field(default_factory=Local)
    show: Display | None = None
    budget: float | None = None
    """Seconds after which no new work begins."""
    began: float = field(default_factory=monotonic)
    """When the budget began to run, by ``time.monotonic``."""
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    verb: str = "evaluate"
    options: Mapping[str, Any] = field(default_factory=lambda: DEFAULTS)
    forecast: Forecast = field(default_factory=lambda: Forecast({}))
    """Forecast of the time of this run."""

    @classmethod
    @contextmanager
    def open(cls, verb: str, options: Mapping[str, Any], mark: str | None = REQUEST) -> Iterator[Run]:
        """Give the run of a command; its folder is made or continued, and nothing is loaded yet.

        Args:
            verb: the command.
            options: those of ``RunOptions`` that the command has, and perhaps ``attack_seed``.
            mark: file by which the folder of this command is known; None takes any folder.

        Raises:
            HoldfastError: there is no such engine or device, or the folder is in use for something else.
        """
        began, started, options = budget_start(), datetime.now(UTC), {**DEFAULTS, **options}
        out, cluster, device, workers = (options[name] for name in ("out", "cluster", "device", "workers"))
        check_cluster(verb, cluster, out)
        budget = None if options["budget"] is None else seconds(options["budget"])
        with ExitStack() as stack:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="holdfast-")) if out is None else out)
            engine = engine_of(cluster, device, workers, folder)
            settings = RunSettings(
                options["seed"],
                precision=options["precision"],
                batch_size=options["batch_size"],
                attack_seed=options.get("attack_seed"),
                **devices_of(cluster, device, workers),
            )
            if mark is not None:
                check_free(folder, mark)
            show = stack.enter_context(shown(options["progress"] if is_main(engine) else False))
            forecast = Forecast({}, beside=beside(engine))
            yield cls(settings, Store(folder), engine, show, budget, began, started, verb, options, forecast)

    @property
    def is_main(self) -> bool:
        """Whether this process concludes; false for ranks after the first."""
        return is_main(self.engine)

    @property
    def kept(self) -> bool:
        """Whether the user named the folder; other folders are removed at the end of the run."""
        return self.options["out"] is not None

    @property
    def work(self) -> Computing:
        """Computing state with a progress of its own; budget and forecast are shared."""
        return Computing(self.store, self.engine, self.show, Deadline(self.forecast, self.budget, self.began))

    def encoder(self, encoder: NamedEncoder) -> Encoder:
        """Return ``encoder``, loaded as the options say."""
        return load_encoder(encoder, loading_of(self.options))

    def population(self, encoder: Encoder, images: NamedImages) -> Population:
        """Return ``images`` as inputs of ``encoder``, at most as many as the options say."""
        seed, limit = self.options["seed"], self.options["limit"]
        chosen = select(images, encoder.domain, encoder.geometry, limit=limit, seed=seed)
        return Population(encoder, chosen, self.settings)

    def claim(self, observation: Observation, population: Population) -> None:
        """Keep in the folder what is asked for.

        Raises:
            HoldfastError: the folder holds the answer to another request, or the encoder is not fit for this one.
        """
        claim(self.store, self.verb, key_of(observation, population.encoder, population.images, population.run))
        if problem := unfit(population, self.engine):
            raise HoldfastError(f"{population.encoder.name} is not fit to be {DONE[self.verb]}: {problem}")

    def observe(self, observation: Observation, population: Population, codes: bool = True, doing: str = "") -> Seen:
        """Compute the missing shards of ``observation`` and return its stored rows.

        Args:
            observation: what to observe.
            population: of which encoder and images.
            codes: whether clean embeddings of all images are needed first.
            doing: what progress calls the observation, by its name if empty.

        Raises:
            HoldfastError: the encoder cannot be measured like this.
            BudgetSpentError: the budget ended before anything was observed.
            StoreError: the store cannot be written.
        """
        encoder, images, work = population.encoder, population.images, self.work
        self.forecast.know_pace(
            encoder.name, seconds_per_forward(encoder, attacked=not isinstance(observation, CleanCodes))
        )
        for piece in (CleanCodes(), observation) if codes else (observation,):
            self.forecast.expect((encoder.name, piece))
        rows, ids = observation.rows(population), observation.ids(population)
        with suppress(BudgetSpentError if self.is_main else Exception):  # rank 0 says what went wrong
            if codes:
                population = Population(encoder, images, population.run, work.codes(population, "codes"))
            self.forecast.plan((encoder.name, observation), observation.forward_passes(population), len(rows))
            work.compute(observation, population, doing or observation.name)
        if isinstance(self.engine, Ranks):
            self.engine.end()
        key = key_of(observation, encoder, images, population.run)
        kept_ids, observed = self.store.observed(key, [ids[row] for row in rows])
        known = set(kept_ids)
        seen = [row for row in rows if ids[row] in known]
        if self.is_main and not seen:
            raise BudgetSpentError(self.left_over(min(len(rows) * observation.inputs(population), len(images))))
        return Seen(population, seen, observed)

    def answer(
        self, request: Request, at_hand: Loaded = NOTHING, write: WriteReport | None = None
    ) -> tuple[list[Result], list[Failure]]:
        """Return the results and failures of everything that ``request`` asks for, which the store then holds.

        Args:
            request: what to measure, of which encoders and images.
            at_hand: those of them that need no loading.
            write: writes a report while the run goes on.

        Raises:
            HoldfastError: something that was named does not exist, cannot be read or does not fit.
            StoreError: the store cannot be written.
            KeyboardInterrupt: the user stopped the run; the store holds what follows from what was seen.
        """
        plan = planned(request)
        if damaged := self.store.damaged():
            warn(
                f"{some(damaged)} cannot be read (damaged, or of another version of holdfast) and count as never computed; "
                "what this command asks for is computed again from what else is kept, delete the others"
            )
        inputs = Inputs.of(request, at_hand, ScanCache.at(self.store.folder / FILE, request.rehash))
        check_distinct_names(inputs.encoders)
        plan = adapt_plan(request, plan, inputs)
        cells = len(plan) * sum(not left_to_threads(encoder) for encoder in inputs.encoders)
        if isinstance(self.engine, (Automatic, Processes)) and cells >= MANY and not self.store.cells():
            self.engine.begin()
        if self.is_main:
            self.store.request(request.model_dump_json(indent=1))
        plan, reason_for_radii = in_informative_balls(request, plan, inputs, self.settings, self.work)
        if self.show and reason_for_radii:
            self.show.say(reason_for_radii)
        if self.work.deadline.budget is None:  # with one, there are radii before breakaway has attacked
            plan = sharing_attacks(plan)
        return fill_table(inputs, plan, self.settings, self.work, write if self.is_main else None, reason_for_radii)

    def left_over(self, missing: int) -> str:
        """Return a sentence on how many images a spent budget left over."""
        what = "1 image is" if missing == 1 else f"{missing:,} images are"
        again = "run the same command again to continue" if self.kept else "name a folder as out to go on later"
        return f"{what} missing: the budget was spent; {again}"

    def warn_of(self, missing: int) -> None:
        """Warn of ``missing`` images, if there are any."""
        if missing and self.is_main:
            warn(self.left_over(missing), 4)  # from who called the command


# The folder of a run holds the answer to one request: the request, the shards that were computed, and the files made from
# them. The same request continues its folder. A different one is refused, because its files would mix with the first ones.


def check_free(folder: Path, mark: str = REQUEST, others: Collection[str] = ()) -> None:
    """Make ``folder``, before anything is loaded, and refuse one that holds something, but not the file that is its mark.

    The names of ``others`` may stand there before the mark does.

    Raises:
        HoldfastError: it cannot be written, or holds something else than the same verb leaves there.
    """
    with explained(f"cannot write to {folder}", "choose another --out", OSError):
        folder.mkdir(parents=True, exist_ok=True)
        names = _names(folder)
    if names - set(others) and mark not in names:
        raise HoldfastError(f"{folder} is not empty; choose another --out, or delete what is in it")


def claim(store: Store, command: str, key: Key) -> None:
    """Keep what is asked for in the folder of ``store``, and refuse the folder of another request."""
    request: dict[str, Any] = json.loads(json.dumps({"command": command, **key.model_dump()}))
    if _names(store.folder) <= UNFINISHED:
        store.write_file(REQUEST, sealed(json.dumps(request, indent=1).encode()))
        return
    try:
        previous = json.loads(unsealed((store.folder / REQUEST).read_bytes()))
    except ValueError as error:
        raise HoldfastError(
            f"{store.folder / REQUEST} is damaged, or of an earlier version of holdfast, so no one knows what the folder "
            "answers; choose another --out, or delete what is in it"
        ) from error
    if previous != request:
        ours, other = ({**each, **(each.get("settings") or {})} for each in (request, previous))  # settings one by one
        names = [name for name in [*ours, *(set(other) - set(ours))] if ours.get(name) != other.get(name)]
        differing = ", ".join(name for name in names if name != "settings")
        raise HoldfastError(
            f"{store.folder} holds the answer to another request (other {differing}); "
            "choose another --out, or delete what is in it"
        )


def _names(folder: Path) -> set[str]:
    """Return the names in ``folder``, without hidden files of processes that died while writing."""
    return {path.name for path in folder.iterdir() if not path.name.startswith(".")}
