"""The chat page: conversations on the left, one of them on the right."""

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QFrame, QSplitter, QWidget

from app.client import ServerUnreachable
from app.db import conversations
from app.db.records import Attachment, Conversation
from app.gui.app_context import Services
from app.gui.chat.background_requests import SideWork
from app.gui.chat.chat_transcript import ChatTranscript
from app.gui.chat.composer import Composer
from app.gui.chat.context_watch import ContextWatch
from app.gui.chat.controller import ChatController
from app.gui.chat.drafts import Drafts
from app.gui.chat.import_export import ChatImportExport
from app.gui.chat.message_actions import MessageActions
from app.gui.chat.model_bar import ModelBar
from app.gui.chat.options import ChatOptions, default_sampling
from app.gui.chat.projects import Projects
from app.gui.chat.prompt_library import PromptLibrary
from app.gui.chat.sidebar import Sidebar
from app.gui.chat.tools_side import ToolsSide
from app.gui.chat.typing_focus import WritingFocus
from app.gui.chat.welcome import Welcome
from app.gui.show_in_folder import show_in_folder
from app.gui.widgets.basics import SCROLL_BAR, Banner, label, row, stack

_MIN_BOTH = 42  # letters of body text: the narrowest list beside the narrowest chat


class ChatPage(QSplitter):
    """Chats with the models of the local server."""

    library_wanted = Signal()
    documents_wanted = Signal()
    pull_wanted = Signal(str)
    server_wanted = Signal()

    def __init__(self, services: Services) -> None:
        super().__init__(Qt.Orientation.Horizontal)
        self._services = services
        theme = services.theme
        self.setHandleWidth(1)
        self.setChildrenCollapsible(False)
        self.controller = ChatController(services, self)
        self.sidebar = Sidebar(services)
        self.import_export = ChatImportExport(services, self)
        self.composer = Composer(theme, services.background)
        self.prompts = PromptLibrary(services, self.composer, self._model_title)
        self.banner = Banner(theme)
        self.projects = Projects(services, self.banner, self)
        self._options: ChatOptions | None = None
        self._welcome = Welcome(services)
        self.bar = ModelBar(services)
        self._context = ContextWatch(services, self.controller, self.composer, self.banner, self)
        self.side = SideWork(services, self.controller, self.composer, self)
        self._actions = MessageActions(services, self.controller, self.banner, self)
        self.transcript = ChatTranscript(services, self.controller, self._actions)
        self.transcript.setAccessibleName(self.tr("Conversation"))
        self._drafts = Drafts(self.controller, self.composer, self)
        self._writing = WritingFocus(self, self.composer.editor)
        self._build()
        self._connect()
        self._show_models()
        self.new_chat()

    def _build(self) -> None:
        unit = self._services.theme.tokens.unit
        self._middle = QFrame()
        self._middle.setLayout(stack(self.transcript, self._welcome, spacing=0))
        foot = QWidget()
        foot.setMaximumWidth(self._services.theme.tokens.column + 6 * unit)
        note = label(self.tr("Models make mistakes. Check what matters."), "small")
        note.setAlignment(Qt.AlignmentFlag.AlignHCenter)
        self._beside = row(spacing=0)
        self.tools = ToolsSide(self._services, self.controller, self.banner, self._beside, self)
        items = (self.banner, self.tools.card, self.composer, note)
        foot.setLayout(stack(*items, spacing=unit, margins=(3 * unit, 0, 3 * unit, unit)))
        centred = row(spacing=0, margins=(0, 0, SCROLL_BAR, 0))
        centred.addStretch(0)  # takes what is beyond the widest foot, and nothing before
        centred.addWidget(foot, 100)
        centred.addStretch(0)
        main = QWidget()
        column = stack(spacing=0)
        column.addWidget(self.bar)
        column.addWidget(self._middle, 1)
        column.addLayout(centred)
        self._beside.addWidget(_with(column))
        main.setLayout(self._beside)
        self.addWidget(self.sidebar)
        self.addWidget(main)
        self.setStretchFactor(0, 0)
        self.setStretchFactor(1, 1)
        self.setSizes([264, 900])

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
        self.composer.draft_changed.connect(self._on_draft)
        self.composer.failed.connect(lambda text: self.banner.notify(text, "warn"))
        self._welcome.asked.connect(lambda text: self._on_sent(text, ()) if self.composer.ready else None)
        self._welcome.library_pressed.connect(self.library_wanted)
        self._welcome.pull_pressed.connect(self.pull_wanted)
        self.sidebar.chosen.connect(self.open)
        self.sidebar.new_pressed.connect(self.new_chat)
        self.sidebar.documents_pressed.connect(self.documents_wanted)
        self.sidebar.trashed.connect(self._on_trashed)
        self.sidebar.export_pressed.connect(self.import_export.export)
        self.sidebar.import_pressed.connect(self.import_export.import_chats)
        self.sidebar.export_all_pressed.connect(self.import_export.export_all)
        self.sidebar.project_pressed.connect(self.projects.edit)
        self.sidebar.begun_in.connect(lambda folder: self.projects.begin(folder, self._empty()))
        self.projects.began.connect(self._begin)
        self.projects.changed.connect(self.sidebar.refresh)
        self.projects.changed.connect(lambda: chat.project.follow(chat.conversation))
        self.import_export.imported.connect(self.sidebar.refresh)
        self.import_export.exported.connect(self._on_exported)
        self.import_export.failed.connect(lambda text: self.banner.notify(text, "bad"))
        self.bar.chosen.connect(self._on_model_chosen)
        self.bar.second_chosen.connect(self.transcript.pair_with)
        self.bar.picker.more_wanted.connect(self.library_wanted)
        self.bar.picker.failed.connect(lambda text: self.banner.notify(text, "bad"))
        self.bar.fold_pressed.connect(lambda: self.sidebar.setVisible(not self.sidebar.isVisible()))
        self.bar.tools_pressed.connect(self.tools.toggle)
        self.bar.tune_pressed.connect(lambda: self.options.setVisible(not self.options.isVisible()))
        self._context.new_chat_wanted.connect(self._move_to_new_chat)
        self._actions.server_wanted.connect(self.server_wanted)
        self._actions.edit_wanted.connect(self._edit)
        self._actions.asked_anew.connect(self._ask_anew)
        self._actions.forked.connect(self.open)
        self._services.models.changed.connect(self._show_models)
        self._services.models.reachable_changed.connect(self._on_reachable)

    @property
    def options(self) -> ChatOptions:
        """The panel of system prompt and sampling; made when it is first wanted: the window comes sooner."""
        if self._options is None:
            self._options = ChatOptions(self._services)
            self._options.hide()
            self._beside.addWidget(self._options)
            self._options.changed.connect(lambda fields: self.controller.change(**fields))
            self._options.show_conversation(self.controller.conversation)
        return self._options

    # -- what the user does

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Where there is room for one of them only, the list of chats gives way to the chat."""
        super().resizeEvent(event)
        tokens = self._services.theme.tokens
        narrow = self.width() < _MIN_BOTH * tokens.body
        if narrow != self._narrow:
            self._narrow = narrow
            self.sidebar.setVisible(not narrow)

    _narrow = False

    def new_chat(self) -> None:
        """An empty conversation with the defaults of the settings."""
        self._begin(self._empty())

    def _empty(self) -> Conversation:
        now = self._services.settings.now
        prompt = now.text("chat.system_prompt")
        return Conversation(0, model=self._default_model(), system_prompt=prompt, sampling=default_sampling(now))

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
        self.controller.open(conversation_id, message_id or None)
        self.sidebar.select(conversation_id)

    def use_model(self, model_id: str) -> None:
        """A new chat with this model."""
        self.new_chat()
        self.controller.change(model=model_id)
        self._show_models()

    def save_draft(self) -> None:
        """Keep what is being written."""
        self._drafts.save()

    def _move_to_new_chat(self) -> None:
        text, attachments = self._drafts.take()
        self.new_chat()
        self.composer.set_draft(text, attachments)
        self._context.refresh()

    def stop(self) -> None:
        """End the answer that is being written."""
        self.controller.stop()

    _wanted_message = 0

    def _default_model(self) -> str:
        models, chosen = self._services.models, self._services.settings.now.text("chat.model")
        if chosen and (models.get(chosen) or not models.choices):
            return chosen
        last = models.get(self.controller.conversation.model)
        return last.id if last is not None and last in models.partners else models.default

    def _on_sent(self, text: str, attachments: tuple[Attachment, ...]) -> None:
        self.banner.hide()
        self._take_options()
        self.transcript.scroll_to_end()
        self.controller.send(text, attachments)
        models, model = self._services.models, self.controller.conversation.model
        unseen = ", ".join(item.name for item in attachments if item.data)
        if unseen and not models.sees(model):
            words = self.tr("{model} cannot see pictures. It is told the name of {files}, not what is to be seen.")
            self.banner.notify(words.format(model=models.title(model), files=unseen), "warn")

    def _take_options(self) -> None:
        if self._options is not None:
            self._options.flush()

    def _on_model_chosen(self, model: str) -> None:
        self.controller.change(model=model)
        self._context.refresh()

    def _on_draft(self, text: str) -> None:
        del text
        self._context.refresh()

    # -- what the conversation does

    def _on_opened(self) -> None:
        path = self.controller.tree.path()
        self.transcript.show_branch(self._wanted_message)
        self._welcome.setVisible(not path)
        self.transcript.setVisible(bool(path))
        self._drafts.show()
        self.banner.hide()
        if self._wanted_message:
            self.transcript.scroll_to(self._wanted_message)
            self._wanted_message = 0
        self._context.refresh()

    def _on_added(self, message_id: int) -> None:
        self._welcome.hide()
        self.transcript.show()
        self.transcript.add_message(message_id)

    def _on_busy(self, busy: bool) -> None:
        self.composer.set_busy(busy)
        if busy:
            self._writing.take()
        else:
            self.sidebar.refresh()
            self.transcript.offer_choice()

    def _on_conversation(self, conversation: Conversation) -> None:
        if self._options is not None:
            self._options.show_conversation(conversation)
        self.sidebar.select(conversation.id)
        self._show_models()

    def _on_save_failed(self, text: str, attachments: tuple[Attachment, ...], reason: str) -> None:
        if text or attachments:
            self.composer.set_draft(text, attachments)
        self.banner.notify(
            self.tr("This could not be saved: {reason}. Your text is still here.").format(reason=reason), "bad"
        )

    def _on_failed(self, error: Exception) -> None:
        if isinstance(error, ServerUnreachable):
            self._services.models.refresh()

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
        words = self.tr("Chat deleted.") if len(ids) == 1 else self.tr("{n} chats deleted.").format(n=len(ids))
        self.banner.notify(words, "info", (self.tr("Undo"), undo))

    def _ask_anew(self, text: str) -> None:
        self.new_chat()
        self.composer.set_text(text)

    def _edit(self, message_id: int) -> None:
        pane = self.transcript.pane(message_id)
        if pane is not None:
            pane.start_edit()

    def _on_reachable(self, reachable: bool) -> None:
        self._show_models()
        if reachable:
            self._actions.retry_waiting()

    # -- showing

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
        self._context.refresh()


def _with(layout: object) -> QWidget:
    holder = QWidget()
    holder.setLayout(layout)  # type: ignore[arg-type]  # a layout
    return holder
