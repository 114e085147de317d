"""All settings as one frozen object. Only `Settings.from_env` reads the environment, and only the edges call it.

Sources, the later winning: defaults, the user's config file (`trawl/env` in the user's configuration folder, or the
file named by `--config` or `TRAWL_ENV_FILE`), environment variables `TRAWL_*`. A file lying in the working directory is
never read: an MCP server starts inside other people's repositories.

A value that does not parse falls back to its default with a warning: one wrong number must not stop a running agent.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import platformdirs
from dotenv import dotenv_values
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator

from trawl.deadline import LONGEST_TIMEOUT
from trawl.errors import UsageError
from trawl.types import Render

log = logging.getLogger(__name__)

PREFIX = "TRAWL_"
NAMES = {"hf_endpoint": "HF_ENDPOINT"}
"""Variables that have a name of their own, because other programs read them too."""


def default_config_file() -> Path:
    """Where the user's config file is looked for."""
    return Path(platformdirs.user_config_dir("trawl")) / "env"


def _runtime_dir() -> Path:
    with warnings.catch_warnings():
        # Without XDG_RUNTIME_DIR a folder below /tmp does: what is put there is checked for its owner.
        warnings.simplefilter("ignore")
        return Path(platformdirs.user_runtime_dir("trawl"))


def variable_of(field: str) -> str:
    """The environment variable that sets a field."""
    return NAMES.get(field, PREFIX + field.upper())


