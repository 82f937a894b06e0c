"""Export: sequences → rows → files."""
