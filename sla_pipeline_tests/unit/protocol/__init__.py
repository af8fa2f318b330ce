"""The publishing protocol as an executable model, and the search through every interleaving of it."""
