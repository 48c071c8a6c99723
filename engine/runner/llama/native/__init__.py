"""Low-level llama.cpp access: library, models, vocabularies, batches, sampler chains, and result checks."""
