"""A project that is open on the Code page, over a loopback server."""

import pytest

from app.gui.code.page import CodePage
from tests.gui.code.asking import GREET, OTHER


@pytest.fixture
def project(tmp_path):
    root = tmp_path / "project"
    root.mkdir()
    (root / "greet.py").write_text(GREET)
    (root / "other.py").write_text(OTHER)
    return root


@pytest.fixture
def page(services, server, project, qtbot):
    services.models.refresh()
    qtbot.waitUntil(lambda: services.models.choices != ())
    page = CodePage(services)
    page.resize(1200, 800)
    page.show()
    with qtbot.waitSignal(page.controller.opened):
        page.open_folder(project)
    yield page
    page.controller.close_project()
    page.close()
    page.deleteLater()


@pytest.fixture
def other(tmp_path):
    root = tmp_path / "other"
    root.mkdir()
    (root / "b.py").write_text("b = 1\n")
    return root
