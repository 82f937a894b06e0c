"""Reading: the user's files → records, in any supported format, on any file system."""
