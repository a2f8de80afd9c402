"""What many requests say together: percentiles, throughput, goodput; as a table, as JSON, as a plot."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.table import Table

from tokloom.bench.load.client import Seen

PERCENTS: Final = (50, 90, 95, 99)
#: name -> what it is; seconds
LATENCIES: Final = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "itl": "between chunks",
    "e2e": "whole answer",
}


def percentile(values: Sequence[float], percent: float) -> float:
    """By linear interpolation between closest ranks, as numpy's default; NaN of nothing."""
    if not values:
        return math.nan
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def latencies(seen: Sequence[Seen]) -> dict[str, list[float]]:
    """All samples by name, of requests without an error."""
    good = [item for item in seen if not item.error]
    return {
        "ttft": [item.ttft for item in good],
        "tpot": [item.tpot for item in good if item.tpot is not None],
        "itl": [gap for item in good for gap in item.gaps],
        "e2e": [item.e2e for item in good],
    }


def meets(item: Seen, objectives: Mapping[str, float]) -> bool:
    """Whether a request kept every objective (`ttft`, `tpot`, `e2e`; seconds). A single token has no `tpot` to miss."""
    if item.error:
        return False
    found = {"ttft": item.ttft, "tpot": item.tpot or 0.0, "e2e": item.e2e}
    return all(found[name] <= limit for name, limit in objectives.items())


def summarize(seen: Sequence[Seen], objectives: Mapping[str, float], lags: Sequence[float]) -> dict[str, Any]:
    """Numbers of a run. `lags`: by how much the client's own loop was late, seconds."""
    good = [item for item in seen if not item.error]
    begun = min((item.intended for item in seen), default=0.0)
    span = max((item.ended for item in seen), default=0.0) - begun
    output = sum(item.output_tokens for item in good)
    prompt = sum(item.prompt_tokens for item in good)
    met = sum(meets(item, objectives) for item in seen)

    def rate(count: float) -> float:
        return count / span if span > 0 else 0.0

    samples = latencies(seen)
    return {
        "requests": len(seen),
        "succeeded": len(good),
        "errors": dict(Counter(item.error for item in seen if item.error)),
        "seconds": span,
        "requests_per_second": rate(len(good)),
        "output_tokens": output,
        "prompt_tokens": prompt,
        "output_tokens_per_second": rate(output),
        "total_tokens_per_second": rate(output + prompt),
        "tokens_counted_by": "chunks" if any(item.counted for item in good) else "server",
        "objectives": dict(objectives),
        "met": met,
        "goodput_requests_per_second": rate(met),
        "client_lag_p99": percentile(lags, 99),
        "latency": {
            name: {
                "mean": sum(values) / len(values) if values else math.nan,
                **{f"p{percent}": percentile(values, percent) for percent in PERCENTS},
            }
            for name, values in samples.items()
        },
    }


def table(summary: Mapping[str, Any]) -> Table:
    """For people."""
    made = Table(title=f"{summary['succeeded']} of {summary['requests']} requests in {summary['seconds']:.1f} s")
    made.add_column("seconds")
    for name in ("mean", *(f"p{percent}" for percent in PERCENTS)):
        made.add_column(name, justify="right")
    for name, text in LATENCIES.items():
        row = summary["latency"][name]
        made.add_row(text, *(f"{value:.4f}" for value in row.values()))
    return made


def lines(summary: Mapping[str, Any]) -> list[str]:
    """What stands below the table."""
    said = [
        f"{summary['requests_per_second']:.2f} requests/s, {summary['output_tokens_per_second']:.1f} output tokens/s, "
        f"{summary['total_tokens_per_second']:.1f} tokens/s with prompts (counted by {summary['tokens_counted_by']})"
    ]
    if summary["objectives"]:
        wanted = ", ".join(f"{name} <= {limit:g} s" for name, limit in summary["objectives"].items())
        share = summary["met"] / max(1, summary["requests"])
        said.append(f"goodput at {wanted}: {summary['goodput_requests_per_second']:.2f} requests/s ({share:.1%})")
    if summary["errors"]:
        said.append("errors: " + ", ".join(f"{count} x {kind}" for kind, count in summary["errors"].items()))
    if summary["client_lag_p99"] > 0.02:
        said.append(f"this client was late by {summary['client_lag_p99']:.3f} s (p99): it is part of what was measured")
    return said


def plot(seen: Sequence[Seen], title: str) -> str:
    """An SVG: for each latency, the share of samples up to a time."""
    samples = latencies(seen)
    width, height, left, top = 300, 180, 50, 50
    parts = []
    for number, (name, text) in enumerate(LATENCIES.items()):
        x, y = left + number % 2 * (width + 70), top + number // 2 * (height + 70)
        values = sorted(samples[name])
        longest = max(values, default=0.0) or 1.0
        points = "".join(
            f" L{x + value / longest * width:.1f},{y + height - (rank + 1) / len(values) * height:.1f}"
            for rank, value in enumerate(values)
        )
        parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="none" stroke="#888"/>'
            f'<path d="M{x},{y + height}{points}" fill="none" stroke="#06c" stroke-width="2"/>'
            f'<text x="{x}" y="{y - 6}">{text}</text>'
            f'<text x="{x}" y="{y + height + 16}">0</text>'
            f'<text x="{x + width}" y="{y + height + 16}" text-anchor="end">{longest:.3g} s</text>'
        )
    size = f'width="{2 * width + 180}" height="{2 * height + 200}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">'
        '<rect width="100%" height="100%" fill="white"/>'
        f'<text x="{left}" y="24" font-size="15">{_escaped(title)}</text>' + "".join(parts) + "</svg>\n"
    )


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")
