"""States of machines from public threads: what the rules of known bad combinations say, and what the thread found.

`python -m tests.support.machines.known_states FILE` prints both for another file of the same form.
"""

import calendar
import json
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import msgspec

from devices.fault_rules import Facts, Rule, Rules, Then, load, matching, together

STATES = Path(__file__).parents[2] / "data" / "machines" / "known_states.json"
FURTHER = STATES.with_name("further_states.json")
BACKENDS = {"hip": "rocm"}
# Backends that run the layers instead of an avoided one.
INSTEAD = {"rocm": "vulkan", "cuda": "vulkan", "sycl": "vulkan"}
SHORTEST_COMMIT = 7  # git's own shortest form
MONTHS = {name: number for number, name in enumerate(calendar.month_abbr) if name}
# What a file's name says of its architecture, where the thread names the model only.
ARCHITECTURES = {
    "qwen35moe": r"qwen ?3\.[56][- ](35b|122b|397b)|qwen3\.[56].*-a\d+b",
    "qwen4exp": r"flash-next|qwen ?3\.8[- ]flash",
    "qwen35": r"qwen ?3\.[5-8]",
    "qwen3next": r"qwen3-next|80b-a3b",
    "qwen3moe": r"qwen3.*a3b|qwen3-coder:30b",
    "gemma4": r"gemma[- ]?4",
    "gemma3n": r"gemma[- ]?3n",
    "deepseek4": r"deepseek[- ]?v4",
    "gpt-oss": r"gpt-oss",
    "glm4moe": r"glm-4\.[5-7](?!.*flash)",
    "mistral4": r"mistral small 4|mistral-small-4",
    "minimax-m2": r"minimax[- ]m2",
    "jamba": r"jamba",
}
VENDORS = {
    "AMD": r"gfx|radeon|\brx \d|vega|r9700",
    "NVIDIA": r"rtx|gtx|nvidia|tesla|quadro|[hab]100",
    "Intel": r"arc|iris|uhd|intel|xe\d?\b",
    "Qualcomm": "adreno",
    "Apple": "apple|metal",
}
# Builds of other programs count in their own way.
FORKS = re.compile(r"strix-llama|ik_llama|rocmfp|hal0|ollama|torch|koboldcpp|beellama", re.IGNORECASE)
# File types whose name hides tensors of other types.
MIXED = {
    "IQ3_S": r"IQ3_(M|S|XS)|UD-(IQ3|Q3_K|Q2_K).*",
    "IQ2_S": r"IQ2_(M|S|XS)|UD-(IQ2|IQ1|Q2_K).*",
    "IQ1_S": r"IQ1_S|UD-IQ1.*",
    "Q6_K": r"Q4_0.*Q6_K|Q[3-6]_K.*",
    "Q4_K": r"(UD-)?Q4_K.*",
    "Q8_0": r"(UD-)?Q8_0|Q8_0.*",
}


@dataclass(frozen=True)
class Decision:
    """The result of the rules for one chip: the backend to use (`cpu`: none of the chip's), and why.

    `rules` are those that matched on the way. `then` are the settings for that backend; `engine` and `advice` are
    for the user.
    """

    backend: str
    rules: tuple[Rule, ...]
    then: Then
    engine: tuple[str, ...]
    advice: tuple[str, ...]


def decide(rules: Iterable[Rule], facts: Facts, *, other: Mapping[str, str] = INSTEAD) -> Decision:
    """The result for these facts; `other` returns the backend that replaces an avoided one."""
    rules = tuple(rules)
    matched: list[Rule] = []
    backend = facts.backend
    while True:
        here = matching(rules, msgspec.structs.replace(facts, backend=backend))
        matched += [rule for rule in here if rule not in matched]
        if not any(rule.then.avoid for rule in here):
            break
        backend = other.get(backend, "cpu")
    return Decision(
        backend=backend,
        rules=tuple(matched),
        then=together(here),
        engine=tuple(rule.then.engine for rule in matched if rule.then.engine),
        advice=tuple(dict.fromkeys(rule.then.advice for rule in matched if rule.then.advice)),
    )


