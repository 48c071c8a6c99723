"""Errors state facts; the English text that clients get stays the same."""

from pathlib import Path

import pytest

from devices.errors import Cancelled, PackRefused, PoolExceeded
from engine.chat import template
from engine.core.errors import RunnerDied, fact_of, reason_for
from engine.core.json_store import CorruptStateFile, NewerStateFile
from engine.documents import errors as documents
from engine.energy.meter import NeverAtRest
from engine.library import errors as library
from engine.message_catalog import sentence
from engine.message_catalog.reasons import Reason, because
from engine.remotes import errors as remotes
from engine.remotes.protocol import Failed, line
from engine.remotes.types import Seen
from engine.runner.exit_reasons import exit_reason
from engine.server.auth import TooManyFailures
from engine.server.errors import lookup
from engine.server.middleware import Stopping
from engine.server.openai.errors import openai_body
from engine.upstreams import errors as upstreams
from engine.upstreams.error_mapping import refusal
from engine.upstreams.types import Rule, Upstream, UpstreamRoute
from quantize import errors as quantizer

OLD = (
    (
        library.HubUnreachable("https://huggingface.co", "[Errno 111] Connection refused"),
        "huggingface.co cannot be reached (no server answers there). Check the network connection.",
    ),
    (
        library.HubUnreachable("https://huggingface.co", "HTTP status 503", 503),
        "huggingface.co cannot be reached (HTTP status 503). Check the network connection.",
    ),
    (library.RateLimited("https://hub", 29.6), "https://hub asks to wait 30 s before the next request"),
    (library.RepositoryNotFound("a/b"), "The hub has no repository 'a/b', or it is private."),
    (library.RepositoryNotFound("a/b", "such file in"), "The hub has no such file in 'a/b', or it is private."),
    (
        library.GatedRepository("a/b", "https://h/a/b", has_token=True),
        "a/b is gated: accept its terms at https://h/a/b",
    ),
    (
        library.GatedRepository("a/b", "https://h/a/b", has_token=False),
        "a/b is gated: accept its terms and set a token (HF_TOKEN or the settings) at https://h/a/b",
    ),
    (library.NothingToDownload("a/b", "Q4", ("Q8_0", "F16")), "a/b has nothing called 'Q4'. It offers: Q8_0, F16."),
    (
        library.NothingToDownload("a/b", "Q4", ()),
        "a/b has nothing called 'Q4'. It has no GGUF or safetensors files.",
    ),
    (library.NotEnoughDisk("/m", 5_000_000, 1234), "5000000 bytes needed in /m, 1234 free"),
    (library.CannotWrite("/m", "Read-only file system"), "/m cannot be written: Read-only file system"),
    (library.HashMismatch("f", "aa", "bb", None), "f: expected sha256 aa, found bb"),
    (
        remotes.RemoteFault("desk", "unreachable", because("ssh_silent", host="10.0.0.2", port=22)),
        (
            "desk: 10.0.0.2 port 22 did not answer in time. Check that it is on and that ssh reaches it: "
            "tessera remote check desk"
        ),
    ),
    (remotes.RemoteFault("desk", "slow", "the way is long"), "desk: the way is long."),
    (
        upstreams.UpstreamUnreachable("box", "http://b", because("no_connection_within", seconds=5.0)),
        "box cannot be reached at http://b: no connection within 5 s. Check it: tessera upstreams check box",
    ),
    (
        upstreams.UpstreamRefusesKey("box", "401: no"),
        "box rejects the key (401: no). Give it another: tessera upstreams key box",
    ),
    (
        RunnerDied(-9, exit_reason(-9, stopping=False)),
        "the model's process ended: the process was killed, by a user or for lack of memory (exit code -9)",
    ),
    (
        RunnerDied(1, exit_reason(1, stopping=False, last_line="no such op")),
        "the model's process ended: no such op (exit code 1)",
    ),
    (RunnerDied(0, exit_reason(0, stopping=False)), "the model was unloaded"),
    (
        documents.NoCollection("x"),
        "There is no collection 'x' here. Make one with: tessera collections add NAME PATH.",
    ),
    (documents.NoCollection("y", ("a", "b")), "There is no collection 'y' here. Known: a, b."),
    (documents.CollectionUnusable(Path("i.db"), "locked"), "The index i.db cannot be used: locked."),
    (
        NeverAtRest(60.4),
        (
            "Tuning for energy is not possible now: other programs kept the CPU busy for 60 s, so the idle "
            "power of this computer is unknown. Close them and start again."
        ),
    ),
    (
        template.BadTemplate("no role", by_template=True),
        "The model's chat template refuses this conversation: no role",
    ),
    (
        template.BadTemplate("bad", 7),
        (
            'The model\'s chat template failed (line 7): bad. Send "chat_template": "chatml" to use the built-in '
            "template instead, or fix the template in the file."
        ),
    ),
    (Stopping(), "The server is stopping; try again when it is back."),
    (CorruptStateFile(Path("a.json"), "no JSON"), "a.json cannot be read: no JSON."),
    (
        NewerStateFile(Path("a.json"), 2, 1),
        "a.json is of a newer Tessera (form 2; 1 is known here). Use that one, or move the file.",
    ),
    (TooManyFailures(9), "Too many wrong keys from this address; try again in 9 s."),
    (refusal("box", 429, b'{"error": "full"}'), "box accepts no more requests now: full"),
    (refusal("box", 500, b'{"error": "broken"}'), "box failed (500): broken"),
    (refusal("box", 400, b'{"error": "too odd"}'), "box rejects the request (400): too odd"),
)


