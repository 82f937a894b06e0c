"""View: a finished run as local web pages, whose rows are read on demand."""
