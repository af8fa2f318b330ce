"""Port of the demo's web page."""

from contextlib import ExitStack

from sla_pipeline.demo import run


def test_two_demos_that_start_at_once_have_a_port_each() -> None:
    """Neither webserver listens yet when the other demo looks."""
    with ExitStack() as first, ExitStack() as second:
        assert run._reserved_web_port(first) != run._reserved_web_port(second)


def test_the_usual_port_is_free_again_when_a_demo_has_ended() -> None:
    with ExitStack() as earlier:
        port = run._reserved_web_port(earlier)
    with ExitStack() as later:
        assert port != run._USUAL_WEB_PORT or run._reserved_web_port(later) == port
