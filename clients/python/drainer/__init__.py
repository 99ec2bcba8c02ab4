"""Enqueues intents for the effects of an agent's tools, in the agent's own transaction, and waits for their results."""

from .errors import (
    Cancelled,
    DrainerError,
    Failed,
    Invalid,
    KeyTaken,
    LimitReached,
    NotAllowed,
    NotCommitted,
    NotCompleted,
    NotInTransaction,
    OtherTenant,
    Refused,
    RunClosed,
    TransactionAborted,
    Undone,
    Unknown,
    UnknownTool,
)
from .outbox import Intent, Outbox, idempotency_key
from .results import Completed, Pending

__version__ = "0.1.0"

__all__ = [
    "Cancelled", "Completed", "DrainerError", "Failed", "Intent", "Invalid", "KeyTaken", "LimitReached", "NotAllowed", "NotCommitted",
    "NotCompleted", "NotInTransaction", "OtherTenant", "Outbox", "Pending", "Refused", "RunClosed", "TransactionAborted", "Undone",
    "Unknown", "UnknownTool", "idempotency_key",
]