def build_on(rules: Rules, day: date) -> int:
    """The build of llama.cpp of that day, interpolated or extrapolated from the known ones."""
    dates = sorted(rules.dates.items())
    after = next((i for i, (at, _) in enumerate(dates) if at >= day), len(dates) - 1)
    (start, low), (end, high) = dates[max(0, after - 1)], dates[max(1, after)]
    return max(0, low + round((day - start).days * (high - low) / max(1, (end - start).days)))


def build_of(rules: Rules, commit: str) -> int | None:
    """The build of a commit, by its first seven or more digits; None if it is not listed."""
    short = commit.lower()
    if len(short) < SHORTEST_COMMIT:
        return None
    return next((n for at, n in rules.commits.items() if at.startswith(short) or short.startswith(at)), None)


def states(path: Path = STATES) -> list[dict[str, Any]]:
    """The states of a file."""
    return list(json.loads(path.read_text(encoding="utf-8"))["states"])


def facts_of(state: dict[str, Any], rules: Rules) -> Facts:
    """What the thread tells, as the program knows it."""
    told = _whole(state["facts"])
    system, gpu, engine = told.get("os", {}), told.get("gpu", {}), told.get("engine", {})
    model, settings = told.get("model", {}), told.get("settings", {})
    name = f"{gpu.get('gfx', '')} {gpu.get('name', '')} {gpu.get('pci', '')}"
    name += f" cc {gpu['cc']}" if gpu.get("cc") else ""
    count = re.match(r"(\d) ?x ", str(gpu.get("name", "")))
    depth = [settings.get(key) for key in ("depth", "prompt_tokens")]
    drafts = next((n for key in ("drafts", "draft", "mtp") if (n := _number(settings.get(key))) is not None), None)
    offload = settings.get("gpu_layers")
    host = settings.get("n_cpu_moe") or settings.get("cpu_moe")
    cache = [str(settings[k]) for k in ("kv_type", "type_k", "type_v", "kv_type_k", "kv_type_v") if k in settings]
    flash = settings.get("flash_attn")
    return Facts(
        backend=BACKENDS.get(str(engine.get("backend", "")), str(engine.get("backend", ""))),
        system="wsl" if "WSL" in str(system.get("subsystem", "")) else _system(system),
        vendor=next((v for v, words in VENDORS.items() if re.search(words, name, re.IGNORECASE)), ""),
        gpu=name,
        integrated=gpu.get("integrated"),
        gpus=int(count[1]) if count else int(gpu.get("count", 1)),
        builds=_builds(engine, rules),
        patches=_patches(engine),
        versions=_versions(told),
        architecture=_architecture(model),
        tensor_types=_types(model),
        head_size=model.get("head_size"),
        file_gib=_number(model.get("file_gib", model.get("device_gib"))),
        depth=max((int(n) for n in depth if isinstance(n, int)), default=None),
        ubatch=settings.get("ubatch") if isinstance(settings.get("ubatch"), int) else None,
        drafts=int(drafts) if drafts is not None else None,
        mmap=settings.get("mmap"),
        flash=None if flash is None else str(flash) not in {"off", "False"},
        quantized_cache=any(one not in {"f16", "bf16", "f32"} for one in cache) if cache else None,
        host_experts=bool(host) or offload == 0 if host is not None or offload == 0 else None,
        host_cache=not settings["kv_offload"] if "kv_offload" in settings else settings.get("no_kv_offload"),
        checkpoints=settings.get("checkpoints"),
        projector=model.get("mmproj"),
        direct_io=settings.get("direct_io"),
        environment=tuple({**settings.get("env", {}), **system.get("env", {})}),
    )


def _whole(told: dict[str, Any]) -> dict[str, Any]:
    """The facts with one GPU: of several, the first, and how many are like it."""
    gpus = told.get("gpus") or told.get("gpu")
    if not isinstance(gpus, list):
        return told
    alike = [gpu for gpu in gpus if gpu.get("name") == gpus[0].get("name")]
    return {**told, "gpu": {"count": len(alike), **gpus[0]}}


def _architecture(model: dict[str, Any]) -> str:
    if model.get("arch"):
        return str(model["arch"]).split()[0]
    name = str(model.get("name", "")).lower()
    return next((arch for arch, words in ARCHITECTURES.items() if re.search(words, name)), "")


