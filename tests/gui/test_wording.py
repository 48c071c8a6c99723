"""Texts that once misled a new user, and invisible marks."""

import itertools
import re

import pytest
from PySide6.QtGui import QColor, QIcon

from app.gui import formatted
from app.gui.chat.context_meter import ContextMeter
from app.gui.job_card import note_of, title_of
from app.gui.library.model_card import chips_of
from app.gui.theme import stylesheet, tokens
from engine.api.jobs import Job, JobKind, Progress
from engine.api.library import Model, Origin
from engine.library.errors import HubUnreachable
from tests.gui.test_seen_by_everyone import luminance
from tests.gui.translatable import ROOT


def test_one_thread_is_no_plural():
    assert formatted.threads(1) == "1 thread"
    assert formatted.threads(2) == "2 threads"


def test_one_file_is_no_plural():
    assert (formatted.files(1), formatted.files(2), formatted.versions(1)) == ("1 file", "2 files", "1 version")


def test_a_failed_download_is_not_called_downloading():
    job = Job(id="pull-1", kind=JobKind.PULL, state="failed", title="Spark")
    assert title_of(job) == "Downloading Spark: not done"


def test_a_paused_step_that_starts_again_says_so_beforehand():
    def note_at(phase):
        progress = Progress(phase=phase, done=60, total=100)
        return note_of(Job(id="fit-1", kind=JobKind.QUANTIZE, state="paused", title="Spark", progress=progress))

    assert note_at("measure") == "Paused · Step 3 of 6: measuring quality loss · 60 %"
    again = " · measurements are stored; this step starts again"
    assert note_at("write") == "Paused · Step 5 of 6: writing the file · 60 %" + again


def test_no_network_is_told_in_words():
    told = str(HubUnreachable("https://hub.example", "[Errno -2] Name or service not known"))
    assert told == "hub.example cannot be reached (its address is not known here). Check the network connection."


def test_a_name_does_not_contradict_the_file_that_is_fetched():
    assert formatted.model_name("ggml-org/Qwen2.5-Coder-7B-Q8_0-GGUF") == "Qwen2.5-Coder-7B"
    assert formatted.model_name("org/model-MXFP4-GGUF") == "model"
    assert formatted.model_name("org/Qwen3-8B") == "Qwen3-8B"


def test_a_link_without_a_known_owner_names_none():
    linked = Model(id="x", name="x", origin=Origin(kind="linked"))
    assert ("Linked", "chip") in chips_of(linked)
    assert not any("?" in text for text, _ in chips_of(linked))


def ratio(first, second):
    low, high = sorted((luminance(QColor(first)), luminance(QColor(second))))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize(("dark", "contrast"), list(itertools.product((False, True), repeat=2)))
def test_the_unfilled_part_of_a_bar_and_a_disabled_icon_can_be_seen(dark, contrast):
    scheme = tokens(dark=dark, contrast=contrast)
    sheet = stylesheet(scheme.colours, "icons", unit=8, radius=8, small=12, body=14, title=22, dark=dark)
    for part in ("QProgressBar", "QSlider::groove:horizontal"):
        (rule,) = re.findall(rf"^{part} \{{([^}}]*)\}}", sheet, re.MULTILINE)
        track = re.search(r"background: (#\w+)", rule)[1]
        for ground in ("background", "raised", "surface"):
            assert ratio(track, scheme.colour(ground)) >= 1.5, (part, ground)
        for fill in ("accent", "warn", "bad"):
            assert ratio(track, scheme.colour(fill)) >= 3, (part, fill)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_what_is_disabled_or_empty_is_drawn_so_that_it_can_be_seen(qtbot, theme, scheme):
    """The used context of a new chat is a dot: without the rest of its bar it looks like dirt on the screen."""
    theme.set(scheme, 100)
    meter = ContextMeter(theme)
    qtbot.addWidget(meter)
    meter.show_counts(100, 0, 10_000, 0.8)
    meter.show()
    drawn = meter.grab().toImage()
    assert drawn.pixelColor(drawn.width() * 3 // 4, drawn.height() - 2) == theme.tokens.colour("track")
    pixels = theme.icon("send").pixmap(20, 20, QIcon.Mode.Disabled).toImage()
    seen = max(
        (pixels.pixelColor(x, y) for x in range(pixels.width()) for y in range(pixels.height())),
        key=lambda colour: colour.alpha(),
    )
    assert ratio(seen, theme.tokens.colour("hover")) >= 2.5


@pytest.mark.parametrize(("dark", "contrast"), list(itertools.product((False, True), repeat=2)))
def test_the_frame_of_a_check_box_can_be_seen(dark, contrast):
    """WCAG 2.2, 1.4.11: parts of a control have 3:1 against adjacent colours."""
    scheme = tokens(dark=dark, contrast=contrast)
    sheet = stylesheet(scheme.colours, "icons", unit=8, radius=8, small=12, body=14, title=22, dark=dark)
    rule = re.search(r"QCheckBox::indicator \{([^}]*)\}", sheet)[1]
    frame = re.search(r"border: 1px solid (#\w+)", rule)[1]
    for ground in ("background", "raised", "surface"):
        low, high = sorted((luminance(QColor(frame)), luminance(scheme.colour(ground))))
        assert (high + 0.05) / (low + 0.05) >= 3, (frame, ground)


def test_numbers_are_written_in_the_language_of_the_window():
    """`formatted` knows the marks of the language; the format of a string does not."""
    own = re.compile(r"\{[^{}]*:(?:,|[,]?\.\d+[fge%])\}")
    allowed = {"server_link.py"}  # a text of the log
    files = [path for path in (ROOT / "app" / "gui").rglob("*.py") if path.name not in allowed]
    assert [f"{path.name}: {found}" for path in files for found in own.findall(path.read_text("utf-8"))] == []
