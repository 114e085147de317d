"""What every test gets: an environment that is not the user's, and a recorded web on request."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.replay import ReplayWeb
from tests.replay.data import CALLER_ENV
from trawl.llama import backends

# A shell that starts the run in the background has SIGINT ignored, and ignored signals are inherited: the programs that
# tests interrupt would never notice. A handler of ours is not inherited; they get the default.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


def _isolate(monkeypatch: pytest.MonkeyPatch, home: Path, cache: Path) -> None:
    """Leave nothing of the user's configuration, caches and proxies to be found, here or in child processes."""
    for name in list(os.environ):
        if name.startswith("TRAWL_") or name.upper() in _PROXIES:
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    for name in ("CONFIG", "CACHE", "DATA", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(home / name.lower()))
    # Converting the embedding model takes long, so its folder is shared by all tests (and by runs, if the caller says).
    monkeypatch.setenv("TRAWL_CACHE_DIR", str(cache))
    # So is the embedded server, which lives as long as somebody uses it.
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(cache))
    # Playwright looks for its own browsers below the home folder just hidden.
    user_cache = CALLER_ENV.get("XDG_CACHE_HOME") or f"{CALLER_ENV.get('HOME', '')}/.cache"
    browsers = CALLER_ENV.get("PLAYWRIGHT_BROWSERS_PATH") or f"{user_cache}/ms-playwright"
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", browsers)


@pytest.fixture(scope="session", autouse=True)
def _not_the_users_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """For fixtures that live longer than one test; yields the cache folder shared by all tests."""
    cache = Path(CALLER_ENV.get("TRAWL_CACHE_DIR") or tmp_path_factory.mktemp("cache"))
    with pytest.MonkeyPatch.context() as monkeypatch:
        _isolate(monkeypatch, tmp_path_factory.mktemp("home"), cache)
        yield cache


@pytest.fixture(autouse=True)
def _not_the_users_environment(
    _not_the_users_session: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each test has a home folder of its own, so that no test finds what another one left there."""
    _isolate(monkeypatch, tmp_path_factory.mktemp("home"), _not_the_users_session)


@pytest.fixture(autouse=True)
def _nobody_on_the_default_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model server that happens to run on this machine is not found by tests."""
    for name in ("EMBED_URL", "CHAT_URL", "RERANK_URL"):
        monkeypatch.setattr(backends, name, "http://127.0.0.1:9/v1")


@pytest.fixture
def web() -> Iterator[ReplayWeb]:
    """A recorded web with nothing in it yet."""
    with ReplayWeb() as serving:
        yield serving
