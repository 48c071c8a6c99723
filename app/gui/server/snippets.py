"""What to paste into other programs so that they use the local server."""

from dataclasses import dataclass

# Stands where the user puts a key: the server keeps only their hashes.
NAME_OF_A_KEY = "YOUR_KEY"


@dataclass(frozen=True)
class Snippet:
    """Text for one program; what stands in braces is filled in."""

    name: str
    hint: str
    template: str

    def text(self, url: str, model: str, context: int, *, needs_key: bool) -> str:
        """The text for this server and model, whose context has so many tokens."""
        key = NAME_OF_A_KEY if needs_key else "local"
        header = f"  -H 'Authorization: Bearer {key}' \\\n" if needs_key else ""
        places = {"{header}": header, "{url}": url, "{model}": model, "{context}": str(context), "{key}": key}
        text = self.template
        for place, value in places.items():
            text = text.replace(place, value)
        return text


SNIPPETS: tuple[Snippet, ...] = (
    Snippet(
        "curl",
        "Paste into a terminal.",
        """curl {url}/v1/chat/completions \\
{header}  -H 'Content-Type: application/json' \\
  -d '{"model": "{model}", "messages": [{"role": "user", "content": "Hello"}]}'
""",
    ),
    Snippet(
        "Python (openai)",
        "Needs the openai package.",
        """from openai import OpenAI

client = OpenAI(base_url="{url}/v1", api_key="{key}")
answer = client.chat.completions.create(
    model="{model}",
    messages=[{"role": "user", "content": "Hello"}],
)
print(answer.choices[0].message.content)
""",
    ),
    Snippet(
        "VS Code: Continue",
        "Add to the models list of Continue's config.yaml.",
        """models:
  - name: Tessera
    provider: openai
    model: {model}
    apiBase: {url}/v1
    apiKey: {key}
    roles: [chat, edit, apply, autocomplete]
""",
    ),
    Snippet(
        "VS Code: Cline or Roo Code",
        "In the extension's settings choose the provider OpenAI Compatible.",
        """Base URL:  {url}/v1
API key:   {key}
Model ID:  {model}
""",
    ),
    Snippet(
        "Zed",
        "Add to settings.json.",
        """{
  "language_models": {
    "openai_compatible": {
      "Tessera": {
        "api_url": "{url}/v1",
        "available_models": [{ "name": "{model}", "max_tokens": {context} }]
      }
    }
  }
}
""",
    ),
    Snippet(
        "Aider",
        "Paste into a terminal, in your project's folder.",
        """export OPENAI_API_BASE={url}/v1
export OPENAI_API_KEY={key}
aider --model openai/{model}
""",
    ),
    Snippet(
        "Open WebUI",
        "Admin settings, Connections, add an OpenAI API connection.",
        """URL:  {url}/v1
Key:  {key}
""",
    ),
)
