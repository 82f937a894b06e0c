"""Probes: attention, dependence between meta-chunks, and short text by lm-eval."""
