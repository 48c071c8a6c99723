"""How full the context is: keeps the meter up to date, warns before it overflows and offers what to do."""

from PySide6.QtCore import QObject, Signal

from app.gui.app_context import Services
from app.gui.chat.answer_stats import number, used_tokens
from app.gui.chat.composer import Composer
from app.gui.chat.controller import ChatController
from app.gui.widgets.basics import Banner


class ContextWatch(QObject):
    """Warns once at each level of each branch, so that a closed warning does not come back with every letter."""

    new_chat_wanted = Signal()

    def __init__(
        self, services: Services, controller: ChatController, composer: Composer, banner: Banner, parent: QObject
    ) -> None:
        super().__init__(parent)
        self._services = services
        self._controller, self._composer, self._banner = controller, composer, banner
        controller.compactor.changed.connect(self.refresh)
        controller.compactor.noticed.connect(banner.notify)
        self._warned: tuple[int, int | None, str] | None = None

    def n_ctx(self) -> int:
        """Tokens of the chosen model's context; 0 when nobody knows."""
        choice = self._services.models.get(self._controller.conversation.model)
        return choice.n_ctx if choice else 0

    def refresh(self) -> None:
        """Show the counts of now, and warn if need be."""
        path = self._controller.tree.path()
        last = next((message for message in reversed(path) if used_tokens(message)), None)
        used = used_tokens(last) if last is not None else 0
        folds = self._controller.compactor.folds
        if not used or (last is not None and any(fold.created_s > last.created_s for fold in folds)):
            used = self._controller.compactor.estimate(path)
        warn = self._services.settings.now.integer("chat.context_warn_percent") / 100
        meter = self._composer.meter
        meter.show_counts(used, self._composer.draft_tokens(), self.n_ctx(), warn)
        overflow = path and path[-1].facts.error_code == "context_length_exceeded"
        if meter.level != "ok" and not self._controller.busy and not overflow:
            self._warn(used, meter.level, alone=not path)

    def _fold(self) -> None:
        self._controller.compactor.fold_more(self._controller.conversation, self._controller.tree.path())

    def _warn(self, used: int, level: str, *, alone: bool) -> None:
        here = (self._controller.conversation.id, self._controller.tree.leaf_id, level)
        if self._warned == here:
            return
        self._warned = here
        draft, total = number(self._composer.draft_tokens()), number(self.n_ctx())
        if alone:
            self._banner.notify(
                self.tr(
                    "What you are writing has about {draft} tokens; this model takes {total} with its answer. "
                    "Shorten it, attach less, or choose a model with a longer context."
                ).format(draft=draft, total=total),
                "warn",
            )
            return
        words = self.tr("This chat is close to the model's limit: {used} of {total} tokens.")
        if level == "bad":
            words = self.tr("With what you are writing, this chat needs {used} tokens; the model takes {total}.")
        self._banner.notify(
            words.format(used=number(used + self._composer.draft_tokens()), total=total),
            "warn",
            (self.tr("Summarize the older part"), self._fold),
            (self.tr("New chat"), self.new_chat_wanted.emit),
        )
