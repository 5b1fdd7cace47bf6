"""Docstrings and signatures of the methods that wait. Each is derived from the function that makes its wait, so that
every argument is described once; the sections Returns and Raises are added here.
"""

import inspect
from collections.abc import Callable
from typing import Any, Final, TypeVar

from purgatory_client.results import Result

T = TypeVar("T")

_RAISES: Final = """
Raises:
    InvalidRequest: The daemon refused it, or it cannot be sent; `field` says what is at fault.
    LimitExceeded: A limit of the daemon or of this client is reached.
    Unavailable: No connection for `give_up_after` seconds, or the daemon takes no new work.
    SessionTakenOver: Another client has opened the session.
    ClientClosed: The client is closed, or was closed meanwhile.
    OutboxError: The outbox cannot be used or written.
"""
ONE: Final = f"""Cancelling the task (in a blocking client: an interrupt) cancels the operation at the daemon.

Returns:
    How the wait ended. Running out of time is an outcome of it, not an error.
{_RAISES}"""
MANY: Final = f"""Cancelling the task (in a blocking client: an interrupt) cancels the operations at the daemon.

Returns:
    The results in the order of the operations, once all have ended. An operation that the daemon refuses has the
    outcome REFUSED, and its error is in `refusals`; the others are served.
{_RAISES}"""


def described(method: T, build: Callable[..., Any], answer: type) -> T:
    """Give a method the name, signature and argument descriptions of `build`. `answer` is the method's return type."""
    is_one = answer is Result
    name = build.__name__ if is_one else f"{build.__name__}_many"
    signature = inspect.signature(build)
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    attributes = {
        "__name__": name,
        "__qualname__": f"AsyncClient.{name}",
        "__doc__": (inspect.getdoc(build) or "").partition("Returns:")[0] + (ONE if is_one else MANY),
        "__signature__": signature.replace(
            parameters=[own, *signature.parameters.values()], return_annotation=answer.__name__
        ),
    }
    for attribute, value in attributes.items():
        setattr(method, attribute, value)
    return method
