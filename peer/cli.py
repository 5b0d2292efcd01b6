"""The command line: parses, calls, prints. What a command needs is imported when it runs."""

import json
import os
import signal
import sys
from contextlib import redirect_stdout
from io import TextIOWrapper
from pathlib import Path
from traceback import print_exc
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, NoReturn

import typer

from peer.errors import ConfigError, EarshotError

if TYPE_CHECKING:
    from collections.abc import Callable

    from peer.experiment import Experiment
    from peer.explanation import Explanation
    from peer.record import Row
    from peer.ways import Options, Result

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

SIMULATE_GRACE_S = 8.0
"""How long after a stop the simulator may still be in a local step before it is interrupted in the middle."""

UsageError: type[Exception] = typer.BadParameter.__mro__[1]  # typer's own, or click's under older ones

ExperimentFile = Annotated[str, typer.Argument(metavar="EXP", help="The experiment file; - reads it from stdin.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key, such as topology.peers=64.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Requirements = Annotated[
    list[str] | None,
    typer.Option("--require", metavar="EXPR", help='Exit 1 unless this holds, such as "accuracy.mean >= 0.93".'),
]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="The run's folder, new or empty; else runs/<name>-<time>.")
]
NoFolder = Annotated[bool, typer.Option("--no-folder", help="Write no run folder.")]
Predict = Annotated[
    bool,
    typer.Option("--predict", help="Put what a round should take into the summary, beside what it took: for report."),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress.")]


def _show_version(wanted: bool) -> None:
    if wanted:
        from peer import __version__

        print(f"earshot {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Training without a master: peers gossip PyTorch parameters with whoever is within earshot."""


@app.command()
def new(
    file: Annotated[Path, typer.Argument(help="The file to write.")] = Path("experiment.toml"),
) -> int:
    """Write a starter experiment with every key explained."""
    from peer.starter import starter_text

    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(starter_text())
    except FileExistsError:
        raise ConfigError("", f"{file} exists already; name another file, nothing was overwritten") from None
    except OSError as error:
        raise ConfigError("", f"{file} cannot be written: {error.strerror}") from error
    print(f"wrote {file}; try: earshot explain {file}")
    return 0


@app.command()
def explain(
    exp: ExperimentFile,
    sets: Overrides = None,
    as_json: AsJson = False,
    matrix: Annotated[bool, typer.Option("--matrix", help="Show the mixing matrix too.")] = False,
    predict: Annotated[
        bool,
        typer.Option(
            "--predict", help="Say what more peers would be worth: measures some local steps on this machine."
        ),
    ] = False,
    loopback: Annotated[
        bool,
        typer.Option("--loopback", help="With --predict: links as measured on this machine, not those of [network]."),
    ] = False,
) -> int:
    """Say what an experiment will be, before anything trains; refuse what cannot work."""
    if loopback and not predict:
        raise ConfigError("--loopback", "it says which links --predict takes; add --predict")
    experiment = _load(exp, sets)
    from peer.explanation import explain as describe
    from peer.tables import explanation_text, prediction_text

    with redirect_stdout(sys.stderr):  # what a user's model prints is not part of the document
        explanation = describe(experiment, matrix=matrix)
        document = explanation.document | ({"prediction": _predict(explanation, loopback)} if predict else {})
    for warning in explanation.warnings:
        _say(f"warning: {warning}")
    if as_json:
        return _print(json.dumps(document), 0)
    more = f"\n\n{prediction_text(document['prediction'])}" if predict else ""
    return _print(explanation_text(explanation) + more, 0)


@app.command()
def simulate(
    exp: Annotated[
        str | None, typer.Argument(metavar="EXP", help="The experiment file; - reads it from stdin.")
    ] = None,
    sets: Overrides = None,
    engine: Annotated[
        Literal["rounds", "events"] | None,
        typer.Option(
            help="rounds: W @ X, fast; events: the daemons' protocol. Left out: events where the file asks for links, "
            "speeds, faults or peers that do not wait."
        ),
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(
            "--replay",
            metavar="RUN",
            help="Do a run of daemons that waited for nobody again, from its folder; EXP is then its own, if left out.",
        ),
    ] = None,
    as_json: AsJson = False,
    require: Requirements = None,
    out: Out = None,
    no_folder: NoFolder = False,
    predict: Predict = False,
    quiet: Quiet = False,
) -> int:
    """Run all peers in this process."""
    if exp is None and run is None:
        raise ConfigError("", "Missing argument 'EXP': an experiment file, such as one that earshot new writes")
    if run is not None and engine == "rounds":
        raise ConfigError("--engine", "rounds has no messages, and a replay is of messages; leave it out")
    experiment = _load(str(run / "experiment.toml") if exp is None and run is not None else str(exp), sets)
    from peer import ways

    def way(options: "Options") -> "Result":
        if run is not None:
            return ways.replay(experiment, run, options)
        return ways.simulate(experiment, engine or ways.engine_of(experiment), options)

    folder = Folder(out, no_folder, predicts=predict)
    return _run(experiment, require, as_json, quiet, folder, way, SIMULATE_GRACE_S)


@app.command()
def up(
    exp: ExperimentFile,
    sets: Overrides = None,
    as_json: AsJson = False,
    require: Requirements = None,
    out: Out = None,
    no_folder: NoFolder = False,
    predict: Predict = False,
    quiet: Quiet = False,
) -> int:
    """Run every peer as a daemon on this host, with real sockets."""
    experiment = _load(exp, sets)
    _cap_threads(experiment)
    from peer import ways

    folder = Folder(out, no_folder, predicts=predict)
    return _run(experiment, require, as_json, quiet, folder, lambda o: ways.up(experiment, o))


@app.command()
def start(
    exp: ExperimentFile,
    name: Annotated[
        str, typer.Option("--name", metavar="NAME", help="Which peer of the file, or coordinator, this machine is.")
    ],
    sets: Overrides = None,
    as_json: AsJson = False,
    out: Out = None,
    resume: Annotated[
        Path | None,
        typer.Option("--resume", metavar="RUN", help="Go on with a coordinator's earlier run, from what it had saved."),
    ] = None,
    no_folder: NoFolder = False,
    quiet: Quiet = False,
) -> int:
    """Run one daemon of an experiment, in the foreground."""
    experiment = _load(exp, sets)
    _cap_threads(experiment)
    from peer import ways

    if resume is not None and (out is not None or no_folder):
        raise ConfigError("", "--resume names the folder where the run goes on; leave out --out and --no-folder")
    folder = Folder(out, no_folder, resume)
    return _run(experiment, None, as_json, quiet, folder, lambda o: ways.start_one(experiment, name, o))


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="The folders of runs, such as those in runs/.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Where to write; else report/ in the first run's folder."),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Draw runs: pictures, and one HTML page with all of them; several runs are compared."""
    from peer.report import make_report

    made = make_report(runs, out)
    html, pictures = str(made.html), [str(picture) for picture in made.pictures]
    return _print(json.dumps({"html": html, "pictures": pictures}) if as_json else html, 0)


def main() -> NoReturn:
    """Entry point: errors become one line and an exit code."""
    as_json = "--json" in sys.argv
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a name that the terminal cannot show must not end a run
            stream.reconfigure(errors="backslashreplace")
    if len(sys.argv) == 1:
        sys.argv.append("--help")
    before = {number: signal.signal(number, _interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        code = app(standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except UsageError as error:
        message = error.format_message()  # type: ignore[attr-defined]
        commands = ", ".join(c.name or c.callback.__name__ for c in app.registered_commands if c.callback)
        _fail(f"{message} There are {commands}." if message.startswith("No such command") else message, as_json)
    except ConfigError as error:
        if error.details:
            print(error.details.rstrip(), file=sys.stderr)
        _fail(str(error), as_json)
    except (_Interruption, KeyboardInterrupt, typer.Abort):
        _fail("interrupted", as_json, exit_code=130)
    except EarshotError as error:
        _fail(str(error), as_json, exit_code=3)
    except AssertionError as error:  # a mistake of our own must not look like a --require that was not met
        print_exc()
        _fail(f"a mistake in earshot itself: {error or 'see the traceback'}", as_json, exit_code=3)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# ---- Inside


class _Interruption(BaseException):
    """A signal before a run has begun; once it has, the run looks after them. typer would hide KeyboardInterrupt."""


def _interrupt(*_: object) -> NoReturn:
    raise _Interruption


def _load(exp: str, sets: list[str] | None) -> "Experiment":
    from peer.experiment import load

    return load(exp, sets or [])


def _predict(explanation: "Explanation", loopback: bool) -> "Row":
    """Return the performance model; where the file says nothing of a bandwidth, links are measured, too."""
    from peer.assembly import prepare_task
    from peer.daemon.measure import measure_loopback
    from peer.prediction import measured_wires, predict, wires_of

    assembly = explanation.assembly
    wires = None if loopback else wires_of(assembly.experiment)
    if wires is None:
        measured = measure_loopback()
        wires = measured_wires(measured.bandwidth_mbps, measured.latency_ms)
    return predict(assembly, prepare_task(assembly), wires)


def _cap_threads(experiment: "Experiment") -> None:
    """Keep the numeric libraries, which are imported after this, to the threads that a peer may have."""
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # to count GPUs without touching CUDA before a fork
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, str(experiment.task.threads))


class Folder(NamedTuple):
    """Where the run is written: `out`, or runs/ unless nothing is to be written; `resume` is where an earlier one was
    that goes on. `predicts`: the summary also has what was to be expected."""

    out: Path | None
    none: bool
    resume: Path | None = None
    predicts: bool = False


def _run(
    experiment: "Experiment",
    require: list[str] | None,
    as_json: bool,
    quiet: bool,
    folder: Folder,
    way: "Callable[[Options], Result]",
    grace_s: float | None = None,
) -> int:
    from peer.require import parse
    from peer.screen import Screen
    from peer.stopping import StopSwitch
    from peer.tables import summary_text
    from peer.ways import Options

    if folder.out is not None and folder.none:
        raise ConfigError("", "--out and --no-folder contradict each other")
    requirements = [parse(text) for text in require or []]
    # What a user's model prints must not stand between the lines of a document.
    with redirect_stdout(sys.stderr), StopSwitch(grace_s) as switch, Screen(experiment, quiet=quiet) as screen:
        listener = screen.listener()
        options = Options(
            switch.is_thrown, switch.arm, not folder.none, folder.out, listener, folder.resume, folder.predicts
        )
        result = way(options)
    if result.details:
        print(result.details.rstrip(), file=sys.stderr)
    unmet = [r for r in requirements if not r.is_met(result.summary)]
    for requirement in unmet:
        value = requirement.value_in(result.summary)
        _say(f"not met: {requirement} (it is {'not known' if value is None else f'{value:.6g}'})")
    code = result.exit_code or (1 if unmet else 0)
    return _print(json.dumps(result.summary) if as_json else summary_text(result.summary), code)


def _print(text: str, exit_code: int) -> int:
    """Print what a command is for; returns its exit code, which is 3 where nobody could be told."""
    try:
        print(text, flush=True)
    except OSError as error:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - what is left in the old one's buffer is lost
        if not isinstance(error, BrokenPipeError):  # who closes a pipe has read enough
            _say(f"earshot: stdout cannot be written: {error.strerror}")
            return exit_code or 3
    return exit_code


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _fail(message: str, as_json: bool, exit_code: int = 2) -> NoReturn:
    _say(f"earshot: {message}")
    if as_json:
        _print(json.dumps({"error": message}), exit_code)
    sys.exit(exit_code)
