"""Formulas to TeX: from the annotation a page carries, else from the MathML itself."""

from __future__ import annotations

import re

from trawl.extraction.dom import Element

_SPACE = re.compile(r"\s+")
_MAX_DEPTH = 40
_IMAGE_CLASSES = frozenset({"latex", "tex", "math", "mathtex", "mathimage"})
_WRAPPED = re.compile(r"\\(?:displaystyle|textstyle)\s*")


def to_tex(element: Element) -> str:
    """TeX of a `math` element, MathJax container or `math/tex` script, without delimiters; empty when there is none."""
    if element.tag == "script":
        return _tidy(element.text()) if element.get("type").lower().startswith("math/tex") else ""
    math = element if element.tag == "math" else next(element.elements("math"), None)
    if math is None:
        return ""
    for annotation in math.elements("annotation"):
        if "tex" in annotation.get("encoding").lower():
            return _tidy(annotation.text())
    return _tidy(math.get("alttext")) or _tidy(_linear(math, 0))


def tex_of_image(image: Element, alt: str) -> str:
    """TeX that stands in the alternative text of a picture of a formula; empty for other pictures."""
    if alt and any(c in _IMAGE_CLASSES or c.startswith("mwe-math-fallback-image") for c in image.classes):
        return _tidy(alt.strip("$"))
    return ""


def _tidy(tex: str) -> str:
    tex = _SPACE.sub(" ", tex).strip()
    if tex.startswith("{") and tex.endswith("}") and "displaystyle" in tex[:20]:
        tex = tex[1:-1]
    return _WRAPPED.sub("", tex, count=1).strip() if tex.startswith("\\") else tex


def _linear(node: Element, depth: int) -> str:
    """MathML read aloud in TeX. Recursion ends at a fixed depth, where the bare text does."""
    if depth > _MAX_DEPTH:
        return node.text()
    if not any(isinstance(c, Element) for c in node.children):
        text = node.text().strip()
        return f"\\text{{{text}}}" if node.tag == "mtext" and text else text
    parts = [
        _linear(c, depth + 1) for c in node.children if isinstance(c, Element) and not c.tag.startswith("annotation")
    ]
    match node.tag, parts:
        case "mfrac", [top, bottom]:
            return f"\\frac{{{top}}}{{{bottom}}}"
        case "msup" | "mover", [base, up]:
            return f"{base}^{{{up}}}"
        case "msub" | "munder", [base, down]:
            return f"{base}_{{{down}}}"
        case "msubsup" | "munderover", [base, down, up]:
            return f"{base}_{{{down}}}^{{{up}}}"
        case "msqrt", _:
            return f"\\sqrt{{{' '.join(parts)}}}"
        case "mroot", [base, index]:
            return f"\\sqrt[{index}]{{{base}}}"
        case "mtr" | "mlabeledtr", _:
            return " & ".join(parts)
        case "mtable", _:
            return " \\\\ ".join(parts)
    return " ".join(p for p in parts if p)