def _system(told: dict[str, Any]) -> str:
    return str(told.get("system") or ("linux" if told.get("distro") or told.get("cmdline") else ""))


def _builds(engine: dict[str, Any], rules: Rules) -> tuple[int, int] | None:
    """Its place among the builds of llama.cpp: by number, by commit, else by the month that the thread names."""
    text, program = str(engine.get("build", "")), str(engine.get("program", ""))
    own = FORKS.search(program) is None
    if own and (found := re.search(r"\bb(\d{4,5})\b", text)):
        build = int(found[1])
        return (build, build + 400) if "after" in text else (build, build)
    for commit in (str(engine.get("commit", "")), text):
        if own and (build := build_of(rules, commit.split()[0] if commit else "")) is not None:
            return (build, build)
    python = rules.python_versions.get(text) if program == "llama-cpp-python" else None
    if python is not None:
        return (python, python)
    words = f"{text} {engine.get('commit', '')}"
    months = [MONTHS[m[:3]] for m in re.findall(r"[A-Z][a-z]{2,8}", words) if m[:3] in MONTHS]
    year = re.search(r"20(2\d)", words)
    if not months or year is None:
        return None
    start = date(2000 + int(year[1]), months[0], 1)
    end = date(start.year, months[-1], calendar.monthrange(start.year, months[-1])[1])
    if "early" in words:
        end = start + timedelta(days=9)
    return build_on(rules, start), build_on(rules, end)


def _patches(engine: dict[str, Any]) -> tuple[str, ...]:
    return tuple(re.findall(r"\b[0-9a-f]{7,12}\b", f"{engine.get('commit', '')} {engine.get('build', '')}"))


def _versions(told: dict[str, Any]) -> dict[str, str]:
    system, gpu, engine = told.get("os", {}), told.get("gpu", {}), told.get("engine", {})
    found = {name: _told(told, name) for name in ("kernel", "rocm", "mesa")}
    cuda = str(_told(told, "cuda") or "")
    found["nvcc"] = next(iter(re.findall(r"(?:nvcc V?|V)([\d.]+)", cuda)), cuda or None)
    drivers = f"{gpu.get('driver', '')} {system.get('driver', '')} {told.get('driver', '')}"
    found["windows_driver"] = next(iter(re.findall(r"\b\d\d\.0\.\d{2,5}\.\d{2,5}\b", drivers)), None)
    found["adrenalin"] = next(iter(re.findall(r"(?<![\d.])2[4-9]\.\d{1,2}\.\d(?![\d.])", drivers)), None)
    found["amdgpu_dkms"] = next(iter(re.findall(r"dkms ([\d.]+)", drivers)), None)
    found["adreno_compiler"] = next(iter(re.findall(r"E0(\d\d\.\d+)", drivers)), None)
    firmware = str(_told(told, "firmware") or "")
    found["mes"] = str(int(mes[1], 16)) if (mes := re.search(r"MES 0x([0-9a-fA-F]+)", firmware)) else None
    found["linux_firmware"] = next(iter(re.findall(r"20\d{6}", firmware)), None)
    timeout = re.search(r"lockup_timeout=(\d+)", str(_told(told, "cmdline")))
    found["lockup_timeout_ms"] = timeout[1] if timeout else system.get("lockup_timeout")
    has_fix = "cwsr_enable=0" in str(_told(told, "cmdline")) or re.search(
        r"-10(1[89]|[2-9]\d)-oem", str(system.get("kernel"))
    )
    found["cwsr_fix"] = "1" if has_fix else None
    found["board_axb35"] = "1" if "AXB35" in str(told.get("board", "")) else None
    found["carve_out_gib"] = gpu.get("vram_gib") if gpu.get("integrated") else None
    if "Ollama" in str(engine.get("program", "")):
        found["ollama"] = engine.get("build")
    if "NVIDIA" in drivers or gpu.get("cc"):
        found["nvidia"] = next(iter(re.findall(r"\b\d{3}\.\d{2,3}", drivers)), None)
    return {key: str(value) for key, value in found.items() if value is not None}


