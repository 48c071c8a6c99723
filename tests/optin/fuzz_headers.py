"""Fuzzes both header readers: `python -m tests.optin.fuzz_headers [COUNT] [SEED]`.

Inputs are real and hand-made headers, mutated: bits flipped, spans cut, copied and swapped, and numbers replaced
by values that break parsers. Anything but a header or BadFile is a failure, and so is an input that takes a second
or 100 MB. A failing input is written to the current folder.
"""

import random
import resource
import struct
import sys
import time
from pathlib import Path

from quantize.errors import BadFile
from quantize.files.gguf_file import read_gguf_source
from quantize.files.safetensors_file import read_safetensors_source

NUMBERS = [0, 1, 2, 3, 7, 8, 9, 10, 13, 31, 32, 63, 64, 255, 256, 1023, 1024, 1025, 65535, 65536]
NUMBERS += [2**n + d for n in (31, 32, 40, 53, 56, 62, 63, 64) for d in (-1, 0, 1)]
WORDS = [b"GGUF", b"general.alignment", b"split.count", b'"dtype"', b'"shape"', b'"data_offsets"', b"F32", b"BF16",
         b"[", b"]", b"{", b"}", b",", b":", b"-1", b"1e999", b"NaN", b"null", b"true",
         b"\\ud800", b"\xff\xfe", b"\0"]  # fmt: skip


class Memory:
    name = "fuzz"

    def __init__(self, raw):
        self.raw, self.size = raw, len(raw)

    def read_at(self, offset, length):
        return self.raw[offset : offset + length]


def text(value):
    return struct.pack("<Q", len(value)) + value


def gguf_seeds():
    spark = Path("assets/models/spark-f16.gguf").read_bytes()
    small = b"GGUF" + struct.pack("<IQQ", 3, 2, 4)
    small += text(b"general.architecture") + struct.pack("<I", 8) + text(b"llama")
    small += text(b"general.alignment") + struct.pack("<II", 4, 32)
    small += text(b"a.list") + struct.pack("<IIQ", 9, 8, 3) + text(b"x") + text(b"yy") + text(b"")
    small += text(b"a.numbers") + struct.pack("<IIQ3f", 9, 6, 3, 1, 2, 3)
    small += text(b"one") + struct.pack("<IQQIQ", 2, 32, 4, 2, 0) + text(b"two") + struct.pack("<IQIQ", 1, 8, 0, 96)
    small += b"\0" * (-len(small) % 32 + 128)
    return [small, small, small, spark[:60_000], b"GGUF" + struct.pack("<IQQ", 3, 0, 0)]


def safetensors_seeds():
    def wrap(header, data):
        return struct.pack("<Q", len(header)) + header + data

    two = b'{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},'
    two += b'"b":{"dtype":"BF16","shape":[4],"data_offsets":[16,24]}}'
    real = Path("tests/data/spark-hf/model.safetensors").read_bytes()
    size = int.from_bytes(real[:8], "little")
    return [wrap(two, b"\0" * 24), wrap(two, b"\0" * 24), wrap(b"{}", b""), real[: 8 + size]]


def mutate(raw, rng):
    data = bytearray(raw)
    for _ in range(rng.choice((1, 1, 2, 3, 8))):
        at = rng.randrange(len(data) + 1)
        kind = rng.randrange(7)
        if kind == 0 and data:
            data[at % len(data)] ^= 1 << rng.randrange(8)
        elif kind == 1:
            number = rng.choice(NUMBERS)
            width = rng.choice((1, 2, 4, 8))
            data[at : at + width] = (number % (1 << 8 * width)).to_bytes(width, "little")
        elif kind == 2:
            del data[at : at + rng.choice((1, 4, 8, 100, 10_000))]
        elif kind == 3:
            span = data[at : at + rng.choice((1, 8, 24, 64))]
            data[at:at] = span * rng.choice((1, 1, 2, 100))
        elif kind == 4:
            data[at:at] = rng.choice(WORDS)
        elif kind == 5:
            data[at:at] = rng.randbytes(rng.choice((1, 4, 16)))
        else:
            other = rng.randrange(len(data) + 1)
            data[at : at + 8] = data[other : other + 8]
    return bytes(data)


def run(count, seed):
    rng = random.Random(seed)
    targets = [(read_gguf_source, gguf_seeds()), (read_safetensors_source, safetensors_seeds())]
    accepted = {reader.__name__: 0 for reader, _ in targets}
    slowest = 0.0
    begin = time.monotonic()
    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(count):
        reader, seeds = targets[number % 2]
        raw = mutate(rng.choice(seeds), rng)
        start = time.process_time()
        try:
            reader(Memory(raw))
            accepted[reader.__name__] += 1
        except BadFile:
            pass
        except BaseException:
            Path(f"fuzz-failure-{seed}-{number}.bin").write_bytes(raw)
            print(f"failure: seed {seed}, input {number}, {reader.__name__}")
            raise
        spent = time.process_time() - start
        slowest = max(slowest, spent)
        if spent > 1:
            Path(f"fuzz-slow-{seed}-{number}.bin").write_bytes(raw)
            raise SystemExit(f"slow: seed {seed}, input {number}, {spent:.2f} s")
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base) / 1024
    spent = time.monotonic() - begin
    print(
        f"{count} inputs, seed {seed}, {spent:.0f} s; accepted {accepted}; slowest {slowest * 1000:.1f} ms;",
        end=" ",
    )
    print(f"memory grew by {grown:.0f} MiB")
    if grown > 100:
        raise SystemExit("too much memory")


if __name__ == "__main__":
    run(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000, int(sys.argv[2]) if len(sys.argv) > 2 else 1)
