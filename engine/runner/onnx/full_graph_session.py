"""Sessions in which one provider runs the whole graph, or the load fails; compiled graphs are cached."""

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from engine.message_catalog import sentence
from engine.runner.onnx.errors import LoadFailed
from engine.runner.onnx.providers import CPU, QNN, ProviderChoice, backend_options, count_operators, float_options

# The whole graph runs on the NPU, with integer inputs and outputs. Source: ONNX Runtime, QNN provider.
_QNN_OPTIONS: Final = {"offload_graph_io_quantization": "0", "htp_graph_finalization_optimization_mode": "3"}


def whole_session(
    ort: Any,
    options: Any,
    graph: Path,
    choice: ProviderChoice,
    *,
    compiled: Path | None = None,
    floats: bool = False,
    on_compile: Callable[[str], None] = lambda _: None,
) -> tuple[Any, str]:
    """Return a session, and a note about the placement of its operators.

    With `floats` the graph computes in 32-bit floats. `compiled` is the path of the cached compiled graph.
    `on_compile` is called before a first compile. Raises: LoadFailed: an operator would run on the CPU, or there is
    no device; any exception of ONNX Runtime.
    """
    if choice.adapter is None:
        return ort.InferenceSession(str(graph), options, providers=[CPU]), ""
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    started_at = time.monotonic()
    if choice.name != QNN or choice.library is None:
        on_compile(graph.stem)
        session = _built_in(ort, options, graph, choice)
        fresh = True
    else:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        fresh = compiled is None or not compiled.exists()
        if fresh:
            on_compile(graph.stem)
        if compiled is not None and fresh:
            compiled.parent.mkdir(parents=True, exist_ok=True)
            for key, value in (("enable", "1"), ("file_path", str(compiled)), ("embed_mode", "0")):
                options.add_session_config_entry(f"ep.context_{key}", value)
        provider_options = {**_QNN_OPTIONS, **backend_options(choice), **(float_options(choice) if floats else {})}
        options.add_provider_for_devices(_devices(ort, choice)[:1], provider_options)
        session = ort.InferenceSession(str(graph if fresh else compiled), options)
    share = count_operators(session, choice.name)
    if fresh and share.placed < share.total:
        raise LoadFailed(share.refusal())
    took = f"compiled in {time.monotonic() - started_at:.0f} s"
    return session, f"{graph.stem}: {f'{share.text()}, {took}' if fresh else f'{choice.name}: compiled before'}"


def _built_in(ort: Any, options: Any, graph: Path, choice: ProviderChoice) -> Any:
    assert choice.adapter is not None
    if choice.name not in ort.get_available_providers():
        raise LoadFailed(f"This ONNX Runtime has no {choice.name}. {sentence(choice.adapter.install)}")
    return ort.InferenceSession(str(graph), options, providers=[(choice.name, dict(choice.adapter.options))])


def _devices(ort: Any, choice: ProviderChoice) -> list[Any]:
    assert choice.adapter is not None
    if not any(device.ep_name == QNN for device in ort.get_ep_devices()):
        ort.register_execution_provider_library(QNN, choice.library)
    devices = [device for device in ort.get_ep_devices() if device.ep_name == QNN]
    if not devices:
        raise LoadFailed(
            f"{choice.adapter.title} is installed but finds no device. {sentence(choice.adapter.no_device)}"
        )
    return devices


def compiled_at(folder: Path | None, key: object, choice: ProviderChoice, name: str) -> Path | None:
    """Return the path of a cached compiled graph in `folder`, by content and shape (`key`) and driver."""
    if folder is None or choice.library is None:
        return None
    library = Path(choice.library).stat()
    facts = (key, library.st_size, library.st_mtime_ns)
    digest = hashlib.sha256(repr(facts).encode()).hexdigest()[:20]
    return folder / "qnn" / digest / f"{name}_ctx.onnx"