class Settings(BaseModel):
    """Every setting with its default; field `embed_url` is variable `TRAWL_EMBED_URL` (see `variable_of`)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    timeout: float = Field(default=30.0, gt=0, le=LONGEST_TIMEOUT)
    """Seconds one call may take in all, when the call itself names no timeout."""
    render: Render = "auto"
    """Whether pages are rendered in a browser: `auto`, `always`, `never`."""
    max_bytes: int = Field(default=10 * 2**20, gt=0)
    """Decoded bytes read of one body; what is beyond is cut and told as `truncated`."""
    passthrough_max_bytes: int = Field(default=262_144, gt=0)
    """The same for JSON, XML and feeds."""
    user_agent: str = ""
    """User agent of plain requests and of the browser; empty: that of a current Chromium on this platform."""
    accept_language: str = "en-US,en;q=0.9"
    """Accept-Language of requests; its first tag is the browser's locale."""
    ca_file: Path | None = None
    """PEM file of certificate authorities trusted besides the usual ones; the browser keeps to its own store."""
    browser: Path | None = None
    """The Chromium to run; None: Playwright's own, `chromium`, `google-chrome`, in this order."""

    embed_url: str | None = None
    """Base URL of an OpenAI-compatible embeddings server; None: localhost:8081/v1 if what answers there checks out."""
    embed_model: str = "bge-m3"
    """Model name sent to it."""
    embed_api_key: SecretStr | None = None
    embedded: bool = True
    """Start the embedded llama-server when no endpoint answers and `trawl[embedded]` is installed."""
    embed_cache_ttl: int = Field(default=3600, ge=0)
    """Seconds a vector is kept after its last use; 0: none is kept."""
    embed_cache_max_mb: int = Field(default=512, ge=0)
    """Size of the vectors kept, in MB; 0: none is kept."""
    chunk_budget: int = 100
    """How many chunks BM25 lets through to the embedder; 0 or less: all."""

    rerank_url: str | None = None
    """Base URL of a server with `/rerank`; None: localhost:8083/v1 if what answers there checks out."""
    rerank_model: str = "bge-reranker-v2-m3"
    rerank_api_key: SecretStr | None = None
    rerank_include_title: bool = True
    """Give the reranker the page title with each piece."""
    rerank_max_docs: int = 30
    """Pieces sent to the reranker; 0 or less: all."""
    rerank_max_per_doc_chars: int = 1500
    """Characters of one piece; 0 or less: all."""
    rerank_max_chars: int = 40_000
    """Characters of question and pieces together; 0 or less: all."""

    hyde_url: str | None = None
    """Base URL of a chat server for `use_hyde`; None: localhost:8082/v1."""
    hyde_model: str = "gemma"
    hyde_api_key: SecretStr | None = None
    hyde_slot: int | None = Field(default=None, ge=0)
    """The llama-server slot it is pinned to."""

    vlm_url: str | None = None
    """Base URL of a vision server; None: there is none."""
    vlm_model: str = "gemma"
    vlm_api_key: SecretStr | None = None
    vlm_slot: int | None = Field(default=None, ge=0)
    """The llama-server slot it is pinned to."""

    max_inflight: int = Field(default=2, ge=1, le=64)
    """Pieces of work a model server is given at once."""
    queue_depth: int = Field(default=8, ge=0)
    """How many may wait for it; who comes later is turned away at once."""
    queue_wait: float = Field(default=20.0, ge=0)
    """Seconds one may wait."""

    hf_endpoint: str = "https://huggingface.co"
    """Where `trawl models pull` gets its files (environment variable `HF_ENDPOINT`, as everybody calls it)."""
    cache_dir: Path = Field(default_factory=lambda: Path(platformdirs.user_cache_dir("trawl")))
    """Where models are kept."""
    store_path: Path = Field(default_factory=lambda: Path(platformdirs.user_cache_dir("trawl")) / "store.sqlite3")
    """The one file everything else that is kept lies in."""
    runtime_dir: Path = Field(default_factory=_runtime_dir)
    """Where the processes of this user find the embedded server they share; must be on this machine."""

    @field_validator("embed_url", "rerank_url", "hyde_url", "vlm_url", "hf_endpoint")
    @classmethod
    def _http_only(cls, value: str | None) -> str | None:
        if value and not value.startswith(("http://", "https://")):
            raise ValueError("must begin with http:// or https://")
        return value.rstrip("/") if value else None

    @field_validator("ca_file", "browser", "cache_dir", "store_path", "runtime_dir")
    @classmethod
    def _home_expanded(cls, value: Path | None) -> Path | None:
        try:
            return value.expanduser() if value else value
        except RuntimeError as error:
            raise ValueError("begins with the home folder of a user who is not known") from error

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, config_file: Path | None = None) -> Self:
        """Settings of this user and process.

        Args:
            environ: the environment; `os.environ` when None.
            config_file: the config file; None: the one named by `TRAWL_ENV_FILE`, else the user's own if it exists.

        Raises:
            UsageError: a config file was named but cannot be read.
        """
        environ = os.environ if environ is None else environ
        named = config_file or (Path(environ["TRAWL_ENV_FILE"]) if environ.get("TRAWL_ENV_FILE") else None)
        in_file = _read_config(named)
        variables = {name: variable_of(name) for name in cls.model_fields}
        for unknown in sorted(set(in_file).difference(variables.values())):
            log.warning("the config file sets %s, which is no setting of trawl", unknown)
        values = {**in_file, **environ}
        given = {name: values[v].strip() for name, v in variables.items() if values.get(v, "").strip()}
        return cls._dropping_invalid(given)

    @classmethod
    def _dropping_invalid(cls, given: dict[str, str]) -> Self:
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            wrong = {str(e["loc"][0]): e["msg"] for e in error.errors()}
        for name, message in wrong.items():
            # The value itself may be a secret: name the variable only.
            log.warning("%s is ignored, the default holds: %s", variable_of(name), message)
        return cls.model_validate({k: v for k, v in given.items() if k not in wrong})


def _read_config(named: Path | None) -> dict[str, str]:
    path = named or default_config_file()
    if not path.is_file():
        if named:
            raise UsageError(f"the config file {named} does not exist", hint="Check --config or TRAWL_ENV_FILE.")
        return {}
    try:
        # interpolate=False: `$` in a key or a password is itself.
        return {k: v for k, v in dotenv_values(path, interpolate=False).items() if v is not None}
    except (OSError, UnicodeDecodeError) as error:
        if named:
            raise UsageError(f"the config file {named} cannot be read: {error}") from error
        log.warning("the config file %s cannot be read and is ignored: %s", path, error)
        return {}
