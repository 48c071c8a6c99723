"""Bytes per token, resident bytes and cache of published shapes, computed by closed formulas from their dimensions.

    python tests/bench/recompute_shapes.py [--context 32768]

This script uses no code of the program: no header, no list of tensors, no table of types. A test compares it with
what the program makes of headers with the same dimensions (tests/data/shapes/published.json, with sources).
"""

import argparse
import json
from pathlib import Path

FACTS = Path(__file__).resolve().parents[1] / "data" / "shapes" / "published.json"
BITS = {
    "Q4_K": 4.5,
    "Q5_0": 5.5,
    "Q6_K": 6.5625,
    "Q8_0": 8.5,
    "MXFP4": 4.25,
    "IQ4_NL": 4.5,
    "IQ2_XXS": 2.0625,
    "F32": 32,
}
PAGE = 4096
UBATCH = 512


def usual(row: int, fact: dict) -> str:
    """The type of a weight with rows of this length: 4 bits if blocks of 256 divide the row."""
    if "plain_type" in fact:
        return fact["plain_type"]
    return "Q4_K" if row % 256 == 0 else "Q5_0" if row % 32 == 0 else "F32"


def size(rows: float, row: int, kind: str) -> float:
    return rows * row * BITS[kind] / 8


def matrix(fact: dict, into: int, out: float) -> float:
    """Bytes of a weight that turns `into` values into `out`."""
    return size(out, into, usual(into, fact))


def counts(fact: dict) -> tuple[int, int]:
    """Layers with full attention, and the others (windows or linear)."""
    full = fact["layers"] // fact["full_every"] if "full_every" in fact else fact["layers"]
    return full, fact["layers"] - full


def attention(fact: dict, head: int, *, gated: bool = False) -> float:
    hidden, queries, keys = fact["hidden"], fact["heads"] * head, fact["kv_heads"] * head
    return matrix(fact, hidden, queries * (2 if gated else 1) + 2 * keys) + matrix(fact, queries, hidden)


def linear(fact: dict) -> float:
    hidden, head = fact["hidden"], fact["linear_head"]
    values = fact["linear_values"] * head
    inputs = 2 * fact["linear_keys"] * head + 2 * values + 2 * fact["linear_values"]
    return matrix(fact, hidden, inputs) + matrix(fact, values, hidden)


def mixers(fact: dict) -> float:
    """Hyper-connections of one module: down, up, inject."""
    wide, rank = fact["streams"] * fact["hidden"], fact["stream_rank"]
    return matrix(fact, wide, rank) + matrix(fact, rank, wide)


def compressors(fact: dict, width: int, tokens: int) -> float:
    """Bytes of the two products that make one row of some tokens, and of the places in it."""
    wide = 2 * width if tokens == 4 else width
    return 2 * matrix(fact, fact["hidden"], wide) + size(tokens, wide, "F32")


