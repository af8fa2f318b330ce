"""The minute job: asset, ops, checks, job and schedule of a cycle."""
