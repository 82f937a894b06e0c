"""View: a finished run as local pages, each row read when it is asked for."""
