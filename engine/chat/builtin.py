"""Texts the engine brings itself: the ChatML template for models without one, and the tool prompt."""

import json

from engine.chat.types import ToolDefinition

# Understood, at least roughly, by nearly every instruction-tuned model since 2023.
CHATML = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)

# What stands for a picture in a prompt; libmtmd replaces it with the picture's own tokens.
MEDIA_MARKER = "<__media__>"


def function_schema(tool: ToolDefinition) -> dict[str, object]:
    """The tool as OpenAI writes it, which is what chat templates expect."""
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
    }


def tool_prompt(tools: tuple[ToolDefinition, ...]) -> str:
    """How tools are explained to a model whose template has no place for them (the Hermes convention)."""
    listed = "\n".join(json.dumps(function_schema(tool), ensure_ascii=False) for tool in tools)
    return (
        "You can call functions. The functions, as JSON schemas:\n"
        f"<tools>\n{listed}\n</tools>\n"
        "To call one, answer with exactly this, once for each call, and nothing after it:\n"
        '<tool_call>\n{"name": "the function\'s name", "arguments": {"argument": "value"}}\n</tool_call>\n'
        "The results come back inside <tool_response></tool_response>."
    )
