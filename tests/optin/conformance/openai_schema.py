"""Compares Tessera's responses with OpenAI's published document: whole responses, every event of streams, errors.

    python tests/optin/conformance/openai_schema.py OPENAPI.json URL MODEL

OPENAPI.json is OpenAI's file (openapi.json of openai/openai-openapi); nothing is downloaded. Needs jsonschema and
requests. Prints differences that have no reason in expected.toml, counts the others, and exits with 1 if it
printed any.
"""

import argparse
import json
import re
import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import requests
from jsonschema import Draft202012Validator

HERE = Path(__file__).parent
HI = [{"role": "user", "content": "Hello, who are you?"}]
CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}}, "required": ["city"]}
STRICT = {**CITY, "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": STRICT}}
FLAT = {"type": "function", "name": "get_weather", "description": "Weather", "parameters": STRICT, "strict": True}
NAMED = {"type": "function", "function": {"name": "get_weather"}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "city", "schema": STRICT, "strict": True}}
CHATS: list[dict[str, Any]] = [
    {}, {"n": 2, "temperature": 1.0}, {"logprobs": True, "top_logprobs": 3}, {"tools": [TOOL]},
    {"tools": [TOOL], "tool_choice": NAMED}, {"response_format": FORMAT, "max_tokens": 40},
    {"response_format": {"type": "json_object"}},
    {"stop": ["e"], "seed": 3}, {"max_tokens": 1}, {"store": True, "metadata": {"a": "b"}, "user": "u"},
]  # fmt: skip
RESPONSES: list[dict[str, Any]] = [
    {"input": "Hello"}, {"input": HI, "instructions": "Be brief."},
    {"input": "Hello", "tools": [FLAT]},
    {"input": "Weather?", "tools": [FLAT], "tool_choice": {"type": "function", "name": "get_weather"}},
    {"input": "A city.", "text": {"format": {"type": "json_schema", "name": "c", "schema": CITY}}},
    {"input": "Hello", "max_output_tokens": 16, "metadata": {"a": "b"}}, {"input": "Hello", "store": False},
]  # fmt: skip
BAD = [
    ("/chat/completions", {}), ("/chat/completions", {"messages": []}), ("/chat/completions", {"messages": 3}),
    ("/chat/completions", {"messages": HI, "temperature": "x"}), ("/completions", {}), ("/embeddings", {}),
    ("/embeddings", {"input": []}), ("/responses", {"input": [{"type": "nonsense"}]}),
    ("/moderations", {"input": "x"}),
    ("/chat/completions", {"messages": [{"role": "user", "content": "a " * 9000}]}),
]  # fmt: skip


def nullable(node: Any) -> Any:
    """The document uses `nullable: true` in places, as in OpenAPI 3.0."""
    if isinstance(node, list):
        return [nullable(item) for item in node]
    if not isinstance(node, dict):
        return node
    inner = {key: nullable(value) for key, value in node.items() if key != "nullable"}
    return {"anyOf": [inner, {"type": "null"}]} if node.get("nullable") is True else inner


class Checker:
    """Compares answers with the document, and counts."""

    def __init__(self, document: dict[str, Any], url: str, model: str) -> None:
        self.document = document
        self.components = nullable(document["components"])
        self.url, self.model = url.rstrip("/"), model
        self.expected = tomllib.loads((HERE / "expected.toml").read_text("utf-8"))["openai"]
        self.counts: Counter[str] = Counter()
        self._validators: dict[str, Draft202012Validator] = {}

    def meant(self, schema: dict[str, Any], value: Any) -> dict[str, Any]:
        """The member of a union of events with this type, so that differences are reported for that one only."""
        named = schema.get("$ref", "").rpartition("/")[2]
        whole = self.document["components"]["schemas"].get(named, schema)
        for option in whole.get("anyOf", whole.get("oneOf", ())):
            inner = self.document["components"]["schemas"].get(option.get("$ref", "").rpartition("/")[2], option)
            kind = inner.get("properties", {}).get("type", {})
            if value.get("type") in kind.get("enum", [kind.get("const", "")]):
                return option
        return schema

    def validator(self, schema: dict[str, Any]) -> Draft202012Validator:
        """Compare with a schema of the document."""
        key = json.dumps(schema, sort_keys=True)
        if key not in self._validators:
            whole = {**nullable(schema), "components": self.components}
            self._validators[key] = Draft202012Validator(whole)
        return self._validators[key]

    def check(self, what: str, schema: dict[str, Any], value: Any) -> None:
        """Compare one object of a response."""
        errors = list(self.validator(schema).iter_errors(value))
        found = {f"{what} {error.json_path}: {error.message[:160]}" for error in errors}
        why = {next((w for p, w in self.expected.items() if re.fullmatch(p, told)), "") for told in found}
        kind = "same" if not found else "UNEXPECTED" if "" in why else min(why)
        self.counts[kind] += 1
        if kind == "UNEXPECTED":
            for told in sorted(found):
                print(f"UNEXPECTED {told}")

    def ask(self, method: str, path: str, template: str | None = None, **options: Any) -> Any:
        """Send a request, compare its response, and return it."""
        answer = requests.request(method, f"{self.url}/v1{path}", timeout=120, **options)
        what = f"{method} {template or path}"
        if answer.status_code >= requests.codes.bad_request:
            print(f"UNEXPECTED {what}: status {answer.status_code} {answer.text[:200]}")
            self.counts["UNEXPECTED"] += 1
            return {}
        content = self.document["paths"][template or path][method]["responses"]["200"].get("content", {})
        if answer.headers["content-type"].startswith("text/event-stream"):
            events = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
            schema = content.get("text/event-stream", content["application/json"])["schema"]
            for event in events:
                told = json.loads(event)
                self.check(f"{what} ({told.get('type', 'chunk')})", self.meant(schema, told), told)
        elif content:
            self.check(what, content["application/json"]["schema"], answer.json())
        return answer.json() if answer.headers["content-type"].startswith("application/json") else {}

    def refused(self, path: str, body: dict[str, Any]) -> None:
        """Send a request that must be refused in OpenAI's format."""
        answer = requests.post(f"{self.url}/v1{path}", json={"model": self.model, **body}, timeout=120)
        assert requests.codes.bad_request <= answer.status_code < requests.codes.server_error, (path, answer.text)
        self.check(f"error {path}", {"$ref": "#/components/schemas/ErrorResponse"}, answer.json())


