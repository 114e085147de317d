"""`trawl URL "question"` and `trawl extract FILE`: the pieces that answer, on the terminal or as JSON."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from trawl.asking import DEFAULT_MAX_TOKENS
from trawl.cli.common import (
    INTERNAL,
    NETWORK,
    NOTHING,
    OK,
    REFUSED,
    AsJson,
    ConfigFile,
    Verbose,
    log_to_stderr,
    progress,
    settings_from,
    told,
)
from trawl.errors import UsageError
from trawl.safety.framing import showable, showable_json, showable_line
from trawl.types import PipelineResult, to_dict

_LARGEST_FILE = 10 * 2**20

MaxTokens = Annotated[int, typer.Option(help="What the pieces may cost, headings included.")]
MaxPieces = Annotated[int | None, typer.Option("-k", help="At most so many pieces.")]
UseRerank = Annotated[bool, typer.Option("--rerank/--no-rerank", help="Let a reranker order the best pieces.")]
UseHyde = Annotated[bool, typer.Option("--hyde", help="Also search with an answer that a chat model makes up.")]
AsMarkdown = Annotated[bool, typer.Option("--markdown", help="Print the pieces as Markdown.")]


def ask(
    url: Annotated[str, typer.Argument(help="One page; https:// may be left out.")],
    query: Annotated[str | None, typer.Argument(help="Without a question: the main content, in order.")] = None,
    k: MaxPieces = None,
    max_tokens: MaxTokens = DEFAULT_MAX_TOKENS,
    render: Annotated[str | None, typer.Option(help="Render in a browser: auto, always or never.")] = None,
    allow_private: Annotated[
        list[str] | None, typer.Option(metavar="HOST[:PORT]", help="A private host that may be reached; repeatable.")
    ] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds for the whole call.")] = None,
    use_rerank: UseRerank = True,
    use_hyde: UseHyde = False,
    as_json: AsJson = False,
    as_markdown: AsMarkdown = False,
    verbose: Verbose = False,
    config: ConfigFile = None,
) -> None:
    """Fetch a page and print the pieces that answer the question."""
    from trawl.engine import Engine

    log_to_stderr(verbose)
    if "://" not in url:
        url = f"https://{url}"
    with (
        told(),
        progress(f"reading {showable_line(url)}") as tell,
        Engine(settings_from(config), allow_private=allow_private or (), progress=tell) as engine,
    ):
        result = engine.fetch_relevant(
            url,
            query,
            k=k,
            max_tokens=max_tokens,
            render=render,
            timeout=timeout,
            use_rerank=use_rerank,
            use_hyde=use_hyde,
        )
    _finish(result, as_json, as_markdown, verbose)


def extract(
    file: Annotated[Path, typer.Argument(help="A saved page (HTML, Markdown, PDF, JSON, XML, text); - for stdin.")],
    url: Annotated[str, typer.Option(help="Where the page came from, for its links.")] = "",
    query: Annotated[str | None, typer.Option(help="Without a question: the main content, in order.")] = None,
    content_type: Annotated[str | None, typer.Option(help="Its media type; default: by the file's name.")] = None,
    k: MaxPieces = None,
    max_tokens: MaxTokens = DEFAULT_MAX_TOKENS,
    use_rerank: UseRerank = True,
    use_hyde: UseHyde = False,
    as_json: AsJson = False,
    as_markdown: AsMarkdown = False,
    verbose: Verbose = False,
    config: ConfigFile = None,
) -> None:
    """Do the same for a local file."""
    from trawl.engine import Engine
    from trawl.extraction.media_types import type_of_name

    log_to_stderr(verbose)
    with told(), progress(f"reading {showable_line(str(file))}") as tell:
        body = _read(file)
        with Engine(settings_from(config), progress=tell) as engine:
            result = engine.extract_relevant(
                body,
                query,
                url=url,
                content_type=content_type or type_of_name(file.name),
                k=k,
                max_tokens=max_tokens,
                use_rerank=use_rerank,
                use_hyde=use_hyde,
            )
    _finish(result, as_json, as_markdown, verbose)


def print_result(result: PipelineResult, *, as_json: bool = False, as_markdown: bool = False) -> None:
    """Print a result on standard output, fit for a terminal; its error and warnings on standard error."""
    if as_json:
        typer.echo(showable_json(to_dict(result)))
        return
    for piece in result.chunks:
        typer.echo(_as_markdown(piece) if as_markdown else _as_text(piece))
    if result.more:
        typer.echo("(the page has more: raise --max-tokens, or -k if you gave it)", err=True)
    for line in ([result.error] if result.error else []) + result.warnings:
        typer.echo(showable_line(line), err=True)


def _as_text(piece: dict[str, Any]) -> str:
    heading = showable_line(piece["heading"] or "")
    return (
        "\n".join(filter(None, [f"[{heading}]" if heading else "", showable(piece["text"]), piece["anchor"], ""]))
        + "\n"
    )


def _as_markdown(piece: dict[str, Any]) -> str:
    heading = showable_line(piece["heading"] or "")
    return (
        "\n\n".join(filter(None, [f"## {heading}" if heading else "", showable(piece["text"]), f"<{piece['anchor']}>"]))
        + "\n"
    )


def _finish(result: PipelineResult, as_json: bool, as_markdown: bool, verbose: bool) -> None:
    print_result(result, as_json=as_json, as_markdown=as_markdown)
    if verbose:
        typer.echo(
            f"{result.outcome} by {result.fetcher_used or '-'}: fetch {result.fetch_ms} ms, "
            f"chunk {result.chunk_ms} ms, retrieve {result.retrieval_ms} ms, in all {result.total_ms} ms; "
            f"{len(result.chunks)} of {result.n_chunks_total} pieces, {result.tokens} tokens; "
            f"{_how_ranked(result)}",
            err=True,
        )
    raise typer.Exit(exit_code(result))


def _how_ranked(result: PipelineResult) -> str:
    how = result.retrieval_diagnostics
    if how.get("mode") == "reading_order":
        return "in reading order"
    if "model" not in how:
        said = "ranked by words"
    else:
        said = (
            f"ranked by words and {how['model']} ({how['backend']}), "
            f"{result.embed_cache_hits} of {result.n_chunks_embedded} vectors known"
        )
    said += ", with a made-up answer" if result.hyde_used else ""
    return said + (f", reranked by {how['reranker']} in {result.rerank_ms} ms" if result.rerank_used else "")


def exit_code(result: PipelineResult) -> int:
    """The exit code that tells a shell script what happened."""
    if result.outcome == "refused":
        return REFUSED
    if result.outcome == "network_error":
        return NETWORK
    if result.outcome == "internal_error":
        return INTERNAL
    if result.outcome not in ("ok", "truncated") or not result.chunks:
        return NOTHING
    return OK


def _read(file: Path) -> bytes:
    try:
        if str(file) == "-":
            body = sys.stdin.buffer.read(_LARGEST_FILE + 1)
        else:
            with file.open("rb") as stream:
                body = stream.read(_LARGEST_FILE + 1)
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from error
    if len(body) > _LARGEST_FILE:
        raise UsageError(f"{file} is larger than {_LARGEST_FILE // 2**20} MB")
    return body
