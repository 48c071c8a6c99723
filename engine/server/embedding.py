"""Embeddings, shared by all protocols."""

from typing import Any, Final

import numpy as np

from engine.core.errors import InputFault
from engine.library.embedding_prompts import retrieval_prompts
from engine.pool.loaded_model import LoadedModel
from engine.runner.protocol import Embedded
from engine.server.state import ServerState

# Purpose of the texts: the names used by NVIDIA and Voyage, and by Cohere.
INPUT_TYPES: Final = {
    "query": "question", "search_query": "question",
    "passage": "passage", "document": "passage", "search_document": "passage",
}  # fmt: skip


async def prompted(
    state: ServerState, name: str, inputs: list[str | list[int]], input_type: str
) -> list[str | list[int]]:
    """The inputs with the model's query or passage prefix.

    Raises: InputFault: an input is token ids, which get no prefix; ModelNotFound; BadModelFile.
    """
    prompts = retrieval_prompts(await state.models.entry(name))
    before: str = getattr(prompts, INPUT_TYPES[input_type])
    texts = [text for text in inputs if isinstance(text, str)]
    if len(texts) < len(inputs):
        raise InputFault("input_type selects the prefix of a text; token ids get no prefix.", "input_type")
    return [before + text for text in texts]


async def embed(
    state: ServerState,
    name: str,
    inputs: list[str | list[int]],
    dimensions: int | None = None,
    *,
    truncate: bool = False,
) -> tuple[LoadedModel, list[Any], Embedded]:
    """Unit vectors of the inputs, float32 of (dimensions,), and the runner's result.

    Truncated vectors are normalized again, as Matryoshka models expect.
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
