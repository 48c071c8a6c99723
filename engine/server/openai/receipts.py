"""Reproducibility of responses: a guarantee that equal requests give equal responses, and receipts."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec

from devices.types import Machine
from engine.api.receipts import Parts, Promise, Receipt, TextDigest
from engine.chat.types import ChatTemplate
from engine.core.errors import InputFault
from engine.core.types import Delta, Event, GenerationRequest
from engine.core.version import __version__
from engine.placement.results import build
from engine.pool.loaded_model import LoadedModel
from engine.runner.load_limits import exact_settings
from engine.runner.protocol import LoadSettings
from engine.server.openai.schemas import ChatRequest, CompletionRequest
from engine.server.state import ServerState
from quantize.files.gguf_split import read_gguf_model

# Load settings that affect the bits of a deterministic response; all others have no effect.
PLAN: Final = ("n_ctx", "type_k", "type_v", "n_gpu_layers", "devices", "repack")
_FIXED: Final = ("n_batch", "flash_attn", "engine_args")
_BLOCK: Final = 4 << 20


def promise(model: LoadedModel) -> Promise:
    """Whether deterministic requests to this model are reproducible, and the reasons if not."""
    because = []
    if model.engine != "llama":
        because.append(f"device: {model.engine} decides itself how it computes")
    elif model.settings.devices and model.settings.n_gpu_layers:
        because.append("device: steps have one shape, but that GPU kernels give equal bits was not shown")
    decisive = msgspec.json.encode((__version__, model.id, plan_of(model.settings), build()))
    return Promise(
        promised=not because, because=tuple(because), fingerprint=hashlib.sha256(decisive).hexdigest()[:16]
    )


def plan_of(settings: LoadSettings) -> dict[str, Any]:
    """The settings that affect the bits of deterministic responses."""
    exact = exact_settings(settings)
    values = {name: msgspec.to_builtins(getattr(exact, name)) for name in (*PLAN, *_FIXED)}
    if exact.tiles:
        values["tiles"] = list(exact.tiles)
    return values if exact.flash_attn == "off" else {**values, "n_threads": settings.n_threads}


def _parts_of(model: LoadedModel, machine: Machine, template: str) -> Parts:
    settings = model.settings
    adapters = {Path(path).stem: _file_sha256(path) for path in settings.lora}
    cpu = machine.device("cpu")
    used = [d for d in machine.devices if any(r.device_name in settings.devices for r in d.runtimes)]
    devices = [d for d in (cpu, *used) if d is not None]
    return Parts(
        file=_file_sha256(settings.path),
        template=template,
        plan=_digest(plan_of(settings)),
        adapters=_digest(adapters),
        engine=f"tessera {__version__}, {model.engine}",
        kernels=build(),
        driver=", ".join(d.driver_version or "none" for d in used) or "none",
        device=_digest([(d.name, sorted(d.isa)) for d in devices]),
    )


def template_mark(template: ChatTemplate | None) -> str:
    """Digest of the template that rendered a prompt."""
    return "none" if template is None else _digest((template.source, template.bos, template.eos))


class Claim:
    """Tracks one deterministic request and reports on its reproducibility, with a receipt if requested.

    Raises: InputFault: a receipt is not possible; `param` says why.
    """

    def __init__(
        self,
        state: ServerState,
        model: LoadedModel,
        body: ChatRequest | CompletionRequest,
        template: ChatTemplate | None = None,
    ) -> None:
        self._state = state
        self._model = model
        self._body = body
        self._template = template
        self._request: GenerationRequest | None = None
        self._text: list[str] = []
        if body.receipt:
            _check(model, body)

    async def watch(
        self, request: GenerationRequest, events: AsyncGenerator[Event, None]
    ) -> AsyncGenerator[Event, None]:
        """Passes on the events of the response and records its text."""
        self._request = request
        async with aclosing(events):
            async for event in events:
                if isinstance(event, Delta) and self._body.receipt:
                    self._text.append(event.text)
                yield event

    async def report(self) -> dict[str, Any]:
        """The fields for the end of the response."""
        fields: dict[str, Any] = {"deterministic": msgspec.to_builtins(promise(self._model))}
        if self._body.receipt and self._request is not None:
            fields["receipt"] = msgspec.to_builtins(await self._receipt(self._request))
        return fields

    async def _receipt(self, request: GenerationRequest) -> Receipt:
        return Receipt(
            model=self._model.id,
            parts=await parts_now(self._state, self._model, template_mark(self._template)),
            plan=plan_of(self._model.settings),
            asked=await request_record(self._model, request),
            format=format_of(request),
            route="completions" if self._template is None else "chat",
            body=self._body.model_dump(mode="json", exclude_none=True),
            answer=digest_of("".join(self._text)),
        )


async def parts_now(state: ServerState, model: LoadedModel, template: str) -> Parts:
    """All parts that a response of a loaded model depends on."""
    return await asyncio.to_thread(lambda: _parts_of(model, state.placer.machine_now(), template))


def digest_of(text: str) -> TextDigest:
    """Length and SHA-256 of a text, as in receipts."""
    return TextDigest(num_chars=len(text), sha256=hashlib.sha256(text.encode()).hexdigest())


def begins_with(text: str, answer: TextDigest) -> bool:
    """Whether a text starts with the response of a receipt. The client may have disconnected before its end."""
    return digest_of(text[: answer.num_chars]) == answer


async def request_record(model: LoadedModel, request: GenerationRequest) -> dict[str, Any]:
    """A request in the fields of /v1/completions, with every field and the prompt as token ids."""
    assert model.runner is not None
    prompt = request.prompt
    if isinstance(prompt, str):
        prompt = await model.runner.tokenize(
            prompt, add_special=request.add_special, parse_special=request.parse_special
        )
    sampling = {k: v for k, v in msgspec.structs.asdict(request.sampling).items() if v is not None}
    order = sampling.pop("order", None)
    bias = {str(token): value for token, value in sampling.pop("logit_bias").items()}
    return {
        **sampling,
        **({"samplers": list(order)} if order is not None else {}),
        **({"logit_bias": bias} if bias else {}),
        "dry_sequence_breakers": list(request.sampling.dry_sequence_breakers),
        "prompt": prompt,
        "max_tokens": -1 if request.max_tokens is None else request.max_tokens,
        "stop": list(request.stop),
        "stop_token_ids": list(request.stop_token_ids),
        "min_tokens": request.min_tokens,
        "ignore_eos": request.ignore_eos,
        "context_shift": request.context_shift,
        "loop_guard": request.loop_guard,
        "lora": [{"name": name, "scale": scale} for name, scale in request.lora],
        "deterministic": True,
    }


def format_of(request: GenerationRequest) -> dict[str, Any]:
    """The parts of a request that /v1/completions cannot express."""
    fields: dict[str, Any] = {"keep_special": request.keep_special}
    for name in ("constraint", "reasoning"):
        if getattr(request, name) is not None:
            fields[name] = msgspec.to_builtins(getattr(request, name))
    return fields


def _check(model: LoadedModel, body: ChatRequest | CompletionRequest) -> None:
    if not body.deterministic:
        raise InputFault("receipt needs deterministic: true.", "receipt")
    if isinstance(body, ChatRequest) and body.collection is not None:
        raise InputFault("receipt cannot be combined with collection, because its documents change.", "receipt")
    prompts = body.prompts() if isinstance(body, CompletionRequest) else [""]
    if (body.n or 1) * len(prompts) != 1:
        raise InputFault("receipt is possible for one answer at a time.", "receipt")
    if model.engine != "llama":
        raise InputFault("receipt is possible for models that llama.cpp runs.", "receipt")


def _file_sha256(path: str) -> str:
    """SHA-256 of a model file, including all parts of a split one."""
    digests = []
    for part in read_gguf_model(path).parts:
        stat = Path(part.name).stat()
        digests.append(_sha256(part.name, stat.st_size, stat.st_mtime_ns, stat.st_ino))
    return digests[0] if len(digests) == 1 else _digest(digests)


@lru_cache(maxsize=64)
def _sha256(path: str, _size: int, _changed_ns: int, _inode: int) -> str:
    digest = hashlib.sha256()
    with Path(path).open("rb", buffering=0) as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _digest(value: object) -> str:
    return hashlib.sha256(msgspec.json.encode(value)).hexdigest()