def walk(checker: Checker) -> None:
    """Every route of the document that is served here."""
    model = {"model": checker.model}
    checker.ask("get", "/models")
    checker.ask("get", f"/models/{checker.model}", "/models/{model}")
    for fields in CHATS:
        body = {**model, "messages": HI, "max_tokens": 12, **fields}
        checker.ask("post", "/chat/completions", json=body)
        streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
        checker.ask("post", "/chat/completions", json=streamed)
    for extra in ({}, {"n": 2}, {"logprobs": 2}, {"echo": True, "logprobs": 1}, {"suffix": None}, {"stream": True}):
        checker.ask("post", "/completions", json={**model, "prompt": "Once upon", "max_tokens": 8, **extra})
    for extra in ({}, {"encoding_format": "base64"}, {"input": ["a", "b"]}, {"input": [[1, 2], [3]]}):
        checker.ask("post", "/embeddings", json={**model, "input": "Hello", **extra})
    for fields in RESPONSES:
        body = {**model, "max_output_tokens": 24, **fields}
        told = checker.ask("post", "/responses", json=body)
        checker.ask("post", "/responses", json={**body, "stream": True})
        if told and fields.get("store") is not False:
            where = f"/responses/{told['id']}"
            checker.ask("get", where, "/responses/{response_id}")
            checker.ask("get", f"{where}/input_items", "/responses/{response_id}/input_items")
            checker.ask("delete", where, "/responses/{response_id}")
    checker.ask("post", "/responses/input_tokens", json={**model, "input": "Hello"})
    checker.ask("post", "/responses/compact", json={**model, "input": [{"role": "user", "content": "Hello"}]})
    conversations(checker, model)
    stores(checker)
    for path, body in BAD:
        checker.refused(path, body)


def conversations(checker: Checker, model: dict[str, Any]) -> None:
    """Stored conversations and their items."""
    talk, item = "/conversations/{conversation_id}", {"type": "message", "role": "user", "content": "Hi"}
    made = checker.ask("post", "/conversations", json={"items": [item], "metadata": {"a": "b"}})
    here = f"/conversations/{made['id']}"
    checker.ask("post", "/responses", json={**model, "input": "Hello", "conversation": made["id"]})
    checker.ask("get", here, talk)
    checker.ask("post", here, talk, json={"metadata": {"c": "d"}})
    added = checker.ask("post", f"{here}/items", f"{talk}/items", json={"items": [item]})
    checker.ask("get", f"{here}/items", f"{talk}/items")
    first = added["data"][0]["id"]
    checker.ask("get", f"{here}/items/{first}", f"{talk}/items/{{item_id}}")
    checker.ask("delete", f"{here}/items/{first}", f"{talk}/items/{{item_id}}")
    checker.ask("delete", here, talk)


def stores(checker: Checker) -> None:
    """Files and vector stores."""
    sent = {"file": ("sea.md", b"# Sea\n\nHigh water comes every twelve hours.\n", "text/markdown")}
    file = checker.ask("post", "/files", files=sent, data={"purpose": "assistants"})
    checker.ask("get", "/files")
    checker.ask("get", f"/files/{file['id']}", "/files/{file_id}")
    store = checker.ask("post", "/vector_stores", json={"name": "sea", "file_ids": [file["id"]]})
    checker.ask("get", "/vector_stores")
    where, template = f"/vector_stores/{store['id']}", "/vector_stores/{vector_store_id}"
    checker.ask("get", where, template)
    checker.ask("get", f"{where}/files", f"{template}/files")
    checker.ask("post", f"{where}/search", f"{template}/search", json={"query": "high water"})
    checker.ask("delete", where, template)
    checker.ask("delete", f"/files/{file['id']}", "/files/{file_id}")


def main() -> int:
    """Send, compare, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("document", type=Path)
    parser.add_argument("url")
    parser.add_argument("model")
    given = parser.parse_args()
    checker = Checker(json.loads(given.document.read_text("utf-8")), given.url, given.model)
    walk(checker)
    print(f"{checker.counts.total():4}  compared")
    for reason, count in checker.counts.most_common():
        print(f"{count:4}  {reason}")
    return 1 if checker.counts["UNEXPECTED"] else 0


if __name__ == "__main__":
    sys.exit(main())
