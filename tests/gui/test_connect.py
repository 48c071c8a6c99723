"""The Connect page writes real files in a separate home folder."""

import json

import msgspec
import pytest
from msgspec.structs import replace

from app.gui.connect.page import ConnectPage
from engine.api.collections import Collections


@pytest.fixture
def page(services, server, tmp_path, qtbot):
    services.models.refresh()
    qtbot.waitUntil(lambda: services.models.choices != ())
    page = ConnectPage(services, server.api, tmp_path / "user")
    qtbot.addWidget(page)
    page.resize(900, 800)
    page.show()
    qtbot.waitUntil(lambda: page._states["codex"].text() != "")
    return page


def test_a_change_is_shown_written_with_a_backup_and_taken_back(page, qtbot, server, tmp_path):
    config = tmp_path / "user" / ".codex" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text('model = "mine"\n')
    connect, remove = page.buttons["codex"]
    assert not remove.isVisible()
    connect.click()
    qtbot.waitUntil(page.review.isVisible)
    assert f'+base_url = "{server.url}/v1"' in page.shown.toPlainText()
    assert config.read_text() == 'model = "mine"\n'
    page.confirm.click()
    qtbot.waitUntil(lambda: page._states["codex"].text() == "Connected")
    assert server.url in config.read_text()
    assert "Backup" in page.banner.text
    assert "codex --profile tessera" in page.banner.text
    remove.click()
    qtbot.waitUntil(page.review.isVisible)
    page.confirm.click()
    qtbot.waitUntil(lambda: page._states["codex"].text() == "Not connected")
    assert config.read_text() == 'model = "mine"\n'


def test_a_change_that_is_reviewed_follows_the_chosen_model(page, qtbot, services, server, tmp_path):
    server.models.append(replace(server.models[0], id="other", name="Other", default=False))
    services.models.refresh()
    qtbot.waitUntil(lambda: page.model.count() == 2)
    page.model.setCurrentIndex(page.model.findData("spark"))
    page.buttons["codex"][0].click()
    qtbot.waitUntil(page.review.isVisible)
    assert '+model = "spark"' in page.shown.toPlainText()
    page.model.setCurrentIndex(page.model.findData("other"))
    page.model.activated.emit(page.model.currentIndex())
    qtbot.waitUntil(lambda: page.review.isVisible() and '+model = "other"' in page.shown.toPlainText())
    page.confirm.click()
    qtbot.waitUntil(lambda: page._states["codex"].text() == "Connected")
    written = [path.read_text() for path in (tmp_path / "user" / ".codex").glob("*.toml")]
    assert any('model = "other"' in text for text in written)


def test_cancelling_writes_nothing_and_steps_are_shown_where_no_file_may_be_written(page, qtbot, tmp_path):
    page.buttons["claude"][0].click()
    qtbot.waitUntil(page.review.isVisible)
    page._cancel()
    page._confirm()
    assert not (tmp_path / "user").exists()
    page.buttons["cline"][0].click()
    assert "Base URL" in page.shown.toPlainText()
    assert not page.confirm.isVisible()


def test_a_file_that_is_not_understood_is_told(page, qtbot, tmp_path):
    path = tmp_path / "user" / ".claude" / "settings.json"
    path.parent.mkdir(parents=True)
    path.write_text("{broken")
    page.buttons["claude"][0].click()
    qtbot.waitUntil(page.banner.isVisible)
    assert "was not changed" in page.banner.text
    assert path.read_text() == "{broken"


def test_a_certificate_shows_on_the_card_of_its_model():
    from app.evals.tool_calls.run import CaseResult, Certificate, CertificateStore
    from app.gui.library.model_card import chips_of
    from app.gui.library.page import LibraryPage
    from engine.api.library import Model
    from engine.core.paths import user_paths

    results = [CaseResult(str(n), "single", n != 0, 0.1) for n in range(10)]
    CertificateStore(user_paths().state).save(Certificate("spark", 1, 0.0, 1024, results))
    models = LibraryPage._certified([Model(id="spark", name="Spark"), Model(id="other", name="Other")])
    assert ("Tool calls 90\u00a0%", "chip-ok") in chips_of(*models[0])
    assert not any("Tool calls" in text for text, _ in chips_of(*models[1]))


def test_documents_have_a_text_for_programs_that_speak_mcp(page, server, qtbot, qapp):
    card = page.documents
    assert card._none.isVisible()
    assert not card.text.isVisible()
    found = [{"id": f"col_{name}", "name": name} for name in ("Papers", "Letters")]
    server.routes["GET", "/tessera/v1/collections"] = msgspec.convert({"collections": found}, Collections)
    card.refresh()
    qtbot.waitUntil(card.text.isVisible)
    assert card.text.toPlainText().startswith("claude mcp add tessera-papers ")
    card.collection.setCurrentText("Letters")
    card.program.setCurrentText("Cursor")
    card.copy.click()
    assert json.loads(qapp.clipboard().text())["mcpServers"]["tessera-letters"]["args"][-1] == "Letters"
    card.refresh()  # the selection stays
    card.collection.setCurrentText("All of these")
    qtbot.waitUntil(lambda: '"Papers",' in card.text.toPlainText())
