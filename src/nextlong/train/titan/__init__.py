"""Titan: the engine torchtitan, for more than one device: FSDP2, context parallelism, distributed checkpoints."""
