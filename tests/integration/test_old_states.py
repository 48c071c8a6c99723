"""State of three earlier versions (tests/optin/old_state.py) opens in this one."""

import shutil
from pathlib import Path

import httpx2
import pytest

from app.db import conversations, messages
from app.db.store import open_store
from tests.support.servers import RunningServer

STATES = sorted((Path(__file__).parents[1] / "data" / "states").iterdir())


@pytest.mark.parametrize("kept", STATES, ids=lambda path: path.name)
def test_the_state_of_an_earlier_version_is_understood(kept, tmp_path):
    home = tmp_path / "home"
    shutil.copytree(kept, home)
    server = RunningServer(home)
    try:
        key = {"authorization": f"Bearer {(kept / 'key.txt').read_text()}"}
        body = {"model": "before", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
        url = f"{server.url}/v1/chat/completions"
        assert httpx2.post(url, json=body, timeout=60).status_code == 401
        assert httpx2.post(url, json=body, headers=key, timeout=60).status_code == 200
        assert "kept aside" not in server.log
        assert "Traceback" not in server.log
    finally:
        server.stop()
    opened = open_store(home / "state" / "chats.db")
    (chat,) = conversations.listing(opened.connection)
    (message,) = messages.of_conversation(opened.connection, chat.id)
    opened.connection.close()
    assert (chat.title, message.content) == ("Kept from before", "Is this still here?")
    assert not [path for path in home.rglob("*") if "corrupt" in path.name]
