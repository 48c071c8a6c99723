"""The German translation: complete, up to date, with all placeholders, and shown by the window."""

import ast
import re
import string
from typing import get_args

import pytest
from PySide6.QtCore import QLocale, QTranslator
from PySide6.QtWidgets import QApplication, QLabel

from app.code.integrations.registry import INTEGRATIONS
from app.code.integrations.types import Endpoint
from app.gui.application import install_language, texts_of
from app.gui.chat.tools_side import ToolConsentCard
from app.tools.consent import start_request
from app.tools.mcp_config import McpServerConfig
from devices.distribution import Distribution, Family, amd_firmware, nvidia_driver
from devices.install_hints import missing_backend, no_device
from devices.probes.fix_hints import gpu_driver
from engine.api.machine import Device, Memory
from engine.message_catalog import AMOUNTS, CHECKS, TEMPLATES, sentence
from engine.message_catalog.reasons import Reason, because
from tests.gui.fake_server import machine
from tests.gui.translatable import ROOT, every_text
from tests.gui.wire import fact, placement
from tests.unit.engine.test_wording import SENTENCE, written

FIELD = re.compile(r"\{\{?\w+\}?\}|\{\w+(?=:)|%\d")


def test_every_text_has_its_german_one_and_none_is_left_over():
    told = texts_of("de")
    assert sorted(every_text() - told.keys()) == [], "add them to assets/languages/de.json"
    assert sorted(told.keys() - every_text()) == [], "nobody says these any more: take them out"


def test_fields_and_shape_stay():
    wrong = [
        (english, german)
        for english, german in texts_of("de").items()
        if sorted(FIELD.findall(english)) != sorted(FIELD.findall(german))
        or not german.strip()
        or german.endswith("…") != english.endswith("…")
        or german.startswith(" ") != english.startswith(" ")
    ]
    assert wrong == []


@pytest.fixture
def german(qapp):
    before = QLocale()
    translator = install_language(qapp, "de")
    yield translator
    for made in qapp.findChildren(QTranslator):
        qapp.removeTranslator(made)
        made.deleteLater()
    QLocale.setDefault(before)


def test_a_question_for_consent_is_german_and_keeps_the_name(qtbot, german, theme):
    card = ToolConsentCard(theme)
    qtbot.addWidget(card)
    card.ask(start_request(McpServerConfig("wind`y", ("uvx", "weather"), env={"TOKEN": "1"})))
    assert card.title.text() == "Den MCP-Server wind`y starten"
    assert card.warning.text() == "Er bekommt diese Variablen: TOKEN"


def test_the_pages_speak_german_and_write_numbers_so(qtbot, german, desktop):
    wanted = {
        "chat": "Wobei kann ich helfen?",
        "library": "Auf diesem Rechner",
        "devices": "Geräte",
        "settings": "Darstellung",
    }
    for name, words in wanted.items():
        desktop.window.show_page(name)
        qtbot.waitUntil(lambda name=name, words=words: words in said(desktop.window.page(name)))
    from app.gui import formatted

    assert formatted.decimal(4.25, 2) == "4,25"
    assert QApplication.translate("QPlatformTheme", "Cancel") == "Abbrechen"


def said(page):
    from PySide6.QtWidgets import QAbstractButton, QTabBar

    found = [made.text() for made in page.findChildren(QLabel) + page.findChildren(QAbstractButton)]
    for bar in page.findChildren(QTabBar):
        found += [bar.tabText(place) for place in range(bar.count())]
    return found


