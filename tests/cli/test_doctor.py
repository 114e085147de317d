"""`trawl doctor` says what works, row by row, and never fails because of what it finds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.llama.conftest import reply, serving, vectors
from trawl.doctor import examine
from trawl.llama.weights import embedded_missing
from trawl.settings import Settings

NOBODY = "http://127.0.0.1:9/v1"
EMBED, MODELS, RERANK = "/v1/embeddings", "/v1/models", "/v1/rerank"


def run(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    import os

    return subprocess.run(
        [sys.executable, "-c", "from trawl.cli import main; main()", "doctor", *args],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **env},
        check=False,
    )


def test_without_the_network_nothing_is_asked() -> None:
    done = run("--no-network", "--json", TRAWL_EMBED_URL=NOBODY)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [row["name"] for row in rows] == ["python", "settings", "browser", "store"]
    assert rows[0]["status"] == "ok"


def test_settings_are_named_wherever_they_come_from_and_without_their_values(tmp_path: Path) -> None:
    config = tmp_path / "env"
    config.write_text("TRAWL_EMBED_API_KEY=s3cret\n")
    done = run("--no-network", "--json", "--config", str(config), TRAWL_TIMEOUT="5")
    settings = json.loads(done.stdout)[1]["message"]
    assert "TRAWL_EMBED_API_KEY" in settings
    assert "TRAWL_TIMEOUT" in settings
    assert "s3cret" not in done.stdout


def test_a_store_that_is_a_folder_is_no_store(tmp_path: Path) -> None:
    done = run("--no-network", "--json", TRAWL_STORE_PATH=str(tmp_path))
    store = json.loads(done.stdout)[3]
    assert store["status"] == "warn"
    assert "cannot be written" in store["message"]


def test_rows_are_lines_on_a_terminal() -> None:
    done = run(TRAWL_EMBED_URL=NOBODY, TRAWL_EMBEDDED="0", TRAWL_RERANK_URL=NOBODY, TRAWL_VLM_URL=NOBODY)
    assert done.returncode == 1, "servers that were named are not there"
    lines = {line.split()[1]: line for line in done.stdout.splitlines()}
    assert lines["embeddings"].startswith("fail")
    assert f"{NOBODY} cannot be used (nobody answers" in lines["embeddings"]
    assert lines["reranker"].startswith("fail")
    assert lines["vision"].startswith("fail")
    assert lines["chat"].startswith("ok"), "nobody asked for one"


async def test_servers_are_named_with_model_dimension_and_latency() -> None:
    def reranks(body: object) -> bytes:
        documents = body["documents"]  # type: ignore[index]
        scores = [float("Cats eat" in text or "opened to" in text) for text in documents]
        return reply({"results": [{"index": i, "relevance_score": s} for i, s in enumerate(scores)]})

    routes = {EMBED: lambda b: reply(vectors(b)), MODELS: lambda _: reply({"data": [{"id": "m"}]}), RERANK: reranks}
    async with serving(routes) as fake:
        rows = await examine(Settings(embed_url=fake.url, rerank_url=fake.url, hyde_url=fake.url, vlm_url=fake.url))
    found = {row.name: row for row in rows}
    assert f"m on {fake.url}, as configured. 64 dimensions, " in found["embeddings"].message
    assert found["embeddings"].message.endswith(" ms for one text.")
    assert found["reranker"].message.endswith(" ms for one piece.")
    facts = found["embeddings"].detail
    assert (facts["endpoint"], facts["model"], facts["dimension"]) == (fake.url, "m", 64)
    assert facts["latency_ms"] > 0
    assert {row.status for row in rows if row.name != "browser"} == {"ok"}


async def test_a_store_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    rows = await examine(Settings(store_path=tmp_path / "file" / "store.sqlite3"), network=False)
    store = next(row for row in rows if row.name == "store")
    assert store.status == "warn"
    assert "TRAWL_STORE_PATH" in store.message


@pytest.mark.embedded
@pytest.mark.skipif(bool(embedded_missing()), reason=embedded_missing() or "there")
def test_the_embedded_server_is_started_and_named() -> None:
    done = run("--json", TRAWL_EMBED_URL=NOBODY)
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    assert (rows["embeddings"]["status"], done.returncode) == ("fail", 1), (
        "it only stands in for the one that was named"
    )
    assert "multilingual-e5-small in the embedded server" in rows["embeddings"]["message"]
    assert "384 dimensions" in rows["embeddings"]["message"]
