"""Prompts may be made longer by a program or a model of the user's; whoever sent them is told."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from streamgen import cli
from streamgen.config import read_settings
from streamgen.engine_client import EngineClient
from streamgen.errors import ConfigError, InvalidPrompt
from streamgen.expand import ExpansionFailed, PromptExpander, expander_of
from streamgen.expanded_prompt import expanded
from streamgen.serve import check_options, effective_settings
from streamgen.serve_options import ServeConfig
from streamgen.stream_host import EngineHost
from tests.streamgen.tiny import TINY, tiny_config
from transport.fields import WeightedPrompt
from transport.stream import SessionConfig, StreamError
from transport.wire import parse


def server(**flags: object) -> ServeConfig:
    return read_settings([ServeConfig], flags=flags).build(ServeConfig)


def program(folder: Path, code: str, **flags: object) -> PromptExpander:
    """Return the expander of a Python program."""
    path = folder / "expand it.py"
    path.write_text(f"import sys, time\ntext = sys.stdin.read()\n{code}\n")
    expander = expander_of(server(expand_prompt=f"{sys.executable} '{path}'", **flags))
    assert expander is not None
    return expander


async def test_off_by_default() -> None:
    assert expander_of(server()) is None
    assert await expanded(None, "a fox") == "a fox"


async def test_a_program_writes_the_caption(tmp_path: Path) -> None:
    """Of each text of a mix; quotes and dollars reach no shell."""
    expander = program(tmp_path, "print(f'{text}, at dawn.')")
    assert await expanded(expander, "a 'fox' $(date)") == "a 'fox' $(date), at dawn."
    mix = (WeightedPrompt("a fox", 2.0), WeightedPrompt("the sea", 1.0))
    assert await expanded(expander, mix) == (
        WeightedPrompt("a fox, at dawn.", 2.0), WeightedPrompt("the sea, at dawn.", 1.0)
    )  # fmt: skip


async def test_what_is_no_prompt_is_not_handed_on(tmp_path: Path) -> None:
    expander = program(tmp_path, "raise SystemExit(9)")
    with pytest.raises(InvalidPrompt, match="the prompt is empty"):
        await expanded(expander, "  ")
    with pytest.raises(InvalidPrompt, match="must be a number above 0"):
        await expanded(expander, (WeightedPrompt("a", -1.0),))


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("print('no model', file=sys.stderr); sys.exit(4)", "ended with status 4: no model"),
        ("pass", "was expanded to 0 characters"),
        ("print('x' * 2001)", "was expanded to 2,001 characters; 1 to 2,000 can be shown"),
        ("sys.stdout.buffer.write(b'\\xff')", "wrote what is not UTF-8"),
        ("print('a\\0b')", "of what was written, the prompt contains a NUL character"),
        ("while True: print('x' * 9999)", "wrote more than 1,048,576 bytes"),
    ],
)
async def test_a_program_that_fails_is_told(code: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ExpansionFailed) as caught:
        await expanded(program(tmp_path, code), "a fox")
    assert said in str(caught.value)
    assert caught.value.retryable
    assert caught.value.param == "prompt"


async def test_a_program_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    marker = tmp_path / "pid"
    code = f"import os; open({str(marker)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    started = time.monotonic()
    with pytest.raises(ExpansionFailed, match=r"not expanded within 1\.5 s"):
        await expanded(program(tmp_path, code, expand_timeout="1.5"), "a fox")
    assert time.monotonic() - started < 60
    if marker.exists():
        assert not Path(f"/proc/{marker.read_text()}").exists()


@pytest.mark.parametrize(
    "code",
    [
        "while True: print('x' * 9999, file=sys.stderr)",
        "import subprocess; subprocess.run([sys.executable, '-c', SLEEP])",
        "import subprocess; subprocess.Popen([sys.executable, '-c', SLEEP]); print('a fox')",
    ],
    ids=["floods", "waits for another", "leaves another behind"],
)
async def test_a_program_is_ended_with_what_it_started_and_wrote(code: str, tmp_path: Path) -> None:
    """The other one has the program's pipes, and lives on when the program is killed."""
    marker = tmp_path / "pid"
    sleep = f"import os, time; open({str(marker)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    code = f"SLEEP = {sleep!r}\n{code}"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    expander = program(tmp_path, code, expand_timeout="1.5")
    with pytest.raises(ExpansionFailed, match=r"not expanded within 1\.5 s"):
        await asyncio.wait_for(expanded(expander, "a fox"), 60)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 * 1024  # KiB
    if marker.exists():
        other = Path(f"/proc/{marker.read_text()}")
        deadline = time.monotonic() + 60  # until init has taken it
        while other.exists() and "Z" not in (other / "stat").read_text().split():
            assert time.monotonic() < deadline, "it was left behind"
            await asyncio.sleep(0.05)


