"""A model restricted to the grammar makes calls that the parser reads and the schema accepts."""

import jsonschema
import numpy as np
import pytest

from engine.chat.tools.dialect import NamedCalls, PythonCalls, TaggedCalls
from engine.chat.tools.dialects import BY_NAME
from engine.chat.tools.grammar import tool_grammar
from engine.chat.tools.parser import AnswerParser
from engine.chat.types import ToolDefinition
from engine.core.types import Constraint
from engine.runner.generation.grammar_mask import ConstraintCompiler
from tests.unit.engine.chat.conversations import collect
from tests.unit.engine.runner.test_constrain import BytesAndWords, generate

# Lists contain no strings, because the test's texts often contain the words that close a tag.
PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer", "minimum": 1},
        "tags": {"type": "array", "items": {"enum": [1, None, True]}},
    },
    "required": ["city", "tags"],
}
TOOLS = tuple(ToolDefinition(name=name, parameters=PARAMETERS) for name in ("get_weather", "get_time"))


def own_notation(dialect):
    """Only the frame and the name are enforced if arguments are neither JSON nor tags."""
    form = dialect.forms[0]
    return isinstance(form, PythonCalls) or (isinstance(form, NamedCalls) and form.quote is not None)


FEW = 4  # answers that end, of each dialect


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_forced_calls_are_read_back_and_valid(name, parallel):
    dialect = BY_NAME[name]
    grammar = tool_grammar(dialect, TOOLS, parallel=parallel)
    form = dialect.forms[0]
    closers = []
    nested = getattr(form, "nested", "")
    if isinstance(form, TaggedCalls):
        closers = [
            ("\n" if form.newlines else "") + form.value_close.replace("{key}", key)
            for key in PARAMETERS["properties"]
        ]
    compiler = ConstraintCompiler(BytesAndWords(*closers))
    ended = 0
    for seed in range(12):
        text = generate(
            Constraint(kind="lark", source=grammar.whole),
            np.random.default_rng(seed),
            limit=1500,
            compiler=compiler,
        )
        if text is None:
            continue
        if ended == FEW:
            break
        ended += 1
        seed_text = next(iter(dialect.seeds), "")
        parser = AnswerParser(dialect, TOOLS, seed_text)
        said, _, calls, malformed = collect(parser.feed(text) + parser.finish())
        assert calls, text
        assert parallel or len(calls) == 1
        assert said.strip() == "", text
        for called, arguments in calls:
            assert called in {"get_weather", "get_time"}
            if not own_notation(dialect):
                assert malformed == []
                if not nested:
                    jsonschema.validate(arguments, PARAMETERS)
    assert ended, "no answer was ever complete"


def test_the_rest_follows_the_opening():
    grammar = tool_grammar(BY_NAME["hermes"], TOOLS, parallel=False)
    assert grammar.opening == "<tool_call>\n"
    assert grammar.continuation.startswith("start: calls")
    assert grammar.whole.startswith('start: "<tool_call>\\n" calls')


TEXTS = {
    "type": "object",
    "properties": {
        "code": {"type": "string", "pattern": "^[A-Z]{2}/[0-9]+$"},
        "word": {"type": "string", "pattern": "b+"},
        "short": {"type": "string", "minLength": 1, "maxLength": 4},
        "unit": {"$ref": "#/$defs/unit"},
        "same": {"const": "</s>"},
        "maybe": {"anyOf": [{"enum": ["a", "b"], "type": "string"}, {"type": "null"}, {"type": "integer"}]},
        "mixed": {"enum": ["a", 1, None, True]},
    },
    "required": ["code", "word", "short", "unit", "same", "maybe", "mixed"],
    "$defs": {"unit": {"enum": ["c", "f"]}},
}
WELL = {"code": "AB/12", "word": "abbc", "short": "xyz", "unit": "c", "same": "</s>", "maybe": "b", "mixed": "a"}


# Other values that the schema allows.
RIGHT = [(None, ""), ("maybe", "null"), ("maybe", "12"), ("mixed", "null"), ("mixed", "1")]


def is_taken(text):
    """Whether the grammar of a strict tool with these text parameters allows the call."""
    source = tool_grammar(BY_NAME["qwen-coder"], [ToolDefinition(name="f", parameters=TEXTS)], parallel=False).whole
    state = ConstraintCompiler(BytesAndWords()).compile(Constraint(kind="lark", source=source))
    for byte in text.encode():
        if not state.allows(byte):
            return False
        state.accept(byte)
    return state.complete


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *RIGHT,
        ("maybe", "c"), ("maybe", "true"), ("mixed", "b"), ("mixed", "2"), ("code", "ab/1"), ("code", "AB/1x"),
        ("word", "ac"), ("short", "12345"), ("short", ""), ("unit", "x"), ("same", "s"),
    ],
)  # fmt: skip
def test_text_parameters_of_tag_dialects_keep_to_their_schema(key, value):
    values = {**WELL, key: value} if key else WELL
    arguments = "".join(f"<parameter={name}>\n{values[name]}\n</parameter>\n" for name in TEXTS["required"])
    text = f"<tool_call>\n<function=f>\n{arguments}</function>\n</tool_call>"
    assert is_taken(text) == ((key, value) in RIGHT)


@pytest.mark.parametrize("name", [n for n, d in BY_NAME.items() if isinstance(d.forms[0], TaggedCalls)])
def test_every_tag_dialect_has_a_grammar_of_such_parameters(name):
    source = tool_grammar(BY_NAME[name], [ToolDefinition(name="f", parameters=TEXTS)], parallel=True).whole
    ConstraintCompiler(BytesAndWords()).compile(Constraint(kind="lark", source=source))


def test_a_number_or_id_that_a_dialect_asks_for_is_made_up_by_the_model():
    patterns = {"{index}": "/[0-9]{1,3}/", "{id}": "/[A-Za-z0-9]{8,10}/"}
    met = set()
    for dialect in BY_NAME.values():
        form = dialect.forms[0]
        layout = getattr(form, "spelling", "") + getattr(form, "name_spelling", "")
        for hole in (hole for hole in patterns if hole in layout):
            assert patterns[hole] in tool_grammar(dialect, TOOLS, parallel=False).whole, (dialect.name, hole)
            met.add(hole)
    assert met == patterns.keys()
