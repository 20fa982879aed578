"""The source: what the API server (or a folder of manifests) says, decoded and kept in a store with its dirty keys."""
