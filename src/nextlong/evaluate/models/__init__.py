"""Models: who answers. Each is a `Model` of `base.py`; which one a name means is decided by `opened`."""
