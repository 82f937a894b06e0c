"""Report: what a person sees of a recipe and a run. Reads finished steps; changes nothing."""
