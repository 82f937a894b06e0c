"""RunFiles: how a finished step's files are looked up and read; below all stations."""
