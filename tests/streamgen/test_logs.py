"""Log lines: for people, and for machines."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator

import pytest

from streamgen import logs
from streamgen.logs import JsonFormatter, LogSetup, TextFormatter


@pytest.fixture
def bare_root() -> Iterator[logging.Logger]:
    """Lend the root logger as a new process has it."""
    root = logging.getLogger()
    loggers = [root, *(logging.getLogger(name) for name in (*logs.TRACES, *logs.TOO_OPEN))]
    levels, handlers = [logger.level for logger in loggers], root.handlers[:]
    for logger in loggers[1:]:  # a server that ran in this process has set them
        logger.setLevel(logging.NOTSET)
    yield root
    root.handlers[:] = handlers
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


def line_of(**extra: object) -> dict[str, object]:
    record = logging.getLogger("a.b").makeRecord(
        "a.b", logging.INFO, "f.py", 1, "chunk %d", (7,), None, extra=extra
    )
    line: dict[str, object] = json.loads(JsonFormatter("engine").format(record))
    return line


def test_a_line_is_an_object_with_what_it_is_about() -> None:
    line = line_of(trace_id="s/7", chunk=7, slack_ms=None)
    assert str(line.pop("time")).endswith("Z")
    assert line == {
        "level": "info", "process": "engine", "logger": "a.b", "message": "chunk 7",
        "trace_id": "s/7", "chunk": 7, "slack_ms": None,
    }  # fmt: skip


def test_q20_a_line_stays_one_line_whatever_is_in_it() -> None:
    record = logging.makeLogRecord({"msg": "a\nb\0\u202e\ud83d", "args": ()})
    text = JsonFormatter("server").format(record)
    assert text.isascii()
    assert "\n" not in text
    assert json.loads(text)["message"] == "a\nb\0\u202e\ud83d"


def test_an_error_brings_its_traceback() -> None:
    try:
        raise ValueError("out of luck")
    except ValueError:
        record = logging.makeLogRecord({"msg": "failed", "exc_info": sys.exc_info()})
    assert "ValueError: out of luck" in json.loads(JsonFormatter("server").format(record))[
        "exception"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("setup", "traced"),
    [
        (LogSetup("INFO"), False),
        (LogSetup("DEBUG"), True),
        (LogSetup("INFO", "json"), True),
        (LogSetup("WARNING", "json"), False),
    ],
)
def test_chunks_are_told_to_machines_and_to_who_asks_for_all(
    bare_root: logging.Logger, setup: LogSetup, traced: bool
) -> None:
    bare_root.handlers.clear()  # pytest's own come before each test
    for name in logs.TRACES:
        logging.getLogger(name).setLevel(logging.ERROR)  # as an earlier server may have left it
    logs.set_up(setup)
    for name in logs.TRACES:
        assert logging.getLogger(name).isEnabledFor(logging.INFO) is traced
    wanted = JsonFormatter if setup.format == "json" else TextFormatter
    assert isinstance(bare_root.handlers[0].formatter, wanted)
    other = logs.current("engine")
    assert (other.format, other.process) == (setup.format, "engine")
    assert other.level == bare_root.level


def test_addresses_that_are_asked_are_told_at_no_level(bare_root: logging.Logger) -> None:
    """A service's address may have a key in it."""
    bare_root.handlers.clear()
    logs.set_up(LogSetup("DEBUG"))
    for name in logs.TOO_OPEN:
        assert not logging.getLogger(name).isEnabledFor(logging.INFO)
        assert logging.getLogger(name).isEnabledFor(logging.WARNING)


SECRET = "Zm9vLWJhci1_"


@pytest.mark.parametrize("formatter", [TextFormatter("server"), JsonFormatter("server")])
@pytest.mark.parametrize(
    "text",
    [
        f'127.0.0.1:1 - "GET /v1/realtime/sessions/s1/stream.mp4?token={SECRET} HTTP/1.1" 200',
        f"GET /frame.jpg?via=a&token={SECRET}&b=1",
        f"> Authorization: Bearer {SECRET}",
        f'< TEXT \'{{"type":"session.resume","resume_token":"{SECRET}"}}\'',
        f"{{'viewer_token': '{SECRET}', 'id': 's1'}}",
        json.dumps(json.dumps({"viewer_token": SECRET})),
        f"next=%2Fframe.jpg%3Ftoken%3D{SECRET}",
    ],
)
def test_tokens_are_not_logged(formatter: logging.Formatter, text: str) -> None:
    """Neither in the message nor in what is given with it, nor in a traceback."""
    try:
        raise ValueError(text)
    except ValueError:
        fault = sys.exc_info()
    fields = {"msg": "%s", "args": (text,), "exc_info": fault, "about": text, "n": {"token": 7}}
    line = formatter.format(logging.makeLogRecord(fields))
    assert SECRET not in line
    assert "***" in line
    if isinstance(formatter, JsonFormatter):
        assert json.loads(line)["n"] == {"token": 7}


def test_what_is_no_token_is_logged_whole() -> None:
    text = "the session's viewer token is missing or wrong; 7 tokens; session s1 opened: 'a token'"
    assert logs.without_tokens(text) == text
