"""Known bad combinations of engine, backend, chip, driver and settings: what goes wrong, and the workaround.

The rules come with the program (assets/fault_rules.json). A newer signed file may replace them, and faults found on
this computer are separate rules. A rule matches if all its conditions hold; an unknown fact matches no condition,
except those that the rule assumes.
"""

import contextlib
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec

from devices.atomic_file import locked, write_atomically
from devices.chips import architectures
from devices.environment import user_folder
from devices.errors import FaultRulesRefused
from devices.msgspec_lock import learned
from devices.types import Device, Machine

FORMAT: Final = 1
SHIPPED: Final = Path(__file__).resolve().parents[1] / "assets" / "fault_rules.json"
UPDATE: Final = "fault_rules.json"
LOCAL: Final = "found_here.json"
FOUND: Final = "here-"  # prefix of these rules' names
MAX_BYTES: Final = 4 << 20
MAX_FOUND: Final = 100
# Variables that a rule may set: switches of ggml's backends, never paths or libraries.
_VARIABLE: Final = re.compile(r"(GGML_(VK|CUDA|HIP|SYCL|OPENCL|METAL)|HIP_LAUNCH|LLAMA_ATTN)_[A-Z0-9_]{1,48}\Z")

EMPTY: Final[Mapping[str, str]] = {}
Decoded = TypeVar("Decoded")

Effect = Literal["wrong answers", "hang", "crash", "will not load", "wrong memory", "slow"]
_Word = Annotated[str, msgspec.Meta(max_length=64)]
_Text = Annotated[str, msgspec.Meta(max_length=600)]
_Pattern = Annotated[str, msgspec.Meta(max_length=200)]


