"""Creating one model from another as a job or a command: quantizing, conversion to ONNX."""
