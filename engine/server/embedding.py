"""Vectors of texts, whatever protocol asked for them."""

from typing import Any

import numpy as np

from engine.errors import InputFault
from engine.loaded_model import LoadedModel
from engine.runner.protocol import Embedded
from engine.server.state import ServerState


async def embed(
    state: ServerState,
    name: str,
    inputs: list[str | list[int]],
    dimensions: int | None = None,
    *,
    truncate: bool = False,
) -> tuple[LoadedModel, list[Any], Embedded]:
    """Unit vectors of the inputs, float32 of (dimensions,), and what the runner said of them.

    Cut vectors are scaled to unit length again, which is what models trained for that expect.
    """
    model = await state.pool.acquire(name)
    assert model.runner is not None
    answer = await model.runner.embed(inputs, truncate=truncate)
    vectors = [np.frombuffer(vector, "<f4") for vector in answer.vectors]
    if dimensions is not None:
        if dimensions > answer.width:
            raise InputFault(f"{model.id} gives {answer.width} dimensions, not {dimensions}.", "dimensions")
        cut = [vector[:dimensions] for vector in vectors]
        vectors = [(vector / (np.linalg.norm(vector) or 1.0)).astype("<f4") for vector in cut]
    state.metrics.embedded(model.id, sum(answer.token_counts))
    return model, vectors, answer
