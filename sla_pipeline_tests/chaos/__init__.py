"""Chaos test: three workers and operators run while workers, sessions and servers are killed, paused and cut.

``python -m sla_pipeline_tests.chaos`` runs it. The modules:

- ``disruptions`` draws the schedule of disruptions from the seed, ``runner`` executes it.
- ``worker_supervisor`` keeps one ``worker`` process running, answers its steps, kills and pauses it.
- ``outages`` stops and restarts the servers.
- ``operators`` change tickets and record each commit in ``committed_versions``.
- ``event_log`` records what happened; ``reconcile`` compares tickets, records, events and commits at the end.
- ``broken`` holds three wrong builds of the product that the harness must catch. Without them a clean run would prove
  nothing.

A worker stops at the end of each step of a cycle (``on_step``) until its supervisor replies. So a kill can hit a chosen
step, and short delays between steps widen races that last a millisecond in production.
"""
