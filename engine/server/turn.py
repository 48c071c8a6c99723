"""One chat request on a loaded model, shared by all protocols."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from engine.chat.chat_pipeline import ChatEvent, PreparedChat, read
from engine.chat.openai_forward import ForwardedChat
from engine.chat.query import ChatQuery
from engine.core.errors import InputFault
from engine.message_catalog.reasons import because
from engine.pool.loaded_model import REMOTE, LoadedModel
from engine.pool.pool import HERE
from engine.server.state import ServerState
from engine.upstreams.runner import UpstreamRunner


class Turn:
    """A chat request ready to run.

    `model` serves it, `chat` is its prompt, `n_ctx` the context length in tokens.
    """

    def __init__(self, state: ServerState, model: LoadedModel, chat: PreparedChat) -> None:
        self._state = state
        self.model = model
        self.chat = chat
        assert model.facts is not None
        self.n_ctx = model.facts.n_ctx

    async def events(self) -> AsyncGenerator[ChatEvent, None]:
        """The events of the response; closing the generator early cancels it."""
        answer = self.chat.answer()
        async with aclosing(read(answer, self._state.pool.generate(self.model, self.chat.request))) as events:
            async for event in events:
                yield event

    async def prompt_tokens(self) -> int:
        """Exact number of tokens of the prompt."""
        assert self.model.runner is not None
        if isinstance(self.chat.request, ForwardedChat):
            assert isinstance(self.model.runner, UpstreamRunner)
            return await self.model.runner.count(self.chat.request)
        prompt, special = self.chat.rendered.prompt, self.chat.rendered.add_special
        return len(await self.model.runner.tokenize(prompt, add_special=special))


async def prepare_turn(state: ServerState, model: str, query: ChatQuery) -> Turn:
    """Load the model and render the prompt.

    Raises: the pool's errors; BadTemplate, InputFault: the conversation cannot be rendered.
    """
    loaded = await state.pool.acquire(model)
    assert loaded.facts is not None
    return Turn(
        state, loaded, await state.conversations.prepare(loaded.facts, query, state.models.recommended(loaded.id))
    )


async def chosen_model(state: ServerState, name: str | None, only: str | None = None) -> LoadedModel:
    """The named model; without a name the most recently used loaded local model, else the first local model.

    `only` as in `Pool.acquire`.
    """
    if name is not None:
        return await state.pool.acquire(name, only=only)
    loaded = sorted((m for m in state.pool.loaded if m.engine != REMOTE), key=lambda m: m.last_used)
    if loaded:
        return loaded[-1]
    served = [e.id for e in await state.models.automatic() if e.servable and e.state == "online"]
    if not served:
        raise InputFault(because("no_model_at_all"), "model")
    return await state.pool.acquire(served[0], only=HERE)
