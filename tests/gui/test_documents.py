"""Collections in the window: their page, a chat that uses one, and the passages below its answer."""

import threading

import msgspec
import pytest
from PySide6.QtWidgets import QFileDialog, QProgressBar, QPushButton, QToolButton

from app.answer_facts import facts_of
from app.db.records import Conversation, Message
from app.gui.chat.options import ChatOptions
from app.gui.chat.request import branch_body
from app.gui.documents.citations import GroundsCard, PageDialog
from app.gui.documents.page import DocumentsPage
from app.gui.formatted import whole
from engine.api.collections import Collection, Collections, PageText
from engine.library.recommended_models import starter_repo
from engine.message_catalog.reasons import because
from tests.gui.hands import press, texts

SEA = {
    "id": "col_1", "name": "Sea", "sources": ["/home/ida/sea"], "state": "embedding", "documents": 3, "failed": 1,
    "pages": 12, "unread_pages": 2, "chunks": 40, "embedded": 10, "index_bytes": 2 << 20,
}  # fmt: skip
PASSAGE = {
    "id": 7,
    "document": 2,
    "path": "/home/ida/sea/tides.pdf",
    "title": "tides",
    "page": 3,
    "label": "page 3",
}
PAGE = "\U0001f30a High water. Low water."
ANSWER = "High water comes twice a day. It is made of cheese and wine."
GROUNDS = {
    "id": "col_1", "name": "Sea", "mode": "passages", "why": "1 passage was given.", "found": True,
    "passages": [PASSAGE], "checked": [
        {"start": 0, "end": 29, "carried": True, "passage": 1},
        {"start": 30, "end": 60, "carried": False},
    ],
}  # fmt: skip


def words_in(widget):
    from PySide6.QtWidgets import QLabel

    return " ".join(label.text() for label in widget.findChildren(QLabel))


@pytest.fixture
def collections(server):
    server.routes["GET", "/tessera/v1/collections"] = msgspec.convert({"collections": [SEA]}, Collections)
    return server


def test_the_page_tells_how_far_and_what_was_not_read(services, collections, show, qtbot):
    page = show(DocumentsPage(services))
    qtbot.waitUntil(lambda: "Sea" in words_in(page))
    words = words_in(page)
    assert "3 documents, 12 pages" in words
    assert "10 of 40 passages" in words
    bar = page.findChild(QProgressBar)
    assert bar.value() / bar.maximum() == 0.25
    assert "1 document, 2 pages" in words


def test_the_keyboard_stays_on_its_button_while_a_folder_is_read(services, server, show, qtbot):
    """The cards are made again with each new number."""
    page = show(DocumentsPage(services))
    for done in (1_000, 2_000, 3_000):
        state = {**SEA, "chunks": 40_000, "embedded": done}
        server.routes["GET", "/tessera/v1/collections"] = msgspec.convert({"collections": [state]}, Collections)
        page.refresh()
        qtbot.waitUntil(lambda done=done: f"{whole(done)} of {whole(40_000)} passages" in words_in(page))
        if done == 1_000:
            next(b for b in page.findChildren(QPushButton) if b.accessibleName() == "Read Sea again").setFocus()
        qtbot.waitUntil(
            lambda: (now := page.focusWidget()).isVisible() and now.accessibleName() == "Read Sea again"
        )
    (now,) = [b for b in page.findChildren(QPushButton) if b.text() == "Remove" and b.isVisible()]
    now.setFocus()
    server.routes["GET", "/tessera/v1/collections"] = Collections(collections=())
    page.refresh()
    qtbot.waitUntil(page.hasFocus)


@pytest.mark.parametrize(("installed", "said"), [(True, "3 pages."), (False, "pip install 'tessera[ocr]'")])
def test_scans_are_counted_with_what_reads_them(services, server, show, qtbot, installed, said):
    scans = {**SEA, "unread_pages": 4, "scanned_pages": 3, "ocr_installed": installed}
    server.routes["GET", "/tessera/v1/collections"] = msgspec.convert({"collections": [scans]}, Collections)
    page = show(DocumentsPage(services))
    qtbot.waitUntil(lambda: "Scans without text, which no search finds: 3 pages." in words_in(page))
    assert said in words_in(page)
    assert ("pip install" in words_in(page)) is not installed
    (ocr,) = [b for b in page.findChildren(QPushButton) if b.text() == "Use OCR"]
    qtbot.waitUntil(ocr.isVisible)


