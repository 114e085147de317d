"""One model server as the flow uses it: its client behind its queue, and the lease when it is the embedded one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from trawl.deadline import Deadline
from trawl.errors import ModelReplyInvalid, ModelUnavailable
from trawl.llama.admission import Admission
from trawl.llama.client import LlamaClient
from trawl.llama.rendezvous import Lease

DYING_SECONDS = 0.3
"""A killed process is gone after that, also on a busy machine."""


@dataclass(slots=True)
class Endpoint:
    """Belongs to one event loop; close it with `aclose`."""

    client: LlamaClient
    admission: Admission
    lease: Lease | None = None
    """Of the embedded server; None for a server of somebody else's."""

    @property
    def name(self) -> str:
        """Who computes, for reports: the address without secrets, or `embedded`."""
        return self.admission.name

    @asynccontextmanager
    async def permit(self, deadline: Deadline) -> AsyncIterator[LlamaClient]:
        """The client, for one piece of work.

        Raises:
            ModelBusy: the queue turned the work away.
            ModelUnavailable: no time is left, or the embedded server belongs to the process this one was forked from.
        """
        if self.lease:
            self.lease.check()
            self.lease.touch()
        async with self.admission.permit(deadline):
            yield self.client

    async def ended(self) -> bool:
        """Whether the embedded server has ended, well or not; of other servers nothing is known."""
        if self.lease is None:
            return False
        if self.lease.server_state() == "running":
            # One that was just killed breaks its connections some milliseconds before the system lets it go.
            await asyncio.sleep(DYING_SECONDS)
        return self.lease.server_state() != "running"

    def crashed(self) -> bool:
        """Whether the embedded server ended without saying so."""
        return self.lease is not None and self.lease.server_state() == "crashed"

    async def answers(self, deadline: Deadline) -> bool:
        """Whether the server answers at all, whatever it says."""
        try:
            await self.client.healthy(deadline)
        except ModelReplyInvalid:
            return True
        except ModelUnavailable:
            return False
        return True

    async def aclose(self) -> None:
        """Close connections and give the embedded server back. May be called again."""
        if self.lease:
            self.lease.release()
        await self.client.aclose()
