"""Goal: alerts and the dashboard ask for metrics that epd has, and each alert fires when its time has come and says where to read on."""

import json
import pathlib
import re
import subprocess

import pytest
import yaml

_DEPLOY = pathlib.Path(__file__).resolve().parent
_RULES = _DEPLOY / "prometheus" / "epd.rules.yml"
_NAME = re.compile(r"\bepd_\w+")
# What a histogram's name becomes in a query.
_SUFFIX = re.compile(r"(?<=_seconds)_(bucket|sum|count)$")


def _rows() -> dict[str, set[str]]:
    """Name of each metric of metrics.md -> the alerts that it says use it."""
    rows = {}
    for line in (_DEPLOY / "metrics.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == 8 and cells[1].startswith("`epd_"):
            rows[cells[1].strip("`")] = {alert for alert in cells[6].split(", ") if alert}
    return rows


def _rules() -> list[dict]:
    return yaml.safe_load(_RULES.read_text())["groups"][0]["rules"]


def _used(query: str) -> set[str]:
    return {_SUFFIX.sub("", name) for name in _NAME.findall(query)}


def _queries() -> list[str]:
    dashboard = json.loads((_DEPLOY / "grafana" / "epd.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    return queries + [variable["query"] for variable in dashboard["templating"]["list"]]


def test_every_query_names_a_metric_that_there_is():
    known = set(_rows())
    assert len(known) > 30
    for query in [*_queries(), *(rule["expr"] for rule in _rules())]:
        assert _used(query) <= known, query


def test_metrics_md_says_which_alert_uses_which_metric():
    told = {(metric, alert) for metric, alerts in _rows().items() for alert in alerts}
    for metric, alert in told:
        rule = next((rule for rule in _rules() if rule["alert"] == alert), None)
        assert rule is not None, f"{metric}: no alert {alert}"
        assert metric in _used(rule["expr"]), f"{alert} does not look at {metric}"
    assert {alert for _, alert in told} == {rule["alert"] for rule in _rules()}


def test_every_alert_links_a_place_of_the_runbook():
    runbook = (_DEPLOY / "runbook.md").read_text()
    for rule in _rules():
        place = rule["annotations"]["runbook"].removeprefix("deploy/runbook.md: ")
        assert f"## {place}\n" in runbook or f"**{place}" in runbook, rule["alert"]


# Alert -> series, as promtool writes them, from which it follows, and after how long.
_CAUSES = {
    "EpdAbsent": ({'up{job="epd"}': "0x10"}, "2m"),
    "EpdUnhealthy": ({'epd_health{state="unhealthy"}': "1x10"}, "2m"),
    "EpdDegraded": ({'epd_health{state="degraded"}': "1x10"}, "6m"),
    "EpdFiguresStale": ({"epd_figures_age_seconds": "20+60x10"}, "2m"),
    "EpdRankAwaited": ({'epd_rank_awaited_seconds{group="g",rank="3"}': "5+60x10"}, "2m"),
    "EpdRankLags": ({'epd_rank_waited_for_seconds_total{group="g",rank="3"}': "0+60x30"}, "20m"),
    "EpdGroupNotReady": ({'epd_group_ready{group="g"}': "0x10"}, "6m"),
    "EpdGroupsReform": ({'epd_group_transitions_total{event="worker_lost"}': "0+2x10"}, "8m"),
    "EpdOperationsFail": ({'epd_operations_total{outcome="ABORTED"}': "0+1x10"}, "3m"),
    "EpdRowsDropped": ({'epd_group_dropped_rows_total{group="g"}': "0+9x10"}, "3m"),
    "EpdExpertsUnbalanced": ({'epd_expert_imbalance_ratio{group="g"}': "7x60"}, "40m"),
    "EpdStagingWaits": (
        {
            'epd_operation_phase_seconds_bucket{phase="admit",le="0.1"}': "0x20",
            'epd_operation_phase_seconds_bucket{phase="admit",le="1"}': "0+9x20",
            'epd_operation_phase_seconds_bucket{phase="admit",le="+Inf"}': "0+9x20",
        },
        "12m",
    ),
    "EpdStagingFull": ({"epd_staging_peak_bytes": "99x5", "epd_staging_pool_bytes": "100x5"}, "2m"),
    "EpdStagingQuarantined": ({'epd_staging_group_quarantined_bytes{group="g"}': "8x20"}, "12m"),
    "EpdWorkerDown": ({'epd_worker_up{worker="cpu"}': "0x5"}, "2m"),
    "EpdWorkerSilent": ({"epd_workers_stale": "1x5"}, "2m"),
    "EpdWorkerRestarts": ({'epd_worker_restarts_total{cause="signal_9"}': "0 1 1 1"}, "3m"),
    "EpdNoCoordinator": ({"epd_coordinator_connected": "0x5"}, "2m"),
    "EpdCertificateEnds": ({"epd_certificate_left_seconds": "86400x5"}, "2m"),
    "EpdNearLimit": (
        {
            'epd_limit_used{setting="max_groups"}': "95x5",
            'epd_limit{setting="max_groups"}': "100x5",
        },
        "2m",
    ),
}


def _promtool(*args: str) -> None:
    ended = subprocess.run(["promtool", *args], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_prometheus_takes_the_rules():
    _promtool("check", "rules", str(_RULES))


def test_every_alert_has_a_cause_here():
    assert set(_CAUSES) == {rule["alert"] for rule in _rules()}


@pytest.mark.parametrize("alert", _CAUSES)
def test_an_alert_fires_on_its_cause_alone(tmp_path, alert):
    series, after = _CAUSES[alert]
    query = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) or vector(0)'

    def case(name: str, values: dict[str, str], firing: int) -> dict:
        alive = {"series": "epd_up_seconds", "values": "1+60x60"}
        given = [{"series": s, "values": v} for s, v in values.items()]
        expected = [{"labels": "{}", "value": firing}]
        return {
            "name": name,
            "interval": "1m",
            "input_series": [alive, *given],
            "promql_expr_test": [{"expr": query, "eval_time": after, "exp_samples": expected}],
        }

    tests = [case("with its cause", series, 1), case("without", {}, 0)]
    file = tmp_path / "test.yml"
    file.write_text(
        yaml.safe_dump({"rule_files": [str(_RULES)], "evaluation_interval": "1m", "tests": tests})
    )
    _promtool("test", "rules", str(file))
