"""Run tasks again and again in this process, and count what they leave open."""

import gc
import pickle
import weakref
from pathlib import Path

from nextlong.engine.executor import SerialExecutor

DESCRIPTORS = Path("/proc/self/fd")
MAPS = Path("/proc/self/maps")


def count_open(folder):
    """Return the open descriptors of this process, and the maps of files in a folder."""
    maps = MAPS.read_text(encoding="utf-8", errors="replace").splitlines()
    in_folder = sum(f" {folder}/" in line for line in maps)
    return len(list(DESCRIPTORS.iterdir())), in_folder


def is_released(make):
    """Return whether the object that `make` returns ends with its last reference."""
    gc.disable()
    try:
        return weakref.ref(make())() is None
    finally:
        gc.enable()


class RepeatingExecutor(SerialExecutor):
    """Run the first task of each step `times` times, each as a worker receives it.

    `left_open` has what was open after each of these runs, by step.
    """

    def __init__(self, run_dir, scratch, *, times):
        super().__init__()
        self._run_dir, self._scratch, self._times = run_dir, scratch, times
        self.left_open = {}

    def submit(self, key, call, *arguments, resources, label):
        step = label.rpartition(" task ")[0]
        if step not in self.left_open:
            self.left_open[step] = list(self._repeat(step, task=arguments[0]))
        super().submit(key, call, *arguments, resources=resources, label=label)

    def _repeat(self, step, *, task):
        sent = pickle.dumps(task)
        for number in range(self._times):
            folder = self._scratch / f"{step}-{number}"
            folder.mkdir(parents=True)
            pickle.loads(sent)(folder / "part-00000")
            yield count_open(self._run_dir)
