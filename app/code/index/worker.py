"""Child process that reads and parses project files: grammars are native code and files are untrusted.

A request is a path; the response is a `ParsedFile` as msgpack. A `BoundedChild` runs it with the project's folder
as its last argument.
"""

import re
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path

import msgspec
from tree_sitter import Language, Parser, Query, QueryCursor

from app.code.index.walk import MAX_INDEXED_BYTES
from app.code.workspace import Workspace
from devices.child_service import serve
from devices.errors import TesseraError

# Symbols and chunks of one file, as stored in the index.

_HEADING = re.compile(r"^(#{1,6})\s+(.+?)\s*#*$")
_LETTERS = re.compile(r"[A-Za-z]+")
_CASE_CHANGES = re.compile(r"[a-z][A-Z]|[A-Z][A-Z][a-z]")
_WORD_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
# One chunk is what a search hit adds to a context: one or two functions.
_CHUNK_LINES = 60
_LEAST_CHUNK_LINES = 12
_SIGNATURE_CHARS = 200
_NAME_CHARS = 200
# A longer file is generated; the rest of it is not indexed.
_MAX_SYMBOLS = 5000
_MAX_CHUNK_CHARS = 20_000


class Symbol(msgspec.Struct, frozen=True, array_like=True):
    """A definition. Lines are 1-based and inclusive; `scope` is the dotted path of the enclosing definitions."""

    name: str
    kind: str
    scope: str
    line: int
    end_line: int
    signature: str


class Chunk(msgspec.Struct, frozen=True, array_like=True):
    """Lines `first`..`last` (1-based, inclusive) for full-text search: defined names, text, split words."""

    first: int
    last: int
    names: str
    text: str
    words: str


def symbols_of(text: str, language: str) -> list[Symbol]:
    """Definitions in a file, in order; empty if the language has no grammar."""
    if language == "markdown":
        return _headings(text)
    loaded = grammar(language)
    if loaded is None:
        return []
    parse, query = loaded
    data = text.encode("utf-8", "replace")
    tree = parse(data)
    definitions: dict[tuple[int, int], tuple[str, str, int, int, str]] = {}
    for _, captures in QueryCursor(query).matches(tree.root_node):  # type: ignore[attr-defined]  # untyped library
        (name,) = captures.pop("name")[:1]
        ((kind, nodes),) = captures.items()
        node = nodes[0]
        line, end_line = node.start_point[0] + 1, node.end_point[0] + 1
        start = data.rfind(b"\n", 0, node.start_byte) + 1
        stop = data.find(b"\n", node.start_byte)
        signature = data[start : stop if stop >= 0 else None].decode("utf-8", "replace").strip()
        label = data[name.start_byte : name.end_byte].decode("utf-8", "replace")[:_NAME_CHARS]
        definitions[node.start_byte, -node.end_byte] = (label, kind, line, end_line, signature[:_SIGNATURE_CHARS])
        if len(definitions) >= _MAX_SYMBOLS:
            break
    return _scoped(definitions)


def _scoped(definitions: dict[tuple[int, int], tuple[str, str, int, int, str]]) -> list[Symbol]:
    """Nest definitions by their byte ranges; a function inside a class becomes a method."""
    result: list[Symbol] = []
    stack: list[tuple[int, str, str]] = []
    for (start, negative_end), (name, kind, line, end_line, signature) in sorted(definitions.items()):
        while stack and stack[-1][0] <= start:
            stack.pop()
        inside = stack[-1][2] if stack else ""
        shown = "method" if kind == "function" and inside in {"class", "implementation", "struct"} else kind
        scope = ".".join(label for _, label, _ in stack)
        result.append(Symbol(name, shown, scope, line, end_line, signature))
        stack.append((-negative_end, name, kind))
    return result


