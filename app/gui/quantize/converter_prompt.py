"""Handles model families that only llama.cpp's converter supports: offers to install it and converts the model."""

from collections.abc import Callable
from functools import partial

from PySide6.QtCore import QObject, Signal

from app.gui import formatted
from app.gui.app_context import AppContext
from app.gui.jobs import Jobs
from app.gui.reasons import failure_of
from app.gui.widgets.basics import Banner
from engine.api.converting import ConvertedFile, ConverterFetched, ConverterState, ConvertRequest
from engine.api.jobs import Job, result_of
from engine.api.library import Model

NEEDED = "converter_needed"


class ForeignFamily(QObject):
    """Reports and asks in the page's banner. Downloads nothing before the user agrees."""

    converted = Signal(str)

    def __init__(self, services: AppContext, jobs: Jobs, banner: Banner, parent: QObject) -> None:
        super().__init__(parent)
        self._services, self._jobs, self._banner = services, jobs, banner
        self._awaited: dict[str, Callable[[Job], None]] = {}
        jobs.finished.connect(self._on_finished)

    def offer(self, model: Model) -> None:
        """Show what installing llama.cpp's converter requires, with a start button."""
        ask = self._services.api.converter
        self._services.ask(self._banner, ask, lambda state: self._show(model, state), newest="converter")

    def withdraw(self) -> None:
        """Withdraw an offer that is not shown yet, because another model was chosen."""
        self._services.background.drop(self._banner, "converter")

    def _show(self, model: Model, state: ConverterState) -> None:
        if state.installed:
            text = self.tr(
                "Tessera's converter does not support the architecture of {name}. llama.cpp's "
                "converter does and is installed."
            )
            words, convert = text.format(name=model.name), partial(self._convert, model)
            self._banner.notify(words, "warn", (self.tr("Convert it"), convert))
            return
        text = self.tr(
            "Tessera's converter does not support the architecture of {name}, but llama.cpp's does. To get it, "
            "Tessera downloads about {download} and needs {disk} of disk space; on a fast connection this takes "
            "about {time}."
        ).format(
            name=model.name,
            download=formatted.size(state.download_bytes),
            disk=formatted.size(state.disk_bytes),
            time=formatted.duration(state.seconds),
        )
        self._banner.notify(text, "warn", (self.tr("Download and convert"), partial(self._fetch, model)))

    def _fetch(self, model: Model) -> None:
        self._begin(self._services.api.fetch_converter, partial(self._on_fetched, model))

    def _on_fetched(self, model: Model, job: Job) -> None:
        if result_of(job, ConverterFetched) is not None:
            self._convert(model)

    def _convert(self, model: Model) -> None:
        request = ConvertRequest(source=model.path)
        self._begin(lambda: self._services.api.convert(request), self._on_converted)

    def _on_converted(self, job: Job) -> None:
        converted_file = result_of(job, ConvertedFile)
        if converted_file is not None:
            self.converted.emit(converted_file.model)

    def _begin(self, start: Callable[[], Job], then: Callable[[Job], None]) -> None:
        def started(job: Job) -> None:
            self._awaited[job.id] = then
            self._banner.hide()
            self._jobs.started(job, self._on_finished)

        self._services.ask(self._banner, start, started)

    def _on_finished(self, job: Job) -> None:
        then = self._awaited.pop(job.id, None)
        if then is None:
            return
        if job.error is not None:
            self._banner.notify(failure_of(job), "bad")
        elif job.state == "done":
            then(job)
