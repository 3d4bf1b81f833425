"""Alert rules, dashboard and docs against the metrics that there are, and what promtool says."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from transport.metrics import PREFIX, Metrics

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus-rules.yml"
DASHBOARD = ROOT / "deploy" / "grafana-dashboard.json"
MONITORING = (ROOT / "docs" / "monitoring.md").read_text("utf-8")
TROUBLESHOOTING = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
NAME = re.compile(rf"{PREFIX}[a-z_]+")

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not here (Debian: prometheus)"
)


def series() -> set[str]:
    """Return the names of all series there can be."""
    names = set()
    for family in Metrics("m").registry.collect():
        suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}
        # A histogram that goes below 0 has no sum.
        below = family.name == f"{PREFIX}deadline_slack_seconds"
        given = suffixes.get(family.type, [""])
        names |= {family.name + suffix for suffix in given if not (below and suffix == "_sum")}
    return names


def alerts() -> list[dict[str, Any]]:
    """Return the alert rules."""
    groups = yaml.safe_load(RULES.read_text("utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def anchors() -> set[str]:
    """Return the anchors of the headings of the troubleshooting page, as they are on the web."""
    headings = re.findall(r"^#+ (.*)$", TROUBLESHOOTING, re.MULTILINE)
    return {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_metric_is_described() -> None:
    for family in Metrics("m").registry.collect():
        name = family.name + ("_total" if family.type == "counter" else "")
        line = next(line for line in MONITORING.splitlines() if f"`{name}" in line)
        assert line.split("|")[2].strip() == family.type, line
        labels = re.search(r"\{([a-z_]+)\}", line.split("|")[1])
        known = (
            [label for label in family.samples[0].labels if label not in ("model_name", "le")]
            if family.samples
            else []
        )
        if known:
            assert labels is not None
            assert labels[1] == known[0]
            for value in {sample.labels[known[0]] for sample in family.samples}:
                assert f"`{value}`" in MONITORING, (name, value)


def test_every_alert_queries_what_there_is_and_is_described() -> None:
    for alert in alerts():
        assert set(NAME.findall(alert["expr"])) <= series(), alert["alert"]
        assert f"| `{alert['alert']}` |" in MONITORING
        page, _, anchor = alert["annotations"]["runbook"].partition("#")
        assert page == "docs/troubleshooting.md"
        assert anchor in anchors(), anchor


def test_every_alert_is_tested() -> None:
    tests = yaml.safe_load((Path(__file__).parent / "alerts.yml").read_text("utf-8"))["tests"]
    checks = [check for test in tests for check in test["alert_rule_test"]]
    for alert in alerts():
        mine = [check for check in checks if check["alertname"] == alert["alert"]]
        assert any("exp_alerts" in check for check in mine), alert["alert"]
        assert any("exp_alerts" not in check for check in mine), alert["alert"]


def test_links_within_the_troubleshooting_page() -> None:
    for anchor in re.findall(r"\]\(#([^)]+)\)", TROUBLESHOOTING):
        assert anchor in anchors(), anchor
    for name in re.findall(
        r"`([a-z_]+_(?:total|seconds|ratio|unowned|factor|db))", TROUBLESHOOTING
    ):
        assert any(one.startswith(PREFIX + name) for one in series()), name


def source() -> str:
    """Return what the program says: its source, with strings over several lines put together."""
    folders = (ROOT / "streamgen", ROOT / "transport", ROOT / "kvcache")
    files = [f for folder in folders for f in folder.rglob("*") if f.suffix in (".py", ".js")]
    text = "".join(f.read_text("utf-8") for f in sorted(files))
    return re.sub(r'"\s*\n\s*f?"', "", text).replace("`", "")


# What the system, curl and nginx say, and a sentence that is put together of parts.
NOT_OURS = ("Address already in use", ") Failed to connect", "proxy_set_header", "cache pages are")


def test_messages_of_the_troubleshooting_page_are_those_that_are_printed() -> None:
    said, text = source(), re.sub(r"```.*?```", "", TROUBLESHOOTING, flags=re.DOTALL)
    found = 0
    for quote in re.findall(r"`([^`\n]+)`", text):
        words = quote.removeprefix("streamgen serve: ").removeprefix("the engine failed: ")
        for part in re.split(r"\.\.\.|[\w.:%-]*\d[\w.:%-]*|'[^']*'|; did you mean", words):
            part = part.strip(" ,;:")
            if len(part.split()) < 3 or any(other in part for other in NOT_OURS):
                continue
            found += 1
            assert part.removesuffix(", told twice") in said, quote
    assert found > 20


def queries(dashboard: dict[str, Any]) -> Iterator[str]:
    """Yield the queries of a dashboard's panels and variables."""
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"]


