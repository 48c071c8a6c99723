"""One collection registry for many tests, and a folder of known documents."""

import pytest

from engine.core.paths import user_paths
from engine.documents.registry import Collections
from tests.support import documents_made as made


@pytest.fixture
def collections(tessera_home):
    found = Collections(user_paths())
    yield found
    found.close()


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "documents"
    place.mkdir()
    (place / "tides.md").write_text("# Tides\n\nHigh water comes every twelve hours and twenty-five minutes.\n")
    (place / "herring.txt").write_text("The herring of the Baltic is smaller than that of the Atlantic.\n")
    made.pdf(place / "boats.pdf", [["The dory has a flat bottom."], ["The umiak is made of skins."]])
    (place / "broken.pdf").write_bytes(b"%PDF-1.7 nothing")
    return place
