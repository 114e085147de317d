"""One embedded server for all processes of a user: found or started, gone after the last of them, whatever
they die of."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO

import httpx
import psutil
import pytest

from trawl.deadline import Deadline
from trawl.errors import ModelUnavailable
from trawl.llama import rendezvous
from trawl.llama.rendezvous import Lease, Uses, lease_server
from trawl.llama.run_directory import Failed, RunDirectory, Running, dump_state, parse_state
from trawl.llama.weights import ensure_e5

RUNNING = Running(url="http://127.0.0.1:4711", key="k" * 32, pid=4711, model="m")


@pytest.fixture
def runtime_dir(tmp_path: Path) -> Iterator[Path]:
    """A place to meet; whatever server is left there in the end is killed."""
    place = tmp_path / "run"
    yield place
    for pid in servers_in(place):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers that are started here or by clients leave soon; what is tested is that they leave, and why."""
    monkeypatch.setattr(rendezvous, "GRACE_SECONDS", 0.1)


@pytest.fixture
def model_dir(cache_dir: Path) -> Path:
    """The cache folder with the model converted, so that starts are equally quick."""
    ensure_e5(cache_dir)
    return cache_dir


def servers_in(runtime_dir: Path) -> list[int]:
    """Process ids of the servers whose run directory lies in `runtime_dir`."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            line = process.cmdline()
            if "trawl.llama.embedded" in line and any(word.startswith(f"{runtime_dir}/") for word in line):
                found.append(process.pid)
    return found


def run_dir(runtime_dir: Path) -> Path:
    (found,) = runtime_dir.iterdir()
    return found


async def eventually(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether it holds at some time within `seconds`; of what other processes do there is no event."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        await asyncio.sleep(0.02)
    return True


async def gone_within(pid: int, seconds: float) -> bool:
    """Whether the process has ended by then. It is not ours: when the system reaps it is the system's business."""
    return await eventually(lambda: not alive(pid), seconds)


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def open_files() -> set[str]:
    return {path.name for path in Path("/dev/fd").iterdir()}


def lease_files(runtime_dir: Path) -> list[Path]:
    return list(runtime_dir.rglob("*.lease"))


async def works(lease: Lease) -> bool:
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {lease.key}"}, trust_env=False) as client:
        reply = await client.post(f"{lease.url}/v1/embeddings", json={"input": ["query: q"]}, timeout=20)
    return reply.status_code == 200 and len(reply.json()["data"][0]["embedding"]) == 384


# Other processes

CLIENT = """
    import asyncio, os, signal, sys, time
    from pathlib import Path
    from trawl.deadline import Deadline
    from trawl.llama import rendezvous

    rendezvous.GRACE_SECONDS = float(sys.argv[3])

    def leased():
        return asyncio.run(rendezvous.lease_server(
            Path(sys.argv[1]), Path(sys.argv[2]), Deadline.after(60), starting=lambda: print("starting", flush=True)
        ))

    def told():
        "Waits until the test says so."
        sys.stdin.readline()
"""
HOLD = """
    lease = leased()
    print(lease.pid, flush=True)
    told()
"""


