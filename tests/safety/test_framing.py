"""What the page wrote reaches a terminal or a model without control sequences, under a mark it cannot forge."""

import pytest

from trawl.safety.framing import nonce_absent_from, showable, showable_line


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "[31mred[0m"),
        ("\x1b]8;;http://evil.test\x07link\x1b]8;;\x07", "]8;;http://evil.testlink]8;;"),
        ("a\x00b\x08c\x7fd\x9be", "abcde"),
        ("tags\U000e0041\U000e0042 end", "tags end"),
        ("user\u202egnp.exe", "usergnp.exe"),
        ("line\r\nline\rline", "line\nline\nline"),
        ("lone \ud800 surrogate", "lone  surrogate"),
        ("two\u2028lines\u2029here", "two\nlines\nhere"),
        # Text as bytes in variation selectors, behind a letter or an emoji, and as bits in zero-width characters.
        ("a" + "".join(chr(0xE0100 + b) for b in b"obey me") + "b", "ab"),
        ("o\ufe01k\ufe02", "ok"),
        ("😀" + "".join(chr(0xE0100 + b) for b in b"obey me") + "b", "😀\U000e016f\U000e0162b"),
        ("ok" + "\u200b\u200c\u2063" * 40 + "!", "ok\u200b\u200c!"),
        ("ok" + "\u200e\u200f" * 40 + "!", "ok\u200e\u200f\u200e\u200f!"),
        ("annotated\ufff9hidden\ufffa\ufffb \u206a\U000e0001", "annotatedhidden "),
    ],
)
def test_control_sequences_and_invisible_carriers_go(hostile, shown):
    assert showable(hostile) == shown


@pytest.mark.parametrize(
    "text",
    [
        "naïve café",
        "日本語\tテキスト\n次",
        "مرحبا \u2067שלום\u2069",
        "👩\u200d👩\u200d👧 ๆ",
        "👁\ufe0f\u200d🗨\ufe0f ❤\ufe0f\u200d🔥 1\ufe0f\u20e3",
        "می\u200cخواهم",
        "葛\U000e0100城",
        "ກ\u200bຂ",
    ],
)
def test_ordinary_text_of_every_script_stays(text):
    assert showable(text) == text


def test_a_title_is_one_line():
    assert showable_line("A\n  title\x1b[2J \t here") == "A title[2J here"


def test_the_mark_occurs_nowhere_in_the_text(monkeypatch):
    marks = iter(["aaaaaaaaaaaa", "bbbbbbbbbbbb"])
    monkeypatch.setattr("trawl.safety.framing.secrets.token_hex", lambda n: next(marks))
    assert nonce_absent_from(["a page that wrote aaaaaaaaaaaa itself"]) == "bbbbbbbbbbbb"
