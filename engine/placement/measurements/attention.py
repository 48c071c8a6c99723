"""What plain and fused attention cost on this machine's processor, by the geometry of a model's heads."""

from typing import Final

import msgspec

# A turn as autotune has it: the text is read, so many tokens are answered.
ANSWER_TOKENS: Final = 128


class Heads(msgspec.Struct, frozen=True):
    """Geometry of attention: heads of queries, heads of keys, values of one head."""

    queries: int
    keys: int
    width: int


class AttentionTimes(msgspec.Struct, frozen=True, array_like=True):
    """Seconds at a length in tokens: reading a prompt of that length, and one token behind it, each way."""

    length: int
    fused_prompt_s: float
    plain_prompt_s: float
    fused_token_s: float
    plain_token_s: float

    @property
    def plain_to_fused(self) -> float:
        """Seconds of a turn with plain attention for each second with the fused one."""
        fused, plain = (
            self.fused_prompt_s + ANSWER_TOKENS * self.fused_token_s,
            self.plain_prompt_s + ANSWER_TOKENS * self.plain_token_s,
        )
        return plain / fused if fused > 0 else 1.0


class AttentionSpeed(msgspec.Struct, frozen=True):
    """Both ways of attention as measured for one geometry of heads, at one or more lengths."""

    points: tuple[AttentionTimes, ...]

    def nearest(self, depth: float) -> AttentionTimes:
        """What was measured nearest to texts of `depth` tokens."""
        return min(self.points, key=lambda point: abs(point.length - depth))


def attention_key(machine: str, heads: Heads, threads: int) -> str:
    """What such a measurement depends on; `machine` is a machine's key."""
    return f"{machine}|{heads.queries}x{heads.keys}x{heads.width}|{threads}"