def test_a_dispatch_card_gives_its_reasons_in_german(qtbot, german):
    from app.gui.devices.page import placement_card
    from engine.api.machine import Alternative, PlacementAnswer

    lost = because("slower", decode_tok_s=4.25, prefill_tok_s=1234.0)
    why = (because("measured_on_model", tok_s=42.04, tokens=128), fact("It is known to the server alone."))
    other = Alternative(device="gpu0", backend="vulkan", n_gpu_layers=9, decode_tok_s=9.0, reason=lost)
    placed = placement(why, alternatives=(other,), energy=because("energy_not_yet"))
    card = placement_card("m", "M", PlacementAnswer(placement=placed), lambda *_: None, print)
    qtbot.addWidget(card)
    shown = "\n".join(said(card))
    assert "42,0 Token/s hier mit diesem Modell gemessen, nach 128 Token" in shown
    assert "It is known to the server alone." in shown
    assert "vermutlich langsamer (4,2 Token/s, liest 1234)" in shown
    assert "Energie noch nicht gemessen" in shown


def test_an_error_of_the_server_is_told_in_german(german):
    from app.client import ApiError
    from app.gui.reasons import error_message
    from engine.core.errors import NotEnoughMemory
    from engine.server.openai.errors import openai_body

    option = because("option_unload", model="other", held_gib=1.5)
    body = openai_body(NotEnoughMemory(12 << 30, 5 << 20, "EPYC", (option,)))["error"]
    told = error_message(ApiError(507, body["code"], body["message"], None, {"detail": body["detail"]}))
    assert told.startswith(
        "12,0 GiB werden auf EPYC gebraucht, 5 MiB sind verfügbar. Damit es passt: other entladen,"
    )
    assert told.endswith("das 1,5 GiB belegt (tessera models unload other).")
    assert error_message(ApiError(400, "x", "Only the server knows this.")) == "Only the server knows this."


def test_numbers_of_tokens_have_groups(german):
    from app.gui.reasons import translated

    told = translated(because("context_overflow_at_least", prompt_tokens=12_363, context_tokens=8192))
    assert told.startswith("Der Prompt hat mindestens 12.363 Token"), told
    assert "8.192" in told
    short = translated(because("too_little_text", folder="few", chars=11_000, least=81_920))
    assert short.startswith("few hat 11.000 Zeichen Text; etwa 81.920 sind nötig")


def test_a_damaged_file_is_told_in_german(german):
    from app.gui.reasons import translated
    from engine.core.errors import fact_of
    from quantize.errors import DiskFull, IncompleteFile

    cut = fact_of(IncompleteFile("m.gguf", 1_234_567, 2_000_000))
    assert (
        translated(cut, "")
        == "m.gguf: unvollständig: sie endet nach 1.234.567 Bytes, eine vollständige hat 2.000.000"
    )
    full = fact_of(DiskFull("/models", 3 << 30, 1 << 20))
    assert translated(full, "") == "bei /models werden 3,0 GiB gebraucht, frei sind 1,0 MiB"


def test_what_the_system_says_and_shares_are_german_too(german):
    from app.gui.reasons import translated
    from engine.core.errors import fact_of
    from engine.library.errors import CannotWrite

    denied = fact_of(CannotWrite("/m", "Permission denied"))
    assert translated(denied, "") == "/m lässt sich nicht schreiben: keine Berechtigung"
    assert translated(because("gain_faster", gain=0.125), "") == "12\u00a0% schneller als die Vorgaben"


def test_an_attachment_that_cannot_be_read_says_so_in_german(german, tmp_path):
    from app.attachments import DocumentError, read
    from app.gui.reasons import error_message

    files = {
        "empty.txt": (b"  ", "empty.txt kann nicht angehängt werden: es ist leer."),
        "bad.pdf": (b"%PDF-1.7 none", "bad.pdf kann nicht angehängt werden: es ist beschädigt oder kein PDF."),
        "bad.docx": (b"x", "bad.docx kann nicht angehängt werden: es ist "),
    }
    for name, (content, words) in files.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DocumentError) as refused:
            read(tmp_path / name)
        assert error_message(refused.value).startswith(words)
    gone = DocumentError("gone.txt", "No such file or directory")
    assert error_message(gone).startswith("gone.txt kann nicht angehängt werden: ")
    assert "No such" not in error_message(gone)
    large = DocumentError("a.zip", "x.xml in it has more than 64 MiB")
    assert error_message(large) == "a.zip kann nicht angehängt werden: x.xml darin hat mehr als 64 MiB."