def test_a_card_names_the_other_servers_that_get_the_text(services, server, show, qtbot):
    sent = {**SEA, "sent_to": [{"model": "desk/bge-m3", "server": "http://10.0.0.2:8000"}]}
    server.routes["GET", "/tessera/v1/collections"] = msgspec.convert({"collections": [sent]}, Collections)
    page = show(DocumentsPage(services))
    qtbot.waitUntil(lambda: "sent to http://10.0.0.2:8000, where desk/bge-m3 runs" in words_in(page))


def test_a_model_that_finds_by_meaning_is_offered_where_there_is_none(services, server, show, qtbot):
    read = {**SEA, "state": "ready", "embedded": 0, "problem_details": [because("no_embedding_model")]}
    server.routes["GET", "/tessera/v1/collections"] = msgspec.convert({"collections": [read]}, Collections)
    page = show(DocumentsPage(services))
    qtbot.waitUntil(
        lambda: any(made.text() == "Download" and made.isVisible() for made in page.findChildren(QPushButton))
    )
    assert "Find passages by meaning" in words_in(page)
    assert "Only keywords are searched" not in words_in(page), "the offer says it"
    with qtbot.waitSignal(page.model_wanted) as told:
        press(page, "Download")
    assert starter_repo(told.args[0]) == "second-state/All-MiniLM-L6-v2-Embedding-GGUF"


def test_a_reranker_is_offered_until_one_is_there_or_none_is_wanted(services, server, show, qtbot):
    read = {**SEA, "state": "ready", "embedded": 40}
    server.routes["GET", "/tessera/v1/collections"] = msgspec.convert({"collections": [read]}, Collections)
    page = show(DocumentsPage(services))
    qtbot.waitUntil(lambda: "about 40 MiB" in words_in(page))
    for model in ("jina-reranker-v1-tiny-en", "bge-reranker-v2-m3"):
        assert starter_repo(model)
        get = next(b for b in page.findChildren(QPushButton) if b.accessibleName().endswith(model))
        with qtbot.waitSignal(page.model_wanted) as told:
            get.click()
        assert told.args == [model]
    server.routes["GET", "/tessera/v1/collections"] = msgspec.convert(
        {"collections": [{**read, "reranker": "none"}]}, Collections
    )
    page.refresh()
    qtbot.waitUntil(lambda: "about 40 MiB" not in words_in(page))
    server.routes["GET", "/tessera/v1/collections"] = msgspec.convert({"collections": [read]}, Collections)
    page.refresh()
    qtbot.waitUntil(lambda: "about 40 MiB" in words_in(page))
    server.models.append({"id": "mine", "capabilities": ["rerank"]})
    page.refresh()
    qtbot.waitUntil(lambda: "about 40 MiB" not in words_in(page))


@pytest.mark.parametrize(
    "changed", [{"embedded": 40}, {"embedding_model": "none"}, {"state": "reading"}, {"chunks": 0}]
)
def test_no_model_is_offered_where_one_works_or_none_is_wanted(services, server, show, qtbot, changed):
    read = {**SEA, "state": "ready", "embedded": 0, **changed}
    server.routes["GET", "/tessera/v1/collections"] = msgspec.convert({"collections": [read]}, Collections)
    page = show(DocumentsPage(services))
    qtbot.waitUntil(lambda: "Sea" in words_in(page))
    assert "finds passages by meaning" not in words_in(page)


def test_an_empty_page_says_what_would_be_there_and_has_one_button(services, server, show, qtbot):
    server.routes["GET", "/tessera/v1/collections"] = Collections(collections=())
    page = show(DocumentsPage(services))
    qtbot.waitUntil(page.empty.isVisible)
    assert "No folders yet" in words_in(page)
    assert not page.add.isVisible(), "one button is enough"
    server.routes["GET", "/tessera/v1/collections"] = msgspec.convert({"collections": [SEA]}, Collections)
    page.refresh()
    qtbot.waitUntil(lambda: "Sea" in words_in(page))
    assert page.add.isVisible()
    assert not page.empty.isVisible()


def test_the_list_of_chats_leads_to_the_documents_and_these_to_a_chat_that_asks_them(desktop, server, qtbot):
    server.routes["GET", "/tessera/v1/collections"] = msgspec.convert({"collections": [SEA]}, Collections)
    window = desktop.window
    assert next(place.name for place in window._destinations if "documents" in place.pages) == "chat"
    buttons = window.chat.sidebar.findChildren(QToolButton)
    to_documents = next(made for made in buttons if made.accessibleName() == "Documents")
    to_documents.click()
    page = window.page("documents")
    qtbot.waitUntil(lambda: "Sea" in texts(page))
    assert list(window._sections.buttons) == ["chat", "documents"]
    press(page, "Ask in a chat")
    qtbot.waitUntil(window.chat.isVisible)
    assert window.chat.controller.conversation.sampling["collection"] == "col_1"
    qtbot.waitUntil(lambda: "Answers from Sea" in texts(window.chat.composer))
    assert not window.chat.options.isVisible()
    to_documents.click()
    window._rail.buttons["chat"].click()
    assert window.chat.isVisible(), "the bar leads to the talk, not to where one was before"


