"""The prefixes that an embedding model needs before queries and passages, recognized by its names."""

import pytest

from engine.library.embedding_prompts import RetrievalPrompts, retrieval_prompts
from engine.library.types import Details, ModelEntry, ModelFile, Origin

NOTHING = RetrievalPrompts()
SEARCHING = RetrievalPrompts("Represent this sentence for searching relevant passages: ")


def entry(file="model.gguf", title="", repo=None):
    return ModelEntry(
        id="m",
        name="m",
        format="gguf",
        files=(ModelFile(path=f"/models/{file}", size_bytes=1, mtime_ns=1),),
        origin=Origin(kind="file", repo=repo),
        details=Details(architecture="bert", title=title),
        added_at=0.0,
    )


@pytest.mark.parametrize(
    ("file", "prompts"),
    [
        ("multilingual-e5-small-Q8_0.gguf", RetrievalPrompts("query: ", "passage: ", 0.7)),
        ("e5_base_v2.f16.gguf", RetrievalPrompts("query: ", "passage: ", 0.7)),
        ("bge-small-en-v1.5-q8_0.gguf", SEARCHING),
        ("bge-m3-q8_0.gguf", NOTHING),
        ("nomic-embed-text-v1.5.Q4_K_M.gguf", RetrievalPrompts("search_query: ", "search_document: ")),
        ("snowflake-arctic-embed-m-v1.5.gguf", SEARCHING),
        ("snowflake-arctic-embed-l-v2.0-f16.gguf", RetrievalPrompts("query: ")),
        ("mxbai-embed-large-v1-f16.gguf", SEARCHING),
        ("all-MiniLM-L6-v2-ggml-model-f16.gguf", NOTHING),
        ("made5-small.gguf", NOTHING),
    ],
)
def test_the_family_is_told_by_the_file(file, prompts):
    assert retrieval_prompts(entry(file)) == prompts


def test_instructions_end_as_the_card_has_them():
    qwen = retrieval_prompts(entry("Qwen3-Embedding-0.6B-Q8_0.gguf"))
    assert qwen.question.startswith("Instruct: ")
    assert qwen.question.endswith("\nQuery:")
    assert not qwen.passage
    e5 = retrieval_prompts(entry("multilingual-e5-large-instruct.gguf"))
    assert e5.question.endswith("\nQuery: ")
    assert not e5.passage


def test_the_header_and_the_hub_tell_it_where_the_file_does_not():
    assert retrieval_prompts(entry(title="Bge Small En v1.5")) == SEARCHING
    assert retrieval_prompts(entry(repo="nomic-ai/nomic-embed-text-v2-moe-GGUF")).passage == "search_document: "
    assert retrieval_prompts(entry()) == NOTHING