def test_the_title_of_a_known_fault_is_german_and_that_of_an_update_stays(german):
    from app.gui.reasons import translated

    known = because("fault_place", title="ROCm 6 fails on kernels from 6.18.4 on", source="x")
    assert "ROCm 6 versagt mit Kerneln ab 6.18.4" in translated(known, "")
    assert "Newer than this window" in translated(
        because("fault_place", title="Newer than this window", source="x"), ""
    )


def test_every_reason_of_a_reader_is_one_that_the_window_knows():
    """Literals and f-strings in BadDocument(...), DocumentError(...) and problem=... match a template."""
    unknown = []
    for path in (*(ROOT / "engine" / "documents").rglob("*.py"), ROOT / "app" / "attachments.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            name = getattr(node.func, "id", "")
            given = [*node.args[-1:]] if name in {"BadDocument", "DocumentError"} else []
            given += [word.value for word in node.keywords if word.arg == "problem"]
            texts = [text for one in given for text in literals(one) if text]
            unknown += [(path.name, text) for text in texts if not is_known(text)]
    assert unknown == []


def is_known(text):
    from app.gui.reasons import templates

    return any(pattern.fullmatch(text) for _, pattern in templates())


# Where texts arise that a model or a terminal reads in English, and that the window shows too.
PLAIN = (
    "app/code/edits/apply.py",
    "app/code/edits/diffs.py",
    "app/code/edits/foreign.py",
    "app/code/edits/locate.py",
    "app/code/edits/parse.py",
    "app/code/edits/session.py",
    "app/code/errors.py",
    "app/code/open_in_editor.py",
    "app/code/workspace.py",
    "app/db/memories.py",
    "app/imports/read.py",
    "app/imports/types.py",
    "app/setting.py",
    "app/tools/mcp_config.py",
    "devices/doctor.py",
    "devices/gpu_advice.py",
    "engine/placement/pins.py",
    "devices/system_checks.py",
    "devices/probes/gpu_linux.py",
    "devices/probes/npu.py",
    "devices/probes/fix_hints.py",
)
# Queries, lines of diffs, names, and commands in these files.
NO_TEXTS = re.compile(
    r"[\\|]|\b(?:SELECT|INSERT|UPDATE|DELETE) |\bfile mode|^tessera |WSL"
    r"|^(?:Plug and Play|PCI id table|Qualcomm Hexagon NPU)$"
)
# Lines that only `tessera doctor` prints.
OF_THE_TERMINAL = {"build_summary", "_prompt_kernels", "meter_summary"}


@pytest.mark.parametrize("path", PLAIN)
def test_every_plain_text_is_one_that_the_window_knows(path):
    unknown = []
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    tree.body = [part for part in tree.body if getattr(part, "name", "") not in OF_THE_TERMINAL]
    for node, _ in written(tree):
        (text,) = literals(node)
        is_translated = text in every_text() or is_known(text)  # a page translates constants by itself
        if SENTENCE.search(text) and not NO_TEXTS.search(text) and not is_translated:
            unknown.append(text)
    assert unknown == [], "add a template to assets/languages/de.plain.json, with fields for the values"


EVERY_SYSTEM = [
    *(Distribution(family=family) for family in get_args(Family)),
    Distribution(family="debian", is_ubuntu=True),
    Distribution(id="bazzite", name="Bazzite", family="fedora", image_based=True),
    Distribution(id="opensuse-tumbleweed", family="suse"),
]


def test_how_to_get_a_backend_is_known():
    backends = ("cpu", "vulkan", "cuda", "rocm", "sycl", "opencl", "openvino", "metal", "rpc")
    systems = [(system, arch) for system in ("linux", "windows", "macos") for arch in ("x86_64", "aarch64")]
    told = {
        hint
        for backend in backends
        for system, arch in systems
        for hint in (
            missing_backend(backend, system, arch, frozen=False),
            missing_backend(backend, system, arch, frozen=True),
            no_device(backend, system),
        )
        if hint
    }
    told |= {nvidia_driver(system, gpu) for system in EVERY_SYSTEM for gpu in ("10de:1b80", "10de:2684")}
    told |= {gpu_driver("AMD", amd_firmware(system)) for system in EVERY_SYSTEM}
    assert len(told) > 30
    assert [hint for hint in sorted(told) if not is_known(hint)] == [], "add templates to de.plain.json"


@pytest.mark.parametrize("capabilities", [(), ("fim",)])
def test_the_steps_after_connecting_a_program_are_known(capabilities):
    endpoint = Endpoint(url="http://127.0.0.1:1", model="m", context=4096, capabilities=capabilities)
    steps = [row.steps(endpoint) for row in INTEGRATIONS.values() if row.steps is not None]
    assert len(steps) > 5
    assert [text for text in steps if not is_known(text)] == []


def test_a_plain_text_is_german_to_its_innermost_part(german):
    from app.code.agent import sandbox
    from app.code.errors import FileChanged, PathRefused
    from app.gui.chat.tools_panel import decision_text
    from app.gui.reasons import error_message, known_text
    from app.imports.types import ImportFailed
    from app.tools.mcp_config import BadMcpConfig, parse_servers
    from devices.errors import InputFault

    assert error_message(PathRefused("../x", "it leads out of the project folder")) == (
        "'../x' wird abgelehnt: es führt aus dem Projektordner hinaus."
    )
    assert error_message(FileChanged("a.py", "was changed since the edit was shown")).startswith(
        "'a.py' wurde geändert, seit die Änderung gezeigt wurde."
    )
    assert error_message(FileChanged("a b.py", "was changed since the edit was shown")).startswith("'a b.py' wurde")
    assert (
        error_message(ImportFailed("it is not JSON"))
        == "Diese Datei lässt sich nicht importieren: sie ist kein JSON."
    )
    with pytest.raises(BadMcpConfig) as refused:
        parse_servers("{}")
    assert error_message(refused.value) == (
        "Der Text ist keine brauchbare Konfiguration von MCP-Servern: „mcpServers“ fehlt darin."
    )
    assert known_text("it contains only 3 of the file's 40 lines, so it may be a part of the file") == (
        "sie enthält nur 3 der 40 Zeilen der Datei, ist also vielleicht nur ein Teil davon"
    )
    assert known_text("nothing that Tessera says") == "nothing that Tessera says"
    assert decision_text("read_page") == "Benutzung von read_page aus Web"
    # An error of the window's own process that states a fact, like one of the server.
    lacking = because("only_in_sandbox", why=because("no_bubblewrap"))
    assert error_message(InputFault(lacking)) == (
        "Programme eines Modells laufen nur in einer Sandbox, "
        "und bubblewrap ist nicht installiert (Paket bubblewrap)."
    )
    if (missing := sandbox.without_bubblewrap()) is not None:
        assert isinstance(missing, Reason)


def test_what_the_first_screen_says_about_a_gpu_is_german_to_its_innermost_part(german):
    from app.gui.devices.facts import gpu_text

    gpu = Device(
        id="0000:01", kind="dgpu", vendor="NVIDIA", name="RTX 4060", state="present", memory=Memory(),
        reason="no Vulkan driver for NVIDIA is installed",
        fix_hint=nvidia_driver(Distribution(family="fedora")) + " Tessera then installs its kernels itself.",
    )  # fmt: skip
    assert gpu_text(machine(devices=(gpu,))) == (
        "GPU: RTX 4060 wird nicht benutzt: kein Vulkan-Treiber für NVIDIA ist installiert. "
        "Installieren Sie den Treiber von NVIDIA aus der Paketquelle RPM Fusion nonfree (vorher aktivieren): "
        "„sudo dnf install akmod-nvidia xorg-x11-drv-nvidia-cuda“, dann neu starten. "
        "Danach installiert Tessera seine Kernels selbst."
    )


def literals(node):
    """Texts that an expression may have, with "x" for each field of an f-string."""
    if isinstance(node, ast.IfExp):
        return literals(node.body) + literals(node.orelse)
    if isinstance(node, ast.JoinedStr):
        return ["".join(part.value if isinstance(part, ast.Constant) else "x" for part in node.values)]
    return [node.value] if isinstance(node, ast.Constant) and isinstance(node.value, str) else []


@pytest.mark.parametrize("language", ["en", "de"])
def test_code_in_a_text_stands_in_quotation_marks_without_backticks(qapp, request, language):
    from app.gui.reasons import translated

    before = QLocale()
    QLocale.setDefault(QLocale(QLocale.Language.English))
    if language == "de":
        request.getfixturevalue("german")
    missing = because("external_not_installed", engine="vLLM", program="vllm")
    opening, closing = ("„", "“") if language == "de" else ("“", "”")
    assert f"{opening}vllm{closing}" in translated(missing, "")
    assert translated(None, "run `tessera doctor`") == f"run {opening}tessera doctor{closing}"
    assert translated(fact("`a` and `b`")) == f"{opening}a{closing} and {opening}b{closing}"
    ticked = [kind for kind, text in TEMPLATES.items() if text.count("`") % 2 or "``" in text]
    assert ticked == [], "a backtick without its partner would be shown"
    QLocale.setDefault(before)


def test_no_page_shows_a_backtick(qtbot, desktop):
    for name in ("settings", "devices", "server", "library"):
        desktop.window.show_page(name)
        assert [text for text in said(desktop.window.page(name)) if "`" in text] == []


def test_an_answer_of_another_server_is_named_in_german(german):
    from app.answer_facts import AnswerFacts
    from app.db.records import Message
    from app.gui.chat.answer_stats import answer_facts
    from engine.upstreams.types import Rule, Upstream, UpstreamRoute

    rule = Rule(model="m", upstream="desk", queue=2)
    fact = UpstreamRoute(upstream=Upstream(name="desk", url="http://d"), model="big", rule=rule).fact()
    facts = AnswerFacts(ran_on=sentence(fact), ran_on_detail=fact)
    told = answer_facts(Message(id=1, conversation_id=1, parent_id=None, role="assistant", content="", facts=facts))
    assert told == ["Beantwortet von desk (http://d) als big; Ihre Regel: m zu desk, wenn hier mehr als 2 warten"]


def example(form):
    """A value for a placeholder of a template: bytes, a number, or a text."""
    if form in AMOUNTS:
        return 7_000_000
    return 0.25 if form.endswith(("f", "g", "%")) else 12_345 if form == "," else "x" if not form else ("x", "y")


def test_every_fact_has_a_sentence_in_both_languages_with_all_of_its_numbers(german):
    from app.gui.reasons import translated

    told, wrong = texts_of("de"), {}
    for kind in TEMPLATES.keys() - CHECKS.keys():
        places = [(name, form or "") for _, name, form, _ in string.Formatter().parse(TEMPLATES[kind]) if name]
        fact = Reason(kind, {name: example(form) for name, form in places})
        shown, amounts = translated(fact, ""), sum(form in AMOUNTS for _, form in places)
        kept = sorted(re.findall(r"\d", shown)) == sorted(re.findall(r"\d", sentence(fact)))
        if TEMPLATES[kind] not in told or not shown or not (kept or amounts) or shown.count("6,7 MiB") != amounts:
            wrong[kind] = shown
    assert wrong == {}