def test_a_folder_is_added_and_forgotten(services, collections, show, qtbot):
    page = show(DocumentsPage(services))
    qtbot.waitUntil(lambda: "Sea" in words_in(page))
    collections.routes["POST", "/tessera/v1/collections"] = msgspec.convert(SEA, Collection)
    page.add_folder("/home/ida/notes")
    sent = ("POST", "/tessera/v1/collections", {"name": "notes", "sources": ["/home/ida/notes"]})
    qtbot.waitUntil(lambda: sent in collections.requests)


def test_a_closed_dialog_for_a_folder_is_deleted(services, collections, show, qtbot):
    page = show(DocumentsPage(services))
    page._choose()
    page.findChild(QFileDialog).reject()
    qtbot.waitUntil(lambda: page.findChild(QFileDialog) is None)


def test_a_chat_asks_the_collection_that_is_chosen(services, collections, show, qtbot):
    options = show(ChatOptions(services))
    options.refresh_collections()
    qtbot.waitUntil(lambda: options.documents.count() == 2)
    options.documents.setCurrentIndex(1)
    with qtbot.waitSignal(options.changed) as told:
        options.documents.activated.emit(1)
    sampling = told.args[0]["sampling"]
    assert branch_body("m", [], sampling=sampling)["collection"] == "col_1"


def test_a_chat_keeps_what_it_asks_while_the_list_of_collections_has_not_come(services, collections, show, qtbot):
    come = threading.Event()
    answer = collections.routes["GET", "/tessera/v1/collections"]

    def later(_):
        come.wait(60)
        return answer

    collections.routes["GET", "/tessera/v1/collections"] = later
    options = show(ChatOptions(services))
    options.show_conversation(Conversation(0, model="spark", sampling={"collection": "col_1"}))
    with qtbot.waitSignal(options.changed) as told:
        options.sampling.fields["temperature"].setValue(0.3)
    assert told.args[0]["sampling"]["collection"] == "col_1"
    come.set()
    qtbot.waitUntil(lambda: options.documents.currentText() == "Sea")
    options.documents.setCurrentIndex(0)
    with qtbot.waitSignal(options.changed) as told:
        options.documents.activated.emit(0)
    assert "collection" not in told.args[0]["sampling"]


def test_a_passage_opens_its_page_and_is_marked_and_the_rest_is_told(services, server, show, qtbot):
    message = Message(1, 1, None, "assistant", ANSWER, facts=facts_of({"grounds": GROUNDS}))
    card = show(GroundsCard(services, message.facts.grounds, ANSWER))
    assert "It is made of cheese and wine." in words_in(card)
    assert "High water" not in words_in(card)
    server.routes["GET", "/tessera/v1/collections/col_1/documents/2/pages/3"] = PageText(
        path="/home/ida/sea/tides.pdf", title="tides", number=3, text=PAGE, start=14, end=24
    )
    (button,) = card.buttons
    assert "tides.pdf, page 3" in button.text()
    button.click()
    qtbot.waitUntil(lambda: card.findChildren(PageDialog) != [])
    (dialog,) = card.findChildren(PageDialog)
    assert dialog.passage == "Low water."
    dialog.close()


def test_a_cited_passage_is_listed_and_another_document_is_not_opened_for_it(services, server, show, qtbot):
    """A rebuilt index gives its documents other numbers: an old answer must not open a wrong file."""
    passages = [{**GROUNDS["passages"][0], "id": number} for number in range(1, 21)]
    message = Message(
        1, 1, None, "assistant", "It is so [17].", facts=facts_of({"grounds": {**GROUNDS, "passages": passages}})
    )
    card = show(GroundsCard(services, message.facts.grounds, message.content))
    shown = [button.text().split()[0] for button in card.buttons]
    assert shown == [*(f"[{number}]" for number in range(1, 13)), "[17]"]
    server.routes["GET", "/tessera/v1/collections/col_1/documents/2/pages/3"] = PageText(
        path="/home/ida/sea/other.pdf", title="other", number=3, text=PAGE
    )
    card.buttons[-1].click()
    qtbot.waitUntil(lambda: "tides.pdf is no longer in this collection" in words_in(card))
    assert card.findChildren(PageDialog) == []
