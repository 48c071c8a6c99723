"""Several sequences and long prompts, computed as the server does, with faults as public threads describe them.

The faults are put between llama.cpp and the check: into the tokens before a decode, or into its logits.
"""

import itertools
import os
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from engine.core.types import DeviceCheck
from engine.placement.device_checks import CHECKED_SEQUENCES
from engine.runner.llama import deep_check_child, reference_child
from engine.runner.llama.native import scenarios
from engine.runner.llama.native.batch import Batch, Logits
from engine.runner.llama.native.device_check import Reference, prompts
from engine.runner.llama.native.llama_api import start_backends
from engine.runner.llama.native.model import load
from engine.runner.llama.native.scenarios import Outcome, Scenarios
from engine.runner.llama.native.vocabulary import LlamaVocabulary
from engine.runner.llama.service import compared
from engine.runner.llama.vision.vision import Vision
from engine.runner.load_limits import EXACT_ROWS, exact_settings
from engine.runner.protocol import LoadSettings
from tests.support.check_clock import replace_clock
from tests.support.models.shapes import SHAPES, shallow, write_shape
from tests.support.models.vision_shapes import write_projector

pytestmark = pytest.mark.native


class Device:
    """What a faulty driver does; `ubatch` is the context's. The default does nothing.

    `is_second`: the decode is one of a context for a single sequence.
    """

    def __init__(self):
        self.decodes, self.ubatch, self.random, self.is_second = 0, 0, np.random.default_rng(1), False
        self.runs, self.rows = [], []

    def before(self, tokens, sequences):
        """May change the tokens of a decode."""

    def after(self, logits):
        """Return the logits (outputs, n_vocab), perhaps changed."""
        return logits

    def noise(self, logits):
        return self.random.normal(0, 3, logits.shape).astype(np.float32)

    @property
    def together(self):
        """Whether the last decode had several sequences."""
        return len({sequence for sequence, _ in self.runs}) > 1


class CrossTalk(Device):
    """llama.cpp 25992: with several sequences, a row is another one's, in one of four decodes."""

    def after(self, logits):
        return np.roll(logits, 1, axis=0) if self.together and self.decodes % 4 == 0 else logits


class NextUbatch(Device):
    """llama.cpp 28211: from the second ubatch of a prompt on, the next one's inputs are read."""

    def before(self, tokens, sequences):
        u = self.ubatch
        for at in range(u, len(tokens) - u, u):
            tokens[at : at + u] = np.resize(tokens[at + u : at + 2 * u], u)


class MixedBatch(Device):
    """llama.cpp 28537: prompt rows next to another's single row get random logits, three of ten times."""

    def after(self, logits):
        lengths = [length for _, length in self.runs]
        mixed = self.together and min(lengths) == 1 and max(lengths) > 1
        return self.noise(logits) if mixed and self.random.random() < 0.3 else logits


class UbatchBefore(Device):
    """llama.cpp 27579: the last ubatch of a long prompt sees the tokens of the one before."""

    def before(self, tokens, sequences):
        start = (len(tokens) - 1) // self.ubatch * self.ubatch
        if start:
            tokens[start:] = tokens[start - self.ubatch : start][: len(tokens) - start]


class NotANumber(Device):
    """llama.cpp 28648: all logits are NaN for prompts of more than one ubatch."""

    def after(self, logits):
        return logits * np.nan if sum(length for _, length in self.runs) > self.ubatch else logits


class BatchOf512(Device):
    """llama.cpp 27237: random with this number of rows a decode, right with others."""

    def after(self, logits):
        return self.noise(logits) if sum(length for _, length in self.runs) > 128 else logits


class SecondPrompt(Device):
    """llama.cpp, pull request 21638: after the first single step, prompts read weights in another order."""

    has_stepped = False

    def after(self, logits):
        lengths = [length for _, length in self.runs]
        wrong = self.has_stepped and max(lengths) > 1
        self.has_stepped = self.has_stepped or lengths == [1]
        return self.noise(logits) if wrong else logits


