"""Bytes are read in the encoding they are in, whatever their label says."""

from __future__ import annotations

import pytest

from trawl.extraction.charset import decode, encoding_of

GERMAN = "<p>Die Äpfel der Mosterei schmecken süß, und die Straße dorthin führt über die Brücke.</p>"
RUSSIAN = "<p>Журнал наблюдений ведётся на станции с прошлой весны, и записи в нём короткие.</p>" * 3
JAPANESE = "<p>これは日本語の文章です。港の記録は毎年更新され、値段も書かれています。</p>" * 3
CHINESE = "<p>港口的记录每年更新一次，价格也写在里面，需要的人可以在办公室查看。</p>" * 3


@pytest.mark.parametrize(
    ("text", "codec", "declared", "meta"),
    [
        (GERMAN, "utf-8", None, None),
        (GERMAN, "utf-8", "utf-8", None),
        (GERMAN, "utf-8-sig", "iso-8859-1", None),
        (GERMAN, "utf-16", None, None),
        (GERMAN, "utf-16-le", None, None),
        (GERMAN, "cp1252", "iso-8859-1", None),
        (GERMAN, "cp1252", None, "iso-8859-1"),
        (GERMAN, "cp1252", None, None),
        (GERMAN, "cp1252", "utf-8", None),
        (GERMAN, "cp1252", "utf-8", "windows-1252"),
        (GERMAN, "utf-8", None, "iso-8859-1"),
        (RUSSIAN, "koi8-r", None, "koi8-r"),
        (RUSSIAN, "cp1251", "windows-1251", "utf-8"),
        (RUSSIAN, "cp1251", None, None),
        (JAPANESE, "cp932", "shift_jis", None),
        (JAPANESE, "euc_jp", None, "x-euc-jp"),
        (JAPANESE, "cp932", None, None),
        (CHINESE, "gb18030", "gb2312", None),
        (CHINESE, "gb18030", None, None),
        (CHINESE, "utf-8", "gbk", "utf-8"),
    ],
)
def test_text_comes_back(text: str, codec: str, declared: str | None, meta: str | None) -> None:
    page = (f'<html><head><meta charset="{meta}"></head>' if meta else "<html>") + text
    assert decode(page.encode(codec), declared)[0] == page


def test_latin1_means_windows_1252() -> None:
    assert decode("“€40” – naïve".encode("cp1252"), "iso-8859-1") == ("“€40” – naïve", "cp1252")


@pytest.mark.parametrize(
    ("label", "codec"),
    [("latin-1", "cp1252"), ("GB2312", "gb18030"), ("ks_c_5601-1987", "cp949"), (" 'UTF8' ", "utf-8")],
)
def test_labels_mean_what_browsers_take_them_for(label: str, codec: str) -> None:
    assert encoding_of(label) == codec


@pytest.mark.parametrize("label", ["", "no-such", "base64", "rot13", "idna", "utf-7", "../x", "\0", "unicode_escape"])
def test_labels_that_are_no_encoding_are_ignored(label: str) -> None:
    assert encoding_of(label) is None
    assert decode(b"plain", label)[0] == "plain"


def test_one_broken_byte_does_not_change_the_encoding() -> None:
    text, name = decode(GERMAN.encode() * 20 + b"\xff" + GERMAN.encode(), "utf-8")
    assert name == "utf-8"
    assert text.count("süß") == 21


def test_character_cut_off_at_the_end_is_no_reason_to_doubt() -> None:
    text, name = decode(("x" * 50 + "ü").encode()[:-1], "utf-8")
    assert (text.rstrip("\ufffd"), name) == ("x" * 50, "utf-8")
