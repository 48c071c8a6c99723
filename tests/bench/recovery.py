"""Measures ways to reduce a rounded model's loss without rounding again: each alone, and the best together.

Usage: python tests/bench/recovery.py [--model F.gguf] --work DIR [--mix Q2_K] [--ways WAY,...] [--foreign TEXT]
       [--windows 48] [--epochs 2] [--judged 16] [--rank 4] [--spectra] [--factors] [--record]

The file is ours at the mix's bytes: smoothed, planned, rounded by GPTQ (`quant_frontier.py`). The ways:

adapter      low-rank matrices added to each weight, the best ones for the inputs' covariance (EoRA,
             arXiv 2410.21271)
larger       instead of the adapter, a file that is larger by the adapter's bytes
norms        the norms before the products of each layer, least squares on the inputs that the rounded layers
             before give (norm tweaking, arXiv 2309.02784)
scales       the scales and minima of all blocks, in the same way (after EfficientQAT, arXiv 2407.11062)
norms-down, scales-down, both-down
             the same numbers by gradient descent on the divergence from the source, through the whole model

`--factors` only measures one factor on all scales of a tensor, or of a row, in IQ1 and IQ2 types: the share of the
output error that is left, on sampled rows. It needs second moments alone.

`--spectra` only prints, by tensor, which share of the output error an adapter takes away, for GPTQ and for ggml's
rounding, next to what its bytes would take away as bits of the weights; it needs second moments alone.
Needs PyTorch, which is no part of Tessera, and a model of llama's architecture. The divergence is in 32-bit floats,
without llama.cpp's rounding of inputs.
"""

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import msgspec
import numpy as np

from quantize.files.gguf_file import read_gguf
from quantize.files.gguf_write import GgufWriter, TensorSlot, copied_metadata, file_bytes, header, scalar
from quantize.files.measurement_folder import SharedInputGroup, WorkFolder
from quantize.ggml_types import GgmlType
from quantize.gptq.codebook_search import in_octets
from quantize.gptq.codebooks import LATTICES
from quantize.gptq.hessian import group_curvature
from quantize.gptq.packing import LAYOUTS
from quantize.gptq.rows import gptq_rows
from quantize.measure.run import measure, measure_inputs
from quantize.measurements import MeasureRequest
from quantize.native.blocks import dequantize_rows, quantize_rows
from quantize.native.calibration import read_windows
from quantize.native.reference import ReferenceModel
from quantize.native.source_weights import SourceWeights
from quantize.plan.llama_cpp_presets import stock_types
from quantize.plan.speed import model_spec
from quantize.types import CALIBRATION, HELD_OUT
from tests.bench.quant_frontier import smoothed, types_for, write
from tests.bench.recording import record

WINDOW = 512
# Offsets of the F16 scales in a block. Source: ggml-common.h.
_SCALES = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
_RIDGE = 1e-2  # fraction of the mean diagonal: keeps what the text does not determine
_HALF_BYTES = 2
_RANKS = (1, 4, 16, 64)
_SAMPLED_ROWS = 2048
_FACTOR_TYPES, _FACTOR_ROWS = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S"), 128


