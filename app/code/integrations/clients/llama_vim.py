"""llama.vim: https://github.com/ggml-org/llama.vim (doc/llama.txt)."""

from pathlib import Path

from app.code.integrations.types import Endpoint, FileEdit, Integration, read_config


def _script(endpoint: Endpoint) -> str:
    """A plugin file of our own. n_suffix is small because what follows the cursor is evaluated at every key."""
    return f"""\" Written by `tessera launch llama.vim --connect`; `--remove` deletes it.
let g:llama_config = extend({{
  \\ 'endpoint': '{endpoint.url}/infill',
  \\ 'endpoint_fim': '{endpoint.url}/infill',
  \\ 'endpoint_inst': '{endpoint.openai_url}/chat/completions',
  \\ 'api_key': '{endpoint.key}',
  \\ 'n_prefix': 256,
  \\ 'n_suffix': 8,
  \\ 'n_predict': 128,
  \\ }}, get(g:, 'llama_config', {{}}), 'force')
"""


def _edits(home: Path, endpoint: Endpoint) -> list[FileEdit]:
    folders = (home / ".vim" / "plugin", home / ".config" / "nvim" / "plugin")
    # Vim reads ~/.vim even where only Neovim's folder exists; each editor gets the file in its own place.
    chosen = [folder for folder in folders if folder.parent.is_dir()] or [folders[0]]
    return [
        FileEdit(path=path, before=read_config(path), after=_script(endpoint))
        for path in (folder / "tessera_llama.vim" for folder in chosen)
    ]


INTEGRATION = Integration(
    name="llama.vim",
    title="llama.vim (Vim, Neovim)",
    kind="editor",
    install="add the plugin ggml-org/llama.vim",
    edits=_edits,
)
