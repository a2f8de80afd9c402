"""`tokloom bench serve URL`: load on any server that speaks OpenAI's API."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import attrs
import click
from rich.console import Console

from tokloom.bench.machine import describe
from tokloom.sdk import RequestError

_WORDS = (
    *("river", "stone", "light", "road", "winter", "garden", "letter", "music", "table", "window", "morning", "paper"),
    *("circle", "market", "silver", "engine", "bridge", "forest", "number", "answer", "summer", "method", "castle"),
)


@click.command("serve")
@click.argument("url")
@click.option("--api", type=click.Choice(["chat", "completions"]), default="chat", show_default=True)
@click.option("--model", help="[default: the first that the server lists]")
@click.option("--api-key-env", metavar="NAME", help="Environment variable with the server's key.")
@click.option("--clients", type=click.IntRange(1), default=8, show_default=True, help="Closed loop: so many at once.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="Open loop: so many requests a second (Poisson).")
@click.option("--requests", "count", type=click.IntRange(1), default=64, show_default=True)
@click.option("--warm-up", type=click.IntRange(0), default=4, show_default=True, help="Requests that do not count.")
@click.option("--input-words", type=click.IntRange(1), default=96, show_default=True)
@click.option("--shared-words", type=click.IntRange(0), default=0, show_default=True, help="First in every prompt.")
@click.option(
    "--prompts", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A text per line instead."
)
@click.option("--max-tokens", type=click.IntRange(1), default=64, show_default=True)
@click.option("--ignore-eos", is_flag=True, help="Ask for all of them; not every server takes it.")
@click.option("--temperature", type=float, default=0.0, show_default=True)
@click.option("--objective", "objectives", multiple=True, metavar="NAME=SECONDS", help="ttft, tpot, e2e; repeatable.")
@click.option("--timeout", type=float, default=300.0, show_default=True, help="Seconds without a byte.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--json", "out", type=click.Path(dir_okay=False, path_type=Path), help="Write all of it.")
@click.option("--plot", "picture", type=click.Path(dir_okay=False, path_type=Path), help="Write an SVG.")
def command(url: str, objectives: tuple[str, ...], out: Path | None, picture: Path | None, **options: Any) -> int:
    """Latencies, throughput and goodput of a server under load.

    Latency counts from the moment a request was to be sent. An interrupt reports what was measured until then.
    """
    try:
        from tokloom.bench.load.report import lines, plot, summarize, table
    except ModuleNotFoundError as error:
        raise RequestError(str(error), subject="bench serve", remedy="pip install 'tokloom[bench]'") from None
    limits = dict(_objective(text) for text in objectives)
    console = Console()
    seen: list[Any] = []
    lags: list[float] = []
    try:
        asyncio.run(_measure(url, options, seen, lags))
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("interrupted")
    summary = summarize(seen, limits, lags)
    console.print(table(summary))
    for line in lines(summary):
        console.print(line, highlight=False, soft_wrap=True)
    if out is not None:
        plain = {key: value for key, value in options.items() if not isinstance(value, Path)}
        everything = {"url": url, "options": plain, "machine": describe(), "summary": summary}
        out.write_text(json.dumps({**everything, "requests": [attrs.asdict(item) for item in seen]}, indent=1))
    if picture is not None:
        picture.write_text(plot(seen, url))
    return 0 if summary["succeeded"] else 1


def _objective(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0.0
    if name not in ("ttft", "tpot", "e2e") or not seconds > 0:
        raise click.BadParameter(f"{text!r}: expected ttft, tpot or e2e, =, and seconds", param_hint="--objective")
    return name, seconds


async def _measure(url: str, options: dict[str, Any], seen: list[Any], lags: list[float]) -> None:
    import httpx

    from tokloom.bench.load.arrivals import closed_loop, open_loop, watch_lag
    from tokloom.bench.load.client import Ask, Seen, run

    base = url.rstrip("/").removesuffix("/v1")
    key = _key(options["api_key_env"])
    headers = {"authorization": f"Bearer {key}"} if key else {}
    pool = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(base_url=base, headers=headers, timeout=options["timeout"], limits=pool) as http:
        model = options["model"] or await _first_model(http, url)
        total = options["warm_up"] + options["count"]
        path = "/v1/chat/completions" if options["api"] == "chat" else "/v1/completions"
        asks = [Ask(path=path, body=_body(options, model, text)) for text in _texts(options, total)]

        async def send(ask: Ask, intended: float) -> Seen:
            return await run(http, ask, intended)

        await closed_loop(asks[: options["warm_up"]], options["clients"], send, [])
        watch = asyncio.create_task(watch_lag(lags))
        try:
            rest = asks[options["warm_up"] :]
            if options["rate"] is None:
                await closed_loop(rest, options["clients"], send, seen)
            else:
                await open_loop(rest, options["rate"], options["seed"], send, seen)
        finally:
            watch.cancel()


def _key(name: str | None) -> str:
    import os

    if name is None:
        return ""
    key = os.environ.get(name, "")
    if not key:
        raise RequestError(f"the environment variable {name} is not set", remedy="Put the server's key there")
    return key


async def _first_model(http: Any, url: str) -> str:
    import httpx

    try:
        response = await http.get("/v1/models")
        response.raise_for_status()
        return str(response.json()["data"][0]["id"])
    except httpx.HTTPStatusError as error:
        raise RequestError(
            f"answers {error.response.status_code} to GET /v1/models",
            subject=url,
            remedy="Check the URL and --api-key-env, or name the model with --model",
        ) from None
    except httpx.HTTPError as error:
        raise RequestError(
            f"cannot be reached: {error or type(error).__name__}", subject=url, remedy="Check the URL"
        ) from None
    except (ValueError, LookupError, TypeError):
        raise RequestError("lists no models", subject=url, remedy="Name one with --model") from None


def _texts(options: dict[str, Any], total: int) -> list[str]:
    """Prompts; made ones differ from their first own word on."""
    if options["prompts"] is not None:
        lines = [line for line in options["prompts"].read_text(encoding="utf-8").splitlines() if line.strip()]
        if not lines:
            raise RequestError("has no text", subject=str(options["prompts"]), remedy="Write a prompt per line")
        return [lines[number % len(lines)] for number in range(total)]
    rng = random.Random(options["seed"])
    shared = [rng.choice(_WORDS) for _ in range(options["shared_words"])]
    own = max(1, options["input_words"] - len(shared))
    return [" ".join([*shared, str(number), *rng.choices(_WORDS, k=own - 1)]) for number in range(total)]


def _body(options: dict[str, Any], model: str, text: str) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": options["max_tokens"],
        "temperature": options["temperature"],
        "seed": options["seed"],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if options["ignore_eos"]:
        body["ignore_eos"] = True
    if options["api"] == "chat":
        return {**body, "messages": [{"role": "user", "content": text}]}
    return {**body, "prompt": text}
