"""`python -m trawl_mcp` is `trawl-mcp`."""

from trawl_mcp.server import main

if __name__ == "__main__":
    main()