async def test_a_program_that_is_not_there_is_told() -> None:
    expander = expander_of(server(expand_prompt="/no/such/program"))
    with pytest.raises(ExpansionFailed, match="/no/such/program: No such file"):
        await expanded(expander, "a fox")


class Model:
    """An OpenAI-compatible service on the loopback interface."""

    def __init__(self) -> None:
        self.answer: bytes = b""
        self.status = 200
        self.asked: list[tuple[str, dict[str, Any], str | None]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.asked.append((self.path, body, self.headers["Authorization"]))
                self.send_response(outer.status)
                self.send_header("Content-Length", str(len(outer.answer)))
                if outer.status == 302:
                    self.send_header("Location", "/v1/elsewhere")
                self.end_headers()
                self.wfile.write(outer.answer)

            def log_message(self, *arguments: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1/"
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def says(self, content: object) -> None:
        self.answer = json.dumps({"choices": [{"message": {"content": content}}]}).encode()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def model() -> Iterator[Model]:
    model = Model()
    yield model
    model.close()


async def test_a_model_writes_the_caption(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "key-of-a-test")
    model.says(" A fox trots through the snow. ")
    expander = expander_of(server(expand_endpoint=model.url, expand_model="writer"))
    assert await expanded(expander, "a fox") == "A fox trots through the snow."
    ((path, body, key),) = model.asked
    assert path == "/v1/chat/completions"
    assert body["model"] == "writer"
    assert body["messages"][-1] == {"role": "user", "content": "a fox"}
    assert key == "Bearer key-of-a-test"


async def test_without_a_key_none_is_sent(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    model.says("A fox.")
    await expanded(expander_of(server(expand_endpoint=model.url)), "a fox")
    ((_, body, key),) = model.asked
    assert key is None
    assert "model" not in body


@pytest.mark.parametrize(
    ("status", "answer", "said"),
    [
        (401, b"secrets", "the endpoint answered 401"),
        (200, b"<html>", "is no chat completion"),
        (200, b'{"choices": []}', "is no chat completion"),
        (200, b'{"choices": [{"message": {"content": null}}]}', "has no text"),
        (200, b'{"choices": [{"message": {"content": "\\ud800"}}]}', "half of a surrogate pair"),
        (200, b"[" * 200_000, "is no chat completion"),
        (200, b" " * (1 << 20) + b"{}", "has more than 1,048,576 bytes"),
        (302, b"", "the endpoint answered 302"),
    ],
)
async def test_an_answer_that_is_none_is_told(
    status: int, answer: bytes, said: str, model: Model
) -> None:
    model.status, model.answer = status, answer
    with pytest.raises(ExpansionFailed) as caught:
        await expanded(expander_of(server(expand_endpoint=model.url)), "a fox")
    assert said in str(caught.value)
    assert "secrets" not in str(caught.value)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"", "cannot be asked: Server disconnected"),
        (b"not HTTP\r\n\r\n", "cannot be asked: illegal status line"),
        (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 30_000, "cannot be asked"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n{", "cannot be asked"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{", "cannot be asked"),
    ],
)
async def test_a_service_that_speaks_no_http_is_told(answer: bytes, said: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=_answer_once, args=(listening, answer))
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(ExpansionFailed) as caught:
            await expanded(expander_of(server(expand_endpoint=url)), "a fox")
        thread.join()
    assert said in str(caught.value)


def _answer_once(listening: socket.socket, answer: bytes) -> None:
    connection, _ = listening.accept()
    with connection, contextlib.suppress(ConnectionError):  # of a reader who has had enough
        connection.recv(1 << 16)
        connection.sendall(answer)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(1 << 16):
            pass


@pytest.mark.parametrize(
    "begun", [b"HTTP/1.1 200 OK\r\nA: ", b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n"]
)
def test_a_service_that_drips_is_given_up(begun: bytes) -> None:
    """Nothing reads on, which would hold `generate` up."""

    def drip(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection, contextlib.suppress(OSError):
            connection.sendall(begun)
            for _ in range(3000):
                connection.sendall(b" ")
                time.sleep(0.1)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=drip, args=(listening,))
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        expander = expander_of(server(expand_endpoint=url, expand_timeout="1"))
        started = time.monotonic()
        with pytest.raises(ExpansionFailed, match="not expanded within 1 s"):
            asyncio.run(expanded(expander, "a fox"))
        assert time.monotonic() - started < 60  # of 300
        thread.join()


def test_a_proxy_that_is_none_is_refused_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "carrier-pigeon://coop")
    with pytest.raises(ConfigError, match=r"carrier-pigeon.*see HTTPS_PROXY"):
        expander_of(server(expand_endpoint="https://localhost/v1"))


async def test_a_key_in_the_address_stays_where_it_is(model: Model) -> None:
    model.says("A fox.")
    await expanded(expander_of(server(expand_endpoint=f"{model.url}?key=secret-word")), "a fox")
    ((path, _, _),) = model.asked
    assert path == "/v1/chat/completions?key=secret-word"


@pytest.mark.parametrize(
    "address",
    ["http://h:abc/v1", "http://h:99999/v1", "http://h/a b", "http://h/\u00e9", "http://[h"],
)
def test_an_address_that_is_none_is_refused_at_the_start(address: str) -> None:
    with pytest.raises(ConfigError, match="expected an address as in http"):
        server(expand_endpoint=address)


async def test_a_service_that_is_away_is_told(model: Model) -> None:
    url = model.url
    model.server.server_close()
    with pytest.raises(ExpansionFailed, match="the endpoint cannot be asked"):
        await expanded(expander_of(server(expand_endpoint=url)), "a fox")


@pytest.fixture
async def client() -> AsyncIterator[EngineClient]:
    client = EngineClient(tiny_config(), preset=TINY, own_process=False)
    await client.start()
    await client.wait_ready()
    yield client
    await client.close()


async def test_a_session_shows_what_its_prompts_were_expanded_to(
    client: EngineClient, tmp_path: Path
) -> None:
    """In its settings and in the receipt; a prompt that takes longer does not overtake the next."""
    code = "time.sleep(0.5 * ('slow' in text)); print(text.upper())"
    host = EngineHost(client, program(tmp_path, code))
    stream = await host.open(SessionConfig(prompt="a fox"))
    assert stream.config.prompt == "A FOX"
    texts = ("a slow star", "a ball")
    receipts = await asyncio.gather(*(
        stream.control(parse(json.dumps({
            "type": "session.interaction", "interaction": {"event": {"prompt": text}},
        })))
        for text in texts
    ))  # fmt: skip
    assert [receipt.prompt for receipt in receipts] == ["A SLOW STAR", "A BALL"]
    assert receipts[0].prompt_revision < receipts[1].prompt_revision
    assert stream.config.prompt == "A BALL"
    await stream.close()


async def test_a_session_is_not_made_of_a_prompt_that_failed(
    client: EngineClient, tmp_path: Path
) -> None:
    host = EngineHost(client, program(tmp_path, "sys.exit(1)"))
    with pytest.raises(StreamError) as caught:
        await host.open(SessionConfig(prompt="a fox"))
    assert caught.value.retryable
    assert client.list() == ()


def test_options_that_contradict_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="give one of them"):
        check_options(server(expand_prompt="a", expand_endpoint="http://a/v1"))
    with pytest.raises(ConfigError, match="needs --expand-endpoint"):
        check_options(server(expand_model="a"))
    for flag in ("--expand-endpoint=ftp://a", "--expand-endpoint=http://me:word@a/v1",
                 "--expand-prompt='", "--expand-prompt= "):  # fmt: skip
        assert cli.main(["serve", flag]) == cli.WRONG_USAGE
    assert capsys.readouterr().err.count("\n") == 4


def test_the_command_is_not_shown_to_viewers() -> None:
    shown = effective_settings(server(expand_prompt="write --key hidden"))
    assert shown["expand_prompt"]["value"] == "(kept secret)"