class Client:
    """A process that does `body`; see `CLIENT` for what it finds."""

    def __init__(self, body: str, model_dir: Path, runtime_dir: Path) -> None:
        program = textwrap.dedent(CLIENT) + textwrap.dedent(body)
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, model_dir, runtime_dir, str(rendezvous.GRACE_SECONDS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate(timeout=10)

    async def line(self) -> str:
        return (await asyncio.wait_for(asyncio.to_thread(_stream(self.process.stdout).readline), 60)).strip()

    async def server(self) -> int:
        """The process id it prints, whether it had to start the server or not."""
        line = await self.line()
        return int(await self.line() if line == "starting" else line)

    def tell(self) -> None:
        stdin = _stream(self.process.stdin)
        stdin.write("\n")
        stdin.flush()


def _stream(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


@pytest.mark.embedded
async def test_processes_that_ask_at_once_or_later_share_one_server(model_dir: Path, runtime_dir: Path) -> None:
    with Client(HOLD, model_dir, runtime_dir) as first, Client(HOLD, model_dir, runtime_dir) as second:
        lines = [await first.line(), await second.line()]
        assert "starting" in lines
        pids = {int(line) for line in lines if line != "starting"}
        for client, line in zip((first, second), lines, strict=True):
            if line == "starting":
                pids.add(int(await client.line()))
        assert lines.count("starting") == 1, "only one has to start it"
        with Client(HOLD, model_dir, runtime_dir) as third:
            assert {await third.server()} == pids
        assert servers_in(runtime_dir) == list(pids)


@pytest.mark.slow
@pytest.mark.embedded
async def test_it_is_gone_within_ten_seconds_of_the_last_lease(model_dir: Path, runtime_dir: Path) -> None:
    lease = await lease_server(model_dir, runtime_dir, Deadline.after(60))
    lease.release()
    assert not await gone_within(lease.pid, rendezvous.GRACE_SECONDS - 1), "the next command would have to start it"
    assert await gone_within(lease.pid, 9)


@pytest.mark.embedded
@pytest.mark.usefixtures("short_grace")
async def test_it_stays_until_the_last_lease_ends_however_that_is(model_dir: Path, runtime_dir: Path) -> None:
    with (
        Client(HOLD + "    lease.release(); told()", model_dir, runtime_dir) as releasing,
        Client(HOLD, model_dir, runtime_dir) as ending,
        Client(HOLD, model_dir, runtime_dir) as killed,
    ):
        (pid,) = {await client.server() for client in (releasing, ending, killed)}
        releasing.tell()
        ending.tell()
        assert await asyncio.to_thread(ending.process.wait, 10) == 0
        await asyncio.sleep(2 * rendezvous.LOOK_SECONDS)
        assert alive(pid), "one lease is left"
        killed.process.kill()
        assert await gone_within(pid, 10)
    left = {path.name for path in run_dir(runtime_dir).rglob("*")}
    assert left == {"gate", "leases", "server.lock", "server.log"}


@pytest.mark.embedded
@pytest.mark.usefixtures("short_grace")
async def test_a_client_killed_while_the_server_starts_leaves_no_server(model_dir: Path, runtime_dir: Path) -> None:
    with Client(HOLD, model_dir, runtime_dir) as client:
        assert await client.line() == "starting"
        client.process.kill()
        client.process.wait(10)
    directory = RunDirectory(run_dir(runtime_dir))
    assert await eventually(lambda: not directory.server_lives(), 15)
    directory.close()
    assert await eventually(lambda: servers_in(runtime_dir) == [], 1)


@pytest.mark.embedded
async def test_what_is_kept_is_for_this_user_only_and_the_key_is_nowhere_else(
    model_dir: Path, runtime_dir: Path
) -> None:
    old = os.umask(0)
    try:
        lease = await lease_server(model_dir, runtime_dir, Deadline.after(60))
    finally:
        os.umask(old)
    place = run_dir(runtime_dir)
    for path in (place, *place.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    server = psutil.Process(lease.pid)
    assert lease.key not in f"{server.cmdline()}{server.environ()}{(place / 'server.log').read_text()}{lease!r}"
    assert (place / "server.json").read_text().count(lease.key) == 1
    assert (server.cwd(), server.environ().get("OLDPWD")) == ("/", os.environ.get("OLDPWD"))
    assert os.getsid(lease.pid) != os.getsid(0), "it would end with the terminal of whoever came first"
    assert server.ppid() != os.getpid(), "it would be ours to reap"
    children = psutil.Process().children(recursive=True)
    assert not [child for child in children if "--shared" in child.cmdline()]
    lease.release()


@pytest.mark.embedded
async def test_keys_for_other_servers_neither_stop_the_start_nor_go_with_it(
    model_dir: Path, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAWL_EMBED_API_KEY", "two words, schlüssel")
    monkeypatch.setenv("OTHER_API_KEY", "s3cret")
    lease = await lease_server(model_dir, runtime_dir, Deadline.after(60))
    assert await works(lease)
    assert not [name for name in psutil.Process(lease.pid).environ() if name.endswith("_API_KEY")]
    lease.release()


@pytest.mark.embedded
async def test_a_killed_server_counts_as_crashed_and_is_replaced(model_dir: Path, runtime_dir: Path) -> None:
    first = await lease_server(model_dir, runtime_dir, Deadline.after(60))
    assert (first.server_state(), await works(first)) == ("running", True)
    os.kill(first.pid, signal.SIGKILL)
    assert await eventually(lambda: first.server_state() == "crashed", 5)

    started = []
    second = await lease_server(model_dir, runtime_dir, Deadline.after(60), starting=lambda: started.append(1))
    assert (started, second.pid != first.pid, second.key != first.key) == ([1], True, True)
    assert (second.server_state(), await works(second)) == ("running", True)
    assert first.server_state() == "crashed", "another one runs, not the one that was leased"
    first.release()
    first.release()
    assert first.server_state() == "ended"
    assert second.server_state() == "running"

    # Told to end, it ends in order although it is leased.
    os.kill(second.pid, signal.SIGTERM)
    assert await gone_within(second.pid, 2)
    assert second.server_state() == "ended"
    second.release()


@pytest.mark.embedded
@pytest.mark.usefixtures("short_grace")
async def test_it_ends_when_its_lease_is_not_used_and_not_before(
    model_dir: Path, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "IDLE_SECONDS", 1.0)
    lease = await lease_server(model_dir, runtime_dir, Deadline.after(60))
    for _ in range(14):  # 2.8 s: more than the idle time, the grace and a look
        lease.touch()
        await asyncio.sleep(0.2)
    assert lease.server_state() == "running"
    assert await gone_within(lease.pid, 10)
    assert lease.server_state() == "ended"
    lease.touch()
    lease.release()


@pytest.mark.embedded
@pytest.mark.usefixtures("short_grace")
async def test_a_forked_copy_neither_keeps_the_server_nor_gives_it_up(model_dir: Path, runtime_dir: Path) -> None:
    body = """
        lease = leased()
        print(lease.pid, flush=True)
        if os.fork() == 0:
            try:
                lease.check()
            except Exception as error:
                refusal = f"{type(error).__name__}: {error}"
            lease.touch()
            lease.release()
            own = leased()
            print(own.pid, own.server_state(), refusal, flush=True)
            own.release()
            time.sleep(60)
        told()
        print(lease.server_state(), flush=True)
        told()
    """
    with Client(body, model_dir, runtime_dir) as client:
        pid = await client.server()
        words = (await client.line()).split(maxsplit=2)
        (copy,) = psutil.Process(client.process.pid).children()
        try:
            assert words[:2] == [str(pid), "running"], "the copy may lease for itself"
            assert "ModelUnavailable" in words[2]
            assert "forked" in words[2]
            client.tell()
            assert await client.line() == "running"
            client.process.kill()
            assert await gone_within(pid, 10), "the copy still lives, and keeps it"
            assert copy.is_running()
        finally:
            copy.kill()


@pytest.mark.slow
@pytest.mark.embedded
@pytest.mark.usefixtures("short_grace")
async def test_a_lease_survives_the_loop_that_got_it_and_others_of_this_process(
    model_dir: Path, runtime_dir: Path
) -> None:
    def in_a_loop_of_its_own() -> Lease:
        return asyncio.run(lease_server(model_dir, runtime_dir, Deadline.after(60)))

    first, second = await asyncio.gather(
        asyncio.to_thread(in_a_loop_of_its_own), asyncio.to_thread(in_a_loop_of_its_own)
    )
    assert first.pid == second.pid
    first.release()
    await asyncio.sleep(2 * rendezvous.LOOK_SECONDS)
    assert (second.server_state(), await works(second)) == ("running", True)
    second.release()


@pytest.mark.slow
@pytest.mark.embedded
async def test_what_is_written_over_the_state_of_a_running_server_is_mended(model_dir: Path, runtime_dir: Path) -> None:
    lease = await lease_server(model_dir, runtime_dir, Deadline.after(60))
    state = run_dir(runtime_dir) / "server.json"
    for spoil in (lambda: state.write_bytes(b"{"), state.unlink):
        spoil()
        again = await lease_server(model_dir, runtime_dir, Deadline.after(10))
        assert (again.pid, lease.server_state()) == (lease.pid, "running")
        again.release()
    lease.release()


@pytest.mark.slow
@pytest.mark.embedded
@pytest.mark.usefixtures("short_grace")
async def test_ten_thousand_dead_leases_and_other_rubbish_hide_no_living_one(
    model_dir: Path, runtime_dir: Path
) -> None:
    leases = runtime_dir / rendezvous.run_name() / "leases"
    leases.mkdir(parents=True)
    leases.parent.chmod(0o700)
    for number in range(10_000):
        (leases / f"{number}.lease").touch()
    (leases / "folder.lease").mkdir()
    os.mkfifo(leases / "pipe.lease")
    (leases / "link.lease").symlink_to("/etc/passwd")
    (leases / "notes.txt").write_text("not a lease")
    lease = await lease_server(model_dir, runtime_dir, Deadline.after(60))
    assert await eventually(lambda: len(list(leases.iterdir())) < 10, 10), "what dead processes leave is removed"
    await asyncio.sleep(2 * rendezvous.LOOK_SECONDS)
    assert lease.server_state() == "running"
    assert (leases / "notes.txt").exists()
    lease.release()
    assert await gone_within(lease.pid, 5)


@pytest.mark.slow
@pytest.mark.embedded
@pytest.mark.parametrize("lost", [".", "server.lock", "leases"])
@pytest.mark.usefixtures("short_grace")
async def test_a_server_that_can_no_longer_be_found_ends_and_another_takes_its_place(
    model_dir: Path, runtime_dir: Path, lost: str
) -> None:
    lease = await lease_server(model_dir, runtime_dir, Deadline.after(60))
    path = run_dir(runtime_dir) / lost
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    assert await gone_within(lease.pid, 5)
    assert lease.server_state() in ("ended", "crashed")
    again = await lease_server(model_dir, runtime_dir, Deadline.after(60))
    assert again.pid != lease.pid
    lease.release()
    assert await works(again)
    again.release()


@pytest.mark.embedded
@pytest.mark.parametrize("after", [0.0, 0.05, 0.5])
async def test_a_cancelled_start_gives_everything_back(model_dir: Path, runtime_dir: Path, after: float) -> None:
    before = open_files()
    start = asyncio.create_task(lease_server(model_dir, runtime_dir, Deadline.after(60)))
    await asyncio.sleep(after)
    start.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await start
    assert open_files() == before
    assert lease_files(runtime_dir) == []


@pytest.mark.embedded
async def test_one_that_gives_up_waiting_does_not_stop_the_start(model_dir: Path, runtime_dir: Path) -> None:
    patient = asyncio.create_task(lease_server(model_dir, runtime_dir, Deadline.after(60)))
    with pytest.raises(ModelUnavailable, match="not ready after"):
        await lease_server(model_dir, runtime_dir, Deadline.after(0.1))
    lease = await patient
    assert await works(lease)
    # One that runs is joined even when no time is left to wait.
    late = await lease_server(model_dir, runtime_dir, Deadline.after(0))
    assert late.pid == lease.pid
    late.release()
    lease.release()


@pytest.mark.slow
@pytest.mark.embedded
@pytest.mark.usefixtures("short_grace")
async def test_it_does_not_end_while_somebody_is_joining(model_dir: Path, runtime_dir: Path) -> None:
    lease = await lease_server(model_dir, runtime_dir, Deadline.after(60))
    joining = RunDirectory(run_dir(runtime_dir))
    gate = joining.open("gate")
    assert gate.try_lock()
    lease.release()
    assert not await gone_within(lease.pid, 3 * rendezvous.LOOK_SECONDS)
    joined = joining.new_lease()
    gate.close()
    assert not await gone_within(lease.pid, 3 * rendezvous.LOOK_SECONDS)
    joined.release()
    assert await gone_within(lease.pid, 5)
    joining.close()


@pytest.mark.slow
@pytest.mark.embedded
async def test_eight_processes_that_come_while_it_ends_all_get_one_that_works(
    model_dir: Path, runtime_dir: Path
) -> None:
    body = """
        import urllib.request
        print("ready", flush=True)
        told()
        time.sleep(float(sys.stdin.readline()))
        for _ in range(2):
            lease = leased()
            request = urllib.request.Request(
                lease.url + "/v1/embeddings", b'{"input": ["q"]}',
                {"Authorization": "Bearer " + lease.key, "Content-Type": "application/json"},
            )
            print(lease.pid, urllib.request.urlopen(request, timeout=20).status, flush=True)
            lease.release()
    """
    for _ in range(2):
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(Client(body, model_dir, runtime_dir)) for _ in range(8)]
            for client in clients:
                assert await client.line() == "ready"
            lease = await lease_server(model_dir, runtime_dir, Deadline.after(60))
            lease.release()
            for number, client in enumerate(clients):
                # It ends between 3 and 5 s from now: they come before, at that moment, and after.
                client.tell()
                _stream(client.process.stdin).write(f"{2.8 + 0.3 * number}\n")
                _stream(client.process.stdin).flush()
            for client in clients:
                for _ in range(2):
                    line = await client.line()
                    line = await client.line() if line == "starting" else line
                    assert line.endswith(" 200"), client.process.stderr and client.process.stderr.read()


@pytest.mark.slow
@pytest.mark.embedded
async def test_eight_processes_that_come_after_a_crash_start_one(model_dir: Path, runtime_dir: Path) -> None:
    lease = await lease_server(model_dir, runtime_dir, Deadline.after(60))
    os.kill(lease.pid, signal.SIGKILL)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Client(HOLD, model_dir, runtime_dir)) for _ in range(8)]
        pids = {await client.server() for client in clients}
        assert len(pids) == 1
        assert pids == set(servers_in(runtime_dir))
    lease.release()


# Starts that fail


def play(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a shell program stand in for the interpreter that is to run the server."""
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{program}\n")
    path.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(path))


async def test_one_that_dies_at_once_is_told_with_its_last_words_and_can_be_tried_again(
    tmp_path: Path, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play("echo one; echo libgomp.so.1: cannot open shared object file >&2; exit 127", tmp_path, monkeypatch)
    for _ in range(2):
        with pytest.raises(ModelUnavailable, match=r"ended while starting: libgomp\.so\.1"):
            await lease_server(tmp_path, runtime_dir, Deadline.after(10))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "missing"))
    with pytest.raises(ModelUnavailable, match=r"cannot be started: No such file"):
        await lease_server(tmp_path, runtime_dir, Deadline.after(10))
    assert lease_files(runtime_dir) == []


async def test_one_that_never_gets_ready_is_killed(
    tmp_path: Path, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It detaches itself, and writes: nobody may block on its output.
    play(f"(echo $$ >{tmp_path}/group; exec sleep 60) & exec sleep 60", tmp_path, monkeypatch)
    monkeypatch.setattr(rendezvous, "START_SECONDS", 0.5)
    joining = asyncio.create_task(lease_server(tmp_path, runtime_dir, Deadline.after(10)))
    with pytest.raises(ModelUnavailable, match=r"not ready after 0\.\d s"):
        await joining
    group = int((tmp_path / "group").read_text())
    assert await eventually(lambda: not in_group(group), 5)


def in_group(group: int) -> bool:
    """Whether a process of the group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.embedded
async def test_one_that_loads_too_long_is_ended_by_the_system_though_nobody_waits(
    model_dir: Path, runtime_dir: Path
) -> None:
    directory = RunDirectory(runtime_dir / "by-hand")
    lock = directory.open("server.lock")
    assert lock.try_lock()
    options = f"--lock-fd {lock.fd} --start-seconds 0.3 --idle-seconds 9 --grace-seconds 9 --port 0 --shared".split()
    process = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-m", "trawl.llama.embedded", *options, directory.path, "--cache-dir", model_dir],
        pass_fds=[lock.fd],
    )
    lock.close()
    assert await asyncio.to_thread(process.wait, 10) == 0, "what is started detaches"
    assert await eventually(lambda: not directory.server_lives(), 5)
    assert directory.read_state() is None
    directory.close()


@pytest.mark.embedded
async def test_a_start_that_fails_says_why(tmp_path: Path, runtime_dir: Path) -> None:
    (tmp_path / "models").write_text("in the way")
    for _ in range(2):
        with pytest.raises(ModelUnavailable, match=r"did not start: the model file cannot be kept in"):
            await lease_server(tmp_path, runtime_dir, Deadline.after(30))


async def test_a_gate_that_somebody_does_not_let_go_of_costs_the_deadline_and_no_more(
    tmp_path: Path, runtime_dir: Path
) -> None:
    directory = RunDirectory(runtime_dir / rendezvous.run_name())
    gate = directory.open("gate")
    assert gate.try_lock()
    began = time.monotonic()
    with pytest.raises(ModelUnavailable, match="another process is starting or joining"):
        await lease_server(tmp_path, runtime_dir, Deadline.after(0.2))
    assert time.monotonic() - began < 2
    gate.close()
    directory.close()


# The run directory


def test_a_link_a_file_or_what_others_can_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "file").touch()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o770)
    for name in ("link", "dangling", "file", "open"):
        with pytest.raises(ModelUnavailable, match=r"(not a directory|written by others).*TRAWL_RUNTIME_DIR"):
            RunDirectory(tmp_path / name)
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "foreign").mkdir(mode=0o700)
    os.chown(tmp_path / "foreign", 65534, 65534)
    with pytest.raises(ModelUnavailable, match="belongs to another user"):
        RunDirectory(tmp_path / "foreign")


