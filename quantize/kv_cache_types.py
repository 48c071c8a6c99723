"""The KV cache types of llama.cpp, in one list. Imports little, because `tessera --help` reads it."""

from typing import Final, NamedTuple


class CacheType(NamedTuple):
    """`ggml_type` is the type's number in llama.cpp, `bits` the bits per value.

    `k_damage` and `v_damage` are the mean KL divergence in nats per token, up to 1,024 tokens, with K or V in this
    type. None means not measured; such a type is not recommended.
    """

    ggml_type: int
    bits: float
    k_damage: float | None = None
    v_damage: float | None = None


# Measured: log-archive.md, "Quantization in minutes" ("KV cache"), on the bundled model.
CACHE_TYPES: Final = {
    "f16": CacheType(1, 16, 0.0, 0.0),
    "bf16": CacheType(30, 16),
    "f32": CacheType(0, 32),
    "q8_0": CacheType(8, 8.5, 0.00004, 0.00002),
    "q5_1": CacheType(7, 6, 0.00095, 0.00092),
    "q5_0": CacheType(6, 5.5),
    "q4_1": CacheType(3, 5),
    "q4_0": CacheType(2, 4.5, 0.0059, 0.0054),
    "iq4_nl": CacheType(20, 4.5),
}
# The type that is offered if a long context does not fit with the default type.
EIGHT_BIT: Final = "q8_0"
K_DAMAGE: Final = {name: row.k_damage for name, row in CACHE_TYPES.items() if row.k_damage is not None}
V_DAMAGE: Final = {name: row.v_damage for name, row in CACHE_TYPES.items() if row.v_damage is not None}
