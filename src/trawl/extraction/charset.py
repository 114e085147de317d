"""Bytes to text: which encoding a page is in, as browsers decide it, and what to do when its label lies."""

from __future__ import annotations

import codecs
import re

from trawl.extraction.dom import names

_BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_META = re.compile(
    rb"<meta[^>]{0,500}?charset\s*=\s*[\"']?\s*([a-zA-Z0-9_:.-]{2,40})|<\?xml[^>]{0,200}?encoding\s*=\s*[\"']([a-zA-Z0-9_:.-]{2,40})",
    re.I,
)
_META_BYTES = 4_096
"""How far a `meta` is looked for; the standard asks for 1,024, pages are not that tidy."""
_SAMPLE_BYTES = 32_768
"""Bytes a detector sees: it takes seconds on megabytes and knows no more afterwards."""
_LABELS = {
    # The WHATWG encoding standard: what a label means on the web, where it is not what Python takes it for.
    "latin-1": "cp1252", "latin1": "cp1252", "iso-8859-1": "cp1252", "iso8859-1": "cp1252", "iso_8859-1": "cp1252",
    "l1": "cp1252", "ascii": "cp1252", "us-ascii": "cp1252", "ansi_x3.4-1968": "cp1252", "x-cp1252": "cp1252",
    "iso-8859-9": "cp1254", "iso8859-9": "cp1254", "latin5": "cp1254", "iso-8859-11": "cp874", "tis-620": "cp874",
    "windows-874": "cp874", "gb2312": "gb18030", "gb_2312-80": "gb18030", "gbk": "gb18030", "x-gbk": "gb18030",
    "chinese": "gb18030", "shift_jis": "cp932", "shift-jis": "cp932", "sjis": "cp932", "x-sjis": "cp932",
    "windows-31j": "cp932", "ms_kanji": "cp932", "ks_c_5601-1987": "cp949", "ks_c_5601": "cp949",
    "ksc5601": "cp949", "euc-kr": "cp949", "korean": "cp949", "windows-949": "cp949", "big5": "big5hkscs",
    "big5-hkscs": "big5hkscs", "x-x-big5": "big5hkscs", "cn-big5": "big5hkscs", "x-euc-jp": "euc_jp",
    "iso-8859-8-i": "iso-8859-8", "logical": "iso-8859-8", "visual": "iso-8859-8", "unicode": "utf-16-le",
    "utf-16": "utf-16-le", "utf8": "utf-8", "unicode-1-1-utf-8": "utf-8", "x-mac-roman": "mac-roman",
    "macintosh": "mac-roman", "x-mac-cyrillic": "mac-cyrillic", "koi8": "koi8-r", "koi8-ru": "koi8-u",
    "windows-1252": "cp1252", "none": "", "binary": "", "user-defined": "", "x-user-defined": "",
}  # fmt: skip
_NOT_TEXT = names(
    "base64 bz2 hex quopri rot_13 uu zlib idna punycode raw_unicode_escape unicode_escape utf_7 undefined"
)
_UNUSED_1252 = re.compile(rb"[\x81\x8d\x8f\x90\x9d]")
_CP1252 = {n: bytes([n]).decode("cp1252") for n in range(0x80, 0xA0) if n not in (0x81, 0x8D, 0x8F, 0x90, 0x9D)}
_COUNTED = 500_000
_LOOKALIKES = frozenset({"cp1250", "cp1254", "cp1257", "iso8859-2", "iso8859-15", "iso8859-10", "mac-roman"})
# ASCII and what Western European pages use of windows-1252: no text in a lookalike has only these.
_WESTERN = bytes(range(0x80)) + "ÄÖÜäöüßÉéèêëàâáçîïíôóòûúùñ¿¡«»©®°·²§£€‚„…‘’“”•–—™\xa0".encode("cp1252")


