"""Stores this installation's upstreams, the user's rules for them, and their health."""

import re
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit

import msgspec

from engine.core.errors import InputFault
from engine.core.json_store import JsonStore
from engine.library.types import Details, ModelEntry, Origin
from engine.message_catalog import sentence
from engine.message_catalog.reasons import because
from engine.placement.external import KINDS
from engine.placement.fastflowlm import FlmModel
from engine.upstreams.errors import NoRule
from engine.upstreams.keys import UpstreamKeys
from engine.upstreams.types import (
    PREFIX,
    Health,
    Kind,
    Rule,
    SavedUpstreams,
    Upstream,
    UpstreamModel,
    UpstreamRoute,
)

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,39}")
MOST: Final = 100


class UpstreamRegistry:
    """Upstreams and rules in a file that the CLI and the server share; health is what this process observed."""

    def __init__(self, config: Path | None = None) -> None:
        self._store = JsonStore(config / "upstreams.json" if config else None, SavedUpstreams, SavedUpstreams)
        self.keys = UpstreamKeys(config / "upstream-keys.json" if config else None)
        self._health: dict[str, Health] = {}

    @property
    def saved(self) -> SavedUpstreams:
        """Upstreams and rules as the user set them."""
        return self._store.get()

    def get(self, name: str) -> Upstream:
        """One upstream. Raises: InputFault."""
        upstream = next((u for u in self.saved.upstreams if u.name == name), None)
        if upstream is None:
            names = ", ".join(u.name for u in self.saved.upstreams) or "none"
            raise InputFault(because("no_upstream", name=name, names=names), "name")
        return upstream

    def add(self, name: str, url: str, kind: Kind | None = None) -> Upstream:
        """Add an upstream, or change its address; its key does not follow it to another origin.

        May block: see UpstreamKeys. Raises: InputFault: a bad name or address.
        """
        if not _NAME.fullmatch(name):
            raise InputFault(because("upstream_name", name=name), "name")
        upstream = Upstream(name=name, url=checked_url(url), kind=kind)
        with self._store.locked():
            saved = self.saved
            others = tuple(u for u in saved.upstreams if u.name != name)
            if len(others) >= MOST:
                raise InputFault(because("too_many_upstreams", most=MOST), "name")
            before = next((u for u in saved.upstreams if u.name == name), None)
            if before is None or origin(before.url) != origin(upstream.url):
                self.keys.remove(name)
            models = {n: m for n, m in saved.models.items() if n != name}
            self._store.put(msgspec.structs.replace(saved, upstreams=(*others, upstream), models=models))
        self._health.pop(name, None)
        return upstream

    def remove(self, name: str) -> None:
        """Remove an upstream, its key and its rules. Raises: InputFault."""
        with self._store.locked():
            self.get(name)
            saved = self.saved
            remaining = SavedUpstreams(
                upstreams=tuple(u for u in saved.upstreams if u.name != name),
                rules=tuple(r for r in saved.rules if r.upstream != name),
                models={n: m for n, m in saved.models.items() if n != name},
            )
            self._store.put(remaining)
        self._health.pop(name, None)
        self.keys.remove(name)

    def add_rule(self, rule: Rule) -> None:
        """Add a rule; it replaces one for the same model and upstream. Raises: InputFault."""
        self.get(rule.upstream)
        inside = rule.model.startswith(f"{rule.upstream}/")
        if ("*" in rule.model or "?" in rule.model) and rule.as_model is None and not inside:
            raise InputFault(
                f"{rule.model!r} means several models; say which one they are there with --as.", "as_model"
            )
        if inside and not rule.always:
            raise InputFault(f"{rule.model} runs on {rule.upstream} only; such a rule has no condition.", "queue")
        with self._store.locked():
            self.get(rule.upstream)  # it may have been removed meanwhile
            saved = self.saved
            others = tuple(r for r in saved.rules if (r.model, r.upstream) != (rule.model, rule.upstream))
            self._store.put(msgspec.structs.replace(saved, rules=(*others, rule)))

    def remove_rule(self, model: str, upstream: str | None = None) -> int:
        """Remove the rules for a model; return their number."""
        with self._store.locked():
            saved = self.saved
            remaining = tuple(r for r in saved.rules if r.model != model or upstream not in (None, r.upstream))
            if len(remaining) < len(saved.rules):
                self._store.put(msgspec.structs.replace(saved, rules=remaining))
            return len(saved.rules) - len(remaining)

    # ---- Health

    def health(self, name: str) -> Health:
        """Result of the last check. Its models may come from an earlier process."""
        health = self._health.get(name)
        return health or Health(models=self.saved.models.get(name, ()))

    def saw(self, name: str, health: Health) -> None:
        """Store the result of a check. A failed one leaves the known models unchanged."""
        if health.state != "ok":
            self._health[name] = msgspec.structs.replace(health, models=self.health(name).models)
            return
        self._health[name] = health
        if self.saved.models.get(name) == health.models:
            return
        with self._store.locked():
            saved = self.saved
            if any(u.name == name for u in saved.upstreams):
                self._store.put(msgspec.structs.replace(saved, models={**saved.models, name: health.models}))

    def model(self, upstream: str, model: str) -> UpstreamModel | None:
        """Facts about a model of an upstream, if known."""
        return next((k for k in self.health(upstream).models if k.name == model), None)

    # ---- Routing

    def way(self, model: str) -> UpstreamRoute | None:
        """The server that gets all requests for this name; None if they stay here.

        Raises: NoRule: the name is that of an upstream's model, and no rule sends it there.
        """
        route = self._first(model, lambda rule: rule.always)
        if route is None and (upstream := self._owner(model)) is not None:
            raise NoRule(model, upstream)
        return route

    def allows(self, model: str) -> bool:
        """Whether requests for this name always go to an upstream."""
        return self._first(model, lambda rule: rule.always) is not None

    def relief(self, model: str, *, queued: int | None) -> UpstreamRoute | None:
        """Route of a request that would wait behind `queued` others here or (None) whose model does not fit."""
        if queued is None:
            return self._first(model, lambda rule: rule.unfit)
        return self._first(model, lambda rule: rule.queue is not None and queued > rule.queue)

    def _first(self, model: str, holds: Callable[[Rule], bool]) -> UpstreamRoute | None:
        saved = self.saved
        if not saved.rules:
            return None
        for rule in saved.rules:
            if fnmatchcase(model, rule.model) and holds(rule):
                upstream = next((u for u in saved.upstreams if u.name == rule.upstream), None)
                if upstream is not None:
                    return UpstreamRoute(
                        upstream=upstream,
                        model=rule.as_model or model.removeprefix(f"{rule.upstream}/"),
                        rule=rule,
                    )
        return None

    def _owner(self, model: str) -> str | None:
        head, slash, _ = model.partition("/")
        return head if slash and any(u.name == head for u in self.saved.upstreams) else None

    # ---- Library entries

    def entries(self) -> tuple[ModelEntry, ...]:
        """Every model of every upstream, as the library lists models."""
        saved = self.saved
        return tuple(self._entry(u, model) for u in saved.upstreams for model in self.health(u.name).models)

    def entry(self, name: str) -> ModelEntry | None:
        """The model that a request for this name would reach, if a rule or its prefix sends it to an upstream."""
        way = self._first(name, lambda rule: rule.always)
        if way is not None:
            listed = self.model(way.upstream.name, way.model) or UpstreamModel(name=way.model)
            return msgspec.structs.replace(self._entry(way.upstream, listed), id=name)
        owner = self._owner(name)
        if owner is None:
            return None
        model = self.model(owner, name.removeprefix(f"{owner}/"))
        return None if model is None else self._entry(self.get(owner), model)

    def _entry(self, upstream: Upstream, model: UpstreamModel) -> ModelEntry:
        health = self.health(upstream.name)
        down = health.state in {"refused", "unreachable", "failed"}
        return ModelEntry(
            id=f"{upstream.name}/{model.name}",
            name=f"{model.name} (on {upstream.name})",
            format="remote",
            files=(),
            origin=Origin(kind="remote", app=upstream.name, repo=upstream.url),
            details=Details(
                architecture="remote", quantization="", context_train=model.n_ctx, capabilities=model.capabilities
            ),
            added_at=0.0,
            folder=f"{PREFIX}{upstream.name}/{model.name}",
            problem=sentence(health.reason) if down else None,
        )


