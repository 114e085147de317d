"""`python -m trawl_mcp` is `trawl-mcp`."""

import os
import sys

# `python -m` looks for modules in the working directory first, and an MCP server starts inside other people's
# repositories: a file named httpx.py there is not ours.
if not sys.flags.safe_path and sys.path[:1] in ([""], [os.getcwd()]):  # noqa: PTH109 - pathlib would be one import more
    del sys.path[0]

from trawl_mcp.server import main

if __name__ == "__main__":
    main()
