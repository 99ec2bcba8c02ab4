"""outbox.py: commits an intent where a tool used to act."""
import json
import time

import psycopg2


class KeyTaken(Exception):
    """OB001: this step stands for another payload already."""


class RunClosed(Exception):
    """OB002: the run is rolled back, or was cancelled. Nothing more of it happens."""


ERRORS = {"OB001": KeyTaken, "OB002": RunClosed, "OB003": ValueError}


def enqueue(cursor, run, step, tool, scope, payload):
    """Returns (intent_id, created, status, idempotency_key); commits with the cursor's transaction."""
    try:
        cursor.execute(
            "SELECT * FROM outbox.enqueue(%s, %s, %s, %s, %s)",
            (run, step, tool, scope, json.dumps(payload)),
        )
    except psycopg2.Error as error:
        if error.pgcode in ERRORS:
            raise ERRORS[error.pgcode](error.diag.message_primary) from error
        raise
    return cursor.fetchone()


def result(connection, intent_id, patience=30.0):
    """Returns (status, provider_ref, response) once the intent has settled, None if it takes longer."""
    deadline, pause = time.monotonic() + patience, 0.05
    while time.monotonic() < deadline:
        with connection, connection.cursor() as cursor:  # a new transaction sees what is new
            cursor.execute(
                "SELECT status, provider_ref, response FROM outbox.status"
                " WHERE intent_id = %s AND finished_at IS NOT NULL",
                (intent_id,),
            )
            settled = cursor.fetchone()
        if settled:
            return settled
        time.sleep(pause)
        pause = min(2 * pause, 2.0)
    return None


def as_tool(connect, run, step, tool, scope_of):
    """Makes a tool for a model, of one step of one run; scope_of finds what its arguments are about."""

    def call(arguments):
        connection = connect()
        try:
            with connection, connection.cursor() as cursor:
                # … the agent's own state is written here …
                intent_id, *_ = enqueue(cursor, run, step, tool, scope_of(arguments), arguments)
            settled = result(connection, intent_id)
        except KeyTaken:
            return {"error": "This was asked for before, with other arguments. The first request stands; do not repeat it."}
        finally:
            connection.close()
        if settled is None:
            return {"status": "pending", "note": "It will happen. Do not ask for it again."}
        status, provider_ref, response = settled
        return {"status": status, "reference": provider_ref, "response": response}

    return call
