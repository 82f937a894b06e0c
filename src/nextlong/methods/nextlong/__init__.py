"""NExtLong: a document's chunks apart, its hard negatives between them."""
