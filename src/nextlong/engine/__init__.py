"""Engine: run steps: fingerprints, atomic files, manifests, executors, reuse of what is done; it knows no particular step."""
