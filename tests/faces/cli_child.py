"""The `trawl` command, whose engines dial the recorded web: TABLE SETTINGS ARGS..."""

import json
import sys

import trawl.engine
from trawl.settings import Settings

TABLE = {(host, port): (to, to_port) for host, port, to, to_port in json.loads(sys.argv.pop(1))}
SETTINGS = Settings.model_validate(json.loads(sys.argv.pop(1)))
real = trawl.engine.Engine


def engine(_settings, **options):
    return real(SETTINGS, connect_to=TABLE, **options)


trawl.engine.Engine = engine

if __name__ == "__main__":
    from trawl.cli import main

    main()
