"""A model that has a newer version on the hub: told, fetched by one click, the older one kept until then."""

from tests.gui.walk.walker import ROOT
from tests.support.fakes.fake_hub import FakeFile
from tests.support.servers import wait_for

LIBRARY = "window.page('library')"
NAME = "spark-Q4_K_M.gguf"


def test_a_newer_version_is_told_and_fetched_by_one_click(open_window, hub):
    walk = open_window()
    raw = (ROOT / "assets" / "models" / "spark-f16.gguf").read_bytes()
    repo = hub.repos["org/Spark-GGUF"]
    first = repo.files[NAME]
    try:
        walk.go("Library")
        walk.click("Find models")
        walk.click("Search models")
        walk.type("Spark")
        walk.key("Return")
        walk.until("'Spark-GGUF' in says()")
        walk.click("What fits?")
        walk.click("Download")
        walk.until(f"{LIBRARY}.isVisible() and any(c.model.origin.kind == 'hub' for c in {LIBRARY}.cards)")
        repo.files[NAME], repo.sha = FakeFile(raw[:-64] + bytes(64)), "d" * 40
        walk.click("On this computer")
        walk.click("Check for updates", LIBRARY)
        walk.until(f"'Newer version on the hub' in says({LIBRARY})")
        walk.picture("newer")
        walk.click("Update", LIBRARY)
        walk.until(f"'is ready' in {LIBRARY}.banner.text")
        walk.until(f"any(c.model.origin.revision == 'd' * 40 for c in {LIBRARY}.cards)")
        walk.until(f"'Newer version' not in says({LIBRARY})")
        placed = next((walk.home / "models").rglob(NAME))
        assert placed.read_bytes() == raw[:-64] + bytes(64)
        wait_for(lambda: not list((walk.home / "models").rglob("*.previous")), 60, "the end of the older one")
    finally:
        repo.files[NAME], repo.sha = first, "c" * 40
    walk.close()
