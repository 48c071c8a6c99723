"""Supported file types, detected by name: the server process never opens a document."""

import re
from pathlib import PurePath
from typing import Final

MAX_FILE_BYTES: Final = 256 << 20
# Text with an unknown extension that is larger is data (measurements, sequences, models), not a document.
MAX_UNKNOWN_BYTES: Final = 4 << 20
# Size limit for the kinds whose readers stream the file.
MAX_STREAMED_BYTES: Final = 4 << 30
STREAMED: Final = frozenset({"mbox", "pdf"})

_ARCHIVES: Final = "gz tgz zip tar 7z rar bz2 xz zst"
ARCHIVES: Final = frozenset(f".{suffix}" for suffix in _ARCHIVES.split())
_BY_KIND: Final = {
    "markdown": "md markdown mdx mkd",
    "text": "txt text log rst adoc asciidoc org tex bib srt vtt nfo ics vcf",
    "html": "html htm xhtml fb2",
    "pdf": "pdf",
    "docx": "docx",
    "pptx": "pptx",
    "xlsx": "xlsx xlsm",
    "opendocument": "odt ott odp otp ods fodt fodp fods",
    "rtf": "rtf",
    "unread": f"doc ppt xls xlsb wpd mobi azw azw3 msg pages numbers djvu vsdx {_ARCHIVES}",
    "epub": "epub",
    "csv": "csv tsv",
    "eml": "eml mht mhtml",
    "mbox": "mbox",
    "picture": "png jpg jpeg tif tiff bmp webp",
    "notebook": "ipynb",
    "code": (
        "py pyi js mjs cjs jsx ts tsx java kt kts scala go rs c h cc cpp cxx hpp hh cs swift m mm rb php pl pm lua "
        "r jl sh bash zsh fish ps1 bat cmd sql graphql proto toml yaml yml json jsonc jsonl ndjson geojson ini cfg "
        "conf properties xml xsd svg css scss less vue svelte dart ex exs erl hs ml mli clj cljs el lisp "
        "vim cmake gradle tf nix zig diff patch"
    ),
}
KINDS: Final = {f".{suffix}": kind for kind, suffixes in _BY_KIND.items() for suffix in suffixes.split()}
_NAMES: Final = {
    "readme": "text", "license": "text", "copying": "text", "changelog": "text", "authors": "text",
    "notice": "text",
    "makefile": "code", "dockerfile": "code", "jenkinsfile": "code", "rakefile": "code", "gemfile": "code",
}  # fmt: skip
# Folders of build output and dependencies; they are skipped.
SKIPPED_FOLDERS: Final = frozenset({
    "node_modules", "__pycache__", "site-packages", "venv", "target", "dist", "build", "bower_components",
})  # fmt: skip
# Backups and unfinished files, which repeat others, and files that programs write for themselves.
_COPY: Final = re.compile(
    r"~$|^~\$|^#.*#$|\.(?:bak|orig|rej|swp|swo|tmp|temp|part|partial|crdownload|lock|map)$", re.IGNORECASE
)


def is_copy(name: str) -> bool:
    """Return whether a file is a backup, unfinished, or written for a program only; it is skipped."""
    return _COPY.search(name) is not None


def kind_of(name: str) -> str | None:
    """The reader kind for a file name; None if unsupported, and for pictures, which only OCR reads."""
    kind = _kind(PurePath(name))
    return None if kind == "picture" else kind


def kind_on_disk(name: str) -> str:
    """The reader kind of any file. An unknown one counts as text: its reader rejects other content."""
    return _kind(PurePath(name)) or "text"


def _kind(path: PurePath) -> str | None:
    suffix = path.suffix.lower()
    return KINDS.get(suffix) if suffix else _NAMES.get(path.name.lower())


def size_limit(name: str, kind: str) -> int:
    """Maximum size in bytes of a file of a kind; larger files are skipped."""
    path = PurePath(name)
    if path.suffix and _kind(path) is None:
        return MAX_UNKNOWN_BYTES
    return MAX_STREAMED_BYTES if kind in STREAMED else MAX_FILE_BYTES
