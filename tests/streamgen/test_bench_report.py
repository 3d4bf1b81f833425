"""What every kind of benchmark writes: the form, the table, the picture. Nothing is measured."""

from __future__ import annotations

import copy
import csv
import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from streamgen import bench_kinds, bench_plots, bench_report, cli, plots
from streamgen.bench_plots import PANELS
from streamgen.bench_report import BenchReport, flat, percentiles, write
from streamgen.command_options import BenchConfig
from streamgen.errors import ConfigError
from tests.streamgen.bench_form import SCHEMA

MACHINE = {
    "cpu": "a processor", "cores": 2, "device": "cpu", "torch": "2.0", "threads": 1,
    "commit": "abc1234+",
}  # fmt: skip
VIDEO = {
    "model": "tiny", "size": "48x32", "fps": 16, "steps": 2, "window": 9, "sink": 0, "seconds": 1.0,
}  # fmt: skip
MORE = {
    "capacity": {
        "capacity": {
            "offered": 2, "sessions_mean": 1.5, "sessions_most": 3, "is_bounded": True,
        }
    },
    "live": {"single": {"chunk_ms": 10.0}, "refusal": "no room"},
}  # fmt: skip


def sample(schema: dict[str, Any], number: float) -> Any:
    """Return a value that a schema allows."""
    if "$ref" in schema:
        return sample(SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]], number)
    kind = schema["type"] if isinstance(schema["type"], str) else schema["type"][0]
    if kind == "object":
        return {key: sample(entry, number) for key, entry in schema["properties"].items()}
    if kind == "number":
        return min(number, schema.get("maximum", number))
    return {"integer": int(number), "string": "x", "boolean": True, "array": [1]}[kind]


def report_of(kind: str) -> BenchReport:
    """Return a report of the kind, of rows as the schema has them."""
    facts = dict.fromkeys(bench_report.ROW_FACTS)
    rows = [
        {k: v for k, v in sample(SCHEMA["$defs"][kind], n).items() if k not in facts}
        for n in (1.0, 2.0)
    ]
    if kind == "transport":
        rows = [
            {"figure": "age", "value": 2.5, "unit": "ms", "mark": 20.0, "met": True},
            {"figure": "server CPU", "value": 25.0, "unit": "%", "mark": None, "met": None},
            {"figure": "20 : 1 viewers", "value": 1.4, "unit": "x", "mark": 2.0, "met": True},
            {"figure": "engine's CPU", "value": None, "unit": "%", "mark": None, "met": None},
        ]
    return BenchReport(kind, MACHINE, VIDEO, rows, ("a note",), more=MORE.get(kind, {}))


def errors_of(document: object) -> list[str]:
    return [error.message for error in Draft202012Validator(SCHEMA).iter_errors(document)]


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert set(SCHEMA["properties"]["kind"]["enum"]) == set(PANELS)


