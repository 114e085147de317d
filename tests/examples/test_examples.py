"""Every example runs as it is, in a process of its own, and prints what it says it prints."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.replay import REPO, ReplayWeb

EXAMPLES = REPO / "examples"
PAGE = EXAMPLES / "site" / "index.html"


def run(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    # The embedded model is another test's business; without it an example takes a second instead of ten.
    env: Mapping[str, str] = {**os.environ, "TRAWL_EMBEDDED": "false", "PYTHONIOENCODING": "utf-8", **environment}
    # Not in the examples folder: an example must not depend on where it is started.
    return subprocess.run(
        [sys.executable, str(EXAMPLES / script)],
        env=env,
        cwd=REPO.parent,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
    )


def test_every_script_is_run_by_a_test() -> None:
    here = Path(__file__).read_text("utf-8")
    scripts = {path.name for path in EXAMPLES.glob("*.py")} - {"serve.py"}
    assert {name for name in scripts if f'run("{name}"' in here} == scripts


def test_a_local_file_is_asked_without_network() -> None:
    done = run("ask_local_file.py")
    assert done.returncode == 0, done.stderr
    assert "| Bed in a room for four" in done.stdout
    assert "Guest handbook > Staying the night > Beds and prices" in done.stdout
    assert "https://kestrel-saddle.example/handbook#:~:text=" in done.stdout


def test_markdown_keeps_the_content_and_drops_the_rest() -> None:
    done = run("page_to_markdown.py")
    assert done.returncode == 0, done.stderr
    markdown = done.stdout
    for kept in (
        "# Guest handbook",
        "## Getting here",
        "### When the flag is red",
        "| Pinder Notch | 410 m |",
        "- Boots stay in the boot room",
        "```",
        "curl http://station.hut/now",
        "nearly all of them left hands",
    ):
        assert kept in markdown, kept
    for dropped in ("Book a bed", "No tracking", "cheese prize", "Imprint"):
        assert dropped not in markdown, dropped


def test_two_questions_at_once_get_their_own_answers() -> None:
    done = run("async_many.py")
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.split("When does the last bus leave on Sundays?")
    assert "channel 6" in first
    assert "17:05" in second


def test_make_run_without_a_url_answers_about_the_example_page() -> None:
    done = run("answer.py", URL="", QUERY="")
    assert done.returncode == 0, done.stderr
    assert "you stay at no charge until the flag comes down" in done.stdout
    assert "[Guest handbook > The weather station > When the flag is red]" in done.stdout
    assert re.search(r"http://127\.0\.0\.1:\d+/#:~:text=", done.stdout)


def test_make_run_takes_another_question() -> None:
    done = run("answer.py", QUERY="How strong was the strongest gust?")
    assert done.returncode == 0, done.stderr
    assert "187 km/h" in done.stdout


def test_make_run_with_a_private_url_is_refused_and_sends_nothing(web: ReplayWeb) -> None:
    done = run("answer.py", URL=f"http://127.0.0.1:{web.http_port}/", QUERY="anything")
    assert done.returncode == 3, done.stdout
    assert "127.0.0.1" in done.stderr
    assert web.requests == []


def test_make_hands_url_and_question_on_as_they_are(tmp_path: Path) -> None:
    make = shutil.which("make")
    if make is None:
        pytest.skip("make is not installed")
    trap = tmp_path / "trap"
    hostile = f"'; touch {trap}; \" `touch {trap}` $(touch {trap}) $(shell touch {trap}) costs $5 & 100%?"
    # PY stands where the interpreter would: what it is run with is printed instead.
    command = [make, "-o", ".venv/ready", "run", f"URL={hostile}", f"QUERY={hostile}", "PY=printenv URL QUERY; :"]
    # Without what a make around this test run hands on to its children.
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=60, env=env)
    assert not trap.exists()
    assert done.stdout == f"{hostile}\n{hostile}\n", done.stderr


def test_the_example_page_is_served_only_while_the_block_runs() -> None:
    script = (
        f"import sys, urllib.request; sys.path.insert(0, {str(EXAMPLES)!r})\n"
        "from serve import serve_example\n"
        "with serve_example() as url: print(urllib.request.urlopen(url).read().decode())\n"
        "try: urllib.request.urlopen(url)\n"
        "except OSError: print('GONE')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, encoding="utf-8", timeout=30)
    assert "<h1>Guest handbook</h1>" in done.stdout, done.stderr
    assert done.stdout.endswith("GONE\n")


def test_client_configuration_names_a_command_that_is_installed() -> None:
    for file in (EXAMPLES / "mcp").glob("*.json"):
        for server in json.loads(file.read_text("utf-8"))["mcpServers"].values():
            assert shutil.which(server["command"], path=str(Path(sys.executable).parent)), server


def test_the_page_holds_no_address_of_anybody() -> None:
    assert re.findall(r"[\w.]+@[\w.]+", PAGE.read_text("utf-8")) == []