class UnrotatedStep(Device):
    """llama.cpp, pull request 23690: one of some fifty steps reads the cache wrongly."""

    def after(self, logits):
        return self.noise(logits) if self.decodes % 50 == 49 else logits


class OneToken(Device):
    """llama.cpp 25992, later: after some work in several sequences one constant token wins."""

    shared = 0

    def after(self, logits):
        self.shared += self.together
        if self.shared > 12:
            logits[:] = 0
            logits[:, 7] = 30
        return logits


class LayersOff(Device):
    """llama.cpp 27506 with the output layer on the GPU: rows are permuted, always in the same way."""

    def after(self, logits):
        return logits[::-1].copy() if len(logits) > 1 else logits


def put_between(monkeypatch, device, loaded):
    device.ubatch = loaded.n_ubatch

    class FaultyBatch(Batch):
        def decode(self):
            device.runs = [(seq, len(tokens)) for seq, tokens in self.runs()]
            device.is_second = self._loaded.n_seq_max == 1
            device.before(self._tokens[: self.size], self._seq[: self.size])
            code = super().decode()
            device.decodes += 1
            return code

    class FaultyLogits(Logits):
        def rows(self, count):
            return device.after(super().rows(count)[:count].copy())

    monkeypatch.setattr(scenarios, "Batch", FaultyBatch)
    monkeypatch.setattr(scenarios, "Logits", FaultyLogits)


class RowsOfDrafts(Device):
    """Wrong for a few rows of one sequence, all of them outputs, as a draft is verified (rule metal-mtp-3)."""

    def after(self, logits):
        lengths = [length for _, length in self.runs]
        return self.noise(logits) if len(lengths) == 1 and 1 < lengths[0] == len(logits) < 9 else logits


class LikeItself(Device):
    """Always wrong in the same way, whatever the batch: only other kernels' results show it."""

    def after(self, logits):
        return np.roll(logits, 3, axis=1)


class ThreeSequences(Device):
    """Wrong only if a prompt is next to the answers of exactly two others."""

    def after(self, logits):
        lengths = sorted(length for _, length in self.runs)
        return self.noise(logits) if lengths[:2] == [1, 1] and len(lengths) == 3 and lengths[2] > 1 else logits


class SevenRows(Device):
    """Wrong only for drafts of six tokens, as a kernel for that number of columns would be."""

    def after(self, logits):
        return self.noise(logits) if self.runs == [(0, 7)] else logits


class LongNextToOthers(Device):
    """Several prompts at once, and more than one ubatch (llama.cpp 27579 with two or more requests)."""

    def after(self, logits):
        is_long = sum(length for _, length in self.runs) > self.ubatch
        return np.roll(logits, 1, axis=0) if self.together and is_long else logits


class UnevenEnd(Device):
    """Wrong for the last rows of a long prompt that fill no tile of 32."""

    def after(self, logits):
        rows = sum(length for _, length in self.runs)
        return self.noise(logits) if rows > self.ubatch and rows % 32 else logits


class SecondContext(Device):
    """Wrong only in whole chunks of a context for one sequence, as deterministic requests have it."""

    def after(self, logits):
        return self.noise(logits) if self.is_second and self.runs == [(0, EXACT_ROWS)] else logits


class SecondKernels(Device):
    """Wrong in all batches of such a context: its cache types and attention are other ones."""

    def after(self, logits):
        return np.roll(logits, 3, axis=1) if self.is_second else logits


SCENARIOS = [
    "several sequences in one batch",
    "a second prompt after an answer",
    "a shared and a truncated prefix",
    "a restored prefix",
    "drafts that are verified",
    "a deterministic request",
    "a prompt of several ubatches",
]
FAULTS = [
    CrossTalk, NextUbatch, MixedBatch, UbatchBefore, NotANumber, BatchOf512, SecondPrompt, UnrotatedStep, OneToken,
    LayersOff, RowsOfDrafts, LikeItself, ThreeSequences, SevenRows, LongNextToOthers, UnevenEnd, SecondContext,
    SecondKernels,
]  # fmt: skip


