"""Upstream servers whose models are listed with the local ones: add, check, enable routing, remove."""

from PySide6.QtWidgets import QHBoxLayout, QLayout, QLineEdit, QVBoxLayout

from app.gui import formatted
from app.gui.app_context import AppContext
from app.gui.server.rows_card import RowsCard, kind_of_state
from app.gui.widgets.basics import Banner, button, label, row, stack
from engine.api.upstreams import UpstreamRequest, UpstreamRow, UpstreamRule, Upstreams

_MOST_NAME = 40
_SHOWN_MODELS = 5


class UpstreamsCard(RowsCard[Upstreams]):
    """Manages upstreams. Adding one only requests its model list; the switch enables routing to it."""

    def __init__(self, services: AppContext, banner: Banner) -> None:
        super().__init__(services, banner)
        self.name = self._field(self.tr("Name"), self.tr("Name of the other server"), _MOST_NAME)
        self.url = self._field("http://10.0.0.2:8000", self.tr("Address of the other server"), 2000)
        self.key = self._field(self.tr("Key, if it needs one"), self.tr("Key of the other server"), 4000)
        self.key.setEchoMode(QLineEdit.EchoMode.Password)
        entry = row(self.name, self.url, self.key, self.add, grow=1)
        self.setLayout(stack(self._note, self._rows, entry, spacing=12, margins=(16, 16, 16, 16)))
        self._refresh_button()
        self._show(Upstreams())

    def _fetch(self) -> Upstreams:
        return self._services.api.upstreams()

    def _rows_of(self, state: Upstreams) -> tuple[list[QLayout], str]:
        used = {rule.upstream for rule in state.rules if rule.model == f"{rule.upstream}/*"}
        rows: list[QLayout] = [self._upstream(row_, used=row_.name in used) for row_ in state.upstreams]
        rows += [self._rule(rule) for rule in state.rules if rule.model != f"{rule.upstream}/*"]
        note = (
            self.tr(
                "Tessera sends nothing to a server that you have not allowed. Every answer shows "
                "where it was generated."
            )
            if state.upstreams
            else self.tr(
                "Models from vLLM, SGLang, llama-server or another Tessera can be used next to the local ones."
            )
        )
        return rows, note

    def _upstream(self, upstream: UpstreamRow, *, used: bool) -> QVBoxLayout:
        api, name = self._services.api, upstream.name
        chips = [label(self._state(upstream), kind_of_state(upstream.state)), label(upstream.kind, "chip")]
        if used:
            chips.append(label(self.tr("in use"), "chip-ok"))
        if upstream.plain_text:
            chips.append(label(self.tr("not encrypted"), "chip-warn"))
        use = button(
            self.tr("Stop using") if used else self.tr("Use its models"),
            lambda: self._use(name, used=used),
            "" if used else "primary",
        )
        use.setAccessibleName((self.tr("Stop using {name}") if used else self.tr("Use {name}")).format(name=name))
        line = self._line(name, chips, lambda: api.check_upstream(name), lambda: api.remove_upstream(name), use)
        shown = ", ".join(model.name for model in upstream.models[:_SHOWN_MODELS])
        more = len(upstream.models) - _SHOWN_MODELS
        if more > 0:
            shown = self.tr("{models}, and {count} more").format(models=shown, count=more)
        about = label(f"{upstream.url}\n{shown}" if shown else upstream.url, "small", wrap=True, selectable=True)
        return stack(line, about, spacing=4)

    def _rule(self, rule: UpstreamRule) -> QHBoxLayout:
        when = []
        if rule.queue is not None:
            when.append(self.tr("when more than {count} wait").format(count=rule.queue))
        if rule.unfit:
            when.append(self.tr("when it does not fit here"))
        text = self.tr("{model} goes to {upstream} {when}").format(
            model=rule.model,
            upstream=rule.upstream,
            when=self.tr(" or ").join(when) or self.tr("always"),
        )
        model = rule.model
        remove = button(
            self.tr("Remove the rule"),
            lambda: self._run_then_reload(lambda: self._services.api.remove_upstream_rule(model)),
        )
        remove.setAccessibleName(self.tr("Remove the rule for {model}").format(model=model))
        return row(label(text, wrap=True), remove, grow=0)

    def _state(self, upstream: UpstreamRow) -> str:
        if upstream.state == "ok":
            return self.tr("Answers in {ms} ms").format(ms=formatted.whole(upstream.latency_ms))
        words = {
            "unknown": self.tr("Not checked yet"),
            "refused": self.tr("Rejects the key"),
            "unreachable": self.tr("Cannot be reached"),
            "failed": self.tr("Wrong answers"),
        }
        return words[upstream.state]

    def _add(self) -> None:
        name, url, key = self.name.text().strip(), self.url.text().strip(), self.key.text()
        if not name or not url:
            return
        request = UpstreamRequest(url=url, key=key or None)

        def done(_: object) -> None:
            for field in (self.name, self.url, self.key):
                field.clear()
            self.refresh()

        self._services.ask(self._banner, lambda: self._services.api.put_upstream(name, request), done)

    def _use(self, name: str, *, used: bool) -> None:
        api, model = self._services.api, f"{name}/*"
        if used:
            self._run_then_reload(lambda: api.remove_upstream_rule(model))
        else:
            self._run_then_reload(lambda: api.put_upstream_rule(UpstreamRule(model=model, upstream=name)))

    def _on_asked(self) -> None:
        super()._on_asked()
        self._services.models.refresh()

    def _refresh_button(self) -> None:
        self.add.setEnabled(bool(self.name.text().strip() and self.url.text().strip()))
