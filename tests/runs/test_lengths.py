from itertools import pairwise


def test_histograms_count_every_span_once(measured, sequences):
    lengths = [span.token_end - span.token_start for spans in sequences for span in spans]
    assert (measured.chunk_tokens.count, measured.chunk_tokens.max) == (len(lengths), max(lengths))
    metas = [[span for span in spans if span.role == "meta"] for spans in sequences]
    gaps = [after.token_start - before.token_end for own in metas for before, after in pairwise(own)]
    for values, bins in ((lengths, measured.chunk_tokens_histogram), (gaps, measured.distance_histogram)):
        assert [sum(own.least <= value <= own.most for value in values) for own in bins] == [own.count for own in bins]
        assert sum(own.count for own in bins) == len(values)
    cosines = [span.score for spans in sequences for span in spans if span.role == "negative"]
    bins = measured.similarity_histogram
    assert [sum(own.least - 5e-5 <= score < own.most + 5e-5 for score in cosines) for own in bins] == [
        own.count for own in bins
    ]
    assert sum(own.count for own in bins) == len(cosines)
