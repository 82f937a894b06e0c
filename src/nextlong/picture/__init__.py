"""Picture: a sequence drawn, alone or on a page: what the report, the viewer and notebooks share."""
