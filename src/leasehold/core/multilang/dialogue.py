"""The dialogue with a child as a state machine: the daemon sends one action at a time and waits for its status.

In between, the child may request checkpoints, and each is answered before its next line is read. This module decides;
`leasehold.multilang.conversation` reads and writes.
"""

from __future__ import annotations

from dataclasses import dataclass

from leasehold.core.multilang.messages import ActionName, CheckpointRequest, ChildMessage, Junk, Status


@dataclass(frozen=True, slots=True)
class Answer:
    """Execute this checkpoint, as allowed during this action, and send the reply."""

    request: CheckpointRequest
    during: ActionName


@dataclass(frozen=True, slots=True)
class Finished:
    """The child has finished the action."""


@dataclass(frozen=True, slots=True)
class Broken:
    """The child has broken the protocol: it cannot be used any more."""

    problem: str


@dataclass(frozen=True, slots=True)
class Ignored:
    """The line has no effect. `problem` says why if it is worth a log line."""

    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Postponed:
    """The request came between two actions. It is answered during the next one, as the Java daemon does."""


Reaction = Answer | Finished | Broken | Ignored | Postponed


class Dialogue:
    """Knows which action awaits its status, and reacts to each message of the child.

    >>> dialogue = Dialogue()
    >>> dialogue.begin(ActionName.INITIALIZE)
    >>> dialogue.react(Status("initialize"))
    Finished()
    >>> dialogue.react(Status("initialize")).problem
    'a status without an action'
    """

    def __init__(self) -> None:
        self._awaited: ActionName | None = None
        self._awaited_text = ""

    @property
    def awaited(self) -> ActionName | None:
        """The action whose status is awaited."""
        return self._awaited

    def begin(self, action: ActionName, sent_as: str | None = None) -> None:
        """An action is sent; `sent_as` is its name on the wire if it differs. The status of the last one is in."""
        assert self._awaited is None, f"{self._awaited} has no status yet"
        self._awaited = action
        self._awaited_text = sent_as or action.value

    def react(self, message: ChildMessage) -> Reaction:
        """Decide what follows a message of the child."""
        match message:
            case Junk():
                return Ignored()
            case CheckpointRequest() if self._awaited is not None:
                return Answer(message, self._awaited)
            case CheckpointRequest():
                return Postponed()
            case Status() if self._awaited is None:
                # To count it as the answer to the next action would end that action before the child has seen it.
                return Ignored("a status without an action")
            case Status(response_for) if response_for == self._awaited_text:
                self._awaited = None
                return Finished()
            case Status(response_for):
                named = "nothing" if response_for is None else repr(response_for[:40])
                return Broken(f"it answered {self._awaited_text} with a status for {named}")
