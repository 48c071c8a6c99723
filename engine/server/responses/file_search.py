"""The tool `file_search`, which searches vector stores before the model responds.

The model does not call a tool, because small models do that badly; the user's question is the search query. Numbers
in brackets in the response become file citations.
"""

import asyncio
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from engine.core.errors import InputFault
from engine.server.documents import rag
from engine.server.documents.questions import interleaved, questions_of
from engine.server.openai.vector_store_schemas import FileSearch
from engine.server.openai.vector_stores import Result, found_in

if TYPE_CHECKING:
    from engine.chat.query import ChatQuery
    from engine.documents.registry import OpenCollection
    from engine.server.documents.service import CollectionService
    from engine.server.responses.tools import Toolbox
    from engine.server.state import ServerState

KIND: Final = "file_search"
_CITED: Final = re.compile(r"\[(\d{1,3})\]")
_NOTHING: Final = (
    "The user's files were searched, and nothing in them bears on what is said last. If it asks about the files, "
    "say that they do not hold the answer; do not make one up."
)


class SearchToolChoice(NamedTuple):
    """The search part of a `tool_choice`, and the remaining choice for functions."""

    use: bool
    insisted: bool
    functions: str | dict[str, Any] | None


def chosen(choice: str | dict[str, Any] | None, box: "Toolbox") -> SearchToolChoice:
    """Whether the search runs. Raises: InputFault: it is chosen but not among the tools."""
    there = box.search is not None
    if isinstance(choice, dict) and choice.get("type") == KIND:
        if not there:
            raise InputFault("tool_choice names file_search, which is not in tools.", "tool_choice")
        return SearchToolChoice(use=True, insisted=True, functions="auto")
    if not there or choice == "none":
        return SearchToolChoice(use=False, insisted=False, functions=choice)
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        listed = choice.get("tools")
        tools = listed if isinstance(listed, list) else []
        others = [tool for tool in tools if not (isinstance(tool, dict) and tool.get("type") == KIND)]
        functions: str | dict[str, Any] = {**choice, "tools": others} if others else "none"
        insisted = choice.get("mode") == "required" and not others
        return SearchToolChoice(use=len(others) < len(tools), insisted=insisted, functions=functions)
    if choice == "required" and not box.definitions:
        return SearchToolChoice(use=True, insisted=True, functions="auto")
    return SearchToolChoice(use=True, insisted=choice == "required", functions=choice)


class FoundPassages(NamedTuple):
    """Queries and results in the order in which the model sees them; `query` contains them."""

    questions: tuple[str, ...]
    results: tuple[Result, ...]
    query: "ChatQuery"

    def payload(self) -> list[dict[str, Any]]:
        """The results for an output item."""
        return [{**result.payload(), "text": result.passage.text} for result in self.results]

    def citations(self, text: str) -> list[dict[str, Any]]:
        """File citations for the numbers in brackets, with their positions in the text."""
        marks = [mark for mark in _CITED.finditer(text) if 0 < int(mark[1]) <= len(self.results)]
        cited = [(mark.start(), self.results[int(mark[1]) - 1].payload()) for mark in marks]
        return [
            {"type": "file_citation", "index": at, "file_id": fields["file_id"], "filename": fields["filename"]}
            for at, fields in cited
        ]


class Search:
    """A requested search; its stores exist."""

    def __init__(
        self,
        service: "CollectionService",
        stores: "tuple[OpenCollection, ...]",
        search: FileSearch,
        *,
        insisted: bool,
    ) -> None:
        self._service, self._stores, self._search, self._insisted = service, stores, search, insisted

    async def run(self, state: "ServerState", model: str, query: "ChatQuery") -> FoundPassages:
        """Search for the question and insert the results that fit the model's context before it."""
        questions = questions_of(query)
        loaded = await state.pool.acquire(model)
        rankings, bears = [], False
        for question in questions:
            answers = [await found_in(self._service, live, question, self._search) for live in self._stores]
            bears = bears or any(answer.bears for answer in answers)
            rankings.append(sorted((r for answer in answers for r in answer.results), key=lambda r: -r.score))
        results = interleaved(rankings, lambda result: (result.file_id, result.passage.id))
        results = results[: self._search.max_num_results or rag.PASSAGES]
        if not results:
            with_note = rag.with_given(query, rag.NOT_THERE if self._insisted else _NOTHING)
            return FoundPassages(questions, (), with_note)
        budget = await rag.token_budget(loaded, query)
        passages, _ = await rag.fitting(loaded, tuple(result.passage for result in results), budget)
        text = f"{rag.ANSWER_FROM if bears else rag.WEAK}\n\n{rag.numbered(passages)}"
        return FoundPassages(questions, tuple(results[: len(passages)]), rag.with_given(query, text))


async def prepared(state: "ServerState", box: "Toolbox", choice: SearchToolChoice) -> Search | None:
    """The search of a request. Raises: NoCollection: a store does not exist or is not accessible."""
    if box.search is None or not choice.use:
        return None
    service = await state.collection_service()
    ids = dict.fromkeys(box.search.vector_store_ids)
    stores = [await asyncio.to_thread(service.allowed, key) for key in ids]
    return Search(service, tuple(stores), box.search, insisted=choice.insisted)
