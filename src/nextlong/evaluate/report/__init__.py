"""Report: results → the paper's tables and figures, models side by side."""
