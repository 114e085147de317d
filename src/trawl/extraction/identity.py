"""The name of a document: the same body read by the same version of an extractor has the same."""

from __future__ import annotations

import hashlib


def document_id(body: bytes, version: str) -> str:
    """A short name for what this body gives when this version of the extractor reads it."""
    return hashlib.sha256(version.encode() + b"\0" + body).hexdigest()[:16]
