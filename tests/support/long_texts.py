"""Long legitimate texts, many of them repetitive: tables, lists, code, songs, translations.

They are built from the standard library's sources and tables, the project's texts and documentation, and
traditional songs, so that no download is needed.
"""

import calendar
import errno
import html.entities
import inspect
import itertools
import json
import keyword
import locale
import mimetypes
import random
import string
import sysconfig
import unicodedata
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data" / "texts"
LONG = 4000
LONGEST = 16000
_ANIMALS = ("cow moo", "pig oink", "duck quack", "horse neigh", "lamb baa", "cat meow", "dog woof", "hen cluck")
_GIFTS = (
    "a partridge in a pear tree", "two turtle doves", "three French hens", "four calling birds", "five gold rings",
    "six geese a-laying", "seven swans a-swimming", "eight maids a-milking", "nine ladies dancing",
    "ten lords a-leaping", "eleven pipers piping", "twelve drummers drumming",
)  # fmt: skip
_DAYS = (
    "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "eleventh",
    "twelfth",
)  # fmt: skip
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_ONES = "one two three four five six seven eight nine"
_HOUSE = (
    "the house that Jack built", "the malt that lay in", "the rat that ate", "the cat that killed",
    "the dog that worried", "the cow with the crumpled horn that tossed", "the maiden all forlorn that milked",
    "the man all tattered and torn that kissed", "the priest all shaven and shorn that married",
    "the cock that crowed in the morn that waked", "the farmer sowing his corn that kept",
)  # fmt: skip


def long_texts() -> list[tuple[str, str, str]]:
    """All texts as (kind, name, text); at least 300."""
    made = [*code(), *tables(), *lists(), *data_files(), *songs(), *translations(), *prose()]
    return [(kind, name, text[:LONGEST]) for kind, name, text in made if len(text) >= LONG]


def code() -> Iterator[tuple[str, str, str]]:
    """Modules of the standard library; the code tables of `encodings` are extremely repetitive."""
    library = Path(sysconfig.get_path("stdlib"))
    files = sorted(library.glob("*.py")) + sorted(library.glob("encodings/cp*.py"))
    files += sorted(library.glob("tkinter/*.py")) + sorted(library.glob("asyncio/*.py"))
    for path in files:
        text = path.read_text(encoding="utf-8", errors="replace")
        if len(text) >= LONG:
            middle = len(text) // 3
            yield "code", path.name, text[middle:] if len(text) - middle >= LONG else text


def tables() -> Iterator[tuple[str, str, str]]:
    """Tables in Markdown, CSV and box drawing, from data of the standard library."""
    sets: dict[str, list[tuple[object, ...]]] = {
        "entities": [(k, ord(v) if len(v) == 1 else "-", v) for k, v in html.entities.html5.items()],
        "errors": [(number, name, "an error of the system") for number, name in errno.errorcode.items()],
        "mime": list(mimetypes.types_map.items()),
        "status": [(int(s), s.phrase, s.description) for s in HTTPStatus],
        "locales": list(locale.locale_alias.items()),
        "products": [(a, b, a * b) for a in range(1, 21) for b in range(1, 21)],
        "powers": [(n, n * n, n**3, round(n**0.5, 3)) for n in range(1, 200)],
        "truth": [(*(int(x) for x in row), int(sum(row) % 2)) for row in itertools.product((0, 1), repeat=8)],
        "characters": [(f"U+{c:04X}", chr(c), unicodedata.name(chr(c), "-")) for c in range(0x20, 0x2FF)],
        "squares": [(f"{n}²", "=", n * n) for n in range(1, 400)],
    }
    for block in range(0x370, 0x2C00, 0x1A0):
        named = [c for c in map(chr, range(block, block + 0x1A0)) if unicodedata.name(c, "")]
        sets[f"unicode-{block:x}"] = [(hex(ord(c)), c, unicodedata.category(c), unicodedata.name(c)) for c in named]
    for name, rows in sets.items():
        yield "table", f"{name}.md", "\n".join("| " + " | ".join(map(str, row)) + " |" for row in rows)
        yield "table", f"{name}.csv", "\n".join(",".join(f'"{cell}"' for cell in row) for row in rows)
        widths = [max(len(str(cell)) for cell in column) for column in zip(*rows, strict=True)]
        line = "+-" + "-+-".join("-" * min(w, 60) for w in widths) + "-+"
        drawn = (
            "| " + " | ".join(f"{cell!s:<{w}}" for cell, w in zip(r, widths, strict=True)) + " |" for r in rows
        )
        yield "table", f"{name}.txt", f"\n{line}\n".join(drawn)
    for year in range(2020, 2026):
        yield "table", f"calendar-{year}", "\n".join(calendar.calendar(y) for y in (year, year + 1, year + 2))


