"""Continue: https://docs.continue.dev/reference (config.yaml)."""

import json
import re
from pathlib import Path

from app.code.integrations.text_block import undo_block, with_block, without_block
from app.code.integrations.types import Endpoint, FileEdit, Integration, NeedsHand, read_config

_MODELS = re.compile(r"^models:[ \t]*(\[\s*\])?[ \t]*(?:#.*)?$", re.MULTILINE)
_NEW = "name: Local\nversion: 1.0.0\nschema: v1\n"


def _entry(endpoint: Endpoint, indent: str) -> list[str]:
    roles = ["chat", "edit", "apply", *(["autocomplete"] if endpoint.fim else [])]
    rows = [
        f"- name: {json.dumps('Tessera ' + endpoint.model)}",
        "  provider: openai",
        f"  model: {json.dumps(endpoint.model)}",
        f"  apiBase: {json.dumps(endpoint.openai_url)}",
        f"  apiKey: {json.dumps(endpoint.key)}",
        f"  roles: {json.dumps(roles)}",
        "  defaultCompletionOptions:",
        f"    contextLength: {endpoint.context}",
        f"    maxTokens: {endpoint.output_limit}",
    ]
    return [indent + row for row in rows]


def _edits(home: Path, endpoint: Endpoint) -> list[FileEdit]:
    path = home / ".continue" / "config.yaml"
    before = read_config(path)
    text = without_block(before or _NEW)
    found = _MODELS.search(text)
    if found is None and re.search(r"^models:", text, re.MULTILINE):
        snippet = "\n".join(_entry(endpoint, "  "))
        raise NeedsHand(path, "its list of models is written on one line", snippet)
    if found is None or found.group(1):
        text = _MODELS.sub("", text)
        after = with_block(text, ["models:", *_entry(endpoint, "  ")])
    else:
        item = re.match(r"\s*?\n([ \t]*)-", text[found.end() :])
        indent = item.group(1) if item else "  "
        after = with_block(text, _entry(endpoint, indent), after=text[: found.end()].count("\n") + 1)
    return [FileEdit(path=path, before=before, after=after)]


INTEGRATION = Integration(
    name="continue",
    title="Continue (VS Code, JetBrains)",
    kind="editor",
    install="install the extension Continue in the editor",
    edits=_edits,
    undo=undo_block,
)
