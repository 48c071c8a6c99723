"""llama.cpp's own converter in an environment of its own: fetched when wanted, run confined, removed again."""
