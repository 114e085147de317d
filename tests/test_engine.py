"""What a call promises when the web, the caller or the model misbehaves."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest

import trawl
from tests.replay import SlowFirstByte, bomb
from trawl.deadline import Deadline
from trawl.errors import EngineError, FetchError, GuardRefused, UsageError
from trawl.llama.weights import embedded_missing
from trawl.net.chromium import find_browser
from trawl.settings import Settings

WORDS = "The stove burns birch wood only, never pine, because pine leaves tar in the flue. "
SNOW = "Melt snow from the north side. "
PAGE = f"<title>Hut book</title><main><h1>Hut</h1><p>{WORDS * 3}</p><h2>Water</h2><p>{SNOW * 8}</p></main>"
SHELL = f"""<!doctype html><title>Shell</title><body><div id="root"></div>
<script>setTimeout(() => root.innerHTML = {json.dumps(PAGE)}, 200)</script></body>"""

needs_browser = pytest.mark.skipif(find_browser(Settings()) is None, reason="no Chromium on this machine")
needs_embedded = pytest.mark.skipif(bool(embedded_missing()), reason=embedded_missing())


def plain(**changes: object) -> Settings:
    return Settings(**{"embedded": False, "render": "never", **changes})  # type: ignore[arg-type]


@pytest.fixture
def engine(web):
    with trawl.Engine(plain(ca_file=web.ca_file), connect_to=web.connect_to) as engine:
        yield engine


# Pages


def test_a_question_brings_the_piece_with_its_heading_and_a_link(web, engine):
    web.add("https://hut.example.org/book", PAGE)
    result = engine.fetch_relevant("https://hut.example.org/book", "which wood may be burnt?")
    assert (result.outcome, result.error, result.page_title) == ("ok", None, "Hut")
    best = result.chunks[0]
    assert "birch" in best["text"]
    assert best["heading"] == "Hut"
    assert best["anchor"].startswith("https://hut.example.org/book#:~:text=The%20stove")


def test_every_span_is_a_literal_slice_of_the_document(web, engine):
    web.add("https://hut.example.org/book", PAGE)
    document = engine.fetch_document("https://hut.example.org/book")
    result = engine.fetch_relevant("https://hut.example.org/book", "water")
    assert result.document_id == document.document_id
    for piece in result.chunks:
        for start, end in piece["spans"]:
            assert document.source[start:end] in piece["text"]


def test_without_a_question_the_main_content_comes_in_order_and_more_goes_on(web, engine):
    paragraphs = [
        f"Paragraph number {i} tells of the weather on day {i}, which was fair and cold all over." for i in range(60)
    ]
    web.add(
        "https://hut.example.org/long", "<main><h1>Log</h1>" + "".join(f"<p>{p}</p>" for p in paragraphs) + "</main>"
    )
    result = engine.fetch_relevant("https://hut.example.org/long", max_tokens=400)
    texts = []
    for _ in range(30):
        assert result.tokens <= 400
        assert all(c["score"] is None for c in result.chunks)
        texts += [c["text"] for c in result.chunks]
        if result.more is None:
            break
        result = engine.more(result.more, max_tokens=400)
    read = "\n\n".join(texts)
    assert [p for p in paragraphs if p not in read] == []
    assert sorted(paragraphs, key=read.index) == paragraphs


def test_a_piece_larger_than_the_budget_is_read_on_where_it_was_cut(engine):
    words = [f"word{i}" for i in range(900)]
    result = engine.extract_relevant("<main><pre>" + "\n".join(words) + "</pre></main>", None, max_tokens=120)
    texts = []
    while True:
        assert 0 < result.tokens <= 120
        texts += [c["text"] for c in result.chunks]
        if result.more is None:
            break
        result = engine.more(result.more, max_tokens=120)
    assert [w for w in " ".join(texts).split() if w.startswith("word")] == words


@pytest.mark.parametrize("text", ["x" * 30_000, "界" * 9_000])
def test_a_run_without_any_end_is_cut_to_the_budget(engine, text):
    result = engine.extract_relevant(f"<main><p>{text}</p></main>", "what is it?", max_tokens=400)
    assert result.chunks
    assert result.tokens <= 400


def test_a_budget_too_small_for_anything_says_so(engine):
    result = engine.extract_relevant(PAGE, "which wood?", max_tokens=5)
    assert result.chunks == []
    assert any("max_tokens=5" in w for w in result.warnings)


def test_more_of_an_answer_repeats_nothing(web, engine):
    web.add(
        "https://hut.example.org/long",
        "<main>"
        + "".join(f"<h2>Day {i}</h2><p>{WORDS}</p><p>Day {i} had wind {i}.</p>" for i in range(40))
        + "</main>",
    )
    first = engine.fetch_relevant("https://hut.example.org/long", "wind on day 7", max_tokens=300)
    second = engine.more(first.more, max_tokens=300)
    assert second.chunks
    assert not {c["chunk_index"] for c in first.chunks} & {c["chunk_index"] for c in second.chunks}


def test_an_unknown_handle_says_what_to_do(engine):
    with pytest.raises(UsageError, match="Ask for the page again"):
        engine.more("nothing")


def test_several_questions_each_find_their_piece(web, engine):
    web.add("https://hut.example.org/book", PAGE)
    result = engine.fetch_relevant("https://hut.example.org/book", ["which wood?", "where is snow melted?"])
    text = " ".join(c["text"] for c in result.chunks)
    assert "birch" in text
    assert "north side" in text
    assert result.query == "which wood?; where is snow melted?"


@needs_browser
@pytest.mark.browser
def test_text_that_appears_after_its_script_has_run_answers_through_the_browser(web):
    web.add("https://hut.example.org/app", SHELL)
    with trawl.Engine(plain(ca_file=web.ca_file, render="auto"), connect_to=web.connect_to) as engine:
        result = engine.fetch_relevant("https://hut.example.org/app", "which wood?")
        assert (result.outcome, result.fetcher_used) == ("ok", "playwright+trafilatura")
        assert "birch" in result.chunks[0]["text"]


def test_the_same_page_unrendered_says_js_shell(web, engine):
    web.add("https://hut.example.org/app", SHELL)
    result = engine.fetch_relevant("https://hut.example.org/app", "which wood?", render="never")
    assert result.outcome == "js_shell"
    assert result.error


@needs_browser
@pytest.mark.browser
def test_a_page_that_is_complete_needs_no_browser(web):
    web.add("https://hut.example.org/book", PAGE)
    with trawl.Engine(plain(ca_file=web.ca_file, render="auto"), connect_to=web.connect_to) as engine:
        assert engine.fetch_relevant("https://hut.example.org/book", "wood?").fetcher_used == "http+trafilatura"


@pytest.mark.parametrize(
    ("url", "body", "content_type", "query", "expected", "used"),
    [
        (
            "https://x.example.org/a.json",
            '{"huts": [{"name": "Kestrel", "beds": 12}, {"name": "Grey", "beds": 4}]}',
            "application/json",
            "beds at Kestrel",
            "12",
            "passthrough",
        ),
        (
            "https://x.example.org/feed",
            '<?xml version="1.0"?><rss version="2.0"><channel><title>News</title><item><title>Storm</title>'
            "<description>Ridge closed on Friday</description></item></channel></rss>",
            "text/xml",
            "when was the ridge closed?",
            "Friday",
            "passthrough",
        ),
        (
            "https://x.example.org/a.md",
            "# Title\n\n## Keys\n\nThe key hangs behind the blue shutter.\n",
            "text/markdown",
            "where is the key?",
            "blue shutter",
            "passthrough",
        ),
        (
            "https://x.example.org/a.txt",
            "One line.\n\nThe boat leaves at nine.\n",
            "text/plain",
            "when does the boat leave?",
            "nine",
            "passthrough",
        ),
    ],
    ids=["json", "rss", "markdown", "text"],
)
def test_other_types_are_read_by_what_they_are(web, engine, url, body, content_type, query, expected, used):
    web.add(url, body, content_type=content_type)
    result = engine.fetch_relevant(url, query)
    assert (result.outcome, result.error, result.fetcher_used) == ("ok", None, used)
    assert result.path == "raw_passthrough"
    assert expected in result.chunks[0]["text"]


def pdf(*pages: str) -> bytes:
    import pymupdf

    document = pymupdf.open()
    for text in pages:
        document.new_page().insert_text((72, 72), text)
    data: bytes = document.tobytes()
    return data


def test_a_pdf_is_read_with_links_to_its_pages(web, engine):
    web.add(
        "https://x.example.org/report",
        pdf("Nothing of note here.", "The dam holds 31 million litres."),
        content_type="application/octet-stream",
    )
    result = engine.fetch_relevant("https://x.example.org/report", "how much does the dam hold?")
    assert (result.outcome, result.fetcher_used) == ("ok", "pdf")
    assert "31 million" in result.chunks[0]["text"]
    assert result.chunks[0]["anchor"].endswith("#page=2")


def test_a_picture_is_unsupported_and_says_so(web, engine):
    web.add("https://x.example.org/a.png", b"\x89PNG\r\n\x1a\n" + bytes(100), content_type="image/png")
    result = engine.fetch_relevant("https://x.example.org/a.png", "what is it?")
    assert result.outcome == "unsupported"
    assert "image/png" in result.error
    assert result.chunks == []


def test_an_error_page_is_not_given_as_content(web, engine):
    web.add("https://x.example.org/gone", PAGE, status=404)
    result = engine.fetch_relevant("https://x.example.org/gone", "which wood?")
    assert (result.outcome, result.status, result.chunks) == ("http_error", 404, [])
    assert "404" in result.error


# The guard, through the whole engine


def test_permission_of_one_engine_serves_no_other(web):
    url = f"http://127.0.0.1:{web.http_port}/"
    web.add(url, PAGE)
    with trawl.Engine(plain(), allow_private=[f"127.0.0.1:{web.http_port}"]) as allowed, trawl.Engine(plain()) as other:
        assert allowed.fetch_relevant(url, "wood?").outcome == "ok"
        before = len(web.requests)
        refused = other.fetch_relevant(url, "wood?")
        assert refused.outcome == "refused"
        assert "loopback" in refused.error
        assert trawl.fetch_relevant(url, "wood?").outcome == "refused"
        assert len(web.requests) == before


@needs_browser
@pytest.mark.browser
def test_permission_serves_no_other_engine_in_the_browser_either(web):
    url = f"http://127.0.0.1:{web.http_port}/"
    web.add(url, SHELL)
    with (
        trawl.Engine(plain(render="always"), allow_private=[f"127.0.0.1:{web.http_port}"]) as allowed,
        trawl.Engine(plain(render="always")) as other,
    ):
        assert allowed.fetch_relevant(url, "wood?").outcome == "ok"
        before = len(web.requests)
        assert other.fetch_relevant(url, "wood?").outcome == "refused"
        assert len(web.requests) == before


def test_a_redirect_to_a_private_address_is_refused(web, engine):
    web.redirect("https://x.example.org/r", f"http://127.0.0.1:{web.http_port}/secret")
    result = engine.fetch_relevant("https://x.example.org/r", "q")
    assert result.outcome == "refused"
    assert not any("secret" in r.url for r in web.requests)


def test_nothing_in_the_environment_opens_the_guard(monkeypatch, web):
    for name in ("TRAWL_ALLOW_PRIVATE", "TRAWL_CONNECT_TO", "ALLOW_PRIVATE", "HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{web.http_port}")
    with trawl.Engine(Settings.from_env().model_copy(update={"embedded": False, "render": "never"})) as engine:
        assert engine.fetch_relevant(f"http://127.0.0.1:{web.http_port}/", "q").outcome == "refused"
    assert web.requests == []


# Bad input and bad servers


@pytest.mark.parametrize("wrong", [None, 5, "", "  "])
def test_a_url_that_is_none_raises(engine, wrong):
    with pytest.raises(UsageError):
        engine.fetch_relevant(wrong, "q")


def test_an_unknown_option_raises_as_python_does(engine):
    with pytest.raises(TypeError):
        engine.fetch_relevant("https://x.example.org/", "q", no_such_option=1)


@pytest.mark.parametrize(
    "url",
    [
        "not a url",
        "ftp://x.example.org/",
        "file:///etc/passwd",
        "https://",
        "javascript:alert(1)",
        "http://[::1",
        "x.example.org",
    ],
)
def test_what_is_no_web_url_is_refused_with_a_reason(engine, url):
    result = engine.fetch_relevant(url, "q")
    assert result.outcome == "refused"
    assert result.error.startswith("guard: ")


def test_a_slow_server_ends_with_the_deadline(web, engine):
    web.add("https://x.example.org/slow", PAGE, fault=SlowFirstByte(30))
    result = engine.fetch_relevant("https://x.example.org/slow", "q", timeout=1)
    assert result.outcome == "network_error"
    assert "timeout" in result.error
    assert result.total_ms < 3000


def test_secrets_in_a_url_stay_out_of_the_error(web, engine):
    result = engine.fetch_relevant("https://user:sesame@x.example.org/?token=opensesame", "q")
    assert result.outcome == "refused"
    assert "sesame" not in result.error
    missing = engine.fetch_relevant("https://127.0.0.1/?token=opensesame", "q")
    assert "opensesame" not in missing.error


def test_content_of_another_type_is_told_by_its_own_name(engine):
    data = engine.extract_relevant('{"beds": 12}', "how many beds?", content_type="application/json")
    assert (data.fetcher_used, data.path) == ("passthrough", "raw_passthrough")
    page = engine.extract_relevant(PAGE, "which wood?")
    assert (page.fetcher_used, page.path) == ("local+trafilatura", "full_page_retrieval")


@pytest.mark.parametrize("content", ["", b"", "   ", b"\x00" * 5000, "<html></html>", "<p>" * 20000])
def test_content_without_text_is_told_not_raised(engine, content):
    result = engine.extract_relevant(content, "what?")
    assert result.chunks == []
    assert result.outcome in ("empty", "unsupported", "js_shell")


def test_content_of_a_wrong_type_raises(engine):
    with pytest.raises(UsageError, match="content"):
        engine.extract_relevant(5, "q")
    for wrong in ({"url": 5}, {"content_type": None}, {"status": "a"}, {"status": 7}):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            engine.extract_relevant("<p>words</p>", "q", **wrong)
    with pytest.raises(UsageError, match="url"):
        trawl.extract("<p>words</p>", url=5)
    with pytest.raises(UsageError, match="settings"):
        trawl.Engine(settings={})


def test_a_closed_engine_says_so():
    engine = trawl.Engine(plain())
    engine.close()
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        engine.fetch_relevant("https://x.example.org/", "q")


def test_a_fault_of_ours_is_told_not_raised(web, engine, monkeypatch, caplog):
    web.add("https://x.example.org/", PAGE)
    monkeypatch.setattr("trawl.pipeline.chunk_document", lambda document: 1 / 0)
    result = engine.fetch_relevant("https://x.example.org/", "q")
    assert result.outcome == "internal_error"
    assert result.error.startswith("internal error (ZeroDivisionError)")
    assert "ZeroDivisionError" in caplog.text


def test_documents_raise_typed_errors(web, engine):
    with pytest.raises(GuardRefused):
        engine.fetch_document("http://localhost/")
    web.add("https://x.example.org/gone", PAGE, status=404)
    with pytest.raises(FetchError, match="status 404"):
        engine.fetch_document("https://x.example.org/gone")


def test_bombs_end_as_truncated_with_little_memory(web):
    """A small answer that decodes to 1 GB: the process grows by less than 100 MB."""
    size = 2**30
    for name, codings in {"br": ("br",), "zstd": ("zstd",), "gzip": ("gzip",), "twice": ("gzip", "gzip")}.items():
        web.add(
            f"http://x.example.org/{name}",
            bomb(size, *codings),
            content_type="text/html",
            headers={"Content-Encoding": ", ".join(codings)},
        )
    script = textwrap.dedent("""
        import json, os, resource, sys, trawl
        table = {(h, p): (t, q) for h, p, t, q in json.loads(sys.argv[1])}
        with trawl.Engine(trawl.Settings(embedded=False, render="never"), connect_to=table) as engine:
            engine.extract_relevant("<p>Some words to load every library before measuring.</p>", "words")
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            for name in ("br", "zstd", "gzip", "twice"):
                r = engine.fetch_relevant(f"http://x.example.org/{name}", "q")
                grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
                print(name, r.outcome, r.truncated, r.error, grown)
    """)
    table = json.dumps([[*key, *value] for key, value in web.connect_to_table().items()])
    out = subprocess.run(
        [sys.executable, "-c", script, table], capture_output=True, text=True, timeout=100, check=True
    ).stdout
    rows = {line.split()[0]: line.split() for line in out.splitlines()}
    assert set(rows) == {"br", "zstd", "gzip", "twice"}
    for name, row in rows.items():
        assert row[1] in ("truncated", "empty", "network_error"), out
        assert name == "twice" or row[2] == "True", out
        assert int(row[-1]) < 100, out


# The model


LONG_PAGE = "<main>" + "".join(f"<h2>Day {i}</h2><p>{WORDS * 4} {i}</p>" for i in range(100)) + "</main>"


@pytest.fixture
async def own_model(tmp_path):
    """An engine whose embedded server nobody else uses, so that it may be killed; and who it is."""
    settings = Settings.from_env().model_copy(update={"timeout": 100.0, "runtime_dir": tmp_path, "embed_cache_ttl": 0})
    async with trawl.AsyncEngine(settings) as engine:

        async def pid() -> int:
            opened = await engine._services().models.embedder.get(Deadline.after(100))
            assert opened.backend is not None, opened.reason
            return opened.backend.endpoint.lease.pid

        yield engine, pid


@needs_embedded
@pytest.mark.embedded
async def test_a_model_server_killed_in_the_middle_of_a_batch_is_replaced_once_and_then_words_do(own_model):
    engine, pid = own_model
    modes = []
    for _ in range(2):
        server = await pid()
        call = asyncio.create_task(engine.extract_relevant(LONG_PAGE, "which wood on day 7?"))
        await asyncio.sleep(1.0)
        assert not call.done()
        os.kill(server, signal.SIGKILL)
        result = await asyncio.wait_for(call, 60)
        assert result.error is None
        assert result.chunks
        modes.append(result.retrieval_diagnostics["mode"])
    assert modes == ["hybrid", "bm25_fallback"]
    assert any("lexical" in w and "crashed" in w for w in result.warnings)


@needs_embedded
@pytest.mark.embedded
async def test_a_call_that_runs_out_of_time_takes_the_model_from_no_other(own_model):
    engine, pid = own_model
    server = await pid()
    patient, hasty = await asyncio.gather(
        engine.extract_relevant(LONG_PAGE, "which wood on day 7?"),
        engine.extract_relevant(LONG_PAGE, "which wood on day 8?", timeout=2),
    )
    assert hasty.retrieval_diagnostics["mode"] == "bm25_fallback"
    assert patient.retrieval_diagnostics["mode"] == "hybrid"
    assert await pid() == server


def test_without_a_model_the_result_says_that_it_ranked_by_words(engine):
    result = engine.extract_relevant(PAGE, "which wood?")
    assert result.retrieval_diagnostics == {"mode": "bm25_fallback"}
    assert any("lexical" in w for w in result.warnings)
    assert not result.rerank_used


def test_hyde_without_a_utility_model_is_told(engine):
    result = engine.extract_relevant(PAGE, "which wood?", use_hyde=True)
    assert not result.hyde_used
    assert any("use_hyde" in w for w in result.warnings)
