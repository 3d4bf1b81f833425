"""The options of `streamgen serve`: what is wrong is said at once, and secrets are never said."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from streamgen import cli, engine_client
from streamgen.config import EngineConfig
from streamgen.errors import ConfigError
from streamgen.serve import effective_settings, transport_options
from streamgen.serve_options import ServeConfig
from transport.recordings import claimed

REPOSITORY = Path(__file__).parents[2]
SECRET = "longenough1"
TURN = ["--ice-server", "turn:turn.example.org"]

WRONG = [
    (["--turn-secret", SECRET], "--turn-secret needs an --ice-server"),
    (["--turn-secret", SECRET, "--ice-server", "stun:a"], "--turn-secret needs an --ice-server"),
    (TURN, "turn:turn.example.org needs --turn-secret"),
    (["--ice-server", "http://a"], "'http://a' is no ICE server"),
    (["--public-ip", "0.0.0.0"], "0.0.0.0 cannot be reached"),
    (["--public-ip", "::"], ":: cannot be reached"),
    (["--public-ip", "224.0.0.1"], "224.0.0.1 cannot be reached"),
    (["--public-ip", "255.255.255.255"], "255.255.255.255 cannot be reached"),
    (["--udp-port-range", "0-70000"], "two ports from 1 to 65535"),
    (["--ssl-keyfile", "key.pem"], "--ssl-certfile and --ssl-keyfile go together"),
    (["--ssl-certfile", "no.pem", "--ssl-keyfile", "no.pem"], "are no certificate and key"),
    (["--expand-model", "m"], "--expand-model needs --expand-endpoint"),
    (["--record", "/dev/null/films"], "cannot record to /dev/null/films"),
]


def test_every_wrong_option_is_refused_before_torch_loads_and_the_port_is_taken() -> None:
    code = (
        "import json, sys; from streamgen import cli, serve\n"
        "def listen(*address): raise AssertionError('the port was taken')\n"
        "serve.listen = listen\n"
        "status = [cli.main(['serve', *argv]) for argv in json.loads(sys.argv[1])]\n"
        "print(json.dumps([status, 'torch' in sys.modules]))"
    )
    argvs = [argv for argv, _ in WRONG]
    ended = subprocess.run(
        [sys.executable, "-c", code, json.dumps(argvs)],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    statuses, has_torch = json.loads(ended.stdout)
    # That a directory cannot be written is the machine's fault, not the option's.
    machine = [cli.MACHINE_CANNOT if "--record" in argv else cli.WRONG_USAGE for argv in argvs]
    assert statuses == machine
    assert not has_torch
    assert len(ended.stderr.splitlines()) == len(argvs)


@pytest.mark.parametrize(("argv", "message"), WRONG)
def test_what_is_wrong_is_said_in_a_line(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["serve", *argv, "--port", "0"]) != cli.DONE
    said = capsys.readouterr().err
    assert said.startswith("streamgen serve: ")
    assert said.count("\n") == 1
    assert message in said


def test_two_servers_do_not_record_to_one_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with claimed(tmp_path):
        assert cli.main(["serve", "--port", "0", "--record", str(tmp_path)]) == cli.MACHINE_CANNOT
    said = capsys.readouterr().err
    assert said == (
        f"streamgen serve: cannot record to {tmp_path}: another server does; "
        "give --record another one\n"
    )
    assert list(tmp_path.iterdir()) == []
    with claimed(tmp_path), claimed(None), claimed(None):  # it was let go
        pass


def test_a_server_holds_its_directory_while_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[str] = []

    def start(*arguments: object, **options: object) -> None:
        with pytest.raises(OSError, match="another server does") as caught, claimed(tmp_path):
            pass
        refused.append(str(caught.value))
        raise ConfigError("enough")

    monkeypatch.setattr(engine_client, "EngineClient", start)
    assert cli.main(["serve", "--port", "0", "--record", str(tmp_path)]) == cli.WRONG_USAGE
    assert len(refused) == 1


HIDDEN = "hunter2"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("turn_secret", HIDDEN),
        ("expand_prompt", f"ask --key '{HIDDEN}"),
        ("expand_endpoint", f"http://me:{HIDDEN}@localhost/v1"),
    ],
)
def test_a_secret_is_not_in_the_error_that_refuses_it(
    key: str,
    value: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "server.yaml"
    file.write_text(json.dumps({key: value}))
    flag = f"--{key.replace('_', '-')}"
    for argv in (["serve", flag, value], ["serve", "--config", str(file)]):
        assert cli.main(argv) == cli.WRONG_USAGE
        said = capsys.readouterr().err
        assert key in said
        assert "expected" in said
        assert HIDDEN not in said
    monkeypatch.setenv(f"STREAMGEN_{key.upper()}", value)
    assert cli.main(["serve"]) == cli.WRONG_USAGE
    assert HIDDEN not in capsys.readouterr().err


def test_a_file_that_is_no_yaml_is_not_quoted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "server.yaml"
    file.write_text(f'port: 1\nturn_secret: "{HIDDEN}" x\n')
    assert cli.main(["serve", "--config", str(file)]) == cli.WRONG_USAGE
    said = capsys.readouterr().err
    assert "server.yaml is not YAML" in said
    assert "in line 2" in said
    assert HIDDEN not in said


def test_secrets_are_in_no_description_of_the_options() -> None:
    server = ServeConfig(
        turn_secret=HIDDEN, expand_prompt=HIDDEN, expand_endpoint=f"http://a/?key={HIDDEN}"
    )
    shown = effective_settings(server)
    for key in ("turn_secret", "expand_prompt", "expand_endpoint"):
        assert shown[key]["value"] == "(kept secret)"
    assert effective_settings(ServeConfig())["turn_secret"]["value"] is None
    assert HIDDEN not in repr(server) + repr(transport_options(EngineConfig(), server)) + str(shown)
