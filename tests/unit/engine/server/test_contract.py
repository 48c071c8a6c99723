"""The structs of engine.api: routes accept and return them, the OpenAPI page shows them, and they import fast."""

import ast
import json
import subprocess
import sys
import typing
from pathlib import Path

import msgspec
import pytest
from msgspec import json as msgspec_json

import engine
from devices.memory_ledger import DeviceBytes, Reservation
from engine.api import library, machine, measuring, quantizing, requests
from engine.api.jobs import Job, JobKind
from engine.api.machine import (
    Alternative,
    FitOption,
    FitReport,
    LedgerState,
    MemoryEstimate,
    Placement,
    PlacementAnswer,
    SettingChange,
)
from engine.api.sentences import encoded
from engine.core.errors import InputFault, ModelNotLoaded
from engine.core.paths import user_paths
from engine.core.types import SamplingParams
from engine.documents.errors import NotAgreed
from engine.message_catalog.reasons import because
from engine.placement.placer import Placer
from engine.placement.resources import open_resources
from engine.remotes import errors as remotes
from engine.runner.protocol import LoadSettings
from engine.server import errors, msgspec_routes
from engine.server.all_routes import every_route
from engine.server.auth import Access
from engine.server.body import Body
from engine.server.models import ServedModels
from engine.server.msgspec_routes import decode
from engine.server.state import ServerState
from tests.support.fakes.free_pool import FreePool

HEAVY = ("numpy", "llama_cpp", "onnxruntime", "fastapi", "starlette", "pydantic", "PySide6", "psutil", "httpx2")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    models = ServedModels(lambda: None)
    access = Access("secret")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TESSERA_HOME", str(tmp_path_factory.mktemp("home")))
        placer = Placer(open_resources(user_paths()))
        return every_route(
            ServerState(models=models, pool=FreePool(models), access=access, placer=placer)
        ).openapi()


def operations(page):
    for path, item in page["paths"].items():
        for method, operation in item.items():
            if path.startswith("/tessera/v1"):
                yield method, path, operation


def references(node):
    if isinstance(node, dict):
        if "$ref" in node:
            yield node["$ref"]
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def test_every_management_route_answers_with_a_struct(page):
    schemas = page["components"]["schemas"]
    checked = 0
    for method, path, operation in operations(page):
        for status, response in operation["responses"].items():
            if not status.startswith("2") or status == "204":
                continue
            contents = response["content"].values()
            assert contents, (method, path)
            for content in contents:
                name = content["schema"]["$ref"].rpartition("/")[2]
                assert schemas[name].get("properties"), (method, path)
                checked += 1
    assert checked >= 35
    assert {"Job", "Model", "Machine", "Stats", "BenchRequest", "RepoPlan"} <= set(schemas)


def test_every_reference_of_the_page_leads_somewhere(page):
    found = set(references(page))
    assert len(found) > 50
    known = {f"#/components/schemas/{name}" for name in page["components"]["schemas"]}
    assert found <= known


def test_every_status_of_an_error_is_on_the_page(page):
    known = [set(operation["responses"]) for _, _, operation in operations(page)]
    everywhere = set.intersection(*known)
    adding = set(page["paths"]["/tessera/v1/remotes/{name}"]["put"]["responses"])
    collecting = set(page["paths"]["/tessera/v1/collections"]["post"]["responses"])
    chatting = set(page["paths"]["/v1/chat/completions"]["post"]["responses"])
    for kind, (status, _, _) in errors.STATUS.items():
        told = adding if kind in (remotes.NotAdded, remotes.UnknownHostKey) else everywhere
        told = chatting if kind is ModelNotLoaded else collecting if kind is NotAgreed else told
        assert str(status) in told, kind
    # Responses from before a route: of the guard, the keys, and connections.
    assert everywhere >= {"400", "401", "403", "404", "405", "408", "413", "415", "429", "431", "500", "503"}


def test_bodies_are_described_with_their_limits(page):
    operation = page["paths"]["/tessera/v1/keys"]["post"]
    assert operation["requestBody"]["required"] is True
    name = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    schema = page["components"]["schemas"][name]
    assert schema["required"] == ["name"]
    assert schema["properties"]["name"]["maxLength"] == 100
    load = page["paths"]["/tessera/v1/models/{model}/load"]["post"]
    assert load["requestBody"]["required"] is False


@pytest.mark.parametrize(
    ("kind", "raw", "param"),
    [
        (requests.KeyRequest, b"{}", "name"),
        (requests.KeyRequest, b'{"name": 3}', "name"),
        (requests.KeyRequest, b'{"name": "x", "scopes": ["root"]}', "scopes[0]"),
        (library.PullRequest, b'{"model": ""}', "model"),
        (machine.PinRequest, b"{}", "device"),
        (measuring.BenchRequest, b'{"shape": "x", "lengths": [0]}', "lengths[0]"),
        (measuring.TuneRequest, b'{"shape": "x", "limit_s": NaN}', None),
        (measuring.TuneRequest, b'{"shape": "x", "limit_s": 1e999}', "limit_s"),
        (quantizing.QuantizeOptions, b'{"model": "x", "locks": [{"pattern": "a"}]}', "locks[0].type"),
        (quantizing.QuantizeOptions, b'{"model": "x", "tier": "best"}', "tier"),
        (requests.KeyRequest, b'{"name": "x", "scope": "chat"}', "scope"),
        (
            quantizing.QuantizeOptions,
            b'{"model": "x", "locks": [{"pattern": "a", "type": "q8_0", "x": 1}]}',
            "locks[0].x",
        ),
        (library.LinkRequest, b"[]", None),
        (library.LinkRequest, b"{", None),
        (library.LinkRequest, b"", None),
        (library.LinkRequest, b"\xff", None),
        (library.LinkRequest, b"[" * 100_000, None),
    ],
)
def test_a_wrong_body_is_refused_with_the_field_that_is_wrong(kind, raw, param):
    with pytest.raises(InputFault) as caught:
        decode(raw, kind)
    assert caught.value.param == param
    if param:
        assert str(caught.value).startswith(f"{param}: ")


