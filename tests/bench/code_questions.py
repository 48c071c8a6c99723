"""Counts questions whose file the project index finds: 100 questions, compared with BM25 over whole files.

    python tests/bench/code_questions.py FOLDER [--set first|second|third] [--embedding FILE.gguf] [--show]

FOLDER contains the repositories by name: flask, hono, ripgrep (first set, commits of August 2026), cobra adbc8813,
requests 1f6589ec, express a3714473 (second set, written before the ranking was changed), click 2c8cd3ac, fd
ee20f42, gin dcaa4296 (third set, by an author who had not read the index). Counted are questions with one of their
files first, among the first three, or anywhere in a context of 6,000 tokens. With an embedding model the index is
queried a second time, with all its vectors.
"""

import argparse
import collections
import contextlib
import math
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from app.client import Client
from app.code.context.assemble import assemble
from app.code.index.project import ProjectIndex
from app.code.index.vectors import VectorIndex
from app.code.integrations.endpoint import embedder
from app.code.workspace import Workspace
from tests.bench.recording import record
from tests.support.servers import RunningServer

R = "src/requests/"
C = "src/click/"
X = "src/router/reg-exp-router/"
FIRST = {
    "flask": [
        (
            "How does Flask decide which blueprint error handler runs for an exception?",
            "src/flask/sansio/app.py src/flask/app.py",
        ),
        ("Where is the session cookie signed and loaded?", "src/flask/sessions.py"),
        ("How does url_for work outside of a request?", "src/flask/app.py src/flask/helpers.py"),
        ("What happens when teardown functions raise?", "src/flask/app.py src/flask/ctx.py"),
        ("Where is the command line option --debug handled?", "src/flask/cli.py"),
        ("How are datetime and UUID turned into JSON?", "src/flask/json/provider.py"),
        ("Where is config read from environment variables with a prefix?", "src/flask/config.py"),
    ],
    "hono": [
        (
            "How is the fastest router chosen among several at startup?",
            "src/router/smart-router/router.ts",
        ),
        (
            "Where is the regular expression for all routes compiled together?",
            X + "router.ts " + X + "trie.ts " + X + "node.ts",
        ),
        ("How does the CORS middleware answer preflight requests?", "src/middleware/cors/index.ts"),
        ("Where are signed cookies verified?", "src/utils/cookie.ts src/helper/cookie/index.ts"),
        ("How are next() calls chained so that calling it twice is an error?", "src/compose.ts"),
        (
            "How does the app run on AWS Lambda and build a Request from the event?",
            "src/adapter/aws-lambda/handler.ts",
        ),
        (
            "How does the basic auth middleware compare passwords without leaking timing?",
            "src/middleware/basic-auth/index.ts src/utils/buffer.ts",
        ),
    ],
    "ripgrep": [
        (
            "How does ripgrep decide that a file is binary and stops?",
            (
                "crates/searcher/src/line_buffer.rs crates/searcher/src/searcher/mod.rs"
                " crates/searcher/src/searcher/core.rs crates/core/search.rs crates/core/flags/hiargs.rs"
                " crates/searcher/src/searcher/glue.rs"
            ),
        ),
        ("Where are gitignore patterns parsed into globs?", "crates/ignore/src/gitignore.rs"),
        (
            "How does smart case work?",
            (
                "crates/regex/src/config.rs crates/regex/src/ast.rs crates/core/flags/defs.rs"
                " crates/regex/src/matcher.rs"
            ),
        ),
        (
            "Where are default file types such as rust or py defined?",
            "crates/ignore/src/default_types.rs",
        ),
        ("How are directories walked in parallel?", "crates/ignore/src/walk.rs"),
        (
            "When is memory mapping used instead of reading a file?",
            "crates/searcher/src/searcher/mmap.rs crates/core/flags/hiargs.rs crates/core/flags/defs.rs",
        ),
    ],
}
SECOND = {
    "cobra": [
        ("Where is checked that mutually exclusive flags are not given together?", "flag_groups.go"),
        ("How does cobra suggest a similar command after a typo?", "command.go cobra.go"),
        ("How is the PowerShell completion script generated?", "powershell_completions.go"),
        ("Where are man pages written for a whole tree of commands?", "doc/man_docs.go"),
        ("How does a program limit the number of positional arguments?", "args.go"),
        ("Which environment variable turns active help off?", "active_help.go completions.go"),
        ("Why does the program refuse to start from Windows Explorer?", "command_win.go cobra.go"),
        ("How are persistent flags of parents merged into a child?", "command.go"),
        ("Where is the help of a command printed by default?", "command.go"),
        ("How are completions filtered to directories only?", "shell_completions.go completions.go"),
        ("Where is the YAML reference of a command produced?", "doc/yaml_docs.go"),
        ("In which order do PreRun, Run and PostRun hooks run?", "command.go"),
        ("How does the hidden __complete command answer the shell?", "completions.go"),
        ("What is executed before and after every command, for configuration files?", "cobra.go"),
    ],
    "requests": [
        ("When is the Authorization header dropped on a redirect?", R + "sessions.py"),
        ("How is the digest of a username and password computed after a 401?", R + "auth.py"),
        ("Where are credentials read from a .netrc file?", R + "utils.py"),
        ("How is the certificate bundle for TLS verification chosen?", R + "adapters.py " + R + "certs.py"),
        ("How does iter_lines split a streamed body?", R + "models.py"),
        ("What guesses the encoding of JSON bytes?", R + "utils.py"),
        ("Where is a multipart body for uploaded files built?", R + "models.py"),
        ("How do two cookies with the same name and different domains cause an error?", R + "cookies.py"),
        ("Which exceptions exist for timeouts and connection problems?", R + "exceptions.py"),
        ("How are header names compared without regard to case?", R + "structures.py"),
        ("How does no_proxy with an IP network bypass a proxy?", R + "utils.py"),
        ("Where can a callback for each response be registered and called?", R + "hooks.py " + R + "models.py"),
        ("How does POST become GET after a 303?", R + "sessions.py"),
    ],
    "express": [
        ("How is the client's IP address taken from forwarded headers behind a proxy?", "lib/request.js"),
        ("Where is the path of a template file looked up in the views folders?", "lib/view.js"),
        ("How is the ETag of a response generated?", "lib/utils.js lib/response.js"),
        ("How does a JSONP response protect its callback name?", "lib/response.js"),
        ("Where are the default settings of an application made?", "lib/application.js"),
        ("How is a signed cookie set on the response?", "lib/response.js"),
        ("How is a sub application mounted with use?", "lib/application.js"),
        ("How does the request decide if the response is still fresh in the client's cache?", "lib/request.js"),
        ("Which query string parser is used for the simple and extended settings?", "lib/utils.js"),
        ("How are file downloads sent with a file name?", "lib/response.js"),
        ("Where does the module export json and urlencoded body parsers?", "lib/express.js"),
        ("How does content negotiation choose among several formats?", "lib/response.js lib/request.js"),
        ("How is a template engine registered for a file extension?", "lib/application.js lib/view.js"),
    ],
}
THIRD = {
    "click": [
        ("How does an unknown option get a suggestion of similar names?", C + "exceptions.py " + C + "parser.py"),
        ("Where is the folder for an application's configuration chosen on each system?", C + "utils.py"),
        ("How is long output shown through less or another pager?", C + "_termui_impl.py " + C + "termui.py"),
        ("How is the estimated time left of a progress bar computed?", C + "_termui_impl.py"),
        (
            "Where are escape codes for colours removed when the output is a file?",
            C + "_compat.py " + C + "utils.py",
        ),
        ("How does a test feed standard input and capture the output of a command?", C + "testing.py"),
        (
            "How are words of an incomplete command line split for completion in the shell?",
            C + "shell_completion.py",
        ),
        ("Where are the help text's two columns of options laid out?", C + "formatting.py"),
        ("How does a file argument of - mean standard input or output?", C + "_compat.py " + C + "types.py"),
        ("Where does a number outside of minimum and maximum become an error or get clamped?", C + "types.py"),
        ("How is the value of an option read from an environment variable?", C + "core.py"),
        ("Where is a temporary file opened in the user's editor?", C + "_termui_impl.py " + C + "termui.py"),
        ("How are unicode characters written to the Windows console?", C + "_winconsole.py"),
        ("How does the current context of the running thread get remembered?", C + "globals.py"),
    ],
    "fd": [
        ("How is a size such as +10k parsed and compared?", "src/filter/size.rs"),
        ("When does a pattern make the search case sensitive by itself?", "src/regex_helper.rs src/main.rs"),
        ("How are found files written as clickable links for terminals?", "src/hyperlink.rs src/output.rs"),
        ("Where are control characters in file names made harmless before printing?", "src/sanitize.rs"),
        (
            "How are arguments collected for one command that gets all results at once?",
            "src/exec/mod.rs src/exec/job.rs",
        ),
        ("How are placeholders such as {/.} replaced in a command?", "src/fmt/mod.rs src/exec/mod.rs"),
        ("Where are only files of a certain user or group kept?", "src/filter/owner.rs"),
        ("How is --changed-within given as a duration or a date?", "src/filter/time.rs"),
        ("Where is decided how many threads walk the folders?", "src/walk.rs src/cli.rs src/main.rs"),
        ("How are results buffered and sorted before the first output?", "src/walk.rs"),
        ("What happens to the search when Ctrl-C is pressed?", "src/walk.rs src/exit_codes.rs"),
        ("How does the program find out that a folder is empty?", "src/filesystem.rs"),
        ("Which exit status results if one of several commands failed?", "src/exit_codes.rs"),
    ],
    "gin": [
        ("How is the client's real address taken from headers of trusted proxies?", "context.go gin.go"),
        ("How does a path with another case or a trailing slash get redirected?", "gin.go tree.go"),
        ("Where is a panic in a handler turned into status 500?", "recovery.go"),
        ("How are routes with parameters and wildcards stored and looked up?", "tree.go"),
        (
            "Where are query or form values written into struct fields with tags and defaults?",
            "binding/form_mapping.go",
        ),
        ("How is a field that is required but missing reported?", "binding/default_validator.go"),
        ("Where is chosen which decoder reads a request body, from its content type?", "binding/binding.go"),
        ("How is JSON protected with a prefix against hijacking of arrays?", "render/json.go"),
        ("Where does HTTP basic authentication compare user and password?", "auth.go"),
        ("How is a line of the access log formatted, with colours for the status?", "logger.go"),
        ("How are listings of folders hidden when static files are served?", "fs.go internal/fs/fs.go"),
        ("How does a handler stop the ones after it?", "context.go"),
        ("Where does the writer remember the status code until something is written?", "response_writer.go"),
    ],
}
BUDGET = 6000
SETS = {"first": FIRST, "second": SECOND, "third": THIRD}
_BINARY = {".png", ".ico", ".lock", ".svg", ".jpg", ".gif", ".woff", ".woff2"}


