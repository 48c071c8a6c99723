"""Fill-in-the-middle requests: selects the model, builds the prompt tokens and fits them into the context."""

from typing import Any, Final

import msgspec

from engine.chat.fim import FimGap, fim_parts, fim_stops, shortened
from engine.chat.fim_families import FimFamily, family_of
from engine.core.errors import ContextOverflow, InputFault, ModelNotFound
from engine.core.sampling import refuse_impossible
from engine.core.types import GenerationRequest, ModelFacts, SamplingParams
from engine.message_catalog.reasons import because
from engine.pool.loaded_model import REMOTE, LoadedModel
from engine.pool.pool import HERE
from engine.runner.text_limits import TOKENIZE_CHARS
from engine.server.state import ServerState

# Shares of the available context for the suffix and for other files when a prompt is shortened.
_SUFFIX_FRACTION: Final = 0.15
_EXTRA_FRACTION: Final = 0.25
_SHORTENING_TRIES: Final = 6
# Lengths are rounded to this many characters, so that a keystroke does not shift the start of the prompt.
_BUDGET_STEP: Final = 256
# Tokens of the marks and of the last token of a response, which is not shown.
_MARGIN_TOKENS: Final = 4


class NoFimModel(ModelNotFound):
    """No model here was trained to fill gaps in code."""

    def __init__(self) -> None:
        InputFault.__init__(self, because("no_fim_model"), "model")
        self.model, self.known = "", ()


class FimPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt ready to run; `truncated` if parts of the request were dropped."""

    token_ids: list[int]
    stops: tuple[str, ...]
    truncated: bool


async def fim_model(state: ServerState, name: str | None) -> LoadedModel:
    """The requested model; without a name, a local FIM model: a loaded one, else the first of the library.

    Raises: NoFimModel and the errors of a load.
    """
    if name:
        return await state.pool.acquire(name)
    for model in state.pool.loaded:
        if model.engine != REMOTE and model.facts is not None and family_of(model.facts) is not None:
            return model
    for entry in await state.models.automatic():
        if "fim" in entry.capabilities and entry.format == "gguf":
            return await state.pool.acquire(entry.id, only=HERE)
    raise NoFimModel


def fim_family(model: LoadedModel) -> FimFamily:
    """The model's fill-in-the-middle format.

    Raises: InputFault: it was not trained to.
    """
    assert model.facts is not None
    family = family_of(model.facts)
    if family is None:
        raise InputFault(
            f"{model.id} was not trained to fill gaps: its file names no fill-in-the-middle tokens. "
            "Use a code model, or send the text without a suffix.",
            "suffix",
        )
    return family


def asks_like_an_editor(facts: ModelFacts | None, prompt: object) -> bool:
    """Whether a text has the model's own fill-in-the-middle marks: some editors (Zed) format prompts themselves."""
    marks = (mark for mark in facts.fim.values() if mark.strip()) if facts is not None else ()
    return isinstance(prompt, str) and any(mark in prompt for mark in marks)


async def fim_prompt(model: LoadedModel, gap: FimGap, max_tokens: int, *, may_shorten: bool) -> FimPrompt:
    """The prompt tokens of a gap, leaving space for `max_tokens`.

    With `may_shorten`, text far from the gap is dropped until it fits.
    Raises: InputFault, ContextOverflow.
    """
    family = fim_family(model)
    facts = model.facts
    assert facts is not None
    stops = fim_stops(facts, family)
    n_ctx = facts.n_ctx if may_shorten else facts.largest_ctx  # editor requests do not need a larger context
    limit = n_ctx - max_tokens - _MARGIN_TOKENS
    num_chars = _length(gap)
    refuse_impossible(facts, 0 if may_shorten else num_chars)
    # drop text far from the gap: more than is tokenized in one call
    cut = may_shorten and num_chars > TOKENIZE_CHARS
    if cut:
        gap = _within(gap, TOKENIZE_CHARS)
        num_chars = _length(gap)
    token_ids = await _tokenized(model, family, gap)
    if len(token_ids) <= limit:
        return FimPrompt(token_ids=token_ids, stops=stops, truncated=cut)
    if not may_shorten or limit <= _MARGIN_TOKENS:
        raise ContextOverflow(len(token_ids) + max_tokens, n_ctx)
    budget = limit * num_chars / len(token_ids)
    for _ in range(_SHORTENING_TRIES):
        token_ids = await _tokenized(model, family, _within(gap, int(budget) // _BUDGET_STEP * _BUDGET_STEP))
        if len(token_ids) <= limit:
            return FimPrompt(token_ids=token_ids, stops=stops, truncated=True)
        budget *= 0.95 * limit / len(token_ids)
    raise ContextOverflow(len(token_ids) + max_tokens, n_ctx)


def _length(gap: FimGap) -> int:
    return len(gap.prefix) + len(gap.suffix) + sum(len(f.text) + len(f.path) for f in gap.extra)


def _within(gap: FimGap, budget: int) -> FimGap:
    """Shorten to `budget` characters. Space that one side does not need goes to the other side and other files."""
    suffix = min(len(gap.suffix), int(budget * _SUFFIX_FRACTION))
    extra = min(sum(len(f.text) + len(f.path) for f in gap.extra), int(budget * _EXTRA_FRACTION))
    prefix = min(len(gap.prefix), budget - suffix - extra)
    spare = budget - prefix - suffix - extra
    return shortened(gap, keep_prefix=prefix, keep_suffix=suffix + spare, keep_extra=extra + spare // 2)


async def _tokenized(model: LoadedModel, family: FimFamily, gap: FimGap) -> list[int]:
    runner, facts = model.runner, model.facts
    assert runner is not None
    assert facts is not None
    token_ids = await runner.tokenize("", add_special=True) if facts.add_bos else []
    for part in fim_parts(facts, family, gap):
        token_ids = token_ids + await runner.tokenize(part.text, add_special=False, parse_special=part.special)
    return token_ids


def fim_request(
    prompt: FimPrompt, *, max_tokens: int, stop: tuple[str, ...], sampling: SamplingParams, **more: Any
) -> GenerationRequest:
    """The runner's request. The family's marks stop it; they are generated as text so that they can be found."""
    return GenerationRequest(
        prompt=prompt.token_ids,
        max_tokens=max_tokens,
        stop=(*stop, *prompt.stops),
        sampling=sampling,
        keep_special=True,
        **more,
    )
