from nextlong.methods.quest.rake import key_phrases


def test_rake_scores_by_hand():
    # deep: in phrases of 3 and 2, (3 + 2) / 2; learning 3; models (3 + 1) / 2; networks 2
    assert key_phrases("Deep learning models and deep networks, models.") == [
        ("deep learning models", 7.5),
        ("deep networks", 4.5),
        ("models", 2.0),
    ]


def test_rake_knows_no_alphabet_and_gives_nothing_for_numbers():
    assert key_phrases("величина дома") == [("величина дома", 4.0)]
    assert key_phrases("growth rate 2023. 1999") == [("growth rate 2023", 4.0), ("1999", 0.0)]
    assert key_phrases("It's the one that isn't.\n \u2014") == []


def test_rake_takes_other_stop_words():
    assert key_phrases("Haus und Hof", stop_words=frozenset(["und"])) == [("haus", 1.0), ("hof", 1.0)]
