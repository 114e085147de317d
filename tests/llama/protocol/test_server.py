"""What a server says of itself is checked field by field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trawl.errors import ModelReplyInvalid
from trawl.llama.protocol import server
from trawl.llama.protocol.server import Props, ServedModel, Slot


def test_models_are_read_with_the_extras_of_llama_server() -> None:
    body = {"data": [{"id": "e5", "meta": {"n_ctx": 2048, "n_ctx_train": 512}}, {"id": "b"}]}
    assert server.parse_models(200, json.dumps(body).encode()) == [ServedModel("e5", 512), ServedModel("b")]


@pytest.mark.parametrize("meta", [None, [], {"n_ctx": "512"}, {"n_ctx": True}, {"n_ctx": -1}, {"n_ctx": 10**9}])
def test_extras_that_make_no_sense_are_left_out(meta: Any) -> None:
    body = json.dumps({"data": [{"id": "m", "meta": meta}]}).encode()
    assert server.parse_models(200, body) == [ServedModel("m")]


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"data":[]}', b'{"data":[{}]}', b'{"data":[{"id":5}]}', b"<html>"]
)
def test_a_list_without_models_is_invalid(body: bytes) -> None:
    with pytest.raises(ModelReplyInvalid):
        server.parse_models(200, body)


def test_tokens_are_read() -> None:
    assert server.parse_tokens(200, b'{"tokens":[0,5,2]}') == [0, 5, 2]


@pytest.mark.parametrize(
    "body", [b"{}", b'{"tokens":5}', b'{"tokens":["a"]}', b'{"tokens":[-1]}', b'{"tokens":[true]}']
)
def test_odd_tokens_are_invalid(body: bytes) -> None:
    with pytest.raises(ModelReplyInvalid):
        server.parse_tokens(200, body)


def props(**fields: Any) -> Props:
    return server.parse_props(200, json.dumps(fields).encode())


def test_the_properties_of_a_llama_server_are_read() -> None:
    assert props(
        default_generation_settings={"n_ctx": 2048, "params": {}},
        total_slots=2,
        modalities={"vision": True, "audio": False},
        model_alias="small",
        model_path="/home/somebody/models/small.gguf",
    ) == Props(n_ctx=2048, total_slots=2, vision=True, model="small")


@pytest.mark.parametrize("path", ["/home/somebody/models/small.gguf", "C:\\models\\small.gguf", "small.gguf"])
def test_without_an_alias_the_model_is_named_by_its_file_but_not_its_folder(path: str) -> None:
    assert props(model_path=path, model_alias=path).model == "small.gguf"
    assert props(model_path=path).model == "small.gguf"


@pytest.mark.parametrize("odd", [None, "2048", True, -1, 0, 10**12, [], {}, 1.5])
def test_a_property_that_makes_no_sense_is_unknown(odd: Any) -> None:
    known = props(
        default_generation_settings={"n_ctx": odd}, total_slots=odd, modalities={"vision": 1}, model_alias="known"
    )
    assert known == Props(model="known")
    assert props(default_generation_settings=odd, modalities=odd, model_alias=5, total_slots=3) == Props(total_slots=3)


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"status":"ok"}', b"<html>", b'{"total_slots":"x"}', b"null"])
def test_what_is_no_report_of_properties_is_invalid(body: bytes) -> None:
    with pytest.raises(ModelReplyInvalid):
        server.parse_props(200, body)


def test_slots_are_read_with_what_they_do() -> None:
    body = [{"id": 0, "n_ctx": 512, "is_processing": False}, {"id": 1, "is_processing": True}, {"id": 2}, {}, 5]
    assert server.parse_slots(200, json.dumps(body).encode()) == [Slot(0, False), Slot(1, True), Slot(2, None)]


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b"[{}]", b'[{"id":"0"}]', b'[{"id":true}]', b"<html>", b"5"])
def test_what_is_no_list_of_slots_is_invalid(body: bytes) -> None:
    with pytest.raises(ModelReplyInvalid):
        server.parse_slots(200, body)