@pytest.mark.parametrize(("error", "text"), OLD, ids=[text[:40] for _, text in OLD])
def test_an_error_has_facts_and_the_words_it_always_had(error, text):
    assert str(error) == text
    assert isinstance(fact_of(error), Reason)
    assert sentence(fact_of(error)) == text


@pytest.mark.parametrize(
    "error",
    [
        quantizer.CannotRead("a", "Permission denied"),
        quantizer.NotWritable("a", "Read-only file system"),
        quantizer.SourceChanged("a"),
        quantizer.DiskFull("a", 5_000_000, 12),
        quantizer.BudgetTooSmall(1_000, 2_000),
        quantizer.BudgetTooSmall(1_000, 2_000, quantizer.UnquantizableRows(3, 260, 32)),
        quantizer.BadFile("a", "no GGUF file"),
        quantizer.RefusedFormat("a", "a pickle", 7),
        quantizer.IncompleteFile("b", 1_234, 5_678),
        quantizer.IncompleteFile("c", 1_234, 0, known=False),
    ],
    ids=str,
)
def test_an_error_of_the_quantizer_has_the_same_words_as_a_fact(error):
    assert sentence(fact_of(error)) == str(error)
    if isinstance(error, quantizer.BadFile):
        assert sentence(reason_for(error)) == error.reason


def test_an_error_of_the_quantizer_without_facts_keeps_its_words():
    assert fact_of(quantizer.InvalidOption("tier", "there is none")) is None


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (quantizer.BudgetTooSmall(1_000, 2_000), 400, "budget_too_small"),
        (quantizer.DiskFull("a", 5_000_000, 12), 503, "disk_full"),
        (PackRefused("its manifest is empty"), 400, "kernel_pack_refused"),
        (PoolExceeded("ram", 2, 1, {}), 503, "not_enough_memory"),
        (Cancelled("the client left"), 499, "cancelled"),
    ],
    ids=lambda value: getattr(value, "code", ""),
)
def test_the_server_answers_errors_of_every_package(error, status, code):
    assert lookup(error)[0] == status
    body = openai_body(error)["error"]
    assert (body["code"], body["message"]) == (code, str(error))


def test_who_answered_is_told_with_the_rule():
    rule = Rule(model="desk/*", upstream="desk", as_model="big", queue=2, unfit=True)
    way = UpstreamRoute(upstream=Upstream(name="desk", url="http://d"), model="big", rule=rule)
    assert sentence(way.fact()) == (
        "Answered by desk (http://d) as big; your rule: desk/* to desk as big when more than 2 wait here or it "
        "does not fit here."
    )
    assert sentence(Rule(model="m", upstream="desk").fact()) == "m to desk"


def test_what_a_tunnel_saw_reaches_the_server_as_facts():
    import msgspec

    seen = because("no_worker_answers", host="h", port=1, why=because("worker_silent", seconds=4.0))
    told = msgspec.json.decode(line(Failed(state="no_worker", reason=seen)), type=Failed)
    assert told.reason == seen
    fault = remotes.RemoteFault("desk", told.state, told.reason)
    assert fault.reason == "no Tessera worker answers at port 1 of h (it has not responded for 4 s)"
    assert fault.why == seen
    kept = msgspec.json.encode(Seen(state="no_worker", reason=fault.reason, detail=seen))
    assert msgspec.json.decode(kept, type=Seen).detail == seen
