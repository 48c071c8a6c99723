"""The messages between the server and a runner: msgpack structs in length-prefixed frames.

The protocol is the same for the llama.cpp runner, the ONNX runner and the fakes in tests. A frame is four bytes of
big-endian length and one msgpack message. All output of a step is in one `Events` frame.
"""

import os
import threading
from typing import BinaryIO, Final

import msgspec

from devices import frames
from devices.frames import LENGTH
from devices.msgspec_lock import learned
from engine.core.types import Event, GenerationRequest, ModelFacts
from engine.runner.engine_args import NO_ARGS, EngineArgs

VERSION: Final = 1
# Maximum frame size: a chat template and metadata fit easily; a longer frame means a broken or hostile peer.
MAX_FRAME_BYTES: Final = 64 << 20
# Deltas that a runner may send before the server grants more. After that, text is merged into fewer deltas while
# generation continues.
INITIAL_CREDIT: Final = 64
# Interval of a runner's heartbeats, whatever its kernels do.
HEARTBEAT_S: Final = 2.0


class RemoteLayers(msgspec.Struct, frozen=True, kw_only=True):
    """Number of layers on the device `index` of a worker; the output counts as one layer."""

    remote: str
    layers: int
    index: int = 0


class ExternalProgram(msgspec.Struct, frozen=True, kw_only=True):
    """A program that serves a model instead of a Tessera runner.

    `kind` is its row in engine/placement/external.py, `program` the file that is started (empty: it is not
    installed, or runs on another machine), `arguments` the user's additions to its command line.
    """

    name: str
    kind: str
    program: str = ""
    arguments: tuple[str, ...] = ()


def layer_shares(remotes: tuple[RemoteLayers, ...]) -> tuple[float, ...]:
    """Return llama.cpp's layer shares. It compares fractions, so boundaries are set between two layers."""
    if len(remotes) < 2:
        return ()
    counts = [float(r.layers) for r in remotes]
    return (counts[0] - 0.5, *counts[1:-1], counts[-1] + 0.5)