def _headings(text: str) -> list[Symbol]:
    lines = text.removesuffix("\n").split("\n")
    headings: list[tuple[int, int, str]] = []
    fenced = False
    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith(("```", "~~~")):
            fenced = not fenced
        heading = None if fenced else _HEADING.match(line)
        if heading and len(headings) < _MAX_SYMBOLS:
            headings.append((number, len(heading.group(1)), heading.group(2)[:_NAME_CHARS]))
    result = []
    for index, (number, depth, title) in enumerate(headings):
        after = (other for other, level, _ in headings[index + 1 :] if level <= depth)
        result.append(Symbol(title, "heading", "", number, next(after, len(lines) + 1) - 1, title))
    return result


def chunks_of(text: str, symbols: list[Symbol]) -> list[Chunk]:
    """Split a file into chunks of at most 60 lines, at the start of definitions if possible."""
    lines = text.split("\n")
    if lines and not lines[-1]:
        lines.pop()
    starts = {symbol.line for symbol in symbols}
    result: list[Chunk] = []
    first = 1
    while first <= len(lines):
        last = min(first + _CHUNK_LINES - 1, len(lines))
        if last < len(lines):
            for cut in range(last, first + _LEAST_CHUNK_LINES - 1, -1):
                if cut + 1 in starts:
                    last = cut
                    break
        names = " ".join(symbol.name for symbol in symbols if first <= symbol.line <= last)
        body = "\n".join(lines[first - 1 : last])[:_MAX_CHUNK_CHARS]
        result.append(Chunk(first, last, names, body.encode("utf-8", "replace").decode(), _camel_case_parts(body)))
        first = last + 1
    return result


def _camel_case_parts(text: str) -> str:
    """Parts of CamelCase names, because the index's tokenizer does not split them."""
    mixed = (word for word in set(_LETTERS.findall(text)) if _CASE_CHANGES.search(word))
    parts = {part for word in mixed for part in _WORD_PART.findall(word)}
    return " ".join(sorted(parts))


# A higher average line length means a generated file, which would fill the index with noise.
_MAX_MEAN_LINE_CHARS = 400


class ParsedFile(msgspec.Struct, frozen=True):
    """Symbols and chunks of one file; `problem` is the reason if it could not be parsed."""

    path: str
    language: str = "text"
    num_lines: int = 0
    symbols: list[Symbol] = []
    chunks: list[Chunk] = []
    problem: str | None = None


def parse_file(workspace: Workspace, path: str) -> ParsedFile:
    """Read and parse one file; an error becomes the result's `problem`."""
    try:
        text = workspace.read(path, MAX_INDEXED_BYTES).text
    except (TesseraError, OSError) as error:
        return ParsedFile(path, problem=str(error))
    language = language_of(path)
    num_lines = text.removesuffix("\n").count("\n") + 1
    if len(text) / num_lines > _MAX_MEAN_LINE_CHARS:
        return ParsedFile(path, language, num_lines, problem="its lines are too long to be written by hand")
    symbols = symbols_of(text, language)
    return ParsedFile(path, language, num_lines, symbols, chunks_of(text, symbols))


def main() -> None:
    """Serve requests until the parent closes the pipe."""
    workspace, encoder = Workspace(Path(sys.argv[3])), msgspec.msgpack.Encoder()
    serve(lambda path: encoder.encode(parse_file(workspace, path.decode("utf-8", "surrogateescape"))))


# Supported languages, and the syntax nodes that are definitions.
#
# A query's captures name its matches: the definition has its kind as name, its identifier is `name`.

