"""Image data: find, download, decode or generate it; put it in order; augment it."""
