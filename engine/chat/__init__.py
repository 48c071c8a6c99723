"""From messages to a prompt and from generated text back to messages."""
