"""Tasks: a file or folder a family, found by its `TASKS` (`nextlong.plugins.TASKS`)."""
