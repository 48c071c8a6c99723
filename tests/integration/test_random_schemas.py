"""Random schemas and a model with random weights: all constrained output validates."""

import asyncio
import json
import random

import jsonschema
import pytest

from engine.core.types import Constraint, Delta, Done, GenerationRequest, SamplingParams
from engine.runner.process import RunnerProcess
from engine.runner.protocol import LoadSettings
from tests.support.models.shapes import shallow, write_shape


def schema(rng, depth=0):
    """A random schema, bounded so that a model with random weights comes to an end."""
    kind = rng.choice(["string", "integer", "number", "boolean", "null", "enum", "const"][: 7 if depth else 4])
    if depth < 3 and rng.random() < 0.7:
        kind = rng.choice(["object", "object", "array", "anyOf"])
    if kind == "object":
        names = rng.sample(["a", "b", "city name", 'é"x', "d"], rng.randint(1, 4))
        return {
            "type": "object",
            "properties": {name: schema(rng, depth + 1) for name in names},
            "required": rng.sample(names, rng.randint(0, len(names))),
            "additionalProperties": False,
        }
    if kind == "array":
        low = rng.randint(0, 2)
        bounds = {"minItems": low, "maxItems": low + rng.randint(0, 2)}
        return {"type": "array", "items": schema(rng, depth + 1), **bounds}
    if kind == "anyOf":
        return {"anyOf": [schema(rng, depth + 1) for _ in range(rng.randint(1, 3))]}
    if kind == "enum":
        return {"enum": rng.sample(["red", 1, None, True, "gr\u00fcn", -2.5], rng.randint(1, 4))}
    low = rng.randint(-50, 50)
    bounds = {
        "const": {"const": rng.choice(["x", 7, False])},
        "string": {"type": "string", "maxLength": rng.randint(0, 8)},
        "integer": {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 300)},
        "number": {"type": "number", "minimum": -9, "maximum": 9},
    }
    return bounds.get(kind, {"type": kind})


async def ask(runner, wanted, seed):
    request = GenerationRequest(
        prompt="Say it.",
        max_tokens=900,
        sampling=SamplingParams(temperature=1.0, seed=seed),
        constraint=Constraint(kind="json_schema", source=json.dumps(wanted)),
    )
    text, reason = "", None
    async for event in runner.generate(request):
        if isinstance(event, Delta):
            text += event.text
        elif isinstance(event, Done):
            reason = event.finish_reason
    return text, reason


@pytest.mark.slow
def test_what_random_weights_say_under_random_schemas_validates(tmp_path):
    path = write_shape(tmp_path / "random.gguf", shallow("llama"))
    rng = random.Random(20261121)
    schemas = [schema(rng) for _ in range(24)]

    async def main():
        runner = await RunnerProcess.start("llama", str(path))
        try:
            load = LoadSettings(path=str(path), n_ctx=1024, kv_cells=8192, n_parallel=8, n_threads=1)
            await runner.load(load)
            return await asyncio.gather(*(ask(runner, wanted, seed) for seed, wanted in enumerate(schemas)))
        finally:
            await runner.stop()

    answers = asyncio.run(main())
    ended = 0
    for wanted, (text, reason) in zip(schemas, answers, strict=True):
        if reason == "stop":
            ended += 1
            jsonschema.Draft202012Validator(wanted).validate(json.loads(text))
    assert ended >= 20, f"only {ended} of {len(schemas)} answers ended"
