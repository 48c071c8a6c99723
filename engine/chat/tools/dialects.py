"""All supported dialects, in the order in which templates are compared with them."""

import re
from typing import Final

import msgspec

from engine.chat.reasoning import MARKERS, Markers
from engine.chat.tools.dialect import Dialect, Headers, JsonCalls, NamedCalls, PythonCalls, Section, TaggedCalls

# Forms and sections that several dialects share.
#
# Source: the templates in tests/data/templates and the model cards of their publishers.

THINK: Final = Markers("<think>", "</think>")
NAME_ATTRIBUTE: Final = re.compile(r'name="(?P<name>[^"]*)"')
KEY_ATTRIBUTE: Final = re.compile(r'name="(?P<key>[^"]*)"(?:\s+string="(?P<kind>true|false)")?')


def invoke_tags(prefix: str) -> TaggedCalls:
    """Anthropic-like invoke and parameter tags after a prefix."""
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
    """GLM's `<arg_key>…</arg_key><arg_value>…</arg_value>`, with the name before them."""
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


# Dialects with their own markers, which no other family uses.
#
# Source: the templates in tests/data/templates and the model cards of their publishers.

OF_FAMILIES: Final = (
    Dialect(
        name="harmony",
        needs=("<|channel|>", "<|message|>"),
        headers=Headers(
            starts=("<|start|>", "<|channel|>"),
            end="<|message|>",
            reasoning=("analysis",),
            body_ends=("<|end|>", "<|call|>", "<|return|>"),
            call=re.compile(r"to=(?!assistant\b|user\b)(?:functions\.)?(?P<name>[^\s<]+)"),
        ),
        drops=("<|end|>", "<|return|>", "<|call|>"),
        content_opening="<|channel|>final<|message|>",
        call_preamble=("<|channel|>analysis<|message|>", "<|end|><|start|>assistant"),
        seeds=("<|start|>assistant",),
    ),
    Dialect(
        name="muse",
        needs=("<atem:function_calls>", "<|eom|>"),
        sections=(Section("<atem:function_calls>", ("</atem:function_calls>",), single=False),),
        forms=(invoke_tags("atem:"),),
        headers=Headers(
            starts=("<|start|>",),
            end="<|message|>",
            reasoning=("to=self",),
            text=("to=user",),
            body_ends=("<|eom|>", "<|eot|>"),
        ),
        drops=("<|eom|>", "<|eot|>"),
        seeds=("<|start|>assistant",),
    ),
    Dialect(
        name="functionary-v3.2",
        needs=(">>>all",),
        sections=(Section(">>>"),),
        forms=(NamedCalls(start="", header=re.compile(r"^(?P<name>[^\n{]+)\n"), strict=True, spelling="{name}\n"),),
        drops=(">>>all\n",),
        seeds=(">>>",),
    ),
    Dialect(
        name="kimi-k3",
        needs=("<|open|>", "<|close|>", "<|end_of_msg|>"),
        reasoning=Markers("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
        sections=(Section("<|open|>tools<|sep|>", ("<|close|>tools<|sep|>",), single=False),),
        forms=(
            TaggedCalls(
                start="<|open|>call ",
                name_end="<|sep|>",
                name=re.compile(r'tool="(?P<name>[^"]*)"'),
                key_open="<|open|>argument ",
                key_close="<|sep|>",
                key=re.compile(r'key="(?P<key>[^"]*)"(?:\s+type="(?P<kind>\w+)")?'),
                value_close="<|close|>argument<|sep|>",
                end="<|close|>call<|sep|>",
                loose=True,
                name_spelling='tool="{name}" index="{index}"',
                key_spelling='key="{key}" type="{type}"',
            ),
        ),
        drops=(
            "<|open|>response<|sep|>",
            "<|close|>response<|sep|>",
            "<|close|>message<|sep|>",
            "<|end_of_msg|>",
        ),
        content_opening="<|open|>response<|sep|>",
        breaks_reasoning=True,
    ),
    Dialect(
        name="kimi-k2",
        needs=("<|tool_calls_section_begin|>",),
        reasoning=THINK,
        sections=(Section("<|tool_calls_section_begin|>", ("<|tool_calls_section_end|>",), single=False),),
        forms=(KIMI,),
        breaks_reasoning=True,
        id_style="indexed",
    ),
    Dialect(
        name="solar",
        needs=("<|tool_call:begin|>", "<|tool_call:args|>"),
        reasoning=Markers("<|think|>", "<|end|>"),
        reasoning_anywhere=True,
        forms=(
            NamedCalls(
                start="<|tool_call:begin|>",
                header=re.compile(r"<\|tool_call:name\|>\s*(?P<name>[^\s<{]+)"),
                ends=("<|tool_call:end|>",),
                loose=True,
                spelling="{id}<|tool_call:name|>{name}<|tool_call:args|>",
            ),
        ),
        drops=("<|begin|>assistant", "<|content|>", "<|tool_calls|>", "<|calls|>", "<|flush|>", "<|end|>"),
        seeds=("<|begin|>assistant",),
        content_opening="<|content|>",
        breaks_reasoning=True,
    ),
    Dialect(
        name="cohere",
        needs=("<|START_ACTION|>",),
        reasoning=Markers("<|START_THINKING|>", "<|END_THINKING|>"),
        reasoning_anywhere=True,
        sections=(COHERE_ACTION,),
        forms=(JsonCalls(keys=("tool_name", "parameters"), listed=True),),
        drops=(
            "<|START_RESPONSE|>",
            "<|END_RESPONSE|>",
            "<|START_TEXT|>",
            "<|END_TEXT|>",
            "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
        ),
        breaks_reasoning=True,
    ),
    Dialect(
        name="command-r-plus",
        needs=("Action:", "```json", "directly-answer"),
        sections=(Section("Action:\n```json", ("```",), gap="\n"), Section("Action: ```json", ("```",))),
        forms=(JsonCalls(keys=("tool_name", "parameters"), listed=True),),
    ),
    Dialect(
        name="minimax-m3",
        needs=("]<]minimax[>[", "<invoke name="),
        reasoning=Markers("<mm:think>", "</mm:think>"),
        sections=(Section("]<]minimax[>[<tool_call>", ("]<]minimax[>[</tool_call>",), single=False),),
        forms=(
            TaggedCalls(
                start="]<]minimax[>[<invoke ",
                name_end=">",
                name=NAME_ATTRIBUTE,
                key_open="]<]minimax[>[<",
                key_close=">",
                value_close="]<]minimax[>[</{key}>",
                end="]<]minimax[>[</invoke>",
                loose=True,
                nested="]<]minimax[>[",
                name_spelling='name="{name}"',
            ),
        ),
        breaks_reasoning=True,
    ),
    Dialect(
        name="minimax-m2",
        needs=("<minimax:tool_call>",),
        reasoning=THINK,
        sections=(Section("<minimax:tool_call>", ("</minimax:tool_call>",), single=False),),
        forms=(invoke_tags(""),),
        breaks_reasoning=True,
    ),
    Dialect(
        name="deepseek-dsml",
        needs=("DSML",),
        reasoning=THINK,
        sections=(
            Section("<｜DSML｜function_calls>", ("</｜DSML｜function_calls>",), single=False),
            Section("<｜DSML｜tool_calls>", ("</｜DSML｜tool_calls>",), single=False),
        ),
        forms=(invoke_tags("｜DSML｜"),),
        breaks_reasoning=True,
    ),
    Dialect(
        name="deepseek",
        needs=("<｜tool▁calls▁begin｜>",),
        reasoning=THINK,
        sections=(
            Section("<｜tool▁calls▁begin｜>", ("<｜tool▁calls▁end｜>",), single=False),
            Section("<｜tool_calls_begin｜>", ("<｜tool▁calls▁end｜>",), single=False),
            TOOL_CALL,
        ),
        forms=(DEEPSEEK, JsonCalls()),
        breaks_reasoning=True,
    ),
    Dialect(
        name="gemma4",
        needs=("<|tool_call>", "<tool_call|>"),
        reasoning=Markers("<|channel>thought", "<channel|>"),
        reasoning_anywhere=True,
        sections=(Section("<|tool_call>", ("<tool_call|>",)),),
        forms=(NamedCalls(start="", header=re.compile(r"^\s*(?:call:)?\s*(?P<name>[^\s{]+)\s*$"), quote='<|"|>'),),
        drops=("<|tool_response>", "<turn|>", "<|channel>final", "<channel|>"),
        breaks_reasoning=True,
    ),
    Dialect(
        name="seed",
        needs=("<seed:tool_call>",),
        reasoning=Markers("<seed:think>", "</seed:think>"),
        sections=(Section("<seed:tool_call>", ("</seed:tool_call>",)),),
        forms=(function_tags(newlines=False), JsonCalls()),
        breaks_reasoning=True,
    ),
    Dialect(
        name="minicpm5",
        needs=('<function name="', '<param name="'),
        reasoning=THINK,
        forms=(
            TaggedCalls(
                start="<function ",
                name_end=">",
                name=NAME_ATTRIBUTE,
                key_open="<param ",
                key_close=">",
                key=KEY_ATTRIBUTE,
                value_close="</param>",
                end="</function>",
                loose=True,
                name_spelling='name="{name}"',
                key_spelling='name="{key}"',
            ),
        ),
        breaks_reasoning=True,
    ),
    Dialect(
        name="hunyuan",
        needs=("<tool_sep",),
        reasoning=Markers("<think:opensource>", "</think:opensource>"),
        sections=(Section("<tool_call:opensource>", ("</tool_call:opensource>",)),),
        forms=(argument_tags(":opensource"),),
        drops=("<tool_calls:opensource>", "</tool_calls:opensource>"),
        breaks_reasoning=True,
    ),
)

# Dialects whose markers several families use; the more specific ones come first.
#
# Source: the templates in tests/data/templates and the model cards of their publishers.

HERMES: Final = Dialect(
    name="hermes",
    needs=("<tool_call>",),
    reasoning=THINK,
    sections=(TOOL_CALL,),
    forms=(JsonCalls(), function_tags(newlines=True)),
    bare_json=True,
    breaks_reasoning=True,
)
# The format of the built-in tool prompt; also reads JSON without a marker or inside a code fence.
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
        reasoning=THINK,  # derived models reason, some of them with the original's template
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

DIALECTS: Final = (*OF_FAMILIES, *SHARED)

# Dialects by name, for names from a model card or a user.
BY_NAME: Final = {dialect.name: dialect for dialect in (GENERIC, *reversed(DIALECTS))}


def choose(template: str | None) -> Dialect:
    """The first dialect whose markers the template contains; the generic one if none fits.

    A template may mark reasoning although its family does not: a model of that family was trained to reason.
    """
    if template is None:
        return GENERIC
    dialect = next((d for d in DIALECTS if _fits(d, template)), GENERIC)
    if dialect.reasoning is None and dialect.headers is None:
        marks = next((markers for markers in MARKERS if markers.end in template), None)
        if marks is not None:
            return msgspec.structs.replace(dialect, reasoning=marks, breaks_reasoning=True)
    return dialect


def _fits(dialect: Dialect, template: str) -> bool:
    return all(mark in template for mark in dialect.needs) and not any(mark in template for mark in dialect.lacks)
