"""The dashboard and the table of docs/serving.md against what a running server's /metrics says.

usage: metrics_test.py DEEPINFER PROJECT_FOLDER
"""

import json
import re
import sys
import unittest
from pathlib import Path

from promql import Query
from scrape import Scrape, Server

PROGRAM, PROJECT = Path(sys.argv[1]), Path(sys.argv[2])
DASHBOARD = json.loads((PROJECT / "deploy/grafana/deepinfer.json").read_text())
TARGET_LABELS = {"instance", "job"}  # Prometheus adds them to every sample
COMMON_LABELS = {"model_name", "engine"}
ROWS = ["Load", "Latency", "Cache", "Memory", "Errors"]


def read_metrics():
    """After one request that is answered and one that is not, so that everything has been counted once."""
    server = Server(PROGRAM, PROJECT / "models/demo")
    ask = {"model": "demo", "messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 2}
    codes = [server.get("/v1/chat/completions", body)[0] for body in (json.dumps(ask).encode(), b"{")]
    code, page = server.get("/metrics")
    stopped = server.stop()[0]
    if codes + [code, stopped] != [200, 400, 200, 0]:
        raise RuntimeError(f"unexpected: statuses {codes} and {code}, exit code {stopped}")
    return Scrape(page)


SCRAPE = read_metrics()


def faults_of_matcher(selector, series):
    label, operator, value = selector
    if label in TARGET_LABELS:
        return []
    if any(label not in labels for labels in series):
        return [f"has no label {label}"]
    if "$" in value or operator in {"!=", "!~"}:
        return []
    pattern = value if operator == "=~" else re.escape(value)
    return [] if any(re.fullmatch(pattern, labels[label]) for labels in series) else [f"{label} is never {value}"]


def faults_of_selector(selector):
    family = SCRAPE.family(selector.metric)
    series = SCRAPE.samples.get(selector.metric)
    if family is None or series is None:
        return [f"{selector.metric} is not in /metrics"]
    faults = []
    for matcher in selector.matchers:
        faults += faults_of_matcher(matcher, series)
    for label in selector.grouped - TARGET_LABELS:
        if any(label not in labels for labels in series):
            faults.append(f"has no label {label}")
    counts = SCRAPE.kinds[family] != "gauge"
    rated = bool({"rate", "increase", "irate"} & set(selector.functions))
    if rated and not (counts and selector.ranged):
        faults.append("is rated, but is no counter over a range")
    if "histogram_quantile" in selector.functions and not (
            selector.metric.endswith("_bucket") and "le" in selector.grouped):
        faults.append("goes into histogram_quantile without being buckets by le")
    return [f"{selector.metric} {fault}" for fault in faults]


def faults_of_query(expression, legend=""):
    query = Query(expression)
    faults = [fault for selector in query.selectors for fault in faults_of_selector(selector)]
    if not query.selectors:
        faults.append("uses no metric")
    for label in re.findall(r"{{\s*(\w+)\s*}}", legend):
        for selector in query.selectors:
            series = SCRAPE.samples.get(selector.metric, [])
            there = selector.grouped if query.aggregated else TARGET_LABELS.union(*map(set, series))
            if label not in there:
                faults.append(f"{selector.metric}: the legend's {label} is aggregated away")
    return faults


class Dashboard(unittest.TestCase):
    def test_shape(self):
        self.assertGreaterEqual(DASHBOARD["schemaVersion"], 39)
        variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
        self.assertEqual(variables["datasource"]["type"], "datasource")
        self.assertEqual(variables["datasource"]["query"], "prometheus")
        panels = DASHBOARD["panels"]
        self.assertEqual(len({panel["id"] for panel in panels}), len(panels))
        self.assertEqual([panel["title"] for panel in panels if panel["type"] == "row"], ROWS)
        taken = set()
        for panel in panels:
            place = panel["gridPos"]
            cells = {(x, y) for x in range(place["x"], place["x"] + place["w"])
                     for y in range(place["y"], place["y"] + place["h"])}
            self.assertLessEqual(place["x"] + place["w"], 24)
            self.assertFalse(cells & taken, f"{panel['title']} lies on another panel")
            taken |= cells
            if panel["type"] != "row":
                self.assertEqual(panel["datasource"]["uid"], "${datasource}")
                self.assertTrue(panel["description"])
                self.assertTrue(panel["targets"])

    def test_variables_exist(self):
        known = {"__rate_interval", "__interval", "__range"}
        known |= {variable["name"] for variable in DASHBOARD["templating"]["list"]}
        for name in re.findall(r"\$(?:{(\w+)}|(\w+))", json.dumps(DASHBOARD["panels"])):
            self.assertIn(name[0] or name[1], known)

    def test_every_query_finds_its_metrics(self):
        count = 0
        for panel in DASHBOARD["panels"]:
            for target in panel.get("targets", []):
                with self.subTest(panel=panel["title"], query=target["expr"]):
                    self.assertEqual(faults_of_query(target["expr"], target["legendFormat"]), [])
                    count += 1
        self.assertGreater(count, 40)
        for variable in DASHBOARD["templating"]["list"]:
            if variable["type"] == "query":
                with self.subTest(variable=variable["name"]):
                    inside = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
                    self.assertEqual(faults_of_query(f"sum by ({inside[2]}) ({inside[1]})"), [])

    def test_wrong_queries_are_found(self):
        for expression, words in (
                ("deepinfer:blockz", "not in /metrics"),
                ("vllm:time_to_first_token_seconds", "not in /metrics"),
                ("sum(rate(deepinfer:steps[5m]))", "not in /metrics"),
                ("sum by (tag) (deepinfer:blocks)", "no label tag"),
                ("deepinfer:memory_bytes{kind='weights'}", "no label kind"),
                ("rate(deepinfer:refusals_total{reason=\"tired\"}[5m])", "never tired"),
                ("rate(http_requests_total{status=~\"9..\"}[5m])", "never 9.."),
                ("rate(deepinfer:blocks[5m])", "no counter"),
                ("histogram_quantile(0.5, sum(rate(vllm:time_to_first_token_seconds_bucket[5m])))", "by le"),
                ("1 + deepinfer:blocks / on (tag) deepinfer:memory_bytes", "deepinfer:blocks has no label tag")):
            self.assertTrue(any(words in fault for fault in faults_of_query(expression)), expression)
        self.assertTrue(faults_of_query("sum by (phase) (rate(deepinfer:steps_total[5m]))", "{{mode}}"))
        for expression in ("sum(", "deepinfer:blocks)", "a{b}", "deepinfer:blocks !"):
            with self.assertRaises(ValueError, msg=expression):
                Query(expression)


class Page(unittest.TestCase):
    """docs/serving.md: name, type, labels and meaning of every metric."""

    def test_the_table_is_what_the_server_says(self):
        written = {}
        for line in (PROJECT / "docs/serving.md").read_text().splitlines():
            row = re.fullmatch(r"\| `((?:vllm|deepinfer):\w+|http_\w+)` \| (\w+) \|(.*?)\| (.+) \|", line)
            if row:
                self.assertNotIn(row[1], written)
                written[row[1]] = (row[2], set(re.findall(r"`(\w+)`", row[3])))
        said = {}
        for family, kind in SCRAPE.kinds.items():
            sample = family + "_count" if kind == "histogram" else family
            said[family] = (kind, set(SCRAPE.samples[sample][0]) - COMMON_LABELS)
        self.assertEqual(written, said)

    def test_every_metric_has_help(self):
        self.assertEqual(set(SCRAPE.helps), set(SCRAPE.kinds))
        for sample in SCRAPE.samples:
            self.assertIsNotNone(SCRAPE.family(sample), sample)
            self.assertTrue(all(COMMON_LABELS <= set(labels) for labels in SCRAPE.samples[sample]), sample)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