def encoding_of(label: str | None) -> str | None:
    """The Python codec a label on the web stands for; None for labels nobody knows."""
    if not label:
        return None
    label = label.strip().strip("\"'").lower()
    name = _LABELS.get(label, label)
    try:
        info = codecs.lookup(name) if name else None
    except (LookupError, ValueError):
        return None
    return None if info is None or info.name.replace("-", "_") in _NOT_TEXT else info.name


def decode(body: bytes, declared: str | None) -> tuple[str, str]:
    """The text of `body` and the encoding it was read in. Never raises.

    Asked in this order: byte order mark, the header's label (`declared`), a label in the page, UTF-8, detection.
    A label is believed when the bytes are valid in it, or nearly so; valid UTF-8 beats a label that says otherwise.
    """
    for bom, name in _BOMS:
        if body.startswith(bom):
            return body[len(bom) :].decode(name, "replace"), name
    header = encoding_of(declared)
    meta = _meta_label(body)
    if meta and meta.startswith("utf-16"):
        # Whoever could read this label as ASCII was not reading UTF-16.
        meta = "utf-8"
    labels = [name for name in dict.fromkeys((header, meta)) if name]
    strict = [(name, text) for name in labels if (text := _strictly(body, name)) is not None]
    utf8 = _strictly(body, "utf-8")
    if strict:
        name, text = strict[0]
        if utf8 is not None and not body.isascii() and name != "utf-8":
            # Other bytes are valid UTF-8 by chance only if there are very few of them.
            return utf8, "utf-8"
        return text, name
    if utf8 is not None:
        return utf8, "utf-8"
    for name in dict.fromkeys((*labels, "utf-8")):
        text = body.decode(name, "replace")
        # A few broken bytes in a page are damage; many are another encoding.
        if name != "cp1252" and text.count("\ufffd") < 0.1 * sum(not c.isascii() for c in text[:_COUNTED]):
            return text, name
    name = _utf16_by_zeros(body) or _detected(body) or "cp1252"
    return body.decode(name, "replace"), name


def _meta_label(body: bytes) -> str | None:
    match = _META.search(body[:_META_BYTES])
    return encoding_of((match[1] or match[2]).decode("ascii")) if match else None


def _strictly(body: bytes, name: str) -> str | None:
    """`body` decoded when every byte fits; a character cut off at the end is allowed, as truncated pages have it."""
    if name == "cp1252":
        # The web's windows-1252 has no invalid byte: the five empty places are control characters.
        return None if len(_UNUSED_1252.findall(body, 0, 100_000)) > 3 else body.decode("latin-1").translate(_CP1252)
    try:
        return codecs.getincrementaldecoder(name)().decode(body)
    except (UnicodeDecodeError, LookupError, ValueError):
        return None


def _utf16_by_zeros(body: bytes) -> str | None:
    """UTF-16 without a mark, recognised by the zero bytes of its markup."""
    head = body[:2_000]
    if len(head) > 20 and head[1::2].count(0) > len(head) * 0.3:
        return "utf-16-le"
    if len(head) > 20 and head[::2].count(0) > len(head) * 0.3:
        return "utf-16-be"
    return None


def _detected(body: bytes) -> str | None:
    """A guess from the bytes that are text rather than markup."""
    from charset_normalizer import from_bytes

    sample = _foreign_part(body)
    if not sample:
        return None
    best = from_bytes(sample).best()
    found = encoding_of(best.encoding) if best is not None else None
    if found in _LOOKALIKES and not sample.translate(None, _WESTERN):
        return "cp1252"
    return found


def _foreign_part(body: bytes) -> bytes:
    """Whole lines that hold other than ASCII, up to the size of a sample."""
    if body.isascii():
        return b""
    if len(body) <= _SAMPLE_BYTES:
        return body
    lines = []
    size = 0
    for line in body[:2_000_000].split(b"\n"):
        if not line.isascii():
            lines.append(line[: _SAMPLE_BYTES - size])
            size += len(lines[-1])
            if size >= _SAMPLE_BYTES:
                break
    return b"\n".join(lines)