def examined(loaded, vocabulary, expected, seconds=600.0):
    tokens = [token for sequence in prompts(loaded, vocabulary) for token in sequence]
    try:
        return Scenarios(loaded, expected, tokens).run(seconds)
    except ValueError as error:
        return Outcome([], [], error)


@pytest.fixture(scope="module")
def spark(bundled_model):
    api = start_backends()
    settings = LoadSettings(path=str(bundled_model), n_ctx=2048, n_batch=256, n_ubatch=64, n_threads=1)
    loaded = load(api, settings, lambda _fraction: True)
    vocabulary = LlamaVocabulary(api, loaded.vocab)
    yield loaded, vocabulary, reference_child.compute(api, reference_child.reference_settings(settings))
    loaded.close()


def test_a_sound_device_computes_every_scenario_like_each_sequence_alone(spark):
    assert examined(*spark) == (SCENARIOS, [], None)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_historical_fault_is_found_before_the_first_answer(spark, monkeypatch, fault):
    put_between(monkeypatch, fault(), spark[0])
    assert examined(*spark).wrong is not None


class FiveSequences(Device):
    """Each row is another sequence's if a batch has more than four of them."""

    def after(self, logits):
        return np.roll(logits, 1, axis=0) if len(self.runs) > 4 else logits


@pytest.mark.parametrize(
    ("fault", "changes"),
    [(Device, {"n_parallel": 8}), (FiveSequences, {"n_parallel": 8}), (Device, {"n_batch": 64, "n_parallel": 16})],
)
def test_as_many_sequences_are_compared_as_the_server_answers_at_once(spark, monkeypatch, fault, changes):
    api, settings = spark[0].api, msgspec.structs.replace(spark[0].settings, **changes)
    expected = reference_child.compute(api, reference_child.reference_settings(settings))
    other = load(api, settings, lambda _fraction: True)
    put_between(monkeypatch, fault(), other)
    try:
        found = examined(other, LlamaVocabulary(api, other.vocab), expected)
    finally:
        other.close()
    assert (found.wrong is None) is (fault is Device), found.wrong
    assert fault is not Device or found.done == SCENARIOS


def test_a_prefix_that_comes_back_changed_is_found(spark, monkeypatch):
    api = spark[0].api
    restore = api.llama_state_seq_set_data

    def changed(context, pointer, size, seq_id):
        np.ctypeslib.as_array(pointer, (size,))[-1000:] = 0x3C  # values of the last layer
        return restore(context, pointer, size, seq_id)

    monkeypatch.setattr(api, "llama_state_seq_set_data", changed)
    assert examined(*spark).wrong.scenario == "a restored prefix"


@pytest.mark.parametrize("flash_attn", ["off", "on"])
def test_a_deterministic_request_does_not_use_attention_that_is_off_on_a_gpu(flash_attn):
    settings = LoadSettings(path="m", devices=("Vulkan0",), n_gpu_layers=99, flash_attn=flash_attn)
    assert exact_settings(settings).flash_attn == ("off" if flash_attn == "off" else "auto")


def test_a_deterministic_request_is_compared_with_the_cpu_while_idle_if_its_cache_has_another_type(
    bundled_model, monkeypatch
):
    settings = LoadSettings(
        path=str(bundled_model), n_ctx=1024, n_batch=512, n_ubatch=256, n_threads=1, type_k="q8_0", type_v="q8_0",
        flash_attn="on",
    )  # fmt: skip
    computed, references = deep_check_child.compute, []

    def reference(*arguments, **named):
        references.append(computed(*arguments, **named))
        if len(references) == 2:
            put_between(monkeypatch, SecondKernels(), SimpleNamespace(n_ubatch=256))
        return references[-1]

    monkeypatch.setattr(deep_check_child, "compute", reference)
    assert deep_check_child.compared(settings, 512)["wrong"] == "a deterministic request"
    monkeypatch.undo()
    api = start_backends()
    loaded = load(api, settings, lambda _fraction: True)
    try:
        found = examined(loaded, LlamaVocabulary(api, loaded.vocab), references[0])
    finally:
        loaded.close()
    assert (found.omitted, found.wrong) == (["a deterministic request"], None), "a load has no such result"


