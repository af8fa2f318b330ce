"""The proof by chaos: three workers, operators, and everything killed, frozen and cut, until the books must balance.

``python -m sla_pipeline_tests.chaos`` runs it. ``disruptions`` draws from the seed what goes wrong and when,
``conductor`` sees it through, ``seats`` keeps one ``worker`` process each and answers its steps, ``outages`` ends and
restarts the servers, ``operators`` change tickets and write down in the ``ledger`` what they committed, ``chronicle``
keeps what happened, ``verdict`` compares all books at the end. ``broken`` holds three wrong builds of the product,
which the same harness must catch: without them a clean run would prove nothing.

A worker halts at the end of each step of a cycle (``on_step``) and goes on when it is told to. So a kill can meet a
named moment, and short pauses between all steps make wide what is a millisecond in production.
"""
