"""Dialects whose marks several families use; the more particular ones stand first.

Source: the templates in tests/data/templates and the model cards of their makers.
"""

import re
from typing import Final

from engine.chat.reasoning import Markers
from engine.chat.tools.dialect import Dialect, JsonCalls, NamedCalls, PythonCalls, Section
from engine.chat.tools.shared_forms import MISTRAL, THINK, TOOL_CALL, argument_tags, function_tags

HERMES: Final = Dialect(
    name="hermes",
    needs=("<tool_call>",),
    reasoning=THINK,
    sections=(TOOL_CALL,),
    forms=(JsonCalls(), function_tags(newlines=True)),
    bare_json=True,
    breaks_reasoning=True,
)
# What the built-in tool prompt teaches; also read: JSON without a marker or inside a code fence.
GENERIC: Final = Dialect(
    name="generic",
    reasoning=THINK,
    sections=(
        TOOL_CALL,
        Section("<tool_calls>", ("</tool_calls>",)),
        Section("<function_call>", ("</function_call>",)),
    ),
    forms=(JsonCalls(), function_tags(newlines=True)),
    bare_json=True,
)

SHARED: Final = (
    Dialect(
        name="glm",
        needs=("<arg_key>", "<arg_value>"),
        reasoning=THINK,
        sections=(TOOL_CALL,),
        forms=(argument_tags(), JsonCalls()),
        drops=("<|observation|>",),
        breaks_reasoning=True,
    ),
    Dialect(
        name="qwen-coder",
        needs=("<tool_call>", "<function="),
        reasoning=THINK,
        sections=(TOOL_CALL,),
        forms=(function_tags(newlines=True), JsonCalls()),
        bare_json=True,
        breaks_reasoning=True,
    ),
    Dialect(
        name="functionary-v3.1",
        needs=("<function=", "</function>"),
        forms=(
            NamedCalls(
                start="<function=",
                header=re.compile(r"^(?P<name>[^>]+)>"),
                ends=("</function>",),
                loose=True,
                spelling="{name}>",
            ),
        ),
    ),
    Dialect(
        name="mistral",
        needs=("[TOOL_CALLS]", "[ARGS]"),
        reasoning=Markers("[THINK]", "[/THINK]"),
        sections=(Section("[TOOL_CALLS]"),),
        forms=(MISTRAL, JsonCalls(listed=True)),
        breaks_reasoning=True,
        id_style="nine",
    ),
    Dialect(
        name="mistral-nemo",
        needs=("[TOOL_CALLS]",),
        reasoning=Markers("[THINK]", "[/THINK]"),
        sections=(Section("[TOOL_CALLS]"),),
        forms=(JsonCalls(listed=True), MISTRAL),
        breaks_reasoning=True,
        id_style="nine",
    ),
    Dialect(
        name="lfm2",
        needs=("<|tool_call_start|>",),
        reasoning=THINK,
        sections=(Section("<|tool_call_start|>", ("<|tool_call_end|>",)), TOOL_CALL),
        forms=(JsonCalls(listed=True), PythonCalls()),
        breaks_reasoning=True,
    ),
    Dialect(
        name="lfm2",
        needs=("List of tools: ",),
        reasoning=THINK,
        sections=(Section("<|tool_call_start|>", ("<|tool_call_end|>",)), TOOL_CALL),
        forms=(JsonCalls(listed=True), PythonCalls()),
        breaks_reasoning=True,
    ),
    Dialect(
        name="apertus",
        needs=("<|tools_prefix|>",),
        reasoning=Markers("<|inner_prefix|>", "<|inner_suffix|>"),
        sections=(Section("<|tools_prefix|>", ("<|tools_suffix|>",)),),
        forms=(JsonCalls(name_is_key=True, listed=True),),
        breaks_reasoning=True,
    ),
    Dialect(
        name="apriel",
        needs=("<tool_calls>", "[BEGIN FINAL RESPONSE]"),
        reasoning=Markers("Here are my reasoning steps:\n", "[BEGIN FINAL RESPONSE]"),
        sections=(Section("<tool_calls>", ("</tool_calls>",)),),
        drops=("<|end|>",),
        breaks_reasoning=True,
        forms=(JsonCalls(listed=True),),
    ),
    Dialect(
        name="tool-calls-list",
        needs=("<tool_calls>",),
        reasoning=THINK,
        sections=(Section("<tool_calls>", ("</tool_calls>",)),),
        breaks_reasoning=True,
        forms=(JsonCalls(listed=True),),
    ),
    Dialect(
        name="nemotron",
        needs=("<TOOLCALL>",),
        reasoning=THINK,
        sections=(Section("<TOOLCALL>", ("</TOOLCALL>",)),),
        breaks_reasoning=True,
        forms=(JsonCalls(listed=True),),
    ),
    Dialect(
        name="gigachat-3.1",
        needs=("<|function_call|>", "<|role_sep|>"),
        sections=(Section("<|function_call|>", ("<|message_sep|>",)),),
        drops=("<|message_sep|>",),
    ),
    Dialect(
        name="gigachat",
        needs=("<|role_sep|>", "<|message_sep|>"),
        sections=(Section("function call<|role_sep|>", ("<|message_sep|>",)),),
        drops=("<|message_sep|>",),
    ),
    Dialect(
        name="firefunction",
        needs=("functools",),
        forms=(JsonCalls(listed=True),),
        sections=(Section("functools"),),
        bare_json=True,
    ),
    Dialect(
        name="granite",
        needs=("<|tool_call|>", "start_of_role"),
        reasoning=THINK,
        sections=(Section("<|tool_call|>"), Section("<tool_call>", ("</tool_call>",))),
        lacks=("</tool_call>",),
        bare_json=True,
        forms=(JsonCalls(listed=True),),
    ),
    Dialect(
        name="phi",
        needs=("<|/tool_call|>",),
        reasoning=THINK,
        sections=(Section("<|tool_call|>", ("<|/tool_call|>",)), Section("functools")),
        bare_json=True,
        forms=(JsonCalls(listed=True),),
    ),
    HERMES,
    Dialect(
        name="llama3",
        needs=("<|start_header_id|>", '"parameters"'),
        reasoning=THINK,  # models derived from it reason, some of them with the template of the original
        breaks_reasoning=True,
        sections=(Section("<|python_tag|>"),),
        forms=(
            JsonCalls(keys=("name", "parameters")),
            NamedCalls(
                start="<function=",
                header=re.compile(r"^(?P<name>[^>]+)>"),
                ends=("</function>",),
                loose=True,
                spelling="{name}>",
            ),
            PythonCalls(),
        ),
        drops=("<|eom_id|>",),
        bare_first=True,
        bare_json=True,
    ),
)
