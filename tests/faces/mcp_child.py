"""The MCP server on standard input and output, whose engine dials the recorded web: TABLE SETTINGS"""

import json
import sys

from trawl.engine import AsyncEngine
from trawl.settings import Settings
from trawl_mcp.server import build_server

if __name__ == "__main__":
    table = {(host, port): (to, to_port) for host, port, to, to_port in json.loads(sys.argv[1])}
    settings = Settings.model_validate(json.loads(sys.argv[2]))
    build_server(AsyncEngine(settings, connect_to=table)).run()
