"""Reading an answer aloud with the desktop's speech service: Speech Dispatcher or eSpeak, macOS, Windows."""

import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from devices.child import spawn
from devices.environment import without_secrets
from devices.programs import installed_program

if TYPE_CHECKING:
    from markdown_it.token import Token

# A separate process reads each part, so that at most one part has to be stopped.
_PART_CHARACTERS: Final = 600
_SENTENCE_END: Final = re.compile(r"(?<=[.!?…:;])\s+|\n+")
_STOP_S: Final = 5.0
# The most frequent short words of each language that do not occur in the other languages.
_WORDS: Final = {
    "de": "der das und ist nicht ein eine mit auf für den zu sich auch wird werden oder sie",
    "en": "the and is of to that it for with are this be not you or was from have",
    "es": "el los las y es que por con una para del como más pero su está",
    "fr": "le les et est des une que pour dans pas qui sur avec ce vous sont au",
    "it": "il che di è per una non sono con del della gli anche più come questo",
    "nl": "het een en van is dat niet op te voor met zijn ook maar worden bij",
    "pl": "i w nie na się jest to że z do jak dla od po przez są",
    "pt": "o os e que não uma para com do da em são mais por como você",
}
LANGUAGES: Final = tuple(sorted(_WORDS))

# PowerShell reads the text from its input: no text of an answer becomes part of a command.
_POWERSHELL: Final = (
    "[Console]::InputEncoding=[Text.Encoding]::UTF8;Add-Type -AssemblyName System.Speech;"
    "$voice=New-Object System.Speech.Synthesis.SpeechSynthesizer;"
    "try{$voice.SelectVoiceByHints('NotSet','NotSet',0,[Globalization.CultureInfo]'LANGUAGE')}catch{};"
    "$voice.Speak([Console]::In.ReadToEnd())"
)
_MAC: Final = "say"


class NoSpeechService(Exception):
    """No desktop program can read aloud. `detail` is the output of the one that failed, if there is one."""

    def __init__(self, detail: str = "") -> None:
        super().__init__(detail)
        self.detail = detail


class Aloud:
    """Reads one text. `read` blocks; `stop` ends it from another thread."""

    def __init__(self, text: str, language: str = "", *, platform: str = sys.platform) -> None:
        """Create it. `language`: a code as in `LANGUAGES`; if empty, it is detected from the text."""
        self._text, self._platform = text, platform
        self._language = language or language_of(text)
        self._stopped = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def read(self) -> None:
        """Read the text to its end. Raises: NoSpeechService."""
        for part in parts(self._text):
            self._read(part)
            if self._stopped.is_set():
                return

    def _read(self, part: str) -> None:
        command, by_input = self._command(part)
        with self._lock:
            if self._stopped.is_set():
                return
            try:
                process = self._process = spawn(
                    command,
                    without_secrets(),
                    stdin=subprocess.PIPE if by_input else subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                )
            except OSError as error:
                raise NoSpeechService(error.strerror or str(error)) from error
        _, printed = process.communicate(part.encode("utf-8") if by_input else None)
        if process.returncode and not self._stopped.is_set():
            lines = printed.decode("utf-8", "replace").strip().splitlines()
            raise NoSpeechService(lines[-1][:200] if lines else "")

    def stop(self) -> None:
        """Stop reading immediately."""
        with self._lock:
            self._stopped.set()
            process = self._process
        if process is None or process.poll() is not None:
            return
        dispatcher = installed_program("spd-say") if self._platform not in {"win32", "darwin"} else None
        if dispatcher:  # the service finishes a message even if its sender has ended
            with suppress(OSError, subprocess.TimeoutExpired):
                # Not --stop: spd-say 0.11.4 requires an argument for it.
                subprocess.run([dispatcher, "-S"], env=without_secrets(), timeout=_STOP_S, check=False)
        with suppress(OSError):
            process.kill()

    def _command(self, part: str) -> tuple[list[str], bool]:
        """The program that reads this part, and whether it takes the text from its input."""
        if self._platform == "win32":
            script = _POWERSHELL.replace("LANGUAGE", self._language)
            program = installed_program("powershell") or installed_program("pwsh")
            if program is None:
                raise NoSpeechService
            return [program, "-NoProfile", "-NonInteractive", "-Command", script], True
        if self._platform == "darwin":
            program = installed_program(_MAC)
            if program is None:
                raise NoSpeechService
            voice = mac_voice(_printed([program, "-v", "?"]), self._language)
            return [program, *(["-v", voice] if voice else []), "-f", "-"], True
        if program := installed_program("spd-say"):
            name = ["--application-name", "Tessera", "--wait", "--language", self._language]
            return [program, *name, "--", part], False
        if program := installed_program("espeak-ng") or installed_program("espeak"):
            return [program, "-v", self._language, "--stdin"], True
        raise NoSpeechService


