"""`tessera launch` suggests what helps if a context does not fit: smaller caches, models to close, other models."""

from types import SimpleNamespace

import pytest

from app.code.integrations.context_needs import ContextNeed, ContextTooSmall, load_for
from engine.message_catalog.reasons import because

NEED = ContextNeed(least=32_768, opening=24_071, source="a test")


class Server:
    """Responds like the server's routes; `fits` are the largest contexts of its models now."""

    def __init__(self, **fits):
        self.fits, self.loads = fits, []

    def chat_models(self):
        rows = {"origin": "file", "demo": False, "state": "not-loaded", "capabilities": ("chat", "tools")}
        return [SimpleNamespace(id=name, **rows) for name in self.fits]

    def placement(self, model, choices=None):
        options = (
            ("kv", because("option_kv", kv_type="q8_0", before="f16")),
            ("context", because("option_context", n_ctx=4096, before=32768)),
            ("unload", because("option_unload", model="other", held_gib=9.1)),
        )
        asked = choices is not None and choices.n_ctx == NEED.least
        found = [SimpleNamespace(kind=kind, change=change) for kind, change in options] if asked else []
        return SimpleNamespace(fit=SimpleNamespace(largest_context=self.fits[model], fit_options=found))

    def load_settings(self, model):
        del model
        return SimpleNamespace(user=SimpleNamespace(n_ctx=None), context_train=131_072)

    def load(self, model, body):
        self.loads.append((model, body.n_ctx))
        return SimpleNamespace(n_ctx=body.n_ctx)


def test_a_plan_names_smaller_caches_models_to_close_and_other_models():
    server = Server(big=8_192, small=65_536, tiny=4_096)
    with pytest.raises(ContextTooSmall) as refused:
        load_for(server, "big", "Claude Code", NEED)
    assert refused.value.plan == [
        "use KV cache type q8_0 instead of f16 (--kv q8_0)",
        "unload other, which uses 9.1 GiB (tessera models unload other)",
        "use another model: --model small",
    ]
    assert "big has 8,192 here: more does not fit now" in str(refused.value)
    assert server.loads == []


@pytest.mark.parametrize(("fits", "asked"), [(40_000, 40_000), (1 << 20, 65_536)])
def test_it_asks_for_what_agents_use_where_that_fits(fits, asked):
    server = Server(big=fits)
    assert load_for(server, "big", "Claude Code", NEED) == asked
    assert server.loads == [("big", asked)]