def test_with_a_cpu_that_is_too_slow_the_device_is_compared_with_itself(spark, monkeypatch):
    loaded, vocabulary, expected = spark
    expected = msgspec.structs.replace(expected, alone=())
    assert examined(loaded, vocabulary, expected) == ([], SCENARIOS, None)  # the CPU's are still missing
    put_between(monkeypatch, CrossTalk(), loaded)
    assert examined(loaded, vocabulary, expected).wrong is not None
    settings = reference_child.reference_settings(loaded.settings)
    at_once = reference_child.compute(start_backends(), settings, slow_s=-1.0)
    assert (at_once.alone, at_once.tokens) == ((), expected.tokens)


@pytest.mark.parametrize("seconds", [0, 1, 3, 8, 12, 100])
def test_what_the_time_is_too_short_for_is_named(spark, monkeypatch, seconds):
    """The clock moves by a second at each look at it; a scenario that has only begun is not done."""
    clock = itertools.count()
    replace_clock(monkeypatch, lambda: next(clock))
    done, omitted, wrong = examined(*spark, seconds=seconds)
    assert wrong is None
    assert sorted(done + omitted) == sorted(SCENARIOS)
    assert (SCENARIOS[0] in omitted) is (seconds < 8)
    assert (SCENARIOS[-1] in omitted) is (seconds < 100)


def test_a_load_records_what_it_had_no_time_for(spark, monkeypatch, tmp_path):
    loaded, vocabulary, expected = spark
    path = tmp_path / "reference.msgpack"
    path.write_bytes(msgspec.msgpack.encode(expected))
    settings = msgspec.structs.replace(loaded.settings, reference_path=str(path))
    monkeypatch.setattr(loaded, "settings", settings)
    clock = itertools.count()
    for step, omitted in ((0, ""), (1000, ", ".join(SCENARIOS))):
        replace_clock(monkeypatch, lambda step=step: step * next(clock))
        assert compared(loaded, vocabulary).omitted == omitted


class NanTogether(Device):
    """No numbers as soon as several sequences share a batch."""

    def after(self, logits):
        return logits * np.nan if self.together else logits


@pytest.mark.parametrize(
    ("fault", "wrong"),
    [
        (Device, None),
        (CrossTalk, SCENARIOS[0]),
        (SecondPrompt, SCENARIOS[0]),
        (NanTogether, "batches of several texts"),
    ],
)
def test_batches_that_a_load_had_no_time_for_are_compared_while_idle(bundled_model, monkeypatch, fault, wrong):
    settings = LoadSettings(path=str(bundled_model), n_ctx=1024, n_batch=512, n_ubatch=256, n_threads=1)
    assert CHECKED_SEQUENCES == scenarios.WIDEST
    computed = deep_check_child.compute
    clean = []

    def reference(*arguments, **named):
        clean.append(computed(*arguments, **named))
        put_between(monkeypatch, fault(), SimpleNamespace(n_ubatch=256))  # the CPU is sound
        return clean[0]

    monkeypatch.setattr(deep_check_child, "compute", reference)
    found = deep_check_child.compared(settings, 512)
    assert found.get("wrong") == wrong
    assert clean[0].alone
    assert wrong or set(SCENARIOS[:-1]) <= set(found["done"])


@pytest.mark.parametrize(
    ("name", "cache", "attention", "ubatch"),
    [
        ("llama-q4_0", "f16", "on", 64),
        ("llama", "q8_0", "on", 128),
        ("qwen3", "f16", "off", 128),
        ("qwen3moe", "q4_0", "on", 64),
        ("gemma3", "q8_0", "on", 64),
        ("lfm2", "f16", "on", 64),
        ("mamba", "f16", "auto", 128),
        ("deepseek2", "f16", "on", 64),
    ],
)
def test_no_architecture_or_cache_type_raises_an_alarm_on_the_cpu(tmp_path, name, cache, attention, ubatch):
    path = write_shape(tmp_path / "model.gguf", shallow(name))
    api = start_backends()
    common = {"path": str(path), "n_ctx": 1024, "n_batch": 4 * ubatch, "n_ubatch": ubatch, "n_threads": 1}
    settings = LoadSettings(**common, type_k=cache, type_v=cache, flash_attn=attention)
    loaded = load(api, settings, lambda _fraction: True)
    try:
        vocabulary = LlamaVocabulary(api, loaded.vocab)
        expected = reference_child.compute(api, reference_child.reference_settings(settings))
        done, omitted, wrong = examined(loaded, vocabulary, expected)
    finally:
        loaded.close()
    # A load with a quantized cache has no results of the CPU for the context of deterministic requests.
    assert (wrong, omitted) == (None, [] if cache == "f16" else ["a deterministic request"])
    assert len(done) >= 3


