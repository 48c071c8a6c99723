"""Images in prompts, encoded by libmtmd with random weights: tokens, sharing, refusals, every route."""

import asyncio
import base64
import json
import subprocess
import sys
from pathlib import Path

import httpx2
import numpy as np
import pytest

from engine.core.errors import InputFault
from engine.core.types import GenerationRequest, Image, SamplingParams
from engine.runner.process import RunnerProcess
from engine.runner.protocol import LoadSettings
from tests.support.models.shapes import Shape, shallow, write_shape
from tests.support.models.vision_shapes import noise, png, write_projector
from tests.support.runner_calls import answered
from tests.support.servers import RunningServer

REFERENCE = Path(__file__).resolve().parents[1] / "support/models/vision_reference.py"
GREEDY = SamplingParams(temperature=0)
MROPE = Shape("qwen2vl", layers=2, rope_sections=(8, 12, 12, 0))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Model and projector by kind: images with bidirectional attention, and images with M-RoPE positions."""
    folder = tmp_path_factory.mktemp("vision")
    return {
        "square": (
            write_shape(folder / "a.gguf", shallow("llama")),
            write_projector(folder / "mmproj-a.gguf", "gemma3", 512),
        ),
        "mrope": (
            write_shape(folder / "b.gguf", MROPE),
            write_projector(folder / "mmproj-b.gguf", "qwen2vl_merger", 512),
        ),
    }


def with_runner(files, work, **settings):
    async def main():
        model, projector = files
        runner = await RunnerProcess.start("llama", str(model))
        try:
            load = {"mmproj_path": str(projector), "n_ctx": 1024, "kv_cells": 4096, "n_threads": 1, **settings}
            await runner.load(LoadSettings(path=str(model), **load))
            return await work(runner)
        finally:
            await runner.stop()

    return asyncio.run(main())


async def collect(runner, prompt, *pictures, **options):
    request = GenerationRequest(
        prompt=prompt,
        images=tuple(Image(data=p) for p in pictures),
        ignore_eos=True,
        **{"sampling": GREEDY, "max_tokens": 12, **options},
    )
    answer = await answered(runner, request)
    return answer.ids, answer.started, answer.done


@pytest.mark.parametrize("kind", ["square", "mrope"])
def test_the_tokens_are_those_of_the_librarys_own_helper(models, kind, tmp_path):
    pictures = [tmp_path / "1.png", tmp_path / "2.png"]
    for seed, path in enumerate(pictures):
        path.write_bytes(noise(seed, 80, 50 + 30 * seed))
    prompt = "First: <__media__> and then <__media__> what are they?"
    command = [sys.executable, str(REFERENCE), *map(str, models[kind]), prompt, "12", *map(str, pictures)]
    reference = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    wanted = [int(n) for n in reference.stdout.split()]
    data = [p.read_bytes() for p in pictures]

    async def work(runner):
        alone = await collect(runner, prompt, *data)
        beside = await asyncio.gather(
            collect(runner, prompt, *data),
            collect(runner, "Only text, nothing to see."),
            collect(runner, "x" * 300),
        )
        return [alone[0], beside[0][0]]

    assert with_runner(models[kind], work) == [wanted, wanted]


@pytest.mark.parametrize("kind", ["square", "mrope"])
def test_a_seen_picture_is_shared_where_that_is_possible(models, kind):
    async def work(runner):
        first = await collect(runner, "Look: <__media__> What?", noise(1))
        other = await collect(runner, "Look: <__media__> What?", noise(2))
        again = await collect(runner, "Look: <__media__> What is it?", noise(1))
        fresh = await collect(runner, "See <__media__> What is it?", noise(1))
        text = await collect(runner, "Look: no picture at all.")
        return first, other, again, fresh, text

    # A request at temperature 0 keeps the cells to itself, so other requests' prefixes are offloaded to memory.
    first, other, again, fresh, _ = with_runner(models[kind], work, cache_ram_bytes=64 << 20)
    assert first[0] != other[0]
    if kind == "square":
        assert other[1].cached_tokens < again[1].cached_tokens  # the other shares only the text before the image
        assert again[1].cached_tokens > 16
    else:
        assert again[1].cached_tokens == 0
    assert fresh[2].usage.completion_tokens == 12

    async def alone(runner):
        return await collect(runner, "Look: <__media__> What is it?", noise(1))

    assert with_runner(models[kind], alone)[0] == again[0]


def test_seen_pictures_survive_a_restart(models, tmp_path):
    store = {"cache_dir": str(tmp_path / "prefixes"), "cache_ram_bytes": 64 << 20, "cache_disk_bytes": 64 << 20}
    prompt = "Look: <__media__> " + "and remember what it was, for later, " * 3

    async def ask(runner):
        return await collect(runner, prompt, noise(1))

    before, after = with_runner(models["square"], ask, **store), with_runner(models["square"], ask, **store)
    assert after[0] == before[0]
    assert after[1].cached_tokens > 64


def test_a_small_cache_preempts_a_picture_and_loses_nothing(models):
    async def work(runner):
        prompts = [f"{i}: <__media__> " + "word " * 30 for i in range(4)]
        alone = [await collect(runner, p, noise(i), max_tokens=60) for i, p in enumerate(prompts)]
        together = await asyncio.gather(
            *(collect(runner, p, noise(i), max_tokens=60) for i, p in enumerate(prompts))
        )
        return [a[0] for a in alone], [t[0] for t in together]

    alone, together = with_runner(models["square"], work, n_ctx=512, kv_cells=512, n_parallel=4)
    assert [len(t) for t in together] == [60] * 4
    assert [t[0] for t in together] == [a[0] for a in alone]


def test_cancelling_while_pictures_are_read_harms_nobody(models):
    async def work(runner):
        for _ in range(5):
            asking = asyncio.create_task(collect(runner, "<__media__>" * 8 + "what?", *map(noise, range(8))))
            await asyncio.sleep(0.02)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        return await collect(runner, "Look: <__media__> What?", noise(1))

    async def alone(runner):
        return await collect(runner, "Look: <__media__> What?", noise(1))

    assert with_runner(models["mrope"], work)[0] == with_runner(models["mrope"], alone)[0]


BOMB = png(np.zeros((2, 2, 3), np.uint8), claimed=(60_000, 60_000))
BAD = {
    "no picture": (b"hello", "not a PNG, JPEG, GIF or BMP"),
    "empty": (b"", "not a PNG, JPEG, GIF or BMP"),
    "a header of nothing": (noise(1)[:20], "ends within its header"),
    "cut in the middle": (noise(1)[:300], "damaged"),
    "3.6 billion pixels": (BOMB, "60000 x 60000"),
    "no pixels": (png(np.zeros((2, 2, 3), np.uint8), claimed=(0, 7)), "0 x 7"),
    "webp": (b"RIFF\x00\x00\x00\x00WEBPVP8 ", "WebP"),
    "jpeg of noise": (b"\xff\xd8\xff\xe0\x00\x10" + b"A" * 40, "broken"),
    "jpeg without an end": (b"\xff\xd8\xff\xe0\xff\xff", "ends within its header"),
    "sound": (b"RIFF\x24\x00\x00\x00WAVEfmt ", "not a PNG, JPEG, GIF or BMP"),
    "film": (b"\x00\x00\x00\x20ftypisom", "not a PNG, JPEG, GIF or BMP"),
    "vector graphics": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not a PNG, JPEG, GIF or BMP"),
}


def test_what_is_no_picture_is_refused_by_name_and_nothing_dies(models):
    async def work(runner):
        for name, (data, words) in BAD.items():
            with pytest.raises(InputFault, match=words):
                await collect(runner, "Look: <__media__> What?", data)
            assert runner.alive, name
        with pytest.raises(InputFault, match="2 places for 1 pictures"):
            await collect(runner, "<__media__> <__media__> What?", noise(1))
        with pytest.raises(InputFault, match="0 places for 1 pictures"):
            await collect(runner, "What?", noise(1))
        with pytest.raises(InputFault, match="prompt of text"):
            await collect(runner, [1, 2, 3], noise(1))
        with pytest.raises(InputFault, match="at most 64"):
            await collect(runner, "<__media__>" * 65, *[noise(1)] * 65)
        with pytest.raises(InputFault, match="between 0 and"):
            await collect(runner, [-5, 2, 3])
        return runner.stderr_tail, await collect(runner, "Look: <__media__> What?", noise(1))

    log, good = with_runner(models["square"], work)
    assert good[2].usage.completion_tokens == 12
    assert "Look:" not in "\n".join(log)


def test_a_projector_of_another_model_leaves_a_model_of_text(models, bundled_model):
    async def work(runner):
        assert "vision" not in runner.facts.capabilities
        with pytest.raises(InputFault, match="does not fit this model"):
            await collect(runner, "<__media__> What?", noise(1))
        return await collect(runner, "Hello")

    assert with_runner((bundled_model, models["square"][1]), work)[2].usage.completion_tokens == 12


# ------------------------------------------------------------------ over HTTP


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    home = tmp_path_factory.mktemp("seeing")
    folder = home / "models" / "seer"
    folder.mkdir(parents=True)
    write_shape(folder / "seer.gguf", shallow("llama"))
    write_projector(folder / "mmproj-seer.gguf", "gemma3", 512)
    running = RunningServer(home)
    yield running
    running.stop()


def url_of(data):
    return "data:image/png;base64," + base64.b64encode(data).decode()


def bodies(picture):
    """The same query with an image in each protocol: path, body, and the location of the prompt token count."""
    encoded = base64.b64encode(picture).decode()
    chat = [{"type": "text", "text": "What?"}, {"type": "image_url", "image_url": {"url": url_of(picture)}}]
    items = [{"type": "input_text", "text": "What?"}, {"type": "input_image", "image_url": url_of(picture)}]
    block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": encoded}}
    told = {"role": "user", "content": chat}
    return {
        "chat": ("/v1/chat/completions", {"messages": [told], "max_tokens": 3}, ("usage", "prompt_tokens")),
        "responses": (
            "/v1/responses",
            {"input": [{"role": "user", "content": items}], "max_output_tokens": 16, "store": False},
            ("usage", "input_tokens"),
        ),
        "messages": (
            "/v1/messages",
            {"messages": [{"role": "user", "content": [block, chat[0]]}], "max_tokens": 3},
            ("usage", "input_tokens"),
        ),
        "ollama chat": (
            "/api/chat",
            {"messages": [{"role": "user", "content": "What?", "images": [encoded]}], "stream": False,
             "options": {"num_predict": 3}},
            ("prompt_eval_count",),
        ),
        "ollama generate": (
            "/api/generate",
            {"prompt": "What?", "images": [encoded], "stream": False, "options": {"num_predict": 3}},
            ("prompt_eval_count",),
        ),
    }  # fmt: skip


@pytest.mark.parametrize("protocol", bodies(b""))
def test_every_protocol_carries_pictures(served, protocol):
    def tokens(picture_count):
        path, body, where = bodies(noise(3))[protocol]
        if picture_count == 0:
            body = json.loads(json.dumps(body))
            for message in body.get("messages", body.get("input")) if "prompt" not in body else [body]:
                message.pop("images", None)
                if isinstance(message.get("content"), list):
                    message["content"] = [p for p in message["content"] if p["type"] in ("text", "input_text")]
        answer = httpx2.post(f"{served.url}{path}", json={"model": "seer", **body}, timeout=120)
        assert answer.status_code == 200, answer.text
        found = answer.json()
        cached = found.get("usage", {}).get("cache_read_input_tokens", 0)
        for name in where:
            found = found[name]
        return found + cached

    # The image's 16 positions, and the tokens that the projector adds around it.
    assert tokens(1) >= tokens(0) + 16


def test_a_model_that_sees_says_so_and_refusals_name_the_field(served):
    [entry] = [m for m in httpx2.get(f"{served.url}/api/v0/models").json()["data"] if "seer" in m["id"]]
    assert entry["type"] == "vlm"
    path, body, _ = bodies(b"GIF no")["chat"]
    answer = httpx2.post(f"{served.url}{path}", json={"model": "seer", **body}, timeout=60)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages")
    path, body, _ = bodies(noise(1))["chat"]
    blind = httpx2.post(f"{served.url}{path}", json={"model": "spark", **body}, timeout=60)
    assert blind.status_code == 400
    assert "reads text only" in blind.json()["error"]["message"]


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:1/x.png", "file:///etc/hostname", "ftp://x/y", "/etc/hostname", "data:text/html,x", ""],
)
def test_nothing_but_data_urls_is_opened(served, url):
    content = [{"type": "image_url", "image_url": {"url": url}}]
    body = {"model": "seer", "messages": [{"role": "user", "content": content}]}
    answer = httpx2.post(f"{served.url}/v1/chat/completions", json=body, timeout=60)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages[0].content[0].image_url")
