"""Speech to text on ONNX Runtime, in a child of its own: sound, a voice detector, Moonshine."""