def external_entries(entries: Iterable[ModelEntry], *, fresh: bool = False) -> tuple[ModelEntry, ...]:
    """Models that programs found here could serve, in addition to the library's `entries`.

    A program's list of models is read once, and again with `fresh`. Blocks.
    """
    catalogue, external = tuple(entries), []
    for name, kind in KINDS.items():
        if kind.reads and kind.program():
            fitting = (e for e in catalogue if e.format == kind.reads and e.state == "online")
            external += [_served_by(name, kind.title, entry) for entry in fitting]
        if kind.models is not None:
            external += [_program_model(name, kind.title, model) for model in kind.models(fresh)]
    return tuple(external)


def _served_by(name: str, title: str, entry: ModelEntry) -> ModelEntry:
    """A model of the library under an id that selects this program; its files are those of its own entry."""
    return msgspec.structs.replace(
        entry,
        id=f"{name}:{entry.id}",
        name=f"{entry.name} ({title})",
        format=name,
        files=(),
    )


def _program_model(name: str, title: str, model: FlmModel) -> ModelEntry:
    """A model that only the program has."""
    return ModelEntry(
        id=f"{name}:{model.tag}",
        name=f"{model.tag} ({title})",
        format=cast("Any", name),  # each kind is one of the library's formats
        files=(),
        origin=Origin(kind="linked", app=title.lower()),
        details=Details(
            architecture=model.family or name,
            title=" ".join(filter(None, (model.tag, model.parameters, model.quantization))),
            n_params=model.num_params,
            context_train=model.context,
            quantization=model.quantization or "NPU",
            capabilities=("chat",),
        ),
        added_at=0.0,
        folder=model.tag,
    )


def checked_url(url: str) -> str:
    """An address without the `/v1` at its end. Raises: InputFault: not an address, or one with a password."""
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError as error:
        raise InputFault(because("no_address", url=url, why=str(error)), "url") from None
    del port
    clean = all(c.isprintable() and not c.isspace() for c in url.strip())
    if parts.scheme not in {"http", "https"} or not parts.hostname or not clean:
        raise InputFault(because("no_such_address", url=url), "url")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise InputFault(because("address_with_secret"), "url")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}"


def origin(url: str) -> tuple[str, str | None, int | None]:
    """Scheme, host and port of an address: what a key belongs to."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)
