"""Making a model fit from the hub: which files are downloaded, kept and deleted. The file itself is made in e2e."""

import msgspec
import pytest

from engine.core.errors import Cancelled, InputFault
from engine.job_kinds.quantize import job
from engine.job_kinds.quantize.options import Quantized, QuantizeOptions
from engine.jobs.jobs import JobContext
from engine.library.trash import Trash
from tests.support.fakes.downloads import SPARK

F16 = QuantizeOptions(model="org/Spark-GGUF:F16", bpw=4.5, download=True, keep_source=False)


@pytest.fixture
def made(monkeypatch, hub, spark):
    """The requests that reached the quantizer; `act` is called there."""
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    seen = []

    def make(catalogue, options, control, resources, *, open_gates):
        del resources, open_gates
        assert catalogue.get(options.model).path.read_bytes() == SPARK.read_bytes()
        seen.append(options)
        control.check()
        return Quantized(model="new", path="/new.gguf" if options.gate is None else "", report=None)

    monkeypatch.setattr(job, "make", make)
    return seen


def run(catalogue, options=F16, control=None):
    return job.make_from_hub(catalogue, options, control or JobContext(), None, None)


def changed(**more):
    return msgspec.structs.replace(F16, **more)


def here(catalogue):
    return [entry.id for entry in catalogue.entries() if entry.origin.kind == "hub"]


@pytest.mark.parametrize(("keeps", "left"), [(True, ["spark-f16"]), (False, [])])
def test_the_original_is_downloaded_and_stays_if_asked(catalogue, made, keeps, left):
    options = QuantizeOptions(model="org/Spark-GGUF", bpw=4.5, download=True, keep_source=keeps)
    assert run(catalogue, options).model == "new"
    assert [request.model for request in made] == ["spark-f16"]
    assert here(catalogue) == left
    assert len(list(catalogue.paths.models.rglob("*.gguf"))) == len(left)
    assert Trash(catalogue).contents() == ()


def test_a_job_that_goes_on_after_the_download_needs_no_hub(catalogue, made, hub):
    run(catalogue, changed(keep_source=True))
    hub.settle()
    run(catalogue)
    assert (len(made), hub.requests, here(catalogue)) == (2, [], [])


@pytest.mark.parametrize(("keeps", "left"), [(True, ["spark-f16"]), (False, [])])
def test_a_job_that_is_cancelled_after_the_download(catalogue, made, keeps, left):
    run(catalogue, changed(keep_source=True))
    control = JobContext()
    control.ask("cancelled")
    with pytest.raises(Cancelled):
        run(catalogue, changed(keep_source=keeps), control)
    assert here(catalogue) == left


def test_a_file_that_a_gate_rejects_leaves_the_original_for_another_try(catalogue, made):
    run(catalogue, changed(gate="certify"))
    assert here(catalogue) == ["spark-f16"]


def test_a_repository_without_an_original_is_refused(catalogue, made, hub):
    hub.add("org/Empty-GGUF", {"README.md": b"nothing"})
    with pytest.raises(InputFault, match="no original"):
        run(catalogue, changed(model="org/Empty-GGUF"))
