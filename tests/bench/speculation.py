"""Measures speculative decoding on the edit of a file, on text without repeats, and in JSON.

    python tests/bench/speculation.py MODEL.gguf [--rounds 5] [--draft MODEL.gguf]

Runs with and without draft tokens alternate in one runner. The first text is forced, token by token, to an edited
copy of a real source file (a name changed everywhere, a line inserted, one removed). So any model will do: random
weights of the right shape cost as much as trained ones. In the second text every four tokens have occurred before,
each time followed by something else, so drafts cannot help. The third is an object by a schema, sampled by the
model: the names of its fields are drafted from the grammar.
"""

import argparse
import asyncio
import json
import random
import re
import statistics
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from engine.core.types import Constraint, Done, GenerationRequest, SamplingParams
from engine.runner.process import RunnerProcess
from engine.runner.protocol import LoadSettings

SOURCE = ROOT / "engine" / "runner" / "llama" / "cache" / "prefix_store.py"
FIRST_ID = 300
# A second token is allowed everywhere and never sampled: a grammar with only one choice would itself act as a
# draft.
NEVER = 299
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "full_name": {"type": "string", "maxLength": 30},
        "date_of_birth": {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"},
        "email_address": {"type": "string", "maxLength": 40},
        "preferred_language": {"enum": ["English", "German", "French"]},
        "is_returning_customer": {"type": "boolean"},
        "shipping_address": {
            "type": "object",
            "properties": {
                "street": {"type": "string", "maxLength": 30},
                "postal_code": {"type": "string", "maxLength": 8},
                "country": {"type": "string", "maxLength": 20},
            },
            "required": ["street", "postal_code", "country"],
            "additionalProperties": False,
        },
    },
    "additionalProperties": False,
}
SCHEMA["required"] = list(SCHEMA["properties"])
ASKED = "Make up a customer of a bookshop and answer with a JSON object.\n"


def edited_file() -> tuple[list[int], list[int]]:
    """Prompt (the file) and answer (the file after an edit) as token ids, one a word or sign."""
    before = "\n".join(SOURCE.read_text("utf-8").split("\n")[30:100])
    lines = re.sub(r"\bentry\b", "stored", before).split("\n")
    lines.insert(25, "        log.debug('looking for %d tokens', len(tokens))")
    del lines[50]
    ids: dict[str, int] = {}

    def tokens(text: str) -> list[int]:
        words = re.findall(r" ?[A-Za-z]{1,6}| ?\d|\n *|[^\sA-Za-z0-9]| ", text)
        return [FIRST_ID + ids.setdefault(word, len(ids)) for word in words]

    return tokens(f"Rename it.\n{before}\nanswer:\n"), tokens("\n".join(lines))


def misleading(rng: random.Random) -> tuple[list[int], list[int]]:
    """The same four tokens again and again, and each time another one behind them."""
    rest = rng.sample(range(1000, 4000), 120)
    text = [token for other in rest for token in (300, 301, 302, 303, other)]
    return text[:200], text[200:500]


async def generated(runner: RunnerProcess, request: GenerationRequest) -> tuple[list[int], Done]:
    """The tokens of an answer, and its end."""
    ids: list[int] = []
    async for event in runner.generate(request):
        if isinstance(event, Done):
            done = event
        else:
            ids += getattr(event, "token_ids", ())
    return ids, done


def report(what: str, pairs: list[tuple[float, float]], done: Done) -> None:
    """Print the speeds with drafts and without, and what became of the last answer's drafts."""
    ratios = [on / off for on, off in pairs]
    print(
        f"{what}: with {statistics.median(on for on, _ in pairs):.1f} tok/s, off "
        f"{statistics.median(off for _, off in pairs):.1f}, ratio {statistics.median(ratios):.3f} "
        f"({min(ratios):.3f}..{max(ratios):.3f}); last: {done.timings.draft_tokens} drafted, "
        f"{done.timings.draft_accepted} right",
        flush=True,
    )


async def speed(
    runner: RunnerProcess, prompt: list[int], answer: list[int], *, speculate: bool | None
) -> tuple[float, Done]:
    """Tokens a second of the forced answer."""
    source = "start: " + " ".join(f"<[{token},{NEVER}]>" for token in answer)
    request = GenerationRequest(
        prompt=prompt,
        max_tokens=len(answer),
        sampling=SamplingParams(temperature=0, logit_bias={NEVER: -1000.0}),
        constraint=Constraint(kind="lark", source=source),
        speculate=speculate,
        ignore_eos=True,
    )
    ids, done = await generated(runner, request)
    if ids[: len(answer)] != answer:
        raise SystemExit("the answer was not the forced text")
    return (len(answer) - 1) / done.timings.decode_s, done


async def written(runner: RunnerProcess, *, speculate: bool | None) -> tuple[float, Done, list[int]]:
    """Tokens a second of an object that satisfies SCHEMA, and its tokens."""
    request = GenerationRequest(
        prompt=ASKED,
        max_tokens=300,
        sampling=SamplingParams(temperature=0),
        constraint=Constraint(kind="json_schema", source=json.dumps(SCHEMA)),
        speculate=speculate,
    )
    ids, done = await generated(runner, request)
    return (len(ids) - 1) / done.timings.decode_s, done, ids


async def measure(options: argparse.Namespace) -> None:
    """All comparisons."""
    runner = await RunnerProcess.start("llama", options.model)
    try:
        settings = LoadSettings(
            path=options.model, n_ctx=4096, n_parallel=2, n_threads=options.threads, draft_path=options.draft
        )
        await runner.load(settings)
        rng = random.Random(1)
        for name, (prompt, answer) in (("edited file", edited_file()), ("misleading text", misleading(rng))):
            await speed(runner, prompt, answer[:20], speculate=False)
            pairs = []
            for _ in range(options.rounds):
                on, done = await speed(runner, prompt, answer, speculate=None)
                off, _ = await speed(runner, prompt, answer, speculate=False)
                pairs.append((on, off))
            report(f"{name}, {len(prompt)} + {len(answer)} tokens", pairs, done)
        await written(runner, speculate=False)
        pairs = []
        for _ in range(options.rounds):
            on, done, with_drafts = await written(runner, speculate=None)
            off, _, without = await written(runner, speculate=False)
            if with_drafts != without:
                print("the object differs from that without drafts: steps of other widths round otherwise")
            pairs.append((on, off))
        report(f"object by a schema, {len(with_drafts)} tokens", pairs, done)
    finally:
        await runner.stop()


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--draft")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
