"""Ranking: the paragraph that answers first, by words alone or with embeddings, in every script."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from trawl.retrieval.rank import Ranked, in_order, passage_text, prefilter, rank
from trawl.types import Chunk, Part

FILLER = [
    "The slipway is swept every Friday by whoever comes first, and the broom stands behind the door.",
    "Guests sign the visitors' list and leave their shoes on the rack beside the stove.",
    "In spring the hulls are scraped, oiled and turned, which takes four people a whole day.",
    "Lamps are filled on Mondays; the can stands in the cellar under the stairs.",
    "The dog belongs to the miller and is not fed by members.",
    "Letters are collected at noon from the yellow box at the gate.",
]


def chunks(*texts: str | tuple[tuple[str, ...], str], content_p: float = 1.0) -> list[Chunk]:
    made: list[Chunk] = []
    start = 0
    for given in texts:
        path, text = ((), given) if isinstance(given, str) else given
        made.append(Chunk(len(made), "prose", path, (Part(text, start, start + len(text)),), content_p))
        start += len(text) + 2
    return made


def order(ranked: Sequence[Ranked]) -> list[int]:
    return [r.chunk.index for r in ranked]


@pytest.mark.parametrize(
    ("question", "answer", "others"),
    [
        ("Where is the lamp oil kept?", "Lamp oil is kept in the tin locker on the quay.", FILLER),
        ("What happened in 1987?", "The roof burned in 1987 and was rebuilt.", [*FILLER, "The roof burned in 1978."]),
        ("torque of TX-4471", "| TX-4471 | 38 Nm |", [*FILLER, "| TX-4470 | 21 Nm |", "| TX-4417 | 44 Nm |"]),
        (
            "烟囱多久清扫一次",
            "烟囱每年秋天清扫一次，清扫前应先让炉子冷却。",
            ["屋后有一口井。", "垃圾每周四运走。", "门锁密码写在盒里。"],
        ),
        (
            "灯台の高さは",
            "灯台の高さは三十一メートルです。",
            ["港は北にあります。", "船は朝に出ます。", "鍵は役場にあります。"],
        ),
        (
            "등대의 높이",
            "등대는 높이가 삼십일 미터이다.",
            ["항구는 북쪽에 있다.", "배는 아침에 떠난다.", "열쇠는 사무소에 있다."],
        ),
        ("ค่าเข้าชมเท่าไร", "ค่าเข้าชมคนละสี่สิบบาท", ["ท่าเรืออยู่ทางเหนือ", "เรือออกตอนเช้า", "กุญแจอยู่ที่สำนักงาน"]),
        (
            "ما ارتفاع البرج",
            "يبلغ ارتفاع البُرج واحدا وثلاثين مترا.",
            ["الميناء في الشمال.", "تغادر السفينة صباحا.", "المفتاح في المكتب."],
        ),
        (
            "Wie lang ist die Gewährleistung?",
            "Die Gewährleistungsfrist beträgt zwei Jahre.",
            ["Der Hafen liegt im Norden.", "Das Boot fährt früh.", "Wo der Schlüssel hängt, weiß das Amt."],
        ),
        (
            "какая высота у маяка",
            "Высота маяка тридцать один метр.",
            ["Порт на севере.", "Лодка уходит утром.", "Ключ в конторе."],
        ),
        ("मीनार की ऊँचाई", "मीनार की ऊँचाई इकतीस मीटर है।", ["बंदरगाह उत्तर में है।", "नाव सुबह जाती है।", "चाबी दफ़्तर में है।"]),
    ],
)
def test_the_passage_with_the_words_of_the_question_comes_first(question: str, answer: str, others: list[str]) -> None:
    for place in (0, len(others) // 2, len(others)):
        made = chunks(*others[:place], answer, *others[place:])
        ranked = rank(made, question)
        assert ranked[0].chunk.text == answer
        assert sorted(order(ranked)) == list(range(len(made)))


def test_the_published_score_is_the_order() -> None:
    made = chunks(*FILLER)
    for similarities in (None, np.array([0.8, 0.83, 0.79, 0.9, 0.81, 0.8])):
        scores = [r.score for r in rank(made, "Where is the can for the lamps?", similarities=similarities)]
        assert all(s is not None and 0 <= s <= 1 for s in scores)
        assert scores == sorted(scores, key=lambda s: -(s or 0))
        assert len(set(scores)) > 2


def test_a_contents_line_or_a_bare_heading_does_not_beat_the_paragraph() -> None:
    """Lines that only repeat the question's words answer nothing."""
    text = (
        "How much a boat may carry depends above all on its freeboard. With two people aboard nine crates were brought"
        " over in calm water, in a cross wind hardly five."
    )
    made = chunks(
        (("Handbook",), "- Punt load\n- Punt colour\n- Punt hire"),
        (("Handbook",), "## Punt load"),
        (("Handbook", "Punt load"), text),
        (("Handbook", "Punt colour"), "All are green outside and white inside, for the sake of the herons."),
        (("Handbook", "Punt hire"), "See the list at the punt desk."),
    )
    assert rank(made, "punt load")[0].chunk.text == text


