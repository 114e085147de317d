"""Server-sent events, from bytes as they come off the wire: an incremental reader of `text/event-stream`.

The format is the HTML standard's (section "Server-sent events"), read leniently where model servers differ: the last
event need not end with an empty line, one with blank data is none (a ping), and a field `error` (llama-server before
2025) is an event of that name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from trawl.errors import ModelReplyInvalid

MAX_EVENT_BYTES = 1 << 20
"""One event, and one line; a piece of a chat is a few hundred bytes."""

_END_OF_LINE = re.compile(rb"\r\n|\r|\n")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Event:
    """One event with data. `name` is empty unless the server named it."""

    name: str
    data: str


class EventReader:
    """Give it the bytes in any portions; it gives the events they complete.

    Raises:
        ModelReplyInvalid: a line or an event is larger than `MAX_EVENT_BYTES`.
    """

    def __init__(self, url: str | None = None) -> None:
        self._url = url
        self._line: list[bytes] = []
        """Portions of the line that has not ended yet."""
        self._line_bytes = 0
        self._after_return = False
        """The last byte was a carriage return: a line feed that follows belongs to it."""
        self._first = True
        self._name = ""
        self._data: list[str] = []
        self._data_bytes = 0

    def feed(self, portion: bytes) -> list[Event]:
        """The events that `portion` completes."""
        if not portion:
            return []
        if self._after_return and portion.startswith(b"\n"):
            portion = portion[1:]
        self._after_return = portion.endswith(b"\r")
        *ended, rest = _END_OF_LINE.split(portion)
        events = []
        for piece in ended:
            self._keep(piece)
            if event := self._end_line():
                events.append(event)
        self._keep(rest)
        return events

    def end(self) -> list[Event]:
        """The event that the end of the stream completes, if one was begun."""
        events = [self._end_line(), self._dispatch()]
        return [event for event in events if event]

    def _keep(self, piece: bytes) -> None:
        if not piece:
            return
        self._line.append(piece)
        self._line_bytes += len(piece)
        self._bound(self._line_bytes)

    def _end_line(self) -> Event | None:
        line = b"".join(self._line)
        self._line.clear()
        self._line_bytes = 0
        if self._first:
            line = line.removeprefix(_BYTE_ORDER_MARK)
            self._first = False
        if not line:
            return self._dispatch()
        # Decoded only now: a character may come in two portions, a line ends between characters.
        field, _, value = line.decode("utf-8", "replace").partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            self._name = value
        elif field in ("data", "error"):
            self._name = "error" if field == "error" else self._name
            self._data.append(value)
            self._data_bytes += len(line)
            self._bound(self._data_bytes)
        return None

    def _dispatch(self) -> Event | None:
        data = "\n".join(self._data)
        event = Event(self._name, data) if data.strip() else None
        self._name = ""
        self._data.clear()
        self._data_bytes = 0
        return event

    def _bound(self, size: int) -> None:
        if size > MAX_EVENT_BYTES:
            raise ModelReplyInvalid(f"one event of its stream is larger than {MAX_EVENT_BYTES} bytes", url=self._url)
