"""Text -> index terms, for every script. Questions and passages go through the same function.

A term is what two texts must share to be about the same thing: a word without its case and accents, a number, a part
number, an identifier and its parts, a pair of neighbouring characters where a script puts no spaces between words.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache

__all__ = ["grams", "question_weights", "terms"]

GRAM = 4
"""Length of the character runs that stand for the stem of a word, whatever its language."""

FUNCTION_WEIGHT = 0.3
"""Weight of a function word in a question: on a short page `how` may be as rare as what is asked for."""

_FUNCTION_WORDS = {
    "en": "a an the of to in on at for from by with and or not no is are was were be been being do does did done"
    " has have had can could should would will may might must i you he she it we they them their his her its"
    " my your our this that these those there here what which who whom whose when where why how if then than"
    " as so such into about over under out up down more most much many any some get",
    "fr": "le la les de des du un une et ou est sont que qui quoi quel quelle quels quelles combien comment"
    " pourquoi où quand dans pour par sur avec ce cette ces il elle on au aux en se ne pas plus son sa ses a"
    " t y",
    "de": "der die das des dem den ein eine einer eines einem und oder ist sind war wie was wer wo wann warum"
    " welche welcher welches wieviel viele viel von zu zum zur im in am an auf für mit bei nach aus wird"
    " werden hat haben kann nicht es er sie man",
    "es": "el la los las de del un una y o es son que qué quién cuál cuáles cuándo cuánto cuántos cuántas cómo"
    " dónde por para con en se no más su sus al lo",
    "pt": "o a os as do da dos das um uma e ou é são que quem qual quais quando quanto quantos como onde por para"
    " com em no na se não mais seu sua ao",
    "it": "il lo la i gli le di del della dei un una e o è sono che chi quale quali quando quanto quanti come"
    " dove per con in si non più suo sua al",
    "nl": "de het een en of is zijn was wat wie waar wanneer waarom hoe welke welk hoeveel van te voor met bij"
    " naar uit wordt worden niet op aan er",
    "pl": "i w we z ze na do od po za o u jest są był co kto gdzie kiedy dlaczego jak jaki jaka jakie ile który"
    " która które czy się nie to dla przez",
    "ru": "и в во на с со по о об от до из за у к не что кто где когда почему как какой какая какие каком сколько"
    " который ли это для при был была есть",
    "id": "yang apa siapa di ke dari untuk adalah itu ini bagaimana berapa dengan dan atau mana kapan mengapa pada",
    "ar": "ما ماذا من متى أين كيف كم هل في على إلى عن هو هي التي الذي هذا هذه و أو لماذا",
}
"""The commonest function and question words; other languages go without, at little loss."""

_IDEOGRAPH = r"\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_KANA = r"\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff"
_HANGUL = r"\uac00-\ud7a3"
_CLUSTERED = r"\u0e01-\u0eff\u1000-\u109f\u1780-\u17d3\u17d7-\u17dd"
"""Thai, Lao, Myanmar, Khmer: no spaces between words, vowels and tones as marks on a letter."""

_IGNORABLE = re.compile(r"[\u00ad\u034f\u0640\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufe00-\ufe0f\ufeff]")
"""Soft hyphen, tatweel, joiners, direction marks: they change how a word looks, not which word it is."""

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_NUMBER_WITH_UNIT = re.compile(r"(\d+(?:\.\d+)?)([^\W\d_]{1,4})")
_GROUPED_NUMBER = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_ARABIC_FOLD = str.maketrans({"أ": "ا", "إ": "ا", "آ": "ا", "ٱ": "ا", "ى": "ي", "ی": "ي", "ک": "ك", "ة": "ه", "ۀ": "ه"})
_ARABIC_ARTICLE = re.compile(r"(?:[وفبك]?ال|لل)(?=..)")


@lru_cache(maxsize=1)
def _words() -> re.Pattern[str]:
    """One run of a script, or a word with the characters that join its parts (`a.b_c`, `RT-9`, `3.11`, `C++`).

    The standard `\\w` leaves out combining marks, which would cut most Indic words at every vowel; they are added from
    the Unicode database.
    """
    marks = "".join(
        f"{chr(start)}-{chr(end)}"
        for start, end in _ranges(c for c in range(0x300, 0x10000) if unicodedata.category(chr(c)) in ("Mn", "Mc"))
    )
    word = rf"(?:(?![{_IDEOGRAPH}{_KANA}{_HANGUL}{_CLUSTERED}])[\w{marks}])+"
    return re.compile(
        rf"(?P<ideographs>[{_IDEOGRAPH}{_KANA}]+)|(?P<hangul>[{_HANGUL}]+)|(?P<clusters>[{_CLUSTERED}]+)"
        rf"|(?P<word>{word}(?:(?:[.\-/:'’,@&]|::){word})*(?:\+\+|\#)?)"
    )


def _ranges(points: Iterator[int]) -> Iterator[tuple[int, int]]:
    start = end = -2
    for point in points:
        if point != end + 1:
            if start >= 0:
                yield start, end
            start = point
        end = point
    if start >= 0:
        yield start, end


def terms(text: str) -> list[str]:
    """The index terms of `text`, in order, repeated as often as they occur."""
    found: list[str] = []
    plain = _IGNORABLE.sub("", unicodedata.normalize("NFKC", text))
    for match in _words().finditer(plain):
        run = match[0]
        match match.lastgroup:
            case "ideographs":
                # Single ideographs too: a word of one character has no pair in common with another sentence.
                found.extend(c for c in run if c >= "\u3400" or len(run) == 1)
                found.extend(_pairs(run))
            case "hangul":
                found.extend(_pairs(run) if len(run) > 1 else [run])
            case "clusters":
                clusters = _clusters(run)
                found.extend(_pairs(clusters) if len(clusters) > 1 else clusters)
            case _:
                found.extend(_of_word(run))
    return found


def grams(term: str) -> list[str]:
    """The character runs of a term: what inflected and compound forms of a word have in common."""
    return [term[i : i + GRAM] for i in range(len(term) - GRAM + 1)] or [term]


def question_weights(question: str) -> dict[str, float]:
    """The terms of a question with what each counts."""
    return {t: FUNCTION_WEIGHT if t in _function_terms() else 1.0 for t in terms(question)}


@lru_cache(maxsize=1)
def _function_terms() -> frozenset[str]:
    return frozenset(t for words in _FUNCTION_WORDS.values() for t in terms(words))


def _pairs(units: str | list[str]) -> list[str]:
    return [units[i] + units[i + 1] for i in range(len(units) - 1)]


def _clusters(run: str) -> list[str]:
    """Letters with the marks that sit on them; digits of these scripts are letters here."""
    clusters: list[str] = []
    for char in run:
        if clusters and unicodedata.category(char) in ("Mn", "Mc"):
            clusters[-1] += char
        else:
            clusters.append(char)
    return clusters


def _of_word(word: str) -> Iterator[str]:
    if _GROUPED_NUMBER.fullmatch(word):
        yield word.replace(",", "")
        return
    if word.isascii() and word.isalpha() and (word.islower() or word[1:].islower()):
        yield _stem(word.lower())
        return
    parts = [p for p in re.split(r"[.\-/:'’,@&_]+", word) if p]
    if len(parts) > 1 and not re.search(r"['’,]", word):
        yield _folded(word)
    camel = [c for p in parts for c in _CAMEL.split(p)] if len(word) > 3 else parts
    if len(camel) > len(parts):
        parts += [c for c in camel if c not in parts]
    for part in parts:
        folded = _folded(part)
        if len(folded) == 1 and folded.isascii() and folded.isalpha() and len(parts) > 1:
            continue  # the `s` of "page's", the `l` of "l'eau"
        yield from _forms(folded)


@lru_cache(maxsize=50_000)
def _folded(word: str) -> str:
    """Case, Arabic letter variants and marks, foreign digits folded; accents kept."""
    word = word.casefold()
    if word.isascii():
        return word
    word = word.translate(_ARABIC_FOLD)
    if any(unicodedata.category(c) == "Nd" for c in word):
        word = "".join(str(unicodedata.digit(c)) if unicodedata.category(c) == "Nd" else c for c in word)
    if max(word) >= "\u0590" and any("\u0590" <= c <= "\u06ff" for c in word):
        # Vowel signs of Hebrew and Arabic are optional in writing.
        word = "".join(c for c in word if unicodedata.category(c) != "Mn")
    return word


def _forms(word: str) -> Iterator[str]:
    """The forms a word is indexed under: itself, without accents, its number without the unit, without the article."""
    if word.isascii():
        yield _stem(word)
        unit = _NUMBER_WITH_UNIT.fullmatch(word)
        if unit:
            yield unit[1]
        return
    bare = _without_accents(word)
    yield _stem(bare)
    if bare != word:
        # The accented form beside it: who writes the accent means it, who does not still finds the word.
        yield word
    article = _ARABIC_ARTICLE.match(word)
    if article:
        yield word[article.end() :]


@lru_cache(maxsize=50_000)
def _without_accents(word: str) -> str:
    """Latin and Greek letters without diacritics, Russian ё as е; other marks make another letter and stay."""
    decomposed = unicodedata.normalize("NFD", word)
    kept: list[str] = []
    for char in decomposed:
        is_accent = "\u0300" <= char <= "\u036f"
        if is_accent and kept and (kept[-1] < "\u0400" or (kept[-1] == "е" and char == "\u0308")):
            continue
        kept.append(char)
    return unicodedata.normalize("NFC", "".join(kept)).replace("ø", "o").replace("ł", "l").replace("đ", "d")


@lru_cache(maxsize=50_000)
def _stem(word: str) -> str:
    """English plural and verb endings off; other words of the Latin alphabet lose at most a final s."""
    if len(word) < 4 or not word.isalpha():
        return word
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("sses", "shes", "ches", "xes", "zes")):
        return word[:-2]
    if word.endswith("s") and not word.endswith(("ss", "us", "is")):
        return word[:-1]
    return word
