"""GGUF models as ONNX Runtime GenAI folders, without a training framework."""
