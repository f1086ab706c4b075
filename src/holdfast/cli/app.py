"""The command line. Each module of this package with a function ``command`` is a command of the module's name.

Other installed packages add theirs by entry points of the group ``holdfast.cli``. A command that keeps its work when it is
interrupted states this in ``STOPPED``. Nothing here imports torch before a command runs, so that help is instant.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import iter_modules
from types import FrameType
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from holdfast import cli
from holdfast.cli.cluster import JobsRequestedError, submit
from holdfast.cli.terminal import UNREAD, Command, Group, UnreadError, drop, limited, may_warn, prepare
from holdfast.core.discovery import loaded
from holdfast.core.errors import BudgetSpentError, HoldfastError, HoldfastWarning, out_of_memory
from holdfast.core.settings import LOADED, running_since
from holdfast.run.engines.ranks import process_rank

INTERRUPTED = 130
OPTIONS = "Options"
ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
"""Signals that end a command as Ctrl-C does: a scheduler's, and that of a terminal that is closed."""


@cache
def application() -> TyperGroup:
    """Return the group of every command there is, made once: that takes longer than most mistakes take to refuse."""
    app = typer.Typer(
        cls=Group,
        help="Measure, prove and improve the robustness of image encoders, without labels.\n"
        "First time: holdfast evaluate          (built-in encoders, three to four minutes)",
        epilog="Docs: docs/index.md. Write encoders as source:name, for example timm:resnet50.a1_in1k.",
        pretty_exceptions_enable=False,
    )
    app.callback()(_common)
    for name, module in _modules().items():
        if hasattr(module, "command"):
            app.command(name, cls=Command)(module.command)
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    return group


@cache
def _modules() -> dict[str, Any]:
    """Return the modules of this package, and those of commands that other installed packages add, by name."""
    modules = {name: import_module(f"holdfast.cli.{name}") for _, name, _ in iter_modules(cli.__path__)}
    for point in entry_points(group="holdfast.cli"):
        module = loaded(point)
        if point.name in modules:
            raise HoldfastError(
                f"{point.value}, which an installed package adds, is called {point.name!r} as holdfast's own command or "
                "another package's; rename its entry point"
            )
        if not hasattr(module, "command"):
            raise HoldfastError(
                f"the entry point {point.name!r} of holdfast.cli must name a module with a function command, got {module!r}"
            )
        modules[point.name] = module
    return modules


def main() -> None:
    """Run the command line and exit with its status."""
    # Idle OpenMP threads that spin slow small networks down seven-fold on a busy machine; read when torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        prepare()
        with running_since(LOADED):
            status = run(sys.argv[1:])
        sys.stdout.flush()
    except UnreadError:
        status = UNREAD
    except HoldfastError as error:  # about standard output itself
        status = _say(str(error), 2)
    if status:
        with suppress(OSError):
            drop()
    sys.exit(status)


def run(arguments: list[str]) -> int:
    """Return the exit status of ``arguments``: 0, 1 if something measured failed, 2 for a mistake.

    A command that a signal stops has the status 128 + its number, as in shells: 130 after Ctrl-C.
    """
    debug = "--debug" in arguments
    if debug:
        logging.basicConfig(level=logging.WARNING)
        logging.getLogger("holdfast").setLevel(logging.DEBUG)
    stopped_by = [int(signal.SIGINT)]
    try:
        with warnings.catch_warnings(), _stopping(stopped_by), limited(debug):
            warnings.showwarning = partial(_warn, debug, set())
            status = _run_command(arguments)
    except (KeyboardInterrupt, typer.Abort):
        status = INTERRUPTED
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "holdfast"
        return _say(f"{error.format_message().rstrip('.')} ({command} --help lists what there is)", 2)
    except UnreadError:
        return UNREAD
    except BudgetSpentError as error:
        return 1 if process_rank()[0] > 0 else _say(str(error), 1)
    except HoldfastError as error:
        return _say(str(error), 2, debug)
    except OSError as error:  # whose sentences lack only the advice
        where = f" {error.filename!r}" if error.filename else ""
        return _say(f"cannot use{where}: {error.strerror or error}; check path, permissions and free space", 2, debug)
    except SystemExit as error:  # a stranger's module wants to end more than itself; so does typer's completion
        completing = any(part.startswith(("--show-completion", "--install-completion")) for part in arguments)
        if completing or "_HOLDFAST_COMPLETE" in os.environ:
            raise
        return _say(f"a module called exit({error.code}) and ended the command; take that out of it", 2, debug)
    except Exception as error:
        if out_of_memory(error):
            advice = "take a smaller --batch-size or fewer --workers, or raise the limit of this shell (ulimit -v)"
            return _say(f"memory ran out ({type(error).__name__}); {advice}; what is kept is used again", 2, debug)
        return _say(f"{type(error).__name__}: {error}; this is a defect of holdfast, --debug shows where", 2, debug)
    if status == INTERRUPTED:  # typer turns Ctrl-C into this status
        name = next((part for part in arguments if not part.startswith("-")), "")
        kept = getattr(_modules().get(name), "STOPPED", "what was not written yet is lost")
        return _say(f"stopped; {kept}", 128 + stopped_by[-1])
    return status if isinstance(status, int) else 0


@contextmanager
def _stopping(stopped_by: list[int]) -> Iterator[None]:
    """Let signals that end a process interrupt the command; each is added to ``stopped_by``."""

    def stop(number: int, _: FrameType | None) -> None:
        stopped_by.append(number)
        raise KeyboardInterrupt

    here = threading.current_thread() is threading.main_thread()
    # What nohup ignores stays ignored.
    caught = [number for number in ENDING if here and signal.getsignal(number) is signal.SIG_DFL]
    for number in caught:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in caught:
            signal.signal(number, signal.SIG_DFL)


def _run_command(arguments: list[str]) -> Any:
    try:
        words = [part for part in arguments if part != "--debug"]
        status = application()(words or ["--help"], "holdfast", standalone_mode=False)
        return status if words else 2
    except JobsRequestedError as asked:
        return submit(asked, arguments)


def _version(wanted: bool) -> bool:
    if wanted:
        from holdfast import __version__

        print(__version__)
        raise typer.Exit
    return wanted


def _common(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show tracebacks and the log.", rich_help_panel=OPTIONS)
    ] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Show the version and exit.", rich_help_panel=OPTIONS
        ),
    ] = False,
) -> None:
    """Options that come before the command; ``run`` itself looks for ``--debug``, wherever it stands."""


def _say(sentence: str, status: int, traced: bool = False) -> int:
    if traced:
        traceback.print_exc()
    print(f"holdfast: {sentence}", file=sys.stderr)
    return status


def _warn(
    debug: bool, sentences: set[str], message: Warning | str, category: type[Warning], *_: Any, **__: Any
) -> None:
    """Print a warning unless it is among ``sentences`` printed before, and for all ranks but once.

    Of what will change in the libraries below, only who develops needs to know.
    """
    if str(message) in sentences or (process_rank()[0] > 0 and not debug):
        return
    sentences.add(str(message))
    ours = issubclass(category, HoldfastWarning)
    if not (ours or debug) and issubclass(category, (DeprecationWarning, PendingDeprecationWarning, FutureWarning)):
        return
    if may_warn(str(message)):
        print(f"{'holdfast: warning' if ours else category.__name__}: {message}", file=sys.stderr)
