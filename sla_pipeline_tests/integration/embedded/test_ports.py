import socket

import pytest

from sla_pipeline.embedded import ServiceError, free_ports
from sla_pipeline.embedded.ports import listens


def test_ports_are_different_and_outside_the_range_of_outgoing_connections() -> None:
    ports = free_ports(50)
    assert len(set(ports)) == 50
    assert min(ports) >= 15_000
    assert max(ports) < 30_000


def test_a_port_on_which_something_listens_is_not_given() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        (other,) = free_ports(1)
        assert free_ports(1, candidates=[port, other]) == [other]
        assert (listens(port), listens(other)) == (True, False)


def test_too_few_free_ports_are_an_error_that_counts_them() -> None:
    (free,) = free_ports(1)
    with pytest.raises(ServiceError, match=r"2 free ports of 127\.0\.0\.1 are needed, 1 were found among 1"):
        free_ports(2, candidates=[free])
