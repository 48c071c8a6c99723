"""Speech to text with ONNX Runtime, in a separate child: audio, a voice detector, Moonshine."""
