"""Models of any shape as files without data: sufficient for headers, plans and dry runs."""

from pathlib import Path

from quantize.files.gguf_file import ValueType
from quantize.files.gguf_write import TensorSlot, array, file_bytes, header, scalar
from quantize.ggml_types import GgmlType


class HollowModel:
    """Writes a GGUF header for a model of the given shape; the data is a hole in the file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(
        self,
        *,
        arch: str = "llama",
        layers: int = 8,
        embd: int = 256,
        heads: int = 4,
        kv_heads: int = 2,
        head_dim: int = 64,
        ffn: int = 768,
        vocab: int = 512,
        tied: bool = True,
        experts: int = 0,
        qtype: GgmlType = GgmlType.F16,
    ) -> Path:
        meta = {
            "general.architecture": scalar(arch),
            f"{arch}.context_length": scalar(4096),
            f"{arch}.embedding_length": scalar(embd),
            f"{arch}.block_count": scalar(layers),
            f"{arch}.feed_forward_length": scalar(ffn),
            f"{arch}.attention.head_count": scalar(heads),
            f"{arch}.attention.head_count_kv": scalar(kv_heads),
            f"{arch}.attention.key_length": scalar(head_dim),
            f"{arch}.attention.value_length": scalar(head_dim),
            f"{arch}.attention.layer_norm_rms_epsilon": scalar(1e-6),
            f"{arch}.rope.dimension_count": scalar(head_dim),
            f"{arch}.vocab_size": scalar(vocab),
            "tokenizer.ggml.model": scalar("none"),
            "general.file_type": scalar(1),
        }
        if experts:
            meta[f"{arch}.expert_count"] = scalar(experts)
            meta[f"{arch}.expert_used_count"] = scalar(2)
            meta[f"{arch}.expert_feed_forward_length"] = scalar(ffn)
        meta["general.tags"] = array(["synthetic"], ValueType.STRING)
        meta["general.size_label"] = scalar("tiny")
        slots = list(
            self._slots(
                layers=layers,
                embd=embd,
                q_dim=heads * head_dim,
                kv_dim=kv_heads * head_dim,
                ffn=ffn,
                vocab=vocab,
                tied=tied,
                experts=experts,
                qtype=qtype,
            )
        )
        head = header(meta, slots)
        with self.path.open("wb") as out:
            out.write(head)
            out.truncate(file_bytes(len(head), slots))
        return self.path

    def _slots(self, *, layers, embd, q_dim, kv_dim, ffn, vocab, tied, experts, qtype):
        def norm(name, size):
            return TensorSlot(name, (size,), GgmlType.F32)

        yield TensorSlot("token_embd.weight", (embd, vocab), qtype)
        yield norm("output_norm.weight", embd)
        if not tied:
            yield TensorSlot("output.weight", (embd, vocab), qtype)
        for i in range(layers):
            p = f"blk.{i}."
            yield norm(p + "attn_norm.weight", embd)
            yield norm(p + "ffn_norm.weight", embd)
            yield TensorSlot(p + "attn_q.weight", (embd, q_dim), qtype)
            yield TensorSlot(p + "attn_k.weight", (embd, kv_dim), qtype)
            yield TensorSlot(p + "attn_v.weight", (embd, kv_dim), qtype)
            yield TensorSlot(p + "attn_output.weight", (q_dim, embd), qtype)
            stack = (experts,) if experts else ()
            kind = "_exps" if experts else ""
            if experts:
                yield TensorSlot(p + "ffn_gate_inp.weight", (embd, experts), GgmlType.F32)
            yield TensorSlot(f"{p}ffn_gate{kind}.weight", (embd, ffn, *stack), qtype)
            yield TensorSlot(f"{p}ffn_up{kind}.weight", (embd, ffn, *stack), qtype)
            yield TensorSlot(f"{p}ffn_down{kind}.weight", (ffn, embd, *stack), qtype)
