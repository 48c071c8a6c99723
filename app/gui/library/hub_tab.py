"""Finding models: three that fit this machine, search, and what each quantization would need here."""

from typing import Any
from urllib.parse import quote, urlencode

from PySide6.QtCore import QCoreApplication, QTimer, Signal
from PySide6.QtWidgets import QComboBox, QFrame, QLineEdit, QVBoxLayout, QWidget

from app.gui import words
from app.gui.api import in_words
from app.gui.services import Services
from app.gui.widgets.basics import Banner, button, card, clear, label, row, stack

_DELAY_MS = 500
_TASKS = (
    ("", "Any"),
    ("text-generation", "Chat"),
    ("feature-extraction", "Embedding"),
    ("image-text-to-text", "Vision"),
)


class HubTab(QWidget):
    """Asks the hub only when the user does; says so when offline."""

    trying = Signal(dict)  # the job that measures
    pull_pressed = Signal(str, str)  # repository or starter, quantization ("" for the best one)

    def __init__(self, services: Services) -> None:
        super().__init__()
        self._services = services
        self.banner = Banner(services.look)
        self.search = QLineEdit()
        self.search.setPlaceholderText(self.tr("Search Hugging Face, or paste owner/name"))
        self.search.setAccessibleName(self.tr("Search models"))
        self.search.setClearButtonEnabled(True)
        self._delay = QTimer(self)
        self._delay.setSingleShot(True)
        self._delay.setInterval(_DELAY_MS)
        self._delay.timeout.connect(self._search)
        self.search.textEdited.connect(lambda _: self._delay.start())
        self.search.returnPressed.connect(self._search)
        self.task = QComboBox()
        self.task.setAccessibleName(self.tr("Kind of model"))
        for value, name in _TASKS:
            self.task.addItem(self.tr(name), value)
        self.task.activated.connect(lambda _: self._search())
        self._note = label("", "muted", wrap=True)
        self.results = QVBoxLayout()
        self.results.setSpacing(8)
        line = row(self.search, self.task)
        line.setStretch(0, 1)
        self.setLayout(stack(line, self.banner, self._note, self.results, 1, spacing=12, margins=(0, 16, 0, 0)))
        self._shown = 0

    def show_starters(self) -> None:
        """Three models to begin with; nothing is asked of the network."""
        if self.search.text().strip():
            return
        self._services.background.run(
            lambda: self._services.api.get("/tessera/v1/hub/starters"), self._show_starters, self._on_error, self
        )

    def _show_starters(self, answer: dict[str, Any]) -> None:
        clear(self.results)
        proposals = answer.get("proposals") or []
        self._note.setText(
            self.tr("These fit this computer.") if proposals else self.tr("No suggestion for this computer.")
        )
        for proposal in proposals:
            starter = proposal.get("starter") or {}
            facts = " · ".join(
                part
                for part in (
                    str(starter.get("job", "")),
                    self.tr("{n} parameters").format(n=words.count(starter.get("parameters") or 0)),
                    self.tr("about {n}").format(n=words.size(proposal.get("expected_bytes") or 0)),
                    self.tr("about {n} tokens/s").format(n=words.speed(proposal["expected_tok_s"]))
                    if proposal.get("expected_tok_s")
                    else "",
                    str(starter.get("license", "")),
                )
                if part
            )
            get = button(
                self.tr("Download"), self._puller(str(starter.get("id") or starter.get("repo"))), "primary"
            )
            look = button(self.tr("All sizes"), self._opener(str(starter.get("repo"))))
            text = stack(
                label(str(starter.get("repo", "")).rpartition("/")[2], "strong"),
                label(facts, "small"),
                label(str(proposal.get("reason", "")), "small", wrap=True),
                spacing=4,
            )
            line = row(look, get)
            holder = row(spacing=16)
            holder.addLayout(text, 1)
            holder.addLayout(line)
            self.results.addWidget(card(holder))

    def _search(self) -> None:
        self._delay.stop()
        text = self.search.text().strip()
        if not text:
            self.show_starters()
            return
        if self._services.settings.now.flag("network.offline"):
            self.banner.tell(self.tr("Tessera is set to offline. Change it in Settings to search."), "info")
            return
        self.banner.hide()
        self._shown += 1
        asked = self._shown
        query = {"text": text}
        if self.task.currentData():
            query["task"] = self.task.currentData()
        self._note.setText(self.tr("Searching…"))
        self._services.background.run(
            lambda: self._services.api.get("/tessera/v1/hub/search?" + urlencode(query)),
            lambda answer: self._show_hits(answer) if asked == self._shown else None,
            self._on_error,
            self,
        )

    def _show_hits(self, answer: dict[str, Any]) -> None:
        clear(self.results)
        hits = answer.get("repositories") or []
        self._note.setText("" if hits else self.tr("Nothing found. Try fewer words."))
        for hit in hits:
            facts = " · ".join(
                part
                for part in (
                    str(hit.get("architecture") or ""),
                    self.tr("{n} parameters").format(n=words.count(hit["n_params"])) if hit.get("n_params") else "",
                    self.tr("{n} downloads").format(n=words.count(hit.get("downloads") or 0)),
                    self.tr("needs an account") if hit.get("gated") else "",
                )
                if part
            )
            look = button(self.tr("What fits?"), self._opener(hit["repo"]))
            text = stack(label(hit["repo"], "strong"), label(facts, "small"), spacing=4)
            line = row(spacing=16)
            line.addLayout(text, 1)
            line.addWidget(look)
            self.results.addWidget(card(line))

    def _opener(self, repo: str) -> Any:
        return lambda: self.open(repo)

    def _puller(self, model: str, quantization: str = "") -> Any:
        return lambda: self.pull_pressed.emit(model, quantization)

    def open(self, repo: str) -> None:
        """Show what each file of a repository would need here."""
        self._note.setText(self.tr("Reading the headers of {repo}…").format(repo=repo))
        self._services.background.run(
            lambda: self._services.api.get("/tessera/v1/hub/plan?repo=" + quote(repo, safe="")),
            self._show_plan,
            self._on_error,
            self,
        )

    def _show_plan(self, plan: dict[str, Any]) -> None:
        clear(self.results)
        repository = plan.get("repository") or {}
        options = plan.get("options") or []
        self._note.setText(self.tr("{repo}: {n} versions.").format(repo=repository.get("repo", ""), n=len(options)))
        back = button(self.tr("← Back"), self._search, "link")
        self.results.addLayout(row(back, 1))
        for option in options:
            self.results.addWidget(self._option_card(repository.get("repo", ""), option))

    def _option_card(self, repo: str, option: dict[str, Any]) -> QFrame:
        choice, verdict = option.get("choice") or {}, option.get("verdict") or {}
        title = label(str(choice.get("label", "")), "strong")
        line = row(title, spacing=8)
        if option.get("best"):
            line.addWidget(label(self.tr("Best for this computer"), "chip-ok"))
        if option.get("problem"):
            line.addWidget(label(str(option["problem"]), "chip-bad"))
        elif verdict:
            fits = verdict.get("fits")
            line.addWidget(
                label(self.tr("Fits") if fits else self.tr("Does not fit"), "chip-ok" if fits else "chip-warn")
            )
        line.addStretch(1)
        facts = [words.size(option.get("size_bytes") or 0)]
        if option.get("bits_per_weight"):
            facts.append(self.tr("{n} bits").format(n=words.decimal(option["bits_per_weight"], 2)))
        if verdict.get("needed_bytes"):
            facts.append(
                self.tr("needs {need} of {free}").format(
                    need=words.size(verdict["needed_bytes"]), free=words.size(verdict.get("available_bytes") or 0)
                )
            )
        if verdict.get("decode_tok_s"):
            facts.append(speed_words(verdict))
        get = button(
            self.tr("Download"),
            self._puller(repo, str(choice.get("label", ""))),
            "primary" if option.get("best") else "",
        )
        text = stack(line, label(" · ".join(facts), "small"), spacing=4)
        holder = row(spacing=16)
        holder.addLayout(text, 1)
        if verdict.get("fits") and not verdict.get("measured_on"):
            try_it = button(self.tr("Try the speed"), lambda: self._try(f"{repo}:{choice.get('label', '')}"))
            try_it.setToolTip(
                self.tr("Measures random weights of the same shape here; only the header is fetched.")
            )
            holder.addWidget(try_it)
        holder.addWidget(get)
        return card(holder)

    def _try(self, name: str) -> None:
        """Measure a stand-in of a file that is not here."""
        body = {"hub": name, "lengths": [128], "parallel": [1], "repeats": 2}
        self._services.background.run(
            lambda: self._services.api.post("/tessera/v1/bench", body),
            self._on_trying,
            self._on_error,
            self,
        )

    def _on_trying(self, job: dict[str, Any]) -> None:
        self.trying.emit(job)
        self._note.setText(self.tr("Measuring a stand-in; its speed will be shown here when you look again."))

    def _on_error(self, error: Exception) -> None:
        self._note.setText("")
        self.banner.tell(in_words(error), "warn", (self.tr("Try again"), self._search))


def speed_words(verdict: dict[str, Any]) -> str:
    """How fast a file that was not fetched would be here, and what that rests on."""
    speed = words.whole(verdict["decode_tok_s"])
    told = {
        "stand-in": QCoreApplication.translate("HubTab", "about {n} tok/s here (measured on a stand-in)"),
        "model": QCoreApplication.translate("HubTab", "about {n} tok/s here (measured)"),
    }
    unmeasured = QCoreApplication.translate("HubTab", "about {n} tokens/s")
    return told.get(verdict.get("measured_on") or "", unmeasured).format(n=speed)
