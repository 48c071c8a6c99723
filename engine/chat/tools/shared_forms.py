# ruff: noqa: RUF001 - DeepSeek writes its markers with full-width bars
"""Forms and sections that several dialects share.

Source: the templates in tests/data/templates and the model cards of their makers.
"""

import re
from typing import Final

from engine.chat.reasoning import Markers
from engine.chat.tools.dialect import NamedCalls, Section, TaggedCalls

THINK: Final = Markers("<think>", "</think>")
NAME_ATTRIBUTE: Final = re.compile(r'name="(?P<name>[^"]*)"')
KEY_ATTRIBUTE: Final = re.compile(r'name="(?P<key>[^"]*)"(?:\s+string="(?P<kind>true|false)")?')


def invoke_tags(prefix: str) -> TaggedCalls:
    """Anthropic-like invoke and parameter tags behind a prefix."""
    return TaggedCalls(
        start=f"<{prefix}invoke ",
        name_end=">",
        name=NAME_ATTRIBUTE,
        key_open=f"<{prefix}parameter ",
        key_close=">",
        key=KEY_ATTRIBUTE,
        value_close=f"</{prefix}parameter>",
        end=f"</{prefix}invoke>",
        loose=True,
        name_spelling='name="{name}"',
        key_spelling='name="{key}" string="{is_text}"' if "DSML" in prefix else 'name="{key}"',
    )


def function_tags(*, newlines: bool) -> TaggedCalls:
    """Qwen3-Coder's `<function=…><parameter=…>`."""
    return TaggedCalls(
        start="<function=",
        name_end=">",
        key_open="<parameter=",
        key_close=">",
        value_close="</parameter>",
        end="</function>",
        newlines=newlines,
        loose=True,
    )


def argument_tags(suffix: str = "") -> TaggedCalls:
    """GLM's `<arg_key>…</arg_key><arg_value>…</arg_value>`, the name standing before them."""
    return TaggedCalls(
        start="",
        name_end=f"<tool_sep{suffix}>" if suffix else "\n",
        key_open=f"<arg_key{suffix}>",
        key_close=f"</arg_key{suffix}>",
        value_open=f"<arg_value{suffix}>",
        value_close=f"</arg_value{suffix}>",
        end="",
    )


TOOL_CALL: Final = Section("<tool_call>", ("</tool_call>",), gap="\n")
KIMI: Final = NamedCalls(
    start="<|tool_call_begin|>",
    header=re.compile(r"^\s*(?:functions\.)?(?P<name>[^:\s<]+)(?::\d+)?"),
    ends=("<|tool_call_end|>",),
    loose=True,
    spelling="functions.{name}:{index}<|tool_call_argument_begin|>",
)
MISTRAL: Final = NamedCalls(
    start="",
    header=re.compile(r"^\s*(?P<name>[^\[\s{]+)\s*(?:\[CALL_ID\][^\[{]*)?(?:\[ARGS\])?\s*$"),
    spelling="{name}[ARGS]",
)
DEEPSEEK: Final = NamedCalls(
    start="<｜tool▁call▁begin｜>",
    header=re.compile(r"^\s*(?:function\s*<｜tool▁sep｜>)?\s*(?P<name>[^\s<{]+)\s*(?:<｜tool▁sep｜>)?"),
    ends=("<｜tool▁call▁end｜>",),
    loose=True,
    spelling="{name}<｜tool▁sep｜>",
)
COHERE_ACTION: Final = Section("<|START_ACTION|>", ("<|END_ACTION|>",))
