"""What `make run` does: answer the question in QUERY about the page at URL, both taken from the environment.

Without URL it asks about the page in `site/`, served on loopback, which therefore has to be allowed.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from urllib.parse import urlsplit

from serve import serve_example

from trawl import Engine
from trawl.cli.ask import exit_code, print_result
from trawl.cli.common import progress

DEFAULT_QUERY = "How long may I wait at the hut when the red flag is up, and what does it cost?"


def main() -> int:
    """Print the pieces; the exit code is that of the `trawl` command."""
    url = os.environ.get("URL", "").strip()
    query = os.environ.get("QUERY", "").strip() or None
    with ExitStack() as stack:
        allowed = []
        if not url:
            url = stack.enter_context(serve_example())
            allowed.append(urlsplit(url).netloc)
            query = query or DEFAULT_QUERY
            print(f"No URL given: asking the example page.\n\n  {query}\n")
        elif "://" not in url:
            url = f"https://{url}"
        with progress("reading the page") as tell, Engine(allow_private=allowed, progress=tell) as engine:
            result = engine.fetch_relevant(url, query)
        print_result(result)
        return exit_code(result)


if __name__ == "__main__":
    sys.exit(main())
