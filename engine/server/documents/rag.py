"""Retrieval-augmented chat: selects passages of a collection for the model and checks the response against them."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from devices.errors import TesseraError
from engine.api.collections import CheckedSentence, Citations, Passage, SearchAnswer, SearchRequest
from engine.chat.types import Message, Part, TextPart
from engine.documents import citation_check
from engine.documents.registry import OpenCollection
from engine.documents.types import DocumentRow
from engine.message_catalog import sentence
from engine.message_catalog.reasons import Reason, because
from engine.server.documents.questions import interleaved, questions_of
from engine.server.documents.service import CollectionService

if TYPE_CHECKING:
    from engine.chat.query import ChatQuery
    from engine.pool.loaded_model import LoadedModel

# Passages of OpenAI's file search if the request names no number.
PASSAGES: Final = 6
# A chat gets the best passages that fit into this share of the model's context, at most this many: the answer and
# the chat so far need the rest.
_SHARE: Final = 4
_MOST: Final = 24
# Tokens reserved for the response if the request sets no limit, and for the text that templates add.
_ANSWER_TOKENS: Final = 1024
_TEMPLATE_TOKENS: Final = 64
_LEAST_TOKENS: Final = 200
# Upper limit of characters per token over a page of any text. A collection within the limit is tokenized to get the
# exact count; a larger one cannot fit.
_CHARS_PER_TOKEN: Final = 6
_MILLION: Final = 1_000_000

_WHOLE: Final = "Answer from the documents below, and only from them. If they do not hold the answer, say so."
ANSWER_FROM: Final = (
    "Answer from the numbered passages below, and only from them. After each statement put the number of the "
    "passage it is from in brackets, such as [1]. If they do not hold the answer, say so."
)
# Replaces `ANSWER_FROM` if the passages match the question poorly.
WEAK: Final = (
    "The numbered passages below are the nearest that a search of the user's documents found, but the match is "
    "weak: they may have nothing to do with what is said last. Use them where they do, with the number of the "
    "passage in brackets after each statement, such as [1]. If the question is about the documents and the "
    "passages do not hold the answer, say so; do not make one up."
)
NOT_THERE: Final = (
    "The user's documents were searched, and nothing in them bears on the question. Say that the documents do not "
    "hold the answer; do not make one up."
)


class AugmentedQuery:
    """A query with its retrieved documents. `query` goes to the model; `report` is sent before the response.

    `refusal` is the answer if the request allows only answers from the documents and nothing in them fits.
    """

    def __init__(
        self,
        service: CollectionService,
        live: OpenCollection,
        query: "ChatQuery",
        grounds: Citations,
        refusal: str = "",
    ) -> None:
        self.refusal = refusal
        self._service = service
        self._live = live
        self.query = query
        self.grounds = grounds

    def report(self) -> dict[str, Any]:
        """The sources of the response, for the field `tessera`."""
        return {"collection": msgspec.to_builtins(self.grounds)}

    async def checked(self, answer: str) -> dict[str, Any]:
        """The sources with the check of each sentence of the response."""
        sentences = [] if self.refusal else citation_check.sentences(answer)
        passages = [passage.text for passage in self.grounds.passages]
        if not sentences:
            return self.report()
        if not passages:  # no passages, so no sentence is supported
            loose = tuple(
                CheckedSentence(start=s.start, end=s.end, carried=False)
                for s in sentences
                if citation_check.is_claim(s)
            )
            self.grounds = msgspec.structs.replace(self.grounds, checked=loose)
            return self.report()
        windows = citation_check.windows(passages)
        vectors = await self._vectors([s.text for s in sentences], [window.text for window in windows])
        floor = await self._service.side_work.floor(self._live.store.fact("embedding_model"))
        checks = await asyncio.to_thread(self._check, sentences, windows, vectors, floor)
        self.grounds = msgspec.structs.replace(self.grounds, checked=tuple(checks))
        return self.report()

    def _check(
        self,
        sentences: list[citation_check.Sentence],
        windows: list[citation_check.Window],
        vectors: tuple[Any, Any] | None,
        floor: float,
    ) -> list[CheckedSentence]:
        with self._live.store.lock:
            return citation_check.check(sentences, windows, self._live.store.stemmer.stems, vectors, floor)

    async def _vectors(self, texts: list[str], windows: list[str]) -> tuple[Any, Any] | None:
        maker = self._service.maker(self._live)
        if not maker.id:
            return None
        try:
            rows = np.stack(list(await self._service.side_work.vectors(maker, [*texts, *windows])))
        except TesseraError:
            return None
        return rows[: len(texts)], rows[len(texts) :]


class CollectionQuery:
    """The collection that a chat names, with its retrieval options."""

    def __init__(
        self,
        service: CollectionService,
        live: OpenCollection,
        mode: str = "auto",
        passages: int | None = None,
        *,
        only: bool = False,
    ) -> None:
        self._service, self._live = service, live
        self._mode, self._passages, self._only = mode, passages, only

    async def ground(self, model: "LoadedModel", query: "ChatQuery") -> AugmentedQuery:
        """The query with the relevant documents."""
        return await ground(self._service, self._live, model, query, self._mode, self._passages, only=self._only)


async def ground(
    service: CollectionService,
    live: OpenCollection,
    model: "LoadedModel",
    query: "ChatQuery",
    mode: str = "auto",
    most: int | None = None,
    *,
    only: bool = False,
) -> AugmentedQuery:
    """Retrieve documents for the last question and insert them before it.

    `mode` "auto" uses all documents if they fit the model's context, else passages. "whole" and "passages" force
    one of the two. Without `most`, as many passages as a quarter of the context holds. With `only`, a question
    that no passage fits is refused without the model, and passages are used even where all documents fit.
    """
    budget = await token_budget(model, query)

    def so_far(why: Reason) -> Reason:
        if not service.collections.is_reading(live):
            return why
        return because("still_reading", what=why, done=live.progress.done, files=live.progress.files)

    counts = await asyncio.to_thread(live.store.counts)
    name, key = live.definition.name, live.definition.id
    if mode != "passages" and not only and counts.chars <= budget * _CHARS_PER_TOKEN:
        whole = await asyncio.to_thread(_everything, live)
        tokens = await _count(model, "\n\n".join(p.text for p in whole))
        if tokens <= budget and whole:
            why = because("whole_document", tokens=tokens, budget=budget)
            if counts.documents != 1:
                why = because("whole_documents", documents=counts.documents, tokens=tokens, budget=budget)
            why = so_far(why)
            grounds = Citations(
                id=key, name=name, mode="whole", why=sentence(why), why_detail=why, found=True, tokens=tokens,
                documents=counts.documents, passages=whole,
            )  # fmt: skip
            return AugmentedQuery(service, live, with_given(query, f"{_WHOLE}\n\n{_by_document(whole)}"), grounds)
    answer = await _nearest(service, live, questions_of(query), most or _MOST)
    if only and not answer.found:
        why = so_far(because("documents_do_not_say", name=name))
        grounds = Citations(
            id=key, name=name, mode="none", why=sentence(why), why_detail=why, passages=answer.passages,
            notes=answer.notes,
        )  # fmt: skip
        return AugmentedQuery(service, live, query, grounds, sentence(why))
    if not answer.passages:
        why = so_far(because("nothing_to_give"))
        grounds = Citations(id=key, name=name, mode="none", why=sentence(why), why_detail=why, notes=answer.notes)
        return AugmentedQuery(service, live, with_given(query, NOT_THERE), grounds)
    assert model.facts is not None
    chosen, tokens = await fitting(
        model, answer.passages, budget if most else min(budget, model.facts.n_ctx // _SHARE)
    )
    amount = because("characters", chars=counts.chars)
    if counts.chars > _MILLION:
        amount = because("million_characters", millions=counts.chars / _MILLION)
    kind = "passages_not_whole" if mode == "whole" else "passages_given"
    if not answer.found:
        kind = "passages_weak"
    why = so_far(because(kind, count=len(chosen), documents=counts.documents, amount=amount, tokens=tokens))
    grounds = Citations(
        id=key, name=name, mode="passages", why=sentence(why), why_detail=why, found=answer.found, tokens=tokens,
        passages=chosen, notes=answer.notes,
    )  # fmt: skip
    instructions = f"{ANSWER_FROM if answer.found else WEAK}\n\n{numbered(chosen)}"
    return AugmentedQuery(service, live, with_given(query, instructions), grounds)


async def _nearest(
    service: CollectionService, live: OpenCollection, questions: Sequence[str], limit: int
) -> SearchAnswer:
    """The best passages for all questions, however weak. If none match, the first passages of the documents."""
    answers = [await service.search(live, SearchRequest(query=text, limit=limit)) for text in questions]
    passages = interleaved([answer.passages for answer in answers], lambda passage: passage.id)[:limit]
    return SearchAnswer(
        passages=tuple(passages) or await service.beginnings(live, limit),
        found=any(answer.found for answer in answers),
        notes=tuple(dict.fromkeys(note for answer in answers for note in answer.notes)),
    )


async def token_budget(model: "LoadedModel", query: "ChatQuery") -> int:
    """Number of context tokens available for documents."""
    assert model.facts is not None
    prompt = "\n".join(message.text() for message in query.messages)
    for_answer = min(query.max_tokens or _ANSWER_TOKENS, model.facts.n_ctx // 2)
    return max(
        model.facts.n_ctx - await _count(model, prompt) - for_answer - _TEMPLATE_TOKENS * (1 + len(query.messages)),
        _LEAST_TOKENS,
    )


async def _count(model: "LoadedModel", text: str) -> int:
    assert model.runner is not None
    return len(await model.runner.tokenize(text, add_special=False, parse_special=False))


async def fitting(
    model: "LoadedModel", passages: tuple[Passage, ...], budget: int
) -> tuple[tuple[Passage, ...], int]:
    """The best passages that fit into `budget` tokens, and their tokens; always at least the first one."""
    chosen: list[Passage] = []
    used = 0
    for passage in passages:
        tokens = await _count(model, numbered((passage,)))
        if chosen and used + tokens > budget:
            break
        chosen.append(passage)
        used += tokens
    return tuple(chosen), used


def _documents(live: OpenCollection) -> Iterator[DocumentRow]:
    after = ""
    while batch := live.store.documents(after, limit=1000):
        yield from batch
        after = batch[-1].path


def _everything(live: OpenCollection) -> tuple[Passage, ...]:
    passages = []
    for document in _documents(live):
        for page, label, _ in live.store.pages(document.id):
            chunks = live.store.chunks_of(document.id, page)
            text = "\n\n".join(chunk.text for chunk in chunks)
            if text:
                passages.append(
                    Passage(
                        id=chunks[0].id,
                        document=document.id,
                        path=document.path,
                        title=document.title,
                        page=page,
                        label=label,
                        text=text,
                        start=0,
                        end=len(text),
                    )
                )
    return tuple(passages)


def _by_document(pages: tuple[Passage, ...]) -> str:
    parts, last = [], 0
    for page in pages:
        if page.document != last:
            parts.append(f"# {page.title}")
            last = page.document
        parts.append(page.text)
    return "\n\n".join(parts)


def numbered(passages: tuple[Passage, ...]) -> str:
    """The passages as the model sees them, with the numbers that it cites."""

    def one(number: int, passage: Passage) -> str:
        source = ", ".join(part for part in (passage.title, passage.label) if part)
        return f"[{number}] ({source})\n{passage.text}"

    return "\n\n".join(one(number, passage) for number, passage in enumerate(passages, 1))


def with_given(query: "ChatQuery", text: str) -> "ChatQuery":
    """The query with documents inserted before the last user message; earlier messages are unchanged."""
    messages = list(query.messages)
    last = max((i for i, m in enumerate(messages) if m.role == "user"), default=None)
    if last is None:
        return msgspec.structs.replace(query, messages=(*messages, Message(role="user", content=text)))
    content: str | tuple[Part, ...]
    old = messages[last].content
    if isinstance(old, str):
        content = f"{text}\n\nQuestion: {old}"
    else:
        content = (TextPart(text=f"{text}\n\nQuestion: "), *old)
    messages[last] = msgspec.structs.replace(messages[last], content=content)
    return msgspec.structs.replace(query, messages=tuple(messages))
