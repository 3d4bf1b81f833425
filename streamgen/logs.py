"""How log lines are written: for people, or one JSON object a line for machines."""

from __future__ import annotations

import json
import logging
import re
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Final

FORMATS: Final = ("text", "json")
# A line a chunk, with its trace id and its figures: in a text log only at the level "debug".
TRACES: Final = ("streamgen.trace", "transport.trace")
# They tell of every request with its address, in which a key may be.
TOO_OPEN: Final = ("httpx", "httpcore")
# What a record has of itself; all else was given with `extra`.
USUAL: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


@dataclass(frozen=True, slots=True)
class LogSetup:
    """What is logged, and how, in one process; `format` is "text" or "json"."""

    level: str | int
    format: str = "text"
    process: str = "server"


# Tokens stand in the addresses of requests, in messages and in headers, which libraries log whole.
_TOKEN: Final = re.compile(
    r"""(token\\*["']?\s*(?:=|:|%3[ad])\s*\\*["']?|\bbearer\s+)[^\s"'\\&;,<>\[\](){}]+""",
    re.IGNORECASE,
)


def without_tokens(text: object) -> str:
    """Return a text in which whoever reads the log finds no token to use."""
    return _TOKEN.sub(r"\1***", str(text))


class TextFormatter(logging.Formatter):
    """Write a line for people, without tokens."""

    def __init__(self, process: str) -> None:
        who = "%(name)s" if process == "server" else process
        super().__init__(f"%(asctime)s %(levelname)s {who}: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and the traceback if there is one."""
        return without_tokens(super().format(record))


class JsonFormatter(logging.Formatter):
    """Write a JSON object: time, level, process, logger, message, and what the line is about.

    Tokens are left out.
    """

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        time = datetime.fromtimestamp(record.created, timezone.utc)
        line: dict[str, Any] = {
            "time": time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "process": self._process,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in vars(record).items() if name not in USUAL}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        safe = {k: without_tokens(v) if isinstance(v, str) else v for k, v in line.items()}
        return json.dumps(safe, default=without_tokens)


def set_up(setup: LogSetup) -> None:
    """Log so from now on, unless somebody has set logging up before."""
    handler = logging.StreamHandler()
    kind = JsonFormatter if setup.format == "json" else TextFormatter
    handler.setFormatter(kind(setup.process))
    logging.basicConfig(level=setup.level, handlers=[handler])
    root = logging.getLogger()
    quiet = setup.format == "text" and root.level > logging.DEBUG
    for name in TRACES:
        level = max(root.level, logging.WARNING) if quiet else logging.NOTSET
        logging.getLogger(name).setLevel(level)
    for name in TOO_OPEN:
        logging.getLogger(name).setLevel(logging.WARNING)


def current(process: str) -> LogSetup:
    """Return how another process of this server is to log: as this one does."""
    root = logging.getLogger()
    is_json = any(isinstance(handler.formatter, JsonFormatter) for handler in root.handlers)
    return LogSetup(root.level, "json" if is_json else "text", process)