def compressed(fact: dict) -> float:
    """Bytes of low-rank attention with compressed rows, an index and hyper-connections, of all layers."""
    hidden, head, rank = fact["hidden"], fact["head"], fact["query_rank"]
    queries, out, count = fact["heads"] * head, fact["output_groups"] * fact["output_rank"], fact["connections"]
    each = matrix(fact, hidden, rank + head) + matrix(fact, rank, queries)
    each += matrix(fact, queries // fact["output_groups"], out) + matrix(fact, out, hidden)
    each += 2 * size((2 + count) * count, count * hidden, "F32")
    found = fact["layers"] * each + size(count, count * hidden, "F32")
    for tokens in filter(None, fact["compress"]):
        found += compressors(fact, head, tokens)
        if tokens == 4:
            found += matrix(fact, hidden, fact["index_heads"]) + compressors(fact, fact["index_head"], tokens)
            found += matrix(fact, rank, fact["index_heads"] * fact["index_head"])
    return found


def attentions(fact: dict) -> float:
    """Bytes of the attention, or its linear kind, of all layers."""
    if "compress" in fact:
        return compressed(fact)
    layers, group, hidden = fact["layers"], fact.get("full_every", 1), fact["hidden"]
    if "linear_head" in fact:
        full, others = counts(fact)
        return full * attention(fact, fact["head"], gated=True) + others * linear(fact)
    if not fact.get("shared_layers"):
        return layers * attention(fact, fact["head"])
    found = 0.0
    for layer in range(layers):
        head = fact["head"] if layer % group == group - 1 else fact["head_swa"]
        found += attention(fact, head)
        if layer >= layers - fact["shared_layers"]:  # these have no keys and values of their own
            found -= matrix(fact, hidden, 2 * fact["kv_heads"] * head)
    return found


def feeding(fact: dict) -> tuple[float, float]:
    """Bytes of the feed-forward parts that every token reads, and of all experts."""
    hidden, layers = fact["hidden"], fact["layers"]
    if "experts" not in fact:
        return layers * (2 * matrix(fact, hidden, fact["ffn"]) + matrix(fact, fact["ffn"], hidden)), 0.0
    kind, ffn = fact.get("experts_type"), fact["expert_ffn"]
    up = 2 * size(ffn, hidden, kind or usual(hidden, fact))
    experts = layers * fact["experts"] * (up + size(hidden, ffn, kind or usual(ffn, fact)))
    always = layers * size(fact["experts"], hidden, "F32")
    if "shared_ffn" in fact:
        shared = fact["shared_ffn"]
        always += layers * (2 * matrix(fact, hidden, shared) + matrix(fact, shared, hidden))
    return always, experts


def weights(fact: dict) -> tuple[float, float, float, float]:
    """Bytes that every token reads, of all experts, of looked-up tables, and of the lazy table."""
    hidden, layers = fact["hidden"], fact["layers"]
    full, _ = counts(fact)
    always = attentions(fact)
    fed, experts = feeding(fact)
    always += fed
    if "streams" in fact:
        wide = fact["streams"] * hidden
        always += (2 * layers + 1) * mixers(fact) + 2 * layers * matrix(fact, wide, fact["streams"])
        always += full * matrix(fact, hidden, (fact["index_heads"] + 1) * fact["index_head"])
        always += matrix(fact, hidden, wide) + matrix(fact, hidden, hidden)
    if "per_layer" in fact:
        wide = fact["per_layer"]
        always += layers * (2 * matrix(fact, hidden, wide) + matrix(fact, wide, hidden))
    if "altup" in fact:
        always += 2 * (fact["altup"] - 1) * matrix(fact, hidden, hidden)
        always += layers * (matrix(fact, hidden, fact["laurel"]) + matrix(fact, fact["laurel"], hidden))
    words = size(fact["vocabulary"], hidden, "Q6_K" if fact["tied"] else usual(hidden, fact))
    head = words if fact["tied"] else size(fact["vocabulary"], hidden, fact.get("plain_type", "Q6_K"))
    looked_up = 0.0 if fact["tied"] else words
    table = 0.0
    if "per_layer" in fact:
        table = size(fact["vocabulary"], layers * fact["per_layer"], "Q4_K")
    if "table_rows" in fact:
        table = size(fact["table_rows"], fact["table_width"], "IQ4_NL")
    return always + head, experts, looked_up, table


def cache(fact: dict, context: int, sequences: int) -> float:
    """Bytes of an F16 cache of this length, shared by that many sequences, each with its window."""
    if "compress" in fact:
        near = 256 * -(-min(context, fact["window"] + UBATCH) // 256)
        values = fact["layers"] * near * fact["head"]
        for tokens in filter(None, fact["compress"]):
            rows = 256 * -(-context // tokens // 256)
            values += rows * (fact["head"] + (fact["index_head"] if tokens == 4 else 0))
        return 2 * values * sequences
    windows = min(context, fact.get("window", 0) * sequences + UBATCH)
    windows = -(-windows // 256) * 256
    total, group = 0.0, fact.get("full_every", 1)
    cached = fact.get("cached_layers", fact["layers"] - fact.get("shared_layers", 0))
    for layer in range(cached):
        is_full = layer % group == group - 1
        if not is_full and "linear_head" in fact:
            continue
        head = fact["head"] if is_full else fact.get("head_swa", fact["head"])
        values = 2 * fact["kv_heads"] * head + fact.get("index_head", 0)
        total += 2 * values * (context if is_full else windows)
    return total


def recomputed(name: str, context: int, sequences: int = 1) -> dict[str, float]:
    """The figures of one model."""
    fact = json.loads(FACTS.read_text(encoding="utf-8"))[name]
    always, experts, looked_up, table = weights(fact)
    share = fact["used"] / fact["experts"] if "experts" in fact else 0.0
    resident = always + experts + looked_up + table
    if fact["architecture"] in {"gemma4", "qwen4exp"}:  # llama.cpp reads these tables row by row, from the file
        rows = fact.get("table_heads", 1)
        row = table / (fact.get("table_rows") or fact["vocabulary"])
        resident += min(table, context * rows * PAGE * -(-row // PAGE)) - table
    return {
        "token_bytes": always + share * experts,
        "token_bytes_with_table": always + share * experts + looked_up + table,
        "table_bytes": table,
        "resident_bytes": resident,
        "cache_bytes": cache(fact, context, sequences),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--context", type=int, default=32_768)
    given = parser.parse_args()
    for name in json.loads(FACTS.read_text(encoding="utf-8")):
        found = recomputed(name, given.context)
        print(name, {key: f"{value / 1e9:.3f} GB" for key, value in found.items()})


if __name__ == "__main__":
    main()
