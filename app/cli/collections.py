"""`tessera collections`: create, watch, search and remove document collections."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from app.cli.connection import connected
from app.cli.echo import echo, print_json
from app.cli.progress import draw

if TYPE_CHECKING:
    from app.client import Client
    from engine.api.collections import Collection, SearchAnswer

_LOOK_S = 0.3
# Problems of a collection because of which files may be unread.
_ABOUT_FILES = frozenset({"not_there", "not_checked"})


@click.group(help="Collect documents, search them, and ask a model about them.")
def command() -> None:
    """Nothing leaves this computer, unless a model of another server is named and allowed."""


@command.command("add")
@click.argument("name")
@click.argument("paths", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option("--no-follow", is_flag=True, help="Read the files once, without watching for changes.")
@click.option("--ocr", is_flag=True, help="Also read scanned pages and images with OCR (needs the extra ocr).")
@click.option("--open", "is_open", is_flag=True, help="Let every client that may chat with this server use it.")
@click.option("--embedding-model", default="", help="Model for search by meaning; none turns it off.")
@click.option("--reranker", default="", help="Model that reranks the results; none turns reranking off.")
@click.option("--allow-remote", is_flag=True, help="Allow sending the text to the server of a named model.")
@click.option("--no-wait", is_flag=True, help="Return at once; the running server reads the files.")
def add(
    name: str,
    paths: tuple[Path, ...],
    *,
    no_follow: bool,
    ocr: bool,
    is_open: bool,
    embedding_model: str,
    reranker: str,
    allow_remote: bool,
    no_wait: bool,
) -> None:
    """Create the collection NAME from files and folders, or add them to it."""
    from engine.api.collections import CollectionChange, CollectionRequest

    sources = tuple(str(path.absolute()) for path in paths)
    with connected() as client:
        by_name = {c.name.casefold(): c for c in client.collections()}
        old = by_name.get(name.casefold())
        if old is None and not sources:
            raise click.UsageError(
                "Name the files and folders of the new collection: tessera collections add NAME PATH"
            )

        def put(*, allows: bool) -> "Collection":
            if old is not None:
                change = CollectionChange(
                    add=sources,
                    ocr=ocr or None,
                    open=is_open or None,
                    embedding_model=embedding_model or None,
                    reranker=reranker or None,
                    allow_remote=allows or None,
                )
                return client.change_collection(old.id, change)
            request = CollectionRequest(
                name=name,
                sources=sources,
                follow=not no_follow,
                ocr=ocr,
                open=is_open,
                embedding_model=embedding_model,
                reranker=reranker,
                allow_remote=allows,
            )
            return client.make_collection(request)

        collection = _agreed(put, allows=allow_remote)
        if not no_wait:
            collection = _wait(client, collection.id)
        _print_collection(collection)


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def list_collections(*, as_json: bool) -> None:
    """List names, sizes, reading progress, and other servers that receive their text."""
    from app.tools.types import shown_text

    with connected() as client:
        collections = client.collections()
    if as_json:
        print_json({"collections": collections})
        return
    if not collections:
        echo("There are no collections. Create one with: tessera collections add NAME PATH")
    for each in collections:
        sent = [f"its text is sent to {to.server}" for to in each.sent_to]
        echo(shown_text("\t".join([each.name, _amount(each), _state(each), *dict.fromkeys(sent)])))


@command.command("show")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def show(name: str, *, as_json: bool) -> None:
    """Show one collection."""
    with connected() as client:
        collection = client.collection(client.collection_key(name))
    if as_json:
        print_json(collection)
    else:
        _print_collection(collection)


@command.command("unread")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def unread(name: str, *, as_json: bool) -> None:
    """List the files, folders and pages that were not read, with reasons."""
    from app.tools.types import shown_text

    with connected() as client:
        name = client.collection_key(name)
        rows = _unread(client, name)
        if as_json:
            print_json({"unread": [{"path": path, "page": page, "reason": why} for path, page, why in rows]})
            return
        everything = True
        for path, page, reason in rows:
            everything = False
            echo(shown_text(f"{path}{f', {page}' if page else ''}: {reason}"))
        collection = client.collection(name)
    problems = [problem for problem in collection.problems if problem.kind in _ABOUT_FILES]
    for problem in problems:
        echo(shown_text(str(problem)))
    if collection.state == "reading":
        echo(shown_text(_state(collection)))
    elif everything and not problems:
        echo("Everything was read.")


def _unread(client: "Client", name: str) -> "Iterator[tuple[str, str | None, str]]":
    """Path, page (None: the whole file) and reason of everything that was not read."""
    after: str | None = ""
    while after is not None:
        batch = client.documents(name, after, problems=True)
        for document in batch.documents:
            if document.problem:
                yield document.path, None, document.problem
            if document.unread_pages:
                for page in client.document_pages(name, document.id).pages:
                    if page.problem:
                        yield document.path, page.label or str(page.number), page.problem
        after = batch.after


@command.command("search")
@click.argument("name")
@click.argument("question")
@click.option("--limit", default=5, show_default=True, type=click.IntRange(1, 50))
@click.option(
    "--ways",
    default="both",
    show_default=True,
    type=click.Choice(["both", "words", "meaning"], case_sensitive=False),
)
@click.option("--json", "as_json", is_flag=True, help="Write the server's answer as JSON.")
def search(name: str, question: str, limit: int, ways: str, *, as_json: bool) -> None:
    """Find the passages that are relevant to a QUESTION."""
    import msgspec

    from engine.api.collections import SearchRequest

    if not question.strip():
        raise click.BadParameter("the question is empty.", param_hint="QUESTION")
    request = msgspec.convert({"query": question, "limit": limit, "ways": ways}, SearchRequest)
    with connected() as client:
        name = client.collection_key(name)
        answer = client.search_collection(name, request)
        if not answer.passages and not as_json:
            raise click.ClickException(_nothing_found(client.collection(name)))
    if as_json:
        print_json(answer)
        return
    _passages(answer)


@command.command("ask")
@click.argument("name")
@click.argument("question")
@click.option("--model", "-m", default="default", help="Model that answers.")
@click.option("--only", is_flag=True, help="Answer only from the documents: refuse if no passage fits.")
def ask(name: str, question: str, model: str, *, only: bool) -> None:
    """Ask a model a QUESTION about a collection; the answer cites its passages."""
    from app.cli.conversation import print_grounds
    from app.tools.types import shown_text

    messages = [{"role": "user", "content": question}]
    grounds = None
    with (
        connected() as client,
        closing(client.chat(model, messages, collection={"id": name, "only": only})) as answer,
    ):
        for chunk in answer:
            grounds = chunk.facts.grounds or grounds
            if chunk.text:
                echo(shown_text(chunk.text), nl=False)
        echo()
    if grounds is not None:
        print_grounds(grounds)


@command.command("refresh")
@click.argument("name")
def refresh(name: str) -> None:
    """Check the files now, and wait until they are read."""
    with connected() as client:
        name = client.collection_key(name)
        client.refresh_collection(name)
        _print_collection(_wait(client, name))


@command.command("remove")
@click.argument("name")
@click.option("--source", type=click.Path(path_type=Path), help="Only this file or folder of it.")
def remove(name: str, source: Path | None) -> None:
    """Delete a collection and its index. The files stay."""
    from engine.api.collections import CollectionChange

    with connected() as client:
        name = client.collection_key(name)
        if source is not None:
            _print_collection(client.change_collection(name, CollectionChange(remove=(str(source.absolute()),))))
        else:
            echo(f"{client.remove_collection(name).name} was removed; its files stay.")


def _agreed(put: "Callable[..., Collection]", *, allows: bool) -> "Collection":
    """Call `put`; if text would go to another server, ask the user in a terminal and repeat the call."""
    from app.client import ApiError

    try:
        return put(allows=allows)
    except ApiError as error:
        if error.code != "remote_not_agreed" or not sys.stdin.isatty():
            raise
        model, server = error.facts.get("model"), error.facts.get("server")
        question = (
            f"{model} runs at {server}, another server. Send the text of these documents and all questions there?"
        )
        if not click.confirm(question):
            raise click.Abort from None
        return put(allows=True)


def _wait(client: "Client", key: str) -> "Collection":
    """Show indexing progress until the collection is ready."""
    from app.tools.types import shown_text

    shown = ""
    while True:
        collection = client.collection(key)
        line = shown_text(_state(collection))
        if line != shown:
            draw(f"\r\033[K{line}" if _is_terminal() else f"{line}\n")
            shown = line
        if collection.state == "ready":
            if _is_terminal():
                draw("\r\033[K")
            return collection
        time.sleep(_LOOK_S if _is_terminal() else 10 * _LOOK_S)


def _is_terminal() -> bool:
    return sys.stderr.isatty()


def _state(collection: "Collection") -> str:
    if collection.state == "reading":
        return f"reading: {collection.files_done} of {collection.files} files, {collection.pages} pages so far"
    if collection.state == "embedding":
        return f"keyword search ready; by meaning: {collection.embedded} of {collection.chunks} passages"
    return "ready"


def _amount(collection: "Collection") -> str:
    from app.format import counted, size

    documents, pages = counted(collection.documents, "document"), counted(collection.pages, "page")
    return f"{documents}, {pages}, {size(collection.index_bytes)}"


def _print_collection(collection: "Collection") -> None:
    from app.format import counted
    from app.tools.types import shown_text
    from devices.install_hints import add_part

    echo(f"{collection.name}: {_amount(collection)} on disk, {_state(collection)}")
    for source in collection.sources:
        echo(shown_text(f"  {source}"))
    for to in collection.sent_to:
        echo(shown_text(f"  Its text is sent to {to.server}, where {to.model} runs"))
    if collection.embedded:
        echo(f"  {collection.embedded} of {collection.chunks} passages by {collection.embedded_by}")
    for problem in collection.problems:
        echo(shown_text(f"  {problem}"))
    if collection.scanned_pages:
        install = "" if collection.ocr_installed else f"{add_part('ocr')}, then "
        scans = counted(collection.scanned_pages, "page")
        echo(
            f"  Scans and images, which no search finds: {scans}. OCR reads them: "
            f"{install}tessera collections add {collection.name!r} --ocr"
        )
    if collection.failed or collection.unread_pages:
        unread = f"{counted(collection.failed, 'document')}, {counted(collection.unread_pages, 'page')}"
        echo(f"  Not read: {unread}; see: tessera collections unread {collection.name!r}")
    if collection.skipped:
        skipped = counted(collection.skipped, "hidden, linked or ignored path")
        echo(f"  Skipped: {skipped}; see: tessera collections unread {collection.name!r}")


def _nothing_found(collection: "Collection") -> str:
    if collection.state == "reading":
        return f"{collection.name} is still being read: {collection.files_done} of {collection.files} files so far."
    if not collection.chunks:
        return f"{collection.name} contains no text: `tessera collections show {collection.name!r}` has details."
    return f"No passage of {collection.name} contains a word of the question."


def _passages(answer: "SearchAnswer") -> None:
    from app.tools.types import shown_text

    if not answer.found:
        echo("Weak match: the collection contains little of the question. The nearest passages:", err=True)
    for number, passage in enumerate(answer.passages, 1):
        line = f", line {passage.line}" if passage.line else ""
        echo(shown_text(f"[{number}] {passage.path}, {passage.label or f'part {passage.page}'}{line}"))
        text = " ".join(passage.text.split())
        echo(shown_text(f"    {text[:240]}{'…' if len(text) > 240 else ''}"))  # noqa: PLR2004 - three lines
    for note in answer.notes:
        echo(shown_text(note), err=True)
