"""The messages between the server and a runner: msgpack structs, each frame behind its length.

Engine-neutral: the llama.cpp runner, the ONNX runner and the fakes in tests speak the same. A frame is four
bytes of big-endian length and one msgpack message. Everything a step produced travels in one `Events` frame.
"""

from typing import Final

import msgspec

from devices.frames import LENGTH
from devices.msgspec_lock import learned
from engine.core.types import Event, GenerationRequest, ModelFacts
from engine.runner.engine_args import NO_ARGS, EngineArgs

VERSION: Final = 1
# A vocabulary's chat template and metadata fit easily; a longer frame is a broken or hostile peer.
MAX_FRAME_BYTES: Final = 64 << 20
# Deltas a runner may send before the server has taken some. Beyond it, text is coalesced, decode continues.
INITIAL_CREDIT: Final = 64
# A runner says this often that it lives, whatever its kernels do.
HEARTBEAT_S: Final = 2.0


class RemoteLayers(msgspec.Struct, frozen=True, kw_only=True):
    """How many layers lie on the device `index` of a worker; the output counts as one."""

    remote: str
    layers: int
    index: int = 0


class ExternalProgram(msgspec.Struct, frozen=True, kw_only=True):
    """A program that serves a model in place of a runner of ours.

    `kind` is its row in engine/placement/external.py, `program` the file that is started (empty: it is not
    installed, or runs elsewhere), `arguments` what the user adds to its command line.
    """

    name: str
    kind: str
    program: str = ""
    arguments: tuple[str, ...] = ()


def layer_shares(remotes: tuple[RemoteLayers, ...]) -> tuple[float, ...]:
    """Shares that llama.cpp divides layers by: it compares fractions, so borders lie between two of them."""
    if len(remotes) < 2:  # noqa: PLR2004 - one device has all
        return ()
    counts = [float(r.layers) for r in remotes]
    return (counts[0] - 0.5, *counts[1:-1], counts[-1] + 0.5)


class LoadSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a runner needs to load one model. Sizes are in tokens unless named otherwise.

    `n_ctx` is the longest sequence, `kv_cells` the whole cache that all sequences share (0: n_ctx).
    `max_ctx` is how far the context may grow while the model serves (0: it keeps its size).
    `n_gpu_layers` -1 offloads all. `devices` names the backend devices to use (empty: the runner's choice).
    `tensor_split` are the shares of layers of several devices (empty: alike); the experts of the first
    `cpu_expert_layers` layers stay on the processor wherever those layers are. `expert_bytes` is the memory that
    experts may take where the file is larger than memory (0: they are all in memory, or the kernel's concern).
    `path` is the first file of a split model, or a folder. `provider` names the execution provider of an ONNX model
    (empty: the folder's own choice, else the CPU); `allow_fallback` lets operators it does not take run on the CPU.
    `external` is the program that serves the model instead of a runner of ours. `gpu_frac` is the part of its GPU's
    memory that vLLM may take; `provider` then names it (`cuda:` and a number).
    `max_draft` is the longest draft that one step verifies (0: none). `mtp` loads the file's own draft head.
    `max_rollback` tokens can be taken back from a recurrent state, by so many copies of it for each sequence.
    `tiles` names what our own kernels compute: types of weights, in products with prompts, and `attention`
    (devices/backends/cpu_kernels.py).
    `engine_args` is what llama.cpp is told beside these. `remotes` are workers that hold the last layers, one entry
    for each of `devices`.
    `reference_path` holds the CPU's answers that the device is compared with after the load (None: with nothing).
    """

    path: str
    n_ctx: int = 4096
    max_ctx: int = 0
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
    repack: bool = True
    tiles: tuple[str, ...] = ()
    max_draft: int = 16
    lora: tuple[str, ...] = ()
    mtp: bool = False
    max_rollback: int = 0
    draft_path: str | None = None
    mmproj_path: str | None = None
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


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag="hello"):
    """First frame of every runner."""

    version: int
    engine: str
    pid: int


class Load(msgspec.Struct, frozen=True, kw_only=True, tag="load"):
    """Load the model; answered by `Progress` frames and `Loaded`, or by `Fault` without an id."""

    settings: LoadSettings


# The phase of a load in which a device's compiler works on the model; it keeps what it makes.
COMPILING: Final = "compiling"


class Progress(msgspec.Struct, frozen=True, kw_only=True, tag="progress"):
    """How far a load is, 0 to 1."""

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
    """The server took `count` deltas of this request."""

    id: int
    count: int


class Tokenize(msgspec.Struct, frozen=True, kw_only=True, tag="tokenize"):
    """Text to token ids; answered by `Tokens`."""

    id: int
    text: str
    add_special: bool = True
    parse_special: bool = True


class Tokens(msgspec.Struct, frozen=True, kw_only=True, tag="tokens"):
    """Answer to `Tokenize`."""

    id: int
    token_ids: list[int]


class Detokenize(msgspec.Struct, frozen=True, kw_only=True, tag="detokenize"):
    """Token ids to bytes; answered by `Pieces`."""

    id: int
    token_ids: list[int]


class Pieces(msgspec.Struct, frozen=True, kw_only=True, tag="pieces"):
    """Answer to `Detokenize`: the bytes of each token."""

    id: int
    pieces: list[bytes]


class Embed(msgspec.Struct, frozen=True, kw_only=True, tag="embed"):
    """Embed each input, or score it against `query` when the model is a reranker; answered by `Embedded`.

    With `truncate` an input beyond the context is cut to it, its closing token kept. With `quick` many inputs may
    be embedded in 8 bits where that is faster.
    """

    id: int
    inputs: list[str | list[int]]
    normalize: bool = True
    query: str | None = None
    truncate: bool = False
    quick: bool = False


class Embedded(msgspec.Struct, frozen=True, kw_only=True, tag="embedded"):
    """Little-endian float32 rows, one per input, each `width` numbers; and the tokens of each input.

    `cut` has the tokens that inputs had before they were cut, by their index.
    """

    id: int
    width: int
    vectors: list[bytes]
    token_counts: list[int]
    cut: dict[int, int] = {}


class Events(msgspec.Struct, frozen=True, kw_only=True, tag="events"):
    """What one step produced, as (request id, event) pairs."""

    items: list[tuple[int, Event]]


class Fault(msgspec.Struct, frozen=True, kw_only=True, tag="fault"):
    """A request failed (`id`), or the load or the whole runner did (`id` None). `facts` carry numbers."""

    code: str
    message: str
    id: int | None = None
    param: str | None = None
    facts: dict[str, int | float | str | None] = {}


class StatsQuery(msgspec.Struct, frozen=True, kw_only=True, tag="stats_query"):
    """Ask for `Stats`."""

    id: int


class ExpertStats(msgspec.Struct, frozen=True, kw_only=True):
    """Streamed experts since the load: how many layers asked for, how many were there, at what cost.

    `cached_bytes` is what they take in memory now, `waited_s` how long steps waited for `read_bytes`.
    """

    asked: int = 0
    there: int = 0
    read_bytes: int = 0
    waited_s: float = 0.0
    cached_bytes: int = msgspec.field(default=0, name="kept_bytes")


class Stats(msgspec.Struct, frozen=True, kw_only=True, tag="stats"):
    """Counters since the load, and the present state.

    `computed_tokens` are the rows of all steps but of pictures, drafts included.
    `all_s` are the seconds of all steps, `own_s` what the newest requests had of them, by their numbers. `experts`
    where they are streamed.
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


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True, tag="heartbeat"):
    """The runner lives; its present step has taken `step_s` seconds so far (0: it waits for work)."""

    step_s: float


class Pace(msgspec.Struct, frozen=True, kw_only=True, tag="pace"):
    """From now on: at most so many threads for a step (0: as many as pay), and steps for that share of time."""

    threads: int = 0
    duty: float = 1.0


class ContextWanted(msgspec.Struct, frozen=True, kw_only=True, tag="context_wanted"):
    """A request needs a context of so many tokens; it waits for `Resized` or `ContextKept`.

    `begun`: its answer is on the way and nearly at the end of the context.
    """

    id: int
    tokens: int
    begun: bool = False


class ContextKept(msgspec.Struct, frozen=True, kw_only=True, tag="context_kept"):
    """The context does not grow for this request: if its answer has begun it ends where the context does."""

    id: int


class Resize(msgspec.Struct, frozen=True, kw_only=True, tag="resize"):
    """Let sequences have `n_ctx` tokens in a cache of `kv_cells`; answered by `Resized`, or a `Fault`.

    `through_disk`: main memory has no room for copies of what was computed.
    """

    id: int
    n_ctx: int
    kv_cells: int
    through_disk: bool = False


class Resized(msgspec.Struct, frozen=True, kw_only=True, tag="resized"):
    """The context has these sizes now. Answers paused for `seconds`, while `state_bytes` were copied."""

    id: int
    n_ctx: int
    kv_cells: int
    state_bytes: int
    seconds: float


class Shutdown(msgspec.Struct, frozen=True, kw_only=True, tag="shutdown"):
    """Leave in good order."""


ToRunner = (
    Load | Submit | Cancel | Credit | Tokenize | Detokenize | Embed | StatsQuery | Pace | ContextKept | Resize
    | Shutdown
)  # fmt: skip
FromRunner = (
    Hello | Heartbeat | Progress | Loaded | Events | Tokens | Pieces | Embedded | Fault | Stats | ContextWanted
    | Resized
)  # fmt: skip

_encoder = msgspec.msgpack.Encoder()
decode_to_runner = msgspec.msgpack.Decoder(learned(ToRunner)).decode
decode_from_runner = msgspec.msgpack.Decoder(learned(FromRunner)).decode


def frame(message: ToRunner | FromRunner) -> bytes:
    """The bytes of one frame.

    Raises: ValueError: the message is longer than MAX_FRAME_BYTES.
    """
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise ValueError(f"frame of {len(body)} bytes, limit {MAX_FRAME_BYTES}")
    return LENGTH.pack(len(body)) + body


def frame_length(header: bytes | bytearray) -> int:
    """Body length announced by a frame's first four bytes.

    Raises: ValueError: longer than MAX_FRAME_BYTES.
    """
    (length,) = LENGTH.unpack(header)
    if length > MAX_FRAME_BYTES:
        raise ValueError(f"frame of {length} bytes, limit {MAX_FRAME_BYTES}")
    return int(length)


class FrameReader:
    """Cuts a stream of bytes into the bodies of its frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Bodies that these bytes complete.

        Raises: ValueError: a frame longer than MAX_FRAME_BYTES is announced.
        """
        buffer = self._buffer
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
