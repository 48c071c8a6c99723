"""Pages of a mapped file that are replaced by copies: reads there return the file's bytes."""

import ctypes
import os
import random
import sys

import pytest

from engine.runner.expert_tensors import PAGE, STACK, stacks
from engine.runner.llama.experts.expert_layout import FileChanged, Parts, Stack
from engine.runner.llama.experts.page_swap import _READ, _SHARED, Pages
from quantize.files.gguf_file import TensorInfo
from quantize.files.gguf_split import read_gguf_model
from quantize.ggml_types import GgmlType
from tests.support.models.hollow_model import HollowModel

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pages are exchanged on Linux only")
COUNT = 24
BEFORE = 100  # bytes of the file before its first stack


class Mapped:
    """A file of two consecutive stacks of matrices, mapped as llama.cpp maps it."""

    def __init__(self, folder, sizes):
        self.path = folder / "model"
        self.content = random.Random(3).randbytes(BEFORE + COUNT * sum(sizes))
        self.path.write_bytes(self.content)
        self.parts = Parts.__new__(Parts)
        self.parts.plain = [os.open(self.path, os.O_RDONLY)]
        self.parts.past_cache = True
        self.parts.direct = [self.parts._open_direct(str(self.path))]
        self.pages = Pages(self.parts, max(sizes), readers=2)
        size = len(self.content)
        self.address = self.pages._libc.mmap(None, size, _READ, _SHARED, self.parts.plain[0], 0)
        first = Stack(0, BEFORE, sizes[0], self.address + BEFORE)
        second_at = BEFORE + COUNT * sizes[0]
        self.stacks = first, Stack(0, second_at, sizes[1], self.address + second_at)

    def read(self):
        return ctypes.string_at(self.address, len(self.content))

    def close(self):
        self.pages.close()
        self.pages._libc.munmap(self.address, len(self.content))
        self.parts.close()


@pytest.fixture(
    params=[(5000, 9001), (3 * PAGE, PAGE), (700, 2000), (4 * PAGE + 32, 5 * PAGE)],
    ids=["odd", "whole pages", "several a page", "larger victims"],
)
def mapped(request, tmp_path):
    found = Mapped(tmp_path, request.param)
    yield found
    found.close()


def test_what_is_read_is_the_file_whatever_was_exchanged(mapped):
    rng = random.Random(5)
    copies = []
    everything = [stack.span(number) for stack in mapped.stacks for number in range(COUNT)]
    for _ in range(300):
        absent = [span for span in everything if span not in copies]
        if absent and rng.random() < 0.7:
            victim = copies.pop(rng.randrange(len(copies))) if copies and rng.random() < 0.6 else None
            span = rng.choice(absent)
            mapped.pages.fill(rng.randrange(2), span, victim)
            copies.append(span)
        elif copies:
            mapped.pages.give_back(copies.pop(rng.randrange(len(copies))))
        assert mapped.read() == mapped.content
    for span in copies:
        mapped.pages.give_back(span)
    assert mapped.read() == mapped.content
    assert not mapped.pages._shared
    assert not mapped.pages._pieces


def test_copies_are_no_pages_of_the_file_and_shared_pages_stay_as_long_as_one_needs_them(mapped):
    """Detected by changing the underlying file: copies keep the old bytes."""
    stack = mapped.stacks[0]
    size = stack.expert_bytes
    for number in (3, 4):
        mapped.pages.fill(0, stack.span(number), None)
    mapped.path.write_bytes(b"\0" * len(mapped.content))  # in place: the same file

    def kept(number):
        return (
            ctypes.string_at(stack.address + number * size, size) == mapped.content[BEFORE + number * size :][:size]
        )

    assert kept(3)
    assert kept(4)
    mapped.pages.give_back(stack.span(3))
    assert kept(4)
    assert kept(3) == (size < PAGE), "within one page both are kept"
    mapped.pages.give_back(stack.span(4))
    assert mapped.read() == b"\0" * len(mapped.content)


def test_a_file_that_ended_earlier_is_told_and_changes_nothing(mapped):
    stack = mapped.stacks[1]
    os.truncate(mapped.path, stack.offset + 3 * stack.expert_bytes)
    mapped.pages.fill(0, stack.span(1), None)
    with pytest.raises(FileChanged, match="shorter"):
        mapped.pages.fill(0, stack.span(COUNT - 1), stack.span(1))
    assert (
        ctypes.string_at(stack.address, 2 * stack.expert_bytes)
        == mapped.content[stack.offset :][: 2 * stack.expert_bytes]
    )


def test_a_changed_file_is_noticed(tmp_path):
    path = HollowModel(tmp_path / "model.gguf").write(arch="qwen3moe", experts=4)
    parts = Parts(read_gguf_model(path))
    parts.check()
    os.utime(path, ns=(1, 1))
    with pytest.raises(FileChanged, match="was changed"):
        parts.check()
    os.truncate(path, 1000)
    with pytest.raises(FileChanged, match="shorter"):
        parts.check()
    parts.close()


def tensor(name, shape=(64, 32, 8), num_bytes=8 * 64 * 32 * 2):
    return TensorInfo(name, shape, GgmlType.F16, 0, num_bytes)


def test_stacks_of_experts_are_known_by_name_and_shape():
    one, other = tensor("blk.3.ffn_up_exps.weight"), tensor("blk.3.ffn_down_exps.weight")
    shared = tensor("blk.3.ffn_up_shexp.weight", (64, 32), 64 * 32 * 2)
    assert stacks([one, shared, other], 8) == {3: (one, other)}
    assert stacks([one, tensor("blk.0.ffn_gate_up_exps.weight")], 8).keys() == {0, 3}
    assert not stacks([one], 16), "stacks of another number of experts are not understood"
    assert not stacks([one, tensor("blk.3.ffn_up_chexps.weight")], 8), "a second routing is not followed"
    assert not STACK.fullmatch("blk.3.ffn_up_exps.bias")
