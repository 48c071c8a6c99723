"""The page for phones in a real Chromium at 390x844. `apt-get install chromium`, then
`python -m pytest tests/optin/test_chat_page.py`. CHAT_PICTURES names a folder for screenshots."""

import os
from pathlib import Path

import httpx2
import pytest

from tests.support.browser import Browser, Link, chromium
from tests.support.fakes.fake_upstream import MODEL, FakeUpstream
from tests.support.servers import RunningServer

pytestmark = pytest.mark.skipif(chromium() is None, reason="no Chromium here: apt-get install chromium")
NAME = f"desk/{MODEL}"
LAST = "[...document.querySelectorAll('article.assistant')].at(-1)"


@pytest.fixture(scope="module")
def phone(tmp_path_factory):
    """A browser on the page, over a link that can drop; answers come from a fake that says what it is told to."""
    server = RunningServer(
        tmp_path_factory.mktemp("chat-home"), env={"PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring"}
    )
    fake, link = FakeUpstream(), Link(int(server.url.rpartition(":")[2]))
    browser = None
    try:
        with httpx2.Client(base_url=server.url, headers={"authorization": f"Bearer {server.token}"}) as http:
            http.put("/tessera/v1/upstreams/desk", json={"url": fake.url}).raise_for_status()
            http.put("/tessera/v1/upstream-rules", json={"model": "desk/*", "upstream": "desk"}).raise_for_status()
            http.post("/tessera/v1/keys", json={"name": "phone"}).raise_for_status()
            made = http.post("/tessera/v1/keys", json={"name": "other"}).json()["key"]
        browser = Browser(tmp_path_factory.mktemp("profile"))
        browser.link, browser.fake, browser.key = link, fake, made
        yield browser
    finally:
        if browser is not None:
            browser.close()
        link.close()
        fake.stop()
        server.stop()


@pytest.fixture
def page(phone):
    phone.link.mend()
    phone.open(f"{phone.link.url}/chat")
    phone.js("localStorage.clear()")
    phone.open("about:blank")
    phone.call("Page.navigate", url=f"{phone.link.url}/chat#key={phone.key}")
    phone.until(f"[...(document.querySelector('#model')?.options ?? [])].some((o) => o.value === '{NAME}')")
    phone.js(f"document.querySelector('#model').value = '{NAME}'")
    yield phone
    assert phone.errors == []


def say(page, text):
    page.tap("#say")
    page.type(text)
    page.press("Enter", 13)


def picture(page, name):
    if folder := os.environ.get("CHAT_PICTURES"):
        page.picture(Path(folder) / f"{name}.png")


def done(page):
    page.until("!document.querySelector('#send').hidden")


def test_without_a_key_it_asks_for_one(phone):
    phone.open(f"{phone.link.url}/chat")
    phone.js("localStorage.clear()")
    phone.open("about:blank")
    phone.call("Page.navigate", url=f"{phone.link.url}/chat")
    phone.until("document.querySelector('#keyform') && !document.querySelector('#keyform').hidden")
    phone.js("document.querySelector('#key').focus()")
    phone.type(phone.key)
    phone.press("Enter", 13)
    phone.until("document.querySelector('#model').options.length > 0 && document.querySelector('#keyform').hidden")


def test_send_markdown_and_copy(page):
    assert page.js("location.hash") == ""  # the key is not left in the address
    text = (
        "echo # Title\n\nSome **bold** and `code`.\n\n- one\n- two\n\n```python\nprint('hi <b>')\n```\n"
        "\n<img src=x onerror=alert(1)> [bad](javascript:alert(1)) [good](https://example.org)"
    )
    page.js(f"document.querySelector('#say').value = {text!r}")
    page.tap("#send")
    done(page)
    page.until(f"{LAST}.querySelector('pre code')?.textContent === \"print('hi <b>')\"")
    assert page.js(f"{LAST}.querySelector('h3').textContent") == "Title"
    assert page.js(f"{LAST}.querySelectorAll('li').length") == 2
    assert page.js(f"{LAST}.querySelector('strong').textContent") == "bold"
    assert page.js(f"{LAST}.querySelectorAll('img, b, script').length") == 0
    assert page.js(f"[...{LAST}.querySelectorAll('a')].map((a) => a.href)") == ["https://example.org/"]
    page.call("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    page.tap("article.assistant .code button")
    page.until(f"{LAST}.querySelector('.code button').textContent === 'Copied'")
    page.call("Page.bringToFront")
    assert page.js("navigator.clipboard.readText()") == "print('hi <b>')"
    assert page.js("document.documentElement.scrollWidth <= 390")
    picture(page, "markdown")


def test_stop(page):
    say(page, "forever")
    page.until(f"{LAST}?.textContent.includes(' 20 ')")
    page.tap("#stop")
    done(page)
    page.until(f"{LAST}.textContent.includes('Stopped.')")
    assert page.js("document.activeElement.id") == "say"
    hung = page.fake.hung_up
    page.until("true")
    said = page.js(f"{LAST}.textContent")
    say(page, "hello")
    done(page)
    page.until(f"{LAST}.textContent.includes('Hello from up there')")
    assert page.fake.hung_up >= hung
    assert " 1999" not in said


def test_a_link_that_drops_in_mid_answer_loses_nothing(page):
    say(page, "forever")
    for at in (" 30 ", " 200 ", " 400 "):
        page.until(f"{LAST}?.textContent.includes('{at}')")
        page.link.drop()
        page.until("document.querySelector('#state').textContent.includes('connection was lost')")
        picture(page, "lost")
        page.link.mend()
    done(page)
    found = page.js(f"{LAST}.querySelector('p').textContent").split()
    assert found == [str(n) for n in range(2000)]


def test_a_reload_in_mid_answer_goes_on(page):
    say(page, "forever")
    page.until(f"{LAST}?.textContent.includes(' 50 ')")
    page.call("Page.reload")
    page.until("document.readyState === 'complete' && !document.querySelector('#stop').hidden")
    done(page)
    assert page.js(f"{LAST}.querySelector('p').textContent").split() == [str(n) for n in range(2000)]


def test_keyboard_and_screen_reader(page):
    say(page, "hello")
    done(page)
    page.until("document.querySelector('#spoken').textContent.includes('Hello from up there')")
    tree = page.call("Accessibility.getFullAXTree")["nodes"]
    named = {(n["role"]["value"], n.get("name", {}).get("value")) for n in tree if not n["ignored"]}
    assert {("combobox", "Model"), ("textbox", "Message"), ("button", "Send"), ("button", "New chat")} <= named
    assert ("log", "Conversation") in named
    page.js("document.querySelector('#model').focus()")
    order = []
    for _ in range(4):
        page.press("Tab", 9)
        order.append(page.js("document.activeElement.id"))
    assert order == ["fresh", "log", "say", "send"]
    controls = "[...document.querySelectorAll('button, select, textarea')]"
    small = f"{controls}.filter((e) => e.offsetHeight && e.offsetHeight < 44)"
    assert page.js(f"{small}.length") == 0
    picture(page, "chat")
