"""jsonschemabench through a server: is each schema accepted, and is each whole answer valid?

    python tests/optin/conformance/schema_bench.py REPOSITORY URL MODEL [--per-set 50] [--loose] [--record]

REPOSITORY is a clone of guidance-ai/jsonschemabench, bare or not. Sends 50 schemas of each of the ten sets, always
the same ones, as `response_format` with `strict`, or with `--loose` without it. Prints each refusal, each slow
answer, and each answer that violates its schema. Ends with 1 if an answer is invalid with `strict`, violates a part
that no note names without it, or if the server fails (5xx, or a stream that breaks). About 5 minutes for 500
schemas with the bundled model on two free cores, needs jsonschema and httpx2.
`--record` appends the counts to results.jsonl.
"""

import argparse
import asyncio
import json
import random
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx2
import jsonschema
from jsonschema import FormatChecker, validators

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from run import record

MAX_TOKENS = 400
AT_ONCE = 4
SLOW_S = 60
OK, CUT = "valid", "cut by the limit"


def git(repository: Path, *arguments: str) -> str:
    """The output of a git command."""
    command = ["git", "-C", str(repository), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def chosen(repository: Path, per_set: int) -> list[str]:
    """Names of schemas: the same ones in each run."""
    listed = git(repository, "ls-tree", "-r", "--name-only", "HEAD", "data").split("\n")
    names = sorted(name for name in listed if name.endswith(".json") and name.count("/") == 2)
    rng, out = random.Random(7), []
    for folder in sorted({name.split("/")[1] for name in names}):
        inside = [name for name in names if name.split("/")[1] == folder]
        rng.shuffle(inside)
        out += inside[:per_set]
    return out


def violation(schema: Any, text: str) -> str:
    """How the answer violates its schema; empty if it does not."""
    checker = validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    error = next(iter(checker(schema, format_checker=FormatChecker()).iter_errors(json.loads(text))), None)
    return "" if error is None else f"{error.message[:160]} @ {'/'.join(map(str, error.absolute_schema_path))}"


def judged(schema: Any, status: int, answer: dict[str, Any], *, strict: bool) -> tuple[str, str]:
    """The result for a schema, and details."""
    if status != 200:
        said = str(answer.get("error", {}).get("message", answer))
        reason = re.sub(r"^.*cannot be guaranteed: ", "", said)
        return (f"SERVER {status}" if status >= 500 else "refused"), reason[:200]
    choice = answer["choices"][0]
    if choice["finish_reason"] != "stop":
        return CUT, ""
    notes = answer.get("tessera", {}).get("notes", [])
    try:
        wrong = violation(schema, choice["message"]["content"])
    except (ValueError, RecursionError, jsonschema.exceptions.SchemaError) as error:
        wrong = repr(error)[:200]
    if not wrong:
        return OK, ""
    if not strict and notes:
        return "violates a part that a note names", f"{wrong}; notes: {notes}"[:300]
    return "INVALID", wrong


async def run(given: argparse.Namespace) -> Counter[str]:
    """Send all; returns the counts."""
    counts: Counter[str] = Counter()
    names, begun, gate = chosen(given.repository, given.per_set), time.monotonic(), asyncio.Semaphore(AT_ONCE)
    async with httpx2.AsyncClient(timeout=300) as client:

        async def one(name: str) -> None:
            schema = json.loads(await asyncio.to_thread(git, given.repository, "show", f"HEAD:{name}"))
            wanted = {"name": "x", "schema": schema, "strict": not given.loose}
            body = {
                "model": given.model,
                "messages": [{"role": "user", "content": "Give an example."}],
                "max_tokens": MAX_TOKENS,
                "temperature": 1.0,
                "seed": 5,
                "response_format": {"type": "json_schema", "json_schema": wanted},
            }
            async with gate:
                start = time.monotonic()
                try:
                    answer = await client.post(f"{given.url.rstrip('/')}/v1/chat/completions", json=body)
                    kind, detail = judged(schema, answer.status_code, answer.json(), strict=not given.loose)
                except (httpx2.HTTPError, ValueError) as error:
                    kind, detail = "SERVER broke the connection", repr(error)
                took = time.monotonic() - start
            counts[kind] += 1
            if kind not in {OK, CUT} or took > SLOW_S:
                print(f"{kind} ({took:.1f} s) {name}: {detail}", flush=True)
            if counts.total() % 50 == 0:
                print(f"{counts.total()} of {len(names)} after {time.monotonic() - begun:.0f} s", flush=True)

        await asyncio.gather(*map(one, names))
    return counts


def main() -> int:
    """Run, print, record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repository", type=Path)
    parser.add_argument("url")
    parser.add_argument("model")
    parser.add_argument("--per-set", type=int, default=50)
    parser.add_argument("--loose", action="store_true")
    parser.add_argument("--record", action="store_true")
    given = parser.parse_args()
    counts = asyncio.run(run(given))
    for kind, count in counts.most_common():
        print(f"{count:4}  {kind}")
    if given.record:
        which = "the same schemas without strict" if given.loose else "50 of each of 10 sets, strict"
        passed = counts.pop(OK, 0) + counts.pop(CUT, 0)
        record(f"jsonschemabench (ba103c7), {which}", counts + Counter(passed=passed))
    return 1 if any(kind.isupper() or kind.startswith("SERVER") for kind in counts) else 0


if __name__ == "__main__":
    sys.exit(main())
