"""Engine: run steps. Fingerprints, reuse of finished steps, atomic shards, manifests and executors; it knows no particular step.

step.py       a step, how its cost grows, its tasks, and a finished step with its manifest
store.py      files on disk: atomic writes, hashes, the lock of a run directory
runner.py     runs the tasks that are missing and writes the manifest last; array jobs
executor.py   the protocol of executors, and the one of this process; local.py: processes; ray.py: a cluster
process.py    signals that stop a run, and memory; progress.py: what the terminal or the log shows meanwhile
"""
