"""What a finished step's tasks counted, as its manifest has it."""


def counts_of(step):
    """Return the counts of each task but the one that closed the step."""
    return [part["counts"] for part in step.manifest["parts"] if not part.get("closes")]


def total(step, name):
    """Return the sum of one count over all tasks."""
    return sum(counts[name] for counts in counts_of(step))
