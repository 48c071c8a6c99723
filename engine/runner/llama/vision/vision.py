"""Images in prompts through libmtmd: decoded in the runner, and put into the KV cache as embeddings.

An image has entries in the token list like text. Each entry is a negative number made from the image's hash, so
prefixes with the same image are found and shared by the same code as text.
"""

import ctypes
import hashlib
import importlib
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from engine.core.types import GenerationRequest
from engine.runner.llama.native import log
from engine.runner.llama.native.model import FLASH_ATTN, LoadedModel, LoadFailed
from engine.runner.llama.vision.image import ImageRefused, check_image

# Maximum images in one prompt. Each takes seconds to encode on a CPU; a whole conversation of screenshots has
# fewer.
MAX_IMAGES: Final = 64
# ggml's log levels. Below warnings libmtmd writes the prompt's text, which must not be logged.
_LOG_CALLBACK: Final = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
_LOG_WARN: Final = 3
_LOG_ERROR: Final = 4


class Span(msgspec.Struct, frozen=True):
    """One encoded part of an image: `n_tokens` entries from `start` on, which count as `n_pos` positions."""

    start: int
    n_tokens: int
    n_pos: int
    chunk: Any

    @property
    def end(self) -> int:
        """The first index after the part."""
        return self.start + self.n_tokens


@dataclass
class Media:
    """The images of one prompt. `close` frees them."""

    chunks: Any
    api: Any
    spans: list[Span] = field(default_factory=list)

    @property
    def shifted(self) -> bool:
        """Whether indices and positions differ (M-RoPE counts an image's sides, not its tokens)."""
        return any(span.n_pos != span.n_tokens for span in self.spans)

    def position(self, index: int) -> int:
        """Return the position of an index that is not inside an image, or starts one."""
        return index - sum(span.n_tokens - span.n_pos for span in self.spans if span.end <= index)

    def at(self, index: int) -> Span | None:
        return next((span for span in self.spans if span.start == index), None)

    def text_until(self, index: int, end: int) -> int:
        """Return the end of the text that starts at `index`: the next image, or `end`."""
        return min((span.start for span in self.spans if span.start >= index), default=end)

    def whole(self, index: int) -> int:
        """Return `index`, or the start of the image that it would split."""
        return next((span.start for span in self.spans if span.start < index < span.end), index)

    def close(self) -> None:
        """Free the native images."""
        if self.chunks is not None:
            self.api.mtmd_input_chunks_free(self.chunks)
            self.chunks = None


