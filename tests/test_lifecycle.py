"""Scripts as people write them: each ends well, says what to do, and leaves nothing running.

Every script runs as a program of its own, with a mark in its environment that its children inherit: after it has
ended, no process with that mark may be left.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil
import pytest

from tests.replay import ReplayWeb, SlowFirstByte
from trawl.net.chromium import find_browser
from trawl.settings import Settings

MARK = "TRAWL_TEST_MARK"
PAGE = "<title>Hut</title><main><h1>Hut</h1><p>" + "The stove burns birch wood only, never pine. " * 9 + "</p></main>"
GRACE_SECONDS = 10

PRELUDE = """
import json, os, sys
import trawl
TABLE = {(h, p): (t, q) for h, p, t, q in json.loads(os.environ["TABLE"])}
def engine(**settings):
    return trawl.Engine(trawl.Settings(**{"embedded": False, "render": "never", **settings}), connect_to=TABLE)
URL = "http://hut.example.org/"
"""

needs_browser = pytest.mark.skipif(find_browser(Settings()) is None, reason="no Chromium on this machine")


@pytest.fixture
def hut(web: ReplayWeb) -> ReplayWeb:
    web.add("http://hut.example.org/", PAGE)
    web.add("http://hut.example.org/slow", PAGE, fault=SlowFirstByte(60))
    shell = f"<div id=root></div><script>setTimeout(() => root.innerHTML = {json.dumps(PAGE)}, 100)</script>"
    web.add("http://hut.example.org/script", shell)
    return web


def start(tmp_path: Path, web: ReplayWeb, script: str, **env: str) -> tuple[subprocess.Popen[str], str]:
    file = tmp_path / "script.py"
    file.write_text(PRELUDE + script)
    mark = uuid.uuid4().hex
    table = json.dumps([[*key, *value] for key, value in web.connect_to_table().items()])
    process = subprocess.Popen(
        [sys.executable, str(file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, MARK: mark, "TABLE": table, **env},
        start_new_session=True,
    )
    return process, mark


def marked(mark: str) -> list[str]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline())[:120])
        except (psutil.Error, OSError):
            continue
    return found


def nothing_left(mark: str) -> bool:
    until = time.monotonic() + GRACE_SECONDS
    while marked(mark) and time.monotonic() < until:
        time.sleep(0.1)
    assert marked(mark) == []
    return True


def run(tmp_path: Path, web: ReplayWeb, script: str, **env: str) -> str:
    process, mark = start(tmp_path, web, script, **env)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "Traceback" not in err, err
    assert "never retrieved" not in err, err
    assert nothing_left(mark)
    return out


def test_a_script_without_a_main_guard(tmp_path, hut):
    assert "birch" in run(tmp_path, hut, 'print(engine().fetch_relevant(URL, "which wood?").chunks[0]["text"])')


def test_the_plain_functions_close_their_engine_at_exit(tmp_path, hut):
    out = run(
        tmp_path, hut, f"print(trawl.extract_relevant({PAGE!r}, 'which wood?').chunks[0]['text'])", TRAWL_EMBEDDED="0"
    )
    assert "birch" in out


@needs_browser
@pytest.mark.browser
def test_a_browser_ends_with_the_script_that_forgot_to_close_it(tmp_path, hut):
    out = run(
        tmp_path,
        hut,
        'r = engine(render="auto").fetch_relevant(URL + "script", "which wood?"); print(r.fetcher_used, r.chunks)',
    )
    assert out.startswith("playwright")
    assert "birch" in out


def test_a_forked_child_makes_its_own_engine_and_the_parents_goes_on(tmp_path, hut):
    script = """
e = engine()
print(len(e.fetch_relevant(URL, "wood?").chunks), flush=True)
pid = os.fork()
r = e.fetch_relevant(URL, "which wood?")
print("child" if pid == 0 else "parent", len(r.chunks), r.error, flush=True)
if pid:
    assert os.waitpid(pid, 0)[1] == 0
    print("again", len(e.fetch_relevant(URL, "wood?").chunks))
"""
    lines = run(tmp_path, hut, script).split("\n")
    assert sorted(filter(None, lines)) == ["1", "again 1", "child 1 None", "parent 1 None"]


def test_a_forked_pool_works(tmp_path, hut):
    script = """
