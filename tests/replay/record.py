"""Records pages for the replay web, for people with internet: `python -m tests.replay.record URL... --out FOLDER`.

Each answer (each hop of a redirect too) becomes a file and a line in FOLDER/index.jsonl, as `ReplayWeb.add_payload`
reads them. Bodies are kept decoded; cookies are not kept, they may belong to somebody.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import mimetypes
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

MAX_BYTES = 20 * 2**20
MAX_HOPS = 10
_DROPPED = {"connection", "content-encoding", "content-length", "keep-alive", "set-cookie", "transfer-encoding"}


def record(url: str, out: Path, client: httpx.Client) -> list[dict[str, Any]]:
    """Fetch `url` and what it redirects to into `out`; returns the new rows of the index.

    Raises:
        httpx.HTTPError: the network or the server failed.
        ValueError: a body is larger than `MAX_BYTES`, or the redirects do not end.
    """
    out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    next_request: httpx.Request | None = client.build_request("GET", url)
    while next_request is not None:
        if len(rows) > MAX_HOPS:
            raise ValueError(f"{url}: more than {MAX_HOPS} redirects")
        response = client.send(next_request, stream=True, follow_redirects=False)
        try:
            body = _read(response)
        finally:
            response.close()
        rows.append(_keep(response, body, out))
        next_request = response.next_request
    return rows


def _read(response: httpx.Response) -> bytes:
    body = bytearray()
    for part in response.iter_bytes(65_536):
        body += part
        if len(body) > MAX_BYTES:
            raise ValueError(f"{response.url}: the body is larger than {MAX_BYTES} bytes")
    return bytes(body)


def _keep(response: httpx.Response, body: bytes, out: Path) -> dict[str, Any]:
    url = str(response.url)
    content_type = response.headers.get("content-type", "")
    name = _file_name(url, content_type)
    (out / name).write_bytes(body)
    row = {
        "file": name,
        "kind": "recorded",
        "url": url,
        "content_type": content_type,
        "status": response.status_code,
        "headers": {k: v for k, v in response.headers.items() if k not in _DROPPED},
        "status_recorded": True,
        "bytes": len(body),
        "sha256": hashlib.sha256(body).hexdigest(),
    }
    with (out / "index.jsonl").open("a", encoding="utf-8") as index:
        index.write(json.dumps(row, ensure_ascii=False) + "\n")
    return row


def _file_name(url: str, content_type: str) -> str:
    """Readable, safe in every file system, and different for different URLs."""
    readable = re.sub(r"[^a-z0-9]+", "_", url.partition("://")[2].lower()).strip("_")[:60]
    extension = mimetypes.guess_extension(content_type.partition(";")[0].strip()) or ".bin"
    return f"{readable}_{hashlib.sha256(url.encode()).hexdigest()[:8]}{extension}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Record every URL given; 1 when one of them failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.replay.record", description="Record pages for tests.")
    parser.add_argument("urls", nargs="+", metavar="URL")
    parser.add_argument("--out", type=Path, required=True, help="folder for the bodies and index.jsonl")
    options = parser.parse_args(arguments)
    failed = 0
    with httpx.Client(timeout=30, headers={"User-Agent": "trawl-recorder"}) as client:
        for url in options.urls:
            try:
                rows = record(url, options.out, client)
            except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
                failed += 1
                print(f"{url}: {error}", file=sys.stderr)
            else:
                print(*(f"{row['status']} {row['url']} -> {row['file']}" for row in rows), sep="\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