class WrongBehind(Logits):
    """llama.cpp 26239: behind a depth (there 4,676 tokens, here 600) one reserved token wins for ever."""

    def __init__(self, loaded):
        super().__init__(loaded)
        self._context = loaded

    def rows(self, count):
        found = super().rows(count)
        at = self._context.api.llama_memory_seq_pos_max(self._context.memory, 0)
        if at > 600 and self._context.settings.repack:
            found[:], found[:, 49] = 0, 30
        return found


class WrongAfterHundred(WrongBehind):
    """llama.cpp, pull request 23690: right at first, other tokens after 100 of an answer."""

    decodes = 0

    def rows(self, count):
        found = Logits.rows(self, count)
        WrongAfterHundred.decodes += self._context.settings.repack
        wrong = self._context.settings.repack and WrongAfterHundred.decodes > 100
        return np.roll(found, 1, axis=1) if wrong else found


class SomeReserved(WrongAfterHundred):
    """Some reserved tokens in an answer, which the mean of 150 rows would hide; 1 begins a turn of a chat."""

    decodes = 0

    def rows(self, count):
        found = Logits.rows(self, count)
        SomeReserved.decodes += self._context.settings.repack
        if self._context.settings.repack and 100 <= SomeReserved.decodes < 103:
            found = found.copy()
            found[0, 1] = found[0].max() + 0.1
        return found


@pytest.mark.parametrize(
    ("fault", "wrong"),
    [
        (Logits, None),
        (WrongBehind, "a long text and what follows"),
        (WrongAfterHundred, "an answer of 150 tokens"),
        (SomeReserved, "an answer of 150 tokens"),
    ],
)
def test_long_texts_and_answers_are_compared_with_the_cpu(bundled_model, monkeypatch, fault, wrong):
    monkeypatch.setattr(deep_check_child, "Logits", fault)
    settings = LoadSettings(path=str(bundled_model), n_ctx=1024, n_batch=512, n_ubatch=256, n_threads=1)
    found = deep_check_child.compared(settings, 700)
    assert found.get("wrong") == wrong
    assert wrong or found["nats"] < 0.02
    assert ("reserved" in found.get("reason", "")) is (fault is SomeReserved)


@pytest.mark.parametrize("is_text_wrong", [False, True])
def test_products_of_each_type_are_compared_with_one_row_and_128(bundled_model, monkeypatch, is_text_wrong):
    if is_text_wrong:
        monkeypatch.setattr(WrongAfterHundred, "decodes", 0)
        monkeypatch.setattr(deep_check_child, "Logits", WrongAfterHundred)
    settings = LoadSettings(path=str(bundled_model), n_ctx=1024, n_batch=512, n_ubatch=256, n_threads=1)
    seen = []

    def compare(self, loaded, tokens, seconds=float("inf"), num_prompt=0):
        compared = real(self, loaded, tokens, seconds, num_prompt)
        seen.extend((o.kind, o.weights, o.rows) for o in compared)
        wrong = [msgspec.structs.replace(o, wrong=True, error=0.3) for o in compared if o.rows == "many"]
        return wrong if is_faulty else compared

    real = deep_check_child.OperationCheck.compare
    monkeypatch.setattr(deep_check_child.OperationCheck, "compare", compare)
    is_faulty = True
    found = deep_check_child.compared(settings, 512)
    assert {("MUL_MAT", "f16", "one"), ("MUL_MAT", "f16", "many")} <= set(seen)
    assert found["in_products"]
    assert found["wrong"] == ("an answer of 150 tokens" if is_text_wrong else "matrix products")
    assert is_text_wrong or "several tokens" in found["reason"]


