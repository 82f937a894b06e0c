"""Export: sequences → rows → files of each format."""
