"""The llama.cpp arguments that a model may have, and their command-line parser."""

from engine.runner.engine_args import NO_ARGS, BadEngineArg, EngineArgs, from_text, given

__all__ = ["NO_ARGS", "BadEngineArg", "EngineArgs", "from_text", "given"]
