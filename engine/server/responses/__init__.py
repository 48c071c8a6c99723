"""OpenAI's Responses protocol, which coding agents use."""
