"""The exception tree: every deliberate error of Trivium, drawn before it is defined.

::

    TriviumError
    ├── RequestError                    the caller's fault; HTTP 400 unless a subclass says otherwise
    │   ├── InvalidParameterError       a field has a value outside its limits
    │   ├── UnsupportedFeatureError     a field we know and cannot honour; never ignored
    │   ├── ConstraintFailedError       an answer's constraint came to its limits, or left nothing to go on with
    │   ├── PromptTooLongError          the prompt does not fit the model's context
    │   ├── RequestTooLargeError        the request can never fit the KV pool, or its body the limit (413)
    │   ├── TemplateError               the chat template refused the messages
    │   ├── ModelNotFoundError          no model of that name is served (404)
    │   ├── AdapterError                a LoRA adapter cannot be read, or does not fit the model
    │   └── AuthenticationError         no key, or not the right one (401)
    ├── ConfigError                     an option has a bad value, or two contradict each other
    ├── ModelError                      a model cannot be found, fetched or understood
    │   ├── CheckpointError             a file is truncated, malformed, or lacks a tensor
    │   └── UnknownArchitectureError    no definition for this architecture; lists what is known
    ├── PlanError                       a compiled plan cannot be read, written or run
    │   ├── PlanFormatError             its file is damaged, was edited, or is of another version
    │   └── PlanMismatchError           a plan that was named is for another model, processor or other limits
    ├── CapacityError                   try later: a queue is full (429 or 503, with Retry-After)
    ├── DeadlineExceededError           the request's own time limit passed before its answer was complete (504)
    ├── EngineDeadError                 there is no engine, and none that goes on with the request (503)
    ├── ProgramError                    a primitive of a program failed; cites the author's line
    ├── RemoteError                     a model behind somebody else's API refused, failed, or cannot be reached (502)
    ├── PoisonRequestError              the request ended the engine process whenever it ran, alone too (500)
    └── InternalError                   our fault: an invariant does not hold; please report it

Messages name the thing, the value that was given, the limit, and a way out.
"""

from __future__ import annotations


class TriviumError(Exception):
    """Root of all deliberate errors."""

    http_status: int = 500
    code: str = "internal_error"


class RequestError(TriviumError):
    """The request is at fault: the caller can fix it and try again.

    Attributes:
        param: The request field at fault, or `None` when it is not one field.
    """

    http_status = 400
    code = "invalid_request"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class InvalidParameterError(RequestError):
    """A field has a wrong type or a value outside its limits."""

    code = "invalid_value"


class UnsupportedFeatureError(RequestError):
    """A field is known and cannot be honoured, so it is refused rather than ignored."""

    code = "unsupported_parameter"


class ConstraintFailedError(RequestError):
    """In the middle of an answer its constraint outgrew its limits, or left no text to go on with; others go on."""

    code = "constraint_failed"


class PromptTooLongError(RequestError):
    """Prompt and requested output together exceed `max_model_len`."""

    code = "context_length_exceeded"


class RequestTooLargeError(RequestError):
    """The request is larger than a hard limit: the KV pool, or the body-size limit."""

    http_status = 413
    code = "request_too_large"


class TemplateError(RequestError):
    """The chat template refused these messages, or failed on them."""

    code = "template_error"


class ModelNotFoundError(RequestError):
    """No model of that name is served here."""

    http_status = 404
    code = "model_not_found"


class AdapterError(RequestError):
    """A LoRA adapter cannot be read, does not fit the model, or has changed since it was loaded."""

    code = "adapter_error"


class AuthenticationError(RequestError):
    """The API key is missing or wrong."""

    http_status = 401
    code = "invalid_api_key"


class ConfigError(TriviumError):
    """An option has a bad value, or options contradict each other."""

    code = "config_error"


class ModelError(TriviumError):
    """A model cannot be found, fetched or understood."""

    code = "model_error"


class CheckpointError(ModelError):
    """A checkpoint file is truncated, malformed, inconsistent, or lacks a tensor."""

    code = "checkpoint_error"


class UnknownArchitectureError(ModelError):
    """The checkpoint names an architecture without a definition here."""

    code = "unknown_architecture"


class PlanError(TriviumError):
    """A compiled plan cannot be read, written or run."""

    code = "plan_error"


class PlanFormatError(PlanError):
    """A plan's file is damaged, was edited, or was written by another version; compile again."""

    code = "plan_format_error"


class PlanMismatchError(PlanError):
    """A plan that was named does not fit what was asked; the message lists what differs, field by field."""

    code = "plan_mismatch"


class CapacityError(TriviumError):
    """The server is full for now.

    Attributes:
        retry_after_s: Seconds after which trying again makes sense.
    """

    http_status = 503
    code = "overloaded"

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class DeadlineExceededError(TriviumError):
    """The request's own time limit passed before its answer was complete."""

    http_status = 504
    code = "deadline_exceeded"


class EngineDeadError(TriviumError):
    """There is no engine process that could answer, or none that could be started goes on with the request."""

    http_status = 503
    code = "engine_dead"


class PoisonRequestError(TriviumError):
    """The engine process died twice at the same token of this request while it ran nothing else; the others go on."""

    code = "poison_request"


class ProgramError(TriviumError):
    """A primitive of a program failed, was cancelled, or took too long; `__cause__` says why.

    Attributes:
        line: `FILE:LINE` where the author wrote the primitive.
    """

    code = "program_error"

    def __init__(self, message: str, *, line: str) -> None:
        super().__init__(message)
        self.line = line


class RemoteError(TriviumError):
    """A model behind somebody else's API refused, failed, or cannot be reached.

    Attributes:
        status: The HTTP status of its answer, or `None` where there was none.
    """

    http_status = 502
    code = "remote_error"

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class InternalError(TriviumError):
    """An invariant of ours does not hold. Please report it with the message."""


def ensure(condition: object, message: str) -> None:
    """Raise `InternalError` with `message` unless `condition` holds; survives `python -O`.

    Raises:
        InternalError: `condition` is false.
    """
    if not condition:
        raise InternalError(message)
