from nextlong.evaluate.probe import all_probes


def test_each_probe_goes_by_its_suite():
    probes = all_probes()
    assert {suite: probe.suite for suite, probe in probes.items()} == {suite: suite for suite in probes}
    assert len({probe.name for probe in probes.values()}) == len(probes)
    assert {"attention", "copying", "key-values", "dependency", "short"} == set(probes)
