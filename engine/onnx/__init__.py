"""What an ONNX model folder is, what it needs, and whether it is safe to give to ONNX Runtime. No native code."""