def _told(told: dict[str, Any], name: str) -> Any:
    """A version, wherever the state has it."""
    places = (told, told.get("os", {}), told.get("gpu", {}), told.get("engine", {}), told.get("settings", {}))
    return next((place[name] for place in places if place.get(name)), None)


def _types(model: dict[str, Any]) -> tuple[str, ...]:
    """Types of its tensors: as counted, else those that the name of its file type implies."""
    told = model.get("tensor_types")
    if isinstance(told, dict):
        return tuple(kind for kind, count in told.items() if count)
    quant = f"{told or ''} {model.get('quant', '')}".strip()
    named = re.findall(r"(?:IQ|Q)\d_[0-9A-Z_]+", quant)
    return tuple({*named, *(kind for kind, words in MIXED.items() if re.fullmatch(words, quant))})


def _number(value: Any) -> float | None:
    if isinstance(value, bool):
        return float(value)
    found = re.search(r"\d+(\.\d+)?", str(value)) if value is not None else None
    return float(found[0]) if found else None


def agrees(state: dict[str, Any], decision: Decision) -> bool:
    """Whether the decision is what the thread found to work, or an alternative that it names."""
    expected = state["expected_decision"]
    now = state["facts"]["engine"].get("backend", "")
    backend = {"rocm": "hip"}.get(decision.backend, decision.backend)
    changed = _changes(decision)
    if state["kind"] == "healthy":
        return not decision.rules
    others = " ".join(map(str, expected.get("or_", ())))
    allowed = _expected_changes(expected)
    if backend == expected.get("backend", now) or re.search(rf"\b{backend}\b", others):
        needs = expected.get("change", {}) if backend == expected.get("backend", now) else {}
        if all(_holds(key, value, changed) for key, value in needs.items()) and (
            needs or backend != now or decision.engine or decision.advice or changed
        ):
            return not (set(changed) - allowed) or backend != now
    by_advice = any(word in " ".join(decision.advice) for word in ("lockup_timeout",) if word in others)
    return by_advice or ("flash_attn off" in others and changed.get("flash_attn") == "off")


def _changes(decision: Decision) -> dict[str, Any]:
    then = decision.then
    told = {"mmap": then.use_mmap, "checkpoints": then.checkpoints, "drafts": then.max_draft}
    found: dict[str, Any] = {name: value for name, value in told.items() if value is not None}
    if then.host_cache is not None:
        found["kv_offload"] = not then.host_cache
    sizes = {"ubatch": then.max_ubatch or then.min_ubatch, "flash_attn": then.flash_attn}
    sizes |= {"projector": then.projector}
    found |= {name: value for name, value in sizes.items() if value}
    found |= {"kv_type": "f16"} if then.plain_cache else {}
    found |= {"env": {k: v for k, v in then.environment.items() if v}} if any(then.environment.values()) else {}
    gone = [k for k, v in then.environment.items() if not v]
    return found | ({"env_remove": gone} if gone else {})


def _expected_changes(expected: dict[str, Any]) -> set[str]:
    words = " ".join(map(str, expected.get("or_", ())))
    named = {"ubatch", "flash_attn", "mmap", "checkpoints", "kv_type", "drafts"}
    return {
        *expected.get("change", {}),
        *(name for name in named if name in words),
        *({"env"} if "GGML" in words else ()),
    }


def _holds(key: str, value: Any, changed: dict[str, Any]) -> bool:
    found = changed.get(key)
    if isinstance(value, dict):
        return isinstance(found, dict) and value.items() <= found.items()
    if isinstance(value, list):
        return set(value) <= set(found or ())
    return bool(found == value)


def main() -> None:
    """Print each state with the decision; * marks those that differ from what the thread found."""
    rules = load()
    wrong = 0
    for state in states(Path(sys.argv[1]) if len(sys.argv) > 1 else STATES):
        decision = decide(rules.rules, facts_of(state, rules))
        good = agrees(state, decision)
        wrong += not good
        names = ", ".join(rule.id for rule in decision.rules)
        print(f"{' ' if good else '*'} {state['id']:28} {decision.backend:7} {_changes(decision)} [{names}]")
        if not good:
            print(f"      expected {state['expected_decision']}")
    print(f"{wrong} differ")


if __name__ == "__main__":
    main()