class Span(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Versions from `first` up to, not including, `until`, or those of `only`; compared number by number."""

    first: _Word = ""
    until: _Word = ""
    only: tuple[_Word, ...] = ()

    def holds(self, version: str) -> bool:
        """Whether it contains this version. `7.0` means every 7.0.x in `only`."""
        parts = numbers(version)
        if not parts:
            return False
        if self.only:
            return any(parts[: len(numbers(one))] == numbers(one) for one in self.only)
        return (not self.first or parts >= numbers(self.first)) and (not self.until or parts < numbers(self.until))


class Builds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Builds of llama.cpp from `first` up to, not including, `until`, which is the build with the fix.

    `good`: commits within this range that have the fix. `patches`: commits that fix it, by chip pattern.
    """

    first: int = 0
    until: int = 1 << 31
    good: tuple[_Word, ...] = ()
    patches: dict[_Word, _Pattern] = {}


class When(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Conditions; omitted ones always hold.

    `gpu` is a pattern for the chip's architecture or name. `versions` must all hold, of `any_version` one; one of
    `unless` that holds makes the rule not apply. `assume` names conditions that hold if nothing is known.
    """

    backends: tuple[_Word, ...]
    systems: tuple[_Word, ...] = ()
    vendor: _Word = ""
    gpu: _Pattern = ""
    integrated: bool | None = None
    gpus: int = 0
    builds: Builds | None = None
    versions: dict[_Word, Span] = {}
    any_version: dict[_Word, Span] = {}
    unless: dict[_Word, Span] = {}
    architectures: _Pattern = ""
    tensor_types: _Pattern = ""
    head_size: int = 0
    file_gib: float = 0.0
    tensor_gib: float = 0.0
    depth: int = 0
    ubatch_over: int = 0
    ubatch_to: int = 0
    drafts: int = 0
    mmap: bool | None = None
    flash: bool | None = None
    quantized_cache: bool | None = None
    host_experts: bool | None = None
    host_cache: bool | None = None
    checkpoints: bool | None = None
    projector: bool | None = None
    direct_io: bool | None = None
    variable: _Word = ""
    assume: tuple[_Word, ...] = ()


class Then(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The workaround: the backend is avoided, or used with other settings or variables; an empty value removes one.

    `max_ubatch` counts from `depth` tokens of context on. `engine` and `advice` are for the user.
    """

    avoid: bool = False
    use_mmap: bool | None = None
    flash_attn: Literal["", "off"] = ""
    plain_cache: bool = False
    max_ubatch: int = 0
    min_ubatch: int = 0
    depth: int = 0
    max_draft: int | None = None
    checkpoints: bool | None = None
    host_cache: bool | None = None
    direct_io: bool | None = None
    one_gpu: bool = False
    projector: Literal["", "cpu"] = ""
    environment: dict[_Word, _Word] = {}
    engine: _Text = ""
    advice: _Text = ""


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One known fault. `finding` names a finding of `tessera doctor` that already reports it."""

    id: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9.-]{0,63}\Z")]
    title: _Text
    effect: Effect
    when: When
    then: Then
    sources: tuple[_Text, ...]
    finding: _Word = ""


class Rules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of rules: when it was issued, and how commits, dates and versions relate to builds of llama.cpp."""

    format: int
    issued: date
    rules: tuple[Rule, ...]
    commits: dict[_Word, int] = {}
    dates: dict[date, int] = {}
    python_versions: dict[_Word, int] = {}


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about one chip through one backend, about a load there, and about the engine; None or empty: unknown.

    `builds` are the oldest and newest build of llama.cpp that the engine may be. `patches` are commits that it has.
    """

    backend: str
    system: str = ""
    vendor: str = ""
    gpu: str = ""
    integrated: bool | None = None
    gpus: int = 1
    builds: tuple[int, int] | None = None
    patches: tuple[str, ...] = ()
    versions: Mapping[str, str] = {}
    architecture: str = ""
    tensor_types: tuple[str, ...] = ()
    head_size: int | None = None
    file_gib: float | None = None
    tensor_gib: float | None = None
    depth: int | None = None
    ubatch: int | None = None
    drafts: int | None = None
    mmap: bool | None = None
    flash: bool | None = None
    quantized_cache: bool | None = None
    host_experts: bool | None = None
    host_cache: bool | None = None
    checkpoints: bool | None = None
    projector: bool | None = None
    direct_io: bool | None = None
    environment: tuple[str, ...] = ()


# Conditions on the model and the settings of a load. A machine alone has none of them.
_SWITCHES: Final = (
    "mmap", "flash", "quantized_cache", "host_experts", "host_cache", "checkpoints", "projector", "direct_io",
)  # fmt: skip
_LEAST: Final = ("head_size", "file_gib", "tensor_gib", "depth", "drafts")
_MODEL: Final = ("architectures", "tensor_types", "ubatch_over", "ubatch_to")
OF_LOADS: Final = frozenset({*_SWITCHES, *_LEAST, *_MODEL})


def numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: 7.0.0-29-generic is 7, 0, 0."""
    match = re.match(r"[^0-9]{0,16}(\d{1,9}(?:\.\d{1,9}){0,5})", version, re.ASCII)
    return tuple(int(part) for part in match[1].split(".")) if match else ()


def matching(rules: Iterable[Rule], facts: Facts, *, machine_only: bool = False) -> tuple[Rule, ...]:
    """The rules whose conditions hold; `machine_only`: those on models and settings are taken to hold."""
    return tuple(rule for rule in rules if _matches(rule, facts, machine_only=machine_only))


def _matches(rule: Rule, facts: Facts, *, machine_only: bool) -> bool:
    when = rule.when
    if facts.backend not in when.backends or any(_in(span, facts, key) for key, span in when.unless.items()):
        return False
    in_doubt = rule.effect == "wrong answers" or not rule.then.avoid
    for name, holds in _conditions(when, facts, in_doubt=in_doubt):
        if machine_only and name in OF_LOADS:
            continue
        if holds is False or (holds is None and name not in when.assume):
            return False
    return True


def _conditions(when: When, facts: Facts, *, in_doubt: bool) -> Iterable[tuple[str, bool | None]]:
    """Each condition that is given, and whether it holds; None: not known."""
    yield from _of_machine(when, facts, in_doubt=in_doubt)
    if when.architectures:
        name = facts.architecture
        yield "architectures", re.fullmatch(when.architectures, name) is not None if name else None
    if when.tensor_types:
        kinds = facts.tensor_types
        yield "tensor_types", any(re.fullmatch(when.tensor_types, kind) for kind in kinds) if kinds else None
    for name in _LEAST:
        least, amount = getattr(when, name), getattr(facts, name)
        if least:
            yield name, None if amount is None else amount >= least
    if when.ubatch_over:
        yield "ubatch_over", None if facts.ubatch is None else facts.ubatch > when.ubatch_over
    if when.ubatch_to:
        yield "ubatch_to", None if facts.ubatch is None else facts.ubatch <= when.ubatch_to
    for name in _SWITCHES:
        expected, here = getattr(when, name), getattr(facts, name)
        if expected is not None:
            yield name, None if here is None else here == expected


def _of_machine(when: When, facts: Facts, *, in_doubt: bool) -> Iterable[tuple[str, bool | None]]:
    if when.systems:
        yield "systems", facts.system in when.systems if facts.system else None
    if when.vendor:
        yield "vendor", facts.vendor == when.vendor if facts.vendor else None
    if when.gpu:
        names = _with_architecture(facts.gpu)
        yield "gpu", re.search(when.gpu, names, re.IGNORECASE) is not None if facts.gpu else None
    if when.integrated is not None:
        yield "integrated", None if facts.integrated is None else facts.integrated == when.integrated
    if when.gpus:
        yield "gpus", facts.gpus >= when.gpus
    if when.builds is not None:
        yield "builds", _in_builds(when.builds, facts, in_doubt=in_doubt)
    for key, span in when.versions.items():
        yield key, _in(span, facts, key)
    if when.any_version:
        matches = {_in(span, facts, key) for key, span in when.any_version.items()}
        yield "any_version", True if True in matches else False if False in matches else None
    if when.variable:
        yield "variable", when.variable in facts.environment


def _with_architecture(gpu: str) -> str:
    """The chip's names, with AMD's name of its architecture if they lack it."""
    return gpu if "gfx" in gpu else " ".join((gpu, *architectures(gpu)))


def _in(span: Span, facts: Facts, key: str) -> bool | None:
    version = facts.versions.get(key)
    return span.holds(version) if version else None


def _in_builds(builds: Builds, facts: Facts, *, in_doubt: bool) -> bool | None:
    """Whether the engine is one of these; a commit or patch that repairs it decides first.

    in_doubt: it counts if it may be one. A crash is noticed, and other settings are tried; wrong answers are not
    noticed.
    """
    repairs = dict.fromkeys(builds.good, "") | builds.patches
    for commit, chips in repairs.items():
        has_it = any(have.startswith(commit) or commit.startswith(have) for have in facts.patches)
        if has_it and re.search(chips, _with_architecture(facts.gpu), re.IGNORECASE):
            return False
    if facts.builds is None:
        return None if (builds.first, builds.until) != (0, 1 << 31) else True
    oldest, newest = facts.builds
    if in_doubt:
        return newest >= builds.first and oldest < builds.until
    return oldest >= builds.first and newest < builds.until


# ---- This computer


def gpu_facts(
    machine: Machine, device: Device, backend: str, builds: tuple[int, int] | None, extra: Mapping[str, str] = EMPTY
) -> Facts:
    """The facts about a device through a backend, without a load; `extra` are more versions."""
    versions = {**dict(machine.versions), **extra}
    versions["kernel" if machine.system == "linux" else "system"] = machine.kernel
    if device.driver_version:
        versions["windows_driver" if machine.system == "windows" else str(device.driver)] = device.driver_version
        if device.vendor == "NVIDIA":
            versions["nvidia"] = _nvidia_version(device.driver_version)
    if device.kind == "igpu" and device.memory.dedicated_bytes is not None:
        versions["carve_out_gib"] = f"{device.memory.dedicated_bytes / 2**30:.1f}"
    names = sorted({runtime.description for runtime in device.runtimes})
    alike = [d for d in machine.devices if d.vendor == device.vendor and d.kind == device.kind]
    return Facts(
        backend=backend,
        system="wsl" if machine.environment == "wsl2" else machine.system,
        vendor=device.vendor,
        gpu=" ".join(filter(None, (device.arch, device.name, device.pci_id, *names))),
        integrated=device.kind == "igpu",
        gpus=len(alike),
        builds=builds,
        versions={name: value for name, value in versions.items() if value},
        environment=machine.variables,
    )


def _nvidia_version(version: str) -> str:
    """NVIDIA's own number of a driver: Windows' 32.0.15.8088 is 580.88."""
    match = re.fullmatch(r"\d+\.\d+\.\d*(\d)\.(\d\d)(\d\d)", version, re.ASCII)
    return f"{match[1]}{match[2]}.{match[3]}" if match else version


def engine_builds(rules: Rules, version: str | None) -> tuple[int, int] | None:
    """The build of llama.cpp in a version of llama-cpp-python (None: the shipped one); None if it is not listed."""
    if version is None:
        try:
            version = metadata.version("llama-cpp-python")
        except metadata.PackageNotFoundError:
            return None
    build = rules.python_versions.get(version)
    return (build, build) if build is not None else None


def of_compiler(rules: Rules, backend: str, built: Mapping[str, str]) -> list[Rule]:
    """The rules about the compiler that a kernel pack was built with, as its manifest says."""
    version = built.get("nvcc", "")
    about = [r for r in rules.rules if backend in r.when.backends and set(r.when.versions) == {"nvcc"}]
    facts = Facts(backend=backend, versions={"nvcc": version})
    return list(matching(about, facts, machine_only=True)) if version else []


def on_machine(rules: Rules, machine: Machine, builds: tuple[int, int] | None) -> list[tuple[Device, str, Rule]]:
    """The rules that concern a GPU of this machine through one of its backends, whatever the model."""
    matches = []
    for device in machine.devices:
        for backend in dict.fromkeys(r.backend for r in device.runtimes if device.kind in {"igpu", "dgpu"}):
            facts = gpu_facts(machine, device, backend, builds)
            matches += [(device, backend, rule) for rule in matching(rules.rules, facts, machine_only=True)]
    return matches


# ---- The file


def parse(data: bytes) -> Rules:
    """The rules of a file. Raises: FaultRulesRefused: it cannot be read, or a rule asks for more than it may."""
    if len(data) > MAX_BYTES:
        raise FaultRulesRefused(f"it has {len(data)} bytes, at most {MAX_BYTES} are read")
    rules = _decoded(data, Rules)
    if rules.format != FORMAT:
        raise FaultRulesRefused(f"it has format {rules.format}, this program reads {FORMAT}; update Tessera")
    if len(rules.dates) <= 1:
        raise FaultRulesRefused("it says for fewer than two dates which build of llama.cpp they had")
    names = [rule.id for rule in rules.rules]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise FaultRulesRefused(f"two of its rules are named {twice}")
    for rule in rules.rules:
        _check(rule)
    return rules


def _check(rule: Rule) -> None:
    when, then = rule.when, rule.then
    chips = when.builds.patches.values() if when.builds else ()
    for pattern in (when.gpu, when.architectures, when.tensor_types, *chips):
        try:
            re.compile(pattern)
        except re.error as error:
            raise FaultRulesRefused(f"rule {rule.id} has the pattern {pattern!r}: {error}") from error
        # Nested repetition takes exponential time on a name that almost matches.
        if re.search(r"[+*}]\)?[+*{]", pattern):
            raise FaultRulesRefused(f"rule {rule.id} has a pattern with nested repetition: {pattern!r}")
    for name in then.environment:
        if not _VARIABLE.match(name):
            raise FaultRulesRefused(f"rule {rule.id} sets {name!r}, which rules may not set")
    if not 0 <= then.max_ubatch <= 1 << 16 or not 0 <= then.min_ubatch <= 1 << 16:
        raise FaultRulesRefused(f"rule {rule.id} asks for an impossible chunk size")


def folder() -> Path:
    """Folder of the user's own files of rules."""
    return user_folder("fault_rules", "TESSERA_FAULT_RULES")


def load(own: Path | None = None) -> Rules:
    """The newest rules, shipped or updated, and those that were found on this computer.

    An update that cannot be read, or is older than what came with the program, is ignored.
    """
    own = own or folder()
    rules = parse(SHIPPED.read_bytes())
    with contextlib.suppress(OSError, FaultRulesRefused):
        update = parse(_read(own / UPDATE))
        rules = update if update.issued > rules.issued else rules
    with contextlib.suppress(OSError, FaultRulesRefused):
        rule_ids = {rule.id for rule in rules.rules}
        more = tuple(rule for rule in parse_rules(_read(own / LOCAL)) if rule.id not in rule_ids)
        rules = msgspec.structs.replace(rules, rules=(*rules.rules, *more))
    return rules


class CurrentRules:
    """The rules in use, read again after an update. Thread-safe: two threads may read the same file."""

    def __init__(self, own: Path | None = None) -> None:
        self._own = own
        self._seen: object = None
        self._rules: Rules | None = None

    @property
    def folder(self) -> Path:
        """The folder of the user's own files."""
        return self._own or folder()

    def now(self) -> Rules:
        own = self.folder
        seen = tuple(_changed(own / name) for name in (UPDATE, LOCAL))
        rules = self._rules
        if rules is None or seen != self._seen:
            rules = load(own)
            self._rules, self._seen = rules, seen
        return rules


def _changed(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def parse_rules(data: bytes) -> tuple[Rule, ...]:
    """Rules alone, as they are stored for this computer. Raises: FaultRulesRefused."""
    rules = _decoded(data, tuple[Rule, ...])
    for rule in rules:
        _check(rule)
    return rules


def found_here(own: Path | None = None) -> tuple[Rule, ...]:
    """The rules of faults that were found on this computer; empty if their file cannot be read."""
    try:
        return parse_rules(_read((own or folder()) / LOCAL))
    except (OSError, FaultRulesRefused):
        return ()


def add_found(rule: Rule, own: Path | None = None) -> None:
    """Store the rule of a fault that was found here. Of many, the newest stay. Raises: OSError."""
    _change_found(own, lambda rules: (*(other for other in rules if other.id != rule.id), rule)[-MAX_FOUND:])


def forget_found(rule_id: str, own: Path | None = None) -> bool:
    """Delete the rule of a fault that was found here; False if there is none of that name. Raises: OSError."""
    exists = any(rule.id == rule_id for rule in found_here(own))
    if exists:
        _change_found(own, lambda rules: tuple(rule for rule in rules if rule.id != rule_id))
    return exists


def _change_found(own: Path | None, change: Callable[[tuple[Rule, ...]], tuple[Rule, ...]]) -> None:
    path = (own or folder()) / LOCAL
    with locked(path):
        rules = [as_json(rule) for rule in change(found_here(path.parent))]
        write_atomically(path, msgspec.json.encode(rules))


def _decoded(data: bytes, kind: type[Decoded]) -> Decoded:
    try:
        return msgspec.json.decode(data, type=learned(kind))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FaultRulesRefused(f"it cannot be read: {error}") from error


def as_json(rule: Rule) -> dict[str, Any]:
    """The rule without the fields that have their defaults."""
    built: dict[str, Any] = msgspec.to_builtins(rule)
    defaults = {"when": msgspec.to_builtins(When(backends=())), "then": msgspec.to_builtins(Then())}
    for part, usual in defaults.items():
        built[part] = {key: value for key, value in built[part].items() if value != usual[key]}
    return built


def update(data: bytes, own: Path | None = None) -> Rules:
    """Use these rules, whose signature was checked, from the next load on. Raises: FaultRulesRefused, OSError."""
    new, own = parse(data), own or folder()
    now = load(own)
    if new.issued <= now.issued:
        raise FaultRulesRefused(f"it was issued on {new.issued}, the rules in use on {now.issued}")
    own.mkdir(parents=True, exist_ok=True)
    write_atomically(own / UPDATE, data)
    return new


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_BYTES + 1)


# ---- What follows


def together(rules: Iterable[Rule]) -> Then:
    """The settings of several rules: the smaller of two limits, and every variable."""
    combined = Then()
    for rule in rules:
        then = rule.then
        changes: dict[str, Any] = {}
        for name in ("use_mmap", "checkpoints", "host_cache", "direct_io"):
            if getattr(then, name) is not None:
                changes[name] = getattr(then, name)
        for name in ("flash_attn", "plain_cache", "one_gpu", "projector"):
            if getattr(then, name):
                changes[name] = getattr(then, name)
        if then.max_ubatch:
            changes["max_ubatch"] = min(then.max_ubatch, combined.max_ubatch or then.max_ubatch)
            changes["depth"] = min(then.depth, combined.depth) if combined.max_ubatch else then.depth
        changes["min_ubatch"] = max(then.min_ubatch, combined.min_ubatch)
        if then.max_draft is not None:
            before = then.max_draft if combined.max_draft is None else combined.max_draft
            changes["max_draft"] = min(then.max_draft, before)
        changes["environment"] = {**combined.environment, **then.environment}
        combined = msgspec.structs.replace(combined, **changes)
    return combined
