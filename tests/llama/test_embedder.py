"""Who embeds is chosen as promised and said in one sentence; what is embedded fits, whatever the text."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.llama.conftest import NOBODY, bag_of_letters, reply, vectors
from trawl.deadline import Deadline
from trawl.errors import ModelReplyInvalid, ModelUnavailable
from trawl.llama import embedder as embedder_module
from trawl.llama import weights
from trawl.llama.client import LlamaClient
from trawl.llama.embedder import Embedder, open_embedder
from trawl.llama.server_process import Lease
from trawl.settings import Settings

Serving = Callable[..., Any]
EMBED, MODELS, TOKENIZE = "/v1/embeddings", "/v1/models", "/tokenize"


def listing(name: str = "bge-m3", **meta: int) -> Callable[[Any], bytes]:
    return lambda _: reply({"data": [{"id": name, "meta": meta}]})


def embeds(body: Any) -> bytes:
    return reply(vectors(body))


def only(url: str | None) -> Settings:
    return Settings(embed_url=url, embedded=False)


async def opened(fake: Any) -> Embedder:
    embedder, why = await open_embedder(only(fake.url), Deadline.after(5))
    assert embedder is not None, why
    return embedder


# Who is chosen


async def test_a_configured_endpoint_is_used_after_a_test_vector(fake_server: Serving) -> None:
    async with fake_server({EMBED: embeds, MODELS: listing()}) as fake:
        embedder, why = await open_embedder(only(fake.url), Deadline.after(5))
        assert embedder is not None
        assert (embedder.model, embedder.dimension, embedder.name) == ("bge-m3", 64, fake.url)
        assert "as configured" in why
        assert fake.url in why
        assert EMBED in fake.paths()
        await embedder.aclose()


async def test_a_configured_endpoint_need_not_list_its_models(fake_server: Serving) -> None:
    async with fake_server({EMBED: embeds}) as fake:
        embedder = await opened(fake)
        assert embedder.model == "bge-m3"
        await embedder.aclose()


async def test_the_only_model_a_server_has_decides_the_prefixes(fake_server: Serving) -> None:
    async with fake_server({EMBED: embeds, MODELS: listing("multilingual-e5-small-Q8_0.gguf")}) as fake:
        embedder = await opened(fake)
        await embedder.embed_queries(["q"], Deadline.after(5))
        await embedder.embed_passages(["p"], Deadline.after(5))
        await embedder.aclose()
    assert [body["input"] for body in fake.bodies(EMBED)[-2:]] == [["query: q"], ["passage: p"]]


async def test_bge_m3_gets_no_prefix(fake_server: Serving) -> None:
    async with fake_server({EMBED: embeds, MODELS: listing()}) as fake:
        embedder = await opened(fake)
        await embedder.embed_queries(["q"], Deadline.after(5))
        await embedder.aclose()
    assert fake.bodies(EMBED)[-1]["input"] == ["q"]


async def test_what_is_found_on_the_default_port_is_used_without_the_key(
    fake_server: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fake_server({EMBED: embeds, MODELS: listing()}) as fake:
        monkeypatch.setattr(embedder_module, "DEFAULT_URL", fake.url)
        settings = Settings(embedded=False, embed_api_key="k3y")
        embedder, why = await open_embedder(settings, Deadline.after(5))
        assert embedder is not None
        assert "found on" in why
        await embedder.aclose()
    assert fake.paths()[0] == MODELS
    assert not any("authorization" in headers for _, headers, _ in fake.seen)


async def hang(_: Any) -> bytes:
    await asyncio.sleep(30)
    return b""


UNFIT: dict[str, dict[str, Callable[[Any], Any]]] = {
    "not a model server": {},
    "a web page": {MODELS: lambda _: reply(b"<html>hello</html>"), EMBED: lambda _: reply(b"<html>hello</html>")},
    "no embeddings": {MODELS: listing()},
    "null vectors": {MODELS: listing(), EMBED: lambda b: reply(vectors(b, lambda _: None))},
    "the same vector for all": {MODELS: listing(), EMBED: lambda b: reply(vectors(b, lambda _: [1.0, 2.0]))},
    "hangs": {MODELS: hang, EMBED: hang},
    "hangs while embedding": {MODELS: listing(), EMBED: hang},
}


@pytest.mark.parametrize("routes", UNFIT.values(), ids=UNFIT.keys())
async def test_whatever_else_listens_on_the_default_port_costs_a_second_at_most(
    fake_server: Serving, monkeypatch: pytest.MonkeyPatch, routes: dict[str, Any]
) -> None:
    async with fake_server(routes) as fake:
        monkeypatch.setattr(embedder_module, "DEFAULT_URL", fake.url)
        began = time.monotonic()
        embedder, why = await open_embedder(Settings(embedded=False), Deadline.after(20))
        assert time.monotonic() - began < 2
    assert embedder is None
    assert "no usable embeddings server at" in why


@pytest.mark.parametrize("routes", [UNFIT["a web page"], UNFIT["the same vector for all"], UNFIT["null vectors"]])
async def test_a_configured_endpoint_that_is_unfit_is_named_with_the_reason(
    fake_server: Serving, routes: dict[str, Any]
) -> None:
    async with fake_server(routes) as fake:
        embedder, why = await open_embedder(only(fake.url), Deadline.after(5))
    assert embedder is None
    assert "TRAWL_EMBED_URL" in why
    assert fake.url in why
    assert "switched off" in why


async def test_what_to_do_about_it_is_said_once(fake_server: Serving) -> None:
    refusal = reply({"error": {"message": "Invalid API Key"}}, 401)
    async with fake_server({EMBED: lambda _: refusal, MODELS: lambda _: refusal}) as fake:
        _, why = await open_embedder(only(fake.url), Deadline.after(5))
    assert "401: Invalid API Key" in why
    assert why.endswith("Set TRAWL_EMBED_API_KEY to a key it accepts.")
    assert why.count("Set TRAWL") == 1


async def test_a_chat_server_on_the_default_port_gets_no_text_when_it_lists_no_model(
    fake_server: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fake_server({EMBED: embeds}) as fake:
        monkeypatch.setattr(embedder_module, "DEFAULT_URL", fake.url)
        assert (await open_embedder(Settings(embedded=False), Deadline.after(5)))[0] is None
    assert fake.paths() == [MODELS]


async def test_without_the_extra_there_is_no_embedder_and_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "find_spec", lambda _: None)
    embedder, why = await open_embedder(Settings(), Deadline.after(5))
    assert embedder is None
    assert "not installed" in why
    assert "trawl[embedded]" in why
    assert "\n" not in why


async def test_no_time_left_gives_no_embedder_instead_of_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "find_spec", lambda _: None)
    assert (await open_embedder(Settings(embed_url=NOBODY), Deadline.after(0)))[0] is None


# Texts that do not fit


def refuses_long(limit: int, error: Callable[[int], Any], status: int) -> Callable[[Any], bytes]:
    """A server that takes `limit` words or tokens and refuses the whole batch otherwise."""

    def answer(body: Any) -> bytes:
        sizes = [len(x) if isinstance(x, list) else max(len(x.split()), len(x) // 8) for x in body["input"]]
        if max(sizes) > limit:
            return reply(error(max(sizes)), status)
        return embeds(body)

    return answer


TOO_LONG = [
    (500, lambda n: {"error": {"message": f"input ({n} tokens) is too large (current batch size: 64)"}}),
    (400, lambda n: {"error": {"type": "exceed_context_size_error", "message": "exceeds", "n_ctx": 64}}),
    (413, lambda n: {"error": f"`inputs` must have less than 64 tokens. Given: {n}"}),
    (400, lambda n: {"error": {"message": "input too long"}}),
]
LONG_TEXTS = ["short", "word " * 5000, "x" * 200_000, "日本語" * 3000, "", "short too"]


@pytest.mark.parametrize(("status", "error"), TOO_LONG)
async def test_a_server_without_a_tokenizer_that_finds_texts_too_long_is_satisfied(
    fake_server: Serving, status: int, error: Callable[[int], Any]
) -> None:
    async with fake_server({EMBED: refuses_long(64, error, status)}) as fake:
        embedder = await opened(fake)
        found = await embedder.embed_passages(LONG_TEXTS, Deadline.after(10))
        await embedder.aclose()
    assert found.shape == (6, 64)
    assert np.isfinite(found).all()
    assert np.argmax(found[0]) == np.argmax(bag_of_letters("short"))
    assert np.argmax(found[5]) == np.argmax(np.array(bag_of_letters("short too"))), "the order was lost"


async def test_what_a_server_says_of_its_limit_is_remembered(fake_server: Serving) -> None:
    async with fake_server({EMBED: refuses_long(64, TOO_LONG[0][1], 500)}) as fake:
        embedder = await opened(fake)
        await embedder.embed_passages(["word " * 5000], Deadline.after(10))
        before = len(fake.bodies(EMBED))
        await embedder.embed_passages(["word " * 5000] * 4, Deadline.after(10))
        await embedder.aclose()
    assert len(fake.bodies(EMBED)) == before + 1


async def test_a_text_is_cut_by_its_tokens_where_the_server_counts_them(fake_server: Serving) -> None:
    def tokenize(body: Any) -> bytes:
        return reply({"tokens": [0, *range(10, 10 + len(body["content"].split())), 2]})

    routes = {EMBED: refuses_long(32, TOO_LONG[0][1], 500), MODELS: listing(n_ctx=32), TOKENIZE: tokenize}
    async with fake_server(routes) as fake:
        embedder = await opened(fake)
        await embedder.embed_passages(["word " * 29 + "end", "word " * 30 + "end", "word " * 500], Deadline.after(5))
        await embedder.aclose()
    short, cut, long = fake.bodies(EMBED)[-1]["input"]
    assert short.endswith("end"), "a text that fits is not touched"
    assert cut == long == [0, *range(10, 40), 2], "the closing token stays"


async def test_a_server_that_refuses_everything_as_too_long_ends_in_an_error(fake_server: Serving) -> None:
    calls = 0

    def answer(body: Any) -> bytes:
        nonlocal calls
        calls += 1
        return embeds(body) if calls == 1 else reply({"error": {"message": "too long"}}, 400)

    async with fake_server({EMBED: answer}) as fake:
        embedder = await opened(fake)
        with pytest.raises(ModelReplyInvalid):
            await embedder.embed_passages(["a", "b", "c"], Deadline.after(5))
        await embedder.aclose()
    assert calls < 20


async def test_batches_are_small_in_count_and_size(fake_server: Serving) -> None:
    async with fake_server({EMBED: embeds, MODELS: listing(n_ctx=8192)}) as fake:
        embedder = await opened(fake)
        found = await embedder.embed_passages([f"word{i}" for i in range(40)] + ["word " * 4000] * 7, Deadline.after(5))
        await embedder.aclose()
    sent = [body["input"] for body in fake.bodies(EMBED)[1:]]
    assert len(found) == sum(map(len, sent)) == 47
    assert max(map(len, sent)) <= embedder_module.BATCH_INPUTS
    assert max(sum(map(len, batch)) for batch in sent) < 4 * embedder_module.BATCH_TOKENS


async def test_no_texts_are_no_request(fake_server: Serving) -> None:
    async with fake_server({EMBED: embeds}) as fake:
        embedder = await opened(fake)
        before = len(fake.seen)
        assert (await embedder.embed_passages([], Deadline.after(5))).shape == (0, 64)
        assert len(fake.seen) == before
        await embedder.aclose()


@pytest.mark.parametrize("numbers", [[1e300, -1e300], [1e-300, 2e-300], [5e-324, 0], [3, 4], [1e38, 1e-38]])
async def test_vectors_have_length_one_whatever_the_scale(fake_server: Serving, numbers: list[float]) -> None:
    first = True

    def answer(body: Any) -> bytes:
        nonlocal first
        was_first, first = first, False
        if was_first:
            cat, other = ([1.0, 0.1], [0.1, -1.0])
            return reply({"data": [{"index": i, "embedding": v} for i, v in enumerate((cat, cat, other))]})
        return reply({"data": [{"index": 0, "embedding": numbers}]})

    async with fake_server({EMBED: answer}) as fake:
        embedder = await opened(fake)
        found = await embedder.embed_queries(["q"], Deadline.after(5))
        await embedder.aclose()
    assert found.dtype == np.float32
    assert np.linalg.norm(found[0]) == pytest.approx(1, abs=1e-6)


async def test_a_reply_that_changes_its_dimension_is_refused(fake_server: Serving) -> None:
    calls = 0

    def answer(body: Any) -> bytes:
        nonlocal calls
        calls += 1
        return embeds(body) if calls == 1 else reply(vectors(body, lambda _: [1.0, 2.0]))

    async with fake_server({EMBED: answer}) as fake:
        embedder = await opened(fake)
        with pytest.raises(ModelReplyInvalid, match="instead of 64"):
            await embedder.embed_queries(["q"], Deadline.after(5))
        await embedder.aclose()


async def test_a_closed_embedder_is_unavailable_and_may_be_closed_again(fake_server: Serving) -> None:
    async with fake_server({EMBED: embeds}) as fake:
        embedder = await opened(fake)
        await embedder.aclose()
        await embedder.aclose()
        with pytest.raises(ModelUnavailable):
            await embedder.embed_queries(["q"], Deadline.after(5))


# The real server

RELATED = [
    (
        "en",
        "How tall is the tower?",
        "The tower rises 324 metres above the ground.",
        "Add two eggs and stir the batter.",
    ),
    ("de", "Wie hoch ist der Turm?", "Der Turm ragt 324 Meter in den Himmel.", "Zwei Eier zugeben und gut verrühren."),
    ("fr", "Quelle est la hauteur de la tour ?", "La tour mesure 324 mètres.", "Ajoutez deux œufs et mélangez."),
    ("ja", "塔の高さはどれくらいですか", "塔の高さは324メートルです。", "卵を二つ加えてよく混ぜます。"),
    ("zh", "这座塔有多高?", "这座塔高324米。", "加入两个鸡蛋并搅拌均匀。"),
    ("ko", "탑의 높이는 얼마입니까?", "탑의 높이는 324미터입니다.", "달걀 두 개를 넣고 잘 섞습니다."),
    ("ru", "Какова высота башни?", "Высота башни составляет 324 метра.", "Добавьте два яйца и перемешайте."),
    ("ar", "كم يبلغ ارتفاع البرج؟", "يبلغ ارتفاع البرج 324 مترا.", "أضف بيضتين واخلط جيدا."),
    ("hi", "मीनार कितनी ऊँची है?", "मीनार की ऊँचाई 324 मीटर है।", "दो अंडे डालें और अच्छी तरह मिलाएँ।"),
    ("el", "Πόσο ψηλός είναι ο πύργος;", "Ο πύργος έχει ύψος 324 μέτρα.", "Προσθέστε δύο αυγά και ανακατέψτε."),
]


@pytest.fixture
async def real(server: Lease, settings: Settings) -> Any:
    embedder, why = await open_embedder(settings, Deadline.after(30))
    assert embedder is not None, why
    assert embedder.server_pid == server.pid
    yield embedder
    await embedder.aclose()


@pytest.mark.embedded
async def test_the_embedded_server_is_chosen_when_nobody_else_answers(real: Embedder, settings: Settings) -> None:
    assert (real.model, real.dimension, real.name) == ("multilingual-e5-small", 384, "embedded")
    again, why = await open_embedder(settings.model_copy(update={"embed_url": NOBODY}), Deadline.after(30))
    assert again is not None
    assert "embedded server" in why
    assert f"{NOBODY}/models cannot be used (nobody answers" in why
    await again.aclose()


@pytest.mark.embedded
@pytest.mark.parametrize(("language", "question", "answer", "other"), RELATED, ids=[r[0] for r in RELATED])
async def test_related_texts_are_closer_than_unrelated_ones(
    real: Embedder, language: str, question: str, answer: str, other: str
) -> None:
    query = (await real.embed_queries([question], Deadline.after(20)))[0]
    passages = await real.embed_passages([answer, other], Deadline.after(20))
    assert np.linalg.norm(passages, axis=1) == pytest.approx([1, 1], abs=1e-5)
    assert query @ passages[0] > query @ passages[1] + 0.03


@pytest.mark.embedded
async def test_questions_and_passages_are_embedded_differently(real: Embedder) -> None:
    query = (await real.embed_queries(["the tower"], Deadline.after(20)))[0]
    passage = (await real.embed_passages(["the tower"], Deadline.after(20)))[0]
    assert 0.8 < query @ passage < 0.999


@pytest.mark.embedded
async def test_the_vector_of_a_text_does_not_depend_on_its_batch(real: Embedder) -> None:
    texts = [f"Paragraph {i} speaks of {'stones and ' * (i * 7)}rivers." for i in range(9)]
    together = await real.embed_passages(texts, Deadline.after(60))
    for i in (0, 3, 8):
        alone = (await real.embed_passages([texts[i]], Deadline.after(20)))[0]
        assert together[i] @ alone > 0.999


ODD = {
    "empty": "",
    "NUL": "\0",
    "NUL inside": "before\0after",
    "lone surrogates": "\ud800 a \udfff",
    "only a surrogate": "\ud83d",
    "a word of 200,000 letters": "x" * 200_000,
    "spaces": " " * 200_000,
    "line ends": "\r\n\x0b\x0c\x85\u2028" * 500,
    "long Japanese": "日本語の長い文章" * 2_000,
    "long Thai": "ภาษาไทยไม่มีช่องว่าง" * 1_000,
    "long Hindi": "हिन्दी में लिखा हुआ " * 1_000,
    "emoji": "👩‍👩‍👧‍👦🏳️‍🌈" * 500,
    "ligatures that unfold": "\ufdfa" * 1_000,
    "combining marks": "a" + "\u0301" * 5_000,
    "invisible": "\u200b\u202e\ufeff" * 1_000,
    "private and unassigned": "\ue000\U000f0000\uffff\U0010ffff" * 500,
    "special tokens": "</s><s><mask><pad>" * 400,
    "numbers": "3.14159 " * 3_000,
    "base64": "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo0NTY3ODk+/" * 500,
    "JSON": '{"a":[1,2,{"b":null}]}' * 500,
}


@pytest.mark.embedded
async def test_odd_texts_become_finite_unit_vectors(real: Embedder) -> None:
    found = await real.embed_passages(list(ODD.values()), Deadline.after(60))
    assert np.isfinite(found).all()
    assert np.linalg.norm(found, axis=1) == pytest.approx(np.ones(len(ODD)), abs=1e-5)


@pytest.mark.embedded
async def test_a_long_text_is_embedded_by_its_beginning(real: Embedder) -> None:
    beginning = "The tower was built in 1889 for the world's fair. " * 60
    found = await real.embed_passages([beginning, beginning + "Eggs and flour. " * 5_000], Deadline.after(30))
    assert found[0] @ found[1] > 0.999


@pytest.mark.embedded
async def test_odd_texts_fit_also_by_the_cut_that_has_no_tokenizer(real: Embedder) -> None:
    real._tokenizes = False
    found = await real.embed_passages(list(ODD.values())[::3], Deadline.after(60))
    assert np.isfinite(found).all()
    ordinary = ["The quick brown fox jumps over the lazy dog. " * 100, "日本語の文章です。" * 200]
    cut = [embedder_module._cut_by_script(text, 512) for text in ordinary]
    for text in cut:
        # Conservative, but not wasteful: a good part of the 512 tokens is used.
        assert 150 < len(await real._client.tokenize(text, Deadline.after(10))) <= 512


@pytest.mark.embedded
async def test_the_server_answers_nobody_without_the_key(server: Lease) -> None:
    for key in (None, "guess"):
        client = LlamaClient(server.url, key)
        with pytest.raises(ModelUnavailable, match="401"):
            await client.embed("m", ["a"], Deadline.after(5))
        await client.aclose()


@pytest.mark.embedded
def test_the_key_of_the_server_is_not_to_be_seen_from_outside(server: Lease) -> None:
    process = Path(f"/proc/{server.pid}")
    assert server.key.encode() not in (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
    assert server.key not in repr(server)


@pytest.mark.embedded
async def test_a_call_that_runs_out_of_time_says_so(real: Embedder) -> None:
    with pytest.raises(ModelUnavailable, match=r"no answer|no time"):
        await asyncio.wait_for(
            real.embed_passages(["many words in one text " * 60] * 200, Deadline.after(0.5)), timeout=3
        )
    assert len(await real.embed_queries(["still there"], Deadline.after(20))) == 1
