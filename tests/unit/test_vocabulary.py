"""The field's words: homemade names for things with a standard name do not return (docs/glossary.md)."""

import ast
import functools
import io
import re
import tokenize

import pytest

from tests.support.sources import PRODUCT, ROOT, texts

# A part of a name between underscores or capitals, and the word to use instead.
BANNED = {
    "acquit": "clear",
    "bury": "on_exit",
    "convict": "isolate",
    "craft": "gptq",
    "crafted": "gptq",
    "desk": "service",
    "guilty": "offending",
    "guesser": "drafter",
    "hope": "prior",
    "hopes": "priors",
    "hungry": "starved",
    "honoured": "unsupported parameter",
    "ladder": "fallbacks",
    "rung": "fallback",
    "spoils": "invalidates",
    "stake": "budget",
    "waste": "rejected",
    "winnings": "accepted",
    "wish": "overrides",
    "wishes": "overrides",
    "workshop": "bench service",
}
# Whole names and parts of names that only these packages may not have.
_SAID = "text, answer, message, explicit, notes: what it is"
_TOLD = "payload, fields, rows, sent, reported: what it is"
_MEMORY = ("need", "fit_", "shape", "repack", "dry_run", "hub_shape", "draft_need", "spread_need")
_MEMORY_FILES = tuple(f"engine/placement/{name}" for name in _MEMORY)
_SPOKEN = {"said": _SAID, "told": _TOLD}
_ROOMS = dict.fromkeys(("room", "rooms"), "budget, capacity, free, left")
_PICTURES = dict.fromkeys(("picture", "pictures"), "image")
_PLACES = dict.fromkeys(("place", "places"), "path, position, index, location")
_PROCESSORS = dict.fromkeys(("processor", "processors"), "cpu")
_CACHES = {
    "known": "cached, existing, retained, measured: what it is",
    "pieces": "chunks",
    "reading": "prefill, header reader",
    "rest": "remaining, others, idle",
}
_MEMORY_WORDS = {
    **_SPOKEN,
    **_ROOMS,
    **_PLACES,
    **_PROCESSORS,
    **_CACHES,
    "kept": "cached, existing, retained, measured: what it is",
    "tell": "report",
}
BANNED_IN = {
    "app": {
        **_SPOKEN,
        "kept": "cached, stored, retained, chosen: what it is",
        "piece": "chunk, item, part, span",
        "pieces": "chunk, item, part, span",
        "say": "echo, emit",
        "tells": "prints, shows",
    },
    "devices": {
        **_SPOKEN,
        **_ROOMS,
        **_PICTURES,
        **_PLACES,
        "kept": "cached, retained, chosen: what it is",
        "tells": "reports",
    },
    "engine/job_kinds/autotune": {
        "told": "fields, entry, config",
    },
    "engine/chat": {
        **_SPOKEN,
        **_ROOMS,
        **_PICTURES,
        **_PLACES,
        **_PROCESSORS,
        **_CACHES,
        "kept": "cached, existing, retained, measured: what it is",
        "say": "emit",
        "tell": "report, on_row",
    },
    "engine/placement": {
        **_SPOKEN,
        **_ROOMS,
        **_PICTURES,
        **_PROCESSORS,
        **_CACHES,
        "guess": "assumed",
        "guesses": "assumed",
        "kept_bytes": "cached_bytes",
        "say": "describe",
        "tell": "report, on_row",
    },
    "engine/documents": {
        **_PICTURES,
    },
    **dict.fromkeys(_MEMORY_FILES, _MEMORY_WORDS),
    "engine/library": {
        **_SPOKEN,
        **_ROOMS,
        **_PLACES,
        **_PROCESSORS,
        **_CACHES,
        "kept": "cached, existing, retained, measured: what it is",
        "tell": "report, on_progress",
    },
    "engine/onnx": {
        "told": "fields, entry, config",
    },
    "engine/pool": {
        **_SPOKEN,
        **_ROOMS,
        **_PLACES,
        **_PROCESSORS,
        **_CACHES,
        "kept": "cached, existing, retained, measured: what it is",
        "tell": "report",
    },
    "engine/job_kinds/quantize": {
        **_SPOKEN,
        "keeper": "service",
    },
    "engine/remotes": {
        "said": "message",
        "tell": "send",
        "told": _TOLD,
    },
    "engine/runner": {
        "cuts": "truncatable",
        "draw": "sample",
        "drawing": "sampling",
        "drawn": "sampled",
        "draws": "samples",
        "foresight": "predictor",
        "giver": "victim",
        "giving_way": "to_preempt",
        "guess": "draft, predict, prefetch",
        "guessed": "drafted, prefetched",
        "guesses": "drafts, predictions",
        "heard": "on_heartbeat, segments",
        "hopeless": "much_slower",
        "_kept": "cacheable",
        "kept_prefix": "usable_prefix",
        "_known": "cached, computed, measured",
        "n_known": "n_cached, n_vocab",
        "picture": "image",
        "pictures": "images",
        "place": "index, position, address",
        "places": "indices, positions, addresses",
        "reading": "prefill, job",
        "rest": "remaining, on_idle",
        "rests": "pauses",
        "retractable": "rollback_tokens",
        "rewound": "rolled_back",
        "told": "sent, flushed, results",
    },
    "engine/server": {
        **_SPOKEN,
        **_ROOMS,
        **_PICTURES,
        "keeper": "controller, service",
        "rest": "remaining, others, idle",
        "tell": "send, report, publish",
        "tells": "includes, reports",
    },
    "engine/upstreams": {
        "kept": "saved, stored",
        "tell": "saved, stored",
    },
    "quantize": {
        **_SPOKEN,
        **_ROOMS,
        **_PICTURES,
        **_PLACES,
        **_PROCESSORS,
        "guess": "assumed",
        "kept": "cached, retained, chosen: what it is",
        "lane": "context",
        "lanes": "contexts",
        "rest": "remaining, outer",
        "saying": "decoder",
    },
}
# Whole names whose parts are allowed.
BANNED_NAMES = {
    "CancelledCheck": "CancelCheck: Cancelled is the exception",
    "GiveUp": "FitOption",
    "give_ups": "fit_options",
    "in_words": "error_message, phase_text",
    "judge_for": "fit_estimator",
    "Look": "Theme",
    "pass_by": "skip",
    "within_reason": "cap_kv_cells",
}
# Participles that do not describe a variable's content; a noun does: `match`, `rows`, `options`, `started_at`.
PARTICIPLES = (
    *("asked", "begun", "brought", "felt", "found", "given", "gone", "heard", "held", "kept", "known", "learnt"),
    *("made", "named", "said", "spoken", "taken", "thought", "told", "wanted"),
)
_ASSIGNED = re.compile(rf"\b(?:{'|'.join(PARTICIPLES)})\b\s*(?:[:=,)]|[-+|&]=|in\b)")
# Facts of errors, with the same names on the wire as in the sentences of engine/message_catalog.
ERROR_FACTS = (
    *("DeviceWrong", "GraphDiffers", "IncompleteFile", "ModelNotFound", "NoCollection", "NothingToDownload"),
    *("PoolExceeded", "UpstreamRefusesKey"),
)
_PARTS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_WORD = re.compile(r"[^\W\d]\w*")


