"""OpenAI's Responses protocol, which coding agents speak."""