class Vision:
    """The projector of one loaded model. All calls come from the scheduler's thread."""

    def __init__(self, loaded: LoadedModel, path: str) -> None:
        """Load the projector.

        Raises: LoadFailed: the library is missing, or the file does not fit the model or does not support images.
        """
        try:
            self._api = importlib.import_module("llama_cpp.mtmd_cpp")
        except (ImportError, OSError, RuntimeError) as error:
            raise LoadFailed(f"libmtmd, which reads images, does not load: {error}") from error
        api, settings = self._api, loaded.settings
        log.begin("the projector", path)
        self._log = _quiet(api)
        params = api.mtmd_context_params_default()
        on_gpu = bool(settings.devices) and settings.n_gpu_layers != 0
        params.use_gpu = on_gpu and not settings.projector_on_cpu
        params.print_timings = False
        params.warmup = False
        params.flash_attn_type = FLASH_ATTN[settings.flash_attn]
        if settings.n_threads_batch or settings.n_threads:
            params.n_threads = settings.n_threads_batch or settings.n_threads
        self._context = api.mtmd_init_from_file(path.encode(), loaded.model, params)
        if not self._context:
            raise LoadFailed(log.explained(f"the projector {Path(path).name} does not fit this model"))
        if not api.mtmd_support_vision(self._context):
            api.mtmd_free(self._context)
            raise LoadFailed(f"the projector {Path(path).name} does not read images")
        self._loaded = loaded
        self.marker = api.mtmd_default_marker().decode()

    def read(self, request: GenerationRequest) -> tuple[list[int], Media]:
        """Return a prompt's token ids and its images.

        Raises: ImageRefused: an image cannot be decoded, there are too many, or the prompt has another number of
        markers.
        """
        if not isinstance(request.prompt, str):
            raise ImageRefused("images need a prompt of text, not of token ids")
        if len(request.images) > MAX_IMAGES:
            raise ImageRefused(f"there are {len(request.images)} pictures; at most {MAX_IMAGES} are read")
        markers = request.prompt.count(self.marker)
        if markers != len(request.images):
            raise ImageRefused(
                f"the prompt has {markers} places for {len(request.images)} pictures: the chat template lost some, "
                f"or the text contains {self.marker}"
            )
        api = self._api
        bitmaps = []
        try:
            for image in request.images:
                bitmaps.append(self._decode(image.data))  # noqa: PERF401 - after a refusal the bitmaps are freed below
            media = Media(chunks=api.mtmd_input_chunks_init(), api=api)
            code = self._tokenize(request, media, bitmaps)
        finally:
            for bitmap in bitmaps:
                api.mtmd_bitmap_free(bitmap)
        if code:
            media.close()
            raise ImageRefused("an image could not be prepared for this model")
        try:
            return self._lay_out(media), media
        except ImageRefused:
            media.close()
            raise

    def _decode(self, data: bytes) -> Any:
        check_image(data)
        buffer = (ctypes.c_uint8 * len(data)).from_buffer_copy(data)
        options = self._api.mtmd_helper_init_opt_default()
        bitmap = self._api.mtmd_helper_bitmap_init_from_buf_wrapper(
            self._context, buffer, len(data), False, options
        )
        if not bitmap.bitmap:
            raise ImageRefused("the image is damaged and cannot be decoded")
        return bitmap.bitmap

    def _tokenize(self, request: GenerationRequest, media: Media, bitmaps: list[Any]) -> int:
        assert isinstance(request.prompt, str)
        encoded = request.prompt.encode("utf-8", "replace")
        text = self._api.mtmd_input_text()
        text.text, text.text_len = encoded, len(encoded)
        text.add_special, text.parse_special = request.add_special, request.parse_special
        array = (ctypes.c_void_p * len(bitmaps))(*bitmaps)
        return int(self._api.mtmd_tokenize(self._context, media.chunks, ctypes.byref(text), array, len(bitmaps)))

    def _lay_out(self, media: Media) -> list[int]:
        """Return text tokens unchanged and images as negative numbers; fills `media.spans`."""
        api = self._api
        tokens: list[int] = []
        seen: Counter[bytes] = Counter()
        for i in range(api.mtmd_input_chunks_size(media.chunks)):
            chunk = api.mtmd_input_chunks_get(media.chunks, i)
            count = api.mtmd_input_chunk_get_n_tokens(chunk)
            if api.mtmd_input_chunk_get_type(chunk) == api.MTMD_INPUT_CHUNK_TYPE_TEXT:
                size = ctypes.c_size_t()
                pointer = api.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(size))
                tokens.extend(pointer[: size.value])
                continue
            if count > self._loaded.n_ubatch and api.mtmd_decode_use_non_causal(self._context, chunk):
                raise ImageRefused(
                    f"the picture takes {count} tokens at once; this model is loaded with n_ubatch "
                    f"{self._loaded.n_ubatch}"
                )
            name = api.mtmd_input_chunk_get_id(chunk) or b""
            media.spans.append(Span(len(tokens), count, api.mtmd_input_chunk_get_n_pos(chunk), chunk))
            tokens.extend(_image_tokens(name, seen[name], count))
            seen[name] += 1
        if not tokens or tokens[-1] < 0:
            raise ImageRefused("the prompt ends with an image; text must follow it")
        return tokens

    def put(self, span: Span, position: int, seq_id: int) -> int:
        """Encode an image and put it into the cache; return llama_decode's code, or -1 if encoding failed."""
        api = self._api
        if api.mtmd_encode_chunk(self._context, span.chunk):
            return -1
        reached = ctypes.c_int32()
        code = api.mtmd_helper_decode_image_chunk(
            self._context,
            self._loaded.context,
            span.chunk,
            api.mtmd_get_output_embd(self._context),
            position,
            seq_id,
            self._loaded.n_batch,
            ctypes.byref(reached),
            api.mtmd_helper_post_decode_callback(),
            None,
        )
        self._loaded.api.llama_synchronize(self._loaded.context)
        return int(code)


def _quiet(api: Any) -> Any:
    """Pass on only warnings and errors; the caller must keep the returned callback alive."""

    def hear(level: int, text: bytes, _: object) -> None:
        if level in {_LOG_WARN, _LOG_ERROR}:
            sys.stderr.write(text.decode("utf-8", "replace"))
            log.remember(level, text)

    callback = _LOG_CALLBACK(hear)
    api._libmtmd.mtmd_helper_log_set(callback, None)  # noqa: SLF001 - not wrapped by the package
    return callback


def _image_tokens(name: bytes, part: int, count: int) -> list[int]:
    """Return `count` negative numbers for one part of one image, the same in every process."""
    stream = hashlib.shake_256(name + part.to_bytes(4, "big")).digest(4 * count)
    numbers = np.frombuffer(stream, "<i4") | np.int32(-(1 << 31))
    return [int(n) for n in numbers]