def test_one_that_others_can_read_is_closed_to_them(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o755)
    RunDirectory(tmp_path / "run").close()
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o700


async def test_a_place_that_cannot_be_used_is_told_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "nul\0", tmp_path / ("x" * 300), Path("/proc/nothing")):
        with pytest.raises(ModelUnavailable, match=r"cannot be shared through .*TRAWL_RUNTIME_DIR"):
            await lease_server(tmp_path, place, Deadline.after(1))


def test_what_the_directory_has_been_replaced_by_is_not_used(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    directory.write_state(RUNNING)
    (tmp_path / "run").rename(tmp_path / "aside")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "server.json").write_bytes(dump_state(replace(RUNNING, pid=666)))
    assert directory.read_state() == RUNNING
    directory.close()


def test_states_survive_the_way_through_the_file(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    assert directory.read_state() is None
    for state in (RUNNING, Failed("no memory")):
        directory.write_state(state)
        assert directory.read_state() == state
    assert "k" * 32 not in repr(RUNNING)
    directory.close()


@pytest.mark.parametrize(
    "change",
    [
        {"url": "http://192.0.2.1:80"},
        {"url": "http://127.0.0.1.evil.example:80"},
        {"url": "http://127.0.0.1:80/v1?x"},
        {"url": "https://127.0.0.1:80"},
        {"url": None},
        {"key": ""},
        {"key": "short"},
        {"key": "k" * 32 + "\r\nHost: x"},
        {"key": 7},
        {"pid": 0},
        {"pid": -1},
        {"pid": True},
        {"pid": "12"},
        {"model": None},
        {"format": "1"},
        {"format": None},
    ],
)
def test_a_state_that_is_wrong_in_any_field_is_none(change: dict[str, object]) -> None:
    good = json.loads(dump_state(RUNNING))
    assert parse_state(json.dumps(good).encode()) == RUNNING
    assert parse_state(json.dumps({**good, "unknown": 1}).encode()) == RUNNING
    assert parse_state(json.dumps({**good, **change}).encode()) is None


def test_a_state_of_another_version_says_so_and_rubbish_is_none() -> None:
    good = json.loads(dump_state(RUNNING))
    assert isinstance(parse_state(json.dumps({**good, "format": 99}).encode()), Failed)
    for rubbish in (
        b"",
        b"[]",
        b"{}",
        b"1e999",
        b"NaN",
        b"9" * 4096,
        b"[" * 4096,
        b'{"format":' * 400,
        b"\x00",
        b" " * 5000,
    ):
        assert parse_state(rubbish) is None


@pytest.mark.parametrize("make", ["folder", "pipe", "link", "huge"])
def test_a_state_file_that_is_none_is_no_state(tmp_path: Path, make: str) -> None:
    directory = RunDirectory(tmp_path / "run")
    path = tmp_path / "run" / "server.json"
    if make == "folder":
        path.mkdir()
    elif make == "pipe":
        os.mkfifo(path)
    elif make == "link":
        (tmp_path / "elsewhere").write_bytes(dump_state(RUNNING))
        path.symlink_to(tmp_path / "elsewhere")
    else:
        path.write_bytes(b"x")
        os.truncate(path, 2**40)
    assert directory.read_state() is None
    directory.close()


def test_one_that_looks_whether_a_server_lives_is_not_taken_for_one(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    assert not directory.server_lives()
    looking, serving = directory.open("server.lock"), directory.open("server.lock")
    assert looking.try_lock(fcntl.LOCK_SH)
    assert not directory.server_lives()
    assert not serving.try_lock()
    looking.close()
    assert serving.try_lock()
    assert directory.server_lives()
    serving.close()
    assert not directory.server_lives()
    directory.close()


def test_a_lease_counts_while_it_is_locked_and_is_removed_after(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    first, second = directory.new_lease(), directory.new_lease()
    assert len(directory.held_leases()) == 2
    first.release()
    first.release()
    assert (first.stands(), second.stands(), len(directory.held_leases())) == (False, True, 1)
    left = tmp_path / "run" / "leases" / "left.lease"
    left.touch()
    with left.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert "left.lease" in directory.held_leases()
    assert "left.lease" not in directory.held_leases()
    assert not left.exists()
    directory.end_leases()
    assert not second.stands()
    second.release()
    directory.close()


def test_uses_follow_a_clock_that_nobody_sets() -> None:
    uses = Uses(idle_seconds=10)
    assert not uses.in_use({}, 0)
    assert uses.in_use({"a": 500}, 0)
    assert uses.in_use({"a": 500}, 9)
    assert not uses.in_use({"a": 500}, 10)
    assert uses.in_use({"a": 1}, 11), "used, though the file system's clock was set back"
    assert uses.in_use({"a": 10**19, "b": 1}, 20), "used, or set forward by years: which cannot be told"
    assert not uses.in_use({"a": 10**19, "b": 1}, 30)
    assert not uses.in_use({}, 31)
    assert uses.in_use({"a": 10**19}, 32), "a name that comes again is a new lease"
