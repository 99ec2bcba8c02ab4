"""Turns what an agent's tool would do into an intent, in the agent's own transaction."""

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
