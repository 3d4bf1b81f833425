"""The published form of a benchmark's JSON, as a check."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "bench.schema.json").read_text())


def check_form(file: Path, kind: str) -> dict[str, Any]:
    """Require that a file has the form of docs/bench.schema.json; return its content."""
    report: dict[str, Any] = json.loads(file.read_text())
    errors = [
        f"{'/'.join(map(str, error.absolute_path))}: {error.message}"
        for error in Draft202012Validator(SCHEMA).iter_errors(report)
    ]
    assert not errors, "\n".join(errors)
    assert report["kind"] == kind
    return report
