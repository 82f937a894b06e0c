"""Tasks: a file or folder a family, found by its `TASKS` (`task.FAMILIES`)."""
