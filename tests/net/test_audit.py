"""Who opens connections: during whole calls, libraries included, only the dialer, the model client and the browser's
driver and proxy, and only to where they may. Watched from below, by an audit hook of the interpreter."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.replay import ReplayWeb
from trawl.net.browser import find_browser
from trawl.settings import Settings

NOBODY = "http://127.0.0.1:9/v1"
SITE = "http://site.example.com"
PROSE = "<p>The hut has a stove and eleven bunks, and the key hangs behind the door.</p>" * 8
PDF = (
    b"%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\n2 0 obj<</Type/Pages/Kids[]/Count 0>>endobj\n"
    b"trailer<</Root 1 0 R>>"
)

URLLIB3_LOOKS_FOR_IPV6 = ("socket.bind", ["::1", 0])
"""When it is imported, which Trafilatura does; nothing listens and nothing is sent."""

# A hook cannot be removed: it needs a process of its own. Libraries connect in tasks of their own, so who caused it is
# not on the stack; a context variable, which tasks inherit, says which door was open.
CHILD = """
    import contextvars, json, sys

    seen = []
    door = contextvars.ContextVar("door", default="none")

    WATCHED = {"socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr", "socket.bind",
               "socket.sendto", "socket.sendmsg", "urllib.Request", "http.client.connect", "ftplib.connect",
               "smtplib.connect", "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn"}

    def hook(event, args):
        if event in WATCHED:
            if event == "subprocess.Popen":
                what = [str(part) for part in args[1]]
            elif event in ("socket.connect", "socket.bind", "socket.sendto"):
                what = list(args[1]) if isinstance(args[1], tuple) else str(args[1])
            else:
                what = [str(part) for part in args]
            seen.append([event, what, door.get()])

    sys.addaudithook(hook)

    import asyncio
    from trawl.engine import AsyncEngine
    from trawl.llama.client import LlamaClient
    from trawl.net.dialer import Dialer
    from trawl.net.proxy import BrowserProxy
    from trawl.settings import Settings

    def through(cls, method, name):
        original = getattr(cls, method)

        async def opened(*args, **options):
            token = door.set(name)
            try:
                return await original(*args, **options)
            finally:
                door.reset(token)

        setattr(cls, method, opened)

    through(Dialer, "_connect", "dialer")
    through(LlamaClient, "_ask", "model")
    through(BrowserProxy, "start", "proxy")

    async def main():
        table = {(host, port): (to, to_port) for host, port, to, to_port in json.loads(sys.argv[1])}
        settings = Settings.model_validate(json.loads(sys.argv[2]))
        outcomes = []
        async with AsyncEngine(settings, connect_to=table) as engine:
            for url in sys.argv[3:]:
                result = await engine.fetch_relevant(url, "where does the key hang?")
                outcomes.append([result.outcome, len(result.chunks), result.fetcher_used])
        print(json.dumps([outcomes, seen]))

    asyncio.run(main())
"""


def watched(web: ReplayWeb, urls: list[str], **settings: object) -> tuple[list[list[object]], list[list[object]]]:
    """Outcomes of the calls, and every event of the hook."""
    command = [sys.executable, "-P", "-c", textwrap.dedent(CHILD), web.connect_to_json(), json.dumps(settings), *urls]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=True)
    outcomes, seen = json.loads(done.stdout)
    return outcomes, seen


@pytest.fixture
def urls(web: ReplayWeb) -> list[str]:
    hostile = (
        "<!DOCTYPE html SYSTEM 'http://dtd.example.com/x.dtd'><html><head><base href='http://base.example.com/'>"
        "<link rel=stylesheet href='http://css.example.com/'><title>Hut</title></head>"
        f"<body><iframe src='http://frame.example.com/'></iframe><img src='http://img.example.com/'>{PROSE}</body></html>"
    )
    xml = (
        "<?xml version='1.0'?><!DOCTYPE r SYSTEM 'http://dtd.example.com/r.dtd' [<!ENTITY e SYSTEM "
        "'http://entity.example.com/'>]><r><item>the key hangs &e; behind the door</item></r>"
    )
    web.add(f"{SITE}/hostile", hostile)
    web.add(f"{SITE}/feed.xml", xml, content_type="application/xml")
    web.add(f"{SITE}/page.pdf", PDF, content_type="application/pdf")
    web.redirect(f"{SITE}/away", "http://127.0.0.1:9/")
    return [f"{SITE}/{name}" for name in ("hostile", "feed.xml", "page.pdf", "away")] + ["http://localhost:9/"]


def test_plain_calls_connect_through_the_dialer_alone(web: ReplayWeb, urls: list[str]) -> None:
    outcomes, seen = watched(web, urls, render="never", embedded=False, embed_url=NOBODY, rerank_url=NOBODY)
    found = [outcome for outcome, _, _ in outcomes]
    assert found[0] == "ok"
    assert found[3:] == ["refused", "refused"]
    connected = {(door, *where) for event, where, door in seen if event == "socket.connect"}
    assert connected == {("dialer", "127.0.0.1", web.http_port), ("model", "127.0.0.1", 9)}
    others = [(event, what) for event, what, _ in seen if event not in ("socket.connect", "subprocess.Popen")]
    others = [other for other in others if other != URLLIB3_LOOKS_FOR_IPV6]
    # The addresses dialled are literals already; the libraries ask the resolver about them for form's sake.
    assert all(event == "socket.getaddrinfo" and "127.0.0.1" in what[0] for event, what in others), others
    started = [what for event, what, _ in seen if event == "subprocess.Popen"]
    assert all("trawl._worker" in what for what in started), started


@pytest.mark.browser
@pytest.mark.skipif(find_browser(Settings()) is None, reason="no Chromium is installed")
def test_rendered_calls_connect_through_the_dialer_alone(web: ReplayWeb, urls: list[str]) -> None:
    outcomes, seen = watched(web, urls[:1], render="always", embedded=False, embed_url=NOBODY, rerank_url=NOBODY)
    assert outcomes[0][0] == "ok"
    assert str(outcomes[0][2]).startswith("playwright")
    for event, where, door in seen:
        if event == "socket.connect":
            assert (door, *where) in (("dialer", "127.0.0.1", web.http_port), ("model", "127.0.0.1", 9))
        elif event == "socket.bind" and (event, where) != URLLIB3_LOOKS_FOR_IPV6:
            assert (door, where[0]) == ("proxy", "127.0.0.1")
        elif event == "subprocess.Popen":
            assert Path(where[0]).name.startswith("node"), where
