"""`tessera code` with a loaded embedding model whose context is shorter than a chunk of code."""

import shutil

import httpx2
import pytest
from click.testing import CliRunner

from app.cli.main import cli
from app.client import Client
from app.code.index.vectors import VectorIndex
from app.code.integrations.endpoint import embedder
from app.code.project import Project
from tests.support.models.bert_shape import CONTEXT, write_bert
from tests.support.servers import RunningServer

pytestmark = pytest.mark.e2e
MODEL = "small-context"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    (home / "models").mkdir()
    write_bert(home / "models" / f"{MODEL}.gguf")
    running = RunningServer(home)
    yield running
    running.stop()


@pytest.fixture
def project(tmp_path):
    root = tmp_path / "project"
    root.mkdir()
    lines = [f"def sign_{i}(cookie):\n    return cookie + {i} * {i}\n" for i in range(60)]
    (root / "long.py").write_text("\n".join(lines))
    (root / "short.py").write_text("x = 1\n")
    return root


@pytest.fixture
def loaded(server):
    answer = httpx2.post(f"{server.url}/v1/embeddings", json={"model": MODEL, "input": "one two"}, timeout=60)
    assert answer.status_code == 200, answer.text
    long = {"model": MODEL, "input": "one " * CONTEXT * 2}
    assert httpx2.post(f"{server.url}/v1/embeddings", json=long, timeout=60).status_code == 400
    return server


def test_a_question_is_answered_while_an_embedding_model_of_a_short_context_is_loaded(
    loaded, project, tessera_home
):
    (tessera_home / "state").mkdir()
    shutil.copy(loaded.home / "state" / "server.json", tessera_home / "state")
    words = ["code", str(project), "-m", "spark", "--max-tokens", "4", "-p", "Which file signs the cookie?"]
    done = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "keyword search only" not in done.output


def test_what_the_model_cannot_read_whole_is_cut_and_has_a_vector(loaded, project):
    with Project(project) as opened, Client(loaded.url, loaded.token) as client:
        opened.index.refresh()
        vectors = VectorIndex(opened.index, *embedder(client))
        assert vectors.update(60) == 0
        assert vectors.problem == ""
        assert {hit.path for hit in vectors.search("sign the cookie " * CONTEXT)} == {"long.py", "short.py"}
