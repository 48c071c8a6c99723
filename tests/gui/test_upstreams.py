"""Other servers on the server page: added, allowed, and removed."""

from app.gui.server.page import OtherComputersPage
from engine.api.upstreams import UpstreamModel, UpstreamRow, UpstreamRule, Upstreams
from tests.gui.hands import press, texts


class Book:
    """The server's side of the routes, as far as the page uses them."""

    def __init__(self, server):
        self.rows, self.rules, self.keys = {}, [], []
        routes = server.routes
        routes["GET", "/tessera/v1/upstreams"] = lambda _: self.all()
        routes["PUT", "/tessera/v1/upstreams/desk"] = self.put
        routes["DELETE", "/tessera/v1/upstreams/desk"] = self.forget
        routes["POST", "/tessera/v1/upstreams/desk/check"] = lambda _: self.rows["desk"]
        routes["PUT", "/tessera/v1/upstream-rules"] = self.rule
        routes["DELETE", "/tessera/v1/upstream-rules?model=desk%2F%2A"] = self.unrule

    def all(self):
        return Upstreams(upstreams=tuple(self.rows.values()), rules=tuple(self.rules))

    def put(self, body):
        self.keys.append(body.get("key"))
        models = (UpstreamModel(name="Qwen/Qwen3-8B"),)
        self.rows["desk"] = UpstreamRow(
            name="desk", url=body["url"], kind="vllm", state="ok", latency_ms=3.2, plain_text=True, models=models
        )
        return self.rows["desk"]

    def forget(self, _):
        self.rows.clear()
        self.rules.clear()
        return 204, None

    def rule(self, body):
        self.rules.append(UpstreamRule(**body))
        return self.all()

    def unrule(self, _):
        self.rules.clear()
        return 204, None


def test_another_server_is_added_used_and_forgotten(qtbot, show, services, server):
    registry = Book(server)
    page = show(OtherComputersPage(services, server.api))
    card = page.upstreams
    assert not card.add.isEnabled()
    card.name.setText("desk")
    card.url.setText("http://10.0.0.2:8000")
    card.key.setText("sk-canary")
    card.add.click()
    qtbot.waitUntil(lambda: "Answers in 3 ms" in texts(page))
    assert registry.keys == ["sk-canary"]
    assert "sk-canary" not in texts(page)
    assert "not encrypted" in texts(page)
    assert registry.rules == []  # adding sends nothing to it
    press(page, "Use its models")
    qtbot.waitUntil(lambda: "in use" in texts(page))
    assert registry.rules == [UpstreamRule(model="desk/*", upstream="desk")]
    registry.rules.append(UpstreamRule(model="big", upstream="desk", as_model="x", queue=2, unfit=True))
    card.refresh()
    qtbot.waitUntil(lambda: "big goes to desk when more than 2 wait or when it does not fit here" in texts(page))
    press(page, "Remove")
    qtbot.waitUntil(lambda: "can be used next to the local ones" in texts(page))


def test_an_address_that_is_none_says_why(qtbot, show, services, server):
    server.routes["PUT", "/tessera/v1/upstreams/desk"] = (400, {"error": {"message": "'x' is not an address."}})
    page = show(OtherComputersPage(services, server.api))
    page.upstreams.name.setText("desk")
    page.upstreams.url.setText("x")
    page.upstreams.add.click()
    qtbot.waitUntil(lambda: page.banner.text == "'x' is not an address.")
    assert page.upstreams.url.text() == "x"  # the typed text stays
