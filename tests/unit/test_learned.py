"""Types are decoded through `learned`, so that no two threads build the same msgspec type concurrently."""

import ast
from typing import Generic, Literal, TypeVar

import msgspec
import pytest

from devices.msgspec_lock import learned
from tests.support.sources import PRODUCT, ROOT, parsed

# Terminal commands have one thread.
EXCEPT = (ROOT / "app" / "cli", ROOT / "devices" / "msgspec_lock.py")
T = TypeVar("T")
BUILTINS = frozenset({"bool", "str", "int", "float", "bytes", "dict", "list", "tuple", "Any"})
DECODERS = frozenset({"msgspec.json.Decoder", "msgspec.msgpack.Decoder"})
DECODING = frozenset({"msgspec.json.decode", "msgspec.msgpack.decode"})


def decoded_types(tree):
    """The types that calls of msgspec decode into."""
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = ast.unparse(call.func)
        given = {keyword.arg: keyword.value for keyword in call.keywords}.get("type")
        if name in DECODERS and call.args:
            yield call.args[0]
        elif name == "msgspec.convert" and len(call.args) > 1:
            yield call.args[1]
        elif given is not None and name in {"msgspec.convert", *DECODERS, *DECODING}:
            yield given


def is_safe(node):
    if isinstance(node, ast.Call):
        return ast.unparse(node.func) == "learned"
    named = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    return named <= BUILTINS and not any(isinstance(part, ast.Attribute) for part in ast.walk(node))


@pytest.mark.slow
@pytest.mark.parametrize("package", PRODUCT)
def test_every_type_that_is_decoded_into_is_learned(package):
    found = [
        (path, kind)
        for path, tree in parsed(r"\bmsgspec\b", (package,))
        if not any(path.is_relative_to(e) for e in EXCEPT)
        for kind in decoded_types(tree)
    ]
    assert found
    unsafe = [f"{path.relative_to(ROOT)}: {ast.unparse(kind)}" for path, kind in found if not is_safe(kind)]
    assert unsafe == []


def test_what_would_escape_is_seen():
    calls = "msgspec.json.decode(x, type=A); msgspec.convert(x, A | None); msgspec.msgpack.Decoder(m.A)"
    assert [is_safe(kind) for kind in decoded_types(ast.parse(calls))] == [False] * 3
    calls = "msgspec.json.decode(x, type=learned(A)); msgspec.convert(x, dict[str, Any])"
    assert [is_safe(kind) for kind in decoded_types(ast.parse(calls))] == [True] * 2


def test_a_learned_type_is_the_type():
    class Inner(msgspec.Struct):
        by_number: dict[int, bytes] = {}

    class Outer(msgspec.Struct):
        inner: Inner

    for kind in (Outer, tuple[Outer, ...], Outer | None):
        assert learned(kind) is kind or learned(kind) == kind
    assert msgspec.msgpack.decode(
        msgspec.msgpack.encode(Outer(Inner({1: b"x"}))), type=learned(Outer)
    ).inner.by_number
    with pytest.raises(TypeError):
        learned(3)


def test_equal_types_are_resolved_once():
    class Envelope(msgspec.Struct, Generic[T]):
        data: T

    class Other(Generic[T]):
        pass

    first = learned(Envelope[int])
    for number in range(128):  # as many as `typing` remembers
        Other[Literal[number]]
    second = Envelope[int]
    assert second is not first
    assert learned(second) is first, "msgspec would resolve it again, on any thread"
