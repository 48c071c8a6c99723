"""The ONNX Runtime runner: generation through onnxruntime-genai, encoders through plain onnxruntime."""
