"""Words: what should be on the node, decided without touching anything."""
