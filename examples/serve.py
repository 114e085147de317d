"""Serves the page in `site/` on loopback, so that the examples need no internet. Alone: `python examples/serve.py`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

SITE = Path(__file__).resolve().parent / "site"


class _QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the name is the base class's)
        pass


@contextmanager
def serve_example() -> Iterator[str]:
    """The URL of the example page, served while the block runs."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_QuietHandler, directory=str(SITE))) as server:
        Thread(target=server.serve_forever, name="example-site", daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()


if __name__ == "__main__":
    with serve_example() as url:
        print(f"serving {SITE} at {url}")
        input("Press Enter to stop. ")