def words(text: str) -> list[str]:
    """Identifiers in lower case, whole and in parts."""
    found = []
    for word in re.findall(r"[A-Za-z_][A-Za-z0-9_]*", text):
        parts = re.findall(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+", word)
        found += [word.lower(), *(part.lower() for part in parts if len(parts) > 1)]
    return [re.sub(r"(?:ing|ed|es|s)$", "", word) if len(word) > 4 else word for word in found if len(word) > 1]


class ByFile:
    """The baseline: BM25 (k1 1.5, b 0.75) over whole files, with split identifiers and their path."""

    def __init__(self, root: Path) -> None:
        listed = subprocess.run(["git", "-C", root, "ls-files"], capture_output=True, text=True, check=True).stdout
        self._counts: dict[str, collections.Counter[str]] = {}
        for name in listed.splitlines():
            path = root / name
            if path.is_file() and path.suffix not in _BINARY:
                self._counts[name] = collections.Counter(words(f"{name}\n{path.read_text('utf-8', 'replace')}"))
        self._sizes = {name: counts.total() for name, counts in self._counts.items()}
        self._mean = sum(self._sizes.values()) / len(self._sizes)
        self._in = collections.Counter(word for counts in self._counts.values() for word in counts)

    def files(self, question: str) -> list[str]:
        """Files for a question, best first."""

        def score(name: str) -> float:
            total = 0.0
            for word in set(words(question)):
                count = self._counts[name][word]
                seldom = math.log(1 + (len(self._counts) - self._in[word] + 0.5) / (self._in[word] + 0.5))
                total += seldom * count * 2.5 / (count + 1.5 * (0.25 + 0.75 * self._sizes[name] / self._mean))
            return total

        return sorted(self._counts, key=score, reverse=True)[:6]


@contextlib.contextmanager
def embedding(model: Path | None):
    """(name, function from texts to vectors) of a model in a separate server; None without a model."""
    if model is None:
        yield None
        return
    with tempfile.TemporaryDirectory() as home:
        (Path(home) / "models").mkdir()
        (Path(home) / "models" / model.name).symlink_to(model.resolve())
        server = RunningServer(Path(home))
        try:
            with contextlib.closing(Client(server.url, server.token)) as client:
                yield embedder(client, model.stem)
        finally:
            server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--set", choices=tuple(SETS), default="third")
    parser.add_argument("--embedding", type=Path)
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    hits = {"index": [0, 0, 0], "BM25 by file": [0, 0, 0]}
    with embedding(options.embedding) as embed:
        total = ask(options, hits, embed)
    for name, (first, three, found) in hits.items():
        print(f"{name}: first {first}, among three {three}, found {found} of {total}")
        if options.record:
            facts = {"set": options.set, "questions": total, "ranking": name}
            for metric, value in (("first file", first), ("among three files", three), ("found", found)):
                record("code_questions", metric, value, "questions", **facts)


def ask(options: argparse.Namespace, hits: dict[str, list[int]], embed) -> int:
    """Add up the hits of each ranking; the number of questions."""
    total = 0
    if embed is not None:
        hits[f"index with {embed[0]}"] = [0, 0, 0]
    for repository, questions in SETS[options.set].items():
        root = options.folder / repository
        baseline = ByFile(root)
        with tempfile.TemporaryDirectory() as cache:
            index = ProjectIndex(Workspace(root), Path(cache))
            index.refresh()
            vectors = None
            if embed is not None:
                begun = time.monotonic()
                vectors = VectorIndex(index, *embed)
                missing = vectors.update(3600)
                print(
                    f"{repository}: {time.monotonic() - begun:.0f} s, {missing} chunks without a vector", flush=True
                )
            for question, gold in questions:
                right = gold.split()
                assert all((root / path).exists() for path in right), right
                found = files_for(index, question)
                rankings = [("index", found), ("BM25 by file", baseline.files(question))]
                if embed is not None:
                    rankings.append((f"index with {embed[0]}", files_for(index, question, vectors)))
                total += 1
                for name, files in rankings:
                    place = next((at for at, path in enumerate(files) if path in right), 99)
                    for level, most in enumerate((1, 3, 99)):
                        hits[name][level] += place < most
                    if options.show and name != "BM25 by file":
                        print("ok  " if place < 99 else "MISS", place + 1, name, question, files[:6])
            index.close()
    return total


def files_for(index: ProjectIndex, question: str, vectors: VectorIndex | None = None) -> list[str]:
    """Files of the context for a question, best first."""
    items = assemble(index, question, BUDGET, lambda text: len(text) // 4, vectors=vectors).items
    return list(dict.fromkeys(item.path for item in items if item.path))


if __name__ == "__main__":
    main()
