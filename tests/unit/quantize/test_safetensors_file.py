"""The bounded safetensors reader: the real folder, hostile headers, hostile indexes, pickles."""

import json
import struct
import time
import tracemalloc
import zipfile
from pathlib import Path

import pytest

from quantize.errors import BadFile, IncompleteFile, RefusedFormat
from quantize.files.safetensors_file import (
    INDEX_NAME,
    read_index,
    read_safetensors,
    read_safetensors_folder,
    refuse_pickle,
    safe_member,
)

SPARK_HF = Path("tests/data/spark-hf")


def file_bytes(header, data=b"", length=None):
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def entry(begin, end, dtype="F32", shape=None):
    return {
        "dtype": dtype,
        "shape": [(end - begin) // 4] if shape is None else shape,
        "data_offsets": [begin, end],
    }


@pytest.fixture
def write(tmp_path):
    def _write(raw, name="model.safetensors"):
        path = tmp_path / name
        path.write_bytes(raw)
        return path

    return _write


def test_reads_the_real_folder():
    model = read_safetensors_folder(SPARK_HF)
    tensors = model.tensors()
    file, embedding = tensors["model.embed_tokens.weight"]
    assert embedding.shape == (8192, 256)
    assert embedding.nbytes == file.tensor_bytes(embedding).size
    assert model.file_bytes == (SPARK_HF / "model.safetensors").stat().st_size
    assert sum(t.num_values for _, t in tensors.values()) == 8_392_960


GOOD = {"a": entry(0, 8)}
MANY = b"{" + b",".join(b'"%d":{"dtype":"F32","shape":[],"data_offsets":[0,4]}' % i for i in range(70_000)) + b"}"
HOSTILE = {
    "empty": b"",
    "length 2^63": file_bytes(b"{}", length=2**63),
    "length over the limit": file_bytes(b"{}", length=9 * 1024 * 1024),
    "length past the end": file_bytes(b"{}", length=3),
    "not json": file_bytes(b"{a}"),
    "not utf-8": file_bytes(b'{"\xff":1}'),
    "an array": file_bytes(b"[]"),
    "a number": file_bytes(b"1"),
    "nested 100,000 deep": file_bytes(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "nested past the count": file_bytes(b'{"a":' + b"[" * 1_000_000 + b"}"),
    "8 million lists": file_bytes(b'{"a":[' + b"[]," * 2_700_000 + b"0]}"),
    "2 million numbers": file_bytes(b'{"a":[' + b"1000," * 1_600_000 + b"0]}"),
    "a number of a million digits": file_bytes(b'{"a":' + b"9" * 1_000_000 + b"}"),
    "70,000 tensors": file_bytes(MANY, b"\0" * 4),
    "duplicate names": file_bytes(b'{"a":1,"a":1}'),
    "NaN": file_bytes(b'{"a":NaN}'),
    "overlap": file_bytes({"a": entry(0, 8), "b": entry(4, 12)}, b"\0" * 12),
    "gap": file_bytes({"a": entry(0, 8), "b": entry(12, 16)}, b"\0" * 16),
    "does not begin at 0": file_bytes({"a": entry(4, 8)}, b"\0" * 8),
    "trailing bytes": file_bytes(GOOD, b"\0" * 9),
    "cut": file_bytes(GOOD, b"\0" * 7),
    "offsets reversed": file_bytes({"a": entry(8, 0, shape=[2])}, b"\0" * 8),
    "offset negative": file_bytes({"a": entry(-8, 0, shape=[2])}, b"\0" * 8),
    "offset 2^63": file_bytes({"a": entry(2**63, 2**63 + 8)}, b"\0" * 8),
    "offset true": file_bytes({"a": {"dtype": "U8", "shape": [1], "data_offsets": [False, True]}}, b"\0"),
    "shape and size disagree": file_bytes({"a": entry(0, 8, shape=[3])}, b"\0" * 8),
    "shape overflows": file_bytes({"a": entry(0, 0, shape=[2**40, 2**40])}),
    "nine dimensions": file_bytes({"a": entry(0, 4, shape=[1] * 9)}, b"\0" * 4),
    "unknown dtype": file_bytes({"a": entry(0, 8, dtype="X9")}, b"\0" * 8),
    "dtype a list": file_bytes({"a": entry(0, 8, dtype=["F32"])}, b"\0" * 8),
    "extra field": file_bytes({"a": {**entry(0, 8), "x": 1}}, b"\0" * 8),
    "metadata of numbers": file_bytes({"__metadata__": {"a": 1}}),
}


@pytest.mark.parametrize("raw", HOSTILE.values(), ids=HOSTILE.keys())
def test_refuses_hostile_headers_quickly_and_in_little_memory(raw, write):
    path = write(raw)
    begin = time.process_time()
    with pytest.raises(BadFile):
        read_safetensors(path)
    assert time.process_time() - begin < 1
    tracemalloc.start()
    try:
        with pytest.raises(BadFile):
            read_safetensors(path)
        assert tracemalloc.get_traced_memory()[1] < 100e6
    finally:
        tracemalloc.stop()


def test_empty_and_zero_sized_tensors_are_fine(write):
    path = write(file_bytes({"__metadata__": {"format": "pt"}, "z": entry(0, 0), "a": entry(0, 8)}, b"\0" * 8))
    found = read_safetensors(path)
    assert [t.name for t in found.tensors] == ["z", "a"]
    assert found.metadata == {"format": "pt"}


def shards(folder, weight_map, files):
    for name, tensors in files.items():
        offset, header = 0, {}
        for tensor in tensors:
            header[tensor] = entry(offset, offset + 8)
            offset += 8
        (folder / name).write_bytes(file_bytes(header, b"\0" * offset))
    (folder / INDEX_NAME).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))


