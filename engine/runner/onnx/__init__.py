"""The ONNX Runtime runner: generation with onnxruntime-genai, encoders with plain onnxruntime."""
