"""The command line: which commands there are, what they take, and how they end.

Options are fields of dataclasses (streamgen/config.py): from one field follow a flag, a key of the
YAML file and an environment variable. What is typed wrong is answered before anything slow is
imported. Exit status: 0 done, 1 a check failed, 2 wrong usage, 3 the machine cannot do it.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from streamgen.command_arguments import (
    bench_arguments,
    download_arguments,
    generate_arguments,
    parity_arguments,
    replay_arguments,
    serve_arguments,
)
from streamgen.command_options import (
    LIVE_ONLY,
    NOT_PLANNED,
    SERVER_ONLY,
    BenchConfig,
    EvalConfig,
    GenerateConfig,
    PlanConfig,
    ReplayConfig,
)
from streamgen.command_parser import WRONG_USAGE, Parser, add_flag, explain_unknown
from streamgen.config import ENV_PREFIX, NOT_OPTIONS, EngineConfig, Settings, read_settings
from streamgen.errors import InvalidRequest, NoDevice, StreamgenError, Unsupported
from streamgen.serve_options import ServeConfig

DONE, CHECK_FAILED, MACHINE_CANNOT = 0, 1, 3
INTERRUPTED, PIPE_CLOSED = 130, 141  # as shells say it

SECTIONS: Final = (
    EngineConfig, ServeConfig, GenerateConfig, ReplayConfig, BenchConfig, EvalConfig, PlanConfig,
)  # fmt: skip
CONFIG_VARIABLE: Final = f"{ENV_PREFIX}CONFIG"


@dataclass(frozen=True, slots=True)
class Command:
    """A command: its options' dataclasses, arguments that are no options, and what it does."""

    name: str
    text: str
    run: Callable[[argparse.Namespace], int]
    sections: tuple[type, ...] = ()
    without: frozenset[str] = frozenset()
    add_arguments: Callable[[argparse.ArgumentParser], None] = lambda parser: None


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status."""
    parser = build_parser()
    arguments, unknown = parser.parse_known_args(argv)
    if not hasattr(arguments, "command"):
        parser.print_help(sys.stderr)
        return WRONG_USAGE
    if unknown:
        arguments.parser.error(explain_unknown(unknown, arguments.flags))
    command: Command = arguments.command
    try:
        status = command.run(arguments)
        sys.stdout.flush()  # so that a reader that is gone is met here, and not while Python ends
        return status
    except BrokenPipeError:  # `| head` has what it wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except StreamgenError as error:
        message, status = error.message, _status(error)
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        message, status = f"{error.strerror or error}{where}", MACHINE_CANNOT
    except KeyboardInterrupt:
        message, status = "interrupted", INTERRUPTED
    print(f"{arguments.parser.prog}: {message}", file=sys.stderr)
    return status


def build_parser() -> Parser:
    """Return the parser of all commands."""
    parser = Parser(prog="streamgen", description="Generate endless video and stream it live.")
    commands = parser.add_subparsers(metavar="COMMAND", title="commands", parser_class=Parser)
    for command in COMMANDS:
        sentence = f"{command.text[0].upper()}{command.text[1:]}."
        sub = commands.add_parser(command.name, help=command.text, description=sentence)
        command.add_arguments(sub)
        flags = [add_flag(sub, f) for s in command.sections for f in _options(s, command.without)]
        sub.set_defaults(command=command, parser=sub, flags=flags)
    return parser


def settings_of(arguments: argparse.Namespace) -> Settings:
    """Merge a command's flags with the environment and the file; ConfigError for what is wrong.

    A variable that only another command knows is left alone; one that none knows is an error.
    """
    command: Command = arguments.command
    known = {f.name for section in command.sections for f in _options(section)}
    elsewhere = {f.name for section in SECTIONS for f in _options(section)} - known
    environ = {
        variable: value
        for variable, value in os.environ.items()
        if variable != CONFIG_VARIABLE
        and variable.removeprefix(ENV_PREFIX).lower() not in elsewhere
    }
    file = getattr(arguments, "config", None) or (
        os.environ.get(CONFIG_VARIABLE) if hasattr(arguments, "config") else None
    )
    flags = {key: value for key, value in vars(arguments).items() if key in known}
    return read_settings(
        command.sections, flags=flags, environ=environ, file=Path(file) if file else None
    )


def _options(section: type, without: frozenset[str] = frozenset()) -> list[dataclasses.Field[Any]]:
    hidden = NOT_OPTIONS | without
    return [f for f in dataclasses.fields(section) if f.name not in hidden]


def _status(error: StreamgenError) -> int:
    if isinstance(error, NoDevice):
        return MACHINE_CANNOT
    loader: Any = sys.modules.get("streamgen.models.loader")  # it imports torch: only if it is used
    if loader is not None and isinstance(error, loader.CheckpointError):
        return MACHINE_CANNOT
    return WRONG_USAGE if isinstance(error, (InvalidRequest, Unsupported)) else MACHINE_CANNOT


# The commands. Each imports what it needs when it runs.


def _serve(arguments: argparse.Namespace) -> int:
    settings = settings_of(arguments)
    from streamgen.serve import run

    try:
        status = run(settings.build(EngineConfig), settings.build(ServeConfig))
    except KeyboardInterrupt:  # while torch was imported
        print("streamgen serve: interrupted", file=sys.stderr)
        status = INTERRUPTED
    sys.stdout.flush()
    sys.stderr.flush()
    # All is closed. Taking torch apart as well costs a busy machine seconds and gains nothing.
    os._exit(status)


def _generate(arguments: argparse.Namespace) -> int:
    settings = settings_of(arguments)
    from streamgen.generate import run

    options = settings.build(GenerateConfig)
    return run(arguments.prompt, arguments.output, settings.build(EngineConfig), options)


def _replay(arguments: argparse.Namespace) -> int:
    settings = settings_of(arguments)
    from streamgen.replay import run

    engine, options = settings.build(EngineConfig), settings.build(ReplayConfig)
    return run(arguments.file, arguments.output, engine, options)


def _bench(arguments: argparse.Namespace) -> int:
    settings = settings_of(arguments)
    from streamgen.bench_kinds import run

    options, has_seconds = settings.build(BenchConfig), "seconds" in settings.values
    return run(arguments.kind, settings.build(EngineConfig), options, has_seconds=has_seconds)


def _eval(arguments: argparse.Namespace) -> int:
    settings = settings_of(arguments)
    from streamgen.quality_gate import run

    return run(settings.build(EngineConfig), settings.build(EvalConfig))


def _plan(arguments: argparse.Namespace) -> int:
    settings = settings_of(arguments)
    from streamgen.plan import run

    return run(settings.build(EngineConfig), settings.build(PlanConfig))


def _parity(arguments: argparse.Namespace) -> int:
    from streamgen.parity import run

    return run(arguments.directories)


def _models(arguments: argparse.Namespace) -> int:
    from streamgen.model_list import print_models

    return print_models()


def _download(arguments: argparse.Namespace) -> int:
    from streamgen.download import run

    return run(arguments.model, arguments.revision, offline=arguments.offline)


def _doctor(arguments: argparse.Namespace) -> int:
    from streamgen.doctor import run

    return run()


def _version(arguments: argparse.Namespace) -> int:
    from streamgen.machine import installed_version

    print(f"streamgen {installed_version()}")
    return DONE


COMMANDS: Final = (
    Command(
        "serve", "serve live video on one port", _serve,
        (ServeConfig, EngineConfig), add_arguments=serve_arguments,
    ),
    Command(
        "generate", "make one video file", _generate,
        (GenerateConfig, EngineConfig), LIVE_ONLY, generate_arguments,
    ),
    Command(
        "replay", "make a session again from its replay file", _replay,
        (ReplayConfig, EngineConfig), LIVE_ONLY, replay_arguments,
    ),
    Command(
        "bench", "measure this machine", _bench,
        (BenchConfig, EngineConfig), SERVER_ONLY, bench_arguments,
    ),
    Command(
        "eval", "judge lossy options, or one video against another, by their pixels", _eval,
        (EvalConfig, EngineConfig), LIVE_ONLY,
    ),
    Command(
        "plan", "tell what a video costs on a device, and what to change next", _plan,
        (PlanConfig, EngineConfig), NOT_PLANNED,
    ),
    Command(
        "parity", "compare with outputs of the reference implementations", _parity,
        add_arguments=parity_arguments,
    ),
    Command("models", "list the models", _models),
    Command(
        "download", "fetch a published model's files", _download, add_arguments=download_arguments
    ),
    Command("doctor", "check the installation and print what a bug report needs", _doctor),
    Command("version", "print the version", _version),
)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