@pytest.mark.parametrize("kind", PANELS)
def test_every_kind_writes_json_csv_and_a_picture(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    options = BenchConfig(json=tmp_path / "a.json", csv=tmp_path / "a.csv", plot=tmp_path / "a.png")
    report = report_of(kind)
    write(report, options)
    document = json.loads((tmp_path / "a.json").read_text())
    assert errors_of(document) == []
    with (tmp_path / "a.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(report.rows)
    assert {row["commit"] for row in rows} == {"abc1234+"}
    assert {row["threads"] for row in rows} == {"1"}
    picture = (tmp_path / "a.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 10_000


@pytest.mark.parametrize("kind", PANELS)
def test_the_schema_refuses_what_is_missing_or_not_known(kind: str) -> None:
    document = json.loads(json.dumps(report_of(kind).document()))
    assert errors_of(document) == []
    for break_it in (
        lambda d: d["rows"][0].pop("device"),
        lambda d: d["rows"][0].update(surprise=1),
        lambda d: d.update(kind="other"),
        lambda d: d.pop("notes"),
        lambda d: d.update(rows=[]),
    ):
        broken = copy.deepcopy(document)
        break_it(broken)
        assert errors_of(broken), break_it


def test_a_row_without_a_figure_is_drawn_too(tmp_path: Path) -> None:
    """Where nothing was predicted or shown there is a gap, and no error."""
    pytest.importorskip("matplotlib")
    for kind in ("latency", "capacity", "live"):
        report = report_of(kind)
        nothing = dict.fromkeys(
            k for k, v in SCHEMA["$defs"][kind]["properties"].items()
            if "null" in SCHEMA["$defs"].get(v.get("$ref", "").rpartition("/")[2], v)["type"]
            and k not in bench_report.ROW_FACTS
        )  # fmt: skip
        rows = [{**row, **nothing} for row in report.rows]
        empty = BenchReport(kind, MACHINE, VIDEO, rows, more=report.more)
        write(empty, BenchConfig(plot=tmp_path / f"{kind}.png", json=tmp_path / f"{kind}.json"))
        assert errors_of(json.loads((tmp_path / f"{kind}.json").read_text())) == []
        assert (tmp_path / f"{kind}.png").stat().st_size > 10_000


def test_the_ratios_of_the_transport_are_drawn_with_their_marks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("matplotlib")
    figures: list[Any] = []
    monkeypatch.setattr(bench_plots, "save", lambda figure, path: figures.append(figure))
    bench_plots.draw(report_of("transport").document(), Path("a.png"))
    ratios = figures[0].axes[2]
    assert [label.get_text() for label in ratios.get_yticklabels()] == ["20 : 1 viewers"]
    assert ratios.patches[0].get_width() == pytest.approx(1.4)
    assert ratios.collections[0].get_segments()[0][:, 0].tolist() == [2, 2]


def test_percentiles_are_in_ms_and_none_of_nothing() -> None:
    assert percentiles("x_ms", [0.1] * 99 + [0.2], 50, 100) == {
        "x_ms_p50": pytest.approx(100), "x_ms_p100": pytest.approx(200),
    }  # fmt: skip
    assert percentiles("x_ms", []) == {"x_ms_p50": None, "x_ms_p95": None, "x_ms_p99": None}


def test_a_table_has_a_column_for_each_share_and_none_for_lists() -> None:
    row = {"a": 1, "share": {"dit": 0.5, "vae": 0.25}, "levels": [1, 2]}
    assert flat(row) == {"a": 1, "share_dit": 0.5, "share_vae": 0.25}


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"json": "a.txt"}, "must end in one of .json"),
        ({"csv": "a.json"}, "must end in one of .csv"),
        ({"plot": "a.pdf"}, "must end in one of .png"),
        ({"json": "nowhere/a.json"}, "there is no folder"),
    ],
)
def test_files_that_cannot_be_written_are_told_before_anything_is_measured(
    option: dict[str, str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = BenchConfig(**{key: Path(name) for key, name in option.items()})
    for kind in PANELS:
        with pytest.raises(ConfigError, match=message):
            bench_kinds.run(kind, None, options, has_seconds=False)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "argv", "message"),
    [
        ("live", ["--sessions", "3,4"], "sessions 3,4: bench live takes one number, as in --sess"),
        ("sessions", ["--browser"], "browser changes nothing in bench sessions; it is for trans"),
        ("capacity", ["--calibration", "a.json"], "calibration changes nothing in bench capacity"),
        ("latency", ["--max-utilisation", "0.5"], "max_utilisation changes nothing in bench late"),
        ("sessions", ["--sessions", "1,10001"], "expected numbers of sessions from 1 to 10,000"),
    ],
)
def test_an_option_that_a_kind_does_not_go_by_is_refused(
    kind: str, argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["bench", kind, *argv]) == cli.WRONG_USAGE
    assert message in capsys.readouterr().err


def test_a_picture_without_matplotlib_is_refused_with_the_way_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plots.importlib.util, "find_spec", lambda name: None)
    for argv in (["bench", "latency"], ["plan", "--gpu", "h100", "--reference", "flux-1-dev"]):
        assert cli.main([*argv, "--plot", str(tmp_path / "a.png")]) == cli.WRONG_USAGE
        assert "pip install 'streamgen-video[plot]'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
