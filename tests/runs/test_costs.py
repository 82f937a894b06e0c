def test_steps_took_what_their_manifests_say(run, measured):
    assert [own.step for own in measured.steps] == list(run.steps)
    manifest = run.steps["draft"].manifest
    (draft,) = [own for own in measured.steps if own.step == "draft"]
    assert (draft.seconds, draft.bytes) == (manifest["seconds"], manifest["bytes"])
    assert draft.peak_bytes == max(part["peak_bytes"] for part in manifest["parts"]) > 10**7
