"""Numbers that a load and the prediction of its memory must agree on."""

from typing import Final

from engine.runner.protocol import LoadSettings

# llama.cpp's own names, `ggml_type` values of the cache types it accepts.
KV_TYPES: Final = {
    "f32": 0,
    "f16": 1,
    "bf16": 30,
    "q8_0": 8,
    "q5_1": 7,
    "q5_0": 6,
    "q4_1": 3,
    "q4_0": 2,
    "iq4_nl": 20,
}
# Hard limit of llama.cpp (LLAMA_MAX_SEQ).
MAX_SEQUENCES: Final = 256


def sequences(settings: LoadSettings, *, keeps_state: bool) -> int:
    """Sequences a context is made for.

    Recurrent state is paid per sequence, so such models get no idle sequences beside the parallel ones.
    """
    if keeps_state:
        return settings.n_parallel
    return min(2 * settings.n_parallel + 8, MAX_SEQUENCES)
