"""Logging format."""
