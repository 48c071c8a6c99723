"""Makes state files of an earlier version of the project: `python -m tests.optin.old_state COMMIT NAME`.

The commit's own code runs from a scratch copy: its server answers a chat, stores an alias and a key, and its chat
store stores a conversation. Its folders, without logs and addresses, become tests/data/states/NAME, which
tests/integration/test_old_states.py opens with the current code.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx2

TARGET = Path("tests/data/states")
CHATS = """
import sys
from pathlib import Path
from app.db import conversations, messages
from app.db.store import open_store
opened = open_store(Path(sys.argv[1]) / "chats.db")
made = conversations.create(opened.connection, title="Kept from before")
messages.add(opened.connection, made.id, None, "user", "Is this still here?")
opened.connection.close()
"""
DROPPED = ("logs", "models", "server.json", "server.log")


def main(commit, name):
    scratch = Path(tempfile.mkdtemp(prefix="old-state-"))
    code, home = scratch / "code", scratch / "home"
    code.mkdir()
    archive = subprocess.run(["git", "archive", commit], capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", str(code)], input=archive, check=True)
    env = {**os.environ, "TESSERA_HOME": str(home), "PYTHONPATH": str(code)}
    home.mkdir()
    server = subprocess.Popen(
        [sys.executable, "-m", "app", "serve", "--port", "0"], cwd=code, env=env, stdin=subprocess.DEVNULL
    )
    try:
        found = home / "state" / "server.json"
        while not found.exists():
            if server.poll() is not None:
                raise SystemExit(f"the server of {commit} did not start")
            time.sleep(0.1)
        time.sleep(1)
        told = json.loads(found.read_text())
        headers = {"authorization": f"Bearer {told['token']}"}
        body = {"model": "spark", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}

        def ask(method, path, **more):
            answer = httpx2.request(method, told["url"] + path, headers=headers, timeout=120, **more)
            print(path, answer.status_code)
            return answer.json()

        ask("POST", "/v1/chat/completions", json=body)
        ask("POST", "/v1/responses", json={"model": "spark", "input": "Hi", "max_output_tokens": 3})
        ask("PUT", "/tessera/v1/aliases/before", json={"model": "spark"})
        key = ask("POST", "/tessera/v1/keys", json={"name": "before"})["key"]
        ask("GET", "/tessera/v1/models")
    finally:
        server.terminate()
        server.wait(30)
    done = subprocess.run([sys.executable, "-c", CHATS, str(home / "state")], cwd=code, env=env, check=False)
    print("chats", done.returncode)
    target = TARGET / name
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(home, target, ignore=shutil.ignore_patterns(*DROPPED, "prefixes", "*.lock", "*-wal", "*-shm"))
    (target / "key.txt").write_text(key)
    for path in sorted(p for p in target.rglob("*") if p.is_file()):
        print(path.relative_to(target), path.stat().st_size)
    shutil.rmtree(scratch)


if __name__ == "__main__":
    main(*sys.argv[1:3])