@pytest.mark.parametrize("has_fault", [False, True])
def test_an_image_is_compared_with_the_cpu(tmp_path, monkeypatch, has_fault):
    path = write_shape(tmp_path / "model.gguf", shallow("gemma3"))
    projector = write_projector(tmp_path / "mmproj.gguf", "gemma3", SHAPES["gemma3"].embd)

    class Faulty(Vision):
        def __init__(self, loaded, path):
            super().__init__(loaded, path)
            self.is_device = loaded.settings.repack

        def put(self, span, position, seq_id):
            get = self._api.mtmd_get_output_embd
            size = span.n_tokens * self._loaded.api.llama_model_n_embd(self._loaded.model)

            def negated(context):
                pointer = get(context)
                values = np.ctypeslib.as_array(pointer, (size,))
                values *= -1
                return pointer

            if has_fault and self.is_device:
                monkeypatch.setattr(self._api, "mtmd_get_output_embd", negated)
            try:
                return super().put(span, position, seq_id)
            finally:
                monkeypatch.setattr(self._api, "mtmd_get_output_embd", get)

    monkeypatch.setattr(deep_check_child, "Vision", Faulty)
    settings = LoadSettings(
        path=str(path), n_ctx=1024, n_batch=512, n_ubatch=256, n_threads=1, mmproj_path=str(projector)
    )
    found = deep_check_child.compared(settings, 512)
    assert "an image" in found["done"]
    assert found.get("wrong") == ("an image" if has_fault else None)


@pytest.mark.parametrize(("n_ctx", "loads"), [(4096, [256, 256]), (131_072, [256, 4097, 4097])])
def test_the_reference_of_a_longrope_model_has_the_factors_of_the_devices_context(monkeypatch, n_ctx, loads):
    """Phi-3 has two sets of rotary factors, and llama.cpp chooses by the size of the context, here beyond 4,096."""
    contexts, expected = [], Reference(version=1, tokens="", rows=1, width=1, token_ids=b"", logprobs=b"")

    class Loaded:
        vocab = None

        def close(self):
            """Nothing was loaded."""

    def loaded(_api, settings, _progress):
        contexts.append(settings.n_ctx)
        return Loaded()

    monkeypatch.setattr(reference_child.llama_model, "load", loaded)
    monkeypatch.setattr(reference_child.llama_model, "short_rope", lambda _loaded: 4096)
    monkeypatch.setattr(reference_child, "LlamaVocabulary", lambda _api, _vocab: None)
    monkeypatch.setattr(reference_child, "reference", lambda _loaded, _vocabulary: expected)
    monkeypatch.setattr(reference_child, "prompts", lambda _loaded, _vocabulary: [])
    monkeypatch.setattr(reference_child, "alone", lambda _loaded, _tokens, _noise: ())
    monkeypatch.setattr(reference_child, "logprob_rows", lambda _loaded, _sequences: None)
    check = DeviceCheck(rows=1, kld_mean=0.1, kld_max=0.2, top_changed_frac=0.0, logprob_difference=0.3)
    monkeypatch.setattr(reference_child, "compare_rows", lambda _expected, _rows: check)
    settings = reference_child.reference_settings(LoadSettings(path="m", n_ctx=n_ctx))
    assert reference_child.compute(None, settings, n_ctx).noise_kld_mean == 0.1
    assert contexts == loads


def test_variables_of_a_load_are_set_or_removed_before_a_backend_starts(monkeypatch):
    monkeypatch.setenv("GGML_VK_GONE", "1")
    monkeypatch.setenv("GGML_VK_SET", "")
    start_backends(variables=("GGML_VK_GONE=", "GGML_VK_SET=2"))
    assert "GGML_VK_GONE" not in os.environ
    assert os.environ["GGML_VK_SET"] == "2"
