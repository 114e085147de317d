"""Events are the same however the network cuts the bytes, and never larger than their limit."""

from __future__ import annotations

import itertools

import pytest

from trawl.errors import ModelReplyInvalid
from trawl.llama.protocol import sse
from trawl.llama.protocol.sse import Event, EventReader


def read(*portions: bytes) -> list[Event]:
    reader = EventReader()
    events = [event for portion in portions for event in reader.feed(portion)]
    return events + reader.end()


STREAMS = {
    "line feeds": (b"data: a\n\ndata: b\n\n", [Event("", "a"), Event("", "b")]),
    "carriage returns with line feeds": (b"data: a\r\n\r\ndata: b\r\n\r\n", [Event("", "a"), Event("", "b")]),
    "carriage returns": (b"data: a\r\rdata: b\r\r", [Event("", "a"), Event("", "b")]),
    "a mixture": (b"data: a\r\n\ndata: b\n\r\n\rdata: c\r\r\n", [Event("", x) for x in "abc"]),
    "no space after the colon": (b"data:a\n\n", [Event("", "a")]),
    "one space only is dropped": (b"data:  a \n\n", [Event("", " a ")]),
    "several lines of data": (b"data: a\ndata:\ndata: b\n\n", [Event("", "a\n\nb")]),
    "comments and unknown fields": (b": ping\n\nid: 7\nretry: 5\nfoo\ndata: a\n: x\n\n:\n\n", [Event("", "a")]),
    "a named event": (b"event: error\ndata: a\n\ndata: b\n\n", [Event("error", "a"), Event("", "b")]),
    "an error field of its own": (b"error: {}\n\ndata: b\n\n", [Event("error", "{}"), Event("", "b")]),
    "data without anything": (b"data\n\ndata:\n\ndata: \n\nevent: x\n\ndata: a\n\n", [Event("", "a")]),
    "a byte order mark": (b"\xef\xbb\xbfdata: a\n\n", [Event("", "a")]),
    "characters of several bytes": ("data: é語😀\n\ndata: ü\n\n".encode(), [Event("", "é語😀"), Event("", "ü")]),
    "characters that look like line ends": ("data: a\u2028b\x85c\x0b\n\n".encode(), [Event("", "a\u2028b\x85c\x0b")]),
    "what is no UTF-8": (b"data: a\xff\xc3\n\n", [Event("", "a\ufffd\ufffd")]),
    "no end of the last event": (b"data: a\n\ndata: b\n", [Event("", "a"), Event("", "b")]),
    "no end of the last line": (b"data: a\n\ndata: b", [Event("", "a"), Event("", "b")]),
    "nothing": (b"", []),
    "only line ends": (b"\n\r\n\r\r\n", []),
}


@pytest.mark.parametrize(("stream", "expected"), STREAMS.values(), ids=STREAMS.keys())
def test_a_stream_cut_anywhere_gives_the_same_events(stream: bytes, expected: list[Event]) -> None:
    assert read(stream) == expected
    assert read(*(stream[i : i + 1] for i in range(len(stream)))) == expected
    for first, second in itertools.combinations(range(len(stream) + 1), 2):
        assert read(stream[:first], stream[first:second], stream[second:]) == expected


def test_an_event_is_given_as_soon_as_it_is_whole() -> None:
    reader = EventReader()
    assert reader.feed(b"data: a\n") == []
    assert reader.feed(b"\n") == [Event("", "a")]
    assert reader.feed(b"data: b\r\n\r") == [Event("", "b")]
    assert reader.feed(b"\n") == []


@pytest.mark.parametrize(
    "portion",
    [b"x" * 1024, b"data: " + b"x" * 1000 + b"\n", b"data: " + b"x" * sse.MAX_EVENT_BYTES],
    ids=["a line", "an event", "one portion"],
)
def test_what_does_not_end_is_refused(portion: bytes) -> None:
    with pytest.raises(ModelReplyInvalid, match="larger"):
        read(*itertools.repeat(portion, sse.MAX_EVENT_BYTES // 900))


def test_many_events_in_all_may_be_larger_than_one() -> None:
    event = b"data: " + b"x" * 1000 + b"\n\n"
    assert sum(len(EventReader().feed(event)) for _ in range(sse.MAX_EVENT_BYTES // 900)) > 1000


def test_a_long_line_in_tiny_portions_takes_no_quadratic_time() -> None:
    reader = EventReader()
    for _ in range(sse.MAX_EVENT_BYTES // 4):
        assert reader.feed(b"xy") == []
