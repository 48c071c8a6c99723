"""How many tokens a text will have, before the model's own tokenizer is asked."""

# Bytes of source code per token. Source: common code tokenizers give 3.2 to 4.2; the low end is safe.
_BYTES_PER_TOKEN = 3.0
# How much one observed prompt moves the estimate.
_LEARNING_RATE = 0.5
_FLOOR, _CEILING = 1.5, 6.0


class TokenEstimate:
    """Counts by bytes, corrected by what the server reports for real prompts."""

    def __init__(self, bytes_per_token: float = _BYTES_PER_TOKEN) -> None:
        self.bytes_per_token = bytes_per_token

    def __call__(self, text: str) -> int:
        """Estimated tokens of a text, rounded up."""
        size = len(text.encode("utf-8", "surrogateescape"))
        return int(size / self.bytes_per_token) + 1 if size else 0

    def learn(self, text: str, num_tokens: int) -> None:
        """Correct the estimate by a prompt whose tokens were counted by the model's tokenizer."""
        if num_tokens < 1 or not text:
            return
        seen = len(text.encode("utf-8", "surrogateescape")) / num_tokens
        mixed = self.bytes_per_token + _LEARNING_RATE * (seen - self.bytes_per_token)
        self.bytes_per_token = min(max(mixed, _FLOOR), _CEILING)