class LoadSettings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings to load one model. Sizes are in tokens unless named otherwise.

    `n_ctx` is the longest sequence, `kv_cells` the size of the cache shared by all sequences (0: n_ctx).
    `max_ctx` is the size to which the context may grow while the model serves (0: it does not grow).
    `chosen_ctx` is the size that the user set (0: none): beyond it, the context grows only to a size that a client
    names.
    `n_gpu_layers` -1 offloads all. `devices` names the backend devices to use (empty: the runner's choice).
    `tensor_split` are the layer fractions of several devices (empty: equal); the experts of the first
    `cpu_expert_layers` layers stay on the CPU wherever those layers are. `expert_bytes` is the memory for experts
    if the file is larger than memory (0: all are in memory, or the kernel pages them).
    `path` is the first file of a split model, or a folder. `provider` names the execution provider of an ONNX model
    (empty: the folder's own choice, else the CPU); `allow_fallback` lets unsupported operators run on the CPU.
    `external` is the program that serves the model instead of a runner. `gpu_frac` is the fraction of its GPU's
    memory that vLLM may use; `provider` then names the GPU (`cuda:` and a number).
    `max_draft` is the longest draft that one step verifies (0: none). `mtp` loads the file's own MTP head.
    `max_rollback` is the number of tokens by which a recurrent state can be rolled back; each sequence has as many
    copies of it.
    `projector_on_cpu`: images are read there although the layers are on a GPU.
    `tiles` names the computations of Tessera's own CPU kernels: weight types, in products with prompts, and
    `attention` (devices/backends/cpu_kernels.py).
    `lazy_tables`: a table of embeddings per layer is read row by row from the file, not held in memory.
    From `deep_from` tokens on, prompts are read in pieces of at most `deep_rows` (0: no such limit). `variables`
    (NAME=VALUE) are set in the runner's environment, or removed without a value, before a backend is loaded.
    `engine_args` are additional llama.cpp arguments. `remotes` are workers with the last layers, one entry per
    entry of `devices`.
    `reference_path` holds the CPU's results for the device check after the load (None: no check). One of
    `recorded_rows` rows of answers is recorded, to be computed again (0: none). `num_faults` is how many devices
    were found wrong on this computer: prefixes that were stored before the last of them are not used.
    """

    path: str
    n_ctx: int = 4096
    max_ctx: int = 0
    chosen_ctx: int = 0
    kv_cells: int = 0
    n_parallel: int = 4
    n_batch: int = 2048
    n_ubatch: int = 512
    n_threads: int = 0
    n_threads_batch: int = 0
    n_gpu_layers: int = 0
    devices: tuple[str, ...] = ()
    tensor_split: tuple[float, ...] = ()
    cpu_expert_layers: int = 0
    expert_bytes: int = 0
    type_k: str = "f16"
    type_v: str = "f16"
    flash_attn: str = "auto"
    use_mmap: bool = True
    use_mlock: bool = False
    lazy_tables: bool = False
    repack: bool = True
    tiles: tuple[str, ...] = ()
    max_draft: int = 16
    lora: tuple[str, ...] = ()
    mtp: bool = False
    max_rollback: int = 0
    draft_path: str | None = None
    mmproj_path: str | None = None
    projector_on_cpu: bool = False
    embeddings: bool = False
    provider: str = ""
    allow_fallback: bool = False
    external: ExternalProgram | None = None
    gpu_frac: float = 0.0
    cache_dir: str | None = None
    cache_ram_bytes: int = 0
    cache_disk_bytes: int = 0
    reference_path: str | None = None
    engine_args: EngineArgs = NO_ARGS
    remotes: tuple[RemoteLayers, ...] = ()
    deep_from: int = 0
    deep_rows: int = 0
    variables: tuple[str, ...] = ()
    recorded_rows: int = 0
    num_faults: int = 0


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag="hello"):
    """First frame of every runner."""

    version: int
    engine: str
    pid: int


class Load(msgspec.Struct, frozen=True, kw_only=True, tag="load"):
    """Load the model; replies are `Progress` frames and `Loaded`, or a `Fault` without an id."""

    settings: LoadSettings


# The load phase in which a device's compiler processes the model; its output is cached.
COMPILING: Final = "compiling"


class Progress(msgspec.Struct, frozen=True, kw_only=True, tag="progress"):
    """Progress of a load, 0 to 1."""

    phase: str
    fraction: float


class Loaded(msgspec.Struct, frozen=True, kw_only=True, tag="loaded"):
    """The model is ready."""

    facts: ModelFacts


class Submit(msgspec.Struct, frozen=True, kw_only=True, tag="submit"):
    """Start a generation under an id that is unique on this connection."""

    id: int
    request: GenerationRequest


class Cancel(msgspec.Struct, frozen=True, kw_only=True, tag="cancel"):
    """Stop a generation; it still ends with a `Done` of reason `cancelled`."""

    id: int


class Credit(msgspec.Struct, frozen=True, kw_only=True, tag="credit"):
    """The server has received `count` deltas of this request."""

    id: int
    count: int


class Tokenize(msgspec.Struct, frozen=True, kw_only=True, tag="tokenize"):
    """Convert text to token ids; the reply is `Tokens`."""

    id: int
    text: str
    add_special: bool = True
    parse_special: bool = True


class Tokens(msgspec.Struct, frozen=True, kw_only=True, tag="tokens"):
    """Reply to `Tokenize`."""

    id: int
    token_ids: list[int]


class Detokenize(msgspec.Struct, frozen=True, kw_only=True, tag="detokenize"):
    """Convert token ids to bytes; the reply is `Pieces`."""

    id: int
    token_ids: list[int]


class Pieces(msgspec.Struct, frozen=True, kw_only=True, tag="pieces"):
    """Reply to `Detokenize`: the bytes of each token."""

    id: int
    pieces: list[bytes]


class Embed(msgspec.Struct, frozen=True, kw_only=True, tag="embed"):
    """Embed each input, or score it against `query` if the model is a reranker; the reply is `Embedded`.

    With `truncate` an input longer than the context is cut, but its closing token stays. With `quick` many inputs
    may be embedded in int8 if that is faster.
    """

    id: int
    inputs: list[str | list[int]]
    normalize: bool = True
    query: str | None = None
    truncate: bool = False
    quick: bool = False


class Embedded(msgspec.Struct, frozen=True, kw_only=True, tag="embedded"):
    """Little-endian float32 rows of `width` numbers, one per input, and the number of tokens of each input.

    `cut` maps the index of a truncated input to its original number of tokens.
    """

    id: int
    width: int
    vectors: list[bytes]
    token_counts: list[int]
    cut: dict[int, int] = {}


class Events(msgspec.Struct, frozen=True, kw_only=True, tag="events"):
    """The output of one step, as (request id, event) pairs."""

    items: list[tuple[int, Event]]


class SampledRow(msgspec.Struct, frozen=True, kw_only=True):
    """The logits after the token at `position`: the most likely tokens (int32) and log probabilities (float32).

    It was computed in a batch of `batch_rows` rows of `sequences` sequences. Both are empty if it is not a number.
    """

    position: int
    token_ids: bytes
    logprobs: bytes
    batch_rows: int = 1
    sequences: int = 1


class RowsRecorded(msgspec.Struct, frozen=True, kw_only=True, tag="rows_recorded"):
    """Rows of one answer in order of position, and its tokens up to the last of them.

    Since the load, all steps took `steps_s` seconds, and recording rows `recording_s`.
    """

    tokens: list[int]
    rows: list[SampledRow]
    steps_s: float = 0.0
    recording_s: float = 0.0

    @property
    def is_undefined(self) -> bool:
        """Whether the answer ended with a row that is not a number."""
        return any(not row.token_ids for row in self.rows)


class Recompute(msgspec.Struct, frozen=True, kw_only=True):
    """The request to the child that computes recorded rows again, with at most `threads`."""

    settings: LoadSettings
    recorded: RowsRecorded
    threads: int


class RowVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Mean distance of recorded rows from those of the CPU, in nats, and the largest of one row.

    `again_nats` is the distance from a second computation, with other kernels, and `noise_nats` that of the two
    computations from each other; both are computed only if the first distance is large.
    """

    nats: float
    largest_nats: float
    again_nats: float = 0.0
    noise_nats: float = 0.0
    wrong: bool = False


class Fault(msgspec.Struct, frozen=True, kw_only=True, tag="fault"):
    """A request failed (`id`), or the load or the whole runner did (`id` None). `facts` has numbers."""

    code: str
    message: str
    id: int | None = None
    param: str | None = None
    facts: dict[str, int | float | str | None] = {}


class StatsQuery(msgspec.Struct, frozen=True, kw_only=True, tag="stats_query"):
    """Request `Stats`."""

    id: int


class ExpertStats(msgspec.Struct, frozen=True, kw_only=True):
    """Streamed experts since the load: how many were requested, how many of them cached, and the cost.

    `cached_bytes` is their current memory, `waited_s` the time that steps waited for `read_bytes`.
    """

    asked: int = 0
    there: int = 0
    read_bytes: int = 0
    waited_s: float = 0.0
    cached_bytes: int = msgspec.field(default=0, name="kept_bytes")


class Stats(msgspec.Struct, frozen=True, kw_only=True, tag="stats"):
    """Counters since the load, and the current state.

    `computed_tokens` are the rows of all steps, including drafts but not images. `all_s` are the seconds of all
    steps, `own_s` the shares of the newest requests, by their numbers. `experts` is set if experts are streamed.
    `cache_ram_bytes` are stored prefixes and checkpoints. `num_contexts` counts that of the load, and those that
    the first deterministic request or embedding created.
    """

    id: int
    steps: int
    generated_tokens: int
    active: int
    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    waiting: int = 0
    kv_cells_used: int = 0
    kv_cells_total: int = 0
    rss_bytes: int = 0
    cache_ram_bytes: int = 0
    cache_disk_bytes: int = 0
    all_s: float = 0.0
    own_s: dict[int, float] = {}
    experts: ExpertStats | None = None
    num_contexts: int = 1


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True, tag="heartbeat"):
    """The runner is alive; its current step has taken `step_s` seconds so far (0: it is idle).

    `depth`: tokens computed of the longest prompt that it reads now (0: none).
    """

    step_s: float
    depth: int = 0


class Pace(msgspec.Struct, frozen=True, kw_only=True, tag="pace"):
    """Limit steps from now on: maximum threads (0: the best number), and fraction of time that steps may run."""

    threads: int = 0
    duty: float = 1.0


class ContextWanted(msgspec.Struct, frozen=True, kw_only=True, tag="context_wanted"):
    """A request needs a context of `tokens` tokens and `cells` cells; it waits for `Resized` or `ContextKept`.

    `begun`: it already generates and is nearly at the end of the context. `wants_cells`: it would fit, but others
    use the cells, so without a larger context it starts when they end.
    """

    id: int
    tokens: int
    cells: int = 0
    begun: bool = False
    wants_cells: bool = False

    @property
    def goes_on(self) -> bool:
        """Whether the request runs without a larger context, too."""
        return self.begun or self.wants_cells


class ContextKept(msgspec.Struct, frozen=True, kw_only=True, tag="context_kept"):
    """The context does not grow for this request.

    If it already generates, it ends at the context's end; if it waits for cells of others, it goes on waiting.
    """

    id: int


class Resize(msgspec.Struct, frozen=True, kw_only=True, tag="resize"):
    """Resize to `n_ctx` tokens per sequence and `kv_cells` cells; the reply is `Resized` or a `Fault`.

    `through_disk`: main memory has no space for copies of the computed states.
    """

    id: int
    n_ctx: int
    kv_cells: int
    through_disk: bool = False


class Resized(msgspec.Struct, frozen=True, kw_only=True, tag="resized"):
    """The context's new sizes. Generations paused for `seconds`, while `state_bytes` were copied."""

    id: int
    n_ctx: int
    kv_cells: int
    reserved_cells: int
    state_bytes: int
    seconds: float


class Shutdown(msgspec.Struct, frozen=True, kw_only=True, tag="shutdown"):
    """Shut down cleanly."""


class Saving(msgspec.Struct, frozen=True, kw_only=True, tag="saving"):
    """A runner that shuts down stores its prefixes: bytes written since the load, and bytes that wait for the disk.

    `problem` is why the last prefix that could not be stored was not (empty: none).
    """

    written_bytes: int
    left_bytes: int
    problem: str = ""


ToRunner = (
    Load | Submit | Cancel | Credit | Tokenize | Detokenize | Embed | StatsQuery | Pace | ContextKept | Resize
    | Shutdown
)  # fmt: skip
FromRunner = (
    Hello | Heartbeat | Progress | Loaded | Events | Tokens | Pieces | Embedded | Fault | Stats | ContextWanted
    | Resized | RowsRecorded | Saving
)  # fmt: skip

_encoder = msgspec.msgpack.Encoder()
decode_to_runner = msgspec.msgpack.Decoder(learned(ToRunner)).decode
decode_from_runner = msgspec.msgpack.Decoder(learned(FromRunner)).decode


def frame(message: ToRunner | FromRunner) -> bytes:
    """Return the bytes of one frame.

    Raises: ValueError: the message is longer than MAX_FRAME_BYTES.
    """
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise ValueError(f"frame of {len(body)} bytes, limit {MAX_FRAME_BYTES}")
    return LENGTH.pack(len(body)) + body


def frame_length(header: bytes | bytearray) -> int:
    """Return the body length from a frame's first four bytes.

    Raises: ValueError: longer than MAX_FRAME_BYTES.
    """
    (length,) = LENGTH.unpack(header)
    if length > MAX_FRAME_BYTES:
        raise ValueError(f"frame of {length} bytes, limit {MAX_FRAME_BYTES}")
    return int(length)


class FrameReader:
    """Splits a byte stream into the bodies of its frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Return the bodies that these bytes complete.

        Raises: ValueError: a frame is longer than MAX_FRAME_BYTES.
        """
        buffer = self._buffer
        if not buffer and len(data) >= LENGTH.size and frame_length(data[: LENGTH.size]) == len(data) - LENGTH.size:
            return [data[LENGTH.size :]]  # exactly one, as for most tokens
        buffer += data
        bodies: list[bytes] = []
        at = 0
        while len(buffer) - at >= LENGTH.size:
            begin = at + LENGTH.size
            end = begin + frame_length(buffer[at:begin])
            if end > len(buffer):
                break
            bodies.append(bytes(buffer[begin:end]))
            at = end
        if at:
            del buffer[:at]
        return bodies


# The runner's end of the pipes, which sends and receives whole frames, and reserves stdout for them.


class Channel:
    """Blocking frames over two file descriptors. `send` may be called from several threads."""

    def __init__(self, source: BinaryIO, sink: BinaryIO) -> None:
        self._source = source
        self._sink = sink
        self._lock = threading.Lock()

    def receive(self) -> ToRunner | None:
        """Return the next message, or None if the server is gone."""
        body = frames.read_frame(self._source, MAX_FRAME_BYTES)
        return None if body is None else decode_to_runner(body)

    def send(self, message: FromRunner) -> None:
        """Write one message. If the server is gone, the process exits: it has no other client."""
        data = frame(message)
        try:
            with self._lock:
                self._sink.write(data)
                self._sink.flush()
        except (BrokenPipeError, ValueError):
            os._exit(0)


def claim_stdio() -> Channel:
    """Return the channel of a runner, over its stdin and stdout."""
    return Channel(*frames.claim_stdio())