def test_sharded_folder(tmp_path):
    shards(tmp_path, {"a": "1.safetensors", "b": "2.safetensors"}, {"1.safetensors": "a", "2.safetensors": "b"})
    assert set(read_safetensors_folder(tmp_path).tensors()) == {"a", "b"}
    (tmp_path / "2.safetensors").unlink()
    with pytest.raises(IncompleteFile, match=r"2\.safetensors"):
        read_safetensors_folder(tmp_path)


@pytest.mark.parametrize(
    ("weight_map", "files"),
    [
        ({"a": "1.safetensors", "b": "1.safetensors"}, {"1.safetensors": "a"}),
        ({"a": "1.safetensors"}, {"1.safetensors": "ab"}),
        ({"a": "1.safetensors", "b": "2.safetensors"}, {"1.safetensors": "ab", "2.safetensors": "b"}),
        ({"a": "2.safetensors", "b": "1.safetensors"}, {"1.safetensors": "a", "2.safetensors": "b"}),
    ],
    ids=["missing tensor", "extra tensor", "tensor twice", "swapped"],
)
def test_index_and_shards_must_agree(weight_map, files, tmp_path):
    shards(tmp_path, weight_map, files)
    with pytest.raises(BadFile):
        read_safetensors_folder(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "../x.safetensors",
        "/etc/passwd",
        "a/b",
        "C:\\x",
        "C:x",
        "..",
        ".",
        "",
        "a\0b",
        "\\\\host\\x",
        "a\nb",
        "x" * 300,
    ],
)
def test_names_that_lead_elsewhere_are_never_opened(name, tmp_path):
    with pytest.raises(BadFile):
        safe_member(tmp_path, name)
    shards(tmp_path, {"a": name}, {})
    with pytest.raises(BadFile, match="plain file name"):
        read_safetensors_folder(tmp_path)


@pytest.mark.parametrize(("name", "is_repository"), [("models--a--b", True), ("repo", False)])
def test_links_may_not_leave_the_repository(tmp_path, name, is_repository):
    repo = tmp_path / name
    snapshot = repo / "snapshots" / "1"
    snapshot.mkdir(parents=True)
    (repo / "blobs").mkdir()
    (repo / "blobs" / "x").write_bytes(file_bytes(GOOD, b"\0" * 8))
    (snapshot / "model.safetensors").symlink_to("../../blobs/x")
    if is_repository:
        assert set(read_safetensors_folder(snapshot).tensors()) == {"a"}
    else:
        with pytest.raises(BadFile, match="leads out"):
            read_safetensors_folder(snapshot)
    assert set(read_safetensors_folder(snapshot, root=repo).tensors()) == {"a"}
    (snapshot / "model.safetensors").unlink()
    (tmp_path / "secret").write_bytes(file_bytes(GOOD, b"\0" * 8))
    (snapshot / "model.safetensors").symlink_to("../../../secret")
    for root in (None, repo):
        with pytest.raises(BadFile, match="leads out"):
            read_safetensors_folder(snapshot, root)


def test_other_files_beside_a_whole_model_are_not_part_of_it(tmp_path):
    """Mistral's folders hold the weights again as consolidated.safetensors, in their own program's form."""
    for name in ("adapter_model", "consolidated", "model"):
        (tmp_path / f"{name}.safetensors").write_bytes(file_bytes(GOOD, b"\0" * 8))
    model = read_safetensors_folder(tmp_path)
    assert [Path(file.name).name for file in model.files] == ["model.safetensors"]


@pytest.mark.parametrize(
    "raw",
    [b"", b"[]", b"{}", b'{"weight_map":[]}', b'{"weight_map":{"a":1}}', b'{"weight_map":' + b"[" * 100_000,
     b'{"weight_map":{"a":"\xff"}}'],
    ids=["empty", "array", "no map", "map a list", "value a number", "deep", "not utf-8"],
)  # fmt: skip
def test_bad_indexes(raw, write):
    with pytest.raises(BadFile):
        read_index(write(raw, INDEX_NAME))


def test_an_index_of_400_001_tensors(write):
    raw = b'{"weight_map":{' + b",".join(b'"%d":"x"' % i for i in range(400_001)) + b"}}"
    with pytest.raises(BadFile):
        read_index(write(raw, INDEX_NAME))


def test_pickles_are_refused_by_name_and_by_content(write, tmp_path):
    for name in ("pytorch_model.bin", "m.pt", "m.pth", "m.CKPT", "m.pkl"):
        with pytest.raises(RefusedFormat, match="run code"):
            refuse_pickle(write(b"harmless", name))
    with pytest.raises(RefusedFormat):
        read_safetensors(write(b"\x80\x04\x95", "model.safetensors"))
    with zipfile.ZipFile(tmp_path / "z.safetensors", "w") as archive:
        archive.writestr("data.pkl", b"x")
    with pytest.raises(RefusedFormat):
        read_safetensors(tmp_path / "z.safetensors")


@pytest.mark.parametrize("length", [0x280, 0x380, 0x480, 0x580, 0x10280])
def test_a_header_whose_length_looks_like_a_pickle_is_read(length, write):
    header = {"__metadata__": {"a": ""}, "w": entry(0, 4, shape=[1])}
    header["__metadata__"]["a"] = "x" * (length - len(json.dumps(header)))
    raw = file_bytes(header, bytes(4))
    assert int.from_bytes(raw[:8], "little") == length
    assert [t.name for t in read_safetensors(write(raw)).tensors] == ["w"]


def test_a_folder_of_pickles_only_is_refused_with_the_reason(tmp_path):
    with pytest.raises(BadFile, match="no safetensors file"):
        read_safetensors_folder(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02")
    with pytest.raises(RefusedFormat, match="run code"):
        read_safetensors_folder(tmp_path)