def low_rank(errors: np.ndarray, covariance: np.ndarray, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """(rank, columns) A and (rows, rank) B with B A closest to `errors` on inputs of this covariance."""
    damped = covariance.astype(np.float64)
    damped[np.diag_indices_from(damped)] += 1e-4 * damped.diagonal().mean()
    root = np.linalg.cholesky(damped)
    left, values, right = np.linalg.svd(errors @ root, full_matrices=False)
    strength = np.sqrt(values[:rank])
    a = np.linalg.solve(root.T, (right[:rank] * strength[:, None]).T).T
    return a.astype(np.float32), (left[:, :rank] * strength).astype(np.float32)


def write_adapter(
    path: Path, architecture: str, parts: Mapping[str, tuple[np.ndarray, np.ndarray]], rank: int
) -> None:
    """A LoRA file for llama.cpp and for `tessera serve --lora`, in half floats."""
    metadata = {
        "general.architecture": scalar(architecture),
        "general.type": scalar("adapter"),
        "adapter.type": scalar("lora"),
        "adapter.lora.alpha": scalar(float(rank)),  # llama.cpp multiplies with alpha / rank
    }
    arrays = {f"{n}.lora_{which}": pair[i] for n, pair in parts.items() for i, which in enumerate("ab")}
    slots = [TensorSlot(n, v.shape[::-1], GgmlType.F16) for n, v in arrays.items()]
    writer = GgufWriter(path, metadata, slots)
    for name, values in arrays.items():
        writer.write(name, [np.ascontiguousarray(values, np.float16)])
    writer.close()


# The files.


@dataclass
class Files:
    """The smoothed source, the Hessians of its inputs, and Tessera's file at the preset's bytes."""

    source: SourceWeights
    rounded: SourceWeights
    folder: WorkFolder
    groups: tuple[SharedInputGroup, ...]
    larger: Callable[[int], SourceWeights]


def smoothed_once(request: MeasureRequest, work: Path) -> MeasureRequest:
    """The request about the smoothed model, which is made if `work` has none."""
    even = work / "smooth.gguf"
    return msgspec.structs.replace(request, source=even) if even.exists() else smoothed(request, even)


def make_files(request: MeasureRequest, work: Path, mix: str) -> Files:
    """Measure, plan and round; everything is cached in `work`."""
    model = request.source
    even = smoothed_once(request, work)
    measured = measure(even, lambda _p: None, lambda: False)
    file, spec = read_gguf(model), model_spec(read_gguf(model))
    metadata = {**copied_metadata(read_gguf(even.source)), "general.quantization_version": scalar(2)}
    head = len(header(metadata, [TensorSlot(t.name, t.shape, t.ggml_type) for t in file.tensors]))
    stock = {n: t.name for n, t in stock_types(spec, mix, has_imatrix=True).items()}
    limit = file_bytes(head, [TensorSlot(t.name, t.shape, GgmlType[stock[t.name]]) for t in file.tensors])

    def make(extra: int) -> SourceWeights:
        path = work / f"{mix}+{extra}.gguf"
        if not path.exists():
            types = types_for(model, measured.evidence, "gptq", limit + extra, head)
            write(path, even, measured, types, "gptq")
        return SourceWeights(path)

    folder = WorkFolder.open(even)
    groups = folder.groups() or ()
    return Files(SourceWeights(even.source), make(0), folder, groups, make)


def parts_by_scale(source: SourceWeights, name: str) -> list[tuple[np.ndarray, int]]:
    """A weight as a sum of parts, each linear in one scale of its blocks, with the weights of a block."""
    qtype = source.source_qtype(name)
    if qtype in ("F16", "F32", "BF16"):
        return [(source.rows(name), 0)]
    _, rows, width = source.shape(name)
    traits = GgmlType[qtype].traits
    offsets = _SCALES.get(qtype) or (LAYOUTS[qtype].scales if qtype in LAYOUTS else ()) or (0,)
    found = []
    for kept in offsets:
        alone = np.array(source.raw(name)).reshape(-1, traits.block_bytes)
        for other in offsets:
            if other != kept:
                alone[:, other : other + 2] = 0
        found.append((dequantize_rows(alone.reshape(rows, -1), qtype, width), traits.block_values))
    assert np.allclose(sum(p for p, _ in found), source.rows(name), rtol=1e-3, atol=1e-6), (name, qtype)
    return found


# Spectra: why an adapter is not worth its bytes.


def spectra(request: MeasureRequest, args: argparse.Namespace) -> None:
    """Print, and optionally record, the share of the output error that each rank removes, and its bytes as bits."""
    measure_inputs(request, lambda _p: None, lambda: False)
    source, folder = SourceWeights(request.source), WorkFolder.open(request)
    print("| tensor | type | rounding | " + " | ".join(f"rank {r}: taken, by bits" for r in _RANKS) + " |")
    sums: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for group in (folder.groups() or ())[:: args.every]:
        moments = folder.moments(group) if group.seen and not group.tied else None
        if moments is None:
            continue
        curvature = group_curvature(group, moments, 0, folder.tokens(group, 0))
        covariance = np.asarray(moments[0], np.float64)
        name = group.name
        weights = source.rows(name)[:_SAMPLED_ROWS]
        rows, width = weights.shape
        for qtype in ("Q4_K", "Q3_K") if width % 256 == 0 else ("Q4_0",):
            both = {
                "gptq": gptq_rows(weights, (qtype,), curvature)[qtype].blocks,
                "ggml": quantize_rows(weights, qtype, curvature.importance),
            }
            for rounding, blocks in both.items():
                errors = (dequantize_rows(blocks, qtype, width) - weights).astype(np.float64)
                values = np.linalg.svd(errors @ np.linalg.cholesky(_damped(covariance)), compute_uv=False) ** 2
                cells = []
                for rank in _RANKS:
                    bits = 8 * _HALF_BYTES * rank * (rows + width) / (rows * width)
                    pair = float(values[:rank].sum() / values.sum()), 1 - 4.0**-bits  # one bit: a quarter is left
                    sums.setdefault((rounding, rank), []).append(pair)
                    cells.append(f"{pair[0]:.3f}, {pair[1]:.3f}")
                print(f"| {name} | {qtype} | {rounding} | " + " | ".join(cells) + " |", flush=True)
    for (rounding, rank), pairs in sums.items():
        taken, bits = np.mean(pairs, axis=0)
        print(f"{rounding}, rank {rank}: taken {taken:.3f}, as bits {bits:.3f} (mean of {len(pairs)})")
        for way, value in (("adapter", taken), ("its bytes as bits", bits)) if args.record else ():
            record(
                "recovery", "share of the output error taken away", round(float(value), 3), "", n=len(pairs),
                model=args.model.stem, rounding=rounding, rank=rank, way=way,
            )  # fmt: skip


# Factors: what multiplying all scales of a tensor or a row gives back.


def factors(request: MeasureRequest, args: argparse.Namespace) -> None:
    """Print, and perhaps record, the share of the output error that the best factors leave."""
    measure_inputs(request, lambda _p: None, lambda: False)
    source, folder = SourceWeights(request.source), WorkFolder.open(request)
    left: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    for group in (folder.groups() or ())[:: args.every]:
        moments = folder.moments(group) if group.seen and not group.tied else None
        if moments is None or group.width % GgmlType.IQ2_S.traits.block_values:
            continue
        covariance = np.asarray(moments[0], np.float64)
        curvature = group_curvature(group, moments, 0, folder.tokens(group, 0), feedback=False)
        octets = in_octets(curvature)
        weights = source.rows(group.name)[:_FACTOR_ROWS]
        exact = weights.astype(np.float64)
        for qtype in _FACTOR_TYPES:
            both = {"ggml": quantize_rows(weights, qtype, curvature.importance)}
            if qtype in LATTICES:
                both["gptq"] = gptq_rows(weights, (qtype,), curvature, octets=octets)[qtype].blocks
            for rounding, blocks in both.items():
                values = dequantize_rows(blocks, qtype, group.width).astype(np.float64)
                own = ((values @ covariance) * values).sum(1)
                common = ((values @ covariance) * exact).sum(1)
                before = own - 2 * common + ((exact @ covariance) * exact).sum(1)
                factor = common.sum() / own.sum()
                by_row = np.divide(common, own, out=np.ones_like(own), where=own > 0)
                shares = [
                    float((before + (f**2 - 1) * own - 2 * (f - 1) * common).sum() / before.sum())
                    for f in (factor, by_row)
                ]
                left.setdefault((qtype, rounding), []).append((*shares, float(factor)))
    for (qtype, rounding), found in left.items():
        tensor, row, factor = np.mean(found, axis=0)
        print(
            f"{qtype} {rounding}: {tensor:.3f} left by one factor ({factor:.3f}), {row:.3f} by one per row "
            f"(mean of {len(found)})",
            flush=True,
        )
        for way, value in (("one factor", tensor), ("a factor per row", row)) if args.record else ():
            record(
                "recovery", "share of the output error that is left", round(float(value), 3), "", n=len(found),
                model=args.model.stem, rounding=rounding, type=qtype, way=way,
            )  # fmt: skip


def _damped(covariance: np.ndarray) -> np.ndarray:
    return covariance + 1e-4 * covariance.diagonal().mean() * np.eye(len(covariance))


# The model in PyTorch, with the numbers that a way may change.


@dataclass
class Network:
    """Llama's architecture. `weights` are the source's, `parts` the rounded file's by scale."""

    torch: Any
    shape: dict[str, Any]
    weights: dict[str, Any]
    parts: dict[str, list[tuple[Any, int]]]
    factors: dict[str, Any] = field(default_factory=dict)  # on norms ("NAME") and scales ("NAME/part")
    added: dict[str, Any] = field(default_factory=dict)  # adapters, multiplied out

    def rounded(self) -> dict[str, Any]:
        """The weights of the rounded file, with factors and adapters."""
        made = {}
        for name, source in self.weights.items():
            if name not in self.parts:
                made[name] = source * self.factors[name] if name in self.factors else source
                continue
            total = 0
            for at, (part, size) in enumerate(self.parts[name]):
                factor = self.factors.get(f"{name}/{at}")
                scaled = part if factor is None else part.view(len(part), -1, size) * factor[:, :, None]
                total = total + scaled.reshape(part.shape)
            made[name] = total + self.added[name] if name in self.added else total
        return made

    def normed(self, x: Any, weight: Any) -> Any:
        return self.torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, self.shape["eps"])

    def attention(self, w: dict[str, Any], p: str, x: Any) -> Any:
        torch, s = self.torch, self.shape
        count, length, _ = x.shape

        def heads(name: str, number: int) -> Any:
            return (x @ w[f"{p}{name}.weight"].T).view(count, length, number, s["width"]).transpose(1, 2)

        q, k = self.turned(heads("attn_q", s["heads"])), self.turned(heads("attn_k", s["kv_heads"]))
        k, v = (t.repeat_interleave(s["heads"] // s["kv_heads"], 1) for t in (k, heads("attn_v", s["kv_heads"])))
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return mixed.transpose(1, 2).reshape(count, length, -1)

    def turned(self, x: Any) -> Any:
        torch, s = self.torch, self.shape
        steps = torch.arange(0, s["width"], 2).float() / s["width"]
        angles = torch.outer(torch.arange(x.shape[2]).float(), 1 / s["base"] ** steps)
        even, odd = x[..., 0::2], x[..., 1::2]
        cos, sin = angles.cos(), angles.sin()
        return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)

    def gated(self, w: dict[str, Any], p: str, x: Any) -> Any:
        silu = self.torch.nn.functional.silu
        return silu(x @ w[f"{p}ffn_gate.weight"].T) * (x @ w[f"{p}ffn_up.weight"].T)

    def predictions(self, w: dict[str, Any], tokens: Any, kept: slice = slice(None)) -> Any:
        """Log-probabilities (windows, positions, vocabulary)."""
        x = w["token_embd.weight"][tokens]
        for layer in range(self.shape["layers"]):
            p = f"blk.{layer}."
            x = x + self.attention(w, p, self.normed(x, w[f"{p}attn_norm.weight"])) @ w[f"{p}attn_output.weight"].T
            x = x + self.gated(w, p, self.normed(x, w[f"{p}ffn_norm.weight"])) @ w[f"{p}ffn_down.weight"].T
        x = self.normed(x[:, kept], w["output_norm.weight"])
        return self.torch.log_softmax(x @ w.get("output.weight", w["token_embd.weight"]).T, -1)


def make_network(torch: Any, source: SourceWeights, rounded: SourceWeights) -> Network:
    head = source.model.parts[0]
    shape = {
        "layers": head.arch_value("block_count"),
        "heads": head.arch_value("attention.head_count"),
        "kv_heads": head.arch_value("attention.head_count_kv"),
        "width": head.arch_value("rope.dimension_count"),
        "base": head.arch_value("rope.freq_base"),
        "eps": head.arch_value("attention.layer_norm_rms_epsilon"),
    }
    weights, parts = {}, {}
    for name in source.names:
        if len(source.info(name).shape) == 1:
            weights[name] = torch.from_numpy(np.array(source.raw(name)).view(np.float32))
            continue
        weights[name] = torch.from_numpy(source.rows(name))
        parts[name] = [(torch.from_numpy(p), size) for p, size in parts_by_scale(rounded, name)]
    return Network(torch, shape, weights, parts)


# The ways.


class LeastSquares:
    """Norms and scales by least squares, layer after layer, on the inputs that the rounded layers before give."""

    def __init__(self, net: Network, ways: set[str]) -> None:
        self._net, self._torch, self._ways = net, net.torch, ways
        self.made = net.rounded()

    def fit(self, tokens: Any) -> dict[str, Any]:
        """The new weights."""
        net, source, made = self._net, self._net.weights, self.made
        exact, mine = source["token_embd.weight"][tokens], made["token_embd.weight"][tokens]
        for layer in range(net.shape["layers"]):
            p = f"blk.{layer}."
            halves = (
                ("attn_norm", ("attn_q", "attn_k", "attn_v"), net.attention, "attn_output"),
                ("ffn_norm", ("ffn_gate", "ffn_up"), net.gated, "ffn_down"),
            )
            for before, reading, between, after in halves:
                name, readers, last = (
                    f"{p}{before}.weight",
                    [f"{p}{r}.weight" for r in reading],
                    f"{p}{after}.weight",
                )
                a, b = net.normed(exact, None), net.normed(mine, None)
                self._fit_norm(name, readers, a, b)
                a, b = a * source[name], b * made[name]
                for reader in readers:
                    self._fit_scales(reader, a, b)
                a, b = between(source, p, a), between(made, p, b)
                self._fit_scales(last, a, b)
                exact, mine = exact + a @ source[last].T, mine + b @ made[last].T
        return made

    def _moments(self, a: Any, b: Any) -> tuple[Any, Any]:
        a, b = (x.reshape(-1, x.shape[-1]) for x in (a, b))
        return (b.T @ b).double() / len(b), (a.T @ b).double() / len(b)

    def _fit_norm(self, name: str, readers: list[str], a: Any, b: Any) -> None:
        if "norms" not in self._ways:
            return
        torch, source, made = self._torch, self._net.weights, self.made
        own, cross = self._moments(a, b)
        theirs, _ = self._moments(a, a)
        curve, pull = torch.zeros_like(own), torch.zeros(len(own)).double()
        for reader in readers:
            wanted, have = source[reader].double() * source[name].double(), made[reader].double()
            size = torch.einsum("ij,jk,ik->", wanted, theirs, wanted)
            curve += (have.T @ have) * own / size
            pull += ((wanted @ cross) * have).sum(0) / size
        hold = _RIDGE * curve.diagonal()
        made[name] = torch.linalg.solve(curve + torch.diag(hold), pull + hold * made[name].double()).float()

    def _fit_scales(self, name: str, a: Any, b: Any) -> None:
        parts = self._net.parts[name]
        size = parts[0][1]
        if "scales" not in self._ways or not size:
            return
        torch, source = self._torch, self._net.weights[name].double()
        own, cross = self._moments(a, b)
        hold = _RIDGE * float(own.diagonal().mean())
        own = own + hold * torch.eye(len(own)).double()
        wanted = source @ cross + hold * source
        blocks = len(own) // size
        fitted = torch.empty_like(self.made[name])
        for first in range(0, len(wanted), 256):
            rows = slice(first, first + 256)
            each = torch.stack([p[rows].view(-1, blocks, size) for p, _ in parts], 1).double()
            basis = torch.zeros(*each.shape[:3], len(own), dtype=torch.double)
            for at in range(blocks):
                basis[:, :, at, at * size : (at + 1) * size] = each[:, :, at]
            basis = basis.flatten(1, 2)
            curve = basis @ own @ basis.transpose(1, 2)
            pull = (basis @ wanted[rows].unsqueeze(2)).squeeze(2)
            keep = 1e-4 * curve.diagonal(dim1=1, dim2=2) + 1e-12
            factors = torch.linalg.solve(curve + torch.diag_embed(keep), pull + keep)
            fitted[rows] = (factors.unsqueeze(1) @ basis).squeeze(1).float()
        self.made[name] = fitted


def descend(net: Network, tokens: Any, ways: set[str], epochs: int, judged: Callable[[Any], Any]) -> dict[str, Any]:
    """Norms or scales by Adam on the divergence from the source. New weights."""
    torch = net.torch
    net.factors = {}
    for name, weight in net.weights.items():
        if name not in net.parts and "norms" in ways:
            net.factors[name] = torch.ones_like(weight).requires_grad_()
        for at, (part, size) in enumerate(net.parts.get(name, ())):
            if "scales" in ways and size:
                shape = len(part), part.shape[1] // size
                net.factors[f"{name}/{at}"] = torch.ones(shape).requires_grad_()
    print(f"{sum(f.numel() for f in net.factors.values())} numbers", flush=True)
    rate, batch, step = 1e-3 if "scales" in ways else 2e-3, 4, 0
    optimizer = torch.optim.Adam(net.factors.values(), lr=rate, betas=(0.9, 0.99))
    steps = epochs * (len(tokens) // batch)
    for epoch in range(epochs):
        for some in torch.randperm(len(tokens)).split(batch):
            warm, cool = min(1, (step + 1) / 5), 0.5 * (1 + np.cos(np.pi * step / steps))
            optimizer.param_groups[0]["lr"] = rate * warm * cool
            with torch.no_grad():
                wanted = net.predictions(net.weights, tokens[some])
            found = net.predictions(net.rounded(), tokens[some])
            loss = (wanted.exp() * (wanted - found)).sum(-1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
        with torch.no_grad():
            print(f"epoch {epoch + 1}: {judged(net.rounded())}", flush=True)
    with torch.no_grad():
        made = net.rounded()
    net.factors = {}
    return made


def adapted(net: Network, files: Files, rank: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The rounded weights with an adapter on every matrix of the layers, and the adapter's parts."""
    torch = net.torch
    adapter = {}
    for group in files.groups:
        moments = files.folder.moments(group) if group.seen and not group.tied else None
        for name in group.members if moments is not None else ():
            errors = files.source.rows(name) - files.rounded.rows(name)
            adapter[name] = low_rank(errors, moments[0], rank)
    net.added = {n: torch.from_numpy(b @ a) for n, (a, b) in adapter.items()}
    made = net.rounded()
    net.added = {}
    return made, adapter


class Judge:
    """Mean divergence from the source in the second half of windows, by text."""

    def __init__(self, net: Network, texts: dict[str, Any]) -> None:
        self._net, self._texts = net, texts
        self._kept = slice(WINDOW // 2, WINDOW - 1)
        with net.torch.no_grad():
            self._wanted = {
                name: [net.predictions(net.weights, some, self._kept) for some in tokens.split(4)]
                for name, tokens in texts.items()
            }

    def __call__(self, weights: dict[str, Any]) -> dict[str, float]:
        found = {}
        with self._net.torch.no_grad():
            for name, tokens in self._texts.items():
                sums = []
                for some, p in zip(tokens.split(4), self._wanted[name], strict=True):
                    q = self._net.predictions(weights, some, self._kept)
                    sums.append((p.exp() * (p - q)).sum(-1).mean(1))
                found[name] = float(self._net.torch.cat(sums).mean())
        return found


def token_windows(torch: Any, files: Files, args: argparse.Namespace) -> dict[str, Any]:
    """Windows of every text, spread over it."""
    texts = {"calibration": (CALIBRATION, args.windows), "held-out": (HELD_OUT, args.judged)}
    texts |= {"other sources": (args.foreign, args.judged)} if args.foreign else {}
    with ReferenceModel(files.source.path, window=WINDOW, threads=1) as model:
        read = {n: read_windows(model, t, WINDOW * c, WINDOW, spread=True) for n, (t, c) in texts.items()}
    return {name: torch.from_numpy(windows.astype(np.int64)) for name, windows in read.items()}


def compare(files: Files, args: argparse.Namespace) -> None:
    """Try every method; print, and optionally record, the remaining loss."""
    import torch

    torch.manual_seed(0)
    tokens = token_windows(torch, files, args)
    calibration = tokens.pop("calibration")
    net = make_network(torch, files.source, files.rounded)
    judged = Judge(net, tokens)
    start = judged(net.rounded())
    print(f"{files.rounded.path.stat().st_size} bytes: {start}", flush=True)
    extra = 0
    for way in args.ways.split(","):
        numbers = {"norms", "scales"} if way.startswith("both") else {way.split("-")[0]}
        if way == "adapter":
            made, adapter = adapted(net, files, args.rank)
            extra = sum(_HALF_BYTES * (a.size + b.size) for a, b in adapter.values())
        elif way == "larger":
            made = make_network(torch, files.source, files.larger(extra)).rounded()
        elif way.endswith("-down"):
            made = descend(net, calibration, numbers, args.epochs, judged)
        else:
            with torch.no_grad():
                made = LeastSquares(net, numbers).fit(calibration)
        more = f", {extra} bytes more" if way in ("adapter", "larger") else ""
        for text, value in judged(made).items():
            share = value / start[text]
            print(f"{way}{more}, {text}: {value:.5f}, {share:.3f} of the file's", flush=True)
            if args.record:
                record(
                    "recovery", "share of the rounded file's KL divergence", round(share, 3), "",
                    note=f"{args.judged} windows{more}", model=args.model.stem, size=args.mix, way=way, text=text,
                )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, default=ROOT / "assets/models/spark-f16.gguf")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--mix", default="Q2_K")
    parser.add_argument("--ways", default="adapter,larger,norms,scales,norms-down,both-down")
    parser.add_argument("--foreign", type=Path)
    parser.add_argument("--windows", type=int, default=48)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--judged", type=int, default=16)
    parser.add_argument("--rank", type=int, default=4)
    parser.add_argument("--spectra", action="store_true")
    parser.add_argument("--factors", action="store_true")
    parser.add_argument("--every", type=int, default=1, help="with --spectra or --factors, take every such input")
    parser.add_argument("--record", action="store_true")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    request = MeasureRequest(source=args.model, calibration=CALIBRATION, cache_dir=args.work / "cache", threads=2)
    if args.factors:
        factors(smoothed_once(request, args.work), args)
    elif args.spectra:
        spectra(smoothed_once(request, args.work), args)
    else:
        compare(make_files(request, args.work, args.mix), args)


if __name__ == "__main__":
    main()
