"""llama-server's own routes: completion, infill, tokens, properties, slots and kept streams."""
