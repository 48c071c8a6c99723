"""The chat page: conversation list on the left, the open conversation on the right."""

from dataclasses import replace
from typing import Any, Final

from PySide6.QtCore import QObject, Qt, QTimer, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QApplication, QFrame, QSplitter, QWidget

from app.client import ServerUnreachable
from app.db import conversations
from app.db.records import Attachment, Conversation
from app.db.store import TEMPORARY
from app.gui import formatted
from app.gui.app_context import AppContext
from app.gui.chat.background_requests import SideWork
from app.gui.chat.chat_transactions import fork, title_of
from app.gui.chat.chat_transcript import ChatTranscript
from app.gui.chat.composer import Composer, WritingFocus
from app.gui.chat.controller import ChatController, ContextWatch
from app.gui.chat.import_export import ChatImportExport
from app.gui.chat.message_actions import MessageActions, WrongAnswersNotice
from app.gui.chat.model_bar import ModelBar
from app.gui.chat.options import ChatOptions, default_sampling
from app.gui.chat.project_of_chat import Projects
from app.gui.chat.prompt_library import PromptLibrary
from app.gui.chat.sidebar import Sidebar
from app.gui.chat.tools_side import ToolsSide
from app.gui.chat.voice import Voice
from app.gui.chat.welcome import Welcome
from app.gui.close_guard import show_in_folder
from app.gui.reasons import error_message
from app.gui.widgets.basics import SCROLL_BAR, Banner, button, framed, label, row, stack
from engine.api.collections import Collection

_MIN_BOTH = 42  # in letters of body text: minimum width to show the list and the chat
_MIN_CHAT = 18  # the same for the chat next to an open panel


