"""Tasks with known answers: each module is one kind, which declares it as `TASK`."""
