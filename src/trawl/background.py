"""An event loop in a thread of its own, which lets plain functions call the async engine.

One loop serves one `Engine`. It refuses calls from its own thread (they would wait for themselves), passes Ctrl-C on as
a cancellation, and knows when it is on the wrong side of a fork.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from trawl.errors import EngineError

T = TypeVar("T")

_CLEANUP_SECONDS = 5.0
"""How long an interrupted call may take to close its sockets and processes before the interrupt goes on."""


class BackgroundLoop:
    """Runs coroutines on a daemon thread; started by the first call."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def forked(self) -> bool:
        """True in a child process that inherited this object: its thread does not exist there."""
        return os.getpid() != self._pid

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The coroutine's result. On Ctrl-C it is cancelled, given time to clean up, and KeyboardInterrupt goes on.

        Raises:
            EngineError: the loop is closed, or the caller is the loop's own thread.
        """
        try:
            loop = self._running()
        except EngineError:
            coroutine.close()
            raise
        future = asyncio.run_coroutine_threadsafe(coroutine, loop)
        try:
            return future.result()
        except BaseException:
            if not future.done():
                future.cancel()
                # The future counts as done once cancelled; what it ran may still be closing things.
                self._settle(loop)
            raise

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._closed:
                raise EngineError("the engine is closed", hint="Make a new Engine.")
            if self._thread is threading.current_thread():
                raise EngineError(
                    "a synchronous call was made from the engine's own event loop",
                    hint="Use AsyncEngine there.",
                )
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._serve, args=(self._loop,), name="trawl", daemon=True)
                self._thread.start()
            return self._loop

    @staticmethod
    def _serve(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()

    def _settle(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wait, for a bounded time, until cancelled tasks have ended."""

        async def others() -> None:
            pending = [t for t in asyncio.all_tasks() if t is not asyncio.current_task() and t.cancelling()]
            if pending:
                await asyncio.wait(pending, timeout=_CLEANUP_SECONDS)

        try:
            asyncio.run_coroutine_threadsafe(others(), loop).result(_CLEANUP_SECONDS + 1)
        except (concurrent.futures.TimeoutError, RuntimeError):
            return

    def close(self, farewell: Coroutine[Any, Any, None] | None = None) -> None:
        """Run `farewell` on the loop (if it ever ran), cancel what is left, and end the thread. Idempotent."""
        with self._lock:
            loop, thread = self._loop, self._thread
            already, self._closed = self._closed, True
        if already or loop is None or thread is None or self.forked:
            if farewell is not None:
                farewell.close()
            return
        try:
            if farewell is not None:
                asyncio.run_coroutine_threadsafe(farewell, loop).result(2 * _CLEANUP_SECONDS)
            asyncio.run_coroutine_threadsafe(_cancel_the_rest(), loop).result(_CLEANUP_SECONDS)
        except concurrent.futures.TimeoutError:
            pass  # What would not end is left to the daemon thread, which ends with the process.
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_CLEANUP_SECONDS)
        if not thread.is_alive():
            loop.close()


async def _cancel_the_rest() -> None:
    rest = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
    for task in rest:
        task.cancel()
    if rest:
        await asyncio.wait(rest, timeout=_CLEANUP_SECONDS / 2)
    await asyncio.get_running_loop().shutdown_asyncgens()
