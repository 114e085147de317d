"""The command line: what it prints, where, and its exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from trawl.cli.ask import exit_code, print_result
from trawl.cli.common import INTERNAL, NETWORK, NOTHING, OK, REFUSED
from trawl.types import PipelineResult

PAGE = "<title>Hut</title><main><h1>Hut</h1><h2>Wood</h2><p>" + "The stove burns birch wood only. " * 6 + "</p></main>"


def trawl(*args: str, stdin: bytes = b"", **env: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-c", "from trawl.cli import main; main()", *args],
        input=stdin,
        capture_output=True,
        timeout=60,
        check=False,
        # Nobody listens on port 9; on the default port somebody's own server may.
        env={
            **os.environ,
            "TRAWL_EMBED_URL": "http://127.0.0.1:9/v1",
            "TRAWL_EMBEDDED": "0",
            "TRAWL_RENDER": "never",
            **env,
        },
    )


@pytest.fixture
def hut(web):
    web.add(f"http://127.0.0.1:{web.http_port}/", PAGE)
    web.add(f"http://127.0.0.1:{web.http_port}/gone", PAGE, status=410)
    return f"http://127.0.0.1:{web.http_port}"


def test_a_question_prints_heading_text_and_link(hut):
    run = trawl(f"{hut}/", "which wood?", "--allow-private", "127.0.0.1")
    assert run.returncode == 0, run.stderr
    out = run.stdout.decode()
    assert "[Hut > Wood]" in out
    assert "birch wood" in out
    assert f"{hut}/#:~:text=The%20stove" in out
    assert b"lexical" in run.stderr, "warnings go to standard error"


def test_json_is_the_whole_result(hut):
    run = trawl(f"{hut}/", "which wood?", "--allow-private", "127.0.0.1", "--json")
    result = json.loads(run.stdout)
    assert result["outcome"] == "ok"
    assert set(PipelineResult("", "").__dict__) <= set(result)
    assert result["output_chars"] == sum(c["char_count"] for c in result["chunks"])


def test_markdown_has_headings_and_links(hut):
    out = trawl(f"{hut}/", "which wood?", "--allow-private", "127.0.0.1", "--markdown").stdout.decode()
    assert out.startswith("## Hut > Wood\n\nThe stove")
    assert f"<{hut}/#" in out


def test_options_may_come_first(hut):
    run = trawl("--json", "--allow-private", "127.0.0.1", f"{hut}/", "which wood?")
    assert json.loads(run.stdout)["outcome"] == "ok"


def test_exit_codes_tell_what_happened(hut):
    assert trawl(f"{hut}/gone", "q", "--allow-private", "127.0.0.1").returncode == 1
    assert trawl().returncode == 2
    assert trawl("https://x.example.org/", "q", "--render", "perhaps").returncode == 2
    assert trawl("https://x.example.org/", "q", "-k", "0").returncode == 2
    assert trawl(f"{hut}/", "q").returncode == 3
    assert trawl("http://127.0.0.1:9/", "q", "--allow-private", "127.0.0.1:9").returncode == 4


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"chunks": [{"char_count": 1}]}, OK),
        ({"chunks": [{"char_count": 1}], "outcome": "truncated"}, OK),
        ({"chunks": []}, NOTHING),
        ({"chunks": [{"char_count": 1}], "outcome": "paywall"}, NOTHING),
        ({"outcome": "blocked"}, NOTHING),
        ({"outcome": "refused"}, REFUSED),
        ({"outcome": "network_error", "error": "fetch: no"}, NETWORK),
        ({"outcome": "internal_error", "error": "internal error (KeyError)"}, INTERNAL),
    ],
)
def test_every_outcome_has_its_code(fields, code):
    assert exit_code(PipelineResult("u", "q", **fields)) == code


def test_a_local_file_is_read_with_the_links_of_its_url(tmp_path):
    file = tmp_path / "page.html"
    file.write_text(PAGE)
    run = trawl("extract", str(file), "--url", "https://hut.example.org/a", "--query", "which wood?", "--json")
    assert json.loads(run.stdout)["chunks"][0]["anchor"].startswith("https://hut.example.org/a#")


def test_a_file_by_its_name_and_standard_input(tmp_path):
    file = tmp_path / "notes.md"
    file.write_text("# Notes\n\n## Key\n\nThe key hangs behind the blue shutter.\n")
    assert b"blue shutter" in trawl("extract", str(file), "--query", "where is the key?").stdout
    assert b"birch" in trawl("extract", "-", "--query", "which wood?", stdin=PAGE.encode()).stdout


def test_a_file_that_is_not_there_is_told(tmp_path):
    run = trawl("extract", str(tmp_path / "none.html"))
    assert run.returncode == 2
    assert b"cannot be read" in run.stderr
    assert b"Traceback" not in run.stderr


def test_a_config_file_is_used_when_named(tmp_path):
    config = tmp_path / "env"
    config.write_text("TRAWL_TIMEOUT=5\n")
    assert trawl("extract", "-", "--config", str(config), stdin=PAGE.encode()).returncode == 0
    missing = trawl("extract", "-", "--config", str(tmp_path / "none"), stdin=PAGE.encode())
    assert missing.returncode == 2
    assert b"does not exist" in missing.stderr


def test_control_sequences_of_a_page_do_not_reach_the_terminal(capsys):
    piece = {"text": "a\x1b[2Jb", "heading": "h\x07\u202e", "anchor": "https://x.example.org/", "char_count": 3}
    print_result(PipelineResult("u", "q", chunks=[piece], error="e\x1b[0m", warnings=["w\x9b1m"]))
    shown = capsys.readouterr()
    assert not any(c in shown.out + shown.err for c in "\x1b\x07\u202e\x9b")


def test_json_loses_nothing_and_shows_no_control_sequence(capsys):
    text = "a\x1b[2J\x9b1m\u202eb\ud800 naïve 東京 \U000e0041"
    print_result(PipelineResult("u", "q", chunks=[{"text": text, "char_count": len(text)}]), as_json=True)
    shown = capsys.readouterr().out
    assert not any(c in shown for c in "\x1b\x9b\u202e\ud800\U000e0041")
    assert "naïve 東京" in shown
    assert json.loads(shown)["chunks"][0]["text"] == text


def test_what_the_terminal_cannot_encode_is_replaced():
    run = subprocess.run(
        [sys.executable, "-c", "from trawl.cli import main; main()", "extract", "-", "--query", "snow"],
        input="<main><p>Snow ☃ fell on 東京 and stayed for many days in a row.</p></main>".encode(),
        capture_output=True,
        timeout=60,
        check=False,
        env={**os.environ, "TRAWL_EMBEDDED": "0", "PYTHONIOENCODING": "latin-1"},
    )
    assert run.returncode == 0, run.stderr
    assert b"Snow ? fell" in run.stdout


def test_the_version_and_the_help_are_quick():
    assert trawl("--version").stdout.startswith(b"trawl ")
    assert b"extract" in trawl("--help").stdout


def test_a_mistyped_command_is_no_url():
    run = trawl("docter")
    assert run.returncode == 2
    assert b"Did you mean doctor?" in run.stderr


def test_verbose_says_in_words_how_the_pieces_were_ranked(hut):
    run = trawl(f"{hut}/", "which wood?", "--allow-private", "127.0.0.1", "--verbose")
    assert b"ranked by words\n" in run.stderr
    assert b"{" not in run.stderr
