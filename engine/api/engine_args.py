"""The raw arguments of llama.cpp that a model may have, and how they are read from a command line."""

from engine.runner.engine_args import NO_ARGS, BadEngineArg, EngineArgs, from_text, given

__all__ = ["NO_ARGS", "BadEngineArg", "EngineArgs", "from_text", "given"]
