"""Picture: drawings of a sequence and charts, for reports, viewer and notebooks."""