class ChatPage(QSplitter):
    """Chats with the models of the local server."""

    library_wanted = Signal()
    documents_wanted = Signal()
    pull_wanted = Signal(str)
    server_wanted = Signal()

    def __init__(self, services: AppContext) -> None:
        super().__init__(Qt.Orientation.Horizontal)
        self._services = services
        theme = services.theme
        self.setHandleWidth(1)
        self.setChildrenCollapsible(False)
        self.controller = ChatController(services, self)
        self.sidebar = Sidebar(services)
        self.import_export = ChatImportExport(services, self)
        self.composer = Composer(theme, services.background, queues=True)
        self._tools_button = button("", None, "quiet", tip=self.tr("Tools that the model may use in this chat"))
        self.composer.add_tool(self._tools_button)
        self._sources: dict[str, str] = {}  # titles of document collections by id
        self.prompts = PromptLibrary(services, self.composer, self._model_title)
        self._middle = QFrame()
        self.banner = Banner(theme, self._middle, at_top=True)
        self.projects = Projects(services, self.banner, self)
        self._options: ChatOptions | None = None
        self._welcome = Welcome(services)
        self.bar = ModelBar(services)
        self._context = ContextWatch(services, self.controller, self.composer, self.banner, self)
        self.side = SideWork(services, self.controller, self.composer, self)
        self.voice = Voice(services, self.composer, self.banner, self)
        self.message_actions = MessageActions(services, self.controller, self.banner, self.voice.reading, self)
        # Otherwise messages that wait would be sent before the edited one.
        self.message_actions.interrupting.connect(self.composer.take_back)
        again = self.message_actions.answer_again
        self.wrong_answers = WrongAnswersNotice(services, self.controller, self.banner, again, self)
        self.transcript = ChatTranscript(services, self.controller, self.message_actions, self.wrong_answers.note)
        self.wrong_answers.changed.connect(self.transcript.show_notes)
        self.transcript.setAccessibleName(self.tr("Conversation"))
        self._drafts = Drafts(self.controller, self.composer, self)
        self._writing = WritingFocus(self, self.composer.editor)
        self._build()
        self._connect()
        self._show_models()
        self.new_chat()

    def _build(self) -> None:
        unit = self._services.theme.tokens.unit
        self._middle.setLayout(stack(self.transcript, self._welcome, spacing=0))
        foot = QWidget(maximumWidth=self._services.theme.tokens.column + 6 * unit)
        note = label(self.tr("Models make mistakes. Check what matters."), "small", wrap=True)
        note.setAlignment(Qt.AlignmentFlag.AlignHCenter)
        self._columns = row(spacing=0)
        self.tools = ToolsSide(self._services, self.controller, self.banner, self._columns, self)
        items = (self.tools.card, self.composer, note)
        foot.setLayout(stack(*items, spacing=unit, margins=(3 * unit, 0, 3 * unit, unit)))
        centred = row(spacing=0, margins=(0, 0, SCROLL_BAR, 0))
        centred.addStretch(0)  # takes only the space beyond the foot's maximum width
        centred.addWidget(foot, 100)
        centred.addStretch(0)
        main = QWidget()
        column = stack(spacing=0)
        column.addWidget(self._middle, 1)
        column.addLayout(centred)
        self._chat_column = _with(column)
        self._columns.addWidget(self._chat_column, 1)
        self._keep = button(self.tr("Save this chat"), self._save_temporary)
        words = label(self.tr("Temporary chat. It is not saved, and is gone when you leave it."), wrap=True)
        line = row(words, self._keep, margins=(16, 4, 8, 4), grow=0)
        self._temporary = framed("banner-info", line)
        self._temporary.hide()
        self.bar.temporary_pressed.connect(self._on_temporary_pressed)
        self.sidebar.export_many_pressed.connect(self.import_export.export_many)
        # Above the panels, so that an opened panel does not move its button.
        whole = stack(self.bar, self._temporary, spacing=0)
        whole.addLayout(self._columns, 1)
        main.setLayout(whole)
        self.addWidget(self.sidebar)
        self.addWidget(main)
        self.setStretchFactor(0, 0)
        self.setStretchFactor(1, 1)
        self.setSizes([264, 900])
        self._services.theme.changed.connect(self._fit_list)

    def _connect(self) -> None:
        chat = self.controller
        chat.opened.connect(self._on_opened)
        chat.message_added.connect(self._on_added)
        chat.message_changed.connect(lambda _: self._context.refresh())
        chat.busy_changed.connect(self._on_busy)
        chat.conversation_changed.connect(self._on_conversation)
        chat.save_failed.connect(self._on_save_failed)
        self.side.titles.titled.connect(self.sidebar.refresh)
        chat.failed.connect(self._on_failed)
        self.composer.sent.connect(self._on_sent)
        self.composer.stopped.connect(chat.stop)
        self.composer.draft_changed.connect(self._context.refresh_draft)
        self.composer.failed.connect(lambda text: self.banner.notify(text, "warn"))
        self._welcome.asked.connect(self.composer.submit)
        self._welcome.library_pressed.connect(self.library_wanted)
        self._welcome.pull_pressed.connect(self.pull_wanted)
        self.sidebar.counted.connect(lambda count: self._welcome.set_new(not count))
        self.sidebar.chosen.connect(self.open)
        self.sidebar.new_pressed.connect(self.new_chat)
        self.sidebar.documents_pressed.connect(self.documents_wanted)
        self.sidebar.trashed.connect(self._on_trashed)
        self.sidebar.archived.connect(self._on_archived)
        self.sidebar.export_pressed.connect(self.import_export.export)
        self.sidebar.import_pressed.connect(self.import_export.import_chats)
        self.sidebar.export_all_pressed.connect(self.import_export.export_all)
        self.sidebar.project_pressed.connect(self.projects.edit)
        self.sidebar.begun_in.connect(lambda folder: self.projects.begin(folder, self._empty()))
        self.projects.began.connect(self._begin)
        self.projects.changed.connect(self.sidebar.refresh)
        self.projects.changed.connect(lambda: chat.project.follow(chat.conversation))
        self.import_export.importing.connect(self._on_importing)
        self.import_export.imported.connect(self._on_imported)
        self.import_export.exported.connect(self._on_exported)
        self.import_export.failed.connect(lambda text: self.banner.notify(text, "bad"))
        self.bar.chosen.connect(self._on_model_chosen)
        self.bar.second_chosen.connect(self.transcript.pair_with)
        self.bar.picker.more_wanted.connect(self.library_wanted)
        self.bar.picker.failed.connect(lambda text: self.banner.notify(text, "bad"))
        self.bar.fold_pressed.connect(lambda: self.sidebar.setVisible(not self.sidebar.isVisible()))
        self.bar.tools_pressed.connect(self._toggle_tools)
        self._tools_button.clicked.connect(self._toggle_tools)
        self.bar.tune_pressed.connect(self._toggle_options)
        self.composer.source_removed.connect(self._on_source_removed)
        self._context.new_chat_wanted.connect(self._move_to_new_chat)
        self.message_actions.server_wanted.connect(self.server_wanted)
        self.message_actions.edit_wanted.connect(self._edit)
        self.message_actions.asked_anew.connect(self._start_with)
        self.message_actions.forked.connect(self.open)
        self._services.models.changed.connect(self._show_models)
        self._services.models.reachable_changed.connect(self._on_reachable)

    @property
    def options(self) -> ChatOptions:
        """The panel for system prompt and sampling. Created on first use, so that the window appears sooner."""
        if self._options is None:
            self._options = ChatOptions(self._services)
            self._options.hide()
            self._columns.addWidget(self._options)
            self._options.changed.connect(lambda fields: self.controller.change(**fields))
            self._options.show_conversation(self.controller.conversation)
        return self._options

    # -- user actions

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Hide the chat list if the page is too narrow for the list and the chat."""
        super().resizeEvent(event)
        self._fit_list()

    def _fit_list(self) -> None:
        """Hide the chat list while it would leave too little width for the chat and an open panel.

        In a small window with large text, the open panel takes the place of the chat.
        """
        body = self._services.theme.tokens.body
        opened = [p for p in (self._options, self.tools.open_panel) if p is not None and not p.isHidden()]
        used = max((panel.minimumWidth() for panel in opened), default=0)
        alone = bool(opened) and self.width() - used < _MIN_CHAT * body
        for panel in opened:
            panel.set_alone(alone=alone)
        self._chat_column.setVisible(not alone)
        narrow = self.width() - used < _MIN_BOTH * body
        if narrow == self._narrow:
            return
        self._narrow = narrow
        if narrow:
            self._listed = not self.sidebar.isHidden()
        self.sidebar.setVisible(self._listed and not narrow)

    _narrow = False
    _listed = True  # whether the list was shown before there was too little width

    def new_chat(self) -> None:
        """Start an empty conversation with the default settings."""
        self._begin(self._empty())

    def new_temporary_chat(self) -> None:
        """Start an empty conversation that exists in memory only. The draft of a new chat moves there."""
        now, visit = self._empty(), self.controller.visit
        store = self._services.store.of(TEMPORARY)

        def begin(conversation: Conversation) -> None:
            if visit != self.controller.visit:  # another chat was opened meanwhile
                return
            no_draft: tuple[str, list[Attachment]] = ("", [])
            draft = no_draft if self.controller.conversation.id else self._drafts.take()
            self._begin(conversation)
            self.composer.set_draft(*draft)

        def create(connection: Any) -> Conversation:
            fields: dict[str, Any] = {"system_prompt": now.system_prompt, "sampling": now.sampling}
            return conversations.create(connection, model=now.model, tools=now.tools, **fields)

        self._services.background.watch(store.submit(create), begin, None, self)

    def _on_temporary_pressed(self) -> None:
        if self.controller.conversation.id >= TEMPORARY:
            self.new_chat()
        else:
            self.new_temporary_chat()

    def _save_temporary(self) -> None:
        """Save the visible branch of the temporary chat as a separate chat, and continue there."""
        path, visit = self.controller.tree.path(), self.controller.visit
        title = title_of(path[0].content, path[0].attachments)
        future = self._services.store.submit(fork, replace(self.controller.conversation, title=title), path)
        self._services.background.watch(
            future,
            lambda chat: self.open(chat.id) if visit == self.controller.visit else self.sidebar.refresh(),
            lambda error: self.banner.notify(error_message(error), "bad"),
            self,
        )

    def _empty(self) -> Conversation:
        now = self._services.settings.now
        prompt = now.text("chat.system_prompt")
        tools = tuple(name.strip() for name in now.text("chat.tools").split(",") if name.strip())
        sampling = default_sampling(now)
        return Conversation(0, model=self._default_model(), system_prompt=prompt, sampling=sampling, tools=tools)

    def _begin(self, conversation: Conversation) -> None:
        self._take_options()
        self.save_draft()
        self.controller.new(conversation)
        self.sidebar.select(0)
        self.composer.editor.setFocus()

    def open(self, conversation_id: int, message_id: int = 0) -> None:
        """Show a conversation, at a message if given."""
        if conversation_id == self.controller.conversation.id and not message_id:
            return
        self._take_options()
        self.save_draft()
        self._wanted_message = message_id
        self._last_model = self.controller.conversation.model or self._last_model
        self.controller.open(conversation_id, message_id or None)
        self.sidebar.select(conversation_id)

    def use_model(self, model_id: str) -> None:
        self.new_chat()
        self.controller.change(model=model_id)
        self._show_models()

    @property
    def new_chat_draft(self) -> str:
        """The text that waits in the chat that is not there yet."""
        return self._drafts.new_text

    def save_draft(self) -> None:
        """Save the draft. Messages that wait become part of it: they belong to this chat."""
        self.voice.dictation.cancel()
        self.composer.take_back()
        self._drafts.save()

    def _move_to_new_chat(self) -> None:
        text, attachments = self._drafts.take()
        self.new_chat()
        self.composer.set_draft(text, attachments)
        self._context.refresh()

    def stop(self) -> None:
        self.controller.stop()

    def stop_answer(self) -> None:
        """Stop the dictation, else the reading, else the response."""
        if not self.voice.stop():
            self.controller.stop()

    def _toggle_tools(self) -> None:
        if self._options is not None:
            self._options.hide()
        self.tools.toggle()
        self._fit_list()

    def _toggle_options(self) -> None:
        self.tools.hide()
        has_focus = self.options.isAncestorOf(QApplication.focusWidget() or self)
        self.options.setVisible(not self.options.isVisible())
        self._fit_list()
        if has_focus:  # otherwise the focus would move to the next control, a tool of the first message
            self.composer.editor.setFocus()

    def _on_source_removed(self) -> None:
        sampling = self.controller.conversation.sampling
        self.controller.change(sampling={name: sampling[name] for name in sampling if name != "collection"})

    def _show_source(self, conversation: Conversation) -> None:
        """Show at the composer which documents the chat answers from, and how many tools are on."""
        count = len(conversation.tools)
        self._tools_button.setText(self.tr("Tools ({n})").format(n=count) if count else self.tr("Tools"))
        source = str(conversation.sampling.get("collection") or "")
        self.composer.show_source(self._sources.get(source, source))
        if source in self._sources or not source:
            return

        def show(collections: tuple[Collection, ...]) -> None:
            self._sources = {each.id: each.name for each in collections}
            now = str(self.controller.conversation.sampling.get("collection") or "")
            self.composer.show_source(self._sources.get(now, now))

        ask = self._services.api.collections
        self._services.background.run(ask, show, lambda _: None, self, newest="collections")

    _wanted_message = 0
    _last_model = ""  # of the chat that was shown before

    def _default_model(self) -> str:
        models, chosen = self._services.models, self._services.settings.now.text("chat.model")
        if chosen and (models.get(chosen) or not models.choices):
            return chosen
        last = models.get(self.controller.conversation.model or self._last_model)
        return last.id if last is not None and last in models.partners else models.default

    def _on_sent(self, text: str, attachments: tuple[Attachment, ...]) -> None:
        self.banner.hide()
        self._take_options()
        self.transcript.scroll_to_end()
        self.controller.send(text, attachments)
        models, model = self._services.models, self.controller.conversation.model
        unseen = ", ".join(item.name for item in attachments if item.data)
        if unseen and not models.sees(model):
            words = self.tr("{model} cannot see images. It receives only the name of {files}.")
            self.banner.notify(words.format(model=models.title(model), files=unseen), "warn")

    def _take_options(self) -> None:
        if self._options is not None:
            self._options.flush()

    def _on_model_chosen(self, model: str) -> None:
        self.controller.change(model=model)
        self._context.refresh()

    # -- conversation events

    def _on_opened(self) -> None:
        path = self.controller.tree.path()
        if not path:  # first: showing the welcome view resizes it, and the messages it shows do not exist any more
            self.transcript.show_branch()
        self._welcome.setVisible(not path)
        self.transcript.setVisible(bool(path))  # first, so that its items are created once, with the right width
        self.transcript.show_branch(self._wanted_message)
        self._drafts.show()
        self.banner.hide()
        if self._imported_words:
            self.banner.notify(self._imported_words, "ok")
            self._imported_words = ""
        if self._wanted_message:
            self.transcript.scroll_to(self._wanted_message)
            self._wanted_message = 0
        if path:
            self.wrong_answers.look()
        self._context.refresh()

    def _on_added(self, message_id: int) -> None:
        self._welcome.hide()
        self.transcript.show()
        self.transcript.add_message(message_id)

    def _on_busy(self, busy: bool) -> None:
        self.composer.set_busy(busy)
        self._keep.setEnabled(not busy and bool(self.controller.tree.path()))
        if busy:
            self._writing.take()
            return
        self.sidebar.refresh()
        self.transcript.offer_choice()
        path = self.controller.tree.path()
        if path and path[-1].status == "error":  # the user decides what comes next
            self.composer.take_back()
        self.composer.send_next()

    def _on_conversation(self, conversation: Conversation) -> None:
        if self._options is not None:
            self._options.show_conversation(conversation)
        temporary = conversation.id >= TEMPORARY
        self.sidebar.select(0 if temporary else conversation.id)
        self.bar.temporary.setChecked(temporary)
        self._temporary.setVisible(temporary)
        self._keep.setEnabled(not self.controller.busy and bool(self.controller.tree.path()))
        self._show_source(conversation)
        self._show_models()

    def _on_save_failed(self, text: str, attachments: tuple[Attachment, ...], reason: str) -> None:
        if text or attachments:
            self.composer.take_back()
            self.composer.give_back((text, attachments))
        self.banner.notify(
            self.tr("This could not be saved: {reason}. Your text is still here.").format(
                reason=reason.rstrip(".")
            ),
            "bad",
        )

    def _on_failed(self, error: Exception) -> None:
        if isinstance(error, ServerUnreachable):
            self._services.models.refresh()

    def _on_importing(self, done: int, total: int) -> None:
        words = self.tr("Reading the file…")
        if not total:
            self._visit_of_import = self.controller.visit
        else:
            words = self.tr("Importing chats: {done} of {total}")
        self.banner.notify(words.format(done=formatted.whole(done), total=formatted.whole(total)))

    def _on_imported(self, ids: list[int]) -> None:
        """Open a single imported chat. Report the number of several, and offer to show them in the list."""
        self.sidebar.refresh()
        if not ids:
            self.banner.notify(self.tr("There is no chat in this file."), "warn")
            return
        words = self.tr("1 chat imported, with its date.")
        is_left = self.controller.busy or self.controller.visit != self._visit_of_import
        if len(ids) > 1 and is_left:
            words = self.tr("{n} chats imported and sorted into the list by date.")
        elif len(ids) > 1:
            words = self.tr("{n} chats imported and sorted into the list by date; this is the first one.")
        words = words.format(n=formatted.whole(len(ids)))
        if is_left:  # opening one would end a running answer or replace the chat that the user is reading
            self.banner.notify(words, "ok")
        else:
            self.open(ids[0])
            self._imported_words = words

    _imported_words, _visit_of_import = "", 0

    def _on_exported(self, path: str) -> None:
        self.banner.notify(
            self.tr("Exported to {path}").format(path=path),
            "ok",
            (self.tr("Show in folder"), lambda: show_in_folder(path)),
        )

    def _on_trashed(self, ids: list[int]) -> None:
        def undo() -> None:
            future = self._services.store.submit(conversations.untrash, ids)
            self._services.background.watch(future, lambda _: self.sidebar.refresh(), None, self)

        if self.controller.conversation.id in ids:
            self.new_chat()
        words = (
            self.tr("Chat deleted.")
            if len(ids) == 1
            else self.tr("{n} chats deleted.").format(n=formatted.whole(len(ids)))
        )
        self.banner.notify(words, "info", (self.tr("Undo"), undo))

    def _on_archived(self, ids: list[int]) -> None:
        undo = (self.tr("Undo"), lambda: self.sidebar.unarchive(ids))
        self.banner.notify(self.tr("Archived. Search still finds it."), "info", undo)

    def _start_with(self, text: str, attachments: tuple[Attachment, ...]) -> None:
        self.new_chat()
        self.composer.give_back((text, attachments))

    def _edit(self, message_id: int) -> None:
        pane = self.transcript.pane(message_id)
        if pane is not None:
            pane.start_edit()

    def _on_reachable(self, reachable: bool) -> None:
        self._show_models()
        if reachable:
            self.message_actions.retry_waiting()

    # -- updating the widgets

    def _model_title(self) -> str:
        return self._services.models.title(self.controller.conversation.model)

    def _show_models(self) -> None:
        choices = self._services.models.choices
        current = self.controller.conversation.model
        if not current and choices:
            current = self._default_model()
            if current:
                self.controller.change(model=current)
                return
        self.bar.show_models(current)
        self.transcript.show_titles()
        self.composer.set_ready(bool(choices) and self._services.models.get(current) is not None)
        self.composer.set_sees(self._services.models.sees(current))
        self.composer.send_next()
        self._context.refresh_draft()  # the limit depends on the model; the chat's tokens do not


def _with(layout: object) -> QWidget:
    holder = QWidget()
    holder.setLayout(layout)  # type: ignore[arg-type]  # a layout
    return holder


_SAVED_AFTER_MS: Final = 600


class Drafts(QObject):
    """Unsent text and attachments of each chat.

    Text of a saved chat is stored with it; the rest lasts until the window closes.
    """

    def __init__(self, controller: ChatController, composer: Composer, parent: QObject) -> None:
        super().__init__(parent)
        self._controller, self._composer = controller, composer
        self._shown_id = -1
        self._new_text = ""
        self._attached: dict[int, list[Attachment]] = {}
        self._timer = QTimer(self, singleShot=True, interval=_SAVED_AFTER_MS)
        self._timer.timeout.connect(self.save)
        composer.draft_changed.connect(self._timer.start)
        composer.read_for_other.connect(lambda chat, item: self._attached.setdefault(chat, []).append(item))
        controller.conversation_changed.connect(self._on_conversation)

    @property
    def new_text(self) -> str:
        """The draft of the new chat, which may be shown now."""
        return self._new_text if self._shown_id else self._composer.text

    def save(self) -> None:
        self._timer.stop()
        chat = self._controller.conversation
        if chat.id and chat.id == self._shown_id and self._composer.text != chat.draft:
            self._controller.change(draft=self._composer.text)

    def show(self) -> None:
        """Put the draft of the opened chat into the composer. All branches share one draft."""
        chat, composer = self._controller.conversation, self._composer
        if chat.id == self._shown_id:
            return
        if composer.attachments:
            self._attached[self._shown_id] = list(composer.attachments)
        if not self._shown_id:
            self._new_text = composer.text
        self._shown_id = chat.id
        composer.show_chat(chat.id)
        new_text, self._new_text = self._new_text, "" if not chat.id else self._new_text
        composer.set_draft(chat.draft if chat.id else new_text, self._attached.pop(chat.id, []))
        self._timer.stop()

    def take(self) -> tuple[str, list[Attachment]]:
        """Remove and return the draft of this chat."""
        draft = self._composer.text, list(self._composer.attachments)
        self._composer.clear()
        self.save()
        return draft

    def _on_conversation(self) -> None:
        self._shown_id = self._controller.conversation.id
        self._composer.show_chat(self._shown_id)