def lists() -> Iterator[tuple[str, str, str]]:
    """Numbered and plain lists."""
    words = sorted({w for w in (ROOT / "assets/text/calibration.txt").read_text().split() if w.isalpha()})
    for letter in string.ascii_lowercase:
        some = [w for w in words if w.lower().startswith(letter)]
        yield "list", f"words-{letter}", "\n".join(f"{i}. {w}" for i, w in enumerate(some, 1))
    modules = (string, calendar, inspect, unicodedata, random, json, mimetypes, locale, html.entities)
    for module in modules:
        described = [(n, str(inspect.getdoc(getattr(module, n)) or "")) for n in dir(module)]
        yield "list", module.__name__, "\n".join(f"- **{n}**: {text.splitlines()[:1]}" for n, text in described)
    soft = keyword.kwlist + keyword.softkwlist
    yield (
        "list",
        "keywords",
        "\n".join(
            f"{i}. The keyword `{w}` is reserved." for i, w in enumerate(soft + dir(str) + dir(int) + dir(dict), 1)
        ),
    )
    yield (
        "list",
        "hours",
        "\n".join(f"{h:02}:{m:02} - {h % 12 or 12} o'clock" for h in range(24) for m in range(0, 60, 5)),
    )
    steps = (f"Step {i}: Press the button marked {chr(64 + i % 26)} {i} times." for i in range(1, 120))
    yield "list", "steps", "\n".join(steps)