import multiprocessing
e = engine()
e.fetch_relevant(URL, "wood?")
def ask(i):
    return len(e.fetch_relevant(URL, "which wood?").chunks)
with multiprocessing.get_context("fork").Pool(2) as pool:
    print(pool.map(ask, range(4)))
"""
    assert run(tmp_path, hut, script).strip() == "[1, 1, 1, 1]"


def interrupted(process: subprocess.Popen[str], ready: str, mark: str) -> str:
    assert process.stdout is not None
    assert process.stdout.readline().strip() == ready
    time.sleep(0.7)
    os.killpg(process.pid, signal.SIGINT)
    began = time.monotonic()
    out, err = process.communicate(timeout=20)
    assert time.monotonic() - began < 10
    assert nothing_left(mark)
    assert "never retrieved" not in err, err
    return out + err


def test_ctrl_c_in_the_middle_of_a_fetch(tmp_path, hut):
    process, mark = start(
        tmp_path, hut, 'e = engine(); print("go", flush=True); e.fetch_relevant(URL + "slow", "q", timeout=50)'
    )
    assert "KeyboardInterrupt" in interrupted(process, "go", mark)


@needs_browser
@pytest.mark.browser
def test_ctrl_c_in_the_middle_of_rendering(tmp_path, hut):
    script = """
e = engine()
e.fetch_relevant(URL + "script", "q", render="always")
print("go", flush=True)
e.fetch_relevant(URL + "slow", "q", render="always", timeout=50)
"""
    process, mark = start(tmp_path, hut, script)
    assert "KeyboardInterrupt" in interrupted(process, "go", mark)


def test_an_engine_goes_on_after_ctrl_c(tmp_path, hut):
    script = """
import signal, threading
e = engine()
threading.Timer(0.7, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    e.fetch_relevant(URL + "slow", "q", timeout=50)
except KeyboardInterrupt:
    print("interrupted", len(e.fetch_relevant(URL, "wood?").chunks))
"""
    assert run(tmp_path, hut, script).strip() == "interrupted 1"


def test_two_engines_in_one_process(tmp_path, hut):
    script = """
with engine() as a, engine() as b:
    print(len(a.fetch_relevant(URL, "wood?").chunks), len(b.fetch_relevant(URL, "wood?").chunks))
    a.close()
    print(len(b.fetch_relevant(URL, "wood?").chunks))
try:
    a.fetch_relevant(URL)
except trawl.errors.EngineError as error:
    print(error)
"""
    assert run(tmp_path, hut, script).splitlines() == ["1 1", "1", "engine: the engine is closed. Make a new Engine."]


def test_plain_calls_inside_a_running_event_loop(tmp_path, hut):
    script = """
import asyncio
async def main():
    with engine() as e:
        print(len(e.fetch_relevant(URL, "wood?").chunks))
asyncio.run(main())
"""
    assert run(tmp_path, hut, script).strip() == "1"


def test_the_async_engine_and_a_cancelled_call(tmp_path, hut):
    script = """
import asyncio
async def main():
    async with trawl.AsyncEngine(trawl.Settings(embedded=False, render="never"), connect_to=TABLE) as e:
        slow = asyncio.create_task(e.fetch_relevant(URL + "slow", "q", timeout=50))
        await asyncio.sleep(0.5)
        slow.cancel()
        print(type((await asyncio.gather(slow, return_exceptions=True))[0]).__name__)
        print([len(r.chunks) for r in await asyncio.gather(*(e.fetch_relevant(URL, "wood?") for _ in range(5)))])
asyncio.run(main())
"""
    assert run(tmp_path, hut, script).splitlines() == ["CancelledError", "[1, 1, 1, 1, 1]"]


def test_many_threads_share_one_engine(tmp_path, hut):
    script = """
from concurrent.futures import ThreadPoolExecutor
with engine() as e, ThreadPoolExecutor(8) as pool:
    print(sum(len(r.chunks) for r in pool.map(lambda _: e.fetch_relevant(URL, "wood?"), range(24))))
"""
    assert run(tmp_path, hut, script).strip() == "24"
