"""ONNX model folders: their details, requirements and safety checks. No native code."""
