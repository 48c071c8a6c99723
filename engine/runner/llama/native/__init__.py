"""llama.cpp itself: its library, models, vocabularies, batches, sampler chains, and checks of what it computes."""