def data_files() -> Iterator[tuple[str, str, str]]:
    """Data formats that models often generate: JSON, SQL, XML, logs, tests, configuration, logarithms."""
    dice = random.Random(17)
    names = [w for w in (ROOT / "assets/text/heldout.txt").read_text().split() if w.istitle() and w.isalpha()]
    people = [(i, dice.choice(names), dice.choice(names), dice.randrange(18, 90)) for i in range(1, 200)]
    fields = ("id", "first", "last", "age")
    yield "data", "people.json", json.dumps([dict(zip(fields, p, strict=True)) for p in people], indent=2)
    yield "data", "people.sql", "\n".join(f"INSERT INTO people (id, first, last, age) VALUES {p};" for p in people)
    yield (
        "data",
        "rows.sql",
        "\n".join(f"INSERT INTO numbers (id, value) VALUES ({i}, {i * 10});" for i in range(1, 250)),
    )
    person = "<person id='{}'><first>{}</first><last>{}</last><age>{}</age></person>"
    yield "data", "people.xml", "\n".join(person.format(*p) for p in people)
    yield "data", "options.html", "\n".join(f'<option value="{i}">{i}</option>' for i in range(1, 400))
    row = "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>"
    yield "data", "people.html", "\n".join(row.format(*p) for p in people)
    line = "2026-11-{:02} {:02}:{:02}:{:02} INFO server: request {} took {} ms"
    log = (line.format(1 + i // 90, i % 24, i % 60, i * 7 % 60, i, dice.randrange(900)) for i in range(200))
    yield "data", "server.log", "\n".join(log)
    test = "    def test_{0}_plus_{1}(self):\n        self.assertEqual(add({0}, {1}), {2})\n"
    yield "data", "tests.py", "\n".join(test.format(a, b, a + b) for a in range(1, 14) for b in range(1, 10))
    yield "data", "asserts.py", "\n".join(f"assert is_prime({n}) is {n % 6 in (1, 5)}" for n in range(1, 300))
    yield "data", "cases.c", "\n".join(f"        case {i}: return table[{i}];" for i in range(300))
    hexes = ", ".join(f"0x{dice.randrange(256):02x}" for _ in range(2000))
    yield "data", "bytes.h", "static const unsigned char data[] = {" + hexes + "};"
    yield "data", "sha.txt", "\n".join(f"{dice.randrange(1 << 256):064x}  file-{i}.bin" for i in range(150))
    yield "data", "digits.txt", "".join(str(dice.randrange(10)) for _ in range(9000))
    yield (
        "data",
        "primes.txt",
        ", ".join(str(n) for n in range(2, 9000) if all(n % d for d in range(2, int(n**0.5) + 1))),
    )
    yield "data", "counting.txt", ", ".join(map(str, range(1, 2000)))
    yield (
        "data",
        "servers.yaml",
        "\n".join(
            f"  - name: node{i}\n    host: 10.0.{i // 9}.{i % 9}\n    port: 80{i % 90:02}\n    role: worker"
            for i in range(150)
        ),
    )
    tens, ones = _TENS.split(), ["", *(f"-{word}" for word in _ONES.split())]
    block = (DATA / "service.yaml").read_text(encoding="utf-8")
    counted = [f"{ten}{one}" for ten in tens for one in ones]
    yield (
        "data",
        "services.yaml",
        "\n".join(block.format(name=name, port=8000 + i) for i, name in enumerate(names[:14])),
    )
    greeting = "Dear {}, thank you for coming to our party last week. We were so happy to see you. Yours, Anna\n"
    yield "data", "letters.txt", "\n".join(greeting.format(name) for name in names[:60])
    said = "{} bottles of juice on the wall, {} bottles of juice. Take one down and pass it around.\n"
    yield "song", "bottles in words", "\n".join(said.format(n.title(), n) for n in reversed(counted))
    for name in ("base.txt", "dev.txt"):
        yield "data", f"lock-{name}", (ROOT / "installers/lock" / name).read_text()


def songs() -> Iterator[tuple[str, str, str]]:
    """Songs whose verses differ in one or two words, and poems with refrains."""
    bottles = (
        f"{n} bottles of beer on the wall, {n} bottles of beer.\nTake one down and pass it around, "
        f"{n - 1} bottles of beer on the wall.\n"
        for n in range(99, 1, -1)
    )
    yield "song", "bottles", "\n".join(bottles)
    for drink in ("milk", "juice", "water", "tea"):
        line = f"green bottles of {drink} hanging on the wall"
        fall = "And if one green bottle should accidentally fall,\nThere'll be"
        green = (f"{n} {line},\n{n} {line},\n{fall} {n - 1} {line}.\n" for n in range(30, 1, -1))
        yield "song", f"green-{drink}", "\n".join(green)
    verses = []
    for day in range(12):
        gifts = list(reversed(_GIFTS[: day + 1]))
        verses.append(f"On the {_DAYS[day]} day of Christmas my true love sent to me\n" + ",\n".join(gifts) + ".\n")
    yield "song", "christmas", "\n".join(verses)
    house = ["This is " + " ".join(reversed(_HOUSE[: n + 1])) + ".\n" for n in range(len(_HOUSE))]
    yield "song", "house", "\n".join(house) + "\n" + "\n".join(reversed(house))
    farm = []
    for n in range(len(_ANIMALS)):
        animal, _ = _ANIMALS[n].split()
        farm.append(f"Old MacDonald had a farm, E-I-E-I-O!\nAnd on his farm he had a {animal}, E-I-E-I-O!")
        for earlier in reversed(_ANIMALS[: n + 1]):
            s = earlier.split()[1]
            farm.append(f"With a {s}-{s} here and a {s}-{s} there,\nHere a {s}, there a {s}, everywhere a {s}-{s},")
        farm.append("Old MacDonald had a farm, E-I-E-I-O!\n")
    yield "song", "farm", "\n".join(farm)
    parts = (
        "wheels go round and round", "wipers go swish, swish, swish", "horn goes beep, beep, beep",
        "doors go open and shut", "driver says move on back", "babies cry wah, wah, wah",
        "people go up and down", "lights go blink, blink, blink", "engine goes vroom, vroom, vroom",
        "money goes clink, clink, clink", "mothers say hush, hush, hush", "dog goes woof, woof, woof",
        "rain goes drip, drip, drip", "bell goes ding, ding, ding", "cat goes meow, meow, meow",
        "brakes go squeak, squeak, squeak", "wind goes whoosh, whoosh, whoosh", "clock goes tick, tick, tock",
        "radio goes la, la, la", "windows go down and up", "seats go bump, bump, bump",
        "bags go thump, thump, thump", "shoes go tap, tap, tap", "sleepers go snore, snore, snore",
    )  # fmt: skip
    bus = []
    for part in parts:
        sound = part.split(" ", 2)[2]
        bus.append(f"The {part} on the bus, {sound}, {sound},\nThe {part} on the bus,\nAll through the town.\n")
    yield "song", "bus", "\n".join(bus)
    poems = (DATA / "poems.txt").read_text(encoding="utf-8")
    yield "song", "poems", poems
    yield "song", "poems, second half", poems[len(poems) // 3 :]


def translations() -> Iterator[tuple[str, str, str]]:
    """The same sentences in two to seven languages, as lists, tables and dialogues."""
    lines = (DATA / "phrases.tsv").read_text(encoding="utf-8").splitlines()
    head, *rows = [line.split("\t") for line in lines]
    for a, b in itertools.permutations(range(len(head)), 2):
        listed = [f'{i}. {head[a]}: "{r[a]}"\n   {head[b]}: "{r[b]}"' for i, r in enumerate(rows, 1)]
        asked = [f'How do you say "{r[a]}" in {head[b]}? You say "{r[b]}"' for r in rows]
        yield "translation", f"{head[a]}-{head[b]}", "\n".join(listed) + "\n\n" + "\n".join(asked)
    yield "translation", "all", "\n".join("| " + " | ".join(row) + " |" for row in rows)
    yield (
        "translation",
        "by phrase",
        "\n\n".join("\n".join(f"- {h}: {c}" for h, c in zip(head, r, strict=True)) for r in rows),
    )


def prose() -> Iterator[tuple[str, str, str]]:
    """Documentation, conversations, and problems with solutions."""
    for path in sorted((ROOT / "docs").rglob("*.md")):
        yield "prose", path.name, path.read_text(encoding="utf-8")
    for name in ("calibration", "heldout"):
        text = (ROOT / "assets/text" / f"{name}.txt").read_text(encoding="utf-8")
        for i in range(0, len(text) - LONGEST, LONGEST):
            yield "prose", f"{name} {i}", text[i : i + LONGEST]
