"""Server responses for tests, built from the structs that it really sends: a changed field breaks them."""

import time

from engine.api.hub import Option, QuantVariant, RepoHit, RepoPlan, Repository, Starter
from engine.api.jobs import Fault, Job, JobKind, Progress
from engine.api.library import Details, Model, ModelFile, Origin
from engine.api.machine import MemoryEstimate, Placement, Reason
from engine.api.measuring import BenchResult, Point, Spread
from engine.api.quantizing import (
    FileReport,
    PlanForecast,
    PresetPlan,
    QuantizeReport,
    QuantizeSketch,
    QuantPlan,
    TensorPlan,
)
from engine.runner.protocol import LoadSettings
from quantize.types import EvidenceRef, Interval, SizeTarget

SPARK = Model(
    id="spark",
    name="Spark (demo)",
    size_bytes=17_000_000,
    bits_per_weight=16.0,
    capabilities=("chat", "vision"),
    origin=Origin(kind="file"),
    files=(ModelFile(path="/x", size_bytes=17_000_000, mtime_ns=0, sha256="ab" * 32),),
    details=Details(
        architecture="llama",
        n_params=8_390_000,
        context_train=1024,
        quantization="F16",
        type_bytes={"F16": 16_000_000, "F32": 17_000},
        chat_template="{{ x }}",
    ),
)
DOWNLOADING = Progress(phase="downloading", done=5 << 20, total=10 << 20, speed=1 << 20, eta_s=5.0)


def job(kind, state="running", **changes):
    """A job of that kind; its id is `KIND-1`."""
    now = time.time()
    given = {"id": f"{kind.value}-1", "title": "org/model", "created_at": now, "updated_at": now, **changes}
    return Job(kind=kind, state=state, **given)


def failed(kind, message, **changes):
    return job(kind, "failed", **{"error": Fault(code="disk_full", message=message), **changes})


def pulling(state="running", **changes):
    return job(JobKind.PULL, state, **{"progress": DOWNLOADING, **changes})


def plan(size, damage=0.01, kv=None):
    return QuantPlan(
        architecture="llama",
        goal=SizeTarget(kind="budget", limit_bytes=size),
        evidence=EvidenceRef(tier="instant", has_imatrix=False),
        header_bytes=100,
        file_bytes=size,
        smallest_bytes=3_000_000,
        damage=damage,
        decode_cost=0.9,
        kv=kv,
        tensors=(
            TensorPlan(
                name="blk.0.attn_q.weight",
                shape=(256, 256),
                source_qtype="F16",
                qtype="Q4_K",
                num_bytes=900,
                damage=damage,
            ),
        ),
        stock=(PresetPlan(name="Q4_K_M", file_bytes=5_700_000, damage=0.02),),
    )


def sketch(size, damage=0.01, *, kv=None, largest_context=None):
    """The response of /quantize/plan."""
    forecast = PlanForecast(
        seconds=90, disk_bytes=12 << 20, memory_bytes=1 << 30, kld=damage, largest_context=largest_context
    )
    return QuantizeSketch(
        source="spark.gguf",
        source_sha256="",
        source_bytes=17_000_000,
        out=None,
        file_bytes=None,
        shipped="nothing",
        plan=plan(size, damage, kv),
        rounding="stock",
        forecast=forecast,
    )


def quantize_report(size, kld, stock_kld):
    def measured(mean):
        return FileReport(
            path="x",
            file_bytes=size,
            tokens=1000,
            kld_mean=Interval(mean, mean, mean),
            kld_median=mean,
            kld_p99=0.04,
            kld_p999=0.1,
            top1_agreement_frac=Interval(0.95, 0.94, 0.96),
            perplexity=Interval(17.4, 17.0, 18.0),
            reference_perplexity=17.2,
        )

    return QuantizeReport(
        source="spark.gguf",
        source_sha256="",
        source_bytes=17_000_000,
        out="spark-5.gguf",
        file_bytes=size,
        shipped="ours",
        plan=plan(size),
        rounding="gptq",
        forecast=sketch(size).forecast,
        ours=measured(kld),
        stock_mix="Q4_K_M",
        stock=measured(stock_kld),
    )


def point(length, prefill, decode):
    def spread(value):
        return Spread(median=value, low=0.9 * value, high=1.1 * value)

    return Point(
        length=length, prefill_tok_s=spread(prefill), decode_tok_s=spread(decode), ttft_s=spread(0.5), itl_s=(0.01,)
    )


def bench_result(model, decode, number, **changes):
    given = {
        "model": model, "description": "d", "size_bytes": 1, "n_params": 2, "backend": "cpu", "machine": "Linux",
        "threads": 2, "type_k": "f16", "type_v": "f16", "load_s": 0.5, "rss_bytes": 1 << 30, "concurrency": (),
        "points": (point(512, 800.0, decode - 1), point(128, 900.0, decode)), "drift": 1.0, "stand_in": False,
        "started_at": 1.7e9 + 100 * number,
    }  # fmt: skip
    return BenchResult(id=number, **{**given, **changes})


def starter(name):
    return Starter(
        id=name, repo=f"org/{name}", job="chat", parameters=8 * 10**9, source="", native_bits=16.0, license="mit"
    )


def hit(repo, downloads=0, likes=0, **facts):
    return RepoHit(repo=repo, downloads=downloads, likes=likes, gated=False, **facts)


def hub_plan(*options):
    """The files of the repository `org/found`."""
    repository = Repository(repo="org/found", endpoint="", revision="", files=())
    return RepoPlan(repository=repository, options=options, fetched_bytes=0, elapsed_s=0.0)


def hub_option(label, size_bytes, **facts):
    return Option(choice=QuantVariant(label=label, format="gguf", files=()), size_bytes=size_bytes, **facts)


def fact(text):
    """A fact of a kind that only its server knows."""
    return Reason("known_to_the_server", text=text)


def placement(reasons=(), *, device="cpu", backend="cpu", load=(), **fields):
    """A placement with the given reasons and, in `load`, settings."""
    need = MemoryEstimate(n_ctx=0, kv_cells=0, n_sequences=1, type_k="f16", type_v="f16", n_gpu_layers=0, parts=())
    settings = LoadSettings(path="", **dict(load))
    known = {"device_name": "", "n_layers": 0, "need": need, "fits": True, "reasons": reasons}
    return Placement(device=device, backend=backend, settings=settings, **known | fields)