def read_names():
    """Every name by which the engine reads a value: attributes, parameters, keywords, names in texts."""
    found = set(SamplingParams.__struct_fields__)  # read by these names
    for file in Path(engine.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                found.add(node.attr)
            elif isinstance(node, ast.arg | ast.keyword):
                found.add(node.arg)
            elif isinstance(node, ast.Constant):
                found.add(node.value)
    return found


def kinds_within(kind):
    """A struct and the structs that its fields hold."""
    yield kind
    for field in msgspec.structs.fields(kind):
        for inner in (field.type, *typing.get_args(field.type)):
            if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
                yield from kinds_within(inner)


def bodies(kind=Body):
    for inner in kind.__subclasses__():
        yield inner
        yield from bodies(inner)


@pytest.mark.slow
def test_a_field_that_is_declared_and_never_read_fails(page):
    """Every parameter of a route is read somewhere, in every protocol; test_request_contract proves its effect."""
    read = read_names()
    taken = [contract.takes for contract in msgspec_routes._contracts.values() if contract.takes is not None]
    declared = {(k.__name__, name) for kind in taken for k in kinds_within(kind) for name in k.__struct_fields__}
    declared |= {(k.__name__, n) for k in bodies() for n in k.model_fields if n not in k.no_effect}
    assert len(declared) > 600
    unread = {
        f"{k}.{n}" for k, n in declared if n.removeprefix("guided_") not in read
    }  # vLLM's: one loop reads them
    print(f"declared fields: {len(declared)}, unread: {len(unread)}")
    assert unread == set()


def test_a_job_travels_unchanged():
    for kind in JobKind:
        job = Job(id="1", kind=kind, title="x", params={"a": 1}, state="running", created_at=1, updated_at=2)
        assert msgspec_json.decode(msgspec_json.encode(job), type=Job) == job
        assert "{name}" in kind.title
    losing = {kind for kind in JobKind if kind.loses_work}
    assert losing == {JobKind.IMPORT, JobKind.QUANTIZE, JobKind.CONVERT, JobKind.MEASURE}


@pytest.mark.process
def test_the_contract_is_light():
    code = (
        "import importlib, pkgutil, sys, engine.api\n"
        "for found in pkgutil.iter_modules(engine.api.__path__):\n"
        "    importlib.import_module(f'engine.api.{found.name}')\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_facts_are_sent_with_their_sentences_and_the_page_describes_both(page):
    change = because("option_kv", kv_type="q8_0", before="f16")
    kept = FitOption(kind="kv", change=change, needed_bytes=1, saved_bytes=2, cost=0.5)
    need = MemoryEstimate(n_ctx=8, kv_cells=8, n_sequences=1, type_k="f16", type_v="f16", n_gpu_layers=0, parts=())
    reasons = (because("quiet"), because("option_parallel"))
    placed = Placement(
        device="cpu", device_name="EPYC", backend="cpu", n_layers=1, settings=LoadSettings(path="", n_ctx=8),
        need=need, fits=True, reasons=reasons,
        changes=(SettingChange(step="s", field="f", old=1, new=2, reason=reasons[0]),),
        alternatives=(Alternative(device="g", backend="g", n_gpu_layers=1, decode_tok_s=None, reason=reasons[1]),),
    )  # fmt: skip
    report = FitReport(
        model="m", fits=True, need=need, available_bytes={}, largest_context=8, fit_options=(kept,), notes=reasons
    )
    answer = PlacementAnswer(placement=placed, fit=report)
    sent = json.loads(encoded(answer))
    assert msgspec_json.decode(encoded(answer), type=PlacementAnswer) == answer
    assert sent["placement"]["reasons"] == [row["text"] for row in sent["placement"]["reason_details"]]
    assert sent["placement"]["reasons"] == sent["fit"]["notes"] == [str(reason) for reason in reasons]
    assert sent["placement"]["changes"][0]["reason"] == str(reasons[0])
    assert sent["placement"]["alternatives"][0]["reason"] == "answer one request at a time"
    assert (sent["placement"]["energy"], sent["placement"]["n_ctx"], sent["loaded"]) == ("", 8, None)
    (option,) = sent["fit"]["fit_options"]
    assert (option["text"], option["flags"]) == ("use KV cache type q8_0 instead of f16", "--kv q8_0")
    shown = page["components"]["schemas"]
    for name, part in (("Placement", sent["placement"]), ("FitReport", sent["fit"]), ("FitOption", option)):
        assert set(part) == set(shown[name]["properties"])
    assert shown["Placement"]["properties"]["reasons"] == {"type": "array", "items": {"type": "string"}}


def test_a_reservation_is_sent_with_its_sums():
    amounts = {"cpu": DeviceBytes(3, 4)}
    state = LedgerState(reservations=(Reservation(owner="m", key="k", amounts=amounts, drawn={"ram": 7}),))
    (sent,) = json.loads(encoded(state))["reservations"]
    assert (sent["predicted_bytes"], sent["devices"], sent["drawn"]) == (7, {"cpu": 7}, {"ram": 7})
    (read,) = msgspec_json.decode(encoded(state), type=LedgerState).reservations
    assert (read.predicted_bytes, read.amounts) == (7, amounts)


def test_an_answer_without_facts_is_sent_as_it_is():
    key = requests.KeyRequest(name="x\udc80")
    assert json.loads(encoded(key))["name"] == "x\ufffd"
