from app.code.fim_bench import gap_at, keystrokes


def test_what_follows_the_cursor_is_a_small_part_of_the_prompt():
    long = "".join(f"value_{n} = {n}\n" for n in range(3000))
    gap = gap_at("a.py", long, 30_000, 8000)
    assert len(gap.prefix) + len(gap.suffix) <= 8400
    assert len(gap.suffix) <= len(gap.prefix) / 16
    assert long[30_000:].startswith(gap.suffix)


def test_keystrokes_type_the_text_and_keep_what_is_below():
    typed = list(keystrokes("ab\ncdef\ngh\n", 3, 3))
    assert typed == [("ab\nc\ngh\n", 4), ("ab\ncd\ngh\n", 5), ("ab\ncde\ngh\n", 6)]
