"""The errors of this package, and the sentences about them that a model reads."""

from __future__ import annotations

# The texts that a model reads. They are the same in Go and TypeScript: see clients/vectors.json.
SENTENCES = {
    "recorded": "It is recorded. It will be carried out, or its failure reported. Do not ask for it again.",
    "pending": "It is recorded and not done yet. It will be carried out, or its failure reported. Do not ask for it again.",
    "completed": "It is done.",
    "failed": "It failed and was not done. Do not ask for it again. Tell the user.",
    "unknown": "It is not known whether it was done. A person is finding out. Do not ask for it again.",
    "cancelled": "It was cancelled before anything was done. Do not ask for it again.",
    "compensated": "It was done, and then undone. Do not ask for it again.",
    "compensation_failed": "It was done. Undoing it failed, and a person has to undo it. Do not ask for it again.",
    "key_taken": "This step was already asked for with other values. The first request stands. Do not ask for it again.",
    "run_closed": "This run is closed. Nothing more of it will be done. Stop.",
    "invalid": "It was not recorded, because the request is malformed. Tell the user.",
    "unknown_tool": "It was not recorded, because there is no such tool. Tell the user.",
    "other_tenant": "It was not recorded, because this run belongs to another tenant. Stop.",
    "limit_reached": "It was not recorded, because a limit is reached. Stop for now. The same request can be made later.",
}


class DrainerError(Exception):
    """The base of every error of this package."""

    _sentence = ""

    @property
    def for_model(self) -> str:
        """A sentence for the model, without names, ids or payload. Empty for an error that a model cannot act on."""
        return SENTENCES.get(self._sentence, "")


class NotInTransaction(DrainerError):
    """There is no open transaction, so that the intent could not commit with the agent's state."""


class NotCommitted(DrainerError):
    """The intent is not there: its transaction is still open, or was rolled back."""


class NotAllowed(DrainerError):
    """The login may not use the outbox: it lacks the role outbox_agent, which an administrator grants."""


class TransactionAborted(DrainerError):
    """An earlier statement failed and aborted the caller's transaction. Roll it back, and run all of it again."""


class Refused(DrainerError):
    """The outbox refused the intent. Nothing was recorded, and the transaction is aborted."""

    sqlstate = ""

    def __init__(
        self, message: str, *, hint: str | None = None,
        intent_id: int | None = None, status: str | None = None, key: str | None = None,
    ) -> None:
        super().__init__(message)
        self.hint = hint
        self.intent_id = intent_id  # only of KeyTaken: the first intent, its status, and its key
        self.status = status
        self.key = key


class KeyTaken(Refused):
    """This step was already asked for with another payload. The first request stands."""

    sqlstate, _sentence = "OB001", "key_taken"


class RunClosed(Refused):
    """The run was, or is being, rolled back or cancelled. Nothing more of it happens."""

    sqlstate, _sentence = "OB002", "run_closed"


class Invalid(Refused, ValueError):
    """The arguments cannot make an intent: a mistake in the program."""

    sqlstate, _sentence = "OB003", "invalid"


class UnknownTool(Refused):
    """No daemon serves this tool."""

    sqlstate, _sentence = "OB004", "unknown_tool"


class OtherTenant(Refused):
    """The run belongs to another tenant."""

    sqlstate, _sentence = "OB005", "other_tenant"


class LimitReached(Refused):
    """The tenant has reached a limit. The message has the figure, the hint says when to come back."""

    sqlstate, _sentence = "OB006", "limit_reached"


REFUSALS: dict[str, type[Refused]] = {
    kind.sqlstate: kind for kind in (KeyTaken, RunClosed, Invalid, UnknownTool, OtherTenant, LimitReached)
}


class NotCompleted(DrainerError):
    """The intent has settled, and its effect did not happen, was undone, or is in doubt."""

    def __init__(self, intent_id: int, status: str, provider_ref: str | None, response: object, error: str | None) -> None:
        super().__init__(f"intent {intent_id} is {status}")
        self.intent_id = intent_id
        self.status = status
        self.provider_ref = provider_ref
        self.response = response
        self.error = error  # the error that was recorded for the last attempt, if any
        self._sentence = status


class Failed(NotCompleted):
    """The effect did not happen, and will not happen."""


class Unknown(NotCompleted):
    """The effect may have happened. A person was paged. It must not be repeated under another key."""


class Cancelled(NotCompleted):
    """The intent was stopped before any effect happened."""


class Undone(NotCompleted):
    """The effect happened and was undone. With the status compensation_failed a person has to undo it."""


SETTLED: dict[str, type[NotCompleted]] = {
    "failed": Failed, "unknown": Unknown, "cancelled": Cancelled,
    "compensated": Undone, "compensation_failed": Undone,
}
