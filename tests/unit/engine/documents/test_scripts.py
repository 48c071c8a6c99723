"""Search and the check of answers in other scripts and spellings: Chinese, Japanese, Korean, accents, ligatures."""

import unicodedata

import pytest

from engine.documents import citation_check
from engine.documents.query_terms import STOP, words_of
from engine.documents.search import by_codes, evidence, find
from engine.documents.store import Store
from engine.documents.types import Chunk, PageRead
from engine.server.documents.questions import points_back

TEXTS = {
    "japanese": "この契約は二〇一九年に東京で締結され、家賃は月額八万円です。"
    "型番AB-1203のポンプは飲水機に使います。",
    "japanese other": "大阪の港は広く、船が多い。夏は暑い。",
    "chinese": "本合同由甲乙双方于二零一九年在北京签订。租金每月为八百元,逾期三十天终止合同。",
    "chinese other": "上海的港口很大,船也很多。天气很热。",
    "korean": "이 계약은 2019년에 서울에서 체결되었으며 월세는 팔십만 원이다.",
    "german": "Die Straße nach Grönland ist lang. Der Maßstab beträgt 1:500.",
    "french": "L'\u0153uvre est na\u00efve, dit le cur\u00e9 d'\u00c9vreux.",
    "ligatures": "The e\ufb03ciency of the \ufb01lter is \uff19\uff11 percent.",
    "hyphens": "Die Donau\u00addampf\u00adschiff\u200bfahrt ruht.",
    "greek": "ΟΔΥΣΣΕΥΣ επέστρεψε.",
    "arabic": "قَالَ مُحَمَّدٌ شكرًا.",
    "hebrew": "שָׁלוֹם לכל הקוראים.",
    "hindi": "हिन्दी भाषा सरल है।",
    "turkish": "\u0130stanbul \u0131l\u0131k bir \u015fehirdir.",
}  # fmt: skip


@pytest.fixture
def store(tmp_path):
    made = Store(tmp_path / "index.db")
    for name, text in TEXTS.items():
        page = PageRead(1, "", (Chunk("", "text", text),))
        made.add_pages(made.begin(f"/{name}", "text", 1, 1, ""), (page,), done=True)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("question", "name"),
    [
        ("東京", "japanese"),
        ("家賃はいくらですか", "japanese"),
        ("水", "japanese"),
        ("AB-1203のポンプは何に使いますか", "japanese"),
        ("大阪の港について教えてください。", "japanese other"),
        ("租金每月是多少?", "chinese"),
        ("什么时候终止合同", "chinese"),
        ("上海港口", "chinese other"),
        ("서울", "korean"),
        ("월세가 얼마인가요?", "korean"),
        ("STRASSE", "german"),
        ("Strasse", "german"),
        ("groenland gronland", "german"),
        (unicodedata.normalize("NFD", "Grönland"), "german"),
        ("evreux cure", "french"),
        ("efficiency filter", "ligatures"),
        ("91 percent", "ligatures"),
        ("Donaudampfschifffahrt", "hyphens"),
        ("\u03bf\u03b4\u03c5\u03c3\u03c3\u03b5\u03c5\u03c2", "greek"),
        ("\u0645\u062d\u0645\u062f", "arabic"),
        ("\u0634\u0643\u0631\u0627", "arabic"),
        ("\u05e9\u05dc\u05d5\u05dd", "hebrew"),
        ("\u092d\u093e\u0937\u093e", "hindi"),
        ("istanbul", "turkish"),
    ],
)
def test_words_are_found_however_they_are_written(store, question, name):
    hits = find(store, None, question, None, "words", 8)
    assert hits, "nothing was found"
    assert hits[0].path == f"/{name}"


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("家賃は月額いくらですか", True),
        ("租金每月是多少?", True),
        ("서울에서 체결된 계약", True),
        ("恐竜の骨はどこですか", False),
        ("火星探测器的燃料", False),
    ],
)
def test_a_question_without_spaces_is_judged_by_its_words(store, question, expected):
    assert evidence(store, question, find(store, None, question, None, "words", 5)).found == expected


def test_a_code_next_to_unspaced_text_is_a_code(store):
    (chunk_id,) = by_codes(store, "型番AB-1203です")
    assert store.chunks([chunk_id])[chunk_id].path == "/japanese"


def test_a_question_without_spaces_stands_alone():
    assert not points_back("東京の家賃はいくらですか")
    assert [word for word in words_of("東京の家賃はいくらですか") if word not in STOP] == ["東京", "家賃"]


@pytest.mark.parametrize(
    ("answer", "carried"),
    [
        ("家賃は月額八万円です。", True),
        ("契約は東京で締結されました。", True),
        ("会社は犬を三匹飼っています。", False),
        ("ポンプの型番はAB-9999です。", False),
    ],
)
def test_an_answer_without_spaces_is_checked(store, answer, carried):
    first, *_ = citation_check.sentences(f"{answer}それは次の文です。")
    assert first.text == answer
    with store.lock:
        (result,) = citation_check.check([first], citation_check.windows([TEXTS["japanese"]]), store.stemmer.stems)
    assert result.carried == carried


def test_an_index_of_before_gets_the_words_without_reading_files_again(store):
    store.set_fact("words", "")
    store.connection.execute("DELETE FROM full_text")
    store.connection.execute(
        "INSERT INTO full_text(rowid, title, heading, body) SELECT id, '', heading, text FROM chunk"
    )
    assert not find(store, None, "東京", None, "words", 8)
    assert find(store, None, "percent", None, "words", 8)
    store.index_words_again()
    assert find(store, None, "東京", None, "words", 8)[0].path == "/japanese"
    store.connection.execute("INSERT INTO full_text(full_text) VALUES('integrity-check')")
    for row in store.documents():
        store.remove([row.path])
    assert not find(store, None, "東京", None, "words", 8)
    assert store.connection.execute("SELECT count(*) FROM term").get == 0
