"""Titan: the engine torchtitan, for more than one device.

It has FSDP2, context parallelism and distributed checkpoints.
"""