def _printed(command: list[str]) -> str:
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(command, capture_output=True, env=without_secrets(), timeout=_STOP_S, check=False)
        return done.stdout.decode("utf-8", "replace")
    return ""


def mac_voice(voices: str, language: str) -> str:
    """The first voice of a language in macOS's list of voices; "": none."""
    match = re.search(rf"(?m)^(.+?)\s+{re.escape(language)}[_-]\w+\s+#", voices)
    return match[1].strip() if match else ""


def parts(text: str) -> Iterator[str]:
    """Whole sentences of a text, up to `_PART_CHARACTERS` together."""
    part = ""
    for sentence in _SENTENCE_END.split(text):
        for start in range(0, len(sentence), _PART_CHARACTERS):
            more = sentence[start : start + _PART_CHARACTERS].strip()
            if part and len(part) + len(more) >= _PART_CHARACTERS:
                yield part
                part = ""
            part = f"{part} {more}".strip()
    if part:
        yield part


def language_of(text: str) -> str:
    """The language whose frequent words occur most often in the text; English if there are none."""
    words = re.findall(r"\w+", text[:4000].lower())
    counts = {name: sum(word in frequent for word in words) for name, frequent in _FREQUENT.items()}
    best = max(counts, key=lambda name: (counts[name], name == "en"))
    return best if counts[best] else "en"


_FREQUENT: Final[Mapping[str, frozenset[str]]] = {name: frozenset(text.split()) for name, text in _WORDS.items()}


# The time grows with the length of the text, also if many marks open formulas and none ends one.
_FORMULA: Final = re.compile(r"\$\$.+?\$\$|\\\[(?:(?!\\\[).)+?\\\]", re.DOTALL)
_SHORT_FORMULA: Final = re.compile(r"\\\(((?:(?!\\\().)+?)\\\)|(?<!\w)\$([^$\n]+)\$(?!\w)")


def spoken_text(markdown: str, words: Callable[[str], str]) -> str:
    """The sentences of an answer to read aloud, without symbols, addresses, code, formulas and tables.

    `words` returns the sentence that replaces an omitted part: code, table, formula or image.
    """
    from markdown_it import MarkdownIt

    without_formulas = _FORMULA.sub(f"\n\n{words('formula')}\n\n", markdown)
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(without_formulas)
    lines: list[str] = []
    in_table = False
    for token in tokens:
        if token.type == "table_open":
            in_table = True
            lines.append(words("table"))
        elif token.type == "table_close":
            in_table = False
        elif token.type in {"fence", "code_block"}:
            lines.append(words("code"))
        elif token.type == "inline" and not in_table:
            lines.append(_inline(token.children or [], words))
    return "\n".join(_ended(line) for line in lines if line.strip())


def _inline(tokens: "list[Token]", words: Callable[[str], str]) -> str:
    out: list[Any] = []
    for token in tokens:
        if token.type in {"text", "code_inline"}:
            out.append(token.content)
        elif token.type in {"softbreak", "hardbreak"}:
            out.append(" ")
        elif token.type == "image":
            out.append(token.content or words("image"))
    text = re.sub(r"https?://(?:www\.)?([^/\s)]+)\S*", r"\1", "".join(out))
    return _SHORT_FORMULA.sub(r"\1\2", text).strip()


def _ended(line: str) -> str:
    """A heading or an entry of a list needs a pause after it."""
    return line if line[-1] in ".!?…:;," else f"{line}."
