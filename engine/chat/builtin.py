"""Built-in texts: the ChatML template for models without one, and the tool prompt."""

import json

from engine.chat.tools.call_rendering import spell
from engine.chat.tools.dialect import Dialect
from engine.chat.types import ToolCall, ToolDefinition

# Nearly every instruction-tuned model since 2023 understands it, at least roughly.
CHATML = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)

# Placeholder for an image in a prompt; libmtmd replaces it with the image's own tokens.
MEDIA_MARKER = "<__media__>"


def function_schema(tool: ToolDefinition) -> dict[str, object]:
    """The tool in OpenAI's format, which chat templates expect."""
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
    }


def tool_prompt(tools: tuple[ToolDefinition, ...], dialect: Dialect) -> str:
    """The text that explains tools to a model whose template does not support them in its dialect."""
    example = ToolCall(id="", name="the_function", arguments='{"argument": "value"}')
    listed = "\n".join(json.dumps(function_schema(tool), ensure_ascii=False) for tool in tools)
    return (
        "You can call functions. The functions, as JSON schemas:\n"
        f"<tools>\n{listed}\n</tools>\n"
        "To call one, answer in exactly this form, and with nothing after it:\n"
        f"{spell(dialect, (example,))}\n"
        "The results come back inside <tool_response></tool_response>."
    )
