"""A limited part of the fuzzing of tests/optin/fuzz_headers.py, and properties over generated headers."""

import json
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantize.errors import BadFile
from quantize.files.gguf_file import read_gguf_source
from quantize.files.safetensors_file import read_safetensors_source
from tests.optin.fuzz_headers import Memory, run, text
from tests.support.examples import examples

keys = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)
values = st.one_of(
    st.integers(0, 2**32 - 1).map(lambda v: (4, struct.pack("<I", v), v)),
    st.booleans().map(lambda v: (7, struct.pack("<?", v), v)),
    st.text(max_size=40).map(lambda v: (8, text(v.encode()), v)),
    st.lists(st.integers(-(2**31), 2**31 - 1), max_size=20).map(
        lambda v: (9, struct.pack(f"<IQ{len(v)}i", 5, len(v), *v), tuple(v))
    ),
)


def test_five_thousand_mutated_headers_end_in_a_header_or_a_refusal():
    run(5000, 3)


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_refused(raw):
    for reader in (read_gguf_source, read_safetensors_source):
        try:
            reader(Memory(raw))
        except BadFile:
            continue
        assert raw[:4] == b"GGUF" or raw[8:9] == b"{"


@pytest.mark.slow
@settings(max_examples=examples(60))
@given(st.dictionaries(keys, values, max_size=8))
def test_what_was_written_is_read_back(pairs):
    pairs.pop("general.alignment", None)
    raw = b"GGUF" + struct.pack("<IQQ", 3, 0, len(pairs))
    raw += b"".join(text(k.encode()) + struct.pack("<I", kind) + body for k, (kind, body, _) in pairs.items())
    assert read_gguf_source(Memory(raw)).metadata == {k: value for k, (_, _, value) in pairs.items()}


@settings(max_examples=examples(60))
@given(st.dictionaries(keys, st.lists(st.integers(0, 5), max_size=3), max_size=8))
def test_safetensors_written_are_read_back(tensors):
    tensors.pop("__metadata__", None)
    offset, header = 0, {}
    for name, shape in tensors.items():
        size = 4
        for side in shape:
            size *= side
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    head = json.dumps(header).encode()
    found = read_safetensors_source(Memory(struct.pack("<Q", len(head)) + head + b"\0" * offset))
    assert {t.name: list(t.shape) for t in found.tensors} == tensors
