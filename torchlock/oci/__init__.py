"""OCI images: layers, configuration, layout, push. Knows nothing of locks."""
