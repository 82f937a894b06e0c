"""Plan: what a run would take, before anything runs."""
