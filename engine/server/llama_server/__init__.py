"""llama-server's routes: completion, infill, tokens, properties, slots and resumable streams."""
