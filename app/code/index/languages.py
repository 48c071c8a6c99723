"""Languages whose symbols are read, and the shapes of syntax that define one.

A query names what it finds by its capture: the definition as its kind, the identifier in it as `name`.
"""

from collections.abc import Callable
from functools import cache
from importlib import import_module

from tree_sitter import Language, Parser, Query

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
    """The language by the file's suffix; "text" where none is known."""
    dot = path.rfind(".")
    return _SUFFIXES.get(path[dot:].lower(), "text") if dot > path.rfind("/") else "text"


@cache
def grammar(language: str) -> tuple[Callable[[bytes], object], Query] | None:
    """(parse, definitions query) of a language with a grammar; loads native code, so only in the worker."""
    if language not in _GRAMMARS:
        return None
    module, function = _GRAMMARS[language]
    loaded = Language(getattr(import_module(module), function)())
    return Parser(loaded).parse, Query(loaded, _QUERIES[language])