@functools.cache
def parts(name):
    return {name, *(part.lower() for part in _PARTS.findall(name))}


def clashes(names, banned):
    """The replacement of each banned name."""
    for name in names:
        yield from (f"{name}: say {banned[part]}" for part in parts(name) & banned.keys())
        if name in BANNED_NAMES:
            yield f"{name}: say {BANNED_NAMES[name]}"


@pytest.mark.slow
@pytest.mark.parametrize("package", PRODUCT)
def test_names_are_the_fields_own(package):
    found = []
    for path, text in texts(package).items():
        where = path.relative_to(ROOT).as_posix()
        banned = BANNED | {
            w: s for folder, words in BANNED_IN.items() if where.startswith(folder) for w, s in words.items()
        }
        # including comments and texts, which may contain any word
        if any(clashes(set(_WORD.findall(text)), banned)):
            tokens = tokenize.generate_tokens(io.StringIO(text).readline)
            names = {token.string for token in tokens if token.type == tokenize.NAME}
            found += [f"{where}: {clash}" for clash in clashes(names, banned)]
    assert found == []


@pytest.mark.parametrize("package", ["app", "devices", "engine", "installers", "quantize", "start.py"])
def test_variables_are_nouns(package):
    bad = []
    for path in sorted((ROOT / package).rglob("*.py")) or [ROOT / package]:
        text = path.read_text("utf-8")
        if not _ASSIGNED.search(text):  # reading the syntax of every file would take seconds
            continue
        tree = ast.parse(text)
        classes = [n for n in ast.walk(tree) if isinstance(n, ast.ClassDef)]
        facts = {id(node) for c in classes if c.name in ERROR_FACTS for node in ast.walk(c)}
        facts |= {id(field.target) for c in classes for field in c.body if isinstance(field, ast.AnnAssign)}
        signals = {
            id(each) for c in classes for field in c.body if isinstance(field, ast.Assign) for each in field.targets
        }
        for node in ast.walk(tree):
            is_stored = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            name = node.id if is_stored else node.arg if isinstance(node, ast.arg) else ""
            if name in PARTICIPLES and id(node) not in facts | signals:
                bad.append(f"{path.relative_to(ROOT).as_posix()}:{node.lineno}: {name}: name what it holds")
    assert bad == []


def test_sizes_are_in_binary_units_everywhere():
    """GiB and MiB in window, terminal and server. GB/s, and a budget of `4.5GB`, stay."""
    decimal = re.compile(r"(?<![\d.])\b[GM]B\b(?!/s)")
    files = [ROOT / "devices" / name for name in ("doctor.py", "system_checks.py")]
    for package in ("app", "engine/message_catalog", "engine/placement"):
        files += sorted((ROOT / package).rglob("*.py"))
    shown = [
        (path.name, node.value)
        for path in files
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        and "\n" not in node.value and decimal.search(node.value)
    ]  # fmt: skip
    assert shown == []
