"""Engine: carry out steps. Fingerprints, skipping, atomic shards, manifests, executors; knows no stage.

step.py      what a step is, and what is left of one when it is done
estimate.py  how its time, disk and memory grow, for plans
store.py     files on disk: atomic writes, hashes, the lock
runner.py    which tasks are missing, run them, write the manifest last
local.py     an executor of processes
progress.py  what the terminal or the log shows meanwhile
"""