def test_the_dashboard_imports_as_it_is() -> None:
    """It names no data source and no dashboard of somebody's own."""
    dashboard = json.loads(DASHBOARD.read_text("utf-8"))
    assert (dashboard["uid"], dashboard["id"]) == ("streamgen", None)
    assert dashboard["title"] == "streamgen"
    assert dashboard["schemaVersion"] >= 36
    assert "__inputs" not in dashboard
    variables = {v["name"]: v for v in dashboard["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert variables["datasource"]["query"] == "prometheus"
    source = {"type": "prometheus", "uid": "${datasource}"}
    identifiers = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(identifiers)) == len(identifiers)
    taken = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
        if panel["type"] == "row":
            continue
        assert panel["type"] in ("stat", "timeseries")
        assert panel["datasource"] == source
        assert panel["description"].endswith(".")
        assert all(target["datasource"] == source for target in panel["targets"])
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references)
        assert panel["fieldConfig"]["defaults"]["unit"]


def test_the_dashboard_queries_what_there_is() -> None:
    dashboard = json.loads(DASHBOARD.read_text("utf-8"))
    found = {name for query in queries(dashboard) for name in NAME.findall(query)}
    assert found <= series()
    shown = {family.name for family in Metrics("m").registry.collect()}
    assert all(any(name.startswith(one) for name in found) for one in shown), shown - found
    for query in queries(dashboard):
        assert query.count("(") == query.count(")")
        assert query.count("{") == query.count("}")
        assert set(re.findall(r"\$(?!__)(\w+)", query)) <= {"instance", "model"}


def labels_of(name: str) -> set[str]:
    """Return the labels of a series as Prometheus keeps it."""
    family = next(f for f in Metrics("m").registry.collect() if name.startswith(f.name))
    known = {label for sample in family.samples for label in sample.labels}
    kind = {"kind"} if family.name == f"{PREFIX}memory_bytes" else set()  # it has no sample yet
    return known | kind | {"job", "instance", "model_name"}


def test_queries_select_and_sum_by_labels_that_there_are() -> None:
    dashboard = json.loads(DASHBOARD.read_text("utf-8"))
    found = [*queries(dashboard), *(alert["expr"] for alert in alerts())]
    for query in found:
        for name, inside in re.findall(rf"({PREFIX}[a-z_]+)\{{([^}}]*)\}}", query):
            selected = re.findall(r"(\w+) *(?:=|!=|=~|!~) *\"", inside)
            assert set(selected) <= labels_of(name), query
            assert selected, query
        for by in re.findall(r"\b(?:by|on) \(([^)]*)\)", query):
            wanted = {label.strip() for label in by.split(",")}
            for name in NAME.findall(query):
                assert wanted <= labels_of(name), query


def promtool(*arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run Prometheus's tool."""
    return subprocess.run(
        ["promtool", *arguments], input=text, capture_output=True, text=True, timeout=120
    )


@needs_promtool
def test_promtool_accepts_the_rules_and_the_configuration() -> None:
    for arguments in (("rules", str(RULES)), ("config", str(RULES.parent / "prometheus.yml"))):
        checked = promtool("check", *arguments)
        assert checked.returncode == 0, checked.stdout + checked.stderr
        assert "FAILED" not in checked.stdout


@needs_promtool
def test_promtool_reads_every_query_of_the_dashboard(tmp_path: Path) -> None:
    dashboard = json.loads(DASHBOARD.read_text("utf-8"))
    found = [t["expr"] for panel in dashboard["panels"] for t in panel.get("targets", ())]
    rules = [
        {"record": f"query:{i}", "expr": re.sub(r"\$__rate_interval", "1m", query)}
        for i, query in enumerate(found)
    ]
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    checked = promtool("check", "rules", str(file))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{len(found)} rules found" in checked.stdout


@needs_promtool
def test_promtool_sees_each_alert_fire_and_be_silent() -> None:
    tested = promtool("test", "rules", str(Path(__file__).parent / "alerts.yml"))
    assert tested.returncode == 0, tested.stdout + tested.stderr


@needs_promtool
def test_promtool_accepts_the_metrics_but_for_the_colon_of_their_names() -> None:
    text = Metrics("m").render().decode()
    complaints = promtool("check", "metrics", text=text).stderr.strip().splitlines()
    names = {name for name in NAME.findall(text) if f"# TYPE {name} " in text}
    assert complaints, "it has always something to say of a colon"
    for complaint in complaints:
        name, _, said = complaint.partition(" ")
        assert name in names, complaint
        assert said == "metric names should not contain ':'", complaint
