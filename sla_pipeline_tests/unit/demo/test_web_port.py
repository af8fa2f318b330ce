"""The port of the demo's page."""

from contextlib import ExitStack

from sla_pipeline.demo import stage


def test_two_demos_that_start_at_once_have_a_port_each() -> None:
    """Neither webserver listens yet when the other demo looks."""
    with ExitStack() as first, ExitStack() as second:
        assert stage._web_port(first) != stage._web_port(second)


def test_the_usual_port_is_free_again_when_a_demo_has_ended() -> None:
    with ExitStack() as before:
        port = stage._web_port(before)
    with ExitStack() as after:
        assert port != stage._USUAL_WEB_PORT or stage._web_port(after) == port
