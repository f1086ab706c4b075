"""Image loaders: each file turns one kind of reference (a folder, an array file, `builtin:`) into Images."""
