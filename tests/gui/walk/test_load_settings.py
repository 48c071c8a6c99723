"""How a model is loaded is chosen by hand: what it needs is told while one slides, and the load obeys."""

import urllib.request


def told(walk, path):
    server = walk.server()
    asked = urllib.request.Request(f"{server['url']}{path}", headers={"Authorization": f"Bearer {server['token']}"})
    with urllib.request.urlopen(asked, timeout=120) as answer:
        return answer.read().decode()


def test_the_context_is_slid_and_the_model_is_loaded_with_it(open_window):
    walk = open_window()
    walk.click("Model", "chat.bar")
    walk.click("Load settings: Spark (demo)")
    walk.until("app.activeModalWidget() is not None and 'Runs on' in says()")
    walk.until("'1,024 tokens' in says() or '1024 tokens' in says()")
    walk.picture("load-settings")
    walk.click("Context length")
    walk.key("Home")
    walk.until("'512 tokens' in says()")
    walk.click("Save and load")
    walk.until("app.activeModalWidget() is None")
    walk.until("any(c.loaded for c in desktop.services.models.choices)")
    assert '"n_ctx":512' in told(walk, "/tessera/v1/loaded").replace(" ", "")
    assert '"n_ctx": 512' in (walk.home / "config" / "model_settings.json").read_text().replace('":512', '": 512')
    walk.close()
