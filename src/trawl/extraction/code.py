"""Code listings: exact text without line numbers and buttons, and the language their markup names."""

from __future__ import annotations

import re

from trawl.extraction.dom import Child, Element, names

_GUTTER = names(
    "gutter lineno linenos linenodiv line-number line-numbers line-numbers-rows linenumber lnum lnt ln blob-num"
    " hljs-ln-numbers hljs-ln-n rouge-gutter gl code-line-number linenumbers"
)
_CODE_CELL = names("code blob-code blob-code-inner js-file-line hljs-ln-code rouge-code line-content highlight")
_COPY = re.compile(r"(?:copy|copied|kopier|copier|copiar|复制|複製|コピー|복사)", re.I)
_COPY_CHARS = 30
_FURNITURE = frozenset({"button", "clipboard-copy", "script", "style", "template"})
_LINE_TAGS = frozenset({"div", "p", "li", "tr", "section"})
_LANGUAGE_CLASS = re.compile(
    r"(?:language|lang|highlight-source|highlight-text|highlight|brush|code|sourcecode)[-:_]\s*([a-z0-9+#.-]+);?", re.I
)
_BRUSH = re.compile(r"brush:\s*([a-z0-9+#.-]+)", re.I)
_NOT_A_LANGUAGE = names(
    "default text plain plaintext none txt notranslate block wrapper wrap container box example sample inner snippet"
    " area toolbar content highlight code lines line view viewer body cell mirror language"
)
_KNOWN = names(
    "bash c c# c++ clojure console cpp cs csharp css dart diff dockerfile elixir erlang fortran go graphql"
    " groovy haskell hcl html http ini java javascript js json jsx julia kotlin latex less lisp lua makefile"
    " markdown matlab nginx objectivec ocaml perl php powershell prolog protobuf py python r rb ruby rust sass"
    " scala scheme scss sh shell sql swift terraform toml ts tsx typescript vb verilog vim xml yaml yml zig"
)
_NUMBERS_ONLY = re.compile(r"\s*1(?:\s+\d+)*\s*")


def read_listing(element: Element) -> str | None:
    """The text of a `pre` with its exact white space; None when it holds nothing but line numbers."""
    text = _lines(element)
    if _NUMBERS_ONLY.fullmatch(text) and "\n" in text.strip():
        return None
    return _trimmed(text)


def read_code_table(table: Element) -> str | None:
    """The code of a table with a column of line numbers, or with a line of code in each row; None for other tables."""
    rows = []
    gutters = 0
    for row in table.elements("tr"):
        cells = [c for c in row.children if isinstance(c, Element) and c.tag in ("td", "th")]
        code = [c for c in cells if not _is_gutter(c)]
        gutters += len(cells) - len(code)
        rows.append(code)
        if len(rows) > 2 and not gutters:
            return None
    if not gutters or not any(rows):
        return None
    has_code = any(
        not _CODE_CELL.isdisjoint(c.classes) or next(c.elements("pre", "code"), None) is not None
        for r in rows
        for c in r
    )
    if not has_code:
        return None
    return _trimmed("\n".join(_lines(c).removesuffix("\n") for row in rows for c in row if row))


def _is_gutter(cell: Element) -> bool:
    if not _GUTTER.isdisjoint(cell.classes) or "data-line-number" in cell.attrs:
        return True
    inner = next(cell.elements("pre", "div", "span"), None)
    if inner is not None and not _GUTTER.isdisjoint(inner.classes):
        return bool(re.fullmatch(r"[\d\s]*", cell.text()))
    return False


def _lines(element: Element) -> str:
    """The text below with `br` and line elements as line ends."""
    out: list[str] = []
    stack: list[Child | None] = [*reversed(element.children)]
    while stack:
        node = stack.pop()
        if node is None:
            if out and not out[-1].endswith("\n"):
                out.append("\n")
        elif isinstance(node, str):
            out.append(node)
        elif node.tag == "br":
            out.append("\n")
        elif node.tag in _FURNITURE or (
            not _GUTTER.isdisjoint(node.classes) and re.fullmatch(r"[\d\s]*", node.text()) is not None
        ):
            continue
        else:
            if node.tag in _LINE_TAGS:
                if out and not out[-1].endswith("\n"):
                    out.append("\n")
                stack.append(None)
            stack.extend(reversed(node.children))
    return "".join(out).replace("\r\n", "\n").replace("\r", "\n")


def is_block_code(element: Element) -> bool:
    """Whether a `code` is a listing though no `pre` is around it: several lines, kept apart by style or markup."""
    first = next((c for c in element.children if not isinstance(c, str) or not c.isspace()), None)
    if first is None or "\n" not in _lines(element).strip():
        return False
    shown_as_is = re.search(r"white-space\s*:\s*(?:pre|break-spaces)", element.get("style")) is not None
    by_line = any(e.tag in ("br", "div") or "line" in e.classes for e in element.elements())
    return shown_as_is or by_line or bool(language_of_classes(element.get("class")))


def is_copy_button(element: Element) -> bool:
    """Whether an element copies what stands beside it, and says so."""
    if element.tag == "clipboard-copy":
        return True
    if element.tag != "button" and element.get("role") != "button":
        return False
    text = ""
    for node in element.descend():
        if isinstance(node, str):
            text += node.strip()
            if len(text) > _COPY_CHARS:
                return False
    named = f"{element.get('class')} {element.get('aria-label')} {element.get('title')} {element.get('id')}"
    return bool(_COPY.match(text) or re.search(r"copy|clipboard", named, re.I))


def _trimmed(text: str) -> str:
    """`text` without empty lines at its ends."""
    lines = text.rstrip().split("\n")
    while lines and not lines[0].strip():
        lines.pop(0)
    return "\n".join(lines)


def language_of_classes(classes: str) -> str:
    """The language that a `class` attribute names; empty when it names none."""
    for found in (*_BRUSH.findall(classes), *(m[1] for c in classes.split() if (m := _LANGUAGE_CLASS.fullmatch(c)))):
        language: str = found.lower().removeprefix("source-")
        if language not in _NOT_A_LANGUAGE and len(language) <= 20:
            return language
    return ""


def language_of(element: Element) -> str:
    """The language named on the listing, on the code in it, or on a wrapper; empty when none is."""
    inside = next(element.elements("code"), None)
    nearest = [e for _, e in zip(range(4), element.ancestors(), strict=False)]
    candidates = [inside, *nearest] if inside is not None else nearest
    for candidate in candidates:
        for name in ("data-lang", "data-language"):
            value = candidate.get(name).strip().lower()
            if re.fullmatch(r"[a-z0-9+#.-]{1,20}", value) and value not in _NOT_A_LANGUAGE:
                return value
        if candidate.tag in ("pre", "code") and candidate.get("lang").lower() in _KNOWN:
            return candidate.get("lang").lower()
        classes = candidate.get("class")
        if not classes or candidate.tag in ("body", "html"):
            continue
        if language := language_of_classes(classes):
            return language
    for candidate in candidates[:2]:
        for name in candidate.classes:
            if name.lower() in _KNOWN:
                return name.lower()
    return ""


def fence_for(text: str) -> str:
    """A fence longer than any run of backticks in `text`."""
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    return "`" * (longest + 1)
