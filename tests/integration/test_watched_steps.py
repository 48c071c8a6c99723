"""All work of a runner that a device can hang in counts as a step, which the server limits."""

from engine.runner import protocol
from engine.runner.llama.batch import scheduler as schedulers
from engine.runner.llama.batch.embed import Embedder
from engine.runner.llama.service import LlamaRunner
from engine.runner.protocol import LoadSettings


class Sent(list):
    """A channel that stores what is sent."""

    send = list.append


def test_embeddings_and_new_sizes_of_a_context_count_as_steps(bundled_model, monkeypatch):
    sent, seen = Sent(), {}
    runner = LlamaRunner(sent)
    assert runner._load(LoadSettings(path=str(bundled_model), n_ctx=256, kv_cells=256, n_threads=1))
    step, resize = Embedder.step, schedulers.resize

    def embedded(embedder):
        seen["embed"] = runner._step_started > 0
        runner._inbox.put(protocol.Shutdown())
        return step(embedder)

    def resized(*sizes, **options):
        seen["resize"] = runner._step_started > 0
        return resize(*sizes, **options)

    monkeypatch.setattr(Embedder, "step", embedded)
    monkeypatch.setattr(schedulers, "resize", resized)
    runner._inbox.put(protocol.Resize(id=1, n_ctx=512, kv_cells=512))
    runner._inbox.put(protocol.Embed(id=2, inputs=["some text"]))
    assert runner._serve() == 0
    assert seen == {"embed": True, "resize": True}
    assert runner._step_started == 0
    assert [m.id for m in sent if isinstance(m, protocol.Resized | protocol.Embedded)] == [1, 2]
