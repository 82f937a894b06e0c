"""Report: what a person sees of a recipe and a run.

It reads finished steps and changes nothing.
"""
