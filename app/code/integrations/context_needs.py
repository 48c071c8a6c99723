"""Context length that each client needs, with sources, and a plan for models that cannot have it."""

from dataclasses import dataclass
from typing import Final

from app.client import ApiError, Routes
from devices.errors import InputFault
from engine.api.chat import REMOTE
from engine.api.models import LoadOptions, LoadRequest
from engine.api.sentences import command

# Context length for an agent, if it fits. Source: openclaw PR 123701 raised its default to it.
AGENT_CONTEXT: Final = 65_536
# Limits of a plan: other models to check, and trade-offs to name.
_MOST_MODELS: Final = 6
_MOST_OPTIONS: Final = 4


@dataclass(frozen=True, kw_only=True)
class ContextNeed:
    """Tokens that a client needs: `opening` for its first request (0: unknown), `least` as the minimum.

    `source` is the source of the numbers.
    """

    least: int
    source: str
    opening: int = 0


# Clients without a published number get the minimum with space for one file next to their own instructions.
_UNPUBLISHED: Final = ContextNeed(least=16_384, source="no published figure")
NEEDS: Final = {
    "claude": ContextNeed(least=32_768, opening=24_071, source="janhq/jan#8108, where 32,768 was enough"),
    "opencode": ContextNeed(least=16_384, opening=11_300, source="klaussy-desktop PR 47"),
    "hermes": ContextNeed(least=64_000, opening=19_000, source="NousResearch/hermes-agent#53347: it refuses less"),
    "openclaw": ContextNeed(
        least=40_960,
        opening=31_000,
        source="openclaw PR 123701; NVIDIA's guide for TensorRT-Edge-LLM serves 40,960",
    ),
    "cline": ContextNeed(least=32_768, opening=16_000, source="cline/cline#2192, #3664"),
    "pi": ContextNeed(least=8_192, opening=1_000, source="github/copilot-cli#2627"),
}


def need_of(name: str, kind: str) -> ContextNeed | None:
    """Context need of a client; None if any context works, for example for editors that complete lines."""
    return NEEDS.get(name, _UNPUBLISHED if kind == "agent" else None)


class ContextTooSmall(InputFault):
    """A model cannot have the context that a client needs; the message contains a plan."""

    code = "context_too_small"

    def __init__(self, client: str, model: str, context: int, need: ContextNeed, why: str, plan: list[str]) -> None:
        first = f" (its first request alone has about {need.opening:,})" if need.opening else ""
        ways = "".join(f"\n  - {way}" for way in plan)
        super().__init__(
            f"{client} needs {need.least:,} tokens of context{first}; {model} has {context:,} here: {why}. "
            f"Ways out:{ways}"
        )
        self.model = model
        self.context = context
        self.need = need
        self.plan = plan


def load_for(client: Routes, model: str, title: str, need: ContextNeed) -> int | None:
    """Load or reload the model with the context that a client needs; return its tokens.

    The user's own setting for the model stays effective. Returns None if the key for a remote server does not allow
    it.
    Raises: ContextTooSmall: the model cannot have the context that the client needs. ApiError: it cannot be loaded.
    """
    try:
        answer, settings = client.placement(model), client.load_settings(model)
    except ApiError:
        return None
    chosen = settings.user.n_ctx
    fits = answer.fit.largest_context if answer.fit is not None else 0
    trained = settings.context_train
    if chosen is None and fits and (most := min(fits, trained or fits)) < need.least:
        raise _too_small(client, model, title, need, most, trained)
    requested = None if chosen is not None or not fits else min(max(AGENT_CONTEXT, need.least), fits)
    loaded = client.load(model, LoadRequest(n_ctx=requested)).n_ctx
    if loaded < need.least:
        raise _too_small(client, model, title, need, loaded, trained, chosen)
    return loaded


def _too_small(
    client: Routes, model: str, title: str, need: ContextNeed, context: int, trained: int, chosen: int | None = None
) -> ContextTooSmall:
    if chosen is not None and chosen < need.least:
        why = f"you set it to {chosen:,}"
        plan = ["leave its context to Tessera, or set more: Models, Load settings in the window"]
    elif trained and trained < need.least:
        why, plan = f"it was trained for {trained:,}", []
    else:
        why, plan = "more does not fit now", _trade_offs(client, model, need.least)
    plan += [f"use another model: --model {other}" for other in _able(client, model, need.least)]
    if not any("--model" in way for way in plan):
        plan.append("get a model with a longer context: tessera models starters")
    return ContextTooSmall(title, model, context, need, why, plan)


def _trade_offs(client: Routes, model: str, least: int) -> list[str]:
    """Options that free memory for this context: a smaller cache, models to unload, fewer concurrent requests."""
    try:
        report = client.placement(model, LoadOptions(n_ctx=least)).fit
    except ApiError:
        return []
    options = report.fit_options if report is not None else ()
    return [
        f"{option.change} ({flags})" if (flags := command(option.change)) else str(option.change)
        for option in options
        if option.kind != "context"
    ][:_MOST_OPTIONS]


def _able(client: Routes, model: str, least: int) -> list[str]:
    """Other local models that could have this context now, models with tool calls first."""
    rows = [row for row in client.chat_models() if row.id != model and row.origin != REMOTE and not row.demo]
    rows = [row for row in rows if {"chat", "completion"} & set(row.capabilities)]
    rows.sort(key=lambda row: ("tools" not in row.capabilities, row.state != "loaded"))
    model_ids = []
    for row in rows[:_MOST_MODELS]:
        try:
            report, trained = client.placement(row.id).fit, client.load_settings(row.id).context_train
        except ApiError:
            continue
        if report is not None and min(report.largest_context, trained or report.largest_context) >= least:
            model_ids.append(row.id)
    return model_ids
