"""What is embedded fits, whatever the text; what was embedded before is not sent again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.llama.conftest import NOBODY, bag_of_letters, reply, vectors
from trawl.deadline import Deadline
from trawl.errors import ModelReplyInvalid, ModelUnavailable
from trawl.llama import embedder as embedder_module
from trawl.llama.backends import Backends
from trawl.llama.client import LlamaClient
from trawl.llama.embedder import Embedder
from trawl.llama.rendezvous import Lease
from trawl.settings import Settings

Serving = Callable[..., Any]
EMBED, MODELS, TOKENIZE = "/v1/embeddings", "/v1/models", "/tokenize"


def listing(name: str = "bge-m3", **meta: int) -> Callable[[Any], bytes]:
    return lambda _: reply({"data": [{"id": name, "meta": meta}]})


def embeds(body: Any) -> bytes:
    return reply(vectors(body))


async def opened(fake: Any) -> Embedder:
    found = await Backends(Settings(embed_url=fake.url, embedded=False)).open_embedder(Deadline.after(5))
    assert found.backend is not None, found.reason
    return found.backend


async def of_questions(embedder: Embedder, texts: list[str], seconds: float = 20) -> Any:
    return (await embedder.embed(texts, [], Deadline.after(seconds))).questions


async def of_passages(embedder: Embedder, texts: list[str], seconds: float = 60) -> Any:
    return (await embedder.embed([], texts, Deadline.after(seconds))).passages


# Who is an embedding model


@pytest.mark.parametrize("seed", range(8))
async def test_vectors_that_mean_nothing_are_found_out(fake_server: Serving, seed: int) -> None:
    random = np.random.default_rng(seed)
    noise = {EMBED: lambda body: reply(vectors(body, lambda _: random.standard_normal(64).tolist()))}
    async with fake_server(noise) as fake:
        found = await Backends(Settings(embed_url=fake.url, embedded=False)).open_embedder(Deadline.after(5))
    assert found.backend is None
    assert "do not tell texts apart" in found.reason


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
        found = await of_passages(embedder, LONG_TEXTS, 10)
        await embedder.endpoint.aclose()
    assert found.shape == (6, 64)
    assert np.isfinite(found).all()
    assert np.argmax(found[0]) == np.argmax(bag_of_letters("short"))
    assert np.argmax(found[5]) == np.argmax(np.array(bag_of_letters("short too"))), "the order was lost"


async def test_what_a_server_says_of_its_limit_is_remembered(fake_server: Serving) -> None:
    async with fake_server({EMBED: refuses_long(64, TOO_LONG[0][1], 500)}) as fake:
        embedder = await opened(fake)
        await of_passages(embedder, ["word " * 5000], 10)
        before = len(fake.bodies(EMBED))
        await of_passages(embedder, ["word " * 5000] * 4, 10)
        await embedder.endpoint.aclose()
    assert len(fake.bodies(EMBED)) == before + 1


async def test_a_server_that_names_a_smaller_limit_each_time_is_believed_once(fake_server: Serving) -> None:
    limits = iter(range(8000, 0, -1))

    def answer(body: Any) -> bytes:
        if any(len(text) > 100 for text in body["input"]):
            return reply({"error": {"message": f"too large (current batch size: {next(limits)})"}}, 500)
        return reply(vectors(body))

    async with fake_server({EMBED: answer, MODELS: listing(n_ctx=8192)}) as fake:
        embedder = await opened(fake)
        found = await of_passages(embedder, ["word " * 5000] * 4, 10)
        await embedder.endpoint.aclose()
    assert np.isfinite(found).all()
    assert len(fake.bodies(EMBED)) < 100


async def test_a_text_is_cut_by_its_tokens_where_the_server_counts_them(fake_server: Serving) -> None:
    def tokenize(body: Any) -> bytes:
        return reply({"tokens": [0, *range(10, 10 + len(body["content"].split())), 2]})

    routes = {EMBED: refuses_long(32, TOO_LONG[0][1], 500), MODELS: listing(n_ctx=32), TOKENIZE: tokenize}
    async with fake_server(routes) as fake:
        embedder = await opened(fake)
        await of_passages(embedder, ["word " * 29 + "end", "word " * 30 + "end", "word " * 500], 5)
        await embedder.endpoint.aclose()
    short, cut, long = fake.bodies(EMBED)[-1]["input"]
    assert short.endswith("end"), "a text that fits is not touched"
    assert cut == long == [0, *range(10, 40), 2], "the closing token stays"


async def test_a_tokenizer_that_failed_once_is_asked_again(fake_server: Serving) -> None:
    fails = True

    def tokenize(_: Any) -> bytes:
        nonlocal fails
        fails, failed = False, fails
        return reply({"error": {"message": "oops"}}, 500) if failed else reply({"tokens": [0, 10, 2]})

    routes = {EMBED: lambda body: reply(vectors(body)), MODELS: listing(n_ctx=32), TOKENIZE: tokenize}
    async with fake_server(routes) as fake:
        embedder = await opened(fake)
        await of_passages(embedder, ["word " * 20, "end " * 20], 5)
        await embedder.endpoint.aclose()
    assert fake.paths().count(TOKENIZE) == 2


async def test_a_server_that_refuses_everything_as_too_long_ends_in_an_error(fake_server: Serving) -> None:
    calls = 0

    def answer(body: Any) -> bytes:
        nonlocal calls
        calls += 1
        return embeds(body) if calls == 1 else reply({"error": {"message": "too long"}}, 400)

    async with fake_server({EMBED: answer}) as fake:
        embedder = await opened(fake)
        with pytest.raises(ModelReplyInvalid):
            await of_passages(embedder, ["a", "b", "c"], 5)
        await embedder.endpoint.aclose()
    assert calls < 20


async def test_batches_are_small_in_count_and_size(fake_server: Serving) -> None:
    async with fake_server({EMBED: embeds, MODELS: listing(n_ctx=8192)}) as fake:
        embedder = await opened(fake)
        found = await of_passages(embedder, [f"word{i}" for i in range(40)] + [f"word{i} " * 4000 for i in range(7)], 5)
        await embedder.endpoint.aclose()
    sent = [body["input"] for body in fake.bodies(EMBED)[1:]]
    assert len(found) == sum(map(len, sent)) == 47
    assert max(map(len, sent)) <= embedder_module.BATCH_INPUTS
    assert max(sum(map(len, batch)) for batch in sent) < 4 * embedder_module.BATCH_TOKENS


async def test_no_texts_are_no_request(fake_server: Serving) -> None:
    async with fake_server({EMBED: embeds}) as fake:
        embedder = await opened(fake)
        before = len(fake.seen)
        assert (await of_passages(embedder, [], 5)).shape == (0, 64)
        assert len(fake.seen) == before
        await embedder.endpoint.aclose()


@pytest.mark.parametrize("numbers", [[1e300, -1e300], [1e-300, 2e-300], [5e-324, 0], [3, 4], [1e38, 1e-38]])
async def test_vectors_have_length_one_whatever_the_scale(fake_server: Serving, numbers: list[float]) -> None:
    first = True

    def answer(body: Any) -> bytes:
        nonlocal first
        was_first, first = first, False
        if was_first:
            good = [[1.0, 0.1], [0.1, -1.0], [-1.0, 0.1]]
            return reply({"data": [{"index": i, "embedding": good[i // 2]} for i in range(len(body["input"]))]})
        return reply({"data": [{"index": 0, "embedding": numbers}]})

    async with fake_server({EMBED: answer}) as fake:
        embedder = await opened(fake)
        found = await of_questions(embedder, ["q"], 5)
        await embedder.endpoint.aclose()
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
            await of_questions(embedder, ["q"], 5)
        await embedder.endpoint.aclose()


async def test_a_closed_embedder_is_unavailable_and_may_be_closed_again(fake_server: Serving) -> None:
    async with fake_server({EMBED: embeds}) as fake:
        embedder = await opened(fake)
        await embedder.endpoint.aclose()
        await embedder.endpoint.aclose()
        with pytest.raises(ModelUnavailable):
            await of_questions(embedder, ["q"], 5)


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
    found = await Backends(settings).open_embedder(Deadline.after(30))
    assert found.backend is not None, found.reason
    assert found.backend.endpoint.lease is not None
    assert found.backend.endpoint.lease.pid == server.pid
    yield found.backend
    await found.backend.endpoint.aclose()


@pytest.mark.embedded
async def test_the_embedded_server_is_chosen_when_nobody_else_answers(real: Embedder, settings: Settings) -> None:
    assert (real.model, real.dimension, real.endpoint.name) == ("multilingual-e5-small", 384, "embedded")
    unreachable = settings.model_copy(update={"embed_url": NOBODY})
    again = await Backends(unreachable).open_embedder(Deadline.after(30))
    assert again.backend is not None
    assert "in the embedded server" in again.reason
    assert f"{NOBODY} cannot be used (nobody answers" in again.reason
    await again.backend.endpoint.aclose()


@pytest.mark.embedded
@pytest.mark.parametrize(("language", "question", "answer", "other"), RELATED, ids=[r[0] for r in RELATED])
async def test_related_texts_are_closer_than_unrelated_ones(
    real: Embedder, language: str, question: str, answer: str, other: str
) -> None:
    query = (await of_questions(real, [question], 20))[0]
    passages = await of_passages(real, [answer, other], 20)
    assert np.linalg.norm(passages, axis=1) == pytest.approx([1, 1], abs=1e-3)
    assert query @ passages[0] > query @ passages[1] + 0.03


@pytest.mark.embedded
async def test_questions_and_passages_are_embedded_differently(real: Embedder) -> None:
    query = (await of_questions(real, ["the tower"], 20))[0]
    passage = (await of_passages(real, ["the tower"], 20))[0]
    assert 0.8 < query @ passage < 0.999


@pytest.mark.embedded
async def test_the_vector_of_a_text_does_not_depend_on_its_batch(real: Embedder) -> None:
    texts = [f"Paragraph {i} speaks of {'stones and ' * (i * 7)}rivers." for i in range(9)]
    together = await of_passages(real, texts, 60)
    for i in (0, 3, 8):
        alone = (await of_passages(real, [texts[i]], 20))[0]
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
    found = await of_passages(real, list(ODD.values()), 60)
    assert np.isfinite(found).all()
    assert np.linalg.norm(found, axis=1) == pytest.approx(np.ones(len(ODD)), abs=1e-3)


@pytest.mark.embedded
async def test_a_long_text_is_embedded_by_its_beginning(real: Embedder) -> None:
    beginning = "The tower was built in 1889 for the world's fair. " * 60
    found = await of_passages(real, [beginning, beginning + "Eggs and flour. " * 5_000], 30)
    assert found[0] @ found[1] > 0.999


@pytest.mark.embedded
async def test_odd_texts_fit_also_by_the_cut_that_has_no_tokenizer(real: Embedder) -> None:
    real.endpoint.client._lacking.add("/tokenize")
    found = await of_passages(real, list(ODD.values())[::3], 60)
    real.endpoint.client._lacking.clear()
    assert np.isfinite(found).all()
    ordinary = ["The quick brown fox jumps over the lazy dog. " * 100, "日本語の文章です。" * 200]
    cut = [embedder_module._cut_by_script(text, 512) for text in ordinary]
    for text in cut:
        # Conservative, but not wasteful: a good part of the 512 tokens is used.
        assert 150 < len(await real.endpoint.client.tokenize(text, Deadline.after(10))) <= 512


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
        await asyncio.wait_for(of_passages(real, [f"many words in text {i} " * 60 for i in range(200)], 0.5), timeout=3)
    assert len(await of_questions(real, ["still there"], 20)) == 1
