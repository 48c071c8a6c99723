"""Finds models: recommendations for this computer, search, memory needs of each quantization, smaller files."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from PySide6.QtCore import QCoreApplication, Qt, QTimer, Signal
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QCheckBox, QFrame, QVBoxLayout, QWidget
from shiboken6 import isValid

from app.gui import formatted
from app.gui.app_context import AppContext
from app.gui.jobs import Jobs
from app.gui.library.compare_uploads import (
    CompareUploads,
    least_loss,
    loss_text,
    multiple_chip,
    quantized_options,
)
from app.gui.library.model_card import ability_texts
from app.gui.library.recommended import (
    ListDate,
    download_name,
    download_text,
    name_row,
    proposal_text,
    recommendation,
    size_of,
)
from app.gui.reasons import answer_awaited, error_message, known_text, translated
from app.gui.widgets.basics import Banner, button, card, clear, label, row, search_field, stack, when_released
from app.gui.widgets.flow import Flow
from app.gui.widgets.popups import ComboBox
from engine.api.hub import Option, RepoHit, RepoPlan, SearchResults, Starters, UploadComparison, UploadLoss
from engine.api.jobs import Job
from engine.api.measuring import BenchRequest
from engine.api.quantizing import QuantizeOptions

T = TypeVar("T")
_DELAY_MS = 500
_BELOW_ABOUT = 2  # position in the results, after the back link and the repository's card
_TASKS = (
    ("", "Any kind"),
    ("text-generation", "Chat"),
    ("feature-extraction", "Embedding"),
    ("image-text-to-text", "Vision"),
)
_SIZES = (
    ("", "Any size"),
    ("max:3B", "Up to 3 B"),
    ("min:3B,max:9B", "3 to 9 B"),
    ("min:9B,max:35B", "9 to 35 B"),
    ("min:35B", "Above 35 B"),
)
_SORTS = (
    ("trending", "Trending"),
    ("downloads", "Most downloads"),
    ("likes", "Most likes"),
    ("lastModified", "Newest"),
)


class HubTab(QWidget):
    """Queries the hub only on user action. Reports if offline."""

    trying = Signal(object)  # the measuring job
    fit_pressed = Signal(object)  # QuantizeOptions
    pull_pressed = Signal(str, str)  # repository or recommended model, quantization ("" for the best one)

    def __init__(self, services: AppContext, jobs: Jobs) -> None:
        super().__init__()
        self._services, self._jobs = services, jobs
        self._compared: dict[str, UploadComparison] = {}
        self.banner = Banner(services.theme)
        hint = self.tr("Search Hugging Face, or paste owner/name")
        self.search = search_field(hint, self.tr("Search models"))
        self._delay = QTimer(self, singleShot=True, interval=_DELAY_MS)
        self._delay.timeout.connect(self._search)
        self.search.textEdited.connect(lambda _: self._delay.start())
        self.search.returnPressed.connect(self._search)
        self.task = self._filter(self.tr("Kind of model"), _TASKS)
        self.parameters = self._filter(self.tr("Parameters"), _SIZES)
        self.sort = self._filter(self.tr("Order"), _SORTS)
        self._note = label("", "muted", wrap=True)
        self.results = QVBoxLayout()
        self.results.setSpacing(8)
        filters = Flow(spacing=8)
        for choice in (self.task, self.parameters, self.sort):
            filters.add(choice)
        self.setLayout(
            stack(self.search, filters, self.banner, self._note, self.results, 1, spacing=12, margins=(0, 16, 0, 0))
        )
        self._shows_starters = False
        services.models.proposals_changed.connect(self._on_proposals)

    def showEvent(self, event: QShowEvent) -> None:
        """Focus the search field: users open this tab to search for a model."""
        super().showEvent(event)
        self.search.setFocus()

    def _filter(self, name: str, entries: Sequence[tuple[str, str]]) -> ComboBox:
        box = ComboBox(name)
        for value, words_ in entries:
            box.addItem(self.tr(words_), value)
        box.activated.connect(lambda _: self._search())
        return box

    def show_starters(self) -> None:
        """Show the recommended models. Makes no network request."""
        if self.search.text().strip():
            return

        def show(answer: Starters) -> None:
            self._services.models.take_proposals(answer)
            if not self._shows_starters:
                self._show_starters()

        check = self._services.checks_models
        self._request(lambda: self._services.api.starters(check=check), show, self.show_starters)
        if self._services.models.proposals:
            self._show_starters()
        else:
            self._note.setText(answer_awaited())

    def _on_proposals(self) -> None:
        """Show the new recommendations, unless the user looks at search results or at a repository."""
        if self._shows_starters:
            when_released(self, lambda: self._show_starters() if self._shows_starters else None)

    def _show_starters(self) -> None:
        clear(self.results)
        proposals = self._services.models.proposals
        self._shows_starters = True
        self._note.setText(
            self.tr("These fit this computer.") if proposals else self.tr("No suggestion for this computer.")
        )
        for proposal in proposals:
            starter = proposal.starter
            facts = " · ".join(
                part
                for part in (
                    proposal_text(proposal),
                    self.tr("by {publisher}").format(publisher=starter.repo.partition("/")[0]),
                    self.tr("{n} parameters").format(n=formatted.count(starter.parameters)),
                    self.tr("about {n}").format(n=formatted.size(size_of(proposal))),
                    self.tr("about {n} tokens/s").format(n=formatted.speed(proposal.expected_tok_s))
                    if proposal.expected_tok_s
                    else "",
                    starter.license,
                )
                if part
            )
            get = button(self.tr("Download"), self._puller(starter.id), "primary" if proposal.recommended else "")
            get.setAccessibleName(download_name(proposal))
            sizes = button(self.tr("All sizes"), self._opener(starter.repo))
            text = stack(
                name_row(formatted.model_name(starter.repo), proposal),
                label(facts, "small", wrap=True),
                label(recommendation(proposal) or translated(proposal.reason), "small", wrap=True),
                spacing=4,
            )
            line = row(sizes, get)
            holder = row(spacing=16)
            holder.addLayout(text, 1)
            holder.addLayout(line)
            self.results.addWidget(card(holder))
        if proposals:
            self.results.addWidget(ListDate(self._services))

    def _search(self) -> None:
        self._delay.stop()
        text = self.search.text().strip()
        if not text:
            self.show_starters()
            return
        if self._services.settings.now.flag("network.offline"):
            self.banner.notify(self.tr("Tessera is set to offline. Change it in Settings to search."), "info")
            return
        self.banner.hide()
        task, size, sort = self.task.currentData(), self.parameters.currentData(), self.sort.currentData()
        self._note.setText(self.tr("Searching…"))
        self._request(lambda: self._services.api.search_hub(text, task, size, sort), self._show_hits, self._search)

    def _request(self, ask: Callable[[], T], show: Callable[[T], object], again: Callable[[], object]) -> None:
        """Show the response, unless a newer request is made first."""
        self._shows_starters = False
        self._services.background.run(ask, show, self._failing(again), self, newest="results")

    def _show_hits(self, answer: SearchResults) -> None:
        clear(self.results)
        hits = answer.repositories
        self._note.setText("" if hits else self.tr("Nothing found. Try fewer words."))
        for hit in hits:
            self.results.addWidget(self._hit_card(hit))

    def _hit_card(self, hit: RepoHit) -> QFrame:
        """A search result: name, publisher, architecture, popularity, licence and date."""
        publisher, _, name = hit.repo.partition("/")
        facts = [
            hit.architecture or "",
            self.tr("{n} parameters").format(n=formatted.count(hit.n_params)) if hit.n_params else "",
            self.tr("context {n}").format(n=formatted.whole(hit.context_train)) if hit.context_train else "",
            self.tr("{n} downloads").format(n=formatted.count(hit.downloads)),
            self.tr("{n} likes").format(n=formatted.count(hit.likes)) if hit.likes else "",
            formatted.day(hit.updated) if hit.updated else "",
        ]
        chips = Flow(spacing=4)
        if hit.license:
            chips.add(label(hit.license, "chip"))
        if hit.task and hit.task != "text-generation":
            chips.add(label(hit.task.replace("-", " "), "chip"))
        if hit.gated:
            chips.add(label(self.tr("needs an account"), "chip-warn"))
        fits = button(self.tr("What fits?"), self._opener(hit.repo))
        fits.setAccessibleName(self.tr("What fits of {name}?").format(name=name or publisher))
        text = stack(
            label(name or publisher, "strong"),
            label(self.tr("by {publisher}").format(publisher=publisher), "small"),
            label(" · ".join(part for part in facts if part), "small", wrap=True),
            chips,
            spacing=4,
        )
        line = row(spacing=16)
        line.addLayout(text, 1)
        line.addWidget(fits, 0, Qt.AlignmentFlag.AlignTop)
        return card(line)

    def _opener(self, repo: str) -> Callable[[], None]:
        return lambda: self.open(repo)

    def _puller(self, model: str, quantization: str = "") -> Callable[[], None]:
        return lambda: self.pull_pressed.emit(model, quantization)

    def open(self, repo: str) -> None:
        """Show the memory needs of each file of a repository on this computer."""
        self._delay.stop()
        self._note.setText(self.tr("Reading the headers of {repo}…").format(repo=repo))
        self._request(lambda: self._services.api.plan_repository(repo), self._show_plan, lambda: self.open(repo))

    def _show_plan(self, plan: RepoPlan) -> None:
        clear(self.results)
        repo, options = plan.repository.repo, plan.options
        self._note.setText(f"{repo}: {formatted.versions(len(options))}")
        back = button(self.tr("← Back"), self._search, "link")
        self.results.addLayout(row(back, 1))
        self.results.addWidget(_about_card(plan))
        if not plan.build_from and plan.repository.base:
            look = button(self.tr("Look there"), self._opener(plan.repository.base))
            words = self.tr("Files of other sizes are made from the original, which is in {name}.")
            line = row(label(words.format(name=plan.repository.base), "muted", wrap=True), look, spacing=16, grow=0)
            self.results.addWidget(card(line))
        if quantized_options(plan):
            self.results.addWidget(self._compare_card(plan))
        comparison = self._compared.get(repo)
        losses = {loss.label: loss for loss in comparison.uploads if loss.repo == repo} if comparison else {}
        least = least_loss(comparison) if comparison else 0.0
        for option in options:
            self.results.addWidget(self._option_card(repo, option, losses.get(option.choice.label), least))
        if plan.build_from:
            fit = FitFromHub(plan)
            fit.pressed.connect(self.fit_pressed)
            self.results.insertWidget(_BELOW_ABOUT, fit)

    def _compare_card(self, plan: RepoPlan) -> CompareUploads:
        """The offer to compare the files by loss. A result is shown there and on the cards of the files."""
        compare = CompareUploads(self._services, self._jobs, self.banner, plan)
        compare.pull_pressed.connect(self.pull_pressed)
        repo = plan.repository.repo

        def keep(comparison: UploadComparison) -> None:
            self._compared[repo] = comparison
            when_released(self, lambda: self._show_plan(plan) if isValid(compare) and compare.isVisible() else None)

        compare.compared.connect(keep)
        if repo in self._compared:
            compare.show_result(self._compared[repo])
        return compare

    def _option_card(self, repo: str, option: Option, loss: UploadLoss | None, least: float) -> QFrame:
        """A file. `loss`: what a comparison found, `least`: the least loss in it."""
        choice, verdict = option.choice, option.verdict
        line = Flow(spacing=8)
        line.add(label(choice.label, "strong"))
        if option.best:
            line.add(label(self.tr("Best for this computer"), "chip-ok"))
        if option.problem:
            line.add(label(known_text(option.problem), "chip-bad"))
        elif verdict:
            fits = verdict.fits
            line.add(
                label(self.tr("Fits") if fits else self.tr("Does not fit"), "chip-ok" if fits else "chip-warn")
            )
        if loss is not None and (chip := multiple_chip(loss, least)):
            line.add(chip)
        facts = [formatted.size(option.size_bytes)]
        if option.bits_per_weight:
            facts.append(self.tr("{n} bits per weight").format(n=formatted.decimal(option.bits_per_weight, 2)))
        if verdict and verdict.needed_bytes:
            facts.append(
                self.tr("needs {need} of {free}").format(
                    need=formatted.size(verdict.needed_bytes), free=formatted.size(verdict.available_bytes)
                )
            )
        if verdict and verdict.fits and verdict.decode_tok_s:
            facts.append(speed_text(verdict.decode_tok_s, verdict.measured_on))
        if loss is not None:
            facts.append(loss_text(loss))
        get = button(
            self.tr("Download"),
            self._puller(repo, choice.label),
            "primary" if option.best else "",
        )
        text = stack(line, label(" · ".join(facts), "small", wrap=True), spacing=4)
        holder = row(spacing=16)
        holder.addLayout(text, 1)
        if verdict and verdict.fits and not verdict.measured_on:
            try_it = button(self.tr("Test the speed"), lambda: self._try(f"{repo}:{choice.label}"))
            try_it.setToolTip(
                self.tr("Measures random weights of the same shape here; only the header is downloaded.")
            )
            holder.addWidget(try_it)
        holder.addWidget(get)
        return card(holder)

    def _try(self, name: str) -> None:
        """Measure a dummy-weight model with the shape of a file that is not downloaded."""
        request = BenchRequest(hub=name, lengths=(128,), parallel=(1,), repeats=2)
        self._services.background.run(
            lambda: self._services.api.bench(request),
            self._on_trying,
            self._failing(lambda: self._try(name)),
            self,
        )

    def _on_trying(self, job: Job) -> None:
        self.trying.emit(job)
        self._note.setText(self.tr("Measuring a simulated model. Come back later to see its speed here."))

    def _failing(self, again: Callable[[], object]) -> Callable[[Exception], None]:
        """Returns an error callback that shows the error with a retry button, which calls `again`."""

        def show_error(error: Exception) -> None:
            self._note.setText("")
            self.banner.notify(error_message(error), "warn", (self.tr("Try again"), again))

        return show_error


def _about_card(plan: RepoPlan) -> QFrame:
    """The hub's facts about a repository: publisher, licence, likes, date, abilities and description."""
    repository = plan.repository
    publisher, _, name = repository.repo.partition("/")
    details = next((option.details for option in plan.options if option.details), None)
    facts = [_tr("by {publisher}").format(publisher=publisher)]
    if details and details.n_params:
        facts.append(_tr("{n} parameters").format(n=formatted.count(details.n_params)))
    if details and details.context_train:
        facts.append(_tr("context {n}").format(n=formatted.whole(details.context_train)))
    if repository.likes:
        facts.append(_tr("{n} likes").format(n=formatted.count(repository.likes)))
    if repository.updated:
        facts.append(formatted.day(repository.updated))
    abilities = set(details.capabilities if details else ())
    if any("mmproj" in file.name.lower() for file in repository.files):
        abilities.add("vision")
    chips = Flow(spacing=4)
    for words in (repository.license or "", *ability_texts(abilities)):
        if words:
            chips.add(label(words, "chip"))
    text = stack(label(name or publisher, "strong"), label(" · ".join(facts), "small", wrap=True), chips, spacing=4)
    if plan.about:
        text.addWidget(label(plan.about, "", wrap=True, selectable=True))
    return card(text)


