"""Engine: run steps with fingerprints, atomic files, manifests, executors and caching; it knows no particular step."""