_SCRIPT = """
(class_declaration name: (_) @name) @class
(function_declaration name: (identifier) @name) @function
(generator_function_declaration name: (identifier) @name) @function
(method_definition name: (_) @name) @method
(lexical_declaration (variable_declarator name: (identifier) @name
  value: [(arrow_function) (function_expression)])) @function
"""
_TYPED_SCRIPT = (
    _SCRIPT
    + """
(abstract_class_declaration name: (_) @name) @class
(interface_declaration name: (_) @name) @interface
(type_alias_declaration name: (_) @name) @type
(enum_declaration name: (_) @name) @enum
"""
)
_C = """
(function_definition declarator: (function_declarator declarator: (_) @name)) @function
(function_definition declarator: (pointer_declarator declarator:
  (function_declarator declarator: (_) @name))) @function
(struct_specifier name: (type_identifier) @name body: (_)) @struct
(union_specifier name: (type_identifier) @name body: (_)) @struct
(enum_specifier name: (type_identifier) @name body: (_)) @enum
(type_definition declarator: (type_identifier) @name) @type
(preproc_function_def name: (identifier) @name) @macro
"""
_QUERIES = {
    "python": """
(class_definition name: (identifier) @name) @class
(function_definition name: (identifier) @name) @function
(module (expression_statement (assignment left: (identifier) @name)) @constant)
""",
    "javascript": _SCRIPT,
    "typescript": _TYPED_SCRIPT,
    "tsx": _TYPED_SCRIPT,
    "c": _C,
    "cpp": _C
    + """
(function_definition declarator: (reference_declarator (function_declarator declarator: (_) @name))) @function
(class_specifier name: (type_identifier) @name body: (_)) @class
(namespace_definition name: (_) @name) @module
""",
    "go": """
(function_declaration name: (identifier) @name) @function
(method_declaration name: (field_identifier) @name) @method
(type_spec name: (type_identifier) @name) @type
""",
    "rust": """
(function_item name: (identifier) @name) @function
(struct_item name: (type_identifier) @name) @struct
(union_item name: (type_identifier) @name) @struct
(enum_item name: (type_identifier) @name) @enum
(trait_item name: (type_identifier) @name) @interface
(impl_item type: (_) @name) @implementation
(mod_item name: (identifier) @name) @module
(type_item name: (type_identifier) @name) @type
(const_item name: (identifier) @name) @constant
(static_item name: (identifier) @name) @constant
(macro_definition name: (identifier) @name) @macro
""",
    "java": """
(class_declaration name: (identifier) @name) @class
(record_declaration name: (identifier) @name) @class
(interface_declaration name: (identifier) @name) @interface
(enum_declaration name: (identifier) @name) @enum
(method_declaration name: (identifier) @name) @method
(constructor_declaration name: (identifier) @name) @method
""",
    "bash": "(function_definition name: (word) @name) @function",
}
_GRAMMARS = {
    "python": ("tree_sitter_python", "language"),
    "javascript": ("tree_sitter_javascript", "language"),
    "typescript": ("tree_sitter_typescript", "language_typescript"),
    "tsx": ("tree_sitter_typescript", "language_tsx"),
    "c": ("tree_sitter_c", "language"),
    "cpp": ("tree_sitter_cpp", "language"),
    "go": ("tree_sitter_go", "language"),
    "rust": ("tree_sitter_rust", "language"),
    "java": ("tree_sitter_java", "language"),
    "bash": ("tree_sitter_bash", "language"),
}
_SUFFIXES = {
    ".py": "python", ".pyi": "python", ".pyw": "python",
    ".js": "javascript", ".mjs": "javascript", ".cjs": "javascript", ".jsx": "javascript",
    ".ts": "typescript", ".mts": "typescript", ".cts": "typescript", ".tsx": "tsx",
    ".c": "c", ".h": "cpp", ".cc": "cpp", ".cpp": "cpp", ".cxx": "cpp", ".hh": "cpp", ".hpp": "cpp", ".cu": "cpp",
    ".go": "go", ".rs": "rust", ".java": "java",
    ".sh": "bash", ".bash": "bash",
    ".md": "markdown", ".markdown": "markdown",
}  # fmt: skip


def language_of(path: str) -> str:
    """Language of a file by its suffix; "text" if unknown."""
    dot = path.rfind(".")
    return _SUFFIXES.get(path[dot:].lower(), "text") if dot > path.rfind("/") else "text"


@cache
def grammar(language: str) -> tuple[Callable[[bytes], object], Query] | None:
    """(parse function, definitions query) of a language; it loads native code, so use it only in the worker."""
    if language not in _GRAMMARS:
        return None
    module, function = _GRAMMARS[language]
    loaded = Language(getattr(import_module(module), function)())
    return Parser(loaded).parse, Query(loaded, _QUERIES[language])


if __name__ == "__main__":
    main()