def _tr(text: str) -> str:
    return QCoreApplication.translate("HubTab", text)


def speed_text(tok_s: float, measured_on: str | None) -> str:
    """Expected speed of a file that is not downloaded, and whether it was measured."""
    texts = {
        "stand-in": QCoreApplication.translate("HubTab", "about {n} tok/s here (measured on a simulated model)"),
        "model": QCoreApplication.translate("HubTab", "about {n} tok/s here (measured)"),
    }
    unmeasured = QCoreApplication.translate("HubTab", "about {n} tokens/s")
    return texts.get(measured_on or "", unmeasured).format(n=formatted.whole(tok_s))


# Sizes to choose from if the repository has no quantized files to compare with.
_BITS = (6.6, 5.5, 4.5, 3.5)
_TIERS = (
    ("balanced", "Balanced", "Measures this model in groups of tensors."),
    ("instant", "Instant", "Estimates the loss from similar models. Takes seconds."),
    ("max", "Best", "Measures every tensor. Takes longest."),
)
_SAME_SIZE = 0.02


class FitFromHub(QFrame):
    """Chooses size and thoroughness before anything is downloaded. `pressed` carries the request."""

    pressed = Signal(object)  # QuantizeOptions

    def __init__(self, plan: RepoPlan) -> None:
        super().__init__()
        self.setProperty("kind", "card")
        source = next(option for option in plan.options if option.choice.label == plan.build_from)
        self._model = f"{plan.repository.repo}:{source.choice.label}"
        size = source.size_bytes
        self.target = ComboBox(self.tr("Size of the new file"))
        self.target.addItem(self.tr("As large as fits this computer"), QuantizeOptions(model=self._model, fit=True))
        smaller = [o for o in plan.options if o.choice.format == "gguf" and o.size_bytes < size]
        for option in sorted(smaller, key=lambda o: -o.size_bytes):
            words = self.tr("{size}, as {name}").format(
                size=formatted.size(option.size_bytes), name=option.choice.label
            )
            self._add(words, budget_bytes=option.size_bytes)
        if not smaller:
            for bits in _BITS:
                self._add(self.tr("{n} bits per weight").format(n=formatted.decimal(bits, 1)), bpw=bits)
        own = plan.own
        near = [o.size_bytes for o in smaller if own and _is_near(o.size_bytes, own.file_bytes)]
        if own is not None and near:
            self.target.setCurrentIndex(
                next(n for n in range(self.target.count()) if self.target.itemData(n).budget_bytes == near[0])
            )
        self.tier = ComboBox(self.tr("How thorough"))
        for value, name, tip in _TIERS:
            self.tier.addItem(self.tr(name), value)
            self.tier.setItemData(self.tier.count() - 1, self.tr(tip), Qt.ItemDataRole.ToolTipRole)
        self.delete = QCheckBox(self.tr("Delete the original afterwards"))
        go = button(self.tr("Make it fit"), self._press, "primary")
        go.setAccessibleName(self.tr("Download the original and make it fit"))
        text = self.tr(
            "Downloads the original ({size}; {time}). Then chooses a precision for every tensor, so that the model "
            "loses least, and compares the file with the usual one of its size."
        ).format(size=formatted.size(size), time=download_text(size))
        controls = Flow(spacing=8)
        for control in (self.target, self.tier, self.delete):
            controls.add(control)
        line = row(controls, go, spacing=16, grow=0)
        self.setLayout(
            stack(
                label(self.tr("Make your own file from the original"), "strong"),
                label(text, "small", wrap=True),
                line,
                spacing=8,
                margins=(16, 16, 16, 16),
            )
        )

    def _add(self, words: str, *, budget_bytes: int | None = None, bpw: float | None = None) -> None:
        self.target.addItem(words, QuantizeOptions(model=self._model, budget_bytes=budget_bytes, bpw=bpw))

    @property
    def request(self) -> QuantizeOptions:
        """The user's choice."""
        chosen: QuantizeOptions = self.target.currentData()
        return QuantizeOptions(
            model=chosen.model,
            fit=chosen.fit,
            budget_bytes=chosen.budget_bytes,
            bpw=chosen.bpw,
            tier=self.tier.currentData(),
            download=True,
            keep_source=not self.delete.isChecked(),
        )

    def _press(self) -> None:
        self.pressed.emit(self.request)


def _is_near(size: int, target: int) -> bool:
    return abs(size - target) <= _SAME_SIZE * target
