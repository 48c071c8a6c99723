"""Which of llama.cpp's pre-tokenizers splits text as this tokenizer does: looked up, deduced, and always tried."""

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tokenizers import Tokenizer

from quantize.convert.pretokenizer_hashes import BY_HASH, TEST_TEXT
from quantize.convert.tensor_map import Metadata
from quantize.errors import UnsupportedModel
from quantize.files.gguf_write import header
from quantize.native.vocabulary import tokenize

# What tokenizer.json says, in the order found there: the first whose parts all occur is the likeliest.
_SIGNS: tuple[tuple[tuple[str, ...], str], ...] = (
    ((r"\p{Lu}\p{Lt}", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?", r"\p{N}{1,3}"), "gpt-4o"),
    ((r"\p{Lu}\p{Lt}", r"[\r\n/]*"), "tekken"),
    ((r"\p{N}{1,3}", r"[\u4e00-\u9fa5", r"\p{P}\p{S}"), "deepseek-v3"),
    ((r"\p{N}{1,3}", r"[一-龥", r"\p{P}\p{S}"), "deepseek-v3"),
    ((r"[\p{L}\p{M}]+", r"\p{N}|"), "qwen35"),
    ((r"(?i:'s|'t|'re|'ve|'m|'ll|'d)", r"\p{N}{1,3}"), "llama-bpe"),
    ((r"(?i:'s|'t|'re|'ve|'m|'ll|'d)", r"\p{N}|"), "qwen2"),
    (("Digits", "individual", "ByteLevel use_regex"), "smollm"),
    (("Punctuation", "ByteLevel use_regex", "Digits"), "falcon"),
    (("ByteLevel use_regex",), "gpt-2"),
)
# One name of each splitting llama.cpp knows, commonest first.
_DISTINCT = (
    "llama-bpe", "qwen2", "gpt-2", "gpt-4o", "tekken", "smollm", "qwen35", "deepseek-v3", "deepseek-llm",
    "deepseek-coder", "falcon", "stablelm2", "chatglm-bpe", "smaug-bpe", "seed-coder", "bailingmoe", "minicpm5",
    "spark2_5", "exaone-moe", "laguna", "ufakzeka", "superbpe", "viking", "poro-chat", "tiny_aya", "afmoe",
    "kimi-k2", "youtu", "granite-embed-multi-97m", "jais-2", "chameleon", "gemma4", "default",
)  # fmt: skip
# Beside the test text: code, other scripts, runs of spaces and digits, contractions, line ends.
TRIALS = (
    TEST_TEXT,
    "def f(x):\n    return x**2 + 3.14  # it's 100% done\n\n\n\treturn\r\n",
    "Grüße aus Köln; naïve café, Ελληνικά, русский текст, 漢字かな交じり文, 한국어, العربية, हिन्दी",
    "We'll see: I'd've thought THEY'RE 'quoted'. 1234567890 12,345.67 2024-01-02T03:04:05Z",
    "a  b   c    d\t\te \n \n\n  f\u00a0g\u3000h",
    "https://example.org/path?q=1&r=2#frag <b>html</b> {\"json\": [1, 2, null]} $HOME ~/x | grep -v '^#'",
    "🙂🙃👩‍👩‍👧‍👦 e\u0301 n\u0303o ½ ² ① Ⅷ",
)


def choose(tokenizer: Tokenizer, data: dict[str, Any], meta: Metadata) -> str:
    """The pre-tokenizer with which llama.cpp gives the same ids as `tokenizer` on every trial text.

    `meta` must hold the rest of the vocabulary. Raises: UnsupportedModel: none does.
    """
    wanted = [tokenizer.encode(text, add_special_tokens=False).ids for text in TRIALS]
    with TemporaryDirectory(prefix="vocabulary-") as folder:
        path = Path(folder) / "vocabulary.gguf"
        for name in candidates(tokenizer, data):
            trial = Metadata(meta.architecture)
            trial.update(meta)
            trial.put("tokenizer.ggml.pre", name)
            path.write_bytes(header(trial, ()))
            if tokenize(path, list(TRIALS)) == wanted:
                return name
    raise UnsupportedModel(
        str(meta.architecture), "llama.cpp splits text in no way that gives this tokenizer's token ids"
    )


def candidates(tokenizer: Tokenizer, data: dict[str, Any]) -> Iterator[str]:
    """Names to try, likeliest first, each once: the known hash, what tokenizer.json says, everything else."""
    seen: set[str] = set()
    by_hash = BY_HASH.get(sha256(str(tokenizer.encode(TEST_TEXT).ids).encode()).hexdigest())
    for name in (by_hash, deduced(data), *_DISTINCT):
        if name and name not in seen:
            seen.add(name)
            yield name


def deduced(data: dict[str, Any]) -> str | None:
    """What the pre-tokenizer described in tokenizer.json is called in llama.cpp, if its parts are known."""
    parts = " ".join(_parts(data.get("pre_tokenizer")))
    return next((name for signs, name in _SIGNS if all(sign in parts for sign in signs)), None)


def _parts(node: Any) -> Iterator[str]:
    """Kinds, settings and patterns of a pre-tokenizer, flattened."""
    if not isinstance(node, dict):
        return
    for child in node.get("pretokenizers", ()):
        yield from _parts(child)
    kind = str(node.get("type"))
    yield kind
    if kind == "ByteLevel" and node.get("use_regex", True):
        yield "ByteLevel use_regex"
    if kind == "Digits" and node.get("individual_digits"):
        yield "individual"
    pattern = node.get("pattern")
    if isinstance(pattern, dict):
        yield str(pattern.get("Regex") or pattern.get("String") or "")
