"""The command line: what it takes and what it refuses."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

import pytest

from streamgen import cli
from streamgen.cli import build_parser, main, settings_of
from streamgen.command_options import BenchConfig, GenerateConfig, PromptAt
from streamgen.config import EngineConfig
from streamgen.serve_options import ServeConfig

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for variable in [v for v in os.environ if v.startswith("STREAMGEN_")]:
        monkeypatch.delenv(variable)


def refuse(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """Require status 2 and a short message without a traceback; return the message."""
    try:
        status = main(argv)
    except SystemExit as ended:
        status = ended.code
    said = capsys.readouterr()
    assert status == cli.WRONG_USAGE, said
    assert said.out == ""
    assert "Traceback" not in said.err
    assert said.err.startswith("streamgen")
    assert len(said.err.splitlines()) <= 2
    return said.err


def parse(*argv: str) -> argparse.Namespace:
    arguments, unknown = build_parser().parse_known_args(argv)
    assert not unknown
    return arguments


def serve_options(*argv: str) -> tuple[EngineConfig, ServeConfig]:
    settings = settings_of(parse("serve", *argv))
    return settings.build(EngineConfig), settings.build(ServeConfig)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["serve", "--windov", "6"], "no option is called '--windov'; did you mean --window?"),
        (["serve", "--windov=6"], "no option is called '--windov'; did you mean --window?"),
        (["serve", "--windo", "6"], "'--windo'"),  # no abbreviations
        (["serve", "pocket", "other"], "no place for the argument 'other'"),
        (["serve", "--port", "http"], "port from 0 to 65535"),
        (["serve", "--port", "65536"], "port from 0 to 65535"),
        (["serve", "--host", ""], "host name or an address"),
        (["serve", "--host", "a..b"], "host name or an address"),
        (["serve", "--root-path", "live/"], "without a slash at its end"),
        (["serve", "--idle-timeout", "-1"], "positive number of seconds"),
        (["serve", "--encoder", "h265"], "auto, nvenc, x264, vp8"),
        (["serve", "--bitrate", "4MB"], "bits a second from 100k to 100M, as in 4M"),
        (["serve", "--bitrate", "1k"], "bits a second from 100k to 100M, as in 4M"),
        (["serve", "--ice-server", "stun.example.org"], "stun:stun.example.org:3478"),
        (["serve", "--turn-secret", "short"], "at least 8 characters"),
        (["serve", "--public-ip", "example.org"], "--public-ip takes no name"),
        (["serve", "--udp-port-range", "5000-4000"], "the smaller first: 40000-40100"),
        (["serve", "--udp-port-range", "4000"], "the smaller first: 40000-40100"),
        (["serve", "--ssl-certfile", "cert.pem"], "--ssl-keyfile"),
        (["serve", "--steps", "many"], "flag --steps: steps = 'many'"),
        (["serve", "--size", "480p"], "WxH"),
        (["generate", "a"], "-o/--output"),
        (["generate", "a", "-o", "a.mp4", "--seconds", "none"], "positive number of seconds"),
        (["generate", "a", "-o", "a.mp4", "--seed", "1.5"], "a whole number"),
        (["generate", "a", "-o", "a.mp4", "--prompt-at", "3"], "SECONDS:TEXT"),
        (["generate", "a", "-o", "a.mp4", "--prompt-at", "0:b"], "SECONDS:TEXT"),
        (["generate", "a", "-o", "a.mp4", "--max-sessions", "2"], "'--max-sessions'"),
        (["bench", "throughput"], "invalid choice: 'throughput'"),
        (["eval"], "--candidate is missing"),
        (["bench", "transport", "--seconds", "0"], "a positive number of seconds"),
        (["bench", "transport", "--sessions", "4,8"], "one number, as in --sessions 12"),
        (["bench", "--sessions", "1,0"], "numbers of sessions from 1 to 10,000"),
        (["parity"], "DIR"),
        (["version", "--all"], "'--all'"),
    ],
)
def test_what_is_typed_wrong_is_said_in_a_line(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refuse(capsys, *argv)


def test_no_command_shows_which_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == cli.WRONG_USAGE
    said = capsys.readouterr().err
    assert all(command.name in said for command in cli.COMMANDS)


@pytest.mark.parametrize("command", ["train"])
def test_commands_of_later_versions_do_not_exist(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"invalid choice: '{command}'" in refuse(capsys, command)


@pytest.mark.parametrize(
    "flag",
    [
        "--api-key=k", "--allowed-origin=a", "--no-fused-commit", "--plot=f",
    ],
)  # fmt: skip
def test_flags_that_would_do_nothing_are_refused(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "no option is called" in refuse(capsys, "serve", flag)


@pytest.mark.parametrize("command", cli.COMMANDS, ids=lambda command: command.name)
def test_help_names_every_option_of_the_command(
    command: cli.Command, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command.name, "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    # Values are shown as they would be typed, and what a parser was tried out with is not.
    assert not re.search(r"<[a-z]|0x[0-9a-f]|\bNone\b|default [(\[]", said)
    for section in command.sections:
        for option in cli._options(section, command.without):
            assert f"--{option.name.replace('_', '-')}" in said


def test_torch_is_not_imported_for_what_needs_none() -> None:
    code = (
        "import sys; from streamgen.cli import main; "
        "status = main(['version']) + main(['serve', '--window', 'x']);"
        "sys.exit(status if 'torch' not in sys.modules else 'torch was imported')"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 2, ended.stderr
    assert ended.stdout.startswith("streamgen ")


def test_q39_file_environment_and_command_line_are_layers_and_remember(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "server.yaml"
    file.write_text("window: 12\nsink: 1\nport: 9000\nmax-viewers: 3\nidle_timeout: none\n")
    monkeypatch.setenv("STREAMGEN_SINK", "2")
    monkeypatch.setenv("STREAMGEN_PORT", "9001")
    engine, server = serve_options("--config", str(file), "--port", "9002", "--deterministic")
    assert (engine.window, engine.sink, engine.deterministic) == (12, 2, True)
    assert (server.port, server.max_viewers, server.idle_timeout) == (9002, 3, None)
    origin = {**engine.sources, **server.sources}
    assert origin["window"] == origin["max_viewers"] == "file server.yaml"
    assert origin["sink"] == "env STREAMGEN_SINK"
    assert origin["port"] == "flag --port"
    assert origin["host"] == "default"


def test_q39_the_file_can_be_named_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "server.yaml").write_text("sink: 3")
    monkeypatch.setenv("STREAMGEN_CONFIG", str(tmp_path / "server.yaml"))
    assert serve_options()[0].sink == 3


@pytest.mark.parametrize("layer", ["flag", "env", "file"])
def test_q39_a_misspelt_key_is_an_error_wherever_it_stands(
    layer: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = ["serve"]
    if layer == "flag":
        argv += ["--sinc", "3"]
    elif layer == "env":
        monkeypatch.setenv("STREAMGEN_SINC", "3")
    else:
        (tmp_path / "server.yaml").write_text("sinc: 3")
        argv += ["--config", str(tmp_path / "server.yaml")]
    assert "sink" in refuse(capsys, *argv)


def test_a_variable_of_another_command_is_no_mistake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STREAMGEN_PORT", "9000")
    monkeypatch.setenv("STREAMGEN_STEPS", "3")
    settings = settings_of(parse("generate", "a", "-o", "a.mp4"))
    assert settings.build(EngineConfig).steps == 3
    assert settings_of(parse("serve")).build(ServeConfig).port == 9000


def test_a_config_file_that_is_not_there_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "No such file" in refuse(capsys, "serve", "--config", str(tmp_path / "none.yaml"))


def test_the_model_is_an_argument_of_serve_and_a_flag_elsewhere() -> None:
    assert serve_options("other")[0].model == "other"
    assert serve_options("--model", "other")[0].model == "other"
    assert serve_options()[0].model == "pocket"
    settings = settings_of(parse("bench", "latency", "--model", "other"))
    assert settings.build(EngineConfig).model == "other"


def test_options_of_one_video() -> None:
    argv = ["--prompt-at", "4:late: it rains", "--prompt-at", "2.5:early", "--seconds", "6"]
    settings = settings_of(parse("generate", "a", "-o", "a.mp4", *argv, "--seed", "7"))
    options = settings.build(GenerateConfig)
    assert options.prompt_at == (PromptAt(2.5, "early"), PromptAt(4.0, "late: it rains"))
    assert (options.seconds, options.seed) == (6.0, 7)


def test_options_of_bench() -> None:
    settings = settings_of(parse("bench", "sessions", "--sessions", "1,2", "--json", "a.json"))
    options = settings.build(BenchConfig)
    assert (options.sessions, options.json, options.csv) == ((1, 2), Path("a.json"), None)


def test_q54_a_backend_that_nobody_knows_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    said = refuse(capsys, "serve", "--attention-backend", "xformers")
    assert "one of auto, sdpa, varlen, flashinfer, flash_attn" in said


@pytest.mark.parametrize("backend", ["varlen", "flash_attn", "flashinfer"])
def test_q54_a_backend_that_is_not_here_is_an_error_when_it_is_asked_for(
    backend: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    output = tmp_path / "a.mp4"
    said = refuse(
        capsys, "generate", "a star", "-o", str(output), "--device", "cpu", "--attention-backend",
        backend,
    )  # fmt: skip
    assert f"attention backend '{backend}' was asked for, but it needs a CUDA device" in said
    assert not output.exists()
