"""The rules and the dashboard in deploy/observability: valid, tested, and in agreement with the metrics and the runbook."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from tests.e2e.server import ROOT
from tests.support.prometheus import (
    NO_PROMETHEUS,
    OBSERVABILITY,
    RULES,
    at_once,
    prometheus_binary,
)
from ts_stateful.frontend.metrics.prometheus import EngineMetrics, FrontMetrics

_TESTS = Path(__file__).with_name("alerts.yml")
_RUNBOOK = ROOT / "docs" / "runbook.md"
_METRIC = re.compile(r"(?<![:\w])ts_stateful_\w+")


def rules(name: str) -> list[dict[str, Any]]:
    """The rules of a file."""
    (group,) = yaml.safe_load((RULES / name).read_text())["groups"]
    return list(group["rules"])


def dashboard() -> dict[str, Any]:
    """The dashboard."""
    file = OBSERVABILITY / "grafana" / "dashboards" / "ts-stateful.json"
    document: dict[str, Any] = json.loads(file.read_text())
    return document


def queries() -> Iterator[str]:
    """All queries of the dashboard's panels."""
    for panel in dashboard()["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))


@pytest.fixture(scope="module")
def metrics() -> set[str]:
    """The names of all series that a server has."""
    registry = CollectorRegistry()
    FrontMetrics(registry).of("chat")
    registry.register(EngineMetrics([]))
    names = set()
    for family in registry.collect():
        names |= {sample.name for sample in family.samples}
        names.add(f"{family.name}_total" if family.type == "counter" else family.name)
    return names


def promtool(*arguments: str) -> str:
    """Run it; skip the test where it is missing."""
    binary = prometheus_binary("promtool")
    if binary is None:
        pytest.skip(NO_PROMETHEUS)
    done = subprocess.run([binary, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_prometheus_takes_the_configuration_and_its_rules() -> None:
    """With both files of rules, and the job that they name."""
    out = promtool("check", "config", str(RULES / "prometheus.yml"))
    for name in ("recording.yml", "alerts.yml"):
        assert f"SUCCESS: {len(rules(name))} rules found" in out
    (job,) = yaml.safe_load((RULES / "prometheus.yml").read_text())["scrape_configs"]
    assert job["job_name"] == "ts-stateful"


def test_each_alert_fires_after_its_time_and_not_before() -> None:
    """In simulated time, by promtool."""
    promtool("test", "rules", str(_TESTS))


def test_each_alert_has_a_test_in_which_it_fires_alone() -> None:
    """And an evaluation in the same test in which nothing fires."""
    fired = set()
    for test in yaml.safe_load(_TESTS.read_text())["tests"]:
        expected = [one.get("exp_samples", []) for one in test["promql_expr_test"]]
        assert [] in expected
        fired |= {sample["labels"] for samples in expected for sample in samples}
    assert fired == {f'{{alertname="{one["alert"]}"}}' for one in rules("alerts.yml")}


def test_each_alert_leads_to_its_section_of_the_runbook() -> None:
    """By an address whose anchor is the title; there is no section without an alert."""
    titles = re.findall(r"^### (\w+)$", _RUNBOOK.read_text(), re.MULTILINE)
    assert titles == [one["alert"] for one in rules("alerts.yml")]
    for one in rules("alerts.yml"):
        notes = one["annotations"]
        assert notes["runbook_url"] == (
            "https://github.com/torchserve-stateful/torchserve-stateful/blob/main/docs/runbook.md"
            f"#{one['alert'].lower()}"
        )
        assert notes["summary"]
        assert notes["description"].endswith(".")
        assert one["labels"]["severity"] in ("critical", "warning")


def test_rules_and_panels_read_series_that_exist(metrics: set[str]) -> None:
    """By their whole names."""
    asked = "\n".join([*queries(), *(one["expr"] for one in rules("alerts.yml"))])
    asked += "\n".join(one["expr"] for one in rules("recording.yml"))
    found = set(_METRIC.findall(asked))
    assert len(found) > 30
    assert found <= metrics
    recorded = set(re.findall(r"\w+:ts_stateful_\w+:\w+", asked))
    assert recorded == {one["record"] for one in rules("recording.yml")}


def test_every_stat_of_an_engine_is_in_a_panel(metrics: set[str]) -> None:
    """An operator can see all of them, and those of turns."""
    shown = set(_METRIC.findall("\n".join(queries())))
    histograms = {name for name in metrics if re.search("_(count|sum|created)$", name)}
    totals = {name.removesuffix("_total") for name in shown}
    assert {name for name in metrics - histograms if name.removesuffix("_total") not in totals} <= {
        f"ts_stateful_{name}_seconds" for name in ("first_token", "inter_token", "queue", "turn")
    }


def test_every_panel_has_a_unit_a_description_and_the_chosen_source() -> None:
    """And no two panels lie over each other."""
    cells: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        at = panel["gridPos"]
        covered = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not covered & cells, panel["title"]
        assert at["x"] + at["w"] <= 24
        cells |= covered
        if panel["type"] == "row":
            continue
        assert panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"]["unit"]
        sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
        assert all(one == {"type": "prometheus", "uid": "${datasource}"} for one in sources)
    ids = [panel["id"] for panel in dashboard()["panels"]]
    assert len(set(ids)) == len(ids)


def test_the_dashboard_is_found_where_grafana_looks() -> None:
    """By the provider, whose folder the readme and the compose file mount."""
    provisioning = OBSERVABILITY / "grafana" / "provisioning"
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "ts-stateful.yaml").read_text())[
        "providers"
    ]
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())[
        "datasources"
    ]
    assert provider["options"]["path"] in (OBSERVABILITY / "README.md").read_text()
    assert source["type"] == "prometheus"
    interval = yaml.safe_load((RULES / "prometheus.yml").read_text())["global"]["scrape_interval"]
    assert source["jsonData"]["timeInterval"] == interval


def test_alerts_at_once_differ_in_their_time_alone() -> None:
    """The copy for tests that cause them for real."""
    whole = (RULES / "alerts.yml").read_text()
    copy = yaml.safe_load(at_once(whole))["groups"][0]["rules"]
    assert [{**one, "for": "0s"} for one in rules("alerts.yml")] == copy
