"""The revisions, in two branches."""
