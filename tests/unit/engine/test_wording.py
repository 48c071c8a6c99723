"""Code that decides states facts, not sentences; each fact has a sentence in engine.message_catalog."""

import ast
import re
import string
from functools import cache
from pathlib import Path

import msgspec
import pytest

import engine.message_catalog
from engine.library.errors import _PLAIN
from engine.message_catalog import COMMANDS, TEMPLATES, Wording, sentence, sentences
from engine.message_catalog.reasons import Reason, because
from engine.placement.speed import BACKENDS

ROOT = Path(__file__).resolve().parents[3]
DECIDING = (
    "engine/placement",
    "engine/core/errors.py",
    "engine/library/errors.py",
    "engine/remotes/errors.py",
    "engine/remotes/service.py",
    "engine/remotes/session.py",
    "engine/remotes/tunnel_child.py",
    "engine/upstreams/errors.py",
    "engine/upstreams/http.py",
    "engine/upstreams/link.py",
    "engine/upstreams/stream.py",
    "engine/upstreams/types.py",
    "engine/runner/exit_reasons.py",
    "engine/runner/watchdog.py",
    "engine/documents/errors.py",
    "engine/energy/meter.py",
)
# Three words of letters in a row, with or without values between them.
SENTENCE = re.compile(r"[A-Za-z']{2,}[,:;]?( [A-Za-z'{}]{1,}[,:;]?){2,}")
# Texts that users never see: log messages.
LOGGED = {"debug", "info", "warning", "error", "exception"}
# Texts of Python and the system, and a name in the hub's responses.
NOT_OURS = {"can't start new thread", "such file in", *_PLAIN}


@cache
def parsed(folder):
    """The files of a folder, except reports of measurements and findings of doctor, which are sentences."""
    found = (ROOT / folder).rglob("*.py") if not folder.endswith(".py") else [ROOT / folder]
    stated = [p for p in sorted(found) if p.name not in {"measurements.py", "fastflowlm.py", "pins.py"}]
    return [(p, ast.parse(p.read_text("utf-8"))) for p in stated]


@cache
def stating():
    """The files of engine and app that state reasons."""
    paths = [*(ROOT / "engine").rglob("*.py"), *(ROOT / "app").rglob("*.py")]
    texts = [(path, path.read_text("utf-8")) for path in paths]
    return [(path, ast.parse(text)) for path, text in texts if "engine.message_catalog.reasons import" in text]


def text_of(node):
    """A string, or an f-string with {} for its values; None for what is neither."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return None


def written(node):
    """Every string below a node that is neither documentation nor logged."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return
    if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in LOGGED:
        return
    text = text_of(node)
    if text is not None:
        yield node, text
        return
    for child in ast.iter_child_nodes(node):
        yield from written(child)


def stated():
    """Every `because(...)`: where, the kinds it may have, and the names of its values (None: not all are seen)."""
    for path, tree in stating():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "because":
                kinds = {text for _, text in written(node.args[0])}
                names = {keyword.arg for keyword in node.keywords}
                yield f"{path.relative_to(ROOT)}:{node.lineno}", kinds, None if None in names else names


def places(kind):
    """Names of the values that a kind's sentence and command show."""
    templates = TEMPLATES[kind], COMMANDS.get(kind, "")
    return {name for template in templates for _, name, _, _ in string.Formatter().parse(template) if name}


@pytest.mark.parametrize("folder", DECIDING)
def test_no_sentence_stands_where_things_are_decided(folder):
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {text}"
        for path, tree in parsed(folder)
        for node, text in written(tree)
        if SENTENCE.search(text) and text not in NOT_OURS
    ]
    assert found == [], "state a reason and put its sentence into engine.message_catalog"


def test_a_sentence_where_things_are_decided_is_found():
    code = '"""In a sentence."""\nlog.info("said to nobody at all")\nwhy = f"{n} layers fit there"'
    assert [text for _, text in written(ast.parse(code)) if SENTENCE.search(text)] == ["{} layers fit there"]


@pytest.mark.slow
def test_every_fact_has_a_sentence_with_places_for_its_values():
    wrong = []
    seen = set()
    for where, kinds, names in stated():
        for kind in kinds - {"backend_{}"}:
            seen.add(kind)
            if kind not in TEMPLATES:
                wrong.append(f"{where}: {kind} has no sentence")
            elif names is not None and places(kind) != names:
                wrong.append(f"{where}: {kind} has {sorted(names)}, its sentence {sorted(places(kind))}")
    assert wrong == []
    assert len(seen) > 100


def test_every_sentence_is_said_somewhere():
    said = set()
    for _, tree in stating():
        said |= {text for node in ast.walk(tree) if (text := text_of(node)) is not None}
    assert sorted(kind for kind in TEMPLATES if kind not in said and not kind.startswith("backend_")) == []


def test_a_kind_stands_in_one_table():
    tables = (engine.message_catalog.__dict__[name] for name in vars(engine.message_catalog) if name.isupper())
    parts = [table for table in tables if isinstance(table, dict) and table not in (TEMPLATES, COMMANDS)]
    assert sum(map(len, parts)) == len(TEMPLATES)


def test_every_backend_of_a_gpu_has_a_sentence():
    assert {f"backend_{name}" for name in BACKENDS} - TEMPLATES.keys() == {"backend_cpu", "backend_openvino"}


def test_values_and_reasons_stand_in_a_sentence():
    shares = (because("output_on_remote", remote="desk", up_kb=1.6, down_kb=12), "the rest")
    spread = because("spread", shares=shares, tok_s=2.34)
    assert (
        sentence(spread)
        == "the output on desk, 2 kB per token sent and 12 kB received; the rest, 2.3 tok/s expected"
    )
    assert sentences((because("all_layers_fit", devices=("A", "B")), because("no_npu"))) == (
        "all layers fit on A and B",
        "this machine has no NPU",
    )
    assert sentence(None) == ""


def test_a_reason_crosses_the_wire_whole():
    told = because(
        "npu_wanted_but", why=because("quiet"), problem=because("openvino_type", type="X", taken=("A", "B"))
    )
    assert msgspec.json.decode(msgspec.json.encode(told), type=Reason) == told


def test_another_language_has_sentences_of_its_own():
    german = Wording({TEMPLATES["no_npu"]: "keine NPU", TEMPLATES["npu_wanted_but"]: "{why}, aber {problem}"}.get)
    assert german.sentence(because("npu_wanted_but", why=because("no_npu"), problem="x")) == "keine NPU, aber x"


def test_a_model_in_a_command_is_one_word_of_a_shell():
    """A path may contain spaces: the command is there to be copied."""
    bare = {
        kind: text
        for kind, text in {**TEMPLATES, **COMMANDS}.items()
        if re.search(r"tessera [a-z -]+\{model\}", text)
    }
    assert bare == {}
    told = sentence(because("speed_forecast", half=0.1, rare=0.5, model="My models/a.gguf"))
    assert "`tessera bench 'My models/a.gguf'` measures it" in told
