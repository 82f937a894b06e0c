"""Engine: run steps; it knows no particular step.

It does so with fingerprints, atomic files, manifests, executors and caching.
"""
