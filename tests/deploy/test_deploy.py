"""What deploy/ says is what the server has: metrics, options, paths, times."""

import json
import re
from pathlib import Path
from typing import Any

import attrs
import pytest

from tokloom.serve.http.config import ServeSection, option_names

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
pytest.importorskip("prometheus_client", reason="prometheus-client is not installed")

from tokloom.plugins.observe.prometheus.metrics import Metrics  # noqa: E402

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
#: what an operator looks at first
IMPORTANT = {
    "tokloom_time_to_first_token_seconds",
    "tokloom_inter_token_seconds",
    "tokloom_time_per_output_token_seconds",
    "tokloom_queue_seconds",
    "tokloom_generated_tokens_total",
    "tokloom_prefill_tokens_total",
    "tokloom_running_sequences",
    "tokloom_waiting_sequences",
    "tokloom_kv_pages_held",
    "tokloom_prefix_hit_tokens_total",
    "tokloom_preemptions_total",
    "tokloom_rejected_requests_total",
    "tokloom_plugin_faults_total",
    "tokloom_objectives_total",
}


def exported() -> dict[str, set[str]]:
    """Sample names -> labels."""
    found: dict[str, set[str]] = {}
    for name, metric in vars(Metrics()).items():
        if name == "registry":
            continue
        (family,) = metric.describe()
        labels = set(metric._labelnames)
        if family.type == "histogram":
            found |= {f"{family.name}_{part}": labels for part in ("sum", "count")}
            found[f"{family.name}_bucket"] = labels | {"le"}
        else:
            found[family.name + ("_total" if family.type == "counter" else "")] = labels
    return found


def container() -> dict[str, Any]:
    documents = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text(encoding="utf-8")))
    kinds = {document["kind"]: document for document in documents}
    assert set(kinds) == {"Service", "Deployment"}
    pod = kinds["Deployment"]["spec"]["template"]
    assert kinds["Service"]["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert kinds["Deployment"]["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    found: dict[str, Any] = {**pod["spec"]["containers"][0], "pod": pod["spec"]}
    return found


def test_the_dashboard_asks_for_what_is_exported() -> None:
    board = json.loads((DEPLOY / "grafana.json").read_text(encoding="utf-8"))
    known = exported()
    asked: set[str] = set()
    for panel in board["panels"]:
        for target in panel["targets"]:
            query = target["expr"]
            assert query.count("(") == query.count(")"), query
            names = re.findall(r"tokloom_[a-z_]+", query)
            assert names, query
            asked |= set(names)
            labels = set(re.findall(r"by \(([a-z_, ]+)\)", query))
            for label in {item.strip() for group in labels for item in group.split(",")}:
                assert all(label in known[name] for name in names), (label, names)
    assert asked <= set(known)
    assert {re.sub("_(bucket|sum|count)$", "", name) for name in asked} >= IMPORTANT
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]]
    assert len(set(places)) == len(places)


def test_the_pod_has_options_probes_and_time_to_drain() -> None:
    found = container()
    options = {*option_names().values(), "--model", "--api-key-env"}
    given = [argument for argument in found["args"] if argument.startswith("--")]
    assert set(given) <= options
    assert found["readinessProbe"]["httpGet"]["path"] == "/ready"
    assert found["livenessProbe"]["httpGet"]["path"] == found["startupProbe"]["httpGet"]["path"] == "/health"
    drain = float(found["args"][found["args"].index("--drain-seconds") + 1])
    pause = float(found["lifecycle"]["preStop"]["exec"]["command"][1])
    assert found["pod"]["terminationGracePeriodSeconds"] > drain + pause
    assert found["securityContext"]["capabilities"]["drop"] == ["ALL"]
    assert found["env"][0]["name"] == found["args"][found["args"].index("--api-key-env") + 1]


def test_the_container_installs_extras_that_exist_and_listens_where_it_says() -> None:
    import tomllib

    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    (named,) = re.findall(r'"\.\[([a-z,]+)\]"', text)
    assert set(named.split(",")) <= set(extras)
    (command,) = re.findall(r"^ENTRYPOINT (.*)$", text, re.MULTILINE)
    entry = json.loads(command)
    assert entry[:2] == ["tokloom", "serve"]
    assert set(entry[2::2]) <= set(option_names().values())
    port = entry[entry.index("--port") + 1]
    assert f"EXPOSE {port}\n" in text
    assert f"127.0.0.1:{port}/health" in text
    assert attrs.fields_dict(ServeSection)["port"].default == int(port)
    assert re.search(r"^USER \d+$", text, re.MULTILINE)


def test_the_scrape_names_the_path() -> None:
    (job,) = yaml.safe_load((DEPLOY / "prometheus.yml").read_text(encoding="utf-8"))["scrape_configs"]
    assert job["metrics_path"] == "/metrics"
