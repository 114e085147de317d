"""A recorded web on loopback, so that tests use real URLs and real bodies without the internet.

    with ReplayWeb() as web:
        web.add("https://example.com/", "<p>Hello</p>")
        AsyncEngine(connect_to=web.connect_to, settings=Settings(ca_file=web.ca_file))

`web` is the server, `faults` what it can do wrong, `encodings` compressed bodies and bombs, `client` plain httpx
clients that reach it, `data` the recorded pages and questions, `record` the recorder.
"""

from tests.replay.client import async_replay_client, replay_client
from tests.replay.data import (
    REPO,
    load_payload_index,
    load_questions,
    payloads_dir,
    qa_dir,
    require_data,
    wcxb_dir,
    wcxb_page,
)
from tests.replay.encodings import bomb, encode
from tests.replay.faults import Drip, Endless, Fault, Raw, Reset, SlowFirstByte, WrongLength
from tests.replay.web import Answer, ReplayWeb, Request, connect_to_from

__all__ = [
    "REPO",
    "Answer",
    "Drip",
    "Endless",
    "Fault",
    "Raw",
    "ReplayWeb",
    "Request",
    "Reset",
    "SlowFirstByte",
    "WrongLength",
    "async_replay_client",
    "bomb",
    "connect_to_from",
    "encode",
    "load_payload_index",
    "load_questions",
    "payloads_dir",
    "qa_dir",
    "replay_client",
    "require_data",
    "wcxb_dir",
    "wcxb_page",
]
