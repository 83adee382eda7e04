"""From an artifact to its file tree, one module per format."""
