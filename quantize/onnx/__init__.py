"""Converts GGUF models to ONNX Runtime GenAI folders, without a training framework."""
