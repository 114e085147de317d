"""PDFs are read in a child that is gone when its time is up, when the call is cancelled, and when it crashes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pymupdf
import pytest

from trawl.deadline import Deadline
from trawl.errors import DeadlineExceeded, ExtractionError
from trawl.extraction import isolated
from trawl.extraction.isolated import aread_isolated, read_isolated
from trawl.extraction.pdf import pdf_document

URL = "https://papers.example/a.pdf?token=secret"


def pdf(text: str = "The mill was built in 1731.") -> bytes:
    document = pymupdf.open()
    document.new_page().insert_text((72, 80), text)
    return document.tobytes()


def play(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Put another program in the child's place."""
    monkeypatch.setattr(isolated, "_command", lambda kind: (sys.executable, "-c", program))


def children() -> list[psutil.Process]:
    return [p for p in psutil.Process().children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE]


@pytest.fixture(autouse=True)
def _nothing_is_left_running() -> None:
    before = {p.pid for p in children()}
    yield
    assert {p.pid for p in children()} <= before


def test_the_child_reads_what_this_process_would_read() -> None:
    body = pdf()
    assert read_isolated("pdf", body, url=URL, deadline=Deadline.after(30)) == pdf_document(body, url=URL)


async def test_the_same_without_blocking_the_loop() -> None:
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            await asyncio.sleep(0.01)
            beats += 1

    heart = asyncio.create_task(beat())
    document = await aread_isolated("pdf", pdf(), url=URL, deadline=Deadline.after(30))
    heart.cancel()
    assert "built in 1731" in document.source
    assert beats > 3


def test_errors_of_the_reader_come_back_typed() -> None:
    with pytest.raises(ExtractionError, match="cannot be opened") as caught:
        read_isolated("pdf", b"%PDF-1.4 no", url=URL, deadline=Deadline.after(30))
    assert "secret" not in str(caught.value)
    with pytest.raises(ExtractionError, match="no reader for rtf"):
        read_isolated("rtf", b"x", deadline=Deadline.after(30))


def test_at_the_deadline_the_child_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, "import time; time.sleep(60)")
    began = time.monotonic()
    with pytest.raises(DeadlineExceeded, match="reading the pdf"):
        read_isolated("pdf", pdf(), url=URL, deadline=Deadline.after(0.5))
    assert time.monotonic() - began < 3


async def test_at_the_deadline_the_child_is_killed_async(monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, "import time; time.sleep(60)")
    with pytest.raises(DeadlineExceeded):
        await aread_isolated("pdf", pdf(), url=URL, deadline=Deadline.after(0.5))


async def test_cancelling_kills_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, "import time; time.sleep(60)")
    task = asyncio.create_task(aread_isolated("pdf", pdf(), deadline=Deadline.after(30)))
    async with asyncio.timeout(10):
        while not children():  # noqa: ASYNC110 - the system tells nobody that a process has come
            await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not children()


def test_no_time_left_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolated.subprocess, "Popen", lambda *a, **k: pytest.fail("a child was started"))
    with pytest.raises(DeadlineExceeded):
        read_isolated("pdf", pdf(), deadline=Deadline.after(-1))


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT", "SIGKILL"])
def test_a_crash_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    play(monkeypatch, f"import os, signal; os.kill(os.getpid(), signal.{name})")
    with pytest.raises(ExtractionError, match=f"crashed \\({name}\\)"):
        read_isolated("pdf", pdf(), deadline=Deadline.after(30))


@pytest.mark.parametrize(
    "printed",
    [
        "",
        "not json",
        "[]",
        "{}",
        '{"source": 1}',
        '{"source": "abc", "blocks": [["paragraph", 0, 99, "x", 0, 1]], "links": [], "title": "", "metadata": {},'
        ' "content_type": "", "document_id": "", "warnings": []}',
        '{"source": "abc", "blocks": [], "links": [[0, 1, "javascript:x", "a"]], "title": "", "metadata": {},'
        ' "content_type": "", "document_id": "", "warnings": []}',
    ],
)
def test_an_answer_that_cannot_be_used_is_an_error(monkeypatch: pytest.MonkeyPatch, printed: str) -> None:
    play(monkeypatch, f"print({printed!r})")
    with pytest.raises(ExtractionError, match="cannot be used"):
        read_isolated("pdf", pdf(), deadline=Deadline.after(30))


def test_an_exit_status_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, "raise SystemExit(3)")
    with pytest.raises(ExtractionError, match="exit status 3"):
        read_isolated("pdf", pdf(), deadline=Deadline.after(30))


def test_the_child_gets_no_secrets_and_no_files_of_the_working_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRAWL_EMBED_API_KEY", "secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    (tmp_path / "json.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path)
    assert "1731" in read_isolated("pdf", pdf(), deadline=Deadline.after(30)).source
    environment = isolated._environment()
    assert "secret" not in environment.values()
    assert str(tmp_path) not in environment["PYTHONPATH"].split(os.pathsep)


def test_the_child_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory beyond the limit ends in an error, not in a machine without memory."""
    monkeypatch.setattr(isolated, "MEMORY", 60 * 2**20)
    with pytest.raises(ExtractionError):
        read_isolated("pdf", pdf(), deadline=Deadline.after(30))


def test_a_child_without_a_parent_ends_by_itself() -> None:
    """The limits are set in the child: it does not need anybody to kill it."""
    program = (
        "import sys, signal, resource; from trawl import _worker; _worker._limit(0.2, 2**31);"
        "print(signal.getitimer(signal.ITIMER_REAL)[0] > 0, resource.getrlimit(resource.RLIMIT_CPU)[0],"
        " resource.getrlimit(resource.RLIMIT_AS)[0] == 2**31, resource.getrlimit(resource.RLIMIT_CORE)[0])"
    )
    import subprocess

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.split() == ["True", "2", "True", "0"]


def test_a_script_without_a_main_guard_can_read(tmp_path: Path) -> None:
    import subprocess

    (tmp_path / "a.pdf").write_bytes(pdf())
    script = tmp_path / "script.py"
    script.write_text(
        "from pathlib import Path\nfrom trawl.deadline import Deadline\n"
        "from trawl.extraction.isolated import read_isolated\n"
        f"body = Path({str(tmp_path / 'a.pdf')!r}).read_bytes()\n"
        "print(read_isolated('pdf', body, deadline=Deadline.after(30)).source)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "The mill was built in 1731."


def test_signals_for_the_terminal_do_not_reach_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C is the parent's to handle: the child has a session of its own."""
    play(monkeypatch, "import os, json; print(json.dumps({'error': str(os.getsid(0) == os.getpid()), 'hint': ''}))")
    with pytest.raises(ExtractionError, match="True"):
        read_isolated("pdf", pdf(), deadline=Deadline.after(30))
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
