"""Tests of the ticket SLA monitor: ``unit`` needs no server, ``integration`` real ones, ``chaos`` kills them,
``benchmarks`` measures.
"""
