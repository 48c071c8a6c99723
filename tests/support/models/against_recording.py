"""Compares greedy output with recordings, token by token.

Kernels of other CPUs round differently, so another token may win a near tie. At a difference, the recording must
show that our token was nearly as good as its own. The comparison then continues after the recorded token, so that
every token of every answer is checked on every machine.
"""

from dataclasses import dataclass, field

from engine.core.types import GenerationRequest
from installers.bootstrap import kernels
from tests.support.runner_calls import GREEDY, answered

LENGTH = 16  # tokens per answer: the recording has more, but that takes too long
END = 2  # <|im_end|>, the end of a recorded answer
# Logit gap in nats below which tokens may swap between kernels. Measured: log-archive.md, "Greedy answers".
NEARLY_A_TIE = 0.7


def vector_features() -> str:
    """The CPU features that determine which kernels ggml uses."""
    names = ("avx", "fma", "f16c", "amx", "asimd", "sve", "neon", "i8mm", "fphp")
    return " ".join(flag for flag in kernels._cpu_features().split() if flag.startswith(names))


@dataclass
class Compared:
    """`ties`: (question, position, nats) where a nearly equal token won; `wrong`: where a clearly worse one did."""

    same: int = 0
    tokens: int = 0
    ties: list[tuple[str, int, float]] = field(default_factory=list)
    wrong: list[tuple[str, int, float]] = field(default_factory=list)


async def compare(runner, recorded):
    """Compare all recorded answers."""
    result = Compared()
    for told in recorded:
        prompt = await runner.tokenize(told["prompt"], add_special=False)
        expected = told["tokens"][:LENGTH]
        at, clean = 0, True
        while at < len(expected):
            found = await _tokens(runner, prompt + expected[:at], len(expected) - at)
            pairs = zip(found, expected[at:], strict=False)
            differs = next((i for i, (ours, theirs) in enumerate(pairs) if ours != theirs), None)
            if differs is None:
                assert len(found) == len(expected) - at
                break
            clean = False
            behind = dict(told["best"][at + differs]).get(found[differs], float("inf"))
            (result.ties if behind < NEARLY_A_TIE else result.wrong).append(
                (told["question"], at + differs, behind)
            )
            at += differs + 1
        result.same += clean
        result.tokens += len(expected)
    return result


async def _tokens(runner, prompt, count):
    """Greedy tokens, including the end of the answer."""
    request = GenerationRequest(
        prompt=prompt, add_special=False, max_tokens=count, sampling=GREEDY, cache_prompt=False, speculate=False,
        keep_special=True, stream=False,
    )  # fmt: skip
    answer = await answered(runner, request)
    return [*answer.ids, END] if answer.done.finish_reason == "stop" else answer.ids
