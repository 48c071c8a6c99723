"""OpenAI's protocol: models, chat completions and completions."""
