"""Unit tests of ``sla_pipeline.postgres``: no server."""