def test_a_sentence_asked_for_word_by_word_is_found() -> None:
    made = chunks(*FILLER)
    assert rank(made, FILLER[3])[0].chunk.index == 3


def test_headings_tell_equal_texts_apart() -> None:
    made = chunks(
        (("Pump A3", "Reset"), "Hold the key for nine seconds."),
        (("Pump C8", "Reset"), "Turn the dial back three times."),
        (("Pump F1", "Reset"), "Pull the plug and wait."),
    )
    assert rank(made, "How do I reset the C8?")[0].chunk.index == 1


def test_likely_content_comes_before_the_menu_where_words_do_not_decide() -> None:
    menu, text = "Boats, hire, hours, prices, contact us", "Boats are hired out at the small hut beside the lock"
    made = [*chunks(menu, content_p=0.05), *chunks("", text)[1:]]
    assert rank(made, "nothing of this")[0].chunk.text == text


def test_what_extraction_doubts_is_still_found() -> None:
    made = [*chunks(*FILLER), Chunk(6, "prose", (), (Part("Phone of the harbour master: 555 0147", 900, 937),), 0.05)]
    assert rank(made, "phone harbour master")[0].chunk.index == 6


def test_of_several_questions_the_best_counts() -> None:
    made = chunks(*FILLER)
    assert set(order(rank(made, ["who owns the dog", "when are letters collected"]))[:2]) == {4, 5}
    assert rank(made, ["dog"])[0] == rank(made, "dog")[0]


def test_embeddings_decide_where_no_word_is_shared() -> None:
    made = chunks(*FILLER)
    ranked = rank(made, "canine ownership", similarities=np.array([0.7, 0.71, 0.7, 0.72, 0.86, 0.71]))
    assert ranked[0].chunk.index == 4
    assert ranked[0].cosine == pytest.approx(0.86)


def test_similarities_are_the_candidates_and_the_others_come_after_them() -> None:
    made = chunks(*FILLER)
    ranked = rank(made, ["dog", "canine"], candidates=[1, 4], similarities=np.array([[0.1, 0.9], [0.2, 0.8]]))
    assert order(ranked)[:2] == [4, 1]
    assert sorted(order(ranked)) == list(range(len(made)))
    scores = [r.score or 0.0 for r in ranked]
    assert scores == sorted(scores, reverse=True)
    assert all(r.cosine is None for r in ranked[2:])
    assert ranked[0].cosine == pytest.approx(0.9)


@pytest.mark.parametrize("shape", [(5,), (2, 6), (6, 1), (1, 5)])
def test_similarities_of_the_wrong_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="shape"):
        rank(chunks(*FILLER), "dog", similarities=np.zeros(shape))


def test_nothing_to_rank_and_nothing_asked() -> None:
    assert rank([], "dog") == []
    assert prefilter([], "dog", 10) == []
    assert order(rank(chunks(*FILLER), "")) == list(range(6))
    assert order(rank(chunks(*FILLER), [])) == list(range(6))
    assert [r.score for r in rank(chunks("alone"), "alone")] != [None]


# The prefilter


def test_the_prefilter_keeps_the_hits_in_document_order() -> None:
    made = chunks(*(f"{FILLER[i % 6]} {i}" for i in range(300)), "The heron nests on the mill.", *FILLER)
    kept = prefilter(made, "Where does the heron nest?", 20)
    assert len(kept) == 20
    assert kept == sorted(kept)
    assert 300 in kept


def test_a_question_without_a_hit_does_not_keep_just_the_beginning() -> None:
    made = chunks(*(f"Para {i}" for i in range(1_000)))
    kept = prefilter(made, "zzzzqqqq", 50)
    assert len(kept) == 50
    assert max(b - a for a, b in itertools.pairwise(kept)) <= 25
    assert kept[-1] >= 950


def test_likely_content_fills_the_prefilter_first() -> None:
    made = [Chunk(i, "prose", (), (Part("words", i, i + 1),), 0.9 if i % 10 == 7 else 0.1) for i in range(400)]
    kept = prefilter(made, "zzzzqqqq", 30)
    assert all(made[i].content_p == 0.9 for i in kept)


@pytest.mark.parametrize("budget", [0, -1, 6, 100])
def test_no_budget_or_one_that_is_large_enough_keeps_all(budget: int) -> None:
    assert prefilter(chunks(*FILLER), "dog", budget) == list(range(6))


# What is embedded; no question


def test_what_is_embedded_has_title_path_and_text_once() -> None:
    chunk = chunks((("Handbook", "Load"), "Nine crates."))[0]
    assert passage_text(chunk) == "Handbook > Load\n\nNine crates."
    assert passage_text(chunk, "Club") == "Club > Handbook > Load\n\nNine crates."
    assert passage_text(chunk, "Handbook") == "Handbook > Load\n\nNine crates."
    assert passage_text(chunks("Nine crates.")[0]) == "Nine crates."


def test_without_a_question_the_main_content_stands_in_order() -> None:
    made = [*chunks("menu", content_p=0.1), *chunks("", "one", "two")[1:]]
    assert [(r.chunk.text, r.score) for r in in_order(made)] == [("one", None), ("two", None)]
    assert [r.chunk.text for r in in_order(made[:1])] == ["menu"]
