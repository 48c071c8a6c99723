"""The number from which other programs read a file's type."""

import pytest

from engine.core.paths import BUNDLED_MODELS
from quantize.files.gguf_split import read_gguf_model
from quantize.job.source import mostly

SOURCE = BUNDLED_MODELS / "spark-f16.gguf"


@pytest.mark.parametrize(
    ("most", "number"),
    [("IQ4_XS", 30), ("Q4_K", 14), ("Q3_K", 11), ("Q8_0", 7), ("F16", 1), ("BF16", 32), ("MXFP4", 38)],
)
def test_a_mix_is_named_after_the_type_of_most_weights(most, number):
    tensors = sorted((tensor for _, tensor in read_gguf_model(SOURCE).tensors()), key=lambda t: -t.num_values)
    others = {tensor.name: ("Q6_K", "F32")[at % 2] for at, tensor in enumerate(tensors)}
    total, named = sum(tensor.num_values for tensor in tensors), 0
    for tensor in tensors:
        if named * 2 <= total:
            others[tensor.name] = most
            named += tensor.num_values
    assert mostly(SOURCE, others) == number
