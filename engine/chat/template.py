"""Renders a conversation with a model's own template, in a child process that may be killed."""

import hashlib
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from devices.child import BoundedChild, ChildFailed
from engine.chat.builtin import MEDIA_MARKER
from engine.chat.render_protocol import RenderJob, RenderRefused, decode_answer, encode
from engine.chat.template_messages import images
from engine.chat.types import ChatTemplate, Message, Rendered, ToolDefinition
from engine.core.errors import EnvironmentFault, InputFault
from engine.core.ownership import request_owner
from engine.message_catalog.reasons import because

# A template that takes longer is stopped. Real ones take 0.2 to 5 ms.
TIME_LIMIT_S: Final = 2.0
# Memory for Python, Jinja and several copies of a 64 MiB prompt.
MEMORY_LIMIT_BYTES: Final = 768 << 20
# A template that was killed this often within the pause is not run again for the same owner until it is over.
_KILLS_ALLOWED: Final = 2
_PAUSE_S: Final = 60.0
_RESERVED: Final = frozenset({"messages", "tools", "add_generation_prompt", "self"})
# Maximum waiting requests that bring their own template; each can take the whole time limit.
_CLIENT_WAITING: Final = 8


class BadTemplate(InputFault):
    """The model's chat template cannot render this conversation; `reason` is the error, `line` its position."""

    code = "chat_template_failed"

    def __init__(self, reason: str, line: int = 0, *, by_template: bool = False) -> None:
        what = because("template_failed", why=reason)
        if by_template:
            what = because("template_refuses", why=reason)
        elif line:
            what = because("template_failed_at", line=line, why=reason)
        super().__init__(what, "messages")
        self.reason = reason
        self.line = line
        self.by_template = by_template


class RenderChildLost(EnvironmentFault):
    """The render child could not be started, or died for a reason that the template did not cause."""

    code = "render_child_lost"


class TooManyTemplates(EnvironmentFault):
    """Too many requests that bring their own template wait to be rendered."""

    code = "server_busy"


class TemplateRenderer:
    """One warm render child. Methods may be called from any thread or event loop."""

    def __init__(self, timeout_s: float = TIME_LIMIT_S, memory_bytes: int = MEMORY_LIMIT_BYTES) -> None:
        self.child = BoundedChild("engine.chat.render_child", timeout_s=timeout_s, memory_bytes=memory_bytes)
        # For templates from requests: a slow one must not delay requests that use their model's template.
        self.client_child = BoundedChild(
            "engine.chat.render_child", timeout_s=timeout_s, memory_bytes=memory_bytes, background=True
        )
        self._client_waiting = 0
        self._timeout_s = timeout_s
        self._memory_bytes = memory_bytes
        # By the requests' owner and the template: when it was killed, and with how many bytes of conversation.
        self._kills: dict[tuple[str, bytes], list[tuple[float, int]]] = {}

    async def render(
        self,
        template: ChatTemplate,
        messages: Sequence[Message],
        tools: Sequence[ToolDefinition] = (),
        *,
        add_generation_prompt: bool = True,
        continue_final: bool = False,
        variables: Mapping[str, Any] | None = None,
        by_client: bool = False,
    ) -> Rendered:
        """Render the prompt. `variables` go to the template unchanged (`enable_thinking`, …).

        `by_client`: the template came with the request.

        Raises: BadTemplate: the template refuses, fails, exceeds its limits or was stopped for that before.
        RenderChildLost: no child can be started.
        """
        job = RenderJob(
            template=template,
            messages=tuple(messages),
            tools=tuple(tools),
            add_generation_prompt=add_generation_prompt,
            continue_final=continue_final,
            variables=_checked(dict(variables or {})),
        )
        _check_markers(job.messages)
        source = (template.source or "").encode("utf-8", "surrogatepass")
        key = request_owner.get(), hashlib.sha256(source).digest()
        try:
            body = encode(job)
        except (UnicodeEncodeError, TypeError, RecursionError, OverflowError) as error:
            raise InputFault(f"The conversation cannot be encoded: {error}", "messages") from None
        self._check_kills(key, len(body))
        try:
            answer = decode_answer(
                await (self._render_client_template(body) if by_client else self.child.ask(body))
            )
        except ChildFailed as failure:
            raise self._blame(key, len(body), failure) from None
        if isinstance(answer, RenderRefused):
            raise BadTemplate(answer.reason, answer.line, by_template=answer.by_template)
        rendered: Rendered = answer.rendered
        return rendered

    async def _render_client_template(self, body: bytes) -> bytes:
        if self._client_waiting >= _CLIENT_WAITING:
            raise TooManyTemplates(because("templates_wait", count=_CLIENT_WAITING))
        self._client_waiting += 1
        try:
            return await self.client_child.ask(body)
        finally:
            self._client_waiting -= 1

    def warm(self) -> None:
        """Start the child in the background."""
        self.child.warm()

    def close(self) -> None:
        """Stop the children."""
        self.child.close()
        self.client_child.close()

    def _blame(self, key: tuple[str, bytes], num_bytes: int, failure: ChildFailed) -> InputFault | EnvironmentFault:
        if failure.timed_out:
            reason = f"it ran longer than {self._timeout_s:g} s and was stopped"
        elif failure.out_of_memory:
            reason = f"it needed more than {self._memory_bytes >> 20} MiB of memory and was stopped"
        else:
            return RenderChildLost(because("renderer_ended", code=failure.exit_code))
        self._forget_kills()
        self._kills.setdefault(key, []).append((time.monotonic(), num_bytes))
        return BadTemplate(reason)

    def _check_kills(self, key: tuple[str, bytes], num_bytes: int) -> None:
        """Raise BadTemplate if the template was killed for this owner with conversations that are no longer.

        A client with a huge conversation pauses the template neither for others nor for shorter ones.
        """
        self._forget_kills()
        kills = sum(killed_bytes <= num_bytes for _, killed_bytes in self._kills.get(key, ()))
        if kills >= _KILLS_ALLOWED:
            raise BadTemplate(f"it was stopped {kills} times within a minute and is paused")

    def _forget_kills(self) -> None:
        since = time.monotonic() - _PAUSE_S
        recent = {key: [kill for kill in kills if kill[0] > since] for key, kills in self._kills.items()}
        self._kills = {key: kills for key, kills in recent.items() if kills}


def _checked(variables: dict[str, Any]) -> dict[str, Any]:
    reserved = _RESERVED & variables.keys()
    if reserved:
        raise InputFault(f"chat_template_kwargs may not set {', '.join(sorted(reserved))}.", "chat_template_kwargs")
    return variables


def _check_markers(messages: Sequence[Message]) -> None:
    """Check that text does not contain the image placeholder if the conversation has images."""
    if not images(messages):
        return
    if any(MEDIA_MARKER in m.text() for m in messages):
        raise InputFault(f"A message with pictures may not contain the text {MEDIA_MARKER}.", "messages")
