"""The files of the store: private from birth, under one lock, set aside whole."""

import os
import subprocess
import sys
import threading

import pytest

from trawl.store import files


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o277])
def test_folder_file_and_lock_are_private_whatever_the_umask(path, umask):
    before = os.umask(umask)
    try:
        with files.opening(path):
            files.make_private(path)
    finally:
        os.umask(before)
    modes = [p.stat().st_mode & 0o777 for p in (path.parent, path, path.with_name("store.sqlite3.lock"))]
    assert modes == [0o700, 0o600, 0o600]


def test_a_folder_that_exists_keeps_its_mode(tmp_path):
    tmp_path.chmod(0o755)
    with files.opening(tmp_path / "store.sqlite3"):
        pass
    assert tmp_path.stat().st_mode & 0o777 == 0o755


def test_an_existing_file_and_its_companions_become_private(path):
    path.parent.mkdir()
    for file in (path, path.with_name("store.sqlite3-wal")):
        file.touch()
        file.chmod(0o644)
    files.make_private(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.with_name("store.sqlite3-wal").stat().st_mode & 0o777 == 0o600


def test_the_lock_keeps_out_threads_for_a_bounded_time(path):
    inside, leave = threading.Event(), threading.Event()

    def hold():
        with files.opening(path):
            inside.set()
            leave.wait(10)

    holder = threading.Thread(target=hold)
    holder.start()
    inside.wait(10)
    try:
        with pytest.raises(TimeoutError, match="lock"), files.opening(path, 0.05):
            pass
    finally:
        leave.set()
        holder.join()
    with files.opening(path, 0.05):
        pass


def test_the_lock_of_a_killed_process_is_free(path):
    code = (
        "import sys, time; from pathlib import Path; from trawl.store import files\n"
        "with files.opening(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        holder.kill()
    with files.opening(path, 0.5):
        pass


def test_setting_aside_takes_the_companions_along_and_keeps_only_the_last_few(path):
    path.parent.mkdir()
    for number in range(files.MOST_SET_ASIDE + 2):
        for suffix in ("", "-wal", "-shm"):
            path.with_name(path.name + suffix).write_text(f"{number}{suffix}")
        aside = files.set_aside(path)
        assert [aside.with_name(aside.name + s).read_text() for s in ("", "-wal", "-shm")] == [
            f"{number}",
            f"{number}-wal",
            f"{number}-shm",
        ]
    assert len(list(path.parent.iterdir())) == 3 * files.MOST_SET_ASIDE


@pytest.mark.parametrize("make", [lambda p: p.mkdir(), os.mkfifo], ids=["folder", "pipe"])
def test_what_is_no_file_is_refused_and_not_opened(tmp_path, make):
    make(tmp_path / "odd")
    with pytest.raises(OSError, match="not a regular file"):
        files.make_private(tmp_path / "odd")


MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
40 22 0:45 / /home/u\\040x rw,relatime shared:20 master:1 - nfs4 server:/home rw,vers=4.2
garbage
41 22 0:46
"""


@pytest.mark.parametrize(("device", "kind"), [("8:1", "ext4"), ("0:45", "nfs4"), ("0:46", None), ("9:9", None)])
def test_the_type_of_a_file_system_is_found_by_its_device(device, kind):
    assert files.file_system(device, MOUNTS) == kind
