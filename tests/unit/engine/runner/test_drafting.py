from engine.runner.generation.sequence import FIRST_LENGTH, KEY_TOKENS, MAX_DRAFT, PATIENCE, NgramDrafter


def repeating(times=3, length=40):
    drafter = NgramDrafter()
    drafter.observe(list(range(length)) * times)
    return drafter


def test_what_followed_last_time_is_proposed():
    drafter = NgramDrafter()
    drafter.observe([1, 2, 3, 4, 5, 6, 7, 9, 1, 2, 3, 4])
    assert drafter.propose(8)[:FIRST_LENGTH] == [5, 6, 7, 9][:FIRST_LENGTH]


def test_a_new_text_gets_no_guess():
    drafter = NgramDrafter()
    drafter.observe(list(range(100)))
    assert drafter.propose(8) == []


def test_the_room_is_respected():
    assert len(repeating().propose(2)) == 2
    assert repeating().propose(0) == []


def test_success_makes_drafts_longer_up_to_the_limit():
    drafter = repeating()
    for _ in range(6):
        drafter.record(4, 4)
    assert len(drafter.propose(64)) == MAX_DRAFT - 1


def test_failures_silence_it_for_a_while():
    drafter = repeating()
    for _ in range(PATIENCE):
        assert drafter.propose(8)
        drafter.record(4, 0)
    assert drafter.propose(8) == []
    drafter.observe(list(range(40)))
    assert drafter.propose(8)


def test_a_key_needs_all_its_tokens():
    drafter = NgramDrafter()
    drafter.observe([1] * (KEY_TOKENS - 1))
    assert drafter.propose(4) == []


def test_a_copy_goes_on_where_it_is_though_its_last_words_stood_elsewhere_since():
    drafter = NgramDrafter()
    drafter.observe([*range(100, 120), 1, 2, 3, 4, 50, 51, 52, 53, 1, 2, 3, 4, 60, 61, 62, 63, 9, 9])
    drafter.observe(list(range(100, 104)))
    assert drafter.propose(16)
    drafter.observe(list(range(104, 120)))
    drafter.observe([1, 2, 3, 4])
    assert drafter.propose(16)[:2] == [50, 51]  # not 60: that was the last to follow the same four tokens


def test_a_copy_is_found_again_behind_a_change():
    drafter = NgramDrafter()
    drafter.observe([*range(100, 160), 7])
    drafter.observe([*range(100, 120), 8, 9, *range(121, 125)])
    assert drafter.propose(4) == [125, 126, 127]
