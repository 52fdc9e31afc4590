"""Memory: what was found on the node, what was done to it, what was there before."""
