"""Index terms: what a question and the passage that answers it must share, in every script."""

from __future__ import annotations

import pytest

from trawl.retrieval.terms import FUNCTION_WEIGHT, grams, question_weights, terms


@pytest.mark.parametrize(
    ("question", "passage"),
    [
        ("2019", "Built in 2019, rebuilt later"),
        ("price 1,299.50", "now 1299.50 instead"),
        ("version 3.11", "needs Python 3.11 or newer"),
        ("8 kg", "weighs 8kg"),
        ("RT-9", "the rt-9 transmitter"),
        ("KX-4659", "| KX-4659 | Rod nut |"),
        ("C++", "written in C++."),
        ("os.path.join", "call os.path.join(a, b)"),
        ("join", "call os.path.join(a, b)"),
        ("chunk_overlap", "set chunk_overlap=20"),
        ("overlap", "set chunk_overlap=20"),
        ("user name", "getUserName returns it"),
        ("café", "the CAFÉ opens"),
        ("cafe", "the café opens"),
        ("naïve", "a naive reader"),
        ("Łódź", "do Lodz"),
        ("straße", "STRASSE"),
        ("ﬁne ｗｉｄｅ", "fine wide"),
        ("co\u00adoperate", "cooperate"),
        ("pumps", "one pump"),
        ("batteries", "the battery"),
        ("температура", "Температура воды"),
        ("елка", "ёлка"),
        ("θερμοκρασια", "Θερμοκρασία"),
        ("درجة", "دَرَجَة الحرارة"),
        ("كتاب", "الكتاب"),
        ("احمد", "أحمد"),
        ("١٢٣", "123"),
        ("می‌خواهم", "میخواهم"),
        ("שלום", "שָׁלוֹם"),
        ("किताब", "यह किताब है"),
        ("烟囱", "清扫烟囱每年"),
        ("井", "屋后有一口井，水泵"),
        ("灯台", "古い灯台の高さ"),
        ("ラジオ", "短波ラジオ局"),
        ("ﾗｼﾞｵ", "短波ラジオ局"),
        ("등대", "등대는 오래되었다"),
        ("บ้าน", "กลับบ้านเร็ว"),
        ("ຫ້ອງ", "ໃນຫ້ອງນ້ອຍ"),
        ("ផ្ទះ", "នៅផ្ទះធំ"),
        ("အိမ်", "ထိုအိမ်ကြီး"),
        ("MX-20", "由 MX-20 小车运走"),
        ("MX20", "由MX20小车运走"),
        ("nhà", "ngôi nha cũ"),
    ],
)
def test_a_question_and_its_passage_share_a_term(question: str, passage: str) -> None:
    assert set(terms(question)) & set(terms(passage))


@pytest.mark.parametrize(
    ("question", "passage"),
    [
        ("2019", "Built in 2018"),
        ("3.11", "needs 3.12"),
        ("烟囱", "屋后有一口井"),
        ("등대", "우체국"),
        ("йод", "иод"),
        ("page's", "s"),
        ("l'eau", "l"),
        ("cat", "category"),
    ],
)
def test_different_words_share_none(question: str, passage: str) -> None:
    assert not set(terms(question)) & set(terms(passage)) - {"3"}


@pytest.mark.parametrize("word", ["Gewährleistung", "क्षेत्रीय", "température", "Ελλάδα", "ёлка", "שלום", "हिन्दी"])
def test_a_word_is_not_torn_at_its_accents_and_marks(word: str) -> None:
    assert len(set(terms(word))) <= 2
    assert all(len(t) >= len(word) - 3 for t in terms(word))


def test_terms_keep_order_and_number() -> None:
    assert terms("tide and tide") == ["tide", "and", "tide"]


@pytest.mark.parametrize("text", ["", "   ", "—…!?", "\u200b\u00ad", "\U0001f600", "\ud800"])
def test_text_without_words_has_no_terms(text: str) -> None:
    assert terms(text) == []


def test_function_words_count_less_in_a_question_but_are_not_lost() -> None:
    """`who` may be a band; in a question of function words alone they still decide."""
    assert question_weights("How is the kiln fired?") == {
        "how": FUNCTION_WEIGHT,
        "is": FUNCTION_WEIGHT,
        "the": FUNCTION_WEIGHT,
        "kiln": 1.0,
        "fired": 1.0,
    }
    assert set(question_weights("the who").values()) == {FUNCTION_WEIGHT}


def test_forms_of_one_word_share_most_of_their_runs() -> None:
    shared = set(grams("gewährleistung")) & set(grams("gewährleistungsfrist"))
    assert len(shared) > len(grams("gewährleistung")) * 0.7
    assert grams("井") == ["井"]
