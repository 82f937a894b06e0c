"""Picture: drawings of a sequence and charts, shared by the report, the viewer and notebooks."""
