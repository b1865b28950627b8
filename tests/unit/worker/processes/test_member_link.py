"""The end of a worker process in its link to the supervisor."""

import socket
import threading
from dataclasses import replace

from leasehold.adapters.status_server import Response
from leasehold.config.settings import ObserveSettings
from leasehold.worker.processes.member_link import MemberLink
from leasehold.worker.processes.messages import (
    Answer,
    Connected,
    Explained,
    Question,
    message_from_line,
    message_to_line,
)
from leasehold.worker.settings import ConsumerIdentity, ConsumerSettings

DEADLINE_S = 60
SETTINGS = ConsumerSettings(identity=ConsumerIdentity(stream="orders", application="billing"))


def test_a_process_answers_until_its_supervisor_ends_and_then_stops() -> None:
    """The end of the link is seen however the supervisor ended, also by SIGKILL."""
    ours, theirs = socket.socketpair()
    link, stopped = MemberLink(3, theirs.detach()), threading.Event()

    def fail() -> Response:
        raise ZeroDivisionError

    link.offer_status({"/health": lambda: Response(503, "application/json", b"{}"), "/bug": fail})
    link.stop_with_supervisor(stopped.set)
    link.report_connected(
        replace(SETTINGS, observe=ObserveSettings(status_port=8080, status_host="127.0.0.1"))
    )
    with ours, ours.makefile("rb") as lines:
        assert message_from_line(lines.readline()) == Connected("127.0.0.1", 8080)
        answers = {"/health": (503, "{}"), "/nothing": (404, ""), "/bug": (500, "ZeroDivisionError")}
        for number, (path, (status, body)) in enumerate(answers.items()):
            ours.sendall(message_to_line(Question(number, path)))
            answer = message_from_line(lines.readline())
            assert isinstance(answer, Answer)
            assert (answer.number, answer.status, answer.body) == (number, status, body)
        link.explain("no region is set")
        assert message_from_line(lines.readline()) == Explained("no region is set")
        assert not stopped.is_set()
        ours.shutdown(socket.SHUT_RDWR)
        assert stopped.wait(DEADLINE_S)
    link.explain("nobody listens")
    link.close()


def test_processes_with_a_given_worker_id_have_different_ids() -> None:
    """Without one, each process makes its own."""
    ours, theirs = socket.socketpair()
    with ours:
        link = MemberLink(3, theirs.detach())
        named = replace(SETTINGS, identity=replace(SETTINGS.identity, worker_id="w"))
        assert link.own_settings(named).identity.worker_id == "w-3"
        assert not link.own_settings(SETTINGS).identity.worker_id
        link.close()
