"""The prompts that embedding models expect before queries and passages, and their cosine floors, by family.

GGUF files do not contain them, so the family is derived from the model's name. Sources: the model cards on
huggingface.co, named above each row. Families without prompts (all-MiniLM, GTE, Granite, Jina v2) need no row.
"""

import re
from pathlib import Path
from typing import Final, NamedTuple

from engine.library.types import ModelEntry


class RetrievalPrompts(NamedTuple):
    """Texts to put before a query and before a passage; empty if the model expects none.

    `floor`: the cosine similarity of unrelated texts, if the model card states one.
    """

    question: str = ""
    passage: str = ""
    floor: float = 0.0


_SEARCHING: Final = RetrievalPrompts("Represent this sentence for searching relevant passages: ")
_TASK: Final = "Instruct: Given a web search query, retrieve relevant passages that answer the query\n"

# The first pattern that matches one of a model's names is used. Names are in lower case, words separated by
# hyphens.
_FAMILIES: Final = tuple(
    (re.compile(rf"(?<![a-z0-9]){pattern}"), prompts)
    for pattern, prompts in (
        # Qwen/Qwen3-Embedding-0.6B: no space after "Query:".
        (r"qwen3-embedding", RetrievalPrompts(f"{_TASK}Query:")),
        # intfloat/e5-mistral-7b-instruct, intfloat/multilingual-e5-large-instruct
        (r"e5-[a-z0-9-]*instruct", RetrievalPrompts(f"{_TASK}Query: ")),
        # intfloat/e5-small-v2, intfloat/multilingual-e5-small; their FAQ: cosines are between about 0.7 and 1.
        (r"e5-(small|base|large)", RetrievalPrompts("query: ", "passage: ", 0.7)),
        # BAAI/bge-small-en-v1.5, BAAI/bge-small-zh-v1.5; BAAI/bge-m3 needs no prompt.
        (r"bge-(small|base|large)-en", _SEARCHING),
        (r"bge-(small|base|large)-zh", RetrievalPrompts("为这个句子生成表示以用于检索相关文章：")),
        # nomic-ai/nomic-embed-code
        (r"nomic-embed-code", RetrievalPrompts("Represent this query for searching relevant code: ")),
        # nomic-ai/nomic-embed-text-v1.5, nomic-ai/nomic-embed-text-v2-moe, nomic-ai/modernbert-embed-base
        (r"(nomic-embed-text|modernbert-embed)", RetrievalPrompts("search_query: ", "search_document: ")),
        # Snowflake/snowflake-arctic-embed-l-v2.0, Snowflake/snowflake-arctic-embed-m-v1.5
        (r"arctic-embed2|arctic-embed-[a-z]+-v2", RetrievalPrompts("query: ")),
        (r"arctic-embed", _SEARCHING),
        # mixedbread-ai/mxbai-embed-large-v1
        (r"mxbai-embed-(large|2d-large)", _SEARCHING),
        # google/embeddinggemma-300m
        (r"embeddinggemma", RetrievalPrompts("task: search result | query: ", "title: none | text: ")),
    )
)


def retrieval_prompts(entry: ModelEntry) -> RetrievalPrompts:
    """The prompts of this model, found by its names in the header, on disk and on the hub."""
    on_disk = (Path(path).name for path in (entry.folder or "", *(file.path for file in entry.files[:1])))
    names = (entry.details.title, *on_disk, entry.origin.repo or "", entry.id)
    plain = [re.sub(r"[^a-z0-9.]+", "-", name.lower()) for name in names]
    matches = (prompts for pattern, prompts in _FAMILIES if any(pattern.search(name) for name in plain))
    return next(matches, RetrievalPrompts())
