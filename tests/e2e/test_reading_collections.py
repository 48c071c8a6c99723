"""A collection that is not read completely says so in answers and searches."""

import httpx2

from engine.core.paths import user_paths
from engine.documents.registry import Collections
from tests.support.servers import RunningServer, wait_for

UNFINISHED = "The collection is still being read: 0 of 0 files so far."


def test_answers_say_that_the_collection_is_still_being_read(tessera_home, tmp_path):
    """Another process has the writer lock of the index, so this server cannot know that all files are read."""
    (tmp_path / "tides.md").write_text("High water comes every twelve hours.")
    other = Collections(user_paths())
    server = None
    try:
        live = other.add("sea", sources=(str(tmp_path / "tides.md"),))
        wait_for(lambda: not other.is_reading(live), 60, "reading")
        server = RunningServer(tessera_home)
        headers = {"authorization": f"Bearer {server.token}"}
        with httpx2.Client(base_url=server.url, headers=headers, timeout=60) as client:

            def why(**more):
                body = {"model": "spark", "messages": [{"role": "user", "content": "When is high water?"}]}
                body |= {"max_tokens": 4, "collection": {"id": "sea", **more}}
                return client.post("/v1/chat/completions", json=body).json()["tessera"]["collection"]["why"]

            def notes():
                return client.post("/tessera/v1/collections/sea/search", json={"query": "water"}).json()["notes"]

            assert live.owned()
            for mode in ("auto", "passages"):
                assert why(mode=mode).endswith(UNFINISHED)
            assert UNFINISHED in notes()
            other.close()
            wait_for(lambda: UNFINISHED not in notes(), 60, "the end of reading")
            assert UNFINISHED not in why()
    finally:
        other.close()
        if server is not None:
            server.stop()
