"""What one tenant sends, another cannot find out: answers with other salts say nothing of its cached prefixes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from served import CHAT, TEXT, Served, serving
from tiny_chat import SETS

from tokloom.api import AsyncEngine

SECRET = "the password of the vault is " + "swordfish and tuna, " * 4


@pytest.fixture(scope="module")
def served(model: Path) -> Iterator[Served]:
    async def load() -> AsyncEngine:
        return await AsyncEngine.from_profile(model=str(model), sets=(*SETS, "engine.page_tokens=16"))

    with serving(load) as server:
        yield server


def cached(served: Served, path: str, salt: str, text: str = SECRET) -> int:
    """Prompt tokens that the answer says were in the cache."""
    text = f"{path} {text}"  # what is said without a salt is everybody's
    asked: dict[str, dict[str, Any]] = {
        CHAT: {"messages": [{"role": "user", "content": text}], "max_tokens": 1},
        TEXT: {"prompt": text, "max_tokens": 1},
        "/v1/responses": {"input": text, "max_output_tokens": 1},
    }
    answer = served.post(path, {**asked[path], **({"cache_salt": salt} if salt else {})})
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]
    details = usage.get("prompt_tokens_details") or usage["input_tokens_details"]
    found: int = details["cached_tokens"]
    return found


@pytest.mark.parametrize("path", [CHAT, TEXT, "/v1/responses"])
def test_only_the_same_salt_hits(served: Served, path: str) -> None:
    mine, other = f"alice of {path}", f"bob of {path}"
    assert cached(served, path, mine) == 0
    assert cached(served, path, mine) > 60
    assert cached(served, path, other) == 0
    assert cached(served, path, mine + " ") == 0
    assert cached(served, path, "") == 0


@pytest.mark.parametrize("path", [CHAT, TEXT, "/v1/responses"])
def test_guesses_of_another_tenants_prompt_look_all_the_same(served: Served, path: str) -> None:
    cached(served, path, f"victim of {path}")
    right = [SECRET[:size] for size in range(40, len(SECRET), 32)]
    wrong = ["x" + guess[1:] for guess in right]
    for number, (hit, miss) in enumerate(zip(right, wrong, strict=True)):
        assert cached(served, path, f"guess {number} of {path}", hit) == 0
        assert cached(served, path, f"other guess {number} of {path}", miss) == 0
