"""What to paste into other programs so that they use the local server."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Snippet:
    """Text for one program; `{url}` and `{model}` are filled in."""

    name: str
    hint: str
    template: str

    def text(self, url: str, model: str) -> str:
        """The text for this server and model."""
        return self.template.replace("{url}", url).replace("{model}", model)


SNIPPETS: tuple[Snippet, ...] = (
    Snippet(
        "curl",
        "Paste into a terminal.",
        """curl {url}/v1/chat/completions \\
  -H 'Content-Type: application/json' \\
  -d '{"model": "{model}", "messages": [{"role": "user", "content": "Hello"}]}'
""",
    ),
    Snippet(
        "Python (openai)",
        "Needs the openai package. No key is checked on this computer; any text will do.",
        """from openai import OpenAI

client = OpenAI(base_url="{url}/v1", api_key="local")
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
    apiKey: local
    roles: [chat, edit, apply, autocomplete]
""",
    ),
    Snippet(
        "VS Code: Cline or Roo Code",
        "In the extension's settings choose the provider OpenAI Compatible.",
        """Base URL:  {url}/v1
API key:   local
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
        "available_models": [{ "name": "{model}", "max_tokens": 8192 }]
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
export OPENAI_API_KEY=local
aider --model openai/{model}
""",
    ),
    Snippet(
        "Open WebUI",
        "Admin settings, Connections, add an OpenAI API connection.",
        """URL:  {url}/v1
Key:  local
""",
    ),
)
