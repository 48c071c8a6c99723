"""A value of another kind anywhere in a request is an error of the client, never one of the server."""

import copy
import json

import pytest
from pydantic import ValidationError

from devices.errors import TesseraError
from engine.chat.query import check_tools
from engine.server.anthropic import routes as anthropic
from engine.server.body import fault
from engine.server.ollama import routes as ollama
from engine.server.ollama.schemas import ChatBody, GenerateBody
from engine.server.openai.schemas import ChatRequest
from engine.server.openai.translate import allowed_tools, to_query
from engine.server.response_store.conversations import stored_item
from engine.server.responses import file_search, routes
from engine.server.responses.schemas import ResponsesRequest
from engine.server.responses.tools import add_from_items, tool_choice, toolbox
from engine.server.responses.translate import to_messages
from tests.support import contract_examples as examples

ODD = (None, [], {}, "é", 1, True, [{}], [[]])


def chat(body):
    body.refuse_impossible()
    check_tools(to_query(body))
    body.custom_names()


def responses(body):
    body.refuse_impossible()
    items = body.input if isinstance(body.input, list) else []
    box = toolbox(body.tools or [])
    add_from_items(box, items)
    to_messages(body.input or [], box)
    routes._output(body.text or {})
    choice = file_search.chosen(body.tool_choice, box).functions
    tool_choice(allowed_tools(tuple(box.definitions), choice)[1], box)
    routes._response(body)
    for item in items:
        stored_item(item)


TRANSLATED = {
    "/v1/chat/completions": (ChatRequest, chat),
    "/v1/responses": (ResponsesRequest, responses),
    "/v1/messages": (anthropic.MessagesRequest, anthropic.to_query),
    "/api/chat": (ChatBody, ollama.chat_query),
    "/api/generate": (GenerateBody, ollama.generate_query),
}


def places(value, path=()):
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield (*path, key)
        if isinstance(inner, dict | list):
            yield from places(inner, (*path, key))


def bodies(path):
    """Each example with one value replaced; a value in the same place of several examples is replaced once."""
    tried = set()
    for example in examples.EXAMPLES[path]:
        for place in places(example):
            parent = example
            for part in place[:-1]:
                parent = parent[part]
            known = (place, json.dumps(parent))
            if known in tried:
                continue
            tried.add(known)
            for odd in ODD:
                body = copy.deepcopy(example)
                parent = body
                for part in place[:-1]:
                    parent = parent[part]
                parent[place[-1]] = odd
                yield body


@pytest.mark.parametrize("path", TRANSLATED)
def test_a_value_of_another_kind_is_the_clients_error(path):
    model, translate = TRANSLATED[path]
    num_accepted = 0
    for body in bodies(path):
        try:
            request = model.model_validate_json(json.dumps(body))
        except ValidationError as error:
            fault(error)
            continue
        try:
            request.ignored()
            translate(request)
            num_accepted += 1
        except TesseraError:
            continue
    assert num_accepted > 50
